#!/usr/bin/env bash
# Claim: `czero train --task classification` learns from JSON lists, JSON lines and tables alike, in
# every stage and precision, wherever states rest, and over ranks; every example is counted once, also when nothing divides
# anything; the classes' names live in the exported model, which czero eval and czero predict use
# alone; the best checkpoint is kept and exported, early stopping stops; a run that is killed and
# resumed is the same run; what is wrong gets a sentence and the right exit code.
. "$(dirname "$0")/../../support/command.sh"

expect() { # CODE TEXT ARGUMENTS…
  local want=$1 text=$2 code=0
  shift 2
  "$czero" "$@" >out 2>err || code=$?
  [ "$code" = "$want" ] && grep -qF -- "$text" err out || fail "exit code $code, wanted $want with '$text': $*"
}

# ---- data: three classes that a few words tell apart, in several formats -------------------------
python3 - <<'PY'
import csv, json, random
random.seed(5)
words = {"sport": "ball goal team race match".split(), "food": "soup bread apple rice salt".split(),
         "weather, etc.": "rain cloud wind sun \"storm\"".split()}
filler = "the a of and to in is it on at my our very".split()
def text(label):
    n = random.randint(3, 24)
    t = [random.choice(filler) for _ in range(n)]
    for _ in range(max(1, n // 4)):
        t[random.randrange(n)] = random.choice(words[label])
    return " ".join(t)
rows = [(text(l), l) for l in (random.choice(list(words)) for _ in range(413))]
train, dev = rows[:350], rows[350:]
json.dump(train, open("train.json", "w"))
json.dump(dev, open("dev.json", "w"))
with open("train.jsonl", "w") as f:
    f.writelines(json.dumps({"id": i, "text": t, "label": l}) + "\n" for i, (t, l) in enumerate(train))
for name, part in ("train", train), ("dev", dev):
    with open(name + ".csv", "w", newline="") as f:
        w = csv.writer(f)
        w.writerow(["id", "what it says", "kind"])
        w.writerows((i, t, l) for i, (t, l) in enumerate(part))
with open("train.tsv", "w") as f:
    f.write("label\tsentence\n" + "".join(f"{l}\t{t}\n" for t, l in train))
open("lines.txt", "w").writelines(t + "\n" for t, _ in dev)
open("corpus.txt", "w").writelines(t + "\n" for t, _ in rows)
PY
cat >ds.json <<'JSON'
{"train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 2, "gradient_clipping": 1.0,
 "optimizer": {"type": "AdamW", "params": {"lr": 0.002, "weight_decay": 0.01}},
 "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 5, "total_num_steps": "auto",
               "warmup_max_lr": 0.002}},
 "zero_optimization": {"stage": 0}}
JSON
"$czero" vocab --data corpus.txt --kind wordpiece --size 200 -o vocab >out 2>err || fail "no vocabulary"
base=(train --config ds.json --model bert-tiny --task classification --tokenizer vocab --quiet)
train=("${base[@]}" --eval-data dev.json)
accuracy() { sed -n 's/^eval_accuracy //p' "$1"; }
above() { awk -v a="$1" -v b="$2" 'BEGIN {exit !(a > b)}' || fail "$1 is not above $2"; }

# ---- one format is as good as another ------------------------------------------------------------
"$czero" "${train[@]}" --data train.json --epochs 4 --export model --metrics m.csv >out 2>err || fail "training failed"
above "$(accuracy out)" 0.9
cp out from-json
"$czero" "${train[@]}" --data train.json --epochs 1 >once 2>err || fail "one epoch failed"
"$czero" "${train[@]}" --data train.jsonl --epochs 1 >from-jsonl 2>err || fail "JSON lines failed"
"$czero" "${base[@]}" --data train.csv --eval-data dev.csv --text-column "what it says" --label-column kind \
  --epochs 1 >from-csv 2>err || fail "a CSV failed"
