#!/usr/bin/env bash
# Claim: `cmake --install` gives the public headers, both libraries, both tools, a CMake package, a
# pkg-config file, examples and documentation; every example, C and C++, builds against the installed
# tree alone with the shared and with the static library, by pkg-config and by find_package, without a
# development package of czero's own dependencies; and it runs. A program may have functions of the
# names that czero uses inside.
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
fail() { echo "$*" >&2; exit 1; }

cmake --install "$build" --prefix "$prefix" >"$work/install.log"
libdir=$(dirname "$(find "$prefix" -name libczero.so | head -1)")
docdir=$prefix/share/doc/czero
for file in include/czero/czero.h bin/czero bin/zero_to_fp32 share/doc/czero/LICENSE \
  share/doc/czero/README.md share/doc/czero/examples/over_ranks.c share/man/man1/czero.1 share/man/man1/czero-train.1 \
  share/man/man1/zero_to_fp32.1 share/bash-completion/completions/czero \
  share/bash-completion/completions/zero_to_fp32 share/zsh/site-functions/_czero \
  share/fish/vendor_completions.d/czero.fish share/fish/vendor_completions.d/zero_to_fp32.fish; do
  test -e "$prefix/$file" || fail "missing: $file"
done
test -e "$libdir/libczero.a" || fail "missing: libczero.a"
diff -r "$source_dir/include/czero" "$prefix/include/czero" || fail "other headers were installed"

# The examples as installed, and a program with names of its own that czero uses inside, too.
cp -r "$docdir/examples" "$work/examples"
rm "$work"/examples/*_cjson.c # another library's headers are not seen here
cat >"$work/examples/own_names.c" <<'END'
#include <czero/czero.h>
#include <stdio.h>
int json_parse(void);
int crc32_update(void);
int json_parse(void) { return 1; }
int crc32_update(void) { return 2; }
int main(void)
{
    struct cz_model *model = cz_model_open("gpt2-tiny");
    if (!model) return 1;
    printf("%s: %zu parameters, %d\n", cz_model_name(model), cz_model_n_params(model),
           json_parse() + crc32_update());
    cz_model_destroy(model);
    return 0;
}
END
programs=("$work"/examples/*.c "$work"/examples/*.cpp)

# Development files of private dependencies must not be needed: pkg-config sees czero's alone, and the
# compiler's folders have no hwloc, liburing, … that a public header could include.
export PKG_CONFIG_LIBDIR=$libdir/pkgconfig
unset PKG_CONFIG_PATH
if pkg-config --exists hwloc; then fail "pkg-config sees more than czero"; fi
if grep -rnE '#\s*include\s*<' "$prefix/include" | grep -vE '<(czero/|std[a-z]*\.h)'; then
  fail "a public header needs another library's"
fi
for option in "" --static; do
  if pkg-config $option --libs czero | grep -oE '(^| )-l[a-z]\S*' | grep -vE -- '-l(czero|pthread|dl|m)$'; then
    fail "pkg-config $option names a library by its development file"
  fi
done

compile() { # source, output, flags…
  local source=$1 output=$2
  shift 2
  case $source in
  *.cpp) g++ -std=c++17 -Wall -Wextra -Werror "$source" -o "$output" "$@" ;;
  *) gcc -std=c11 -Wall -Wextra -Werror "$source" -o "$output" "$@" ;;
  esac
}
for program in "${programs[@]}"; do
  name=$(basename "${program%.*}")
  # shellcheck disable=SC2046
  compile "$program" "$work/$name.shared" $(pkg-config --cflags --libs czero) -lm -Wl,-rpath,"$libdir"
  # shellcheck disable=SC2046
  compile "$program" "$work/$name.static" $(pkg-config --cflags czero) \
    $(pkg-config --static --libs czero | sed 's/-lczero/-l:libczero.a/')
  if readelf -d "$work/$name.static" | grep -q 'NEEDED.*libczero'; then fail "$name.static is not static"; fi
done

# find_package, as a CMake project would
mkdir "$work/project"
{
  echo 'cmake_minimum_required(VERSION 3.25)'
  echo 'project(user C CXX)'
  echo 'set(CMAKE_CXX_STANDARD 17)'
  echo 'find_package(czero 0.2 REQUIRED)'
  for program in "${programs[@]}"; do
    name=$(basename "${program%.*}")
    for kind in czero static; do
      echo "add_executable($name.$kind $program)"
      echo "target_link_libraries($name.$kind czero::$kind m)"
    done
  done
} >"$work/project/CMakeLists.txt"
cmake -G Ninja -S "$work/project" -B "$work/project/build" -DCMAKE_PREFIX_PATH="$prefix" >"$work/cmake.log" 2>&1 ||
  { cat "$work/cmake.log" >&2; exit 1; }
cmake --build "$work/project/build" >>"$work/cmake.log" || { cat "$work/cmake.log" >&2; exit 1; }

# They run: each says what it is for, and one trains.
for program in "${programs[@]}"; do
  name=$(basename "${program%.*}")
  for binary in "$work/$name".{shared,static} "$work/project/build/$name".{czero,static}; do
    "$binary" --help >/dev/null || fail "$binary --help failed"
  done
done
head -c 20000 "$source_dir/examples/data/fortunes.txt" >"$work/text"
for binary in "$work"/over_ranks.{shared,static}; do
  "$binary" "$source_dir/configs/zero0.json" "$work/text" 3 >>"$work/losses"
done
test "$(sort -u "$work/losses" | wc -l)" = 1 || fail "shared and static library differ: $(cat "$work/losses")"

"$prefix/bin/czero" --version
if [ -e "$build/libczero_cuda.so" ]; then # the plug-in is where the installed program looks
  test -e "$libdir/libczero_cuda.so" || fail "libczero_cuda.so was not installed"
  env -u CZERO_CUDA_PLUGIN "$prefix/bin/czero" verify "$build/fixtures/models/gpt2" \
    --device cuda >"$work/cuda" 2>&1 || true
  if grep -q 'is not here\|not found beside' "$work/cuda"; then
    cat "$work/cuda" >&2
    exit 1
  fi
fi
"$prefix/bin/czero" --help >/dev/null
echo "installed tree works: ${#programs[@]} programs, shared and static"
