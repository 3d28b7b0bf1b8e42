#!/usr/bin/env bash
# Claim: the whole work of a competition on sentence pairs (AFQMC's rows: sentence1, sentence2, label, id) runs with MegatronBERT:
# training with an evaluation per epoch, the three best by accuracy kept as weights alone, the best exported, predictions with the
# rows' ids, in one DeepSpeed config;
# the 1.3 B preset at batch 1 fits 5 GB of a GPU.
. "$(dirname "$0")/../../support/command.sh"

python3 - <<'PY'
import json, random
random.seed(7)
words = ["loan", "card", "limit", "repay", "bill", "rate", "open", "close", "late", "fee", "why", "how", "can", "i", "my"]
def rows(n, first, labelled):
    for i in range(n):
        a = [random.choice(words) for _ in range(4)]
        same = random.random() < 0.5
        b = list(reversed(a)) if same else [random.choice(words) for _ in range(4)]
        row = {"sentence1": " ".join(a), "sentence2": " ".join(b), "id": first + i}
        yield {**row, "label": str(int(same))} if labelled else row
for name, n, labelled in (("train", 96, True), ("dev", 24, True), ("test", 10, False)):
    with open(name + ".json", "w") as f:
        f.writelines(json.dumps(r) + "\n" for r in rows(n, 1000, labelled))
with open("words.txt", "w") as f:
    f.write("\n".join(" ".join(random.sample(words, len(words))) for _ in range(50)))
PY
"$czero" vocab --data words.txt --kind wordpiece --size 120 -o vocab >out 2>err || fail "no vocabulary"
mkdir model
echo '{"model_type": "megatron-bert", "vocab_size": 120, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
  "intermediate_size": 64, "max_position_embeddings": 32, "pad_token_id": 0}' >model/config.json
cp vocab/* model/
cat >ds.json <<'JSON'
{"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2, "fp16": {"enabled": true, "initial_scale_power": 12},
 "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.01}},
 "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}}
JSON
train=(train --config ds.json --model model --init random --task classification --data train.json --eval-data dev.json
  --epochs 5 --best-metric accuracy --best-keep 3 --save-weights-only --save run --metrics metrics.csv --export cls)
"$czero" "${train[@]}" >out 2>err || fail "training failed"
grep -q "trainable" err || fail "what is trained is not shown"
python3 - <<'PY' || fail "SAVE/best does not hold the three best by accuracy"
import csv, os, re
rows = [r for r in csv.DictReader(open("metrics.csv")) if r["split"] == "eval"]
assert len(rows) == 5, rows
ranked = sorted(rows, key=lambda r: -float(r["accuracy"]))  # stable: the earlier one of equals is better
best = ["global_step" + r["step"] for r in ranked[:3]]
assert {n for n in os.listdir("run/best") if n.startswith("global")} == set(best), (os.listdir("run/best"), best)
assert open("run/best/latest").read().strip() == best[0], best
err = open("err").read()
line = next(l for l in err.splitlines() if "the best of run/best by accuracy" in l)
assert re.findall(r"global_step\d+", line) == best, (line, best)
said = re.findall(r"eval at step.* train loss (\d\.\d+)  train accuracy (\d\.\d+)", err)
assert said == [("%.4f" % float(r["train_loss"]), "%.4f" % float(r["train_accuracy"])) for r in rows] and len(said) == 5, err
PY
! grep -rl exp_avg run >found || fail "optimizer states were saved: $(cat found)"
refused 2 "--init" "${train[@]}" --resume run --force
other=$(ls run/best | grep global_step | grep -vx "$(cat run/best/latest)" | head -n 1)
"$czero" export run/best other --model run/model --tag "$other" >out 2>err || fail "no export of another of the best"
"$czero" eval --model other --data dev.json --json >other.json 2>err || fail "no evaluation of another of the best"
python3 - "$other" <<'PY' || fail "another of the best is not what was evaluated"
import csv, json, sys
rows = {"global_step" + r["step"]: r for r in csv.DictReader(open("metrics.csv")) if r["split"] == "eval"}
assert abs(json.load(open("other.json"))["accuracy"] - float(rows[sys.argv[1]]["accuracy"])) < 1e-6
PY
"$czero" eval --model cls --data dev.json >out 2>err || fail "no evaluation"

"$czero" predict --model cls test.json --json --fields id,label -o predict.json >out 2>err || fail "no predictions"
python3 - <<'PY' || fail "the predictions are not what the competition wants"
import json
rows = [json.loads(line) for line in open("predict.json")]
assert [r["id"] for r in rows] == list(range(1000, 1010)), rows
assert all(set(r) == {"id", "label"} and r["label"] in ("0", "1") for r in rows), rows
PY

"$czero" plan --config ds.json --model megatron-bert-1.3b --seq-len 512 --device cuda --set train_micro_batch_size_per_gpu=1 --json \
  >plan.json 2>err || fail "no plan of the preset"
python3 - <<'PY' || fail "the plan of the 1.3 B preset needs more than 5 GB of GPU memory"
import json
assert json.load(open("plan.json"))["device_peak_bytes"] < 5e9
PY
