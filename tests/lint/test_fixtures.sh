#!/usr/bin/env bash
# Claim: tests/fixtures/README.md names everything that is beside it; the build's folder of fixtures is
# what the archives hold; unpacking again changes nothing, and a folder that is gone comes back.
set -uo pipefail
cd "$(dirname "$0")/../.."
build=$1
failed=0
complain() { echo "$*" >&2; failed=1; }
work=$(mktemp -d /tmp/czero-fixtures-XXXXXX)
trap 'rm -rf "$work"' EXIT

for path in tests/fixtures/*; do
  name=${path##*/}
  [[ $name == README.md ]] || grep -q "\`${name}[\`/]" tests/fixtures/README.md || complain "README.md does not say what $name is"
done
for name in $(git ls-files tests/fixtures | cut -d/ -f3 | sort -u); do
  [ -e "tests/fixtures/$name" ] || complain "tests/fixtures/$name is not here"
done
if command -v xz >/dev/null; then
  tests/fixtures/pack.sh --check --from "$build/fixtures" || failed=1
else
  echo "without xz: archives are not compared"
fi

unpack() { cmake -DTO="$work/fixtures" -P tests/fixtures/unpack.cmake || complain "unpack.cmake: exit $?"; }
unpack
diff -r "$build/fixtures/formats" "$work/fixtures/formats" || complain "two folders differ"
echo mine >"$work/fixtures/formats/mine"
mkdir "$work/fixtures/of_an_older_tree"
unpack
[ -e "$work/fixtures/formats/mine" ] || complain "a folder is unpacked again without need"
[ ! -e "$work/fixtures/of_an_older_tree" ] || complain "what an older tree had stays"
rm -r "$work/fixtures/formats" "$work/fixtures/lr"
unpack
[ -e "$work/fixtures/formats/pt/simple.pt" ] && [ -e "$work/fixtures/lr/cosine_log.csv" ] || complain "a folder stays away"
[ ! -e "$work/fixtures/formats/mine" ] || complain "a folder comes back with more than its archive"
exit $failed
