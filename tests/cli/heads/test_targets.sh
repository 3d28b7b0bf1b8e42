#!/usr/bin/env bash
# Claim: labels with fractions train a regression, lists a multi-label classifier: every ZeRO stage, and two ranks at
# every stage, give the same bytes; the export names the problem; figures choose the best checkpoint; czero eval
# agrees with the report, from JSON or a table, by names or zeros and ones; czero predict prints values, or the classes above a
# threshold; what is wrong gets a sentence.
. "$(dirname "$0")/../../support/command.sh"

python3 - <<'PY'
import json, random
random.seed(3)
grades, filler = "bad poor okay fine good great".split(), "the a it was so we saw".split()
topics = {"sport": "ball goal", "food": "soup bread", "rain": "cloud wind"}
for name, n in ("train", 300), ("dev", 81):
    files = {kind: open(f"{kind}-{name}.{ending}", "w") for kind, ending in
             dict(value="jsonl", table="csv", set="jsonl", hot="jsonl").items()}
    files["table"].write("text,label\n")
    for _ in range(n):
        words, grade = random.choices(filler, k=random.randint(1, 6)), random.choice(grades)
        text, value = " ".join(words + [grade]), grades.index(grade) / 2 - 0.25
        files["value"].write(json.dumps(dict(text=text, label=value)) + "\n")
        files["table"].write(f"{text},{value}\n")
        chosen = [t for t in topics if random.random() < .4]
        words += [random.choice(topics[t].split()) for t in chosen]
        random.shuffle(words)
        files["set"].write(json.dumps(dict(text=" ".join(words), labels=chosen)) + "\n")
        files["hot"].write(json.dumps(dict(text=" ".join(words), labels=[int(t in chosen) for t in sorted(topics)])) + "\n")
PY
for stage in 0 1 2 3; do
  printf '{"train_micro_batch_size_per_gpu": 8, "gradient_clipping": 1.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.0005}}, "zero_optimization": {"stage": %s,
    "stage3_param_persistence_threshold": 0}}' $stage >stage$stage.json
done
python3 -c 'import json; [print(json.loads(l)["text"]) for f in ("value-train.jsonl", "set-train.jsonl") for l in open(f)]' >corpus.txt
"$czero" vocab --data corpus.txt --kind wordpiece --size 120 -o vocab >out 2>err || fail "no vocabulary"

train() { # ranks, stage, model, tokenizer, more
  local ranks=$1 stage=$2 model=$3 tokenizer=$4 launch=()
  shift 4
  [ "$ranks" = 1 ] || launch=(launch -n "$ranks" --)
  "$czero" "${launch[@]}" train --config "stage$stage.json" --model "$model" --tokenizer "$tokenizer" \
    --task classification --quiet "$@" >out 2>err
}
for data in value-train.jsonl set-train.jsonl; do
  for model in bert-tiny gpt2-tiny; do
    tokenizer=vocab
    [ $model = bert-tiny ] || tokenizer=bytes
    for ranks in 1 2; do
      for stage in 0 1 2 3; do
        rm -rf export-$stage
        train $ranks $stage $model $tokenizer --data $data --seq-len 40 --steps 5 --export export-$stage ||
          fail "$data, $model, stage $stage, $ranks ranks"
        cmp export-0/model.safetensors export-$stage/model.safetensors ||
          fail "$data, $model: stage $stage on $ranks ranks gives other weights"
      done
    done
  done
done

# ---- values -----------------------------------------------------------------------------------
train 1 0 bert-tiny vocab --data value-train.jsonl --eval-data value-dev.jsonl --epochs 4 --export value --save run \
  --best-metric spearman || fail "regression"
