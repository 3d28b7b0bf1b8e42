#!/usr/bin/env bash
# Claim: `czero generate` continues a prompt on standard output, repeats itself for a seed, writes
# valid UTF-8 whatever the tokens are, takes the folder's own tokenizer and stops where that or the
# model's config says, and answers bad input with one sentence and the right code.
set -uo pipefail
cd "$(dirname "$0")/../../.."
czero=$1/czero
models=$1/fixtures/models
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
# bf16 rounds coarsely, which shows after some random tokens; without a dtype it is fp32.
for dtype in fp32 bf16 fp16; do
  gen --temperature 1 --seed 5 --max-new-tokens 150 --dtype $dtype >"$work/d-$dtype" || complain "$dtype: exit $?"
done
gen --temperature 1 --seed 5 --max-new-tokens 150 | cmp -s - "$work/d-fp32" || complain "fp32 is not what is taken by itself"
cmp -s "$work/d-fp32" "$work/d-bf16" && complain "bf16 computes as fp32 does"
cmp -s "$work/d-bf16" "$work/d-fp16" && complain "fp16 computes as bf16 does"

# A folder with a tokenizer of its own: 26 letters, a space and one merge; nothing else comes out but
# the end of a text, which every vocabulary of this kind has.
cp -r "$models/gpt2-tiny" "$work/own"
chmod -R u+w "$work/own"
{ printf '{"\xc4\xa0":0,"ab":1'; n=2; for c in {a..z}; do printf ',"%s":%d' "$c" $((n++)); done; printf '}'; } >"$work/own/vocab.json"
printf '#version: 0.2\na b\n' >"$work/own/merges.txt"
own() { "$czero" generate --model "$work/own" --prompt "ab cab" --max-new-tokens 20 "$@"; }
own --no-end --temperature 1 >"$work/o" || complain "own tokenizer: exit $?"
grep -qE '^ab cab([a-z ]|<\|endoftext\|>){20,}$' "$work/o" || complain "own tokenizer: $(cat "$work/o")"
own --no-end --no-echo --max-new-tokens 1 >"$work/o1"
printf '{"eos_token": "%s"}' "$(sed 's/ /\xc4\xa0/' "$work/o1")" >"$work/own/tokenizer_config.json"
[ "$(own)" = "ab cab" ] || complain "did not stop at the end token: $(own)"
own --no-end >"$work/out" && grep -qE '^ab cab[a-z ]{20,}$' "$work/out" || complain "--no-end stopped"
own --tokenizer bytes >/dev/null || complain "bytes: exit $?"
rm "$work/own/tokenizer_config.json"
first=$(sed -E "s/.*\"$(sed 's/ /\xc4\xa0/' "$work/o1")\":([0-9]+).*/\1/" "$work/own/vocab.json")
printf '{"eos_token_id": [900, %d]}' "$first" >"$work/own/generation_config.json"
[ "$(own)" = "ab cab" ] || complain "generation_config.json went unread: $(own)"

# Several prompts: each text is that of its prompt alone; an empty line stands between them.
one=$(gen --max-new-tokens 8) two=$("$czero" generate --model gpt2-tiny --prompt "x" --max-new-tokens 8)
both=$("$czero" generate --model gpt2-tiny --prompt "The day" --prompt x --max-new-tokens 8)
[ "$both" = "$one"$'\n\n'"$two" ] || complain "two prompts gave: $both"
printf 'The day\nx\n' >"$work/prompts"
[ "$("$czero" generate --model gpt2-tiny --prompts "$work/prompts" --max-new-tokens 8)" = "$both" ] ||
  complain "--prompts gave something else than --prompt twice"
"$czero" generate --model gpt2-tiny --prompts "$work/prompts" --json --max-new-tokens 8 |
  python3 -c 'import json, sys
