#!/usr/bin/env bash
# Claim: what the installed headers declare, what libczero.so exports, what the installed libczero.a
# lets other objects see, and api/exports.txt are one list. Every name begins with cz_ or engine_.
set -euo pipefail
build=$1
cd "$(dirname "$0")/../.."
if grep -qE 'CZ_(SANITIZE|TSAN):BOOL=ON' "$build/CMakeCache.txt"; then
  echo "skipped: the exports are those of the release build"
  exit 77
fi
work=$(mktemp -d /tmp/czero-exports-XXXXXX)
trap 'rm -rf "$work"' EXIT
failed=0
same() { # what, file, what, file
  diff -u --label "$1" --label "$3" "$2" "$4" || failed=1
}
LC_ALL=C sort -u api/exports.txt >"$work/list"
same api/exports.txt api/exports.txt "api/exports.txt, sorted" "$work/list"

# Declarations: CZ_API … name(
export LC_ALL=C
sed '/^#/d; /\\$/d' include/czero/*.h | tr '\n' ' ' | sed 's:/\*[^*]*\*\+\([^/*][^*]*\*\+\)*/: :g' |
  grep -oP 'CZ_API\s[^;]*?\b\K\w+(?=\s*\()' | sort -u >"$work/declared"
same api/exports.txt "$work/list" include/czero "$work/declared"

nm -D --defined-only "$build/libczero.so" | awk '{ print $3 }' | sed 's/@.*//' |
  grep -v '^CZERO_' | sort -u >"$work/shared"
same api/exports.txt "$work/list" libczero.so "$work/shared"

nm --defined-only --extern-only "$build/install/libczero.a" 2>/dev/null | awk 'NF == 3 && $3 ~ /^[A-Za-z_]/ { print $3 }' |
  sort -u >"$work/static"
same api/exports.txt "$work/list" "install/libczero.a" "$work/static"

if bad=$(grep -vE '^(cz|engine)_' "$work/list"); then
  printf 'names without a prefix:\n%s\n' "$bad" >&2
  failed=1
fi
soname=$(readelf -d "$build/libczero.so" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')
[ "$soname" = libczero.so.0 ] || { echo "soname is $soname" >&2; failed=1; }
echo "$(wc -l <"$work/list") names"
exit $failed
