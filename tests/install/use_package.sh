#!/usr/bin/env bash
# Use an installed czero in a root that has nothing else of it: test_packages_slow.sh runs this inside.
#   use_package.sh BIN      folder of the programs
# Trains under each instruction set that the machine has, saves, checks, consolidates.
set -euo pipefail
bin=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
for ((n = 0; n < 400; n++)); do echo "line $n: every word of this text is repeated, so that a small model learns it"; done >text
echo '{"train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": true}, "zero_optimization": {"stage": 2},
  "optimizer": {"type": "AdamW", "params": {"lr": 0.003}}}' >ds_config.json
"$bin/czero" --version
for isa in '' scalar; do
  CZERO_ISA=$isa "$bin/czero" train --config ds_config.json --model gpt2-tiny --data text --tokenizer bytes --seq-len 64 \
    --steps 5 --save "run$isa"
  "$bin/czero" fsck "run$isa"
  "$bin/zero_to_fp32" "run$isa" "out$isa" --safe_serialization --verify
  test -s "out$isa/model.safetensors"
done
"$bin/czero" launch -n 2 -- train --config ds_config.json --model gpt2-tiny --data text --tokenizer bytes --seq-len 64 --steps 2
echo "$bin works"
