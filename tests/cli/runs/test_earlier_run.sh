#!/usr/bin/env bash
# Claims: a new run never loses what another run left. Without --force it is refused where --save holds checkpoints (the best
# alone, or tags without `latest`, too), and where --metrics, --curve and --tensorboard hold another run's rows. With --force
# the checkpoints, their best and their model move to SAVE/earlier-N whole, before the new run's --save-keep and best remove
# anything; --resume auto without a state moves them and the tables aside. A resumed run, also from SAVE/best, moves nothing.
# --resume and --init of another folder into one with checkpoints count as new, on two ranks too.
. "$(dirname "$0")/../../support/command.sh"

head -c 6000 "$source_dir/examples/data/fortunes.txt" >text.txt
run=(--config "$source_dir/configs/zero0.json" --model gpt2-tiny --data text.txt --eval-data text.txt --tokenizer bytes --seq-len 16
  --quiet)
best=(--eval-interval 2 --best-metric loss)
train() { "$czero" ${launch:-} train "${run[@]}" "$@" >out 2>err || fail "train $*"; }
sums() { (cd "$1" && find "${@:2}" -type f -exec sha256sum {} + | sort -k2); }
run_of() { sums "$1" $(cd "$1" && ls -d global_step* latest best model); }

train --steps 6 --save-interval 2 --save run "${best[@]}" --metrics m.csv --curve c.csv --tensorboard tb
touch run/notes.txt
run_of run >first
for option in --metrics=m.csv --curve=c.csv; do
  cp "${option#*=}" kept.csv
  refused 2 "rows of another run, which would be lost" train "${run[@]}" --steps 2 ${option/=/ }
  cmp "${option#*=}" kept.csv || fail "$option is lost"
done
grep -q "m.csv: holds 9 rows of another" <("$czero" train "${run[@]}" --steps 2 --metrics m.csv 2>&1) || fail "not nine rows"
refused 2 "holds events of another run" train "${run[@]}" --steps 2 --tensorboard tb
refused 2 "--force moves them to a folder run/earlier-N" train "${run[@]}" --steps 2 --save run
[ "$(run_of run)" = "$(cat first)" ] || fail "a refused run changed the folder"

launch="launch -n 2"
train --steps 4 --save-interval 1 --save-keep 1 --save run "${best[@]}" --force --metrics m.csv --curve c.csv --tensorboard tb --seed 7
launch=
[ "$(run_of run/earlier-1)" = "$(cat first)" ] || fail "the first run is not whole in earlier-1"
[ -e run/notes.txt ] && [ ! -e run/global_step6 ] && [ "$(cat run/latest)" = global_step4 ] || fail "the new run is not alone: $(ls run)"
[ "$(cut -d, -f1 m.csv | sort -n | tail -1)" = 4 ] || fail "--force does not replace the rows"
"$czero" export run/earlier-1 exported >out 2>err || fail "the earlier run has lost its model"

# The same run continues: nothing moves.
train --steps 6 --save run "${best[@]}" --resume --metrics m.csv --curve c.csv --tensorboard tb
train --steps 7 --save run "${best[@]}" --resume run/best --force
[ ! -e run/earlier-2 ] || fail "a resumed run moved its own checkpoints"

# Another run's state into this folder
train --steps 2 --save other "${best[@]}"
refused 2 "holds checkpoints already" train "${run[@]}" --steps 8 --save run --resume other
refused 2 "holds checkpoints already" train "${run[@]}" --steps 8 --save run --resume run/earlier-1
train --steps 8 --save run "${best[@]}" --resume run/earlier-1 --force
[ -e run/earlier-2/latest ] && [ -e run/earlier-1/latest ] || fail "an earlier run continued: $(ls run)"
run_of run >third
train --steps 2 --save run "${best[@]}" --init run --force # read before it moves
[ "$(run_of run/earlier-3)" = "$(cat third)" ] || fail "--init of the folder itself"

# A run that was killed before its first save
rm -rf run/earlier-* run/latest run/global_step*
printf 'step,loss,lr_next,grad_norm,loss_scale\n1,5,0,1,1\n' >c.csv
printf 'step,epoch,split,loss,accuracy,macro_f1,weighted_f1,lr,train_loss,train_accuracy,seconds\n' >m.csv
refused 2 "none is named as the latest" train "${run[@]}" --steps 2 --save run
train --steps 2 --save run "${best[@]}" --resume auto --metrics m.csv --curve c.csv
[ -e run/earlier-1/best/latest ] && grep -q '^1,5,' c.csv.earlier-1 && [ ! -e m.csv.earlier-1 ] || fail "--resume auto lost an earlier run"
rm -rf run/earlier-1 run/best run/latest
refused 2 "none is named as the latest" train "${run[@]}" --steps 2 --save run

# A header, or a row that a kill cut, is nothing to lose.
printf 'step,loss,lr_next,grad_norm,loss_scale\n1,5' >c.csv
train --steps 1 --curve c.csv
