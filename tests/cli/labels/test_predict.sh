#!/usr/bin/env bash
# Claim: czero predict takes files as words, copies columns and members in front with their types, shows the true classes
# that a file has beside the predicted ones, writes pairs, and with --fields exactly what a competition wants, in the order
# of the rows; files without labels or with odd ones are predicted as well.
. "$(dirname "$0")/../../support/command.sh"

python3 - <<'PY'
import json
rows = [("good fine " * (1 + i % 3), "pos") if i % 2 else ("bad poor " * (1 + i % 4), "neg") for i in range(24)]
rows = [(t.strip(), l) for t, l in rows]
open("train.csv", "w").write("text,label\n" + "".join(f"{t},{l}\n" for t, l in rows))
with open("test.jsonl", "w") as f:
    for i, (t, l) in enumerate(rows[:7]):
        row = dict(id=i, sentence1=t, sentence2="a \"quoted\"\tpair", label="01"[l == "pos"], score=i + .5, tags=["x", {"é": None}], big=2**70)
        f.write(json.dumps(row, ensure_ascii=i % 2 == 0) + "\n")
    f.write('{"sentence1": "no\\nmore", "id": null, "sentence2": "b", "score": NaN, "tags": [1,\n 2]}\n')
open("ids.csv", "w").write("id,text,label\n" + "".join(f"0{i},\"{t}\",{l}\n" for i, (t, l) in enumerate(rows[:5])))
open("plain.txt", "w").write("good fine\nbad poor\n")
open("mixed.jsonl", "w").write('{"text": "good", "label": 1}\n{"text": "bad", "label": "x"}\n')
open("values.csv", "w").write("text,label\na,0.5\nb,1.25\n")
open("w.jsonl", "w").writelines(json.dumps(dict(id=f"s{i}", tokens=t.split(), ner_tags=[l] * len(t.split()))) + "\n" for i, (t, l) in enumerate(rows))
open("w.conll", "w").write("good pos\nfine odd\n\nbad neg\n")
PY
echo '{"train_micro_batch_size_per_gpu": 4, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}}' >ds.json
"$czero" vocab --data train.csv --type wordpiece --size 60 --min-count 1 -o vocab >out 2>err || fail "no vocabulary"
"$czero" train --config ds.json --model bert-tiny --task classification --tokenizer vocab --data train.csv --epochs 2 --quiet --export cls >out 2>err || fail "cls"
"$czero" train --config ds.json --model bert-tiny --task token-classification --tokenizer vocab --data w.jsonl --epochs 2 --quiet --export ner >out 2>err || fail "ner"
predict() { "$czero" predict --model cls "$@" >out 2>err || fail "predict $*"; }

# ---- files, and what is copied ----------------------------------------------------------------
predict --data ids.csv
mv out want
predict ids.csv && cmp want out || fail "a positional file gives something else"
head -1 out | grep -qxP 'label\tprobability\ttrue\tneg\tpos\ttext' || fail "the columns: $(head -1 out)"
[ "$(tail -n +2 out | cut -f3 | paste -sd ' ')" = "neg pos neg pos neg" ] || fail "true labels: $(cut -f3 out)"
predict ids.csv plain.txt && [ "$(wc -l <out)" = 8 ] && [ -z "$(tail -1 out | cut -f3)" ] || fail "two files"
predict plain.txt && head -1 out | grep -qxP 'label\tprobability\tneg\tpos\ttext' || fail "a file without labels"
predict --keep id,text ids.csv
head -1 out | grep -qxP 'id\ttext\tlabel\tprobability\ttrue\tneg\tpos' || fail "--keep: $(head -1 out)"
[ "$(cut -f1 out | paste -sd ' ')" = "id 00 01 02 03 04" ] || fail "--keep: the values"
predict test.jsonl --json --keep id,score,tags,big
python3 - <<'PY' || fail "--keep --json"
import json
rows, want = [json.loads(l) for l in open("out")], []
assert [r["id"] for r in rows] == [0, 1, 2, 3, 4, 5, 6, None]
assert list(rows[0]) == ["id", "score", "tags", "big", "label", "probability", "true", "probabilities", "text", "pair"], list(rows[0])
assert rows[1]["score"] == 1.5 and rows[1]["tags"] == ["x", {"é": None}] and rows[1]["big"] == 2**70
assert rows[7]["score"] is None and rows[7]["tags"] == [1, 2] and rows[7]["true"] is None and rows[7]["big"] is None
assert [r["true"] for r in rows[:4]] == ["neg", "pos", "neg", "pos"], rows
assert rows[0]["pair"] == 'a "quoted"\tpair' and rows[7]["text"] == "no\nmore"
PY
predict test.jsonl --keep tags,id,sentence2
[ "$(sed -n 3p out | cut -f1-3)" = "$(printf '["x", {"é": null}]\t1\ta "quoted" pair')" ] || fail "cells of JSON: $(sed -n 3p out)"
tail -1 out | grep -qP '^\[1,  2\]\t\t' || fail "null is empty: $(tail -1 out)"
head -1 out | grep -qP '\ttext\tpair$' || fail "no pair"

# What Python alone calls a number is null, inside of values as well; strings keep it; a NUL has no cell.
cat >odd.jsonl <<'ROWS'
{"text": "good", "v": {"a": [NaN, -Infinity, 1], "NaN": "Infinity \" NaN", "b": Infinity}, "s": "a\u0000b"}
{"text": "bad", "v": Infinity, "s": "NaN"}
ROWS
predict odd.jsonl --json --fields v,s
printf '%s\n' '{"v": {"a": [null, null, 1], "NaN": "Infinity \" NaN", "b": null}, "s": "a\u0000b"}' '{"v": null, "s": "NaN"}' >want
cmp want out || fail "nested NaN: $(cat out)"
predict odd.jsonl --fields s,v && [ "$(sed -n 2p out | cut -f1)" = '"a\u0000b"' ] && [ "$(sed -n 3p out | cut -f1)" = NaN ] || fail "cells: $(cat out)"

