#!/usr/bin/env bash
# Claim: integer labels keep their form in report, config.json, eval and predict; --class-names names them, from commas or a
# file, and is checked; a model with names reads integers as numbers of its classes, of texts and of words alike; a head
# that keeps its weights under other names warns.
. "$(dirname "$0")/../../support/command.sh"

python3 - <<'PY'
import json
rows = [("good fine " * (1 + i % 3), 1) if i % 2 else ("bad poor " * (1 + i % 4), 0) for i in range(24)]
names = ["neg", "pos"]
for name, of in ("int", str), ("named", lambda k: names[k]), ("other", lambda k: "27"[k]), ("three", None):
    of = of or (lambda k: str(k))
    with open(name + ".csv", "w") as f:
        f.write("text,label\n" + "".join(f"{t},{of(k)}\n" for t, k in rows) + ("fine,2\n" if name == "three" else ""))
open("words.jsonl", "w").writelines(json.dumps(dict(tokens=t.split(), ner_tags=[k] * len(t.split()))) + "\n" for t, k in rows)
open("named.jsonl", "w").writelines(json.dumps(dict(tokens=t.split(), ner_tags=[names[k]] * len(t.split()))) + "\n" for t, k in rows)
open("names.txt", "w").write("neg\r\n pos \n")
PY
echo '{"train_micro_batch_size_per_gpu": 4, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}}' >ds.json
"$czero" vocab --data int.csv --type wordpiece --size 60 --min-count 1 -o vocab >out 2>err || fail "no vocabulary"
train() { # EXPORT TASK MODEL DATA MORE…
  local export=$1 task=$2 model=$3 data=$4
  shift 4
  "$czero" train --config ds.json --model "$model" --task "$task" --tokenizer vocab --data "$data" --eval-data "$data" --epochs 8 \
    --export "$export" "$@" >out 2>err
}
ids() { python3 -c 'import json, sys; c = json.load(open(sys.argv[1] + "/config.json")); print(*c["id2label"].values()); assert {v: int(k) for k, v in c["id2label"].items()} == c["label2id"]' "$1"; }

# ---- integers ---------------------------------------------------------------------------------
train int classification bert-tiny int.csv --quiet || fail "integers"
grep -q '^ *1 .*12$' out && ! grep -q LABEL_ out || fail "the report has other names"
[ "$(ids int)" = "0 1" ] || fail "config.json has other names: $(ids int)"
"$czero" eval --model int --data int.csv >out 2>err && grep -q '^ *0 .*12$' out || fail "eval"
"$czero" predict --model int --text "good fine" --json >out 2>err && grep -q '"label": "[01]".*"probabilities": {"0": .*"1": ' out || fail "predict"

# a folder with two classes that have no names, as transformers writes it
cp -r int plain
python3 - <<'PY'
import json
config = json.load(open("int/config.json"))
for key in ("id2label", "label2id"):
    del config[key]
json.dump(config, open("plain/config.json", "w"))
PY
train again classification plain int.csv --quiet || fail "unnamed classes"
[ "$(ids again)" = "0 1" ] && ! grep -q warning err || fail "unnamed classes: $(ids again)"
"$czero" predict --model plain --text "good fine" >out 2>err && grep -q "LABEL_[01]" out || fail "transformers' names"
train again2 classification plain other.csv --quiet --force || fail "other labels"
grep -q 'warning: plain: the head was trained for "LABEL_0" as class 0, which is now called "2"' err || fail "no warning of other names"
train again3 classification int other.csv --quiet || fail "other labels"
grep -q 'warning: int: the head was trained for "0" as class 0, which is now called "2"' err || fail "no warning of other names"
[ "$(ids again3)" = "2 7" ] || fail "2 and 7"

# ---- names ------------------------------------------------------------------------------------
for names in neg,pos " neg , pos" names.txt; do
  rm -rf named
  train named classification bert-tiny int.csv --quiet --class-names "$names" || fail "--class-names '$names'"
  [ "$(ids named)" = "neg pos" ] && grep -q '^ *pos .*12$' out || fail "--class-names '$names': $(ids named)"
  cmp int/model.safetensors named/model.safetensors || fail "names change the weights"
done
train two classification bert-tiny named.csv --quiet --class-names pos,neg || fail "--class-names with names"
[ "$(ids two)" = "pos neg" ] || fail "the order of --class-names"
train words token-classification bert-tiny words.jsonl --quiet --class-names neg,pos || fail "words"
[ "$(ids words)" = "neg pos" ] || fail "words: $(ids words)"
"$czero" predict --model named --text "good fine" >out 2>err && head -1 out | grep -qE "pos|neg" || fail "predict with names"
for pair in "named int.csv named.csv" "words words.jsonl named.jsonl"; do
  set -- $pair
  "$czero" eval --model "$1" --data "$2" >want 2>err || fail "eval $2 by number"
  "$czero" eval --model "$1" --data "$3" >out 2>err || fail "eval $3 by name"
  cmp want out || fail "$1: integers and names give other figures"
done
"$czero" train --config ds.json --model named --data int.csv --epochs 1 --export more >out 2>err || fail "a second run"
grep -q 'data: integers number the classes: 0 is "neg", 1 is "pos"' err && [ "$(ids more)" = "neg pos" ] || fail "a second run: $(ids more)"
train renamed classification int int.csv --class-names neg,pos || fail "new names"
grep -q 'the head was trained for "0" as class 0, which is now called "neg"' err || fail "no word of new names"

# ---- what is wrong ----------------------------------------------------------------------------
bad() { # WORDS NAMES DATA
  refused 2 "$1" train --config ds.json --model bert-tiny --task classification --tokenizer vocab --data "$3" --epochs 1 --class-names "$2"
}
printf 'neg\npos\0\n' >nul.txt
bad 'name 2 contains a NUL' nul.txt int.csv
printf 'neg\n\0pos\n' >nul.txt
bad 'name 2 contains a NUL' nul.txt int.csv
bad 'three.csv:26: the label "2" is not one of the 2 known classes: neg, pos; integers number them from 0 to 1' neg,pos three.csv
bad 'the label "neg" is not one of the 2 known classes: bad, good' bad,good named.csv
bad 'two of the 3 classes are named "neg"' neg,pos,neg int.csv
bad '--class-names nofile: no such file; give names between commas' nofile int.csv
bad '--class-names neg,,pos: name 2 is empty' neg,,pos int.csv
bad '--class-names neg,: name 2 is empty' neg, int.csv
printf 'only\n' >one.txt
bad 'classification needs at least two classes; "only" is one' one.txt int.csv
printf 'n\xe9g\npos\n' >latin.txt
refused 4 'latin.txt:1: byte 0xe9 at offset 1 is not UTF-8' train --config ds.json --model bert-tiny --task classification --tokenizer vocab \
  --data int.csv --epochs 1 --class-names latin.txt
refused 2 '--class-names needs --task classification' train --config ds.json --model gpt2-tiny --tokenizer bytes --data int.csv --seq-len 8 --steps 1 --class-names a,b
train none classification bert-tiny int.csv --class-names neg,pos,mixed || fail "a class without examples"
grep -q 'warning: data: no example has the class "mixed" of --class-names' err || fail "no warning of a class without examples"
