#!/usr/bin/env bash
# Claim: `cmake --install` gives headers, both libraries, both tools, a CMake package and a
# pkg-config file, and every example builds against the installed tree alone, both ways, and runs.
set -euo pipefail
build=$1
source_dir=$(cd "$(dirname "$0")/../.." && pwd)
if grep -qE 'CZ_(SANITIZE|TSAN):BOOL=ON' "$build/CMakeCache.txt"; then
  echo "skipped: the installed tree is tested from the release build"
  exit 77
fi
work=$(mktemp -d /tmp/czero-install-XXXXXX)
trap 'rm -rf "$work"' EXIT
prefix=$work/prefix

cmake --install "$build" --prefix "$prefix" >"$work/install.log"
libdir=$(dirname "$(find "$prefix" -name libczero.so | head -1)")
for file in include/czero/czero.h bin/czero bin/zero_to_fp32; do
  test -e "$prefix/$file" || { echo "missing: $file" >&2; exit 1; }
done
test -e "$libdir/libczero.a"
if find "$prefix/include" -name '*_impl.h' | grep -q .; then
  echo "a private header was installed" >&2
  exit 1
fi

examples=("$source_dir"/examples/{over_ranks,restartable}.c)
echo "examples: ${#examples[@]}"

# pkg-config, as a Makefile would
export PKG_CONFIG_PATH=$libdir/pkgconfig
for example in "${examples[@]}"; do
  name=$(basename "$example" .c)
  # shellcheck disable=SC2046
  gcc -std=c11 -Wall -Wextra -Werror "$example" -o "$work/$name.pc" \
    $(pkg-config --cflags --libs czero) -lm -Wl,-rpath,"$libdir"
done

# find_package, as a CMake project would
mkdir "$work/project"
{
  echo 'cmake_minimum_required(VERSION 3.25)'
  echo 'project(user C)'
  echo 'find_package(czero REQUIRED)'
  for example in "${examples[@]}"; do
    name=$(basename "$example" .c)
    echo "add_executable($name $example)"
    echo "target_link_libraries($name czero::czero m)"
  done
} >"$work/project/CMakeLists.txt"
cmake -G Ninja -S "$work/project" -B "$work/project/build" -DCMAKE_PREFIX_PATH="$prefix" >"$work/cmake.log"
cmake --build "$work/project/build" >>"$work/cmake.log" || { cat "$work/cmake.log" >&2; exit 1; }

"$prefix/bin/czero" --version
if [ -e "$build/libczero_cuda.so" ]; then # the plug-in is where the installed program looks
  test -e "$libdir/libczero_cuda.so" || { echo "libczero_cuda.so was not installed" >&2; exit 1; }
  env -u CZERO_CUDA_PLUGIN "$prefix/bin/czero" verify "$build/fixtures/models/gpt2" \
    --device cuda >"$work/cuda" 2>&1 || true
  if grep -q 'is not here' "$work/cuda"; then
    cat "$work/cuda" >&2
    exit 1
  fi
fi
"$prefix/bin/czero" --help >/dev/null
for example in "${examples[@]}"; do
  name=$(basename "$example" .c)
  "$work/$name.pc" --help >/dev/null || { echo "$name --help failed" >&2; exit 1; }
done
echo "installed tree works"