rows = [json.loads(line) for line in sys.stdin]
assert [row["prompt"] for row in rows] == ["The day", "x"], rows
assert all(row["text"] for row in rows), rows' || complain "--json is not an object per line"
# A NUL is a character like others, and ends no prompt.
printf 'The\0day\nx\n' >"$work/zero"
"$czero" generate --model gpt2-tiny --prompts "$work/zero" --json --max-new-tokens 2 |
  python3 -c 'import json, sys
rows = [json.loads(line) for line in sys.stdin]
assert [row["prompt"] for row in rows] == ["The\0day", "x"], rows' || complain "--prompts cuts a line at its NUL"
[ "$("$czero" generate --model gpt2-tiny --prompts "$work/zero" --no-echo --max-new-tokens 8)" != \
  "$("$czero" generate --model gpt2-tiny --prompt The --prompt x --no-echo --max-new-tokens 8)" ] || complain "a prompt is cut at its NUL"

# A stop word ends the text in front of it, also when tokens split it.
text=$(own --no-end --no-echo --max-new-tokens 12) word=${text:3:2}
[ "$(own --no-end --no-echo --max-new-tokens 12 --stop nowhere --stop "$word")" = "${text%%"$word"*}" ] ||
  complain "--stop \"$word\" in \"$text\" gave: $(own --no-end --no-echo --stop "$word")"
[ "$(gen --top-p 0.000001 --seed 5)" = "$(gen)" ] || complain "a tiny --top-p is not the likeliest token"
[ "$(gen --repetition-penalty 1)" = "$(gen)" ] || complain "a penalty of 1 changed the text"

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
expect 2 "context has 64" -- --model gpt2-tiny --prompt "$(printf 'x%.0s' {1..65})"
expect 2 "no token" -- --model gpt2-tiny --prompt ""
expect 2 "temperature" -- --model gpt2-tiny --prompt x --temperature -1
expect 2 "top-p must be" -- --model gpt2-tiny --prompt x --top-p 1.5
expect 2 "repetition-penalty must be" -- --model gpt2-tiny --prompt x --repetition-penalty 0
expect 2 "byte 0xe9 at offset 3 is not UTF-8" -- --model gpt2-tiny --prompt x --stop "$(printf 'caf\351')"
expect 2 "--temperature must be at least 0" -- --model gpt2-tiny --prompt x --temperature -1
expect 2 "--top-p must be above 0" -- --model gpt2-tiny --prompt x --top-p 1.1
expect 2 "--repetition-penalty must be above 0" -- --model gpt2-tiny --prompt x --repetition-penalty 0
expect 2 "empty text" -- --model gpt2-tiny --prompt x --stop ""
expect 2 "exclude each other" -- --model gpt2-tiny --prompt x --prompts "$work/prompts"
expect 2 "none: cannot be opened" -- --model gpt2-tiny --prompts "$work/none"
expect 2 "top-k" -- --model gpt2-tiny --prompt x --top-k -1
expect 2 "outside the vocabulary" -- --model "$models/gpt2" --prompt "~~~"
expect 2 "501 tokens" -- --model gpt2-tiny --tokenizer "$1/fixtures/tokenizers/gpt2" --prompt x
expect 2 "none" -- --model gpt2-tiny --tokenizer "$work/none" --prompt x
printf '{"a":0' >"$work/own/vocab.json"
expect 4 "vocab.json:1" -- --model "$work/own" --prompt x
mkdir "$work/cut"
cp "$models/gpt2/config.json" "$work/cut"
head -c 9000 "$models/gpt2/model.safetensors" >"$work/cut/model.safetensors"
expect 4 "model.safetensors" -- --model "$work/cut" --prompt x
"$czero" generate --model gpt2-tiny --prompt x >/dev/full 2>"$work/err"
[ $? = 1 ] || complain "a full disk went unnoticed"
"$czero" generate --help >"$work/out" && grep -q -- --top-k "$work/out" || complain "no help"
[ $failed = 0 ] && echo "generate works"
exit $failed
