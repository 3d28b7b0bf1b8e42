#!/usr/bin/env bash
# Claim: matmul, attention and cross-entropy hold under every CZERO_ISA below this CPU's own, where the
# rows above are absent and oneDNN is capped too. (The tests themselves run with the CPU's own.)
set -uo pipefail
build=$1
failed=0
own=scalar
for flag in avx2:avx2 avx512f:avx512 avx512_bf16:avx512bf16 amx_bf16:amx; do
  grep -qw "${flag%:*}" /proc/cpuinfo && own=${flag#*:}
done
for isa in scalar avx2 avx512 avx512bf16 amx; do
  [ $isa != $own ] || break
  for test in test_matmul_agree test_attention_agree test_cross_entropy_agree; do
    program=$build/tests/ops/$test
    [ -x "$program" ] || continue
    output=$(CZERO_ISA=$isa "$program" 2>&1)
    status=$?
    if [ $status = 77 ]; then
      echo "$isa: not on this CPU"
      break
    elif [ $status != 0 ]; then
      printf '%s with CZERO_ISA=%s:\n%s\n' "$test" "$isa" "$output" >&2
      failed=1
    fi
  done
done
exit $failed
