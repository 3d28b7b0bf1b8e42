#!/usr/bin/env bash
# Claim: ptx_file runs a kernel out of a file, with numbers, buffers and a struct that points to one,
# and gives back what the kernel wrote; what the interpreter finds ends it with its sentence.
set -euo pipefail
program=$1/tests/gpu_sim/ptx_file
work=$(mktemp -d /tmp/czero-ptx-XXXXXX)
trap 'rm -rf "$work"' EXIT

# to[t] = from[t] * factor + more, for t < n; sum (in the struct, behind n) counts threads.
cat >"$work/kernel.ptx" <<'PTX'
.version 8.0
.target sm_90
.address_size 64
.visible .entry scale(.param .u64 to, .param .align 8 .b8 what[24], .param .f32 factor, .param .u32 more)
{
    .reg .pred %p<2>; .reg .b32 %r<8>; .reg .f32 %f<4>; .reg .b64 %d<8>;
    mov.u32 %r1, %tid.x;
    ld.param.u32 %r2, [what+16];
    setp.ge.u32 %p1, %r1, %r2;
    @%p1 ret;
    ld.param.u64 %d1, [to];
    ld.param.u64 %d2, [what];
    ld.param.u64 %d3, [what+8];
    mul.wide.u32 %d4, %r1, 4;
    add.s64 %d1, %d1, %d4;
    add.s64 %d2, %d2, %d4;
    ld.global.f32 %f1, [%d2];
    ld.param.f32 %f2, [factor];
    ld.param.u32 %r3, [more];
    cvt.rn.f32.s32 %f3, %r3;
    fma.rn.f32 %f1, %f1, %f2, %f3;
    st.global.f32 [%d1], %f1;
    red.global.add.u32 [%d3], 1;
    ret;
}
PTX
words() { python3 -c 'import struct, sys; sys.stdout.buffer.write(struct.pack(*[a if a[0] in "<=" else eval(a) for a in sys.argv[1:]]))' "$@"; }

words '<5f' 1 2 3 4 5 >"$work/from"
words '<I' 100 >"$work/sum"
run() { # struct's n, bytes of `to`
  words '<QQQ' 0 0 "$1" >"$work/what"
  "$program" "$work/kernel.ptx" scale 1 32 0 "let:from=in:$work/from" "let:sum=io:$work/sum" \
    "out:$work/to:$2" "bytes:$work/what,0=from,8=sum" f32:1.5 i32:-2
}

run 5 20
cmp "$work/to" <(words '<5f' -0.5 1 2.5 4 5.5)
cmp "$work/sum" <(words '<I' 105)
echo "numbers, buffers and structs arrive, and what is written comes back"

if run 6 24 2>"$work/said"; then
  echo "a read behind the end was not found"
  exit 1
fi
grep -q "thread (5,0,0) at PTX line 17: touches 4 bytes" "$work/said"
cmp "$work/sum" <(words '<I' 105)
echo "what the interpreter finds is reported, and nothing is written"
