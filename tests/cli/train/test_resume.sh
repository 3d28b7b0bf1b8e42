#!/usr/bin/env bash
# Claim: a run that is killed and resumed writes the same curve and the same weights, byte for byte,
# as one that was left alone, at any stage, from the data's order to the loss scale; SIGTERM saves
# first; a checkpoint continues at another stage and number of ranks; what cannot be resumed is refused
# with a sentence and the right exit code.
set -euo pipefail
build=$(cd "$1" && pwd)
source_dir=$(cd "$(dirname "$0")/../../.." && pwd)
czero=$build/czero
work=$(mktemp -d /tmp/czero-resume-XXXXXX)
trap 'rm -rf "$work"' EXIT
cd "$work"
head -c 20000 "$source_dir/examples/data/fortunes.txt" >text.txt
train=(train --model gpt2-tiny --data text.txt --tokenizer bytes --seq-len 32 --quiet)

config() { # STAGE PRECISION ACCUMULATION
  cat <<JSON
{"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": $3, "gradient_clipping": 1.0,
 "optimizer": {"type": "AdamW", "params": {"lr": 0.003, "weight_decay": 0.1}},
 "scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": 40, "warmup_num_steps": 5}},
 "bf16": {"enabled": $([ "$2" = bf16 ] && echo true || echo false)},
 "fp16": {"enabled": $([ "$2" = fp16 ] && echo true || echo false), "initial_scale_power": 22,
          "loss_scale_window": 6},
 "zero_optimization": {"stage": $1}}
JSON
}

expect() { # CODE TEXT COMMAND…
  local want=$1 text=$2 code=0
  shift 2
  "$@" >out.txt 2>err.txt || code=$?
  [ "$code" = "$want" ] && grep -qF -- "$text" err.txt && return
  echo "exit code $code, wanted $want with '$text': $*"
  cat err.txt
  exit 1
}

# ---- killed without warning, at a moment of its own choosing ------------------------------------
for cell in "0 fp32 1" "1 bf16 2" "2 fp16 1" "3 bf16 1"; do
  read -r stage precision gas <<<"$cell"
  config $cell >ds.json
  name=s$stage-$precision
  "$czero" "${train[@]}" --config ds.json --seed 7 --steps 24 --curve $name.csv --save $name-whole
  "$czero" "${train[@]}" --config ds.json --seed 7 --steps 1000000 --curve $name-cut.csv \
    --save $name-cut --save-interval 3 &
  pid=$!
  for _ in $(seq 600); do
    [ -e $name-cut/latest ] && [ "$(wc -l <$name-cut.csv)" -gt 9 ] && break
    sleep 0.01
  done
  kill -KILL $pid
  wait $pid 2>/dev/null || true
  saved=$(sed 's/global_step//' $name-cut/latest)
  test $((saved % 3)) = 0
  until=$((saved > 24 ? saved : 24)) # a fast machine may have got further
  [ "$until" = 24 ] ||
    "$czero" "${train[@]}" --config ds.json --seed 7 --steps $until --curve $name.csv --save $name-whole
  "$czero" "${train[@]}" --config ds.json --resume $name-cut --steps $until --curve $name-cut.csv \
    --save $name-end
  cmp $name.csv $name-cut.csv
  for kind in whole end; do
    "$build/zero_to_fp32" $name-$kind $name-$kind-fp32 --safe_serialization --quiet >/dev/null
    "$czero" fsck $name-$kind >/dev/null
  done
  cmp $name-whole-fp32/model.safetensors $name-end-fp32/model.safetensors
done

# ---- asked to stop: saved, and exit code 0 ------------------------------------------------------
config 2 bf16 1 >ds.json
"$czero" "${train[@]}" --config ds.json --steps 1000000 --curve stop.csv --save stop &
pid=$!
for _ in $(seq 600); do [ -s stop.csv ] && [ "$(wc -l <stop.csv)" -gt 3 ] && break; sleep 0.01; done
kill -TERM $pid
wait $pid
stopped=$(sed 's/global_step//' stop/latest)
test "$(tail -1 stop.csv | cut -d, -f1)" = "$stopped"
"$czero" fsck stop >/dev/null

# constants are the checkpoint's, which is reported of those that the config has otherwise, and of no other
again=("$czero" "${train[@]}" --config ds.json --resume stop --steps $((stopped + 1)))
"${again[@]}" 2>err.txt
test "$(grep -c 'from the checkpoint' err.txt)" = 0
"${again[@]}" --set optimizer.params.eps=1e-5 --set optimizer.params.weight_decay=0.5 2>err.txt
test "$(grep -c 'from the checkpoint' err.txt)" = 2
grep -q 'eps: using 1e-08 from the checkpoint; the config has 1e-05$' err.txt
grep -q 'weight_decay: using 0.1 from the checkpoint; the config has 0.5$' err.txt

