#!/usr/bin/env bash
# Claim: `czero generate` continues a prompt on standard output, repeats itself for a seed, writes
# valid UTF-8 whatever the tokens are, and answers bad input with one sentence and the right code.
set -uo pipefail
cd "$(dirname "$0")/../.."
czero=$1/czero
work=$(mktemp -d /tmp/czero-generate-XXXXXX)
trap 'rm -rf "$work"' EXIT
failed=0
complain() { echo "$*" >&2; failed=1; }

# A preset of 256 tokens with random weights: any byte may come.
gen() { "$czero" generate --model gpt2-tiny --prompt "The day" "$@"; }
gen --max-new-tokens 150 >"$work/a" || complain "greedy: exit $?"
gen --max-new-tokens 150 --no-cache >"$work/b" || complain "no cache: exit $?"
cmp -s "$work/a" "$work/b" || complain "with and without the cache differ"
[ "$(head -c 7 "$work/a")" = "The day" ] || complain "the prompt is not echoed"
iconv -f UTF-8 -t UTF-8 "$work/a" >/dev/null || complain "not UTF-8"
gen --max-new-tokens 0 >"$work/c"
[ "$(cat "$work/c")" = "The day" ] || complain "no new tokens: $(cat "$work/c")"

gen --temperature 1 --seed 5 >"$work/s5" && gen --temperature 1 --seed 5 >"$work/s5b"
gen --temperature 1 --seed 6 >"$work/s6"
cmp -s "$work/s5" "$work/s5b" || complain "a seed does not repeat"
cmp -s "$work/s5" "$work/s6" && complain "two seeds agree"
gen --top-k 1 --seed 9 --max-new-tokens 150 >"$work/k1"
cmp -s "$work/a" "$work/k1" || complain "top-k 1 is not greedy"
gen --max-new-tokens 150 --no-echo >"$work/n"
[ "The day$(cat "$work/n")" = "$(cat "$work/a")" ] || complain "--no-echo prints something else"
for dtype in bf16 fp16; do
  gen --dtype $dtype >"$work/d" || complain "$dtype: exit $?"
done

# expect CODE PATTERN -- arguments
expect() {
  local code=$1 pattern=$2
  shift 3
  "$czero" generate "$@" >"$work/out" 2>"$work/err"
  local got=$?
  [ $got = "$code" ] || complain "exit $got instead of $code: generate $*"
  grep -q -- "$pattern" "$work/err" || complain "no \"$pattern\" in: $(cat "$work/err")"
  [ "$(wc -l <"$work/err")" -le 1 ] || complain "more than one line: $(cat "$work/err")"
  [ ! -s "$work/out" ] || complain "something on standard output: generate $*"
}
expect 2 model -- --prompt x
expect 2 prompt -- --model gpt2-tiny
expect 2 "neither a folder" -- --model gpt9 --prompt x
expect 2 "context holds 64" -- --model gpt2-tiny --prompt "$(printf 'x%.0s' {1..65})"
expect 2 "no token" -- --model gpt2-tiny --prompt ""
expect 2 "temperature" -- --model gpt2-tiny --prompt x --temperature -1
expect 2 "top-k" -- --model gpt2-tiny --prompt x --top-k 0
expect 2 "outside the vocabulary" -- --model tests/data/models/gpt2 --prompt "~~~"
mkdir "$work/cut"
cp tests/data/models/gpt2/config.json "$work/cut"
head -c 9000 tests/data/models/gpt2/model.safetensors >"$work/cut/model.safetensors"
expect 4 "model.safetensors" -- --model "$work/cut" --prompt x
"$czero" generate --model gpt2-tiny --prompt x >/dev/full 2>"$work/err"
[ $? = 1 ] || complain "a full disk went unnoticed"
"$czero" generate --help | grep -q -- --top-k || complain "no help"
[ $failed = 0 ] && echo "generate works"
exit $failed
