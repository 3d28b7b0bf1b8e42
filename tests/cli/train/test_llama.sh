#!/usr/bin/env bash
# Claim: LLaMA and Qwen2 agree with PyTorch within 2e-5; they train alike at every ZeRO stage, on one
# and two ranks, with and without activation checkpointing, and in bf16 near fp32; generation with a
# cache writes what it writes without; plan and tune take their presets.
set -euo pipefail
build=$(cd "$1" && pwd)
source_dir=$(cd "$(dirname "$0")/../../.." && pwd)
czero=$build/czero
work=$(mktemp -d /tmp/czero-llama-XXXXXX)
trap 'rm -rf "$work"' EXIT
cd "$work"
unset CZERO_LOG
export OMP_NUM_THREADS=1
fail() {
  echo "$1" >&2
  tail -n 20 out err >&2
  exit 1
}

# ---- PyTorch's logits, loss and gradients
for model in "$build"/fixtures/models/{llama,qwen2}{,-variant}; do
  "$czero" verify "$model" >out 2>err || fail "verify $model"
  awk '/^(grad|out)\./ {n++; if (!($2 <= 2e-5)) exit 1} END {exit n < 20}' out || fail "$model"
done

# ---- training
head -c 40000 "$source_dir/examples/data/fortunes.txt" >text
config() { # micro-batch stage [more]
  printf '{"train_micro_batch_size_per_gpu": %s, "gradient_clipping": 1.0%s,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.002}}, "zero_optimization": {"stage": %s}}' \
    "$1" "${3-}" "$2"
}
train() { # model, curve, more arguments
  local model=$1 curve=$2
  shift 2
  rm -f "$curve"
  "$czero" train --model "$model" --data text --tokenizer bytes --seq-len 48 --shuffle off \
    --steps 10 --curve "$curve" --quiet "$@"
}
same() { # curve, curve, tolerance
  paste -d, "$1" "$2" | awk -F, -v t="$3" 'NR > 1 {d = $2 - $7; n++; if (d < 0) d = -d
    if (!(d <= t)) exit 1} END {exit n != 10}'
}
config 4 0 >alone.json
for model in llama-tiny qwen2-tiny; do
  train $model $model.csv --config alone.json >out 2>err || fail "$model alone"
  awk -F, 'NR == 2 {first = $2} {last = $2} END {exit !(last < first - 0.2)}' $model.csv ||
    fail "$model learns nothing: $(cat $model.csv)"
  config 4 0 ', "czero": {"activation_checkpointing": {"every": 1}}' >ckpt.json
  train $model c.csv --config ckpt.json >out 2>err || fail "$model checkpointed"
  cmp -s $model.csv c.csv || fail "$model: checkpointing changes the curve"
  config 4 0 ', "bf16": {"enabled": true}' >bf16.json
  train $model b.csv --config bf16.json >out 2>err || fail "$model in bf16"
  same $model.csv b.csv 0.05 || fail "$model: bf16 is far from fp32: $(cat b.csv)"
done

# A folder without weights: dropout on, frequencies by length, biases everywhere
mkdir odd
cat >odd/config.json <<'END'
{"model_type": "llama", "vocab_size": 256, "hidden_size": 40, "intermediate_size": 72,
 "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 8,
 "max_position_embeddings": 40, "attention_bias": true, "mlp_bias": true, "attention_dropout": 0.2,
 "tie_word_embeddings": true, "rope_theta": 500.0,
 "rope_scaling": {"type": "dynamic", "factor": 2.0}}
END
for precision in '' ', "bf16": {"enabled": true}'; do
  for every in 0 1 2; do
    config 4 0 "$precision, \"czero\": {\"activation_checkpointing\": {\"every\": $every}}" >odd.json
    train odd odd$every.csv --config odd.json --init random >out 2>err || fail "odd, every $every"
    cmp -s odd0.csv odd$every.csv || fail "odd: checkpointing every $every changes the curve"
  done
done
for stage in 0 1 2 3; do
  config 4 $stage >one.json
  config 2 $stage >two.json
  config 2 $stage ', "bf16": {"enabled": true}' >two16.json
  train llama-tiny one.csv --config one.json >out 2>err || fail "stage $stage on one rank"
  same llama-tiny.csv one.csv 1e-5 || fail "stage $stage on one rank: another curve"
  rm -f two.csv two16.csv
  for precision in two two16; do
    "$czero" launch -n 2 -- train --model llama-tiny --data text --tokenizer bytes --seq-len 48 \
      --shuffle off --steps 10 --curve $precision.csv --quiet --config $precision.json \
      >out 2>err || fail "stage $stage, $precision"
  done
  same llama-tiny.csv two.csv 1e-5 || fail "stage $stage on two ranks: another curve"
  same llama-tiny.csv two16.csv 0.05 || fail "stage $stage in bf16: far from fp32"
done

# ---- generation
for model in llama-tiny qwen2-tiny odd; do
  gen() { "$czero" generate --model $model --prompt "The day" "$@" 2>err; }
  gen --max-new-tokens 120 >a || fail "$model: generate" # past the context of 64
  gen --max-new-tokens 120 --no-cache >b || fail "$model: generate without a cache"
  cmp -s a b || fail "$model: the cache changes the text"
done

# ---- presets
for model in llama-160m tinyllama-1.1b llama-7b llama-13b llama-70b llama3-8b llama3.2-1b llama3.2-3b \
  qwen2-0.5b qwen2-1.5b qwen2-7b; do
  "$czero" plan --config "$source_dir/configs/quickstart.json" --model $model --seq-len 512 \
    >out 2>err || fail "plan $model"
done
"$czero" tune --model llama3-8b --seq-len 512 --gpu-memory 80GB --host-memory 256GB >out 2>err ||
  fail "tune llama3-8b"
grep -q '^  1 ' out || fail "tune finds nothing for llama3-8b"
echo "LLaMA and Qwen2 work"
