#!/usr/bin/env bash
# Claims: --best-keep K keeps the K best evaluations of a run in SAVE/best, `latest` names the best, and a run that stops and
# resumes, on two ranks too, keeps the same ones and prints the same means of training. --save-weights-only writes no optimizer
# states at any stage: --init and export take such a checkpoint, --resume refuses it with what to do.
. "$(dirname "$0")/../../support/command.sh"

head -c 6000 "$source_dir/examples/data/fortunes.txt" >text.txt
tail -c 3000 "$source_dir/examples/data/fortunes.txt" >dev.txt
train() { # OUT OPTIONS…
  local name=$1
  shift
  OMP_NUM_THREADS=1 "$czero" ${launch:-} train --config "$source_dir/configs/${config:-zero0}.json" --model gpt2-tiny --data text.txt \
    --eval-data dev.txt --tokenizer bytes --seq-len 16 --eval-interval 2 --best-metric loss "$@" >out 2>err || fail "$name failed: $*"
  grep -o 'eval at step.*' err | sed 's/  (number.*)$//; s/  (best)$//' >>"$name.evals"
}
tags() { ls "$1/best" | grep global_step | sort; }

train whole --best-keep 3 --steps 12 --save-interval 5 --save whole
[ "$(tags whole | wc -l)" = 3 ] || fail "not three are kept: $(tags whole)"
[ "$(grep -c 'train loss' whole.evals)" = 6 ] || fail "not six evaluations with a mean of training"
cp -r whole parts # step 5 comes between two evaluations, and the folder is ahead of it
train parts --best-keep 3 --steps 12 --save parts --resume parts:global_step5
[ "$(tags whole)" = "$(tags parts)" ] || fail "a resumed run keeps others: $(tags whole) and $(tags parts)"
cmp whole/best/latest parts/best/latest || fail "a resumed run has another best"
tail -n 4 whole.evals >whole.rest
cmp whole.rest parts.evals || fail "a resumed run evaluates differently"
grep 'the best of' err >parts.best || fail "the best are not listed"

# A resumed run that keeps fewer removes the others with its next best.
train parts --best-keep 1 --steps 14 --save parts --resume parts
[ "$(tags parts)" = "$(cat parts/best/latest)" ] || fail "not one is kept: $(tags parts)"

config=zero3
launch="launch -n 2"
train ranks --best-keep 2 --steps 8 --save ranks --save-weights-only --save-interval 4
[ "$(tags ranks | wc -l)" = 2 ] || fail "not two are kept: $(tags ranks)"
! grep -rlq exp_avg ranks || fail "optimizer states were saved"
launch=
"$czero" fsck ranks --all >fsck 2>&1 || fail "a checkpoint of weights is no checkpoint"
resume=(train --config "$source_dir/configs/zero3.json" --model gpt2-tiny --data text.txt --tokenizer bytes --seq-len 16 --steps 10)
refused 2 "czero train --init" "${resume[@]}" --resume ranks
refused 2 "--resume auto" "${resume[@]}" --resume auto --save ranks --save-weights-only
"$czero" "${resume[@]}" --init ranks --quiet >out 2>err || fail "--init does not take weights alone"
"$czero" export ranks exported >out 2>err || fail "export does not take weights alone"

refused 2 "--best-metric" "${resume[@]}" --eval-data dev.txt --save x --best-keep 2
refused 2 "at most 64" "${resume[@]}" --eval-data dev.txt --save x --best-metric loss --best-keep 65
refused 2 "--best-keep" "${resume[@]}" --eval-data dev.txt --save x --best-metric loss --best-keep 0
refused 2 "--save-weights-only needs --save" "${resume[@]}" --save-weights-only
refused 2 "--best-keep" "${resume[@]}" --save-top-k 3
refused 2 "--save-weights-only" "${resume[@]}" --save-only-model
refused 2 "did you mean --best-metric?" "${resume[@]}" --monitor val_acc
refused 2 "did you mean accuracy?" "${resume[@]}" --best-metric val_acc
refused 2 "did you mean loss?" "${resume[@]}" --best-metric eval_loss
refused 2 "did you mean macro_f1?" "${resume[@]}" --best-metric macro-F1

# A signal at a step whose evaluation is due: the resumed run makes it.
launch= config=zero0
"$czero" train --config "$source_dir/configs/zero0.json" --model gpt2-tiny --data text.txt --eval-data dev.txt --tokenizer bytes \
  --seq-len 16 --eval-interval 1 --steps 100000 --save stopped --metrics stopped.csv --quiet >out 2>err &
pid=$!
for _ in $(seq 200); do grep -q ',eval,' stopped.csv 2>/dev/null && break || sleep 0.05; done
kill -TERM $pid
wait $pid || fail "a stopped run failed"
step=$(sed 's/global_step//' stopped/latest)
"$czero" train --config "$source_dir/configs/zero0.json" --model gpt2-tiny --data text.txt --eval-data dev.txt --tokenizer bytes \
  --seq-len 16 --eval-interval 1 --steps $((step + 1)) --save stopped --metrics stopped.csv --quiet --resume stopped >out 2>err || fail "no resume"
[ "$(grep -c ',eval,' stopped.csv)" = $((step + 1)) ] || fail "an evaluation is lost: $(grep -c ',eval,' stopped.csv) of $((step + 1))"
