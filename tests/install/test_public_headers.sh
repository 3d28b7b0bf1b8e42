#!/usr/bin/env bash
# Claim: every installed header compiles alone, after headers of other libraries with short names,
# and where a program has macros of common words, as C11 and C++11 to C++20, without a warning.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$(mktemp -d /tmp/czero-headers-XXXXXX)
trap 'rm -rf "$work"' EXIT
warnings=(-Wall -Wextra -Wpedantic -Werror)
failed=0
n=0

# Programs' own macros and the headers of others that are here.
others=(syslog.h windows_like_macros.h)
printf '#define min(a, b) ((a) < (b) ? (a) : (b))\n#define max(a, b) ((a) > (b) ? (a) : (b))\n%s\n' \
  '#define ERROR 0
#define interface struct
#define small char
#define near
#define far
#define IN
#define OUT' >"$work/windows_like_macros.h"
for header in jansson.h zstd.h uv.h; do
  if echo "#include <$header>" | gcc -E -x c - >/dev/null 2>&1; then
    others+=("$header")
  else
    echo "not here: <$header>"
  fi
done

compile() { # compiler, standard, language, name
  n=$((n + 1))
  "$1" "-std=$2" -x "$3" "${warnings[@]}" -Iinclude -I"$work" -D_DEFAULT_SOURCE -fsyntax-only "$work/$4" || {
    echo "$1 -std=$2: $4" >&2
    failed=1
  }
}

for path in include/czero/*.h; do
  header=czero/$(basename "$path")
  name=$(basename "$path" .h)
  echo "#include <$header>" >"$work/alone_$name"
  {
    for other in "${others[@]}"; do echo "#include <$other>"; done
    echo "#include <$header>"
    echo "#include <$header>"
  } >"$work/after_$name"
done
for compiler in gcc clang; do
  command -v "$compiler" >/dev/null || { echo "not here: $compiler"; continue; }
  for name in "$work"/alone_* "$work"/after_*; do
    name=$(basename "$name")
    standards=(c11 c++11 c++20)
    [[ $compiler-$name != gcc-alone_* ]] || standards+=(c17 c++14 c++17) # between the oldest and the newest once
    for standard in "${standards[@]}"; do
      case $standard in
        c++*) compile "${compiler/gcc/g++}" "$standard" c++ "$name" ;;
        *) compile "$compiler" "$standard" c "$name" ;;
      esac
    done
  done
done
echo "$n compilations"
exit $failed
