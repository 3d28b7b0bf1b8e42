#!/usr/bin/env bash
# Claim: `czero init` knows by the first rows of the data what is trained: classes, tags of words, chats or text, whatever the
# file is called; each config passes `config check --strict` and its script trains, all weights or an adapter; the schedule ends with
# the run also where the script is given other epochs; a trained model that does not fit becomes an adapter, unasked under --yes.
. "$(dirname "$0")/../../support/command.sh"
export PATH=$build:$PATH

mkdir base && cp "$build"/fixtures/tokenizers/qwen2/* base
python3 - <<'PY'
import json
json.dump({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
           "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512, "eos_token_id": 500, "pad_token_id": None,
           "tie_word_embeddings": False}, open("base/config.json", "w"))
config = json.load(open("base/tokenizer_config.json"))
config["chat_template"] = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
json.dump(config, open("base/tokenizer_config.json", "w"))
def lines(name, rows):
    with open(name, "w") as f:
        for row in rows:
            f.write(json.dumps(row) + "\n")
turn = lambda q, a, key="role", what="content", roles=("user", "assistant"): [{key: roles[0], what: q}, {key: roles[1], what: a}]
lines("messages.jsonl", [{"messages": turn(f"Say {i}", str(i))} for i in range(40)])
lines("sharegpt.jsonl", [{"id": i, "conversations": turn(f"Say {i}", str(i), "from", "value", ("human", "gpt"))} for i in range(40)])
with open("chinese.jsonl", "w") as f:
    f.writelines(json.dumps({"messages": turn(f"好天气{i}", "真不错")}, ensure_ascii=False) + "\n" for i in range(40))
json.dump([{"instruction": f"Say {i}", "input": "", "output": str(i)} for i in range(40)], open("alpaca.json", "w"))
lines("prompts.jsonl", [{"prompt": f"Say {i}:", "completion": f" {i}"} for i in range(40)])
lines("classes.jsonl", [{"text": f"word {i}", "label": "ab"[i % 2]} for i in range(40)])
lines("text.jsonl", [{"text": "some words of a text " * 20} for i in range(40)])
lines("words.jsonl", [{"tokens": ["Ann", "is", "in", "Rome"], "ner_tags": ["B-PER", "O", "O", "B-LOC"]} for i in range(40)])
with open("entities", "w") as f:
    f.write("-DOCSTART- -X- O\n\n" + "Ann NNP B-PER\nis VBZ O\nin IN O\nRome NNP B-LOC\n\n" * 40)
with open("table.csv", "w") as f:
    f.write("text,label\n" + "\n".join(f"word {i},{'ab'[i % 2]}" for i in range(40)) + "\n")
open("plain", "w").write("some words of a text, O and more\n" * 200)
json.dump([[f"word {i}", "ab"[i % 2]] for i in range(40)], open("pairs.json", "w"))
PY
gzip -k messages.jsonl
common=(--host-memory 2GB --batch 8 --seq-len 32 --yes)
tries=0
becomes() { # TASK MODEL DATA [options…]: the task is found, the config is good; what init said is in said
  local task=$1 model=$2 data=$3
  shift 3
  dir=try$((++tries))
  "$czero" init --model "$model" --data "$data" "${common[@]}" -o $dir/ds.json "$@" >out 2>err || fail "init $model $data $*"
  grep -q -- "--task $task " out || fail "$data with $model is not $task"
  cp err said
  "$czero" config check --strict $dir/ds.json >out 2>err || fail "the config of $task"
}
trains() { # EXPORT: the script runs; the folder it writes
  sh $dir/train.sh --quiet >out 2>err || fail "the script of $dir"
  [ -s "$dir/$1" ] || fail "$dir/train.sh writes no $1"
}

# ---- what the rows say
becomes sft base messages.jsonl.gz
becomes sft base sharegpt.jsonl
becomes sft base alpaca.json
iconv -f UTF-8 -t gb18030 chinese.jsonl >gb.jsonl
becomes sft base gb.jsonl --encoding gb18030
grep -q -- '--encoding gb18030' $dir/train.sh || fail "no --encoding"
becomes sft base prompts.jsonl
becomes classification base pairs.json
becomes classification bert-tiny table.csv --tokenizer bytes
becomes classification bert-tiny classes.jsonl --tokenizer bytes
becomes token-classification bert-tiny words.jsonl --tokenizer bytes
becomes causal-lm base text.jsonl
becomes causal-lm base plain
becomes causal-lm gpt2-tiny classes.jsonl --task causal-lm

# ---- every task trains; of labelled rows a tenth is kept apart
becomes classification bert-tiny table.csv --tokenizer bytes --epochs 1
grep -q -- '--eval-split 0.1' $dir/train.sh && grep -q -- '--best-metric accuracy' $dir/train.sh || fail "no split"
trains model/config.json
grep -q ',eval,' $dir/metrics.csv || fail "the split is not evaluated"
becomes sft base messages.jsonl --eval-data 0.25
grep -q -- '--eval-interval epoch' $dir/train.sh && grep -q -- '--best-metric loss' $dir/train.sh || fail "chats are evaluated at the end alone"
! grep -q -- '--packing' said || fail "rows of one length are to be packed"
python3 - <<'PY'
import json
with open("uneven.jsonl", "w") as f:
    for i in range(40):
        f.write(json.dumps({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a" if i % 8 else " ".join(str(7919 * k) for k in range(60))}]}) + "\n")
PY
becomes sft base uneven.jsonl --seq-len 512 --host-memory 4GB
grep -q 'Rows fill [1-4][0-9] % of a batch; --packing puts several examples into one row' said || fail "no word of packing"
becomes sft base uneven.jsonl --seq-len 512 --host-memory 4GB --packing
! grep -q 'Rows fill' said || fail "packing is suggested where it is on"
becomes sft base messages.jsonl --eval-data 0.25
grep -q -- '--eval-split 0.25' $dir/train.sh || fail "a share that was asked for"
becomes classification bert-tiny table.csv --tokenizer bytes --eval-data none
grep -q -- '--eval' $dir/train.sh && fail "an evaluation that was declined"
becomes sft base messages.jsonl --packing --epochs 2
grep -q -- '--packing' $dir/train.sh || fail "no packing"
trains model/config.json
becomes token-classification bert-tiny entities --tokenizer bytes --eval-data entities --epochs 1
grep -q -- '--best-metric f1' $dir/train.sh || fail "no metric of entities"
trains model/config.json
becomes classification base classes.jsonl --eval-data classes.jsonl --epochs 1 --lora rank=2
trains adapter/adapter_config.json
grep -q '"r": 2' $dir/adapter/adapter_config.json || fail "another adapter"
becomes causal-lm base plain --lora --epochs 1
trains adapter/adapter_config.json
grep -q '"lora_alpha": 32' $dir/adapter/adapter_config.json || fail "another default"
"$czero" vocab --data plain --size 60 -o vocab >out 2>err || fail "a vocabulary"
becomes masked-lm bert-tiny plain --tokenizer vocab --epochs 1
trains model/config.json

# ---- the schedule ends with the run, whatever the script is given
becomes sft base messages.jsonl --epochs 2
grep -q "^Recipe for pretraining: AdamW, rate 0.001, down to 0 at the end of the run$" said || fail "the recipe: $(cat said)"
rates() { # STEPS WARMUP options…: as WarmupDecayLR, whose value i is the rate of step i + 2
  local steps=$1 warm=$2
  shift 2
  sh $dir/train.sh "$@" --dry-run-lr --quiet >out 2>err || fail "--dry-run-lr $*"
  awk -F, -v steps=$steps -v warm=$warm '
    NR > 1 { i = $1 < 2 ? 0 : $1 - 2; want = 1e-3 * (i < warm ? i / warm : (steps - i) / (steps - warm)); n++
             if ($1 != n || $2 < want - 1e-15 || $2 > want + 1e-15) exit bad = 1 }
    END { exit bad || n != steps }' out || fail "the rates of \"$*\""
}
rates 10 2
rates 25 3 --epochs 5
rates 15 4 --epochs 3 --warmup-ratio 0.25

# ---- two hundred rows are enough to see that a model learns
python3 - <<'PY'
import random
r = random.Random(1)
words = ["good great lovely fine warm".split(), "bad awful cold poor grim".split()]
with open("few.csv", "w") as f:
    f.write("text,label\n")
    f.writelines(f"the film was {r.choice(words[i % 2])} and {r.choice(words[i % 2])},{['yes', 'no'][i % 2]}\n" for i in range(200))
PY
for model in bert-tiny qwen3-tiny; do
  "$czero" init --model $model --data few.csv --host-memory 2GB --yes -o few-$model/ds.json >out 2>err || fail "200 rows with $model"
  sh few-$model/train.sh --log-json >out 2>err || fail "the script of 200 rows with $model"
  [ "$(cat few-$model/checkpoints/latest)" = global_step69 ] || fail "batches of 8 rows: $(cat few-$model/checkpoints/latest)"
  grep -o '"eval_accuracy": [0-9.]*' out | awk '$2 > best { best = $2 } END { exit !(best >= 0.9) }' || fail "200 rows teach $model nothing"
done
# a folder that has a preset's name, and no config.json, does not stand for the preset
(mkdir named && cd named && "$czero" init --model bert-tiny --data ../few.csv --host-memory 2GB --yes -o bert-tiny/ds.json >../out 2>../err &&
  sh bert-tiny/train.sh --set scheduler.params.warmup_min_lr=0 --quiet --dry-run-lr >../out 2>../err) || fail "a folder named as the preset"
# the config of docs/classification.md reaches its rate in a short run, too
"$czero" train --config "$source_dir"/configs/classification.json --model bert-tiny --task classification --data few.csv --tokenizer bytes --epochs 3 \
  --warmup-ratio 0.1 --dry-run-lr --quiet >out 2>err || fail "configs/classification.json"
awk -F, '$2 == 5e-5 { at = $1 } END { exit !(at == 5 && NR == 22) }' out || fail "the peak of configs/classification.json"

# ---- trained weights: small steps; what does not fit becomes an adapter
"$czero" train --config $dir/ds.json --model base --init random --task sft --data messages.jsonl --seq-len 32 --steps 1 --export trained --quiet >out 2>err || fail "weights"
"$czero" init --model trained --data messages.jsonl "${common[@]}" -o ft/ds.json >out 2>err || fail "fine-tuning"
grep -q "^Recipe for fine-tuning: AdamW, rate 2e-05" err || fail "the recipe"
head -1 err | grep -q "^Fits: all weights: .* of host memory[.]$" || fail "the answer comes first"
grep -q '"lora"' ft/ds.json && fail "an adapter without need"
python3 - <<'PY'
import json
json.dump({**json.load(open("trained/config.json")), "vocab_size": 120000}, open("config.json", "w"))
PY
mkdir big && cp trained/* big && cp config.json big/config.json && rm -f big/*.safetensors
"$czero" train --config $dir/ds.json --model big --init random --task sft --data messages.jsonl --seq-len 32 --steps 1 --export wide --quiet >out 2>err || fail "a wide model"
"$czero" init --model wide --data messages.jsonl --host-memory 200MB --batch 8 --seq-len 32 --precision bf16 --yes -o narrow/ds.json >out 2>err || fail "an adapter that fits"
head -1 err | grep -q "^Fits: an adapter (--lora rank=16,alpha=32): .* All weights need [0-9.]* [KMG]iB more host memory" || fail "the answer"
[ "$(grep -c "^Fits" err)" = 1 ] || fail "two answers"
grep -q '"rank": 16' narrow/ds.json || fail "no adapter"
grep -q "^Recipe for an adapter: AdamW, rate 0.0002" err || fail "the adapter's recipe"
"$czero" init --model wide --data messages.jsonl --host-memory 200MB --lora all --batch 8 --seq-len 32 --precision bf16 --yes -o whole/ds.json >out 2>err && code=0 || code=$?
[ $code = 3 ] || fail "all weights are asked for, and do not fit"
head -1 err | grep -q "^Does not fit: needs [0-9.]* [KMG]iB more host memory" || fail "the answer"
"$czero" init --model wide --data messages.jsonl --host-memory 200MB --lora rank=4 --batch 8 --seq-len 32 --precision bf16 --yes -o four/ds.json >out 2>err || fail "an adapter that is asked for"
head -1 err | grep -q "^Fits: an adapter: .* of host memory[.]$" || fail "the answer"

# ---- refused
refuses() { # part of the sentence, arguments…
  local part=$1
  shift
  "$czero" init "$@" "${common[@]}" -o new/ds.json >out 2>err && code=0 || code=$?
  [ $code = 2 ] && grep -q -- "$part" err && [ ! -e new ] || fail "init $*"
}
refuses "write classification, token-classification, sft, causal-lm or masked-lm" --model base --data plain --task embed
refuses "packing needs --task sft" --model base --data plain --packing
refuses "lora" --model base --data plain --lora rank=0
refuses "template" --model gpt2-tiny --data messages.jsonl --tokenizer bytes
exit 0
