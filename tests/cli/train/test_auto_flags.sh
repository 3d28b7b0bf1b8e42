#!/usr/bin/env bash
# Claim: the flags of `czero train` that fill "auto" train as the same values in the config do, to the bit; flags that
# say what the config says change nothing.
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
[ $failed = 0 ] && echo "the flags are what the config's values are"
exit $failed
