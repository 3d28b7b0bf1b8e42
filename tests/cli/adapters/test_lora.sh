#!/usr/bin/env bash
# Claims: an adapter trains to the same bytes at ZeRO stages 0 to 3, with recomputed activations and on every tier (states
# and frozen parameters in memory, in a swap file, or in the model's own files), with DoRA too, on one rank and on two, with dropout in the branches; a plan has no
# gradient, master or state of the frozen model; what is exported is trained further by --adapter, generates the same text
# as the model it is merged into, an adapter of a classifier brings its head, which no warning calls random, and an export over another adapter needs --force. Mistakes are named.
#   tests/cli/adapters/test_lora.sh BUILD
set -euo pipefail
czero=$1/czero fixtures=$1/fixtures
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
export OMP_WAIT_POLICY=passive
fail() {
  echo "$*" >&2
  exit 1
}

# config ZERO [MEMBERS]
config() {
  cat <<JSON
{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": ${gas:-1}, "gradient_clipping": 0.5,
 "bf16": {"enabled": ${bf16:-false}}, "optimizer": {"type": "AdamW", "params": {"lr": ${lr:-0.01}, "weight_decay": 0.1}},
 "zero_optimization": {$1}${2:+, $2}}
JSON
}

# train MODEL OUT WORLD [OPTIONS…] <CONFIG
train() {
  local model=$1 out=$2 world=$3
  shift 3
  cat >"$tmp/config.json"
  "$czero" launch -n "$world" -- train --config "$tmp/config.json" --model "$model" --quiet --export "$out" \
    --data "$fixtures/text/fortunes-64k.txt" --tokenizer bytes --seq-len 24 --steps "${steps:-3}" "$@"
}

# same WORLD ZERO… : all of these configs give the bytes of the first
same() {
  local world=$1 want='' have case
  shift
  for case in "$@"; do
    rm -rf "$tmp/out"
    config "${case%%|*}" "$(cut -s -d'|' -f2 <<<"$case")" |
      train "$tmp/base" "$tmp/out" "$world" --lora "${branch:-rank=4,alpha=8,dropout=0.1}" || fail "failed: $case"
    have=$(sha256sum <"$tmp/out/adapter_model.safetensors")
    [ -n "$want" ] || want=$have
    [ "$have" = "$want" ] || fail "$world ranks, $case: other bytes than the first"
  done
}

small='"reduce_bucket_size": 3000, "sub_group_size": 500, "stage3_param_persistence_threshold": 0'
recompute='|"activation_checkpointing": {"number_checkpoints": 1}'
cpu='"offload_optimizer": {"device": "cpu"}'
nvme="\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"$tmp/swap\"}"
params="\"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"$tmp/swap\"}"
mkdir "$tmp/swap"
config '"stage": 0' | train llama-tiny "$tmp/base" 1 --init random
gas=2 same 1 '"stage": 0' "\"stage\": 2, $small" "\"stage\": 3, $small" "\"stage\": 0$recompute" \
  "\"stage\": 3, $nvme, $params"
bf16=true same 2 '"stage": 0' "\"stage\": 1, $small" "\"stage\": 2, $cpu" "\"stage\": 3, $small" \
  "\"stage\": 3, $small, $nvme, $params"

branch=rank=4,dropout=0.1,dora=true gas=2 same 1 '"stage": 0' "\"stage\": 3, $small, $nvme, $params" "\"stage\": 0$recompute"
branch=rank=4,dora=true bf16=true same 2 '"stage": 0' "\"stage\": 2, $small" "\"stage\": 3, $small, $params"

# A model in bf16: frozen parameters are read from its files, a copy in the swap file makes the same bytes, and files that
# change meanwhile end the run.
mv "$tmp/base" "$tmp/fp32"
bf16=true config '"stage": 0' | train "$tmp/fp32" "$tmp/base" 1 --export-dtype bf16
for world in 1 2; do
  bf16=true same $world '"stage": 0' "\"stage\": 3, $small, $params" "\"stage\": 3, $small, $nvme, $params|\"czero\": {\"frozen_in_place\": false}" \
    "\"stage\": 3, \"sub_group_size\": 500, \"stage3_param_persistence_threshold\": 3000, $params" "\"stage\": 1, $params"
