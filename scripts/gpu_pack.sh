#!/usr/bin/env bash
# Pack the files that scripts/gpu_check.sh needs on a GPU machine that has neither Debian's development
# packages nor a network. Run it on Debian 12 and copy its output file to the GPU machine.
#   scripts/gpu_pack.sh                 libraries, headers → .gpu/pack.tar.gz
#   scripts/gpu_pack.sh --wheels        also DeepSpeed and its dependencies as wheels for Python 3.12
#                                       (CZ_GPU_PYTHON=3.11 for another)
#   scripts/gpu_pack.sh --llmc DIR      also llm.c's sources from DIR, for comparisons
#   --out FILE
# Installed packages are copied, others are downloaded with apt-get.
set -euo pipefail
cd "$(dirname "$0")/.."
NBYTES_MAX=$((40 << 20))
out=.gpu/pack.tar.gz wheels='' llmc=''
while [ $# -gt 0 ]; do
  case $1 in
    --wheels) wheels=1 ;;
    --llmc) llmc=$2 && shift ;;
    --out) out=$2 && shift ;;
    *) echo "gpu_pack: $1: unknown; the head of this file says what there is" >&2 && exit 2 ;;
  esac
  shift
done

# Libraries with their headers, what they are linked with in turn, and pkg-config's program.
packages=(
  libhwloc15 libhwloc-dev libudev1 liburing2 liburing-dev
  libutf8proc2 libutf8proc-dev libdeflate0 libdeflate-dev zlib1g zlib1g-dev
  libzstd1 libzstd-dev libdnnl2 libdnnl-dev ocl-icd-libopencl1
  check libsubunit0 libsubunit-dev pkgconf-bin libpkgconf3
)

work=$(mktemp -d "${TMPDIR:-/tmp}/czero-gpu-pack-XXXXXX")
trap 'rm -rf "$work"' EXIT
deps=$work/pack/deps
mkdir -p "$work/debs/partial" "$work/root" "$deps/lib/pkgconfig" "$deps/include" "$deps/bin"

unpack_package() { # its files into $work/root
  if [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; then
    dpkg -L "$1" | while read -r path; do
      [ -d "$path" ] && [ ! -L "$path" ] || printf '%s\n' "$path"
    done | tar -C / -cf - --files-from=- --absolute-names 2>/dev/null | tar -C "$work/root" -xf - 2>/dev/null
  else
    (cd "$work/debs" && apt-get -q download "$1" >/dev/null && dpkg -x "$1"_*.deb "$work/root")
  fi
}

echo "packages: ${#packages[@]}"
for package in "${packages[@]}"; do
  unpack_package "$package" || { echo "gpu_pack: $package cannot be had" >&2; exit 1; }
done

# One folder of libraries, one of headers; .pc files find them from where they are.
multiarch=$(gcc -print-multiarch)
find "$work/root" -path '*/lib/*' \( -name '*.so' -o -name '*.so.*' -o -name libcheck_pic.a \) \
  ! -path '*/hwloc/*' -exec cp -d -t "$deps/lib" {} +
cp -rL "$work/root/usr/include/." "$deps/include/"
[ -d "$deps/include/$multiarch" ] && cp -r "$deps/include/$multiarch/." "$deps/include/" &&
  rm -r "${deps:?}/include/$multiarch"
cp "$work/root/usr/bin/pkgconf" "$deps/bin/"
rm -rf "$deps/include/hwloc/linux" "$deps/include/libltdl"
for pc in hwloc liburing libutf8proc libdeflate zlib libzstd check libsubunit; do
  sed -e 's|^prefix=.*|prefix=${pcfiledir}/../..|' -e 's|^exec_prefix=.*|exec_prefix=${prefix}|' \
    -e 's|^libdir=.*|libdir=${prefix}/lib|' -e 's|^includedir=.*|includedir=${prefix}/include|' \
    -e '/^[A-Z]/s|/usr/|${prefix}/|g' "$work/root/usr/lib/$multiarch/pkgconfig/$pc.pc" >"$deps/lib/pkgconfig/$pc.pc"
done
strip --strip-unneeded "$deps"/lib/*.so.* 2>/dev/null || true

if [ -n "$wheels" ]; then
  python=${CZ_GPU_PYTHON:-3.12}
  mkdir -p "$work/pack/wheels"
  python3 -m pip wheel -q --no-deps --no-build-isolation -w "$work/pack/wheels" deepspeed==0.19.8 ||
    python3 -m pip wheel -q --no-deps -w "$work/pack/wheels" deepspeed==0.19.8
  python3 -m pip download -q --no-deps --only-binary=:all: --python-version "$python" \
    --implementation cp --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
    -d "$work/pack/wheels" hjson pydantic==2.11.7 pydantic-core==2.33.2 annotated-types \
    typing-inspection py-cpuinfo msgpack einops
fi
if [ -n "$llmc" ]; then
  [ -f "$llmc/train_gpt2.cu" ] || { echo "gpu_pack: $llmc/train_gpt2.cu is not there" >&2; exit 2; }
  mkdir -p "$work/pack/llm.c"
  cp -rL "$llmc"/{Makefile,train_gpt2.cu,llmc} "$work/pack/llm.c/"
fi

mkdir -p "$(dirname "$out")"
tar -C "$work/pack" --owner=0 --group=0 -cf - . | gzip -6 >"$out"
nbytes=$(stat -c %s "$out")
printf 'unpacked:\n' && (cd "$work/pack" && du -sh -- *)
printf '%s: %s bytes\n' "$out" "$nbytes"
[ "$nbytes" -le $NBYTES_MAX ] || { echo "gpu_pack: more than $NBYTES_MAX bytes" >&2; exit 1; }
