#!/usr/bin/env bash
# Claim: the tables of docs/memory.md are what the tool says, and the page explains every row that a
# plan can have.
set -uo pipefail
cd "$(dirname "$0")/../../.."
czero=$1/czero
work=$(mktemp -d /tmp/czero-memory-XXXXXX)
trap 'rm -rf "$work"' EXIT
failed=0
complain() { echo "$*" >&2; failed=1; }

grep -qw avx2 /proc/cpuinfo || { echo "the tables are of AVX2 kernels, which this machine lacks"; exit 77; }
scripts/memory_tables.sh "$czero" >"$work/now" || complain "the script failed"
sed '1,/<!-- tables: begin/d;/<!-- tables: end/,$d' docs/memory.md >"$work/page"
diff "$work/page" "$work/now" || complain "docs/memory.md is not what the tool says: scripts/memory_tables.sh --write"

zero=zero_optimization
n=0
for device in cpu cuda; do
  for world in 1 4; do
    for stage in 0 2 3; do
      ratio=1.0
      [ $stage = 3 ] && ratio=0.5 # below 1 at stage 3 only
      for optimizer in none cpu nvme; do
        for params in none cpu nvme; do
          [ "$device$world$params" = cuda4nvme ] && [ $stage != 3 ] && continue # refused
          "$czero" plan --config configs/bf16.json --model gpt2-tiny --seq-len 64 --device $device --world-size $world \
            --set $zero.stage=$stage --set $zero.offload_optimizer.device=$optimizer \
            --set $zero.offload_param.device=$params --set $zero.offload_optimizer.nvme_path=/tmp \
            --set $zero.offload_param.nvme_path=/tmp --set $zero.offload_optimizer.ratio=$ratio \
            --set activation_checkpointing.cpu_checkpointing=true --set czero.activation_checkpointing.every=1 \
            --json 2>"$work/err" >"$work/out" || complain "$device $world $stage $optimizer $params: $(cat "$work/err")"
          grep '"name"' "$work/out" >>"$work/names"
          n=$((n + 1))
        done
      done
    done
  done
done
[ $n = 102 ] || complain "$n plans"
sort -u "$work/names" | sed 's/.*"name": "\(.*\)",/\1/' | while read -r name; do
  grep -q "\`$name\`" docs/memory.md || echo "docs/memory.md does not explain \"$name\""
done >"$work/missing"
[ -s "$work/missing" ] && complain "$(cat "$work/missing")"
exit $failed