done
bf16=true config "\"stage\": 3, $params" >"$tmp/config.json"
"$czero" plan --config "$tmp/config.json" --model "$tmp/base" --lora rank=4 --seq-len 24 --json >"$tmp/plan" 2>/dev/null
grep -q '"model_files_bytes": 238208' "$tmp/plan" || fail "the plan does not count what stays in the model's files: $(grep bytes "$tmp/plan")"
bf16=true config "\"stage\": 3, $small, $params" | steps=200000 train "$tmp/base" "$tmp/d" 1 --lora rank=4 >"$tmp/said" 2>&1 &
until find "$tmp/swap" -name 'czero-swap-rank0-*' | grep -q .; do sleep 0.1; done
sleep 0.3
touch "$tmp/base/model.safetensors"
code=0
wait $! || code=$?
[ $code = 4 ] && grep -q 'base/model.safetensors: changed while the run reads it' "$tmp/said" || fail "$code: $(cat "$tmp/said")"
rm -rf "$tmp/base"
mv "$tmp/fp32" "$tmp/base"

# A plan: states of the branches alone.
"$czero" plan --verbose --model llama-tiny --lora rank=4 --seq-len 16 >"$tmp/plan" 2>/dev/null
n=$(sed -n 's/.*(.* parameters, \(.*\) trained).*/\1/p' "$tmp/plan")
[ -n "$n" ] || fail "the plan does not say how many parameters are trained"
elements() { sed -nE "s/.* $1.* ([0-9]+) (×|x) $2.*/\1/p" "$tmp/plan"; } # x: where a terminal has ASCII only
masters=$(elements "master weights" fp32)
states=$(elements exp_avg_sq fp32)
grads=$(elements "gradients +host" bf16)
all=$(elements "parameters +host" bf16)
[ "$masters" = "$states" ] && [ "$masters" = "$grads" ] && [ "$masters" -lt $((all / 2)) ] ||
  fail "masters $masters, states $states, gradients $grads of $all parameters"

# In the config the same as on the command line.
config '"stage": 0' | train "$tmp/base" "$tmp/a" 1 --lora rank=3,targets=q_proj,down_proj,layers=0-0,rslora=true
config '"stage": 0' '"czero": {"lora": {"r": 3, "target_modules": ["q_proj", "down_proj"], "layers": "0", "use_rslora": true}}' |
  train "$tmp/base" "$tmp/b" 1
cmp "$tmp/a/adapter_model.safetensors" "$tmp/b/adapter_model.safetensors"
cmp "$tmp/a/adapter_config.json" "$tmp/b/adapter_config.json"
grep -q '"model.layers.0.self_attn.q_proj"' "$tmp/a/adapter_config.json"
! grep -q 'layers.1\|k_proj' "$tmp/a/adapter_config.json" || fail "a map that was not asked for has a branch"
[ ! -e "$tmp/a/config.json" ] && [ ! -e "$tmp/a/model.safetensors" ] || fail "a model beside the adapter"

# DoRA: resumed, exported out of a checkpoint, merged.
dora='--lora rank=4,dora=true'
config '"stage": 0' | steps=6 train "$tmp/base" "$tmp/whole" 1 $dora
config '"stage": 0' | train "$tmp/base" "$tmp/part" 1 $dora --save "$tmp/saved"
config '"stage": 3' | steps=6 train "$tmp/base" "$tmp/part" 1 $dora --save "$tmp/saved" --resume --force
"$czero" export --adapter "$tmp/saved" "$tmp/exported" --quiet
for dir in part exported; do
  cmp "$tmp/whole/adapter_model.safetensors" "$tmp/$dir/adapter_model.safetensors"
  cmp "$tmp/whole/adapter_config.json" "$tmp/$dir/adapter_config.json"
