#!/usr/bin/env bash
# Claim: the C++ example with a custom layer learns: its loss falls far below that of its first
# step, the same way each time; its second thread prints czero's log and the program's lines in order;
# an error becomes an exception with czero's sentence and the exit status 1.
set -uo pipefail
example=$1/examples/custom_layer_cpp
work=$(mktemp -d /tmp/czero-custom-XXXXXX)
trap 'rm -rf "$work"' EXIT
failed=0
complain() { echo "$*" >&2; failed=1; }

awk 'BEGIN { srand(7); split("the cat sat on the mat|a dog ran after the cat|rain fell on the old town|" \
  "nothing saw the dog again", s, "|"); for (i = 0; i < 1500; i++) print s[int(rand() * 4) + 1] "." }' \
  >"$work/text"
"$example" "$work/text" 120 >"$work/out" || complain "exit $?"
read -r first last <<<"$(sed -n 's/^loss went from \([0-9.]*\) to about \([0-9.]*\)$/\1 \2/p' "$work/out")"
awk -v a="$first" -v b="$last" 'BEGIN { exit !(a > 4.5 && b > 0 && b < 0.5 * a) }' ||
  complain "the loss went from $first to $last"
grep -q '^czero: ' "$work/out" || complain "no line of the log: $(cat "$work/out")"
[ "$(grep -o '^step [0-9]*' "$work/out" | tr '\n' ' ')" = "step 1 step 51 step 101 step 120 " ] ||
  complain "other steps: $(cat "$work/out")"
tail -n 1 "$work/out" | grep -q '^loss went' || complain "the last line is not printed last"
"$example" "$work/text" 120 | grep -v '^czero: ' >"$work/again"
grep -v '^czero: ' "$work/out" | cmp -s - "$work/again" || complain "a second run differs"

"$example" "$work/missing" 2>"$work/err" >"$work/out"
[ $? = 1 ] || complain "a missing text went unnoticed"
grep -q 'missing.*(CZ_NOTFOUND)' "$work/err" || complain "$(cat "$work/err")"
"$example" --help >"$work/out" && grep -q Usage "$work/out" || complain "no help"
[ $failed = 0 ] && echo "loss $first -> $last"
exit $failed
