#!/usr/bin/env bash
# Claim: czero, zero_to_fp32 and every command have a manual page with all of their options, an exit status, an
# environment and examples; mandoc and groff find nothing to warn of, and pages are the same in every locale.
set -uo pipefail
build=$(cd "$1" && pwd)
czero=$build/czero
work=$(mktemp -d /tmp/czero-man-XXXXXX)
trap 'rm -rf "$work"' EXIT
failed=0
complain() { echo "$*" >&2; failed=1; }

"$czero" man --output "$work" || complain "exit $?"
n_pages=0
names=(czero zero_to_fp32)
for command in $("$czero" --help | sed -n '/^Commands:/,/^$/s/^  \([a-z]*\) .*/\1/p'); do names+=("czero-$command"); done
for name in "${names[@]}"; do
  page=$work/$name.1
  [ -s "$page" ] || { complain "no page $name"; continue; }
  for section in NAME SYNOPSIS DESCRIPTION OPTIONS 'EXIT STATUS' ENVIRONMENT EXAMPLES 'SEE ALSO'; do
    grep -qx ".SH $section" "$page" || complain "$name has no $section"
  done
  [ "$(grep -n '^.SH EXAMPLES' "$page" | cut -d: -f1)" -lt "$(grep -n '^.SH OPTIONS' "$page" | cut -d: -f1)" ] ||
    complain "$name: examples come after the options"
  LC_ALL=C grep -n '[^ -~]' "$page" && complain "$name: not ASCII"
  if command -v mandoc >/dev/null; then mandoc -T lint -W warning "$page" || complain "$name: mandoc warns"; fi
  if command -v groff >/dev/null; then
    [ -z "$(groff -ww -man -T ascii -z "$page" 2>&1)" ] || complain "$name: groff: $(groff -ww -man -T ascii -z "$page" 2>&1)"
  fi
  n_pages=$((n_pages + 1))
done
[ $n_pages -ge 20 ] || complain "only $n_pages pages"
[ "$(find "$work" -name '*.1' | wc -l)" = $n_pages ] || complain "pages of no command"

# every option of the help is in the page
check_options() { # page, words of the command
  local page=$1 option
  shift
  for option in $("$@" --help | sed -n 's/^  \(--[-_a-z0-9]*\).*/\1/p'); do
    grep -qF -- "\\fB${option//-/\\-}\\fR" "$page" || complain "$page does not explain $option"
  done
}
for name in "${names[@]:2}"; do check_options "$work/$name.1" "$czero" "${name#czero-}"; done
check_options "$work/zero_to_fp32.1" "$build/zero_to_fp32"
for action in show check diff; do check_options "$work/czero-config.1" "$czero" config $action; done

"$czero" man train | cmp - "$work/czero-train.1" || complain "czero man train is not the page"
LC_ALL=C "$czero" man | cmp - "$work/czero.1" || complain "another page in another locale"
"$czero" man trian 2>"$work/err"
[ $? = 2 ] || complain "a page for nothing"
grep -q 'did you mean train?' "$work/err" || complain "$(cat "$work/err")"
"$czero" man --output "$work/nothing" 2>"$work/err"
[ $? = 1 ] || complain "a folder that is not there"
if command -v mandoc >/dev/null; then
  mandoc -T utf8 "$work/czero-train.1" | tr -d '\b' | grep 'learning' >/dev/null || complain "the page does not show its text"
else
  echo "note: no mandoc here"
fi
[ $failed = 0 ] && echo "$n_pages pages"
# a reader that has seen enough is no error to tell of, also where SIGPIPE is ignored
for words in "man train" "train --help" "config reference" "tune --host-memory 1GB"; do
  # shellcheck disable=SC2086
  (sleep 0.3; trap '' PIPE; exec "$czero" $words 2>"$work/err") | true
  code=${PIPESTATUS[0]}
  [ "$code" = $([[ $words == tune* ]] && echo 3 || echo 1) ] || complain "$words: exit $code" # no preset fits 1 GB
  grep -q standard "$work/err" && complain "$words: $(cat "$work/err")"
done
"$czero" man train 2>"$work/err" >/dev/full
[ $? = 1 ] || complain "a full disk is a success"
grep -q "cannot write to standard output" "$work/err" || complain "a full disk: $(cat "$work/err")"

exit $failed
