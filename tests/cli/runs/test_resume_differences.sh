#!/usr/bin/env bash
# Claim: a run that continues with another config than its checkpoint's says each difference in one line (optimizer,
# dropped states, schedule and its parameters, rate, batch, precision, groups, stage), once however many ranks there are,
# and nothing where nothing differs; the first step has the rate of the config's schedule.
. "$(dirname "$0")/../../support/command.sh"

head -c 20000 "$source_dir/examples/data/fortunes.txt" >text.txt
cat >ds.json <<'JSON'
{"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 1.0, "zero_allow_untested_optimizer": true,
 "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
 "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 6, "warmup_max_lr": 0.01, "warmup_type": "linear"}}}
JSON
train=(train --model gpt2-tiny --data text.txt --tokenizer bytes --seq-len 32)
run=("${train[@]}" --config ds.json --quiet)
lines() { grep -cF -- "$1" err || true; }
says() { # WORDS… -- ARGUMENTS…: each once
  local words=()
  while [ "$1" != -- ]; do words+=("$1"); shift; done
  shift
  "$czero" "${run[@]}" "$@" >out 2>err || fail "$*: failed"
  for w in "${words[@]}"; do [ "$(lines "$w")" = 1 ] || fail "$*: $(lines "$w") times \"$w\""; done
}
silent() { "$czero" "${run[@]}" "$@" >out 2>err || fail "$*"; [ ! -s err ] || fail "$*: says something"; }

"$czero" "${run[@]}" --steps 3 --save saved >out 2>err || fail "saving"
silent --resume saved --steps 5
silent --resume saved --steps 5 --set zero_optimization.stage=2
run=("${train[@]}" --config ds.json)
says "zero_optimization.stage: 0 in the checkpoint, 2 in the config" -- --resume saved --steps 4 --set zero_optimization.stage=2
says "optimizer: adamw in the checkpoint; the config's SGD is used" "optimizer states exp_avg, exp_avg_sq, which SGD does not keep" \
  "restored 28 of 28 tensors from" -- --resume saved --steps 4 --set 'optimizer={"type":"SGD","params":{"lr":0.001}}'
says "optimizer state exp_avg_sq, which Lion does not keep" -- --resume saved --steps 4 --set optimizer.type=Lion
says "scheduler: WarmupLR in the checkpoint; the config's OneCycle is used" -- --resume saved --steps 4 \
  --set 'scheduler={"type":"OneCycle","params":{"cycle_min_lr":0.001,"cycle_max_lr":0.002}}'
says "scheduler: WarmupLR in the checkpoint; the config's linear is used" -- --resume saved --steps 4 --set scheduler=null
sed '/"scheduler"/d; s/0.001}},/0.001}}}/' ds.json >plain.json
"$czero" "${train[@]}" --config plain.json --strict --resume saved --steps 4 >out 2>err || fail "without a schedule"
[ "$(lines "scheduler: WarmupLR in the checkpoint; none is used")" = 1 ] || fail "no schedule"
says "gradient_clipping: 1.0 in the checkpoint; the config's 0.5 is used" -- --resume saved --steps 4 --set gradient_clipping=0.5
says "batch: 2 = 2 x 1 x 1 in the checkpoint; 6 = 3 x 2 x 1 is used" -- --resume saved --steps 4 \
  --set train_micro_batch_size_per_gpu=3 --set gradient_accumulation_steps=2
says "batch: 2 = 2 x 1 x 1 in the checkpoint; 2 = 1 x 2 x 1 is used" -- --resume saved --steps 4 \
  --set train_micro_batch_size_per_gpu=1 --set gradient_accumulation_steps=2
grep -q "warning: batch" err && fail "the same batch in other parts is no warning"
says "precision: fp32 in the checkpoint; the config's bf16 is used" -- --resume saved --steps 4 --set bf16.enabled=true
says "parameter groups: 1 in the checkpoint, 2 here" -- --resume saved --steps 4 --groups hf
says "weight_decay: using 0 from the checkpoint; the config has 0.5" -- --resume saved --steps 4 --set optimizer.params.weight_decay=0.5
"$czero" launch -n 2 "${train[@]}" --config ds.json --resume saved --steps 4 --set optimizer.type=Lion >out 2>err || fail "two ranks"
[ "$(lines "which Lion does not keep")" = 1 ] && [ "$(lines "in the checkpoint; 4 = 2 x 1 x 2 is used")" = 1 ] || fail "two ranks say it twice"

# The rate of step 4 is the new schedule's: 0.5 after 30 steps is 0.05 at the third, and the old had 0.005.
says "scheduler.params.warmup_max_lr: 0.01 in the checkpoint; the config's 0.5 is used" \
  "scheduler.params.warmup_num_steps: 6 in the checkpoint; the config's 30 is used" \
  "the next step has the rate" -- --resume saved --steps 5 --curve c.csv \
  --set scheduler.params.warmup_max_lr=0.5 --set scheduler.params.warmup_num_steps=30
"$czero" "${run[@]}" --steps 5 --dry-run-lr --set scheduler.params.warmup_max_lr=0.5 --set scheduler.params.warmup_num_steps=30 >rates 2>err
want=$(sed -n 's/^4,//p' rates)
said=$("$czero" "${run[@]}" --resume saved --steps 5 --set scheduler.params.warmup_max_lr=0.5 --set scheduler.params.warmup_num_steps=30 2>&1 |
  sed -n "s/.*the next step has the rate \([^ ]*\) of.*/\1/p")
awk -v a="$want" -v b="$said" 'BEGIN { exit !(b > 0 && (a - b)^2 < (1e-5 * a)^2) }' || fail "step 4: rate $said instead of $want"

# A run that ended at rate 0 and is extended: its next step changes weights.
cat >linear.json <<'JSON'
{"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
 "scheduler": {"type": "linear", "params": {"total_num_steps": "auto"}}}
JSON
run=("${train[@]}" --config linear.json --save ended)
"$czero" "${run[@]}" --steps 3 >out 2>err || fail "the ended run"
says "scheduler.params.total_num_steps: 3 in the checkpoint; the config's 4 is used" \
  "the next step has the rate 0.00025 of the config's schedule; the checkpoint's had left 0" -- --resume --steps 4
for n in 3 4; do "$czero" export ended/global_step$n x$n >out 2>err || fail "export $n"; done
cmp -s x3/model.safetensors x4/model.safetensors && fail "step 4 changed nothing"
exit 0