# Several labels per text: true ones of each row.
printf '{"text": "good", "label": ["a", "b"]}\n{"text": "bad", "label": ["c"]}\n{"text": "x", "label": []}\n' >sets.jsonl
"$czero" train --config ds.json --model bert-tiny --task classification --tokenizer vocab --data sets.jsonl --steps 1 --quiet --export sets >out 2>err || fail "sets"
"$czero" predict --model sets sets.jsonl --json --fields true >out 2>err || fail "sets: predict"
[ "$(paste -sd ' ' out)" = '{"true": ["a", "b"]} {"true": ["c"]} {"true": []}' ] || fail "true sets: $(cat out)"

# A link and a device are written through.
predict plain.txt && cp out old && ln -s old link
predict ids.csv -o link && [ -L link ] && [ "$(wc -l <old)" = 6 ] || fail "-o of a link"
predict ids.csv -o /dev/stdout && [ "$(wc -l <out)" = 6 ] || fail "-o of a device"

# ---- exactly these fields ---------------------------------------------------------------------
predict test.jsonl --json --fields id,label -o sub.jsonl
head -2 sub.jsonl | tail -1 | grep -qxE '\{"id": 1, "label": "(neg|pos)"\}' || fail "--fields: $(head -2 sub.jsonl)"
predict ids.csv --fields label,id,true,probability,text
head -1 out | grep -qxP 'label\tid\ttrue\tprobability\ttext' && sed -n 2p out | grep -qP '^(neg|pos)\t00\tneg\t[01]\.\d+\tbad poor$' || fail "--fields as a table: $(head -2 out)"
predict ids.csv --fields probabilities --json && head -1 out | grep -qE '^\{"probabilities": \{"neg": [0-9.e-]+, "pos": [0-9.e-]+\}\}$' || fail "--fields probabilities"
"$czero" predict --model cls --text "good" --json --fields label >out 2>err && grep -qE '^\{"label": "(neg|pos)"\}$' out || fail "--text with --fields"

# ---- odd labels -------------------------------------------------------------------------------
predict mixed.jsonl && grep -q 'warning: the labels of the data are left out: mixed.jsonl:2' err && head -1 out | grep -qxP 'label\tprobability\tneg\tpos\ttext' || fail "mixed labels"
predict values.csv && [ "$(cut -f3 out | paste -sd ' ')" = "true 0.5 1.25" ] || fail "values: $(cut -f3 out)"
predict --data - <plain.txt && [ "$(wc -l <out)" = 3 ] || fail "standard input"
predict --label-column id ids.csv && [ "$(sed -n 3p out | cut -f3)" = 01 ] || fail "--label-column"

# ---- words ------------------------------------------------------------------------------------
"$czero" predict --model ner w.conll >out 2>err || fail "w.conll"
[ "$(cut -f1,4 out | paste -sd ' ')" = "$(printf 'good\tpos fine\todd  bad\tneg ')" ] || fail "true classes of words: $(cut -f1,4 out | paste -sd ' ')"
"$czero" predict --model ner w.jsonl --json --keep id >out 2>err && head -1 out | grep -q '^{"id": "s0", "entities": .*"true": \["neg", "neg"\]' || fail "words as JSON: $(head -1 out)"
"$czero" predict --model ner plain.txt >out 2>err && head -1 out | grep -qP '^good\t(neg|pos)\t[01]\.\d+$' || fail "plain text: $(head -1 out)"

# ---- what is wrong ----------------------------------------------------------------------------
refused 2 'ids.csv:1: no column "nr" to keep; found: id, text, label' predict --model cls ids.csv --keep nr
refused 2 'test.jsonl: no row has "nr", which is to be kept' predict --model cls test.jsonl --fields nr,label
refused 2 'plain.txt: no row has "id", which is to be kept' predict --model cls plain.txt --keep id
refused 2 '--keep label: predictions have a column of this name; the label of the file is written as "true"' predict --model cls ids.csv --keep label
refused 2 '--keep id,id: "id" stands there twice' predict --model cls ids.csv --keep id,id
refused 2 '--keep id,: name 2 is empty' predict --model cls ids.csv --keep id,
many=$(seq -s, 33) && most=$(seq -s, 32)
refused 2 '--keep: more than 32 names' predict --model cls ids.csv --keep "$many"
refused 2 '--fields: more than 32 names' predict --model cls ids.csv --fields "$many"
refused 2 '--fields: more than 32 names' predict --model cls --text x --json --fields "$(seq -s, 5000)"
refused 2 'no column "1" to keep' predict --model cls ids.csv --keep "$most"
for name in entities words tags true probabilities text; do
  refused 2 "--keep $name: predictions have a member of this name" predict --model ner w.jsonl --json --keep "id,$name"
done
refused 2 '--keep and --fields: list all columns in --fields' predict --model cls ids.csv --keep id --fields label
refused 2 '--text or a FILE is missing' predict --model cls
refused 2 '--text and files: give one of the two' predict --model cls ids.csv --text x
refused 2 '--keep needs a FILE' predict --model cls --text x --keep id
refused 2 '--fields true: "true" needs a file' predict --model cls --text x --json --fields true
refused 2 '--keep: a line is a word; members of texts need --json' predict --model ner w.jsonl --keep id
refused 2 '--fields is for classifiers of texts' predict --model ner w.jsonl --fields id
refused 2 'did you mean --keep?' predict --model cls ids.csv --id-column id