"$czero" inspect stop >inspect.txt
grep -q '^  run           seed 42; data: [0-9]* of [0-9]* rows taken in epoch [0-9]*, shuffled with seed 42$' inspect.txt
"$czero" inspect stop --json | python3 -c 'import json, sys; assert json.load(sys.stdin)["run"]["seed"] == "42"'

# Asked before the first step: there is nothing to save. (Its config comes through
# a pipe, so that the signal finds it between its start and its first step.)
mkfifo pipe.json
cp -r stop early
"$czero" "${train[@]}" --config pipe.json --steps 1000000 --save early --force &
pid=$!
exec 3>pipe.json
cp ds.json second.json
mv second.json pipe.json # for the second reading
kill -TERM $pid
cat ds.json >&3
exec 3>&-
wait $pid
[ ! -e early/latest ]
diff -r stop early/earlier-1 # where --force put it

# Already there: nothing is trained, and what is asked for is written
"$czero" "${train[@]}" --config ds.json --steps 3 --resume stop --save again --export hf
test "$(cat again/latest)" = "global_step$stopped"
test -s hf/model.safetensors

# ---- other ranks, other stages, a tag by name ---------------------------------------------------
config 3 bf16 1 >three.json
"$czero" launch -n 2 -- "${train[@]}" --config three.json --steps 4 --save ranks --save-interval 2
test -d ranks/global_step2 && test -d ranks/global_step4
"$czero" "${train[@]}" --config ds.json --resume ranks:global_step2 --steps 2 --save one
"$czero" launch -n 3 -- "${train[@]}" --config three.json --resume ranks:global_step2 --steps 2 --save more
for kind in one more; do
  "$build/zero_to_fp32" $kind $kind-fp32 --safe_serialization --quiet >/dev/null
done
cmp one-fp32/model.safetensors more-fp32/model.safetensors

# ---- the caller says where an accumulation ends -------------------------------------------------
config 1 bf16 3 >held.json
for managed in true false; do
  "$czero" "${train[@]}" --config held.json --set managed_gradient_accumulation=$managed --steps 5 \
    --curve held-$managed.csv --save held-$managed --save-interval 3
done
cmp held-true.csv held-false.csv
"$czero" "${train[@]}" --config held.json --set managed_gradient_accumulation=false --steps 5 \
  --resume held-false:global_step3 --save held-again
for file in held-again/global_step5/*; do
  cmp "$file" "held-false/global_step5/${file##*/}"
done

# ---- colons and spaces, no `latest`, the folder itself ------------------------------------------
mkdir "runs: a"
cp -r ranks/global_step2 "runs: a/b:c"
for point in "runs: a:b:c" "$work/runs: a/b:c" "./runs: a/b:c/"; do
  "$czero" "${train[@]}" --config ds.json --resume "$point" --steps 2 --save "named $point"
  cmp one/global_step2/mp_rank_00_model_states.pt "named $point"/global_step2/mp_rank_00_model_states.pt
done

# ---- what is saved already is not saved again ---------------------------------------------------
before=$(stat -c %i ranks/global_step4/czero_manifest.json)
"$czero" "${train[@]}" --config ds.json --resume ranks --save ranks --steps 4
test "$before" = "$(stat -c %i ranks/global_step4/czero_manifest.json)"
"$czero" "${train[@]}" --config ds.json --resume ranks:global_step2 --save ranks --steps 2
test "$(cat ranks/latest)" = global_step2
"$czero" fsck ranks --all --quiet

# ---- curves that a kill left empty or short -----------------------------------------------------
: >empty.csv
"$czero" "${train[@]}" --config ds.json --resume ranks:global_step4 --steps 5 --curve empty.csv
test "$(head -1 empty.csv)" = step,loss,lr_next,grad_norm,loss_scale
test "$(tail -1 empty.csv | cut -d, -f1)" = 5
sed -i '$d' empty.csv
printf '1,5,0,1,1\n2,5,' >>empty.csv
"$czero" "${train[@]}" --config ds.json --resume ranks:global_step4 --steps 5 --curve empty.csv 2>err.txt
grep -q "ends at step 1.*after step 4" err.txt
test "$(cut -d, -f1 empty.csv | tr '\n' ' ')" = "step 1 5 "

# The weights come from the checkpoint: the model's folder needs none
mkdir config-only
cp "$build/fixtures/models/gpt2-tiny/config.json" config-only/
"$czero" "${train[@]}" --model config-only --config ds.json --seed 7 --init random --steps 1 --save bare
"$czero" "${train[@]}" --model config-only --config ds.json --resume bare --steps 2 --save bare

