#!/usr/bin/env bash
# Claims: decoders train to the same bytes at ZeRO stages 0 to 3 and on every tier (optimizer states and parameters in
# memory or in a swap file), at each number of ranks; with accumulation on several ranks inside stages 0-1 and inside
# 2-3. With recomputed activations, too. By default Qwen3-MoE alone, whose experts a batch may not all use, with the
# loss that balances them; test_family_stages_slow.sh: every decoder.
#   tests/unit/engine/test_family_stages.sh BUILD [PRESET…]
set -euo pipefail
czero=$1/czero fixtures=$1/fixtures
shift
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
export OMP_WAIT_POLICY=passive
n_runs=0 n_failed=0

# run WORLD MODEL ACCUMULATION DTYPE ZERO [MEMBERS] -> sha256 of the weights
run() {
  cat >"$tmp/config.json" <<JSON
{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": $3, "gradient_clipping": 0.5,
 $4, "optimizer": {"type": "AdamW", "params": {"lr": 0.003, "weight_decay": 0.1}},
 "zero_optimization": {$5}${6:+, $6}}
JSON
  rm -rf "$tmp/export"
  "$czero" launch -n "$1" -- train --config "$tmp/config.json" --model "$2" --init random --quiet \
    --data "$fixtures/text/fortunes-64k.txt" --tokenizer bytes --seq-len 24 --steps 3 \
    --export "$tmp/export" --export-dtype fp32 >"$tmp/out" 2>&1 || {
    echo "failed: $*" >&2
    tail -5 "$tmp/out" >&2
    return 1
  }
  sha256sum <"$tmp/export/model.safetensors" | cut -d' ' -f1
}

# all_equal WORLD MODEL ACCUMULATION DTYPE [ZERO|MEMBERS]…
all_equal() {
  local want='' have world=$1 model=$2 gas=$3 dtype=$4 case
  shift 4
  for case in "$@"; do
    have=$(run "$world" "$model" "$gas" "$dtype" "${case%%|*}" "$(cut -s -d'|' -f2 <<<"$case")") || have=failed
    n_runs=$((n_runs + 1))
    [ -n "$want" ] || want=$have
    [ "$have" = "$want" ] && [ "$have" != failed ] && continue
    echo "$model, $world ranks, accumulation $gas, $case: other bytes than the first" >&2
    n_failed=$((n_failed + 1))
  done
}

small='"reduce_bucket_size": 3000, "sub_group_size": 5000, "stage3_param_persistence_threshold": 0'
recompute='|"activation_checkpointing": {"number_checkpoints": 1}'
cpu='"offload_optimizer": {"device": "cpu"}'
nvme="\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"$tmp/swap\"}"
params="\"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"$tmp/swap\"}"
mkdir "$tmp/swap"
fp32='"bf16": {"enabled": false}' bf16='"bf16": {"enabled": true}'

if [ $# -eq 0 ]; then
  run 1 qwen3-moe-tiny 1 "$fp32" '"stage": 0' >/dev/null
  mkdir "$tmp/moe"
  sed -e 's/"output_router_logits": false/"output_router_logits": true/' \
    -e 's/"router_aux_loss_coef": [0-9.e-]*/"router_aux_loss_coef": 0.5/' "$tmp/export/config.json" >"$tmp/moe/config.json"
  plain=$(run 1 qwen3-moe-tiny 2 "$fp32" '"stage": 0')
  balanced=$(run 1 "$tmp/moe" 2 "$fp32" '"stage": 0')
  [ "$plain" != "$balanced" ] || { echo "the loss that balances experts changes nothing" >&2; exit 1; }
  all_equal 1 "$tmp/moe" 2 "$fp32" '"stage": 0' "\"stage\": 3, $small" "\"stage\": 0$recompute" "\"stage\": 3, $nvme, $params"
  all_equal 2 "$tmp/moe" 1 "$bf16" '"stage": 0' "\"stage\": 1, $small" '"stage": 2' "\"stage\": 3, $small" "\"stage\": 3, $cpu"
fi
for preset in "$@"; do
  for dtype in "$fp32" "$bf16"; do
    all_equal 1 "$preset" 2 "$dtype" '"stage": 0' '"stage": 1' '"stage": 2' "\"stage\": 3, $small" "\"stage\": 0$recompute" \
      "\"stage\": 2, $cpu" "\"stage\": 1, $nvme" "\"stage\": 3, $nvme, $params"
    for world in 2 3; do
      all_equal $world "$preset" 1 "$dtype" '"stage": 0' "\"stage\": 1, $small" "\"stage\": 2, $small" '"stage": 3' \
        "\"stage\": 3, $small" "\"stage\": 2, $cpu" "\"stage\": 3, $nvme, $params"
    done
    all_equal 2 "$preset" 3 "$dtype" '"stage": 0' "\"stage\": 1, $small"
    all_equal 2 "$preset" 3 "$dtype" '"stage": 2' "\"stage\": 3, $small"
  done
done
echo "$n_runs runs, $n_failed with other bytes"
[ "$n_failed" -eq 0 ]
