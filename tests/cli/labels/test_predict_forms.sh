#!/usr/bin/env bash
# Claims: predict writes CSV, tabs or JSON lines by the name of -o, or by --format, which wins: CSV reads back to the very texts
# (commas, quotes, line ends) with Python's reader and with czero's, for files, --text and words; a second run may write over
# it, and a table of the user's is kept. True labels are never a mix of the model's classes and the file's numbers.
. "$(dirname "$0")/../../support/command.sh"
cat >texts.jsonl <<'E'
{"id": 7, "text": "a, \"good\" day\nand a\ttab", "label": "pos"}
{"id": 8, "text": "bad\r\nday", "label": "neg"}
{"id": 9, "text": "", "label": "neg"}
E
echo '{"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}}' >ds.json
"$czero" vocab --data texts.jsonl --kind wordpiece --size 60 -o vocab >out 2>err || fail "vocab"
"$czero" train --config ds.json --model bert-tiny --task classification --tokenizer vocab --data texts.jsonl --seq-len 16 --epochs 1 \
  --export model --quiet >out 2>err || fail "train"
predict() { "$czero" predict --model model "$@" >out 2>err || fail "predict $*"; }

for round in 1 2; do predict texts.jsonl --keep id -o p.csv; done
predict texts.jsonl --keep id
cp out p.out
predict texts.jsonl --keep id -o p.tsv
cmp p.out p.tsv || fail "NAME.tsv is not what is printed"
predict texts.jsonl --keep id --json
cp out p.json.out
for name in p.jsonl p.ndjson p.JSON; do
  predict texts.jsonl --keep id -o $name
  cmp p.json.out $name || fail "$name is not JSON lines"
done
predict texts.jsonl --keep id --format csv
cmp out p.csv || fail "--format csv is not NAME.csv"
predict texts.jsonl --keep id --format tsv -o other.csv
cmp p.tsv other.csv || fail "--format does not win"
refused 2 "--json and --format csv" predict --model model texts.jsonl --json --format csv
python3 - <<'E' || fail "CSV does not read back"
import csv, json
rows = [json.loads(line) for line in open("texts.jsonl")]
table = list(csv.reader(open("p.csv", newline="")))
assert table[0] == ["id", "label", "probability", "true", "neg", "pos", "text"], table[0]
assert len(table) == 4, table
for row, cells in zip(rows, table[1:]):
    assert cells[0] == str(row["id"]) and cells[3] == row["label"] and cells[6] == row["text"], (row, cells)
    assert abs(float(cells[4]) + float(cells[5]) - 1) < 1e-5
assert table[1][6] == 'a, "good" day\nand a\ttab'
assert open("p.csv", newline="").read().endswith(",\n")
lines = open("p.tsv").read().splitlines()
assert len(lines) == 4 and lines[1].endswith('\ta, "good" day and a tab'), lines
E
predict p.csv --text-column text --label-column true --fields text,true -o back.csv
predict texts.jsonl --fields text,true -o straight.csv
cmp back.csv straight.csv || fail "czero reads its CSV otherwise"
predict texts.jsonl --fields text -o one.csv
[ "$(tail -n 1 one.csv)" = '""' ] || fail "an empty text alone is a blank line"
predict --text 'x, y' --format csv
[ "$(sed -n 1p out)" = 'label,probability,neg,pos,text' ] && sed -n 2p out | grep -q ',"x, y"$' || fail "CSV of one text: $(cat out)"
printf 'text,label,value\nfine,pos,0.5\n' >mine.csv
refused 4 "mine.csv exists and is not predictions" predict --model model texts.jsonl -o mine.csv

# Words
printf 'Oslo,\tB-X\nis\tO\n\na "b"\tO\n' >w.conll
"$czero" train --config ds.json --model bert-tiny --task token-classification --tokenizer vocab --data w.conll --seq-len 16 --epochs 1 \
  --export words --quiet >out 2>err || fail "train words"
for round in 1 2; do "$czero" predict --model words w.conll -o w.csv >out 2>err || fail "words"; done
python3 - <<'E' || fail "CSV of words"
import csv
table = list(csv.reader(open("w.csv", newline="")))
assert table[0] == ["row", "word", "label", "probability", "true"], table
assert [(r[0], r[1], r[4]) for r in table[1:]] == [("1", "Oslo,", "B-X"), ("1", "is", "O"), ("2", 'a "b"', "O")], table
E
"$czero" predict --model words --text "Oslo is" --format csv >out 2>err || fail "entities"
[ "$(sed -n 1p out)" = score,type,start,end,text ] || fail "CSV of entities"

# Labels 1 to 3 of other classes: all as the file has them. Numbers of classes: all by name.
printf 'text,label\nx,0\ny,1\n' >zero.csv
printf 'text,label\nx,1\ny,2\n' >one_based.csv
predict zero.csv --fields true
[ "$(tr '\n' ' ' <out)" = "true neg pos " ] && [ ! -s err ] || fail "numbers of classes"
predict one_based.csv --fields true
[ "$(tr '\n' ' ' <out)" = "true 1 2 " ] || fail "a mix of labels: $(cat out)"
grep -q 'the label "2" of the data is no class of the model' err || fail "unknown labels are not told"
refused 2 'subtract 1 if yours begin at 1' eval --model model --data one_based.csv
