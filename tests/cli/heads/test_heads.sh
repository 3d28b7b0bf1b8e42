#!/usr/bin/env bash
# Claim: decoders classify: czero train learns a rule of a text's last words, from presets and from a language
# model's folder; the export names the head and the padding token; every ZeRO stage, and two ranks at every stage,
# give the same bytes; czero eval and predict read the export; a batch's padding changes no prediction.
. "$(dirname "$0")/../../support/command.sh"

python3 - <<'PY'
import random
random.seed(4)
for name, n in (("train", 96), ("dev", 24)):
    with open(name + ".tsv", "w") as f:
        f.write("text\tlabel\n")
        for _ in range(n):
            label = random.choice(["good", "bad"])
            words = " ".join(random.choice(["a", "it", "so", "we"]) for _ in range(random.randint(0, 6)))
            f.write(f"{words} {dict(good='yes', bad='no')[label]}\t{label}\n")
PY
config() { # stage
  printf '{"train_micro_batch_size_per_gpu": 4, "gradient_clipping": 1.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.003}}, "zero_optimization": {"stage": %s,
    "stage3_param_persistence_threshold": 0}}' "$1" >"stage$1.json"
}
for stage in 0 1 2 3; do config $stage; done
train() { # ranks, stage, model, export, more
  local ranks=$1 stage=$2 model=$3 export=$4
  shift 4
  local launch=()
  [ "$ranks" = 1 ] || launch=(launch -n "$ranks" --)
  rm -rf "$export"
  "$czero" "${launch[@]}" train --config "stage$stage.json" --model "$model" --tokenizer bytes \
    --task classification --data train.tsv --seq-len 32 --quiet --export "$export" "$@" >out 2>err
}
for model in qwen3-tiny gpt2-tiny; do
  for ranks in 1 2; do
    for stage in 0 1 2 3; do
      train $ranks $stage $model export-$stage --steps 12 || fail "$model, stage $stage, $ranks ranks"
      cmp export-0/model.safetensors export-$stage/model.safetensors ||
        fail "$model: stage $stage on $ranks ranks gives other weights"
    done
  done
done
python3 - <<'PY' || fail "config.json lacks the head, the padding token or the classes"
import json
config = json.load(open("export-0/config.json"))
assert config["architectures"] == ["GPT2ForSequenceClassification"], config
assert config["pad_token_id"] == 0 and config["id2label"] == {"0": "bad", "1": "good"}, config
PY

train 1 0 qwen3-tiny learnt --epochs 8 --eval-data dev.tsv || fail "training"
"$czero" eval --model learnt --tokenizer bytes --data dev.tsv --json >out 2>err || fail "eval"
python3 -c 'import json; assert json.load(open("out"))["accuracy"] > 0.9' || fail "it learnt little"
"$czero" predict --model learnt --tokenizer bytes --data dev.tsv --batch 7 --json >rows 2>err || fail "predict"
"$czero" predict --model learnt --tokenizer bytes --data dev.tsv --batch 1 --json >alone 2>err || fail "predict"
python3 - <<'PY' || fail "padding changes predictions"
import json
for a, b in zip(open("rows"), open("alone"), strict=True):
    assert json.loads(a)["label"] == json.loads(b)["label"], (a, b)
PY
# A language model's weights, a new head
"$czero" train --config stage0.json --model gpt2-tiny --tokenizer bytes --data train.tsv --seq-len 32 --steps 2 \
  --quiet --task causal-lm --export lm >out 2>err || fail "language model"
train 1 0 lm classes --steps 2 || fail "a head on a language model"
got=0
"$czero" generate --model classes --tokenizer bytes --prompt x >out 2>err || got=$?
[ $got = 2 ] && grep -q "classifies texts" err || fail "a classifier generated"
echo "decoders classify"