[ -d run/best ] || fail "no best checkpoint"
head -n 5 out >report
grep -qE '^pearson   0\.[789]' report || fail "it learnt little"
train 2 2 bert-tiny vocab --data table-train.csv --eval-data table-dev.csv --epochs 1 || fail "a table, two ranks"
grep -q '^spearman ' out || fail "no report of two ranks"
"$czero" eval --model value --data table-dev.csv --batch 8 >out 2>err || fail "eval"
head -n 5 out | cmp report - || fail "eval prints other figures"
"$czero" predict --model value --data value-dev.jsonl >values 2>err || fail "predict"
"$czero" predict --model value --text "it was great" --json >out 2>err || fail "predict --text"
python3 - <<'PY' || fail "values"
import json
config = json.load(open("value/config.json"))
assert config["problem_type"] == "regression" and config["id2label"] == {"0": "LABEL_0"}, config
assert config["architectures"] == ["BertForSequenceClassification"], config
ours = [float(line.split("\t")[0]) for line in open("values").read().splitlines()[1:]]
want = [json.loads(line)["label"] for line in open("value-dev.jsonl")]
mse = sum((a - b) ** 2 for a, b in zip(ours, want)) / len(want)
assert abs(mse - float(open("report").read().split()[1])) < 1e-5, mse
assert abs(json.load(open("out"))["value"]) < 4
PY
# A regression takes integers, too; a model of classes starts a new head for values.
printf 'text,label\na,1\nb,2\n' >whole.csv
train 1 0 value vocab --data whole.csv --steps 1 --export again || fail "integers for a regression"
grep -q '"regression"' again/config.json || fail "another problem"

# ---- sets -------------------------------------------------------------------------------------
train 1 0 bert-tiny vocab --data set-train.jsonl --eval-data set-dev.jsonl --epochs 5 --export set --save run-set \
  --best-metric f1 || fail "multi-label"
cp out report
awk '/^eval_f1/ { good = $2 > 0.8 } END { exit !good }' report || fail "it learnt little"
train 1 0 bert-tiny vocab --data hot-train.jsonl --eval-data hot-dev.jsonl --epochs 5 --save run-hot --best-metric f1 ||
  fail "zeros and ones"
cmp <(grep ^eval report) <(grep ^eval out) || fail "zeros and ones give another model"
"$czero" eval --model set --data hot-dev.jsonl --batch 8 >out 2>err || fail "eval of sets"
head -n 9 out | cmp <(head -n 9 report) - || fail "eval prints another report"
"$czero" predict --model set --data set-dev.jsonl --json >sets 2>err || fail "predict"
"$czero" predict --model set --data set-dev.jsonl --json --threshold 0.1 >more 2>err || fail "predict --threshold"
python3 - <<'PY' || fail "sets"
import json
config = json.load(open("set/config.json"))
assert config["problem_type"] == "multi_label_classification", config
assert config["id2label"] == {"0": "food", "1": "rain", "2": "sport"}, config
for a, b in zip(open("sets"), open("more"), strict=True):
    a, b = json.loads(a), json.loads(b)
    assert a["labels"] == [k for k, p in a["probabilities"].items() if p >= 0.5], a
    assert b["labels"] == [k for k, p in a["probabilities"].items() if p >= 0.1], b
PY
refused 2 "--best-metric accuracy is for classes; the labels of this run are values" train --config stage0.json --model bert-tiny \
  --tokenizer vocab --task classification --data value-train.jsonl --eval-data value-dev.jsonl --steps 1 --save x \
  --best-metric accuracy
refused 2 "--best-metric mse is for values" train --config stage0.json --model bert-tiny --tokenizer vocab --task classification \
  --data set-train.jsonl --eval-data set-dev.jsonl --steps 1 --save x --best-metric mse
refused 2 "--threshold is for models of several labels" predict --model value --text a --threshold 0.3
refused 2 "--threshold 2" predict --model set --text a --threshold 2
refused 2 "--no-matrix is for models of one class per text" eval --model set --data set-dev.jsonl --no-matrix
printf 'text,label\na,good\nb,1\n' >words.csv
refused 2 "words.csv:2: the label \"good\" is no number" eval --model value --data words.csv
echo "values and sets are learnt"
