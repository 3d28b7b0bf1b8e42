#!/usr/bin/env bash
# Claim: every command has a --help that exits with 0 and has no line of more than 80 columns, in UTF-8 and
# in ASCII.
set -uo pipefail
cd "$1" || exit 1
failed=0
complain() { echo "$*" >&2; failed=1; }

# The width of standard input's longest line: bytes that begin a UTF-8 character.
longest() { LC_ALL=C tr -d '\200-\277' | LC_ALL=C awk '{ if (length($0) > n) n = length($0) } END { print n + 0 }'; }

check() {
  local text locale
  for locale in C C.UTF-8; do
    text=$(LC_ALL=$locale "$@" --help) || complain "$* --help: exit $?"
    [ -n "$text" ] || complain "$* --help prints nothing"
    n=$(longest <<<"$text")
    [ "$n" -le 80 ] || complain "$* --help has a line of $n columns in $locale"
  done
}

check ./czero
check ./zero_to_fp32
n_commands=0
for command in $(./czero --help | sed -n 's/^  \([a-z]*\) .*/\1/p'); do
  check ./czero "$command"
  n_commands=$((n_commands + 1))
done
for action in show check diff reference; do check ./czero config "$action"; done
check ./czero data show
[ "$n_commands" -ge 16 ] || complain "only $n_commands commands found"
[ $failed = 0 ] && echo "$n_commands commands"
exit $failed
