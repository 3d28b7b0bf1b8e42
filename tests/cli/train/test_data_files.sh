#!/usr/bin/env bash
# Claim: czero train reads compressed text, JSON lines and folders as data of a language model, and trains
# on the same tokens as on the text; czero eval and classification read compressed files, too; what is no
# text is refused by what it is (exit code 2), damaged data with exit code 4; labels that are numbers with
# fractions get a warning.
. "$(dirname "$0")/../../support/command.sh"

head -c 20000 "$source_dir/examples/data/fortunes.txt" >text.txt
cat >ds.json <<'JSON'
{"train_micro_batch_size_per_gpu": 4, "optimizer": {"type": "AdamW", "params": {"lr": 0.003}}}
JSON
train=(train --config ds.json --model gpt2-tiny --seq-len 32 --steps 3 --quiet)

mkdir -p folder/.cache
head -c 9000 text.txt | gzip >folder/a.txt.gz
tail -c +9001 text.txt >folder/b.txt
echo hidden >folder/.cache/c.txt
python3 - <<'PY'
import gzip, json
text = open("text.txt", "rb").read().decode("utf-8", "replace")
docs = [text[i:i + 700] for i in range(0, len(text), 700)]
open("docs.txt", "w").write("".join(d + "\n" for d in docs))
with gzip.open("docs.jsonl.gz", "wt") as f:
    for i, d in enumerate(docs):
        f.write(json.dumps({"id": i, "text": d}) + "\n")
with open("chat.jsonl", "w") as f:
    f.write('{"messages": [{"role": "user", "content": "hello"}]}\n')
PY
gzip -k text.txt
for data in text.txt text.txt.gz folder docs.txt docs.jsonl.gz; do
  "$czero" "${train[@]}" --data "$data" --curve "${data//\//-}.csv" >out 2>err || fail "$data: training failed"
done
cmp text.txt.csv text.txt.gz.csv || fail "gzip: other tokens"
cmp text.txt.csv folder.csv || fail "folder: other tokens"
cmp docs.txt.csv docs.jsonl.gz.csv || fail "rows: other tokens" # bytes: a line feed ends a document
"$czero" "${train[@]}" --data text.txt --export model >out 2>err || fail "no export"
"$czero" eval --model model --data docs.jsonl.gz --seq-len 32 --tokenizer bytes >out 2>err || fail "eval failed"

head -c 4000 text.txt.gz >cut.txt.gz
refused 4 "cut.txt.gz: truncated" "${train[@]}" --data cut.txt.gz
refused 2 "is a safetensors file" "${train[@]}" --data model/model.safetensors
refused 2 'chat.jsonl:1: no member "text"; there is messages' "${train[@]}" --data chat.jsonl
refused 2 "chat.jsonl:1:" "${train[@]}" --data text.txt --eval-data chat.jsonl
iconv -f UTF-8 -t UTF-16 <docs.txt >wide.txt
refused 2 "wide.txt: is text in utf-16" "${train[@]}" --data wide.txt
mkdir empty
refused 2 "empty: the folder has no file that ends in .txt" "${train[@]}" --data empty

classify=(train --config ds.json --model bert-tiny --task classification --tokenizer vocab --steps 1 --seq-len 16)
printf 'text,label\ngood,1.5\nbad,2.5\nfine,1.5\npoor,3\n' | gzip >rated.csv.gz
"$czero" vocab --data text.txt --kind wordpiece --size 300 -o vocab >out 2>err || fail "no vocabulary"
"$czero" "${classify[@]}" --data rated.csv.gz >out 2>err || fail "classification failed"
grep -q "labels are numbers with fractions: values are learnt" err || fail "no word about values"
printf 'text,label\ngood,1\nbad,2\n' >classes.csv
"$czero" "${classify[@]}" --data classes.csv >out 2>err || fail "classification failed"
! grep -q "values are learnt" err || fail "integers are values"
