#!/usr/bin/env bash
# Claim: the example that may be killed continues where its newest checkpoint was and ends with the loss
# and the weights of a run that was left alone; the number of ranks may change in between.
set -euo pipefail
build=$(cd "$1" && pwd)
source_dir=$(cd "$(dirname "$0")/../../.." && pwd)
example=$build/examples/restartable
work=$(mktemp -d /tmp/czero-restartable-XXXXXX)
trap 'rm -rf "$work"' EXIT
cd "$work"
text=$source_dir/examples/data/fortunes.txt
config=$source_dir/configs/quickstart.json

"$example" "$config" "$text" whole 20 >whole.txt
grep -q '^steps 1 to 20, loss ' whole.txt
"$example" "$config" "$text" parts 11 >first.txt # its newest checkpoint is of step 10
"$example" "$config" "$text" parts 20 >second.txt
grep -q '^steps 11 to 20, loss ' second.txt
test "$(sed 's/.*loss//' whole.txt)" = "$(sed 's/.*loss//' second.txt)"
for kind in whole parts; do
  test "$(ls $kind | tr '\n' ' ')" = "global_step15 global_step20 latest "
  "$build/zero_to_fp32" $kind $kind-fp32 --safe_serialization --quiet
done
cmp whole-fp32/model.safetensors parts-fp32/model.safetensors
"$build/czero" launch -n 2 -- "$example" "$config" "$text" parts 25 >ranks.txt
grep -q '^steps 21 to 25, loss ' ranks.txt

if "$example" "$config" "$text" /dev/null/x 2>err.txt; then exit 1; fi
grep -q '/dev/null' err.txt
