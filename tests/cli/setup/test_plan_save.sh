#!/usr/bin/env bash
# Claim: the bytes of a checkpoint that `czero plan` names are those that a save writes, at every stage and in both
# precisions, of a whole model and of an adapter, whose frozen model is in no checkpoint.
set -uo pipefail
cd "$(dirname "$0")/../../.." || exit 1
czero=$(cd "$1" && pwd)/czero
work=$(mktemp -d /tmp/czero-plan-save-XXXXXX)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failed=0
complain() { echo "$*" >&2; failed=1; }
head -c 4000 /dev/urandom | base64 >text

check() { # stage, precision, further options…
  local stage=$1 precision=$2 planned real
  shift 2
  printf '{"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
    "zero_optimization": {"stage": %s}}' "$stage" >ds.json
  local options=(--config ds.json --model llama-tiny --seq-len 16 --precision "$precision" "$@")
  "$czero" plan "${options[@]}" --json >plan 2>err || { complain "plan $*: $(cat err)"; return; }
  planned=$(python3 -c 'import json; print([p for p in json.load(open("plan"))["phases"] if "save" in p.values()][0]["saved_bytes"])')
  rm -rf run
  "$czero" train "${options[@]}" --init random --data text --tokenizer bytes --steps 1 --save run --quiet >out 2>err ||
    { complain "train $*: $(cat err)"; return; }
  real=$(find run -name '*.pt' -printf '%s\n' | awk '{ n += $1 } END { print n }')
  awk -v p="$planned" -v r="$real" 'BEGIN { exit !(r >= p && r - p < 60000) }' ||
    complain "stage $stage, $precision, $*: planned $planned, saved $real"
}
for stage in 0 2 3; do
  for precision in bf16 fp32; do
    check $stage $precision
    check $stage $precision --lora rank=8
  done
done
# what is frozen without an adapter is saved
check 0 bf16 --freeze 'layers'
exit $failed
