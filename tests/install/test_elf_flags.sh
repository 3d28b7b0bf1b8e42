#!/usr/bin/env bash
# Claim: no program, library or plug-in of the build tree or of the installed tree looks for shared
# libraries in the current folder or in one that depends on it: each element of RPATH and RUNPATH is
# absolute or begins with $ORIGIN. Builds without sanitizers also have: position-independent programs, all
# relocations resolved at start and read-only from then on, stacks that are not executable, and, in what
# is installed, functions that check the stack and the sizes of buffers.
set -euo pipefail
build=$1
export LC_ALL=C
work=$(mktemp -d /tmp/czero-elf-XXXXXX)
trap 'rm -rf "$work"' EXIT
failed=0
bad() { echo "$*" >&2; failed=1; }
cache() { grep -qE "^($1)$" "$build/CMakeCache.txt"; }
harden=yes
if cache 'CZ_(SANITIZE|TSAN):BOOL=ON|CZ_HARDEN:BOOL=OFF'; then harden=no; fi
fortify=$harden
if cache 'CMAKE_BUILD_TYPE:STRING=Debug'; then fortify=no; fi

# CMakeFiles has objects and CMake's own trials; fixtures and unpacked data have none of ours.
elf_files() { # folder
  find "$1" -type f \( -perm -100 -o -name '*.so*' \) -not -path '*/CMakeFiles/*' \
    -not -path '*/fixtures/*' -not -path '*/Testing/*' -print0 |
    while IFS= read -r -d '' file; do
      [ "$(head -c 4 "$file" | tail -c 3)" != ELF ] || printf '%s\n' "$file"
    done
}
check() { # file, installed or built
  local file=$1 paths element
  readelf -dW "$file" >"$work/dynamic"
  readelf -hlW "$file" >"$work/header" 2>/dev/null
  paths=$(sed -nE 's/.*\((RPATH|RUNPATH)\).*(\[.*\])$/\1 \2/p' "$work/dynamic")
  while IFS= read -r element; do
    case $element in
    /* | "\$ORIGIN" | "\$ORIGIN"/*) ;;
    "") bad "$file: an empty element in $paths means the current folder" ;;
    *) bad "$file: \"$element\" in $paths depends on the current folder" ;;
    esac
  done < <(sed -nE 's/.*\((RPATH|RUNPATH)\).*\[(.*)\]$/\2/p' "$work/dynamic" | tr : '\n')
  [ $harden = yes ] || return 0
  grep -q 'Type: *DYN ' "$work/header" || bad "$file: not position-independent"
  grep -qE 'FLAGS\).* BIND_NOW|\(BIND_NOW\)|FLAGS_1\).* NOW' "$work/dynamic" || bad "$file: without BIND_NOW"
  grep -q GNU_RELRO "$work/header" || bad "$file: without RELRO"
  grep 'GNU_STACK' "$work/header" | grep -q ' RW ' || bad "$file: its stack is executable"
  grep -q '(TEXTREL)' "$work/dynamic" && bad "$file: relocations in code"
  [ "$2" = installed ] || return 0
  nm -D --undefined-only "$file" >"$work/needs"
  grep -q ' __stack_chk_fail' "$work/needs" || bad "$file: no function checks the stack"
  [ $fortify = no ] || grep -qE ' __[a-z0-9_]+_chk(@|$)' "$work/needs" || bad "$file: no call checks the size of a buffer"
}

cmake --install "$build" --prefix "$work/prefix" >"$work/install.log"
elf_files "$build" >"$work/built"
elf_files "$work/prefix" >"$work/installed"
while IFS= read -r file; do check "$file" built; done <"$work/built"
while IFS= read -r file; do check "$file" installed; done <"$work/installed"
for name in czero zero_to_fp32 libczero.so; do
  grep -qE "/$name[.0-9]*$" "$work/built" || bad "$name was not looked at in the build folder"
  grep -qE "/$name[.0-9]*$" "$work/installed" || bad "$name was not looked at in the installed folder"
done
echo "$(wc -l <"$work/built") built and $(wc -l <"$work/installed") installed files, hardened: $harden"
exit $failed
