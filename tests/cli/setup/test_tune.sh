#!/usr/bin/env bash
# Claim: `czero tune` lists what fits, writes the best as a config that plans to what was promised and
# trains, says what is missing when nothing fits (exit 3), and measures what can be measured.
set -uo pipefail
cd "$(dirname "$0")/../../.."
czero=$1/czero
work=$(mktemp -d /tmp/czero-tune-XXXXXX)
trap 'rm -rf "$work"' EXIT
failed=0
complain() { echo "$*" >&2; failed=1; }
value() { grep -o "\"$1\": [0-9]*" "$work/out" | head -1 | grep -o '[0-9]*$'; }

# no profile: the order is by bytes moved, and that is reported
"$czero" tune --model gpt2-1.3b --seq-len 512 --gpu-memory 24GB --host-memory 64GB \
  -o "$work/ds.json" >"$work/out" 2>"$work/err" || complain "exit $?: $(cat "$work/err")"
grep -q "no machine profile" "$work/out" || complain "the order is not explained"
grep -q "^  1 .* stage " "$work/out" || complain "no first line"
grep -q "$work/ds.json" "$work/err" || complain "where the best went is not said"
"$czero" config check "$work/ds.json" 2>"$work/err" || complain "the config: $(cat "$work/err")"
"$czero" tune --model gpt2-1.3b --seq-len 512 --gpu-memory 24GB --host-memory 64GB --json >"$work/out"
gpu=$(value gpu_bytes)
"$czero" plan --config "$work/ds.json" --model gpt2-1.3b --seq-len 512 --device cuda --strict --json >"$work/out"
[ "$(value device_peak_bytes)" = "$gpu" ] || complain "planned $(value device_peak_bytes), promised $gpu"
[ "$gpu" -le 24000000000 ] || complain "$gpu bytes are more than 24 GB"

# a small host and a disk: what was chosen trains there, within the budget
"$czero" tune --model gpt2-tiny --seq-len 64 --host-memory 300MiB --precision fp32 --batch 8 --all \
  --measure --measure-count 1 -o "$work/cpu.json" >"$work/out" 2>"$work/err" || complain "exit $?: $(cat "$work/err")"
grep -q "^measured 1: .* tokens/s" "$work/err" || complain "nothing was measured: $(cat "$work/err")"
head -c 65536 /dev/urandom | base64 >"$work/text"
"$czero" train --config "$work/cpu.json" --model gpt2-tiny --data "$work/text" --tokenizer bytes --seq-len 64 \
  --steps 2 --quiet >/dev/null 2>"$work/err" || complain "training: $(cat "$work/err")"

expect() { # exit code, part of the sentence, arguments…
  local code=$1 part=$2
  shift 2
  "$czero" tune "$@" >"$work/out" 2>"$work/err"
  local got=$?
  [ $got = "$code" ] || complain "$*: exit $got, not $code"
  grep -q -- "$part" "$work/err" || complain "$*: $(cat "$work/err")"
}
small=(--model gpt2-tiny --seq-len 64)
expect 3 "nothing fits. The closest configuration is .* bytes) of host memory" --model gpt2-7b --seq-len 64 --host-memory 8GB
expect 3 "With .* of NVMe (--nvme " --model gpt2-7b --seq-len 64 --host-memory 24GB
grep -q "does not fit: needs" "$work/out" || complain "what does not fit is not listed"
CZERO_CUDA_PLUGIN=none expect 0 "not measured: device cuda" "${small[@]}" --host-memory 4GB --gpu-memory 4GB --measure
expect 0 "not measured: a plan for 2 ranks" "${small[@]}" --host-memory 4GB --world-size 2 --measure
expect 2 "24 bananas" "${small[@]}" --host-memory "24 bananas"
expect 2 "host-memory" "${small[@]}"
expect 2 "nothing.json" "${small[@]}" --host-memory 1GB --profile nothing.json
expect 2 "cannot be dealt to 3 ranks" "${small[@]}" --host-memory 1GB --batch 4 --world-size 3
expect 2 "gpt2-huge" --model gpt2-huge --seq-len 64 --host-memory 1GB
"$czero" tune --help | grep -q "host-memory" || complain "no help"
exit $failed
