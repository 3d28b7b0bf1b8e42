#!/usr/bin/env bash
# Claim: `czero bench` measures within its time and leaves nothing in the folder measured, not even
# when it is stopped; it prints a table, or with --json one object, and keeps a profile that
# `czero plan` reads; bad input ends in one sentence, before anything is measured.
set -uo pipefail
cd "$(dirname "$0")/../../.."
czero=$1/czero
work=$(mktemp -d /tmp/czero-bench-XXXXXX)
trap 'rm -rf "$work"' EXIT
failed=0
complain() { echo "$*" >&2; failed=1; }

mkdir "$work/disk"
begin=$SECONDS
"$czero" bench --seconds 2 --nvme "$work/disk" --profile "$work/p.json" >"$work/out" 2>"$work/err" ||
  complain "exit $?: $(cat "$work/err")"
[ $((SECONDS - begin)) -le 60 ] || complain "took $((SECONDS - begin)) s"
for part in "matrix products, bf16 .*GFLOP/s" "STREAM triad" "% of the triad" "reading .*GB/s" \
  "best of those tried: blocks of" '"aio": {"block_size": [0-9]*, "queue_depth": [0-9]*}' \
  "16-bit model .* s on the host, .* s on NVMe"; do
  grep -q -- "$part" "$work/out" || complain "no \"$part\" in $(cat "$work/out")"
done
grep -q "^measuring $work/disk: blocks of" "$work/err" || complain "does not say what it measures"
[ -z "$(ls -A "$work/disk")" ] || complain "left in the folder: $(ls -A "$work/disk")"
grep -q '"triad_bytes_per_second": [1-9]' "$work/p.json" || complain "no triad in the profile"
"$czero" plan --config configs/quickstart.json --model gpt2-tiny --seq-len 64 \
  --profile "$work/p.json" >"$work/plan" 2>&1 || complain "plan: $(cat "$work/plan")"

"$czero" bench --seconds 1 --json --quiet >"$work/out" 2>"$work/err" || complain "--json: exit $?"
for key in profile adam_bf16_parameters_per_second step_seconds_per_billion_parameters; do
  grep -q "\"$key\":" "$work/out" || complain "no $key in the JSON"
done
# A machine with large caches may have too little memory beside other tests, and says so.
grep -v 'memory is short$' "$work/err" && complain "--quiet says $(cat "$work/err")"
head -c 1 "$work/out" | grep -q '{' || complain "not one object"

"$czero" bench --seconds 30 --nvme "$work/disk" >/dev/null 2>"$work/err" &
pid=$!
for _ in $(seq 100); do [ -n "$(ls -A "$work/disk")" ] && break; sleep 0.05; done
kill -TERM $pid
wait $pid
code=$?
[ $code = 1 ] || complain "stopped: exit $code"
grep -q "stopped before" "$work/err" || complain "stopped: $(cat "$work/err")"
[ -z "$(ls -A "$work/disk")" ] || complain "stopped, and left $(ls -A "$work/disk")"

(ulimit -f 1000; "$czero" bench --seconds 5 --quiet --nvme "$work/disk" >/dev/null 2>"$work/err")
code=$?
[ $code = 1 ] || complain "a limit on file sizes: exit $code"
grep -q "$work/disk" "$work/err" || complain "a limit on file sizes: $(cat "$work/err")"
[ -z "$(ls -A "$work/disk")" ] || complain "a limit on file sizes left $(ls -A "$work/disk")"

refused() { # expected exit code, part of the sentence, arguments…
  local code=$1 part=$2
  shift 2
  "$czero" bench "$@" >"$work/out" 2>"$work/err"
  local got=$?
  [ $got = "$code" ] || complain "$*: exit $got, not $code"
  [ "$(grep -c . "$work/err")" = 1 ] || complain "$*: not one sentence: $(cat "$work/err")"
  grep -q -- "$part" "$work/err" || complain "$*: $(cat "$work/err")"
  [ -s "$work/out" ] && complain "$*: wrote $(cat "$work/out")"
}
refused 2 "at most 60" --seconds 61
refused 2 "must be above 0" --seconds 0
refused 2 "must be above 0" --seconds -5
refused 2 "not a number" --seconds soon
refused 2 "is a file, not a folder" --nvme README.md
refused 2 "no name" --nvme=
refused 2 "unexpected word" here
refused 1 "/nowhere/p.json" --profile /nowhere/p.json
refused 1 "is a folder" --profile "$work"
"$czero" bench --help >"$work/out" && grep -q -- "--nvme DIR" "$work/out" || complain "no help"
"$czero" --help >"$work/out" && grep -q "^  bench " "$work/out" || complain "not among the commands"

exit $failed
