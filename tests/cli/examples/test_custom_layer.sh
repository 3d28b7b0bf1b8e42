#!/usr/bin/env bash
# Claim: the example with a custom layer learns: its loss falls far below that of its first step,
# the same way each time, and it answers bad input with a sentence.
set -uo pipefail
example=$1/examples/custom_layer
work=$(mktemp -d /tmp/czero-custom-XXXXXX)
trap 'rm -rf "$work"' EXIT
failed=0
complain() { echo "$*" >&2; failed=1; }

# Text with something to learn: a few sentences in changing order.
awk 'BEGIN { srand(7); split("the cat sat on the mat|a dog ran after the cat|rain fell on the old town|" \
  "nobody saw the dog again", s, "|"); for (i = 0; i < 1500; i++) print s[int(rand() * 4) + 1] "." }' \
  >"$work/text"
"$example" "$work/text" 60 >"$work/out" || complain "exit $?"
read -r first last <<<"$(sed -n 's/^loss went from \([0-9.]*\) to about \([0-9.]*\)$/\1 \2/p' "$work/out")"
awk -v a="$first" -v b="$last" 'BEGIN { exit !(a > 4.5 && b > 0 && b < 0.5 * a) }' ||
  complain "the loss went from $first to $last"
"$example" "$work/text" 60 >"$work/again"
cmp -s "$work/out" "$work/again" || complain "a second run differs"

"$example" "$work/missing" 2>"$work/err"
[ $? = 1 ] || complain "a missing text went unnoticed"
grep -q missing "$work/err" || complain "$(cat "$work/err")"
"$example" --help >"$work/out" && grep -q Usage "$work/out" || complain "no help"
[ $failed = 0 ] && echo "loss $first -> $last"
exit $failed
