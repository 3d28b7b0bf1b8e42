#!/usr/bin/env bash
# Claim: `czero train --task token-classification` learns named entities from CoNLL and JSON lines alike; every ZeRO
# stage, and two ranks at every stage, give the same bytes, of an encoder and of a decoder; figures of entities choose
# the best checkpoint; the export names head and classes; czero eval agrees with the report, in one
# format or another; czero predict gives the entities' places, and padding changes none; a run that is resumed is
# the same run; what is wrong gets a sentence.
. "$(dirname "$0")/../../support/command.sh"

python3 - <<'PY'
import json, random
random.seed(7)
people, places = "Anna Bob Carla David Eve".split(), "Paris Berlin Rome Oslo".split()
def sentence():
    rows = []
    for _ in range(random.randint(2, 9)):
        kind = random.random()
        if kind < .2:
            rows.append((random.choice(people), "B-PER"))
            rows += [("Mc" + random.choice(people), "I-PER")] * (random.random() < .5)
        elif kind < .4:
            rows += [("New", "B-LOC"), (random.choice(places), "I-LOC")] if random.random() < .3 else \
                    [(random.choice(places), "B-LOC")]
        else:
            rows.append((random.choice("the a goes to stays in near with and sees".split()), "O"))
    return rows
for name, n in ("train", 301), ("dev", 83):
    rows = [sentence() for _ in range(n)]
    with open(name + ".conll", "w") as f:
        f.write("-DOCSTART- -X- O\n\n")
        f.writelines("".join(f"{w} X {t}\n" for w, t in row) + "\n" for row in rows)
    with open(name + ".jsonl", "w") as f:
        f.writelines(json.dumps(dict(tokens=[w for w, _ in row], ner_tags=[t for _, t in row])) + "\n" for row in rows)
    open(name + ".txt", "w").writelines(" ".join(w for w, _ in row) + "\n" for row in rows)
PY
for stage in 0 1 2 3; do
  printf '{"train_micro_batch_size_per_gpu": 8, "gradient_clipping": 1.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.002}}, "zero_optimization": {"stage": %s,
    "stage3_param_persistence_threshold": 0}}' $stage >stage$stage.json
done
"$czero" vocab --data train.txt --kind wordpiece --size 120 -o vocab >out 2>err || fail "no vocabulary"

train() { # ranks, stage, model, tokenizer, more
  local ranks=$1 stage=$2 model=$3 tokenizer=$4 launch=()
  shift 4
  [ "$ranks" = 1 ] || launch=(launch -n "$ranks" --)
  "$czero" "${launch[@]}" train --config "stage$stage.json" --model "$model" --tokenizer "$tokenizer" \
    --task token-classification --quiet "$@" >out 2>err
}

# ---- stages and ranks -------------------------------------------------------------------------
for model in bert-tiny gpt2-tiny; do
  tokenizer=vocab
  [ $model = bert-tiny ] || tokenizer=bytes
  for ranks in 1 2; do
    for stage in 0 1 2 3; do
      rm -rf export-$stage
      train $ranks $stage $model $tokenizer --data train.conll --seq-len 40 --steps 6 --export export-$stage ||
        fail "$model, stage $stage, $ranks ranks"
      cmp export-0/model.safetensors export-$stage/model.safetensors ||
        fail "$model: stage $stage on $ranks ranks gives other weights"
    done
  done
done

# ---- learning, the best, eval -----------------------------------------------------------------
train 1 0 bert-tiny vocab --data train.conll --eval-data dev.conll --epochs 3 --export model --save run --best-metric f1 \
  --metrics m.csv || fail "training"
cp out report
train 1 0 bert-tiny vocab --data train.jsonl --eval-data dev.jsonl --epochs 3 --save run-json --best-metric f1 ||
  fail "training from JSON lines"
