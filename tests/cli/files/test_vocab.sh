#!/usr/bin/env bash
# Claim: `czero vocab` writes a vocabulary that depends on the texts alone, of characters or pieces,
# from plain and labelled files, says what it covers, and answers bad input with one sentence and
# the right code.
set -uo pipefail
czero=$1/czero
work=$(mktemp -d /tmp/czero-vocab-XXXXXX)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failed=0
complain() { echo "$*" >&2; failed=1; }
vocab() { "$czero" vocab "$@" >out 2>err || complain "exit $?: vocab $*: $(cat err)"; }
lines() { [ "$(wc -l <"$1/vocab.txt")" = "$2" ] || complain "$1: $(wc -l <"$1/vocab.txt") lines, not $2"; }

for i in 1 2 3 4 5; do
  printf 'Playing players play the game, plainly.\nThe PLAYER played; Café %s\n我爱北京 爱\n' $i
done >a.txt
tac a.txt >b.txt

vocab --data a.txt --size 40 -o a
vocab --data b.txt --size 40 -o b
lines a 40
cmp -s a/vocab.txt b/vocab.txt || complain "the order of the texts matters"
[ "$(head -5 a/vocab.txt | tr '\n' ' ')" = "[PAD] [UNK] [CLS] [SEP] [MASK] " ] || complain "specials"
grep -qx play a/vocab.txt || complain "play is no piece"
grep -qx 京 a/vocab.txt || complain "京 is no token"
grep -q É a/vocab.txt && complain "accents stay"
grep -q '"do_lower_case": true' a/tokenizer_config.json || complain "config: $(cat a/tokenizer_config.json)"
grep -q '^coverage *98.333 %' out || complain "coverage: $(cat out)" # 5 digits of 300

# Characters: beginning a word and inside one, by how often they occur; digits occur once.
vocab --data a.txt --size 1000 --kind char -o c
grep -qx '##l' c/vocab.txt || complain "##l is no token"
grep -qxE '(##)?[a-z]{2,}' c/vocab.txt && complain "--kind char has pieces"
grep -qx 3 c/vocab.txt && complain "--min-count 2 keeps what occurs once"
grep -q 'smaller' out || complain "says nothing about fewer tokens than --size"
vocab --data a.txt --size 1000 --kind char --min-count 1 --lowercase off -o d
grep -qx 3 d/vocab.txt || complain "--min-count 1 leaves out what occurs once"
grep -qx P d/vocab.txt || complain "--lowercase off has no capitals"
grep -qx '##é' d/vocab.txt || complain "--lowercase off strips accents"
grep -q '"do_lower_case": false' d/tokenizer_config.json || complain "config of --lowercase off"
vocab --data a.txt --size 12 --kind char -o e
lines e 12
grep -q ' in words that become \[UNK\]' out || complain "what is unknown: $(cat out)"

# Byte pairs: the tokens and merges that the trainer of the tokenizers library (0.23.3) makes of these lines.
printf '%s\n' 'low low low low low lower lower newest newest newest newest newest newest widest widest widest' \
  "aaaa aaaaa 中文中文  aaa" "it's 1234 1234  low" >p.txt
tac p.txt >q.txt
vocab --data p.txt --type bpe --size 290 -o p
grep -q '^tokens *283: 1 special, 256 bytes, 26 pieces' out || complain "bpe: $(cat out)"
grep -q 'smaller' out || complain "bpe says nothing about fewer tokens than --size"
python3 - p/tokenizer.json <<'EOF' || complain "bpe: other merges than the library's"
import json, sys
model = json.load(open(sys.argv[1], encoding="utf-8"))["model"]
want = ("a a, e s, es t, l o, lo w, Ġ low, e w, n ew, Ġ new, Ġnew est, d est, i dest, w idest, Ġ widest, 1 2, 3 4, e r, ¸ Ń, ä ¸Ń, "
        "æ ĸ, Ġ aa, Ġ 12, Ġlow er, ä¸Ń æĸ, Ġ12 34, ä¸Ńæĸ ĩ")
have = ", ".join(" ".join(m) for m in model["merges"])
ids = sorted(model["vocab"].values())
sys.exit(have != want or ids != list(range(283)) or model["vocab"]["<|endoftext|>"] != 0 or model["vocab"]["Ġ12"] != 278)
EOF
vocab --data q.txt --kind bpe --size 290 -o q
cmp -s p/tokenizer.json q/tokenizer.json || complain "bpe: the order of the texts matters"
vocab --data a.txt --type bpe --size 300 -o r
echo '{"train_micro_batch_size_per_gpu": 1}' >ds.json
"$czero" train --config ds.json --model gpt2-tiny --tokenizer r --data a.txt --seq-len 8 \
  --steps 1 --quiet >out 2>err || complain "a vocabulary of byte pairs does not train: $(cat err)"

# Labelled texts, several files, spaces inside texts.
echo '[["a b", 0], ["c d", 1], ["a b", 0], ["c d", 1]]' >l.json
printf 'id,body,label\n1,"x, y",p\n2,"x, y",q\n' >t.csv
vocab --data l.json --strip-spaces --size 30 -o l
grep -qx ab l/vocab.txt || complain "--strip-spaces: $(tr '\n' ' ' <l/vocab.txt)"
vocab --data t.csv a.txt --text-column body --size 60 -o t
grep -qx x t/vocab.txt || complain "the column is not read"

# expect CODE PATTERN -- arguments
expect() {
  local code=$1 pattern=$2
  shift 3
  "$czero" vocab "$@" >out 2>err
  local got=$?
  [ $got = "$code" ] || complain "exit $got instead of $code: vocab $*"
  [ "$(wc -l <err)" = 1 ] || complain "not one sentence: $(cat err)"
  grep -q -- "$pattern" err || complain "\"$pattern\" is not in: $(cat err)"
}
printf ' \n\t\n' >blank.txt
echo '{"other": 1, "label": 2}' >bad.jsonl
expect 2 'contains a tokenizer already' -- --data a.txt --size 40 -o a
expect 2 'less than 6' -- --data a.txt --size 5 -o x
expect 2 'size' -- --data a.txt -o x
expect 2 'not one of' -- --data a.txt --size 9 --type unigram -o x
expect 2 'the 256 bytes and <|endoftext|> are 257' -- --data a.txt --type bpe --size 256 -o x
expect 2 'keeps texts as they are' -- --data a.txt --type bpe --size 300 --lowercase off -o x
expect 2 'nowhere' -- --data nowhere.txt --size 9 -o x
expect 2 'blank\|no word\|no example' -- --data blank.txt --size 9 -o x
expect 2 'plain text has no columns' -- --data a.txt --text-column body --size 9 -o x
expect 2 'nothere' -- --data t.csv --text-column nothere --size 9 -o x
[ -e x ] && complain "a failure leaves a folder"
echo f >file
expect 1 'file' -- --data a.txt --size 60 -o file/x
exit $failed
