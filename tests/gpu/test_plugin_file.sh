#!/usr/bin/env bash
# Claim: libczero_cuda.so holds machine code for 8.0 and 9.0 and PTX for what comes after, of every
# kernel file but those for 9.0 alone (*_hopper_*), whose machine code it holds; of CUDA it needs cuBLASLt alone; it shows the world its own calls, no more.
set -uo pipefail
cd "$(dirname "$0")/../.."
lib=$1/libczero_cuda.so
failed=0
complain() { echo "$*" >&2; failed=1; }
if [ ! -e "$lib" ] || [ -n "$(find base device ops comm -newer "$lib" \
  \( -name '*.cu' -o -name '*.h' -o -path '*/cuda/*' \) -print -quit)" ]; then
  echo "skipped: the plug-in is not built, or is older than its sources"
  exit 77
fi
command -v readelf >/dev/null && command -v python3 >/dev/null || {
  echo "skipped: readelf and python3 are needed"
  exit 77
}

# ---- what it needs
needed=$(readelf -dW "$lib" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
for library in $needed; do
  case $library in
    libcublasLt.so.* | libstdc++.so.* | libm.so.* | libgcc_s.so.* | libc.so.* | ld-linux-*) ;;
    libasan.so.* | libubsan.so.*) ;; # a build with sanitizers
    libdl.so.* | libpthread.so.* | librt.so.*) ;; # parts of an older libc
    *) complain "it needs $library" ;;
  esac
done

# ---- what it shows
shown=$(nm -D --defined-only "$lib" | awk '{ print $3 }' | sed 's/@.*//')
grep -qx czero_cuda_plugin <<<"$shown" || complain "no czero_cuda_plugin"
for symbol in $shown; do
  case $symbol in
    czero_cuda_plugin | czero_ops_wire | czero_nccl_*) ;;
    *) complain "it shows $symbol" ;;
  esac
done

# ---- what code it holds. Each kernel file is a container of entries: { kind: 1 PTX, 2 machine code;
# length of this head; length of what follows; architecture at byte 28 }.
read -r offset nbytes < <(readelf -SW "$lib" |
  sed -n 's/^ *\[ *[0-9]*\] \.nv_fatbin *PROGBITS *[0-9a-f]* \([0-9a-f]*\) \([0-9a-f]*\).*/\1 \2/p')
[ -n "${offset:-}" ] || { complain "no device code"; exit 1; }
python3 - "$lib" "$offset" "$nbytes" <<'EOF' >"${TMPDIR:-/tmp}/czero-plugin-file.$$"
import struct, sys
data = open(sys.argv[1], "rb").read()
at = int(sys.argv[2], 16)
end = at + int(sys.argv[3], 16)
while at + 16 <= end:
    magic, _, head, size = struct.unpack_from("<IHHQ", data, at)
    if magic != 0xBA55ED50:  # padding between containers
        at += 8
        continue
    entry, last, held = at + head, at + head + size, set()
    while entry + 32 <= last:
        kind, _, entry_head, payload = struct.unpack_from("<HHIQ", data, entry)
        (arch,) = struct.unpack_from("<I", data, entry + 28)
        held.add({1: "ptx", 2: "sm"}.get(kind, "kind%d" % kind) + "_%d" % arch)
        entry += entry_head + payload
    print(*sorted(held))
    at = last
EOF
mapfile -t held <"${TMPDIR:-/tmp}/czero-plugin-file.$$"
rm -f "${TMPDIR:-/tmp}/czero-plugin-file.$$"
n_files=$(grep -rl --include='*.cu' __global__ ops device comm | wc -l)
[ "${#held[@]}" -ge "$n_files" ] || complain "${#held[@]} of $n_files kernel files are in it"
n_hopper=0
for archs in "${held[@]}"; do
  case $archs in
    "ptx_90 sm_80 sm_90") ;;
    "ptx_90 sm_90") n_hopper=$((n_hopper + 1)) ;;
    *) complain "a kernel file has code for: $archs" ;;
  esac
done
[ $n_hopper = "$(find ops -name '*_hopper_*_cuda.cu' | wc -l)" ] || complain "$n_hopper kernel files are for 9.0 alone"

[ $failed = 0 ] && echo "${#held[@]} kernel files: sm_80, sm_90 and PTX, $n_hopper for sm_90a alone; needs: $(echo $needed)"
exit $failed