cmp report out || fail "JSON lines give another report"
awk '/^eval_f1/ { good = $2 > 0.9 } END { exit !good }' report || fail "it learnt little"
[ -d run/best ] || fail "no best checkpoint"
"$czero" eval --model model --data dev.jsonl >out 2>err || fail "eval"
head -n 8 report | cmp - <(head -n 8 out) || fail "eval prints another report"
"$czero" eval --model model --data dev.conll --json --batch 3 >out 2>err || fail "eval --json"
python3 - <<'PY' || fail "config.json, eval's or the metrics' figures"
import csv, json
config, found = json.load(open("model/config.json")), json.load(open("out"))
assert config["architectures"] == ["BertForTokenClassification"], config
assert config["id2label"] == {"0": "B-LOC", "1": "B-PER", "2": "I-LOC", "3": "I-PER", "4": "O"}, config
report = dict(line.split() for line in open("report") if line.startswith("eval_"))
assert abs(found["micro avg"]["f1"] - float(report["eval_f1"])) < 1e-6, found
assert abs(found["accuracy"] - float(report["eval_accuracy"])) < 1e-6, found
assert set(found["types"]) == {"LOC", "PER"}, found
last = [row for row in csv.DictReader(open("m.csv")) if row["split"] == "eval"][-1]
assert abs(float(last["macro_f1"]) - found["macro avg"]["f1"]) < 0.05, last
PY

# ---- predict ----------------------------------------------------------------------------------
"$czero" predict --model model --text "the Anna McBob sees New Rome" >out 2>err || fail "predict"
grep -qE '^0\.[0-9]{4}  PER  4-14  Anna McBob$' out && grep -qE '^0\.[0-9]{4}  LOC  20-28  New Rome$' out ||
  fail "predict --text finds other entities"
"$czero" predict --model model --data dev.conll --json >rows 2>err || fail "predict --json"
"$czero" predict --model model --data dev.txt --json --batch 1 >alone 2>err || fail "predict of lines"
"$czero" predict --model model --data dev.conll >out 2>err || fail "predict of files"
python3 - <<'PY' || fail "predictions differ, or are at other places"
import json
ours = [[line.split("\t") for line in part.splitlines()] for part in open("out").read().split("\n\n")[:-1]]
rows, alone = ([json.loads(line) for line in open(name)] for name in ("rows", "alone"))
assert len(rows) == len(ours) == len(alone) == 83
for row, other, lines in zip(rows, alone, ours):
    assert row["tags"] == other["tags"] == [tag for _, tag, _, _ in lines], (row, other, lines)
    assert row["true"] == [true for _, _, _, true in lines] and "true" not in other
    assert row["words"] == [word for word, _, _, _ in lines]
    for e in row["entities"]:
        assert row["text"][e["start"]:e["end"]] == e["text"] and 0 < e["score"] <= 1, e
PY

# ---- a resumed run ----------------------------------------------------------------------------
train 1 2 bert-tiny vocab --data train.conll --steps 9 --save a --export whole || fail "nine steps"
train 1 2 bert-tiny vocab --data train.conll --steps 5 --save b || fail "five steps"
train 2 1 bert-tiny vocab --data train.conll --steps 5 --save c || fail "five steps of two ranks"
train 1 2 bert-tiny vocab --data train.conll --steps 9 --save b --resume b --export parts || fail "resume"
cmp whole/model.safetensors parts/model.safetensors || fail "a resumed run is another run"
# A tagger keeps its classes; data of others get a new head.
train 1 0 model vocab --data dev.conll --steps 1 --export again || fail "training on"
grep -q '"4": "O"' again/config.json || fail "other classes"

# ---- refusals ---------------------------------------------------------------------------------
printf 'a O\nb\n' >bad.conll
printf 'text,label\na,x\nb,y\n' >classes.csv
train=(train --config stage0.json --tokenizer vocab --steps 1)
refused 2 "--best-metric f1 is for token classification" "${train[@]}" --model bert-tiny --task classification \
  --data classes.csv --eval-data classes.csv --best-metric f1 --save x
refused 2 "--strip-spaces needs --task classification" "${train[@]}" --model bert-tiny --task token-classification \
  --data train.conll --strip-spaces
refused 2 "no head for token classification" "${train[@]}" --model olmo2-tiny --task token-classification --data train.conll
refused 2 "--pair is for classifiers of texts" predict --model model --text a --pair b
refused 2 "--no-matrix is for classifiers of texts" eval --model model --data dev.conll --no-matrix
code=0
"$czero" "${train[@]}" --model bert-tiny --task token-classification --data bad.conll >out 2>err || code=$?
[ $code = 4 ] && grep -q "bad.conll:2: a word without a class" err || fail "a bad file: $code"
echo "words are classified"