done
grep -q '"use_dora": true' "$tmp/whole/adapter_config.json" && grep -q 'q_proj.lora_magnitude_vector"' "$tmp/whole/adapter_model.safetensors" ||
  fail "the files of DoRA lack something"
text() { "$czero" generate --tokenizer bytes --prompt "The " --max-new-tokens 24 --temperature 1 --seed 1 --raw "$@" 2>/dev/null | od -c; }
"$czero" export "$tmp/whole" "$tmp/merged" --merge --model "$tmp/base" >/dev/null
[ "$(text --model "$tmp/base" --adapter "$tmp/whole")" = "$(text --model "$tmp/merged")" ] || fail "DoRA merged generates another text"
[ "$(text --model "$tmp/base" --adapter "$tmp/whole" --no-cache)" = "$(text --model "$tmp/merged")" ] || fail "DoRA without the cache"
rm -rf "$tmp"/{whole,part,saved,exported,merged}

# Trained further: the same rank and targets; merged: the same text.
lr=0.3 config '"stage": 0' | train "$tmp/base" "$tmp/c" 1 --adapter "$tmp/out"
! cmp -s "$tmp/c/adapter_model.safetensors" "$tmp/out/adapter_model.safetensors" || fail "--adapter trained nothing"
"$czero" export "$tmp/c" "$tmp/merged" --merge --model "$tmp/base" >/dev/null
[ "$(text --model "$tmp/base" --adapter "$tmp/c")" = "$(text --model "$tmp/merged")" ] ||
  fail "the merged model generates another text"
[ "$(text --model "$tmp/base" --adapter "$tmp/c")" != "$(text --model "$tmp/base")" ] || fail "the adapter changes no text"
[ "$(text --model "$tmp/base" --adapter "$tmp/c" --no-cache)" = "$(text --model "$tmp/merged")" ] ||
  fail "another text without the cache"

