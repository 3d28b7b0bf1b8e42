#!/usr/bin/env bash
# Claim: the commands of docs/finetune.md, taken from the page, lead from its two rows (among fifty) to an adapter and a merged model: a tiny Qwen3 learns
# the answers, the best evaluation is exported, and a finished run that is resumed exports the same adapter.
# With a python that has PEFT as second argument ($(scripts/peers.sh)) the page's Python runs as well and has to write what czero generates.
python=${2-}
. "$(dirname "$0")/../../support/command.sh"
export PATH=$build:$PATH
page=$source_dir/docs/finetune.md

blocks() { awk -v kind="$1" '/^```/ { on = $0 == "```" kind; if (on) n++; next } on { print > (kind "-" n) }' "$page"; }
blocks sh
blocks python
blocks json

python3 - <<'PY'
import json
base = open("json-1").read()
words = ["Rome", "Lima", "Oslo", "Bern", "Kyiv", "Quito"]
with open("chats.jsonl", "w") as f:
    for i in range(25):
        f.write(base)
        f.write(json.dumps({"messages": [{"role": "user", "content": f"Say {words[i % 6]}!"}, {"role": "assistant", "content": words[i % 6]}]}) + "\n")
json.dump({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
           "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512, "eos_token_id": 502, "pad_token_id": 500,
           "tie_word_embeddings": False}, open("config.json", "w"))
json.dump({"train_micro_batch_size_per_gpu": 8, "optimizer": {"type": "AdamW", "params": {"lr": 3e-3}}}, open("pre.json", "w"))
PY
cat >chat_template.jinja <<'JINJA'
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
JINJA
# a model that has seen such chats, so that an adapter has something to adapt
mkdir init && cp config.json chat_template.jinja init && cp "$build"/fixtures/tokenizers/qwen2/* init
czero train --config pre.json --model init --init random --task sft --loss-on all --data chats.jsonl --seq-len 128 --steps 20 --export base --quiet >out 2>err ||
  fail "a base model"

for block in sh-*; do
  bash -euo pipefail "$block" >"$block.out" 2>"$block.err" || { cp "$block.out" out; cp "$block.err" err; fail "docs/finetune.md, block $block"; }
  case $block in
    sh-1) grep -qF '{+In Paris.<|im_end|>' sh-1.out || fail "the answer is not shown as trained" ;;
    sh-3) cp adapter/adapter_model.safetensors first.safetensors ;;
    sh-4) cmp first.safetensors adapter/adapter_model.safetensors || fail "a finished run exports another adapter" ;;
  esac
done
[ "$(wc -l <train.jsonl)" = 55 ] && [ "$(wc -l <dev.jsonl)" = 20 ] || fail "rows are lost between the files"
awk -F, '$3 == "eval" { n++; if (n == 1) first = $4; last = $4 } END { exit !(n == 3 && last < first) }' metrics.csv || fail "nothing is learnt: $(cat metrics.csv)"
[ -s merged/model.safetensors ] && [ -s merged/chat_template.jinja ] || fail "the merged folder is not whole"
if [ -n "$python" ]; then
  "$python" python-1 >python.out 2>err || fail "the page's Python"
  grep -qF "$(head -n 1 sh-5.out)" python.out || { cat sh-5.out python.out >out; fail "transformers writes another answer"; }
fi
