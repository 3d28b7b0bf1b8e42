#!/usr/bin/env bash
# Pack what scripts/gpu_check.sh needs on a GPU machine that has neither Debian's development packages nor a
# network. Run it on Debian 12 and copy its output file to the GPU machine.
#   scripts/gpu_pack.sh                 libraries, headers → .gpu/pack.tar.xz: czero is built there
#   scripts/gpu_pack.sh --prebuilt      also czero, the CUDA plug-in, the GPU's tests and benches, built here (needs nvcc and
#                                       patchelf): nothing is built there, unless the sources differ or they do not start
#   scripts/gpu_pack.sh --wheels        also DeepSpeed and its dependencies as wheels for Python 3.12
#                                       (CZ_GPU_PYTHON=3.11 for another)
#   scripts/gpu_pack.sh --llmc DIR      also llm.c's sources from DIR, for comparisons
#     --simulated                       with --prebuilt: also the simulated device, to try the pack without a GPU
#     --build DIR                       what --prebuilt builds in (default build-gpu-pack); the next call builds what changed
#     --out FILE
#   scripts/gpu_pack.sh --sources       print the sum of the sources that the programs are built from
# Installed packages are copied, others are downloaded with apt-get. Tree and pack together travel in 60 MB.
set -euo pipefail
cd "$(dirname "$0")/.."
NBYTES_MAX=60000000 # of tree and pack
out=.gpu/pack.tar.xz wheels='' llmc='' prebuilt='' simulated='' build=build-gpu-pack

# What decides about the programs: the same sum, the same programs.
sources() {
  find CMakeLists.txt cmake api base bench/gpu checkpoint comm data device engine examples formats include layout model offload ops \
    optim tests/gpu tests/support tools zero -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -d' ' -f1
}

while [ $# -gt 0 ]; do
  case $1 in
    --prebuilt) prebuilt=1 ;;
    --simulated) simulated=1 ;;
    --wheels) wheels=1 ;;
    --sources) sources && exit 0 ;;
    --llmc | --build | --out)
      [ $# -ge 2 ] || { echo "gpu_pack: $1 needs a value" >&2 && exit 2; }
      declare "${1#--}=$2" && shift ;;
    -h | --help) sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0" && exit 0 ;;
    *) echo "gpu_pack: $1: unknown; --help says what there is" >&2 && exit 2 ;;
  esac
  shift
done
[ -z "$prebuilt" ] || for tool in nvcc patchelf ninja; do
  command -v $tool >/dev/null || { echo "gpu_pack: --prebuilt needs $tool" >&2 && exit 2; }
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

# What is run is at the same place in the GPU machine's build folder, and its libraries are beside czero.
runtime_libraries=(libgomp.so.1 libstdc++.so.6 libgcc_s.so.1) # of compilers: for machines without one
if [ -n "$prebuilt" ]; then
  cmake -G Ninja -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DCZ_CUDA=ON -DCZ_MPI=OFF -DCZ_GPU_TESTS="$([ -n "$simulated" ] &&
    echo OFF || echo ON)" >"$work/cmake.log" || { tail -20 "$work/cmake.log" >&2 && exit 1; }
  mapfile -t targets < <(ninja -C "$build" -t targets all |
    sed -n 's,^\(tests/gpu/[a-z_0-9]*\|bench/[a-z_0-9]*cuda[a-z_0-9]*\|examples/custom_layer\): .*EXECUTABLE.*,\1,p')
  targets+=(czero libczero_cuda.so)
  [ -z "$simulated" ] || targets+=(cuda_sim/libczero_cuda.so)
  ninja -C "$build" "${targets[@]}" >"$work/ninja.log" || { tail -40 "$work/ninja.log" >&2 && exit 1; }
  for target in "${targets[@]}"; do
    mkdir -p "$work/pack/prebuilt/$(dirname "$target")"
    strip -o "$work/pack/prebuilt/$target" "$build/$target"
  done
  mkdir -p "$deps/runtime"
  for name in "${runtime_libraries[@]}"; do
    cp -L "$(gcc -print-file-name="$name")" "$deps/runtime/$name"
    strip --strip-unneeded "$deps/runtime/$name"
  done
  for library in "$deps"/lib/*.so.* "$deps"/runtime/*; do
    [ -L "$library" ] || patchelf --set-rpath "\$ORIGIN" "$library"
  done
  sources >"$work/pack/prebuilt/sources.sha256"
fi

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
# The programs share most of their code: a dictionary as long as all of it finds that.
tar -C "$work/pack" --sort=name --owner=0 --group=0 -cf - . | xz -T1 --lzma2=preset=6,dict=128MiB >"$out"
nbytes=$(stat -c %s "$out")
nbytes_tree=$(git ls-files -z --cached --others --exclude-standard | xargs -0 stat -c %s 2>/dev/null | awk '{ n += $1 } END { print n }')
printf 'unpacked:\n' && (cd "$work/pack" && du -sh -- *)
printf '%s: %s bytes; the tree: %s bytes\n' "$out" "$nbytes" "$nbytes_tree"
[ $((nbytes + nbytes_tree)) -le $NBYTES_MAX ] || { echo "gpu_pack: together more than $NBYTES_MAX bytes" >&2; exit 1; }
