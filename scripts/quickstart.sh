#!/usr/bin/env bash
# From a clone to generated text: install, build, train a small GPT-2 on the bundled text from a
# DeepSpeed config, then let the saved weights continue a sentence.
#   scripts/quickstart.sh [steps, default 1500]
set -euo pipefail
cd "$(dirname "$0")/.."
steps=${1:-1500}
scripts/build.sh release tool_czero

out=out/quickstart
mkdir -p "$out"
echo
echo "Training gpt2-tiny on examples/data/fortunes.txt for $steps steps:"
build/czero train --config configs/quickstart.json --model gpt2-tiny \
  --data examples/data/fortunes.txt --tokenizer bytes --seq-len 64 --steps "$steps" \
  --curve "$out/curve.csv" --export "$out/model"
echo
echo "What it has learned to write:"
build/czero generate --model "$out/model" --tokenizer bytes --prompt "The " \
  --max-new-tokens 300 --temperature 0.8 --top-k 20 --seed 1
