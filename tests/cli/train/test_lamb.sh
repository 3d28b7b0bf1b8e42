#!/usr/bin/env bash
# Claim: zero_to_fp32 of Lamb's checkpoints gives the same bytes whatever stage they were trained and
# saved at; a run resumed at another stage and number of ranks is saved as what it was.
set -euo pipefail
cd "$(dirname "$0")/../../.."
bin=$1
fixtures=$1/fixtures
work=$(mktemp -d /tmp/czero-lamb-XXXXXX)
trap 'rm -rf "$work"' EXIT
export OMP_WAIT_POLICY=passive
failed=0

# train STAGE RANKS PRECISION STEPS SAVE [OPTION…]
train() {
  local stage=$1 ranks=$2 precision=$3 steps=$4 save=$5
  shift 5
  local launch=("$bin/czero" train)
  [ "$ranks" = 1 ] || launch=("$bin/czero" launch -n "$ranks" -- train)
  cat >"$work/config.json" <<JSON
{"train_batch_size": 6, "$precision": {"enabled": true}, "zero_allow_untested_optimizer": true,
 "optimizer": {"type": "Lamb", "params": {"lr": 0.01, "weight_decay": 0.1}},
 "zero_optimization": {"stage": $stage, "sub_group_size": 5000}}
JSON
  "${launch[@]}" --config "$work/config.json" --model "$fixtures/models/gpt2-tiny" --quiet --seq-len 16 \
    --data "$fixtures/text/fortunes-64k.txt" --steps "$steps" --save "$work/$save" "$@" >"$work/log" 2>&1 || {
    cat "$work/log" >&2
    exit 1
  }
}

# sum FOLDER: of its fp32 weights
sum() {
  rm -rf "$work/fp32"
  "$bin/zero_to_fp32" "$work/$1" "$work/fp32" --safe_serialization --quiet
  sha256sum <"$work/fp32/model.safetensors"
}

for precision in bf16 fp16; do
  want=""
  for stage in 0 1 2 3; do
    train "$stage" 3 "$precision" 3 "$precision$stage"
    have=$(sum "$precision$stage")
    [ -n "$want" ] || want=$have
    [ "$have" = "$want" ] || { echo "$precision, stage $stage: other weights than stage 0's" >&2; failed=1; }
  done
  train 2 3 "$precision" 2 shorter
  [ "$(sum shorter)" != "$want" ] || { echo "$precision: the last step changed nothing" >&2; failed=1; }
  train 3 2 "$precision" 3 elsewhere --resume "$work/${precision}1"
  train 1 1 "$precision" 3 elsewhere --force --resume "$work/${precision}3"
  [ "$(sum elsewhere)" = "$want" ] || { echo "$precision: other weights after resuming elsewhere" >&2; failed=1; }
  rm -rf "$work/elsewhere" "$work/shorter"
done
exit $failed
