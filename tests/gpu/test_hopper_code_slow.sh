#!/usr/bin/env bash
# Claim: ptxas keeps everything of the kernels for 9.0 alone in registers, and does not make their
# products wait for each other (it says so, and continues: C7508 to C7519); each has products.
set -uo pipefail
cd "$(dirname "$0")/../.."
nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null) || {
  echo "skipped: nvcc is needed"
  exit 77
}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
failed=0
complain() { echo "$*" >&2; failed=1; }
for file in $(find ops -name '*_hopper_*_cuda.cu' | sort); do
  name=$(basename "$file" .cu)
  "$nvcc" -std=c++17 --fmad=false -O3 -I. -Iinclude -gencode=arch=compute_90a,code=sm_90a -Xptxas -v --keep \
    --keep-dir "$out" -c "$file" -o "$out/$name.o" >"$out/$name.log" 2>&1 || {
    cat "$out/$name.log" >&2
    exit 1
  }
  n=$(grep -c '^\.visible \.entry\|^\.weak \.entry\|\.entry ' "$out/$name.ptx")
  [ "$(grep -c 'Used [0-9]* registers' "$out/$name.log")" = "$n" ] || complain "$name: ptxas reported fewer than $n kernels"
  grep -i 'C75[0-9][0-9]\|serialized' "$out/$name.log" >&2 && complain "$name: its products wait for each other"
  grep -o '[1-9][0-9]* bytes spill' "$out/$name.log" >&2 && complain "$name: registers are spilled"
  [ "$(grep -c 'wgmma.mma_async' "$out/$name.ptx")" -ge $((8 * n)) ] || complain "$name: hardly any wgmma"
  echo "$name: $n kernels, registers: $(sed -n 's/.*Used \([0-9]*\) registers.*/\1/p' "$out/$name.log" | sort -un | tr '\n' ' ')"
done
exit $failed
