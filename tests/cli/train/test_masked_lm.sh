#!/usr/bin/env bash
# Claim: `czero train --task masked-lm` teaches an encoder from random weights to guess words of a text;
# a killed and resumed run is the same run; czero eval measures the result; a classifier starts from
# it, saying that its head is new; tokenizers without a mask are refused.
. "$(dirname "$0")/../../support/command.sh"

head -c 60000 "$source_dir/examples/data/fortunes.txt" >text.txt
head -c 6000 text.txt >eval.txt
cat >ds.json <<'JSON'
{"train_micro_batch_size_per_gpu": 8, "gradient_clipping": 1.0,
 "optimizer": {"type": "AdamW", "params": {"lr": 0.003, "weight_decay": 0.01}},
 "zero_optimization": {"stage": 1}}
JSON
"$czero" vocab --data text.txt --kind wordpiece --size 400 -o vocab >out 2>err || fail "no vocabulary"
train=(train --config ds.json --model bert-tiny --task masked-lm --tokenizer vocab --data text.txt --seq-len 32 --quiet)

"$czero" "${train[@]}" --steps 90 --eval-data eval.txt --save whole --export encoder --curve curve.csv >out 2>err || fail "training failed"
python3 - <<'PY'
import csv, json, math
rows = list(csv.DictReader(open("curve.csv")))
vocabulary = sum(1 for _ in open("vocab/vocab.txt"))
first, last = float(rows[0]["loss"]), sum(float(r["loss"]) for r in rows[-10:]) / 10
assert abs(first - math.log(vocabulary)) < 0.3, (first, vocabulary)
assert last < first - 0.35, (first, last)
c = json.load(open("encoder/config.json"))
assert c["architectures"] == ["BertForMaskedLM"] and c["vocab_size"] == vocabulary, c
PY
loss=$(sed -n 's/^eval_loss //p' out)
"$czero" eval --model encoder --data eval.txt --seq-len 32 --json >measured 2>err || fail "eval failed"
python3 -c 'import json, sys; m = json.load(open("measured")); assert abs(m["loss"] - float(sys.argv[1])) < 0.4 and m["tokens"] > 100, (m, sys.argv)' "$loss" ||
  fail "eval differs"

"$czero" "${train[@]}" --steps 40 --save cut >out 2>err || fail "the first part failed"
"$czero" "${train[@]}" --steps 90 --save cut --resume cut --export again >out 2>err || fail "the second part failed"
cmp encoder/model.safetensors again/model.safetensors || fail "weights differ after resuming"
"$czero" launch -n 2 -- "${train[@]}" --set train_micro_batch_size_per_gpu=4 --steps 5 --eval-data eval.txt >out 2>err || fail "two ranks failed"

echo '[["war and peace", "book"], ["salt and soup", "food"], ["a book", "book"], ["bread", "food"]]' >labels.json
"$czero" train --config ds.json --model encoder --task classification --data labels.json --steps 1 >out 2>err || fail "no classifier"
grep -q "classifier.weight" err || fail "no message that the head is new"

for bad in "--tokenizer bytes" "--mask-probability 0"; do
  code=0
  # shellcheck disable=SC2086
  "$czero" "${train[@]}" --steps 1 $bad >out 2>err || code=$?
  [ $code = 2 ] || fail "$bad: exit code $code"
done
