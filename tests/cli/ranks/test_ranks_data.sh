#!/usr/bin/env bash
# Claim: ranks whose files have the same names and other contents are refused before the first step, with the rank and
# what differs: rows, classes, order, chats, data of evaluations, tokenizers, options; equal copies train.
. "$(dirname "$0")/../../support/command.sh"
printf '{"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}}' >ds.json
printf '%s' '{% for m in messages %}{{ m.role }}: {% if m.role == "assistant" %}{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}|{% endfor %}' >c.jinja
for i in {1..40}; do echo "row $i of a text to train on"; done >t.txt
for i in {1..12}; do
  printf '{"messages":[{"role":"user","content":"q%d"},{"role":"assistant","content":"a%d"}]}\n' "$i" "$i"
done >c.jsonl
printf 'text,label\n' >l.csv
for i in {1..12}; do echo "words $i,$((i % 2 ? 1 : 0))x"; done >>l.csv
cat >rank.sh <<'SH'
#!/bin/sh
[ "$CZERO_RANK" = 1 ] && cd other
exec "$CZERO" "$@"
SH
chmod +x rank.sh
export CZERO=$czero
differs() { # WORDS FILE SED-SCRIPT ARGUMENTS…: rank 1's copy of the file goes through sed
  local words=$1 file=$2 script=$3
  shift 3
  rm -rf other
  mkdir other
  cp ds.json c.jinja ./*.txt ./*.jsonl ./*.csv other/
  sed -i "$script" "other/$file"
  refused 2 "$words" launch -n 2 --bind none ./rank.sh train --config ds.json --steps 2 "$@"
  grep -q 'ranks differ in data and options; rank 1 has' err || fail "no rank is named"
  if grep -q '^step ' err; then fail "noticed after a step"; fi
}
text=(--model gpt2-tiny --tokenizer bytes --seq-len 16 --data t.txt)
chat=(--model llama-tiny --task sft --tokenizer bytes --seq-len 64 --chat-template c.jinja --data c.jsonl)
"$czero" vocab --data t.txt --kind wordpiece --size 120 -o vocab >out 2>err || fail "no vocabulary"
class=(--model bert-tiny --task classification --tokenizer "$work/vocab" --seq-len 16 --data l.csv)
differs 'tokens of --data with the hash' t.txt 's/row 7/row 8/' "${text[@]}"
differs 'tokens of --data"' t.txt '$d' "${text[@]}"
cp t.txt e.txt
differs 'tokens of --eval-data with the hash' e.txt '3s/text/Text/' "${text[@]}" --eval-data e.txt
differs '11 rows of --data, 11 of them trained" where rank 0 has "12 rows' c.jsonl '5d' "${chat[@]}"
differs 'rows of --data with the hash' c.jsonl '5s/a5/b5/' "${chat[@]}"
differs '2 classes: 0x 2x" where rank 0 has "2 classes: 0x 1x' l.csv 's/,1x/,2x/' "${class[@]}"
differs 'rows of --data with the hash' l.csv '2{h;d};3{G}' "${class[@]}"
rm -rf other
mkdir other
cp ds.json t.txt other/
"$czero" launch -n 2 --bind none ./rank.sh train --config ds.json --steps 2 "${text[@]}" >out 2>err ||
  fail "equal copies do not train"
grep -q '^step 2/2 ' err || fail "steps are not shown, so that none can be missed above"
printf '#!/bin/sh\nexec "$CZERO" "$@" --seed $CZERO_RANK\n' >rank.sh
refused 2 'rank 1 has "seed 1' launch -n 2 --bind none ./rank.sh train --config ds.json --quiet --steps 2 "${text[@]}"

# What all ranks would say of the same inputs, one says, without its number.
sed 's/$/,x/; 1s/,x$/,extra/' l.csv >extra.csv
"$czero" launch -n 3 --bind none train --config ds.json --quiet --steps 1 "${class[@]}" --data extra.csv >out 2>err || fail "three ranks failed"
[ "$(grep -c 'extra (extra.csv:1)' err)" = 1 ] || fail "not one line about a column"
! grep -q '\[rank' err || fail "a rank's number in front of what all say"
