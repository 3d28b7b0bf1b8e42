#!/usr/bin/env bash
# Claim: the flags of `czero train` that fill "auto" train as the same values in the config do, to the bit; a flag that
# the config leaves without effect is named in one warning with the value in force, and one that says the same is not.
set -uo pipefail
build=$(cd "$1" && pwd)
source_dir=$(cd "$(dirname "$0")/../../.." && pwd)
work=$(mktemp -d /tmp/czero-auto-XXXXXX)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failed=0
complain() { echo "$*" >&2; failed=1; }
head -c 20000 "$source_dir/examples/data/fortunes.txt" >text.txt
cat >auto.json <<'JSON'
{"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
 "gradient_clipping": "auto", "optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto"}},
 "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto",
   "warmup_num_steps": "auto", "total_num_steps": "auto"}},
 "fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 1}}
JSON
cat >set.json <<'JSON'
{"train_batch_size": 6, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 3,
 "gradient_clipping": 0.125, "optimizer": {"type": "AdamW", "params": {"lr": 0.003, "weight_decay": 0.25}},
 "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 0.003,
   "warmup_num_steps": 3, "total_num_steps": 5}},
 "bf16": {"enabled": true}, "zero_optimization": {"stage": 1}}
JSON
flags=(--micro-batch 2 --accumulation 3 --lr 3e-3 --weight-decay 0.25 --max-grad-norm 0.125 --warmup-steps 3 --precision bf16)
train() { # NAME CONFIG FLAGS…: leaves NAME.csv and the warnings in NAME.err
  local name=$1 config=$2
  shift 2
  "$build/czero" train --config "$config" --model gpt2-tiny --data text.txt --tokenizer bytes --seq-len 16 --steps 5 --quiet \
    --curve "$name.csv" --export "$name" "$@" >/dev/null 2>"$name.err" || complain "$name: exit $?: $(cat "$name.err")"
}
train filled auto.json "${flags[@]}"
train written set.json
train same set.json "${flags[@]}"
for name in filled same; do
  cmp $name.csv written.csv || complain "$name: another curve"
  cmp $name/model.safetensors written/model.safetensors || complain "$name: other weights"
  [ ! -s $name.err ] || complain "$name: $(cat $name.err)"
done

train other set.json --micro-batch 1 --accumulation 2 --lr 1 --weight-decay 0 --max-grad-norm 2 --warmup-steps 2 --precision fp16
cmp other.csv written.csv || complain "flags change what the config sets"
cat >want.err <<'TEXT'
czero: warning: --micro-batch 1 has no effect: the config sets train_micro_batch_size_per_gpu to 2 (write "auto" there, or use --set)
czero: warning: --accumulation 2 has no effect: the config sets gradient_accumulation_steps to 3 (write "auto" there, or use --set)
czero: warning: --lr 1 has no effect: the config sets optimizer.params.lr to 0.003 (write "auto" there, or use --set)
czero: warning: --weight-decay 0 has no effect: the config sets optimizer.params.weight_decay to 0.25 (write "auto" there, or use --set)
czero: warning: --max-grad-norm 2 has no effect: the config sets gradient_clipping to 0.125 (write "auto" there, or use --set)
czero: warning: --warmup-steps 2 has no effect: the config sets scheduler.params.warmup_num_steps to 3 (write "auto" there, or use --set)
czero: warning: --precision fp16 has no effect: the config trains in bf16 (write "auto" in fp16.enabled and bf16.enabled, or use --set)
TEXT
diff want.err other.err >&2 || complain "other warnings"

# DeepSpeed's schedules warm up for at least two steps: a 1 is no contradiction to a 2
train short set.json --warmup-steps 1 --set scheduler.params.warmup_num_steps=1
[ ! -s short.err ] || complain "$(cat short.err)"
for kind in WarmupLR WarmupCosineLR; do
  sed "s/WarmupDecayLR/$kind/" set.json >"$kind.json"
  [ $kind = WarmupLR ] && sed -i 's/, "total_num_steps": 5//' $kind.json
  [ $kind = WarmupCosineLR ] && sed -i 's/"warmup_min_lr": 0, "warmup_max_lr": 0.003,//' $kind.json
  train $kind $kind.json --warmup-steps 4
  grep -q -- '--warmup-steps 4 has no effect: the config sets scheduler.params.warmup_num_steps to 3 ' $kind.err || complain "$kind: $(cat $kind.err)"
done
sed '/"scheduler"/,/"warmup_num_steps"/d' set.json >none.json
train none none.json --warmup-steps 0
[ "$(cat none.err)" = "czero: warning: --warmup-steps has no effect: the config has no warm-up scheduler" ] || complain "$(cat none.err)"
[ $failed = 0 ] && echo "the flags are what the config's values are"
exit $failed