"$czero" "${train[@]}" --data train.tsv --epochs 1 >from-tsv 2>err || fail "a table failed"
cmp once from-jsonl && cmp once from-tsv && cmp once from-csv || fail "the same texts, other results"
python3 - <<'PY'
import csv, json
c = json.load(open("model/config.json"))
assert c["architectures"] == ["BertForSequenceClassification"], c["architectures"]
assert c["id2label"] == {"0": "food", "1": "sport", "2": "weather, etc."}, c["id2label"]
assert c["label2id"]["sport"] == 1
rows = list(csv.DictReader(open("m.csv")))
steps = -(-350 // 16)
assert [int(r["step"]) for r in rows if r["split"] == "train"] == list(range(1, 4 * steps + 1))
evals = [r for r in rows if r["split"] == "eval"]
assert [int(r["step"]) for r in evals] == [steps * k for k in (1, 2, 3, 4)]
assert abs(float(evals[-1]["epoch"]) - 4) < 1e-9 and 0 < float(evals[-1]["accuracy"]) <= 1
assert float(rows[0]["loss"]) > float(evals[-1]["loss"])
PY
grep -qE 'weather, etc\. +[01]\.[0-9]{4} +[01]\.[0-9]{4} +[01]\.[0-9]{4} +[0-9]+' from-json || fail "no row of a class"
grep -qE '^ *accuracy +[01]\.[0-9]{4} +63$' from-json || fail "63 examples are 63 examples"

# ---- eval and predict need nothing but the exported folder ---------------------------------------
"$czero" eval --model model --data dev.json --no-matrix --confusion matrix.svg >out 2>err || fail "eval failed"
grep -q '^<svg ' matrix.svg && grep -q '^</svg>$' matrix.svg || fail "no picture of the matrix"
python3 - <<'PY' || fail "the picture has other counts than the report"
import json, subprocess, sys, xml.dom.minidom
cells = [e for e in xml.dom.minidom.parse("matrix.svg").getElementsByTagName("text") if "count" in e.getAttribute("class")]
counts = [int(e.firstChild.data) for e in cells]
n = int(len(counts) ** 0.5)
assert n * n == len(counts) and sum(counts) == len(json.load(open("dev.json"))), counts
PY
[ "$(awk '$1 == "accuracy" {print $2}' out)" = "$(awk '$1 == "accuracy" {print $2}' from-json)" ] ||
  fail "eval differs from training's own"
"$czero" eval --model model --data dev.json --json >eval.json 2>err || fail "eval --json failed"
"$czero" predict --model model --data lines.txt -o labels.tsv 2>err || fail "predict failed"
"$czero" predict --model model --data - --json <lines.txt >labels.jsonl 2>err || fail "predict - failed"
python3 - <<'PY'
import json
dev = json.load(open("dev.json"))
table = [line.rstrip("\n").split("\t") for line in open("labels.tsv")]
assert table[0] == ["label", "probability", "food", "sport", "weather, etc.", "text"]
lines = [json.loads(line) for line in open("labels.jsonl")]
assert len(table) == 64 and len(lines) == 63
hits = 0
for (text, label), row, obj in zip(dev, table[1:], lines):
    assert row[5] == text == obj["text"] and row[0] == obj["label"]
    assert abs(sum(map(float, row[2:5])) - 1) < 1e-5 and float(row[1]) == max(map(float, row[2:5]))
    assert abs(obj["probabilities"][row[0]] - float(row[1])) < 1e-6
    hits += row[0] == label
figures = json.load(open("eval.json"))
assert figures["examples"] == 63 and abs(figures["accuracy"] - hits / 63) < 1e-9
assert sum(map(sum, figures["confusion"])) == 63
PY
cat lines.txt | "$czero" predict --model model --data - --json | cmp - labels.jsonl || fail "a pipe is no file"
"$czero" predict --model model --text "soup and bread" >out 2>err || fail "predict --text failed"
[ "$(head -n 1 out | cut -d' ' -f3-)" = food ] || fail "soup is food"

# ---- columns by their names, pairs, and what a row is cut to ----------------------------------------
predict() { "$czero" predict --model model --json "$@" | grep -oE '"[^"]+": [01]\.[0-9]{4}'; } # rows of other lengths round otherwise
echo '{"a": "s o u p", "b": "my goal"}' >one.jsonl
predict --text soup >one
predict --text soup --pair mygoal >pair
cmp -s one pair && fail "a second text changes nothing"
predict --data one.jsonl --text-column a --strip-spaces | cmp - one || fail "--strip-spaces keeps them"
predict --data one.jsonl --text-column a --pair-column b --strip-spaces | cmp - pair || fail "--pair-column is not --pair"
predict --text "soup my goal" --seq-len 3 | cmp - one || fail "a row of 3 tokens holds one word"
predict --data lines.txt --batch 1 | cmp - <(predict --data lines.txt --batch 63) || fail "batches change the classes"
expect 2 '"c"' predict --model model --data one.jsonl --text-column a --pair-column c
"$czero" eval --model model --data dev.csv --text-column "what it says" --label-column kind --digits 6 >out 2>err ||
  fail "eval of columns failed"
grep -qE '^ *accuracy +[01]\.[0-9]{6} +63$' out || fail "--digits 6 does not print six"

# ---- the same run over ranks and stages; every example once --------------------------------------
for cell in "2 0 1" "2 1 1" "2 2 1" "2 3 1" "2 1 4" "3 2 4"; do
  read -r ranks stage epochs <<<"$cell"
  out=out-$ranks-$stage
  [ $epochs = 1 ] || out+=-$epochs
  "$czero" launch -n "$ranks" -- "${train[@]}" --data train.json --epochs $epochs \
    --set zero_optimization.stage=$stage >$out 2>err || fail "$ranks ranks, stage $stage failed"
  grep -qE '^ *accuracy +[01]\.[0-9]{4} +63$' $out || fail "$ranks ranks, stage $stage: not 63 examples"
  [ $epochs = 1 ] || above "$(accuracy $out)" 0.9
done
cmp out-2-0 out-2-1 && cmp out-2-2 out-2-3 || fail "stages differ"
for precision in bf16 fp16; do
  "$czero" "${train[@]}" --data train.json --epochs 4 --set $precision.enabled=true >out 2>err || fail "$precision failed"
  above "$(accuracy out)" 0.85
done

# wherever the optimizer and the parameters rest, and however often the forward is repeated
swap=zero_optimization.offload_optimizer
"$czero" launch -n 2 -- "${train[@]}" --data train.json --epochs 1 --set zero_optimization.stage=3 --set $swap.device=nvme \
  --set $swap.nvme_path="$work" --set zero_optimization.offload_param.device=nvme \
  --set zero_optimization.offload_param.nvme_path="$work" --set czero.activation_checkpointing.every=1 \
  >out-nvme 2>err || fail "NVMe failed"
cmp out-2-3 out-nvme || fail "NVMe and recomputing change the result"

# ---- the best is kept, and exported; patience ends -----------------------------------------------
"$czero" "${train[@]}" --data train.json --epochs 6 --save runs --save-keep 2 --best-metric macro_f1 --eval-interval 7 \
  --export best --log-json >steps 2>err || fail "keeping the best failed"
test -e runs/best/latest -a -e runs/latest || fail "no best checkpoint"
python3 - <<'PY'
import json
lines = [json.loads(line) for line in open("steps") if line.startswith("{")]
evals = [e for e in lines if "eval_macro_f1" in e]
best = max(e["eval_macro_f1"] for e in evals)
step = next(e["step"] for e in evals if e["eval_macro_f1"] == best)
assert open("runs/best/latest").read() == f"global_step{step}", step
json.dump(best, open("best_f1", "w"))
PY
"$czero" eval --model best --data dev.json --json >eval.json 2>err || fail "eval of the best failed"
python3 -c 'import json; a = json.load(open("eval.json"))["macro avg"]["f1"]; assert abs(a - json.load(open("best_f1"))) < 1e-9, a'
"$czero" "${train[@]}" --data train.json --epochs 50 --set optimizer.params.lr=0 --set scheduler.type=WarmupLR \
  --set scheduler.params='{"warmup_min_lr":0,"warmup_max_lr":0,"warmup_num_steps":2}' \
  --early-stopping 2 --eval-interval 3 --curve c.csv >out 2>err || fail "early stopping failed"
[ "$(tail -n 1 c.csv | cut -d, -f1)" = 9 ] || fail "two evaluations after the first are steps 6 and 9"

# ---- killed and resumed is the same run ----------------------------------------------------------
more=(--data train.json --epochs 4 --eval-interval 10 --best-metric loss)
"$czero" "${train[@]}" "${more[@]}" --save whole --metrics whole.csv --export whole-model >whole-out 2>err || fail "whole run failed"
"$czero" "${train[@]}" "${more[@]}" --save cut --save-interval 3 --metrics cut.csv >/dev/null 2>err &
pid=$!
for _ in $(seq 600); do
  [ -e cut/latest ] && [ "$(wc -l <cut.csv)" -gt 30 ] && break
  sleep 0.01
done
kill -KILL $pid 2>/dev/null || true
wait $pid 2>/dev/null || true
"$czero" "${train[@]}" "${more[@]}" --save cut --metrics cut.csv --export cut-model --resume cut >cut-out 2>err || fail "resuming failed"
cmp <(cut -d, -f1-8 whole.csv) <(cut -d, -f1-8 cut.csv) || fail "measurements differ after resuming"
cmp whole-model/model.safetensors cut-model/model.safetensors || fail "weights differ after resuming"
cmp whole-out cut-out || fail "reports differ after resuming"

# resumed when all is done: nothing is added
"$czero" "${train[@]}" "${more[@]}" --save cut --metrics cut.csv --resume cut >cut-out 2>err ||
  fail "resuming what is done failed"
cmp <(cut -d, -f1-8 whole.csv) <(cut -d, -f1-8 cut.csv) || fail "measurements differ after resuming what is done"

# from a checkpoint without a cursor, as DeepSpeed leaves one: in the middle of the second epoch the next rows are the same
steps=(--data train.json --set scheduler.type=WarmupLR --set scheduler.params='{"warmup_num_steps":2}')
"$czero" "${train[@]}" "${steps[@]}" --steps 45 --curve bare-whole.csv >out 2>err || fail "a run of 45 steps failed"
"$czero" "${train[@]}" "${steps[@]}" --steps 40 --save bare >out 2>err || fail "a run of 40 steps failed"
rm bare/global_step40/czero_*.json
"$czero" "${train[@]}" "${steps[@]}" --steps 45 --resume bare --curve bare.csv >out 2>err || fail "resuming without a cursor failed"
cmp <(tail -n 5 bare-whole.csv) <(tail -n 5 bare.csv) || fail "other rows follow a checkpoint without a cursor"

# into another folder, which does not hold the best so far; and after an early stop
"$czero" "${train[@]}" --data train.json --steps 95 --eval-interval 50 --best-metric loss --save elsewhere --export moved \
  --resume whole >out 2>err || fail "resuming into another folder failed"
grep -q "elsewhere/best does not contain" err || fail "the best is missing without a message"
test -e moved/model.safetensors || fail "no export after another folder"
still=(--data train.json --epochs 50 --set optimizer.params.lr=0 --early-stopping 1 --eval-interval 2 --save still)
still+=(--set scheduler.type=WarmupLR)
still+=(--set scheduler.params='{"warmup_min_lr":0,"warmup_max_lr":0,"warmup_num_steps":2}')
"$czero" "${train[@]}" "${still[@]}" >out 2>err || fail "early stopping with a folder failed"
"$czero" "${train[@]}" "${still[@]}" --resume still >out 2>err || fail "resuming after an early stop failed"
[ "$(cat still/latest)" = global_step4 ] || fail "a run that had stopped early continues"

# ---- a classifier continues under its own names ----------------------------------------------------
"$czero" "${train[@]}" --model model --tokenizer model --data train.json --steps 2 >out 2>err || fail "continuing failed"
above "$(accuracy out)" 0.9

# ---- bad input -----------------------------------------------------------------------------------
echo '[["a text", "food"], ["another", "music"]]' >music.json
expect 2 music eval --model model --data music.json
expect 2 music "${train[@]}" --data train.json --eval-data music.json --steps 1
echo '[["a text"' >cut.json
expect 4 cut.json "${train[@]}" --data cut.json --steps 1
expect 2 "nowhere.json" "${train[@]}" --data nowhere.json --steps 1
expect 2 "--best-metric needs --save" "${train[@]}" --data train.json --steps 1 --best-metric loss
expect 2 "--eval-interval x" "${train[@]}" --data train.json --steps 1 --eval-interval x
expect 2 "--steps or --epochs" "${train[@]}" --data train.json
expect 2 "not a classifier" predict --model gpt2-tiny --text x
expect 2 "has no weights" predict --model bert-tiny --text x
expect 2 "--text or a FILE is missing" predict --model model
expect 2 "kind" "${train[@]}" --data train.csv --label-column kind2 --text-column "what it says" --steps 1
expect 2 "--mask-probability needs --task masked-lm" "${train[@]}" --data train.json --steps 1 --mask-probability 0.2
lm=(train --config ds.json --model gpt2-tiny --data corpus.txt --seq-len 16 --steps 1)
for flag in --text-column=text --pair-column=text --label-column=label --strip-spaces --bucket=off; do
  expect 2 "${flag%=*} needs --task classification" "${lm[@]}" "$flag"
done
expect 2 "--mask-probability is for masked" eval --model model --data dev.json --mask-probability 0.2
expect 2 "--pair needs --text" predict --model model --data lines.txt --pair x
expect 2 "--strip-spaces needs a FILE" predict --model model --text x --strip-spaces
expect 2 "applies to tables only" eval --model model --data dev.json --json --digits 3
cp labels.tsv kept.tsv
expect 2 "nowhere.txt" predict --model model --data nowhere.txt -o kept.tsv
cmp labels.tsv kept.tsv || fail "an earlier file was emptied for nothing"
rm model/vocab.txt
expect 2 "--tokenizer" predict --model model --text x

python3 -c 'import json; json.dump([["a", "b", "food"], ["c", "d", "sport"]], open("pairs.json", "w"))'
expect 2 "special tokens" "${base[@]}" --data train.json --eval-data pairs.json --seq-len 2 --steps 1

# ---- a best that has no place is told before training --------------------------------------------
mkdir blocked && echo "no folder" >blocked/best
expect 2 "blocked/best: is not a folder" "${train[@]}" --data train.json --epochs 2 --save blocked --best-metric loss
