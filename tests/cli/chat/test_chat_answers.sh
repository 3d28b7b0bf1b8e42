#!/usr/bin/env bash
# Claim: czero generate --chat, --system and --messages print answers alone, by the folder's template, one conversation or several; the token that ends
# the answers of the data ends what is generated: it is written into the generation_config.json and config.json of exports, checkpoints and adapters of every
# family, before the ends that were there; merging an adapter takes it over; a turn's end that is no token, or is not trained, is a warning; the template of
# a file goes into exports; bad input is one sentence.
. "$(dirname "$0")/../../support/command.sh"

mkdir tok base
cp "$build"/fixtures/tokenizers/qwen2/* tok
python3 - <<'PY'
import json
config = json.load(open("tok/tokenizer_config.json"))
config["eos_token"] = "<|endoftext|>"  # 500; <|im_end|> is 502
config["chat_template"] = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
                           "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
json.dump(config, open("tok/tokenizer_config.json", "w"))
with open("chats.jsonl", "w") as f:
    for i in range(8):
        for q, a in (("hello", "good day"), ("bye", "see you")):
            f.write(json.dumps({"messages": [{"role": "user", "content": q + " " + "abcdefgh"[i]}, {"role": "assistant", "content": a}]}) + "\n")
json.dump({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
           "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256, "eos_token_id": 500, "bos_token_id": 7, "pad_token_id": None,
           "tie_word_embeddings": False}, open("base/config.json", "w"))
json.dump({"train_micro_batch_size_per_gpu": 8, "optimizer": {"type": "AdamW", "params": {"lr": 5e-3}}}, open("ds.json", "w"))
PY
cp tok/* base
train=(train --config ds.json --task sft --data chats.jsonl --seq-len 64)

ends() { # of a folder's generation_config.json, and of its config.json, as the words a,b c
  python3 - "$1" <<'PY'
import json, os, sys
read = lambda name: json.load(open(f"{sys.argv[1]}/{name}")).get("eos_token_id") if os.path.exists(f"{sys.argv[1]}/{name}") else "-"
word = lambda x: ",".join(map(str, x)) if isinstance(x, list) else str(x)
print(word(read("generation_config.json")), word(read("config.json")))
PY
}
has_ends() { [ "$(ends "$1")" = "$2" ] || fail "$1 ends with $(ends "$1"), not with $2"; }
answers() { # WANT ARGUMENTS…
  local want=$1
  shift
  "$czero" generate --max-new-tokens 24 "$@" >out 2>err || fail "generate $*"
  [ "$(cat out)" = "$want" ] || fail "generate $*: not \"$want\""
}

# ---- what is learnt ends the answer
"$czero" "${train[@]}" --model base --init random --steps 60 --export x --save run >out 2>err || fail "training"
grep -qF "answers end with <|im_end|> (token 502); base does not list it as an end token: exports list it (generation_config.json and config.json)" err ||
  fail "no line names the end of the turn"
has_ends x "502,500 502"
has_ends run/model "502,500 502"
python3 -c 'import json; d = json.load(open("x/generation_config.json")); assert d == {"eos_token_id": [502, 500], "bos_token_id": 7}, d' 2>err || fail "generation_config.json"
"$czero" export run written >out 2>err || fail "export"
has_ends written "502,500 502"
answers "good day" --model x --chat "hello a"
answers "see you" --model written --chat "bye c"
answers "good day" --model x --no-echo --prompt $'<|im_start|>user\nhello a<|im_end|>\n<|im_start|>assistant\n'
"$czero" generate --model x --chat "hello a" --no-end --max-new-tokens 24 >out 2>err || fail "--no-end"
grep -qF "<|im_end|>" out || fail "--no-end ends with the turn"
# with --chat the template's end does, too, where no file lists it
cp -r x unlisted && rm unlisted/generation_config.json && sed -i 's/"eos_token_id": 502/"eos_token_id": 500/' unlisted/config.json
answers "good day" --model unlisted --chat "hello a"
# what is listed already stays as it is, without a word
"$czero" "${train[@]}" --model x --steps 1 --export again >out 2>err || fail "training on"
has_ends again "502,500 502"
! grep -q "answers end" err || fail "a known end is reported again"
printf '{"temperature": 0.5, "eos_token_id": 500, "pad_token_id": 501}' >base/generation_config.json
"$czero" "${train[@]}" --model base --init random --steps 1 --export listed --quiet >out 2>err || fail "a base that lists an end"
has_ends listed "502,500 502"
grep -q '"temperature": 0.5' listed/generation_config.json && ! grep -q bos_token_id listed/generation_config.json || fail "another generation_config.json"
rm base/generation_config.json

# ---- adapters
"$czero" "${train[@]}" --model base --init random --loss-on all --steps 12 --export start --quiet >out 2>err || fail "a start"
has_ends start "502,500 502"
sed -i 's/"eos_token_id": 502/"eos_token_id": 500/' start/config.json
rm start/generation_config.json
"$czero" "${train[@]}" --model start --lora rank=16,alpha=64,targets=all-linear --steps 60 --export adapter --save runs >out 2>err || fail "an adapter"
grep -qF "exports list it (generation_config.json)" err || fail "no line names the end of the adapter"
has_ends adapter "502,500 -"
"$czero" export --adapter runs taken >out 2>err || fail "export --adapter"
has_ends taken "502,500 -"
answers "good day" --model start --adapter adapter --no-echo --prompt $'<|im_start|>user\nhello a<|im_end|>\n<|im_start|>assistant\n'
answers "good day" --model start --adapter taken --chat "hello a"
"$czero" export adapter merged --merge --model start >out 2>err || fail "export --merge"
has_ends merged "502,500 502"

# ---- every family; a preset's own end is none of this tokenizer
for preset in $("$czero" models | grep -oE '[a-z0-9_.-]+-tiny' | sort -u); do
  case $preset in bert* | distil* | roberta* | electra* | deberta* | mpnet* | modernbert* | albert* | xlm* | camembert*) continue ;; esac
  "$czero" "${train[@]}" --model "$preset" --tokenizer tok --steps 1 --export "p-$preset" --quiet >out 2>err || fail "$preset"
  [[ $(ends "p-$preset") == 502*" 502" ]] || fail "$preset ends with $(ends "p-$preset")"
  n_families=$((${n_families:-0} + 1))
done
[ "${n_families:-0}" -ge 6 ] || fail "only ${n_families:-0} families"

# ---- conversations
answers "$(printf 'good day\n\nsee you')" --model x --chat "hello a" --chat "bye b"
echo '[{"role": "user", "content": "bye b"}]' >one.json
answers "see you" --model x --messages one.json
head -n 2 chats.jsonl >two.jsonl
answers "$(printf 'good day\n\nsee you')" --model x --messages two.jsonl
grep -qF "2 of 2 conversations end with an answer, which czero replaces" err || fail "answers are left out in silence"
"$czero" generate --model x --messages - --max-new-tokens 24 <one.json >out 2>err && [ "$(cat out)" = "see you" ] || fail "standard input"
"$czero" generate --model x --chat "a \"b\"" --system "Be brief." --json --max-new-tokens 1 >out 2>err || fail "--json"
python3 -c 'import json
row = json.loads(open("out").read())
assert row["prompt"] == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\na \"b\"<|im_end|>\n<|im_start|>assistant\n", row
assert set(row) == {"prompt", "text"}, row' 2>err || fail "--json"
printf '{{ messages[-1].content }}' >t.jinja
"$czero" generate --model x --chat-template t.jinja --chat "hi" --json --max-new-tokens 1 >out 2>err && grep -qF '"prompt": "hi"' out || fail "--chat-template"

refused 2 "--prompt, --prompts, --chat and --messages exclude each other" generate --model x --chat a --prompt b
refused 2 "--system goes with --chat" generate --model x --messages one.json --system b
refused 2 "--chat-template goes with --chat" generate --model x --prompt a --chat-template t.jinja
refused 2 "nosuch: cannot be opened" generate --model x --messages nosuch
echo Hello >words.txt
printf '{"messages": [{"role": "user", "content": "a"}]}\n{"messages": [{"role": "assistant", "content": "a"}]}\n' >none.jsonl
refused 2 "none.jsonl:2: no message asks for an answer" generate --model x --messages none.jsonl
printf '{{ raise_exception("no " + messages[0].role) }}' >t.jinja
refused 2 "--chat: t.jinja:1: the template refuses the conversation: no user" generate --model x --chat-template t.jinja --chat hi
refused 2 "has no chat template" generate --model gpt2-tiny --chat hi
refused 2 "the model's context has 256" generate --model x --chat "$(seq 300)"

# ---- ends that cannot be written, or are not learnt
printf '{%% for m in messages %%}{{ m.role }}:\n{{ m.content }}[DONE]\n{%% endfor %%}{%% if add_generation_prompt %%}assistant:\n{%% endif %%}' >t.jinja
"$czero" "${train[@]}" --model base --init random --chat-template t.jinja --steps 60 --export words --quiet >out 2>err || fail "a turn's end of several tokens"
grep -qF 'answers end with "[DONE]", which is no single token of the tokenizer' err || fail "no warning of an end of several tokens"
answers "good day" --model words --chat-template t.jinja --chat "hello a"
printf '{%% for m in messages %%}{{ m.role }}: {{ m.content }}\n{%% endfor %%}' >t.jinja
"$czero" "${train[@]}" --model base --init random --chat-template t.jinja --steps 1 --quiet >out 2>err || fail "no turn's end"
grep -qF "no answer ends with a special token that is trained" err || fail "no warning of a missing end"
printf '{%% for m in messages %%}{%% generation %%}{{ m.content }}{%% endgeneration %%}<|im_end|>{%% endfor %%}' >t.jinja
"$czero" "${train[@]}" --model base --init random --chat-template t.jinja --steps 1 --quiet >out 2>err || fail "an end outside of the marks"
grep -qF "the token that ends an answer is not trained in 16 of 16 rows" err || fail "no warning of an end outside of the marks"

# ---- the template of a file
printf '{%% for m in messages %%}{{ m.role[0] }}{{ m.content }};{%% endfor %%}{%% if add_generation_prompt %%}a{%% endif %%}' >t.jinja
"$czero" "${train[@]}" --model gpt2-tiny --tokenizer bytes --chat-template t.jinja --steps 80 --export bytes --quiet >out 2>err || fail "bytes"
[ ! -s err ] || fail "bytes have an end"
cmp t.jinja bytes/chat_template.jinja || fail "the template is not exported"
answers "good day" --model bytes --chat "hello a"
[ -s words/chat_template.jinja ] && ! grep -q '"chat_template"' words/tokenizer_config.json || fail "the folder's template stands in for the one that trained"
