#!/usr/bin/env bash
# Claim: czero data show prints what rows of tables, labelled JSON lines, words and plain texts become: label, tokens, what is cut, and
# classes and lengths in sum, as training counts them; --json has the same; text of a row cannot reach the terminal as controls.
. "$(dirname "$0")/../../support/command.sh"

printf 'id,sentence,other,label\n1,ab cd,xy,pos\n2,"a\033[31mb",x,neg\n3,abcdefghijklmnopqrstuvwxyz abcdefghijklmnop,y,pos\n' >rows.csv
tr , '\t' <rows.csv >rows.tsv
"$czero" data show rows.csv --tokenizer bytes --seq-len 32 --rows 9 >out 2>err || fail "a table"
for line in "rows.csv: row 1: label pos, 5 tokens" "  a|b| |c|d" "rows.csv: row 2: label neg, 7 tokens" "rows.csv: row 3: label pos, 32 tokens, 11 cut" \
  "rows       3" "classes    neg: 1 (33.3 %)" "           pos: 2 (66.7 %)" "lengths    5 to 43 tokens, half of them up to 7" \
  "cut        1 of 3 texts was truncated to 32 tokens (--seq-len), 11 tokens are lost" "epoch      44 tokens"; do
  grep -qF -- "$line" out || fail "no line \"$line\""
done
! grep -q $'\033' out || fail "a control character of a row"
# a run says the same once, also if it makes less than a pass, and on several ranks
cat >c.json <<'JSON'
{"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW", "params": {"lr": 0.003}}}
JSON
for launch in "" "launch -n 2 --"; do
  "$czero" $launch train --config c.json --model bert-tiny --tokenizer bytes --task classification --data rows.csv --seq-len 32 --epochs 3 >out 2>err ||
    fail "training"
  [ "$(grep -c 'data: 1 of 3 texts was truncated to 32 tokens (--seq-len)' err)" = 1 ] || fail "training says nothing of the cut row"
done
printf 'text,label\n%s,pos\n%s,neg\n' abcdefgh abcdefgh >both.csv
"$czero" train --config c.json --model bert-tiny --tokenizer bytes --task classification --data both.csv --seq-len 7 --steps 1 >out 2>err || fail "one step"
grep -q 'data: 1 of 2 texts was truncated to 7 tokens (--seq-len)' err || fail "a run of one step says nothing"
"$czero" train --config c.json --model bert-tiny --tokenizer bytes --task classification --data both.csv --seq-len 8 --epochs 2 >out 2>err || fail "short rows"
grep -q 'truncated' err && fail "rows of 8 tokens fit into 8"
"$czero" data show rows.tsv --tokenizer bytes --seq-len 32 --rows 1 --line 3 >out 2>err || fail "--line"
[ "$(grep -c ': row ' out)" = 1 ] && grep -q 'row 3' out || fail "--line is not where rows begin"
"$czero" data show rows.csv --tokenizer bytes --pair-column other --text-column sentence --rows 1 >out 2>err || fail "columns"
grep -q 'row 1: label pos, 7 tokens' out || fail "a pair is not shown"
"$czero" data show rows.csv --tokenizer bytes --json --rows 1 >out.json 2>err || fail "--json"
python3 - <<'PY' || fail "--json differs"
import json
d = json.load(open("out.json"))
assert d["rows"] == 3 and d["classes"] == {"neg": 1, "pos": 2} and d["seq_len"] == 128 and d["rows_cut"] == 0, d
assert d["shown"] == [{"file": "rows.csv", "row": 1, "label": "pos", "tokens": 5, "cut_tokens": 0,
                       "ids": [97, 98, 32, 99, 100], "pieces": ["a", "b", " ", "c", "d"]}], d
assert d["shortest"] == 5 and d["median"] == 7 and d["longest"] == 43 and d["tokens_per_epoch"] == 55, d
PY
printf '%s\n' '{"text": "ab", "labels": ["food", "rain"]}' '{"text": "c", "labels": []}' >sets.jsonl
"$czero" data show sets.jsonl --tokenizer bytes >out 2>err || fail "sets"
grep -qF 'row 1: label food, rain, 2 tokens' out && grep -qF 'row 2: label none, 1 token' out || fail "sets are not shown"
printf 'text,label\nab,1.5\ncd,2\n' >values.csv
"$czero" data show values.csv --tokenizer bytes >out 2>err || fail "values"
grep -qF 'row 1: label 1.5, 2 tokens' out && grep -qF 'labels     values' out || fail "values are not shown"
printf 'Anna B-PER\nruns O\n\nhome O\n' >words.conll
"$czero" data show words.conll --tokenizer bytes --seq-len 6 >out 2>err || fail "words"
grep -qF '  Anna/B-PER runs/O ' out && grep -q 'row 2' out || fail "words are not shown"
printf 'one line\nanother\n' >plain.txt
"$czero" data show plain.txt --tokenizer bytes >out 2>err || fail "plain texts"
grep -qF 'plain.txt: row 1: 8 tokens' out || fail "plain texts are not shown"
refused 2 "--packing is for chats" data show rows.csv --tokenizer bytes --packing
printf '%s\n' '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}' >chat.jsonl
refused 2 "--label-column is for labelled texts" data show chat.jsonl --tokenizer bytes --label-column x
printf '%s\n' '{"text": "abcd"}' >lm.jsonl
"$czero" data show lm.jsonl --tokenizer bytes >out 2>err || fail "rows of text"
grep -q '4 tokens, 3 trained' out || fail "rows of text are not shown as --task sft reads them"
refused 2 "nowhere" data show rows.csv --tokenizer bytes --label-column nowhere
