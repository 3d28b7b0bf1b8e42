#!/usr/bin/env bash
# Claims: no export replaces a model without --force: a merge into its base, into its adapter or twice into one folder, a
# checkpoint or its adapter over a model, train --save over the model that its folder "model" holds; zero_to_fp32 warns.
# An adapter on other weights than those it was trained on is a warning, in every command, by the hash in its files or by
# the folder that it names, and an error with --strict; the same weights elsewhere are none. A run's checkpoints, given for
# an adapter or a model, are named as such.
#   tests/cli/adapters/test_adapter_base.sh BUILD
. "$(dirname "$0")/../../support/command.sh"
text=$build/fixtures/text/fortunes-64k.txt
echo '{"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 0.05}}}' >config.json
train() { "$czero" train --config config.json --data "$text" --tokenizer bytes --seq-len 24 --quiet "$@" >out 2>err || fail "train $*"; }
run() { "$czero" "$@" >out 2>err || fail "$*"; }
silent() { run "$@" && { [ ! -s err ] || fail "$*: says something"; }; }
warns() {
  local words=$1
  shift
  run "$@"
  grep -qF -- "$words" err || fail "$*: no \"$words\""
}

train --model llama-tiny --init random --steps 1 --export base
train --model llama-tiny --init random --seed 7 --steps 1 --export other
train --model base --lora rank=2 --steps 2 --export adapter --save run
cp -r base copy

# ---- what is replaced
sums() { sha256sum base/* adapter/* other/* | sha256sum; }
before=$(sums)
refused 2 'OUT_DIR base: is the folder of --model, which would be replaced' export adapter base --merge
refused 2 'OUT_DIR base: is the folder of --model' export adapter base --merge --model base/
refused 2 'OUT_DIR adapter: is the folder of the adapter' export adapter adapter --merge
refused 2 'OUT_DIR other: holds a model already' export adapter other --merge
refused 2 'OUT_DIR base: holds a model already, which would be replaced; name another folder, or replace it with --force' export --adapter run base
refused 2 'OUT_DIR adapter: holds a model already' export --adapter run adapter
train --model base --steps 1 --save whole
refused 2 'OUT_DIR other: holds a model already' export whole other
refused 2 'OUT_DIR base: is the folder of --model' export whole base --model base
refused 2 '--export adapter: is the folder of the adapter' train --config config.json --data "$text" --tokenizer bytes --seq-len 8 --steps 1 --model base --adapter adapter --export adapter
mkdir -p top
cp -r base top/model
refused 2 '--save top/model: holds a model already' train --config config.json --data "$text" --tokenizer bytes --seq-len 8 --steps 1 --model top/model --save top
[ "$before" = "$(sums)" ] || fail "a refused export has changed a file"
cmp base/config.json top/model/config.json
run export adapter merged --merge
refused 2 'OUT_DIR merged: holds a model already' export adapter merged --merge
run export adapter merged --merge --force
run export whole written
refused 2 'OUT_DIR written: holds a model already' export whole written
run export whole written --force
"$build/zero_to_fp32" whole written >out 2>err || fail zero_to_fp32
grep -q 'warning: written: holds a model already' err || fail "zero_to_fp32 says nothing"
"$build/zero_to_fp32" whole new >out 2>err || fail zero_to_fp32
! grep -q 'holds a model' err || fail "zero_to_fp32 warns of nothing"

# ---- another base
wrong='was trained on other weights than those of'
run export --adapter run exported
cmp adapter/adapter_model.safetensors exported/adapter_model.safetensors
grep -q '"czero_base_hash":"[0-9a-f]\{16\}"' adapter/adapter_model.safetensors || fail "no hash in the adapter"
cp -r adapter plain # as of PEFT: nothing tells but the folder
sed -i 's/czero_base_hash/czero_past_hash/' plain/adapter_model.safetensors
ask=(--prompt a --max-new-tokens 1 --tokenizer bytes)
for adapter in adapter plain exported; do
  for model in base copy; do silent generate --model $model --adapter $adapter "${ask[@]}"; done
  warns "$adapter: the adapter $wrong other: its results are not those of its training; use its base, base" \
    generate --model other --adapter $adapter "${ask[@]}"
  refused 2 "$wrong other" generate --strict --model other --adapter $adapter "${ask[@]}"
done
sed -i 's/"base"/"gone"/' adapter/adapter_config.json plain/adapter_config.json
warns "$wrong other: its results are not those of its training; use the model that it was trained on" generate --model other --adapter adapter "${ask[@]}"
silent generate --model other --adapter plain "${ask[@]}"
warns "$wrong other" eval --model other --adapter adapter --data "$text" --tokenizer bytes --seq-len 8
refused 2 "--merge: the adapter adapter $wrong other; --force merges it all the same" export adapter wrong --merge --model other
[ ! -e wrong ] || [ -z "$(ls wrong)" ] || fail "a refused merge wrote something"
warns "$wrong other" export adapter wrong --merge --model other --force
warns "$wrong other" embed --model other --adapter adapter --text a --tokenizer bytes
echo "{% for m in messages %}{{ m.content }}{% endfor %}" >t.jinja
echo a | warns "$wrong other" chat --model other --adapter adapter --tokenizer bytes --chat-template t.jinja --max-new-tokens 1
warns "$wrong other" train --config config.json --data "$text" --tokenizer bytes --seq-len 24 --quiet --model other --adapter adapter --steps 1
sed -i 's/"gone"/"base"/' adapter/adapter_config.json plain/adapter_config.json
cp other/model.safetensors base/ # its own folder, with another model in it
warns "$wrong base: its results are not those of its training; use the model that it was trained on" generate --model base --adapter adapter "${ask[@]}"
cp copy/model.safetensors base/

# ---- a run is no adapter
write="holds an adapter's checkpoint: write the adapter first, with czero export --adapter run"
for dir in run run/model run/global_step2; do
  refused 2 "$dir $write" generate --model base --adapter $dir "${ask[@]}"
  refused 2 "$dir $write" chat --model base --adapter $dir --tokenizer bytes
  refused 2 "$dir $write" eval --model base --adapter $dir --data "$text" --tokenizer bytes --seq-len 8
  refused 2 "$dir $write" generate --model $dir "${ask[@]}"
done
refused 2 "run $write DIR; czero export DIR OUT_DIR --merge then" export run o
refused 2 "run $write DIR" export run o --merge
mkdir top/latest # a model beside them is one
silent generate --model top/model "${ask[@]}"