# ---- only the newest stay -----------------------------------------------------------------------
"$czero" "${train[@]}" --config ds.json --steps 9 --save kept --save-interval 2 --save-keep 2
test "$(ls kept | sort | tr '\n' ' ')" = "global_step8 global_step9 latest model "

# ---- refused ------------------------------------------------------------------------------------
resume=("$czero" "${train[@]}" --config ds.json --steps 30)
expect 2 "needs --save" "${resume[@]}" --save-interval 2
expect 2 "needs --save" "${resume[@]}" --save-keep 2
expect 2 "nowhere" "${resume[@]}" --resume nowhere
expect 2 "no_such_tag" "${resume[@]}" --resume kept:no_such_tag
mkdir -p empty
expect 2 "latest" "${resume[@]}" --resume empty
expect 1 "/dev/null" "${resume[@]}" --save /dev/null/x
# Before a step is made, not after the last: there would be a row of the curve.
ln -s nowhere_at_all dangling
mkdir -p taken/latest
expect 1 "dangling" "${resume[@]}" --steps 1 --save dangling/ --curve none.csv
expect 2 "text.txt" "${resume[@]}" --steps 1 --save text.txt --curve none.csv
expect 2 "taken/latest" "${resume[@]}" --steps 1 --save taken --curve none.csv
expect 2 "no name" "${resume[@]}" --steps 1 --save "" --curve none.csv
test ! -e none.csv
expect 2 "seed" "${resume[@]}" --resume kept --seed 1
expect 2 "--seed 1" "${resume[@]}" --resume kept --seed 1 --shuffle off
head -c 30000 "$source_dir/examples/data/fortunes.txt" >other.txt
expect 2 "rows" "${resume[@]}" --resume kept --data other.txt
printf 'not a curve\n' >no.csv
expect 4 "no.csv" "${resume[@]}" --resume kept --curve no.csv
sed 's/"AdamW", "params": {/"SGD", "params": {"momentum": 0.9, /' ds.json >sgd.json
expect 2 "momentum_buffer" "${resume[@]}" --config sgd.json --resume kept \
  --set zero_allow_untested_optimizer=true

# The checkpoint's constants count, as in DeepSpeed; another one in the config is not passed over.
sed '/"scheduler"/d' ds.json >plain.json
"$czero" "${train[@]}" --config plain.json --steps 2 --save plain
expect 0 "lr: using 0.003 from the checkpoint; the config has 0.001" "${resume[@]}" \
  --config plain.json --resume plain --steps 3 --set optimizer.params.lr=0.001
expect 0 "betas[1]: using 0.999 from the checkpoint" "${resume[@]}" \
  --config plain.json --resume plain --steps 3 --set 'optimizer.params.betas=[0.9, 0.95]'
expect 0 "optimizer.params.lr: 0.003 in the checkpoint; the config's 0.001 is used" "${resume[@]}" --resume kept --steps 10 \
  --set optimizer.params.lr=0.001 # a schedule begins from it
"${resume[@]}" --resume kept --steps 10 2>err.txt # the same config
test ! -s err.txt

# Adam's exp_avg_sq is no sum of Adagrad's; what Lion makes of Adam's exp_avg is worth a warning.
sed 's/"AdamW", "params": {/"Adagrad", "params": {/' ds.json >adagrad.json
expect 2 "Adagrad needs: another optimizer" "${resume[@]}" --config adagrad.json --resume kept
sed 's/"AdamW", "params": {/"Lion", "params": {/' ds.json >lion.json
expect 0 "exp_avg_sq, which Lion does not" "${resume[@]}" --config lion.json --resume kept --steps 9

cp -r kept flipped
shard=$(ls flipped/global_step9/*optim_states.pt)
printf '\x55' | dd of="$shard" bs=1 seek=$(($(stat -c %s "$shard") / 2)) conv=notrunc status=none
expect 4 "optim_states.pt" "${resume[@]}" --resume flipped
rm "$shard"
expect 4 "optim_states.pt" "${resume[@]}" --resume flipped
cp -r kept short
truncate -s -100 short/global_step9/mp_rank_00_model_states.pt
expect 4 "mp_rank_00_model_states.pt" "${resume[@]}" --resume short
: >short/latest
expect 4 "latest" "${resume[@]}" --resume short

# With load_universal the tag that latest_universal names is the one that is compared.
cp -r kept other
printf global_step8 >other/latest_universal
shard=$(ls other/global_step8/*optim_states.pt)
printf '\x55' | dd of="$shard" bs=1 seek=$(($(stat -c %s "$shard") / 2)) conv=notrunc status=none
expect 4 "global_step8" "${resume[@]}" --resume other --set checkpoint.load_universal=true