# A folder with a model and an adapter: the model alone is taken, and a warning tells; --adapter adds the other.
mkdir "$tmp/both"
cp "$tmp"/base/* "$tmp"/c/adapter_* "$tmp/both"
[ "$(text --model "$tmp/both")" = "$(text --model "$tmp/base")" ] || fail "another model of a folder with two"
[ "$(text --model "$tmp/both" --adapter "$tmp/both")" = "$(text --model "$tmp/merged")" ] || fail "another adapter of a folder with two"
"$czero" generate --tokenizer bytes --prompt a --max-new-tokens 1 --model "$tmp/both" >"$tmp/said" 2>&1 || fail "a model and an adapter"
grep -q 'files that czero does not use: adapter_model.safetensors (the model is taken alone; --adapter .*both adds it)' "$tmp/said" || fail "$(cat "$tmp/said")"
"$czero" generate --tokenizer bytes --prompt a --max-new-tokens 1 --model "$tmp/both" --adapter "$tmp/both" >"$tmp/said" 2>&1 || fail "both"
! grep -q 'does not use' "$tmp/said" || fail "a warning about an adapter that is used"
code=0
"$czero" generate --strict --tokenizer bytes --prompt a --max-new-tokens 1 --model "$tmp/both" >"$tmp/said" 2>&1 || code=$?
[ $code = 2 ] || fail "--strict: exit code $code"

# A checkpoint holds the adapter alone; a resumed run makes the same bytes, at another stage too, and on no other model.
lora='--lora rank=4,dropout=0.1'
config '"stage": 0' | steps=6 train "$tmp/base" "$tmp/whole" 1 $lora
config '"stage": 2' | train "$tmp/base" "$tmp/part" 2 $lora --save "$tmp/saved" # two ranks: other rows
"$czero" inspect "$tmp/saved" | grep 'parameters *28 trained ([0-9]* elements)$' >/dev/null || fail 'a checkpoint holds more than the adapter'
config '"stage": 0' | train "$tmp/base" "$tmp/part" 1 $lora --save "$tmp/single" --force
config '"stage": 3' | steps=6 train "$tmp/base" "$tmp/part" 1 $lora --save "$tmp/single" --resume --force
cmp "$tmp/whole/adapter_model.safetensors" "$tmp/part/adapter_model.safetensors"
config '"stage": 0' | train llama-tiny "$tmp/other" 1 --init random --seed 7
config '"stage": 0' | steps=7 train "$tmp/other" "$tmp/part" 1 $lora --resume "$tmp/single" --force 2>"$tmp/said" &&
  fail "resumed on another model"
grep -q 'trained on a model with other weights than' "$tmp/said" || fail "$(cat "$tmp/said")"

# From the checkpoint the same files as from the run.
"$czero" export --adapter "$tmp/single" "$tmp/exported" --quiet
cmp "$tmp/whole/adapter_model.safetensors" "$tmp/exported/adapter_model.safetensors"
cmp "$tmp/whole/adapter_config.json" "$tmp/exported/adapter_config.json"

# An adapter of a classifier on a model that is none brings its head: the same classes as merged.
for i in 1 2 3 4 5 6; do printf 'a good day,pos\na bad day,neg\nso so,mid\n'; done | sed '1i text,label' >"$tmp/classes.csv"
config '"stage": 0' >"$tmp/config.json"
"$czero" train --config "$tmp/config.json" --model "$fixtures/models/gpt2-tiny" --task classification --data "$tmp/classes.csv" --tokenizer bytes \
  --seq-len 16 --steps 3 --lora rank=4 --export "$tmp/classifier" --quiet 2>/dev/null
"$czero" export "$tmp/classifier" "$tmp/merged-classifier" --merge --model "$fixtures/models/gpt2-tiny" >/dev/null 2>&1
classes() { "$czero" predict --tokenizer bytes --text "a bad day" --json "$@" 2>/dev/null | grep -o '"label": "LABEL_[0-2]", "probability": [0-9.]\{6\}'; }
[ -n "$(classes --model "$tmp/merged-classifier")" ] &&
  [ "$(classes --model "$tmp/merged-classifier")" = "$(classes --model "$fixtures/models/gpt2-tiny" --adapter "$tmp/classifier")" ] ||
  fail "a classifier's adapter on a bare model: $(classes --model "$fixtures/models/gpt2-tiny" --adapter "$tmp/classifier")"

# The warning of a random head: when it is new, not when an adapter or a checkpoint brings it.
warned() { grep -q 'score.weight: not in the files: start from random values' "$tmp/said"; }
classify() {
  "$czero" train --config "$tmp/config.json" --model "$fixtures/models/gpt2-tiny" --task classification --data "$tmp/classes.csv" \
    --tokenizer bytes --seq-len 16 "$@" >"$tmp/said" 2>&1 || fail "$(cat "$tmp/said")"
}
classify --steps 1 --lora rank=4 --save "$tmp/head"
warned || fail "a new head without a warning: $(cat "$tmp/said")"
classify --steps 2 --lora rank=4 --save "$tmp/head" --resume "$tmp/head"
! warned || fail "the head is the checkpoint's: $(cat "$tmp/said")"
classify --steps 1 --adapter "$tmp/classifier"
! warned || fail "the head is the adapter's: $(cat "$tmp/said")"
"$czero" predict --tokenizer bytes --text "a bad day" --model "$fixtures/models/gpt2-tiny" --adapter "$tmp/classifier" >"$tmp/said" 2>&1
! warned || fail "the head is the adapter's, in predict: $(cat "$tmp/said")"

# refused SENTENCE ARGS…
refused() {
  local sentence=$1 code=0
  shift
  config '"stage": 0' | train "$tmp/base" "$tmp/d" 1 "$@" >"$tmp/said" 2>&1 || code=$?
  [ "$code" -ne 0 ] && grep -qF -- "$sentence" "$tmp/said" || fail "$*: $(cat "$tmp/said")"
}
refused 'did you mean q_proj?' --lora targets=q_prj
refused '"ranc" is not a key' --lora ranc=3
refused 'match no linear map' --lora 'targets=q_proj|v_proj$'
refused 'is no list of numbers and ranges' --lora layers=1-
refused 'no linear map is left in layers "7"' --lora layers=7
refused '--lora dropout (czero.lora.dropout): -0.5 is out of range' --lora dropout=-0.5
refused 'KEY=VALUE is needed' --lora 16
refused 'give one of them' --lora rank=3 --adapter "$tmp/a"

# PEFT's names, in the config and in the option; the same value twice is no mistake
# takes LORA OPTIONS… : with this section of the config
takes() {
  local section=$1
  shift
  rm -rf "$tmp/peft"
  config '"stage": 0' '"czero": {"lora": '"$section"'}' | train "$tmp/base" "$tmp/peft" 1 "$@" >"$tmp/said" 2>&1 || fail "$section $*: $(cat "$tmp/said")"
}
differs() {
  local section=$1 sentence=$2 code=0
  shift 2
  config '"stage": 0' '"czero": {"lora": '"$section"'}' | train "$tmp/base" "$tmp/d" 1 "$@" >"$tmp/said" 2>&1 || code=$?
  [ "$code" = 2 ] && grep -qF -- "$sentence" "$tmp/said" || fail "$section $*: $code $(cat "$tmp/said")"
}
peft='{"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"], "use_rslora": true}'
takes "$peft" --lora r=4,lora_alpha=8,target_modules=q_proj,v_proj,use_rslora=true,lora_dropout=0,use_dora=false
cp -r "$tmp/peft" "$tmp/first"
for more in "--lora rank=4" "--lora" "--lora alpha=8.0,targets=q_proj,v_proj" "--set czero.lora.rank=4" "--auto czero.lora.rank=4"; do
  # shellcheck disable=SC2086
  takes "$peft" $more
  cmp "$tmp/first/adapter_model.safetensors" "$tmp/peft/adapter_model.safetensors" || fail "$more trains another adapter"
done
takes null --lora r=4,lora_alpha=8,target_modules=q_proj,v_proj,use_rslora=true
cmp "$tmp/first/adapter_model.safetensors" "$tmp/peft/adapter_model.safetensors" || fail "PEFT's names mean something else"
takes "$peft" --set czero.lora.rank=2
grep -q '"r": 2' "$tmp/peft/adapter_config.json" || fail "--set does not replace r"
takes '{"r": "auto", "target_modules": "q_proj"}' --lora rank=2
grep -q '"r": 2' "$tmp/peft/adapter_config.json" || fail "no rank for auto"
differs "$peft" 'czero.lora.r: 4 differs from --lora rank=8: give one of them' --lora rank=8
differs "$peft" 'czero.lora.r: 4 differs from --lora rank=8: give one of them' --lora r=8
differs '{"rank": 4}' 'czero.lora.rank: 4 differs from --lora rank=8' --lora r=8
differs "$peft" 'czero.lora.target_modules: ["q_proj", "v_proj"] differs from --lora targets="q_proj"' --lora targets=q_proj
differs "$peft" 'differs from --lora targets="q_proj,v_proj,k_proj"' --lora targets=q_proj,v_proj,k_proj
differs '{"r": 3, "rank": 3}' 'is given together with "rank", its other name' --seed 1
differs "$peft" 'begins another adapter than the one that the model has (--adapter): remove one of the two' --adapter "$tmp/a"
refused 'it is no adapter' --adapter "$tmp/base"
config '"stage": 0' | train "$tmp/base" "$tmp/a" 1 --lora rank=3 >"$tmp/said" 2>&1 && fail "an adapter was replaced"
grep -q 'holds a model already' "$tmp/said"
