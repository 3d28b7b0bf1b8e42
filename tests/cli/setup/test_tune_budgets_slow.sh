#!/usr/bin/env bash
# Claim: over twenty models, precisions and budgets, with and without NVMe, what `czero tune` chooses trains within
# its budget, and takes what was planned within max(2 %, 32 MiB), and the copy of the largest weight that oneDNN makes for
# the time of a product. A signal that ends it takes the swap file along.
set -uo pipefail
cd "$(dirname "$0")/../../.."
czero=$1/czero
work=$(mktemp -d /tmp/czero-tune-budgets-XXXXXX)
trap 'rm -rf "$work"' EXIT
failed=0
n=0
complain() { echo "$*" >&2; failed=1; }

# Where the CPU has nothing above AVX2, oneDNN packs weights into heap memory during a product, here about width × vocabulary × 4 bytes. In fp32 "words"
# takes 2 MiB more than planned with CZERO_ISA=scalar, on one thread or two; with AVX2 11 MiB on one thread and 35 on two.
declare -A packed
packs=1
grep -qw avx512f /proc/cpuinfo && packs=0
shape() { # name, layers, width, heads, vocabulary
  packed[$1]=$((packs * $3 * $5 * 4 / 1048576))
  mkdir -p "$work/$1"
  echo "{\"model_type\": \"gpt2\", \"vocab_size\": $5, \"n_positions\": 128, \"n_embd\": $3," \
    "\"n_layer\": $2, \"n_head\": $4}" >"$work/$1/config.json"
}
shape wide 4 512 8 8192
shape deep 12 256 4 2048
shape words 2 256 4 30000

within() { # model, precision, budget in MiB, further options…
  local model=$1 precision=$2 budget=$3
  shift 3
  "$czero" tune --model "$work/$model" --seq-len 64 --precision "$precision" --host-memory "${budget}MiB" --batch 8 \
    --nvme-path "$work/swap" --measure --measure-count 1 "$@" >"$work/out" 2>"$work/err" ||
    { complain "$model $precision $budget $*: exit $?: $(cat "$work/err")"; return; }
  local line peak planned
  line=$(grep '^measured 1: ' "$work/err")
  peak=$(echo "$line" | sed -n 's/.*peak \([0-9.]*\) MiB.*/\1/p')
  planned=$(echo "$line" | sed -n 's/.*planned \([0-9.]*\).*/\1/p')
  awk -v peak="$peak" -v planned="$planned" -v budget="$budget" -v packed="${packed[$model]}" 'BEGIN {
    far = peak > planned ? peak - planned - packed : planned - peak
    exit !(peak > 0 && peak <= budget && (far <= 32 || far <= planned / 50)) }' ||
    complain "$model $precision, $budget MiB: peak $peak, planned $planned: $(sed -n '4,5p' "$work/out")"
  n=$((n + 1))
  echo "$model $precision $budget MiB: peak $peak, planned $planned: $(sed -n '4s/.*  stage/stage/p' "$work/out")"
}

for precision in fp32 bf16; do
  within wide $precision 2000
  within deep $precision 1000
  within words $precision 1000
  within wide $precision 450
  within deep $precision 320
  within words $precision 400
  within wide $precision 280 --nvme 2GB
  within deep $precision 220 --nvme 2GB
  within words $precision 260 --nvme 2GB
  within wide $precision 350 --nvme 2GB --micro-batch 1
done
[ $n = 20 ] || complain "only $n of 20 were measured"
[ -e "$work/swap" ] && complain "$work/swap is still there"
# A measurement that is ended by a signal takes its swap file and the folder made for it along.
"$czero" tune --model gpt2 --seq-len 64 --micro-batch 1 --host-memory 2GB --nvme 20GB \
  --nvme-path "$work/nvme" --measure --measure-count 1 >/dev/null 2>&1 &
pid=$!
for _ in $(seq 600); do
  [ -n "$(find "$work/nvme" -name 'czero-swap-rank*' 2>/dev/null)" ] && break
  kill -0 $pid 2>/dev/null || break
  sleep 0.05
done
kill -TERM $pid || complain "ended before it was stopped"
wait $pid
code=$?
[ $code = 143 ] || complain "a measurement that is stopped: exit $code"
[ -e "$work/nvme" ] && complain "a measurement that is stopped leaves $(ls -A "$work/nvme")"

exit $failed
