#!/usr/bin/env bash
# Claim: the kernels that have goals ask memory for nothing that they do not need: whole sectors of
# global memory, no bank of shared memory twice in a turn, no arrays outside of registers; and those
# bound by memory have instructions to spare. Counted from the code that nvcc makes, on the simulated
# device (tests/support/cuda_sim/ptx/ptx_traffic.h).
set -uo pipefail
build=$1
work=$(mktemp -d /tmp/czero-traffic-XXXXXX)
trap 'rm -rf "$work"' EXIT
failed=0
complain() { echo "$*" >&2; failed=1; }
case ${CZERO_CUDA_PLUGIN:-} in *cuda_sim*) ;; *) echo "skipped: this is of the simulated device"; exit 77 ;; esac
[ -f "$build/cuda_ptx/entries.txt" ] || { echo "skipped: PTX is made by a build with nvcc"; exit 77; }
export CZERO_CUDA_SIM_CODE=ptx CZERO_CUDA_SIM_COUNT=1 CZERO_CUDA_SIM_MEMORY=500000000 CZERO_CUDA_SIM_GUARD=off

# count OUT COMMAND…: lines of "sectors%,banks%,local,instructions,sectors kernel"
count() {
  local out=$1
  shift
  "$@" >/dev/null 2>"$work/err" || complain "$*: $(cat "$work/err")"
  sed -nE 's/^([^ {].*[^ ]) +[0-9]+ +([0-9]+) +([0-9]+) +([0-9.]+)% +[0-9]+ +([0-9.]+)% +([0-9]+)$/\4,\5,\6,\2,\3 \1/p' "$work/err" >"$work/$out"
}

# ask OUT SECTORS KERNEL…: that each of these asks for sectors of which at least so many % are needed
ask() {
  local out=$1 least=$2 kernel found
  shift 2
  for kernel; do
    found=$(grep -cE " $kernel" "$work/$out")
    [ "$found" -gt 0 ] || complain "no kernel $kernel in $(cat "$work/$out")"
    grep -E " $kernel" "$work/$out" | awk -F'[, ]' -v least="$least" '$1 < least || $2 < 100 || $3 > 0' >"$work/bad"
    [ -s "$work/bad" ] && complain "more than needed (sectors %, banks %, local accesses): $(cat "$work/bad")"
  done
}

# spend OUT BYTES KERNEL…: these move so many bytes per instruction of a warp, or more. A multiprocessor of an H200 issues
# one in the time of 4.1 to 4.6 bytes (4 in a clock of 1.98 to 1.755 GHz; 4.3 TB/s for 132 of them).
spend() {
  local out=$1 least=$2 kernel
  shift 2
  for kernel; do
    grep -E " $kernel" "$work/$out" | awk -F'[, ]' -v least="$least" '32 * $5 < least * $4' >"$work/bad"
    [ -s "$work/bad" ] && complain "more instructions than one per $least bytes: $(cat "$work/bad")"
  done
}

count ops "$build/bench/ops_cuda" --tiny
ask ops 99.9 'step_packs_kernel<adam' 'forward_kernel<bf16' 'backward_kernel<bf16' 'forward_kernel<\(activation\)0' \
  'backward_kernel<\(activation\)0' ce_rows_kernel combine_kernel
spend ops 9.5 'forward_kernel<bf16' 'forward_kernel<\(activation\)0' # read and written once: 4 bytes an element
spend ops 7 'backward_kernel<bf16' 'backward_kernel<\(activation\)0'
spend ops 11 ce_rows_kernel # a third of it from the L2 cache
spend ops 20 'step_packs_kernel<adam'
count attention "$build/bench/attention_cuda" --tiny
ask attention 99.9 attention_flash_forward_kernel
ask attention 80 attention_flash_backward_kernel # dq leaves in halves of sectors, once
CZERO_CUDA_ATTENTION=hopper count hopper "$build/bench/attention_cuda" --tiny gpt2-xl llama-7b
ask hopper 99.9 attention_hopper_forward_kernel
# The same; copies by tensor maps, of whole sectors, are not counted, so that the halves are a larger share.
ask hopper 75 attention_hopper_backward_kernel
count step "$build/bench/step_cuda" --tiny --steps 1
ask step 99.9 add_kernel gather_kernel row_kernel 'scan_kernel<bf16' squares_kernel

[ $failed = 0 ] && echo "nothing is asked for in vain"
exit $failed
