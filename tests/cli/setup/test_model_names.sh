#!/usr/bin/env bash
# Claims: czero models lists every preset once, in at most 80 columns. --model takes an adapter's folder where its base is a
# folder here: generate and train give what --model BASE --adapter gives, export --merge needs no --model; where it is none,
# the error says how to name it. A model that config.json ties, and whose file holds another head, trains, resumes and
# exports to the bytes of the one that is untied, with one warning. --strict makes unread keys of config.json an error.
#   tests/cli/setup/test_model_names.sh BUILD
. "$(dirname "$0")/../../support/command.sh"
fixtures=$build/fixtures

"$czero" models >models
awk 'length > 80 { exit 1 }' models || fail "czero models: a line of more than 80 columns"
[ "$(tr -s ', ' '\n\n' <models | grep -cx 'gpt2-medium')" = 1 ] || fail "czero models lacks gpt2-medium"
for preset in gpt2-tiny llama3.2-3b qwen3-235b-a22b mdeberta-v3-base; do
  tr -s ', ' '\n\n' <models | grep -qx "$preset" || fail "czero models lacks $preset"
done
grep -q '^  gpt2-13b' models && grep -q ',$' models || fail "czero models: lines are not wrapped"

cat >config.json <<'JSON'
{"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}}
JSON
train() { "$czero" train --config config.json --quiet --data "$fixtures/text/fortunes-64k.txt" --tokenizer bytes --seq-len 24 "$@"; }
mkdir runs
train --model llama-tiny --init random --steps 1 --export runs/base 2>err || fail "no base"
train --model runs/base --steps 1 --lora rank=2 --export runs/adapter 2>err || fail "no adapter"

# ---- an adapter as --model
say() { "$czero" generate --tokenizer bytes --prompt "a b" --max-new-tokens 8 "$@"; }
say --model runs/base --adapter runs/adapter >want 2>err || fail "generate --adapter"
say --model runs/adapter >out 2>err || fail "generate --model ADAPTER"
cmp want out || fail "generate --model ADAPTER: another text"
"$czero" embed --tokenizer bytes --model runs/base --adapter runs/adapter --text "a b" >vector 2>err || fail "embed --adapter"
"$czero" embed --tokenizer bytes --model runs/adapter --text "a b" >out 2>err || fail "embed --model ADAPTER"
cmp vector out || fail "embed --model ADAPTER: another vector"
train --model runs/base --adapter runs/adapter --steps 2 --export runs/a 2>err || fail "train --adapter"
train --model runs/adapter --steps 2 --export runs/b 2>err || fail "train --model ADAPTER"
cmp runs/a/adapter_model.safetensors runs/b/adapter_model.safetensors || fail "train --model ADAPTER: other weights"
"$czero" export runs/adapter runs/merged --merge --model runs/base >out 2>err || fail "--merge --model"
"$czero" export runs/adapter runs/found --merge >out 2>err || fail "--merge without --model"
cmp runs/merged/model.safetensors runs/found/model.safetensors || fail "--merge without --model: other weights"
refused 2 "runs/base is no adapter's folder" export runs/base runs/none --merge
refused 2 "give one of them" generate --model runs/adapter --adapter runs/a --prompt a
refused 2 "runs/adapter is an adapter of runs/base: use --model runs/base --adapter runs/adapter" plan --model runs/adapter --seq-len 8
cp -r runs/adapter runs/far # beside its base, seen from elsewhere
(cd runs/far && say --model . >../../out 2>../../err) && fail "a base that is not there was found"
sed -i 's|"base_model_name_or_path": .*|"base_model_name_or_path": "base",|' runs/far/adapter_config.json
say --model runs/far >out 2>err || fail "the base beside an adapter"
cmp want out || fail "the base beside an adapter: another text"
sed -i 's|"base_model_name_or_path": .*|"base_model_name_or_path": "Org/base",|' runs/far/adapter_config.json
for command in "generate --prompt a" "eval --data config.json" "predict --text a" "train --config config.json --data config.json --steps 1"; do
  # shellcheck disable=SC2086
  refused 2 "runs/far is an adapter of Org/base, which is no model's folder here: use --model DIR --adapter runs/far" $command --model runs/far
done
refused 2 "runs/far is an adapter of Org/base" export runs/far runs/none --merge

# ---- a head of its own
cp -r runs/base runs/tied
sed -i 's/"tie_word_embeddings": false/"tie_word_embeddings": true/' runs/tied/config.json
train --model runs/base --steps 4 --export runs/apart 2>err || fail "train"
train --model runs/tied --steps 2 --save runs/saved --save-interval 2 2>err || fail "train a tied model"
[ "$(grep -c 'lm_head.weight is tied by config.json' err)" = 1 ] || fail "no warning, or more than one"
train --model runs/tied --steps 4 --save runs/saved --resume runs/saved --export runs/whole 2>err || fail "resume a tied model"
cmp runs/apart/model.safetensors runs/whole/model.safetensors || fail "a tied model with its own head: other weights"
grep -q '"tie_word_embeddings": false' runs/whole/config.json || fail "its export is tied"
"$czero" export runs/saved runs/again --model runs/tied >out 2>err || fail "export of its checkpoint"
cmp runs/apart/model.safetensors runs/again/model.safetensors || fail "export of its checkpoint: other weights"
grep -q '"tie_word_embeddings": false' runs/again/config.json || fail "the export of its checkpoint is tied"
train --model runs/tied --init random --steps 1 --export runs/random 2>err || fail "--init random"
grep -q '"tie_word_embeddings": true' runs/random/config.json || fail "--init random asked for the weights"

# ---- --strict
sed -i 's/{/{"use_magic": 3,/' runs/base/config.json
say --model runs/base >out 2>err || fail "an unread key"
grep -q 'runs/base/config.json: keys that czero does not use: use_magic (line 1)' err || fail "an unread key is not named"
refused 2 "keys that czero does not use: use_magic (line 1)" generate --model runs/base --tokenizer bytes --prompt a --strict
