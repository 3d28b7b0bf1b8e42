#!/usr/bin/env bash
# Claim: `czero bench` measures the GPU that it finds, and keeps its figures where plans find them;
# the benches for GPUs run, and print figures that scripts/gpu_report.py reads. On the simulated
# device the figures mean nothing.
set -uo pipefail
cd "$(dirname "$0")/../.."
build=$1
work=$(mktemp -d /tmp/czero-bench-cuda-XXXXXX)
trap 'rm -rf "$work"' EXIT
failed=0
complain() { echo "$*" >&2; failed=1; }
tiny=()
case ${CZERO_CUDA_PLUGIN:-} in *cuda_sim*) tiny=(--tiny) ;; esac
export CZERO_CUDA_SIM_MEMORY=50000000 # products small enough for it

"$build/czero" bench --seconds 1 --profile "$work/p.json" >"$work/out" 2>"$work/err" ||
  complain "bench: exit $?: $(cat "$work/err")"
for line in "host to device .*GB/s" "device to host .*GB/s" "device memory .*GB/s" \
  "device products, fp32 .*GFLOP/s" "device products, bf16 .*GFLOP/s" "device products, fp16 .*GFLOP/s"; do
  grep -qE "$line" "$work/out" || complain "no \"$line\" in $(cat "$work/out")"
done
grep -q '"device_memory_bytes": [1-9]' "$work/p.json" || complain "no memory in the profile"
CZERO_CUDA_PLUGIN=none "$build/czero" plan --config configs/offload.json --model gpt2-tiny --seq-len 32 --device cuda --json \
  --profile "$work/p.json" >"$work/plan" 2>&1 || complain "plan: $(cat "$work/plan")"
grep -qE '"step_seconds": [0-9]' "$work/plan" || complain "the plan has no time"

"$build/czero" bench --seconds 1 --quiet >"$work/out" 2>&1 || complain "bench: $(cat "$work/out")"
CZERO_CUDA_PLUGIN=$work/none.so "$build/czero" bench --seconds 1 --quiet >"$work/out" 2>&1 ||
  complain "without a GPU: $(cat "$work/out")"
grep -q "no GPU" "$work/out" || complain "without a GPU it says: $(cat "$work/out")"

if [ -x "$build/bench/ops_cuda" ]; then
  CZERO_CUDA_SIM_MEMORY=200000000 "$build/bench/ops_cuda" "${tiny[@]}" >"$work/log" 2>"$work/err" || complain "ops_cuda: $(cat "$work/err")"
  python3 scripts/gpu_report.py row --stage bench --what ops --log "$work/log" >"$work/rows"
  for op in "adam, fp32" "layernorm backward, bf16" "cross-entropy, fp32" "attention forward+backward, bf16"; do
    grep -qF "$op" "$work/rows" || complain "no row of $op in $(cat "$work/rows")"
  done
  grep -qF '"skipped"' "$work/log" && complain "ops without a kernel: $(grep -F '"skipped"' "$work/log")"
fi

if [ -x "$build/bench/step_cuda" ]; then
  CZERO_CUDA_SIM_MEMORY=200000000 "$build/bench/step_cuda" "${tiny[@]}" --steps 1 >"$work/log" 2>"$work/err" || complain "step_cuda: $(cat "$work/err")"
  python3 scripts/gpu_report.py row --stage bench --what step --log "$work/log" >"$work/rows"
  for call in "step: step, adam " "step: ce_head: matmul, " "step: layernorm_backward, " "step: copy, to the GPU" $'\tstep\t' "step: model FLOP"; do
    grep -qF "$call" "$work/rows" || complain "no row of $call in $(cat "$work/rows")"
  done
  # what GPT-2 124M would call, counted: nothing is computed, and no memory taken
  ceilings=(--bandwidth 4e12 --rate 8e14)
  case ${CZERO_CUDA_PLUGIN:-} in *cuda_sim*)
    CZERO_CUDA_SIM_DRY=on CZERO_CUDA_SIM_MEMORY=141000000000 \
      "$build/bench/step_cuda" --batch 64 "${ceilings[@]}" >"$work/log" 2>"$work/err" || complain "a step that is counted: $(cat "$work/err")"
    grep -qF '"figure": "predicted: matmul, 65536 x 2304 x 768 to bf16, bias", "value": 3478' "$work/log" ||
      complain "12 products of 0.23 TFLOP at 800 TFLOP/s are not 3.48 ms: $(head -20 "$work/log")" ;;
  esac
fi

[ $failed = 0 ] && echo "figures are there"
exit $failed
