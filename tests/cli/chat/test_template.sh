#!/usr/bin/env bash
# Claims: the chat template that trained is in every export, whatever the base has: train --export, --save and export,
# adapters and what they are merged into; generate, chat, eval and further training with an adapter use its template, a
# resumed run its own; a run says once that answers begin otherwise than the generation prompt, with the number of rows.
. "$(dirname "$0")/../../support/command.sh"

mkdir base
cp "$build"/fixtures/tokenizers/qwen2/* base
python3 - <<'PY'
import json
turns = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
prompt = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
config = json.load(open("base/tokenizer_config.json"))
config.update(eos_token="<|im_end|>", chat_template=turns + prompt)
json.dump(config, open("base/tokenizer_config.json", "w"))
mine = "{% for m in messages %}### {{ m.role }}:{{ m.content }}<|im_end|>{% endfor %}"
open("mine.jinja", "w").write(mine + "{% if add_generation_prompt %}### assistant:{% endif %}")
open("other.jinja", "w").write(mine + prompt)
open("never.jinja", "w").write(mine)
open("thinks.jinja", "w").write(turns + "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n\n</think>\n\n{% endif %}")
with open("chats.jsonl", "w") as f:
    for i in range(8):
        f.write(json.dumps({"messages": [{"role": "user", "content": f"q{i}"}, {"role": "assistant", "content": f"a{i}"}]}) + "\n")
json.dump({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 512, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
           "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128, "eos_token_id": 502,
           "tie_word_embeddings": False}, open("base/config.json", "w"))
json.dump({"train_micro_batch_size_per_gpu": 8, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}, open("ds.json", "w"))
PY
train=(train --config ds.json --task sft --data chats.jsonl --seq-len 64 --steps 1)
run() { "$czero" "$@" >out 2>err || fail "$*"; }
run "${train[@]}" --model base --init random --export start --quiet
has_mine() { # FOLDER: the template, and nothing that contradicts it
  cmp mine.jinja "$1/chat_template.jinja" || fail "$1 has another template"
  ! grep -qs '"chat_template"' "$1/tokenizer_config.json" || fail "$1/tokenizer_config.json contradicts it"
  [ -e "$1/tokenizer.json" ] || fail "$1 has no tokenizer"
}
asks() { # ARGUMENTS…: the prompt that generate makes is that of mine.jinja
  run generate --chat hi --json --max-new-tokens 1 "$@"
  grep -qF '"prompt": "### user:hi<|im_end|>### assistant:"' out || fail "generate $*: another template"
}

# ---- all weights
run "${train[@]}" --model start --chat-template mine.jinja --export whole --save runs
! grep -q 'begin as trained' err || fail "a sound template is warned of"
! grep -q -- '--chat-template' err || fail "the next command names a template that the export has"
has_mine whole
has_mine runs/model
run export runs written && has_mine written
run export runs named --model start && has_mine named
asks --model whole
run "${train[@]}" --model whole --export again --quiet && has_mine again
run "${train[@]}" --model start --export plain --quiet
grep -q '"chat_template"' plain/tokenizer_config.json && [ ! -e plain/chat_template.jinja ] || fail "the base's own template has changed"
# a resumed run, or one that begins with these weights, continues with it
rows() { sed -n 's/.*8 examples of \([0-9]*\) tokens.*/\1/p' err; }
run "${train[@]}" --model start --chat-template mine.jinja
want=$(rows)
run "${train[@]}" --model start && [ "$(rows)" != "$want" ] || fail "both templates have as many tokens"
run "${train[@]}" --model start --steps 2 --resume runs --save runs --export resumed
[ "$(rows)" = "$want" ] && grep -q 'the chat template is that of runs/model' err || fail "a resumed run has another template"
has_mine resumed && has_mine runs/model
run "${train[@]}" --model start --init runs
[ "$(rows)" = "$want" ] || fail "--init has another template"
run "${train[@]}" --model start --init whole
[ "$(rows)" = "$want" ] || fail "--init DIR has another template"

# ---- adapters
run "${train[@]}" --model start --lora rank=2 --chat-template mine.jinja --export adapter --save lora
has_mine adapter
run export --adapter lora taken && has_mine taken
run export adapter merged --merge && has_mine merged
for model in "--model start --adapter adapter" "--model adapter" "--model start --adapter taken" "--model merged"; do
  # shellcheck disable=SC2086
  asks $model
done
echo hi | "$czero" chat --model adapter --max-new-tokens 1 >out 2>err || fail chat
run eval --model start --adapter adapter --task sft --data chats.jsonl --seq-len 64 --json && cp out mine.json
run eval --model merged --task sft --data chats.jsonl --seq-len 64 --json && cp out merged.json
cmp <(grep -o '"tokens": [0-9]*' mine.json) <(grep -o '"tokens": [0-9]*' merged.json) || fail "eval has another template"
run "${train[@]}" --model start --adapter adapter --export further
[ "$(rows)" = "$want" ] || fail "--adapter is trained with another template"
has_mine further
# an adapter with its template alone
mkdir bare && cp adapter/adapter_* adapter/chat_template.jinja bare/
asks --model start --adapter bare
run export bare filled --merge && has_mine filled
# a tokenizer that is not read does not keep an adapter back
cp -r lora odd && echo '{}' >odd/model/tokenizer.json
run export --adapter odd kept
grep -q 'warning: not exported: .*tokenizer.json' err && [ -s kept/adapter_config.json ] || fail "an odd tokenizer"

# ---- what an answer begins with
warns() { # TEMPLATE WORDS
  run "${train[@]}" --model start --chat-template "$1" --eval-data chats.jsonl
  grep -qF -- "$2" err && [ "$(grep -c 'generat[a-z]* \(will not begin\|begins\)\|generation prompt' err)" = 1 ] || fail "$1: not once \"$2\""
}
warns other.jinja 'warning: data: answers follow "### assistant:", but the generation prompt is "<|im_start|>assistant\n": generate will not begin as trained (8 of 8 rows)'
warns thinks.jinja 'answers follow "<|im_start|>assistant\n", but the generation prompt is "<|im_start|>assistant\n<think>\n\n</think>\n\n"'
warns never.jinja 'the template writes no generation prompt (add_generation_prompt), so "### assistant:" is trained as part of the answers and generate begins without it (8 of 8 rows)'
grep -q '^eval_loss' out && grep -q '^eval of the end' err || fail "no evaluation"
# each figure once: the evaluation of the last step is the one of the end
run "${train[@]}" --model start --eval-data chats.jsonl --eval-interval 1
! grep -q 'eval of the end' err || fail "an evaluation is printed twice"

# ---- a template with a mistake
printf '{%%- for m in messages %%}\n{{ m.content }}\n{%%- endfo %%}' >slip.jinja
refused 2 'slip.jinja:3: the statement endfo is not supported here; did you mean endfor?' "${train[@]}" --model start --chat-template slip.jinja
