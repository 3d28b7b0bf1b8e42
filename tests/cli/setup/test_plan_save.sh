#!/usr/bin/env bash
# Claim: the bytes of a checkpoint that `czero plan` names are those that a rank's save writes, at every stage and in both
# precisions, of a whole model and of an adapter, whose frozen model is in no checkpoint, on one rank and on two, and
# wherever offloading puts the parameters.
set -uo pipefail
cd "$(dirname "$0")/../../.." || exit 1
czero=$(cd "$1" && pwd)/czero
work=$(mktemp -d /tmp/czero-plan-save-XXXXXX)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failed=0
complain() { echo "$*" >&2; failed=1; }
head -c 4000 /dev/urandom | base64 >text

ranks=1 zero=
check() { # stage, precision, further options…; the files of rank 0
  local stage=$1 precision=$2 planned real
  shift 2
  printf '{"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
    "zero_optimization": {"stage": %s%s}}' "$stage" "$zero" >ds.json
  local options=(--config ds.json --model llama-tiny --seq-len 16 --precision "$precision" "$@")
  local train=(train "${options[@]}" --init random --data text --tokenizer bytes --steps 1 --save run --quiet)
  [ $ranks = 1 ] || train=(launch -n $ranks -- "${train[@]}")
  "$czero" plan "${options[@]}" --world-size $ranks --json >plan 2>err || { complain "plan $*: $(cat err)"; return; }
  planned=$(python3 -c 'import json; print([p for p in json.load(open("plan"))["phases"] if "save" in p.values()][0]["saved_bytes"])')
  rm -rf run
  "$czero" "${train[@]}" >out 2>err || { complain "train $*: $(cat err)"; return; }
  real=$(find run \( -name '*rank_0_*.pt' -o -name 'mp_rank_00*.pt' \) -printf '%s\n' | awk '{ n += $1 } END { print n }')
  awk -v p="$planned" -v r="$real" 'BEGIN { exit !(r >= p && r - p < 60000) }' ||
    complain "stage $stage$zero, $precision, $ranks ranks, $*: planned $planned, saved $real"
}
for stage in 0 2 3; do
  for precision in bf16 fp32; do
    check $stage $precision
    check $stage $precision --lora rank=8
  done
done
# ranks share what they train
ranks=2
for stage in 0 2 3; do
  for precision in bf16 fp32; do check $stage $precision --lora rank=16; done
done
check 3 fp32
ranks=1
# parameters at two places
for kept in 0 1000 20000; do
  zero=", \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"$work\", \"max_in_cpu\": $kept}"
  check 3 fp32 --lora rank=16
  check 3 bf16
done
zero=
# what is frozen without an adapter is saved
check 0 bf16 --freeze 'layers'
exit $failed
