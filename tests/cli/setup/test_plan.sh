#!/usr/bin/env bash
# Claim: `czero plan` prints a table, or with --json one object with the promised keys whose rows add
# up to the peak; ranks, stages and precision show in it; configs that training refuses exit 2.
set -uo pipefail
cd "$(dirname "$0")/../../.."
czero=$1/czero
work=$(mktemp -d /tmp/czero-plan-XXXXXX)
trap 'rm -rf "$work"' EXIT
failed=0
complain() { echo "$*" >&2; failed=1; }
plan() { "$czero" plan --config configs/quickstart.json --model gpt2 --seq-len 128 "$@"; }
value() { grep -o "\"$1\": [0-9]*" "$work/out" | head -1 | grep -o '[0-9]*$'; }

plan >"$work/out" || complain "exit $?"
for word in parameters gradients exp_avg_sq activations workspace peak; do
  grep -q "$word" "$work/out" || complain "no line about $word"
done

plan --json >"$work/out" || complain "exit $?"
for key in host_peak_bytes device_peak_bytes pinned_bytes nvme_bytes; do
  [ -n "$(value $key)" ] || complain "no $key"
done
sum=$(grep -o '"bytes": [0-9]*' "$work/out" | awk '{ s += $2 } END { printf "%.0f", s }')
[ "$sum" = "$(value host_peak_bytes)" ] || complain "rows make $sum, not $(value host_peak_bytes)"
one=$(value host_peak_bytes)

# The table has the bytes of the object, row by row; the first ones by the model's own count.
for more in "--world-size 1" "--world-size 8" "--set zero_optimization.stage=3 --set zero_optimization.offload_optimizer.device=nvme --set zero_optimization.offload_optimizer.nvme_path=$work"; do
  # shellcheck disable=SC2086
  plan --json $more >"$work/object" && plan --verbose $more >"$work/table" 2>"$work/err" || complain "plan $more: exit $?"
  python3 - "$work/object" "$work/table" <<'PY' || complain "plan $more: table and object differ"
import json, re, sys
plan = json.load(open(sys.argv[1]))
rows = re.findall(r"^  (\S.*?) +(host|device|nvme|pinned) +([0-9.]+) MiB", open(sys.argv[2]).read(), re.M)
table = {(name, where): float(mib) for name, where, mib in rows}
want = {(r["name"], r["where"]): r["bytes"] for r in plan["rows"] if r["bytes"] > 0}
want[("peak", "host")] = plan["host_peak_bytes"]
want[("program and libraries", "host")] = plan["baseline_bytes"]
for key, nbytes in want.items():
    slack = 2 if key[0] in ("peak", "program and libraries") else 0.051  # two processes, not quite alike
    assert abs(table[key] - nbytes / 2**20) <= slack, (key, table[key], nbytes)
assert plan["parameters"] == 124439808
PY
done
plan --json --world-size 8 >"$work/out" || complain "exit $?"
[ "$(value world_size)" = 8 ] || complain "world size"
# stage 1: 7/8 of 2 x 4 bytes a parameter leave, a bucket of 4 bytes a parameter comes
[ "$(value host_peak_bytes)" -lt "$one" ] || complain "eight ranks need no less than one"
plan --json --set bf16.enabled=true >"$work/out" || complain "exit $?"
grep -q '"master weights"' "$work/out" || complain "bf16 has no masters"

"$czero" plan --config configs/quickstart.json --model gpt2-xl --seq-len 1024 \
  --set train_micro_batch_size_per_gpu=4096 >"$work/out" || complain "exit $?"
grep -q "It does not fit here" "$work/out" || complain "4096 rows of gpt2-xl fit"

# a GPU run is planned without a GPU; every phase is there
plan --device cuda --json >"$work/out" || complain "exit $?"
[ "$(value device_peak_bytes)" -gt 1000000000 ] || complain "nothing on the device"
for phase in forward backward step save; do
  grep -q "\"phase\": \"$phase\"" "$work/out" || complain "no phase $phase"
done
grep -q '"step_seconds": null' "$work/out" || complain "a time without a profile"

# what is asked for most fits a screen of 80 columns and 24 lines; --verbose adds the small rows and the phases
if command -v script >/dev/null; then
  LC_ALL=C.UTF-8 script -qec "stty cols 80 rows 24; $czero plan --model qwen3-8b --gpu rtx4090 --host-memory 128GB --micro-batch 1 \
    --accumulation 4 --set zero_optimization.stage=3 --set zero_optimization.offload_param.device=nvme \
    --set zero_optimization.offload_optimizer.device=nvme --set zero_optimization.offload_optimizer.nvme_path=$work \
    --set zero_optimization.offload_param.nvme_path=$work 2>/dev/null" /dev/null >"$work/out" </dev/null
  n=$(wc -l <"$work/out")
  [ "$n" -ge 12 ] && [ "$n" -le 24 ] || complain "$n lines: $(cat "$work/out")"
fi
plan >"$work/out" 2>"$work/err" || complain "exit $?"
grep -q "step scalars\|Phases" "$work/out" && complain "small rows, or phases: $(cat "$work/out")"
grep -q "^  and [1-9][0-9]* rows\{0,1\} below 1 % or in the swap file (--verbose lists all)$" "$work/out" || complain "small rows are not counted"
n=$(grep -c "^  .* [0-9.]* MiB" "$work/out") small=$(grep -o "and [0-9]* row" "$work/out" | grep -o "[0-9]*")
plan --verbose >"$work/out" 2>"$work/err" || complain "exit $?"
grep -q "step scalars" "$work/out" && grep -q "^  backward   uses host" "$work/out" || complain "--verbose leaves something out"
grep -q "lists all" "$work/out" && complain "--verbose counts what it lists"
[ "$(grep -c "^  .* [0-9.]* MiB" "$work/out")" = $((n + small)) ] || complain "$n rows and $small small ones are not all"

# a name is enough; the GPU and the host that are meant need not be here
"$czero" plan --model llama-7b >"$work/out" 2>"$work/err" || complain "a name alone: exit $?: $(cat "$work/err")"
grep -q "bf16, AdamW, ZeRO stage 0, micro-batch 1" "$work/err" || complain "the default config is not said"
grep -q "2048 tokens a row" "$work/err" || complain "the default length is not said"
CZERO_CUDA_PLUGIN=none "$czero" plan --model llama-7b --device cuda >"$work/out" 2>/dev/null || complain "exit $?"
grep -q "a GPU has to have 106.* GiB: 141 GB (H200)" "$work/out" || complain "which GPU is not said: $(cat "$work/out")"
grep -q "It does not fit here" "$work/out" && complain "a GPU's plan is about this host"
"$czero" plan --model llama-7b --gpu rtx4090 --host-memory 128GB --set zero_optimization.stage=2 \
  --set zero_optimization.offload_optimizer.device=cpu >"$work/out" 2>/dev/null || complain "exit $?"
for text in "It fits the host: .* of its 128 GB" "It fits the GPU: .* of its 24 GB" "^Predicted: .* tokens/s" \
  "RTX 4090 (published rates)" "DeepSpeed's estimator says 12.55 GiB of GPU and 150.62 GiB of host memory"; do
  grep -q "$text" "$work/out" || complain "no \"$text\" in $(cat "$work/out")"
done
"$czero" plan --model gpt2-7b --gpu-memory 24GB --host-memory 16GB >"$work/out" 2>/dev/null || complain "exit $?"
grep -q "It does not fit the GPU: it needs .* of its 24 GB" "$work/out" || complain "7B on 24 GB: $(cat "$work/out")"

# a step of minutes is announced, by plan and before training begins
mkdir "$work/long"
echo '{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 300,
  "intermediate_size": 160, "max_position_embeddings": 8000000}' >"$work/long/config.json"
"$czero" plan --model "$work/long" --seq-len 4000000 >"$work/out" 2>/dev/null || complain "exit $?"
grep -q "^Slow: a step computes .* 4000000 tokens): about [0-9]* minutes or more" "$work/out" || complain "a long step is not announced"
"$czero" plan --model "$work/long" --seq-len 64 >"$work/out" 2>/dev/null || complain "exit $?"
grep -q "^Slow" "$work/out" && complain "a short step is called slow"
head -c 30000 /dev/urandom | base64 >"$work/text"
"$czero" train --config configs/quickstart.json --model "$work/long" --init random --data "$work/text" --seq-len 30000 \
  --steps 1 --set train_micro_batch_size_per_gpu=1 --set gradient_accumulation_steps=10000 >"$work/out" 2>"$work/err" &
train=$!
for _ in $(seq 200); do
  grep -q "a step computes" "$work/err" && break
  kill -0 $train 2>/dev/null || break
  sleep 0.1
done
kill -KILL $train 2>/dev/null # a signal to end waits for the step
wait $train 2>/dev/null
grep -q "^czero: a step computes .* minutes or more" "$work/err" || complain "train does not announce it: $(cat "$work/err")"

refused() { # expected exit code, part of the sentence, arguments…
  local code=$1 part=$2
  shift 2
  "$czero" plan "$@" >"$work/out" 2>"$work/err"
  local got=$?
  [ $got = "$code" ] || complain "$*: exit $got, not $code"
  grep -q -- "$part" "$work/err" || complain "$*: $(cat "$work/err")"
}
# What layers save, by the rates of a profile: of the config, or --profile, which wins.
layered=(--config "$work/layered.json" --model gpt2-tiny --seq-len 64)
cat >"$work/layered.json" <<EOF
{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4, "bf16": {"enabled": true}, "optimizer": {"type": "AdamW"},
 "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "$work"}},
 "czero": {"machine_profile": "$work/machine.json", "activation_memory": 1}}
EOF
machine() { # FILE, operations and bytes of NVMe per second
  printf '{"format": "czero machine", "version": 1, "cpu": "", "isa": "", "device": "", "threads": 1' >"$work/$1"
  for key in gemm_fp32_operations="$2" gemm_bf16_operations="$2" gemm_fp16_operations="$2" triad_bytes=1e11 adam_fp32_parameters=1e9 \
    adam_bf16_parameters=1e9 comm_bytes=0 host_to_device_bytes=0 device_to_host_bytes=0 device_gemm_fp32_operations=0 \
    device_gemm_bf16_operations=0 device_gemm_fp16_operations=0 device_copy_bytes=0 nvme_read_bytes="$3" nvme_write_bytes="$3" \
    nvme_read_and_write_bytes="$3"; do
    printf ', "%s_per_second": %s' "${key%=*}" "${key#*=}" >>"$work/$1"
  done
  printf ', "device_memory_bytes": 0, "nvme_path": "%s", "nvme_block_bytes": 0, "nvme_queue_depth": 0, "nvme_how": ""}' \
    "$work" >>"$work/$1"
}
machine machine.json 1e6 1e12
machine slow.json 1e12 1e3
says() { # the end of the line, arguments…
  local part=$1
  shift
  "$czero" plan --verbose "${layered[@]}" "$@" >"$work/out" 2>"$work/err" || complain "exit $?: $(cat "$work/err")"
  grep -q "^What layers save .*): $part\.$" "$work/out" || complain "$*, not $part: $(grep '^What' "$work/out")"
}
says "1 layer kept in memory ([^()]*), 2 layers on NVMe (recomputing takes [0-9.]* s, NVMe 0 s that nothing hides)"
says "1 layer kept in memory ([^()]*), 2 layers recomputed (recomputing takes [0-9.]* s, NVMe [0-9.,]* s that nothing hides)" --profile "$work/slow.json"
says "3 layers kept in memory (recomp[^()]*)" --set czero.activation_memory=1000000000
says "3 layers recomputed" --set czero.machine_profile=null
"$czero" plan "${layered[@]}" --json >"$work/out"
python3 -c 'import json, sys; s = json.load(open(sys.argv[1]))["saved_activations"]
assert s["on_nvme"]["layers"] == 2 and s["on_nvme"]["nvme_seconds"] < s["on_nvme"]["recompute_seconds"], s
assert s["recomputed"] == {"layers": 0, "recompute_seconds": None, "nvme_seconds": None} and "profile" in s["why"], s' "$work/out" ||
  complain "JSON: $(cat "$work/out")"
striped() { # seconds on NVMe of a forward with more settings
  "$czero" plan "${layered[@]}" --profile "$work/slow.json" --json "$@" |
    python3 -c 'import json, sys; print(json.load(sys.stdin)["phases"][0]["seconds"]["nvme"])'
}
one=$(striped) four=$(striped --set "czero.nvme_paths=[\"$work\", \"/tmp\"]" --set "czero.nvme_rates=[1,3]")
awk -v a="$one" -v b="$four" 'BEGIN { exit !(b > 0 && a / b > 3.999 && a / b < 4.001) }' || complain "striped: $one s, $four s"

base=(--config configs/quickstart.json --model gpt2-tiny --seq-len 64)
refused 2 "sequence parallelism" "${base[@]}" --set sequence_parallel_size=2
refused 2 "gpt2-huge" --config configs/quickstart.json --model gpt2-huge --seq-len 64
refused 2 "seq" --config configs/quickstart.json --model gpt2-tiny --seq-len 65
refused 2 "missing.json" --config missing.json --model gpt2-tiny --seq-len 64
refused 2 "nothing.json" "${base[@]}" --profile nothing.json
sed -i 's/"cpu": ""/"cpu": 3/' "$work/slow.json"
refused 4 "slow.json:1:" "${layered[@]}" --profile "$work/slow.json"
refused 4 "czero.machine_profile: .*slow.json:1:" "${layered[@]}" --set czero.machine_profile="$work/slow.json"
refused 2 "did you mean 24GB" --model gpt2 --gpu-memory 24
refused 2 "known are rtx3060" --model gpt2 --gpu gtx1080
refused 2 "has no GPU" --model gpt2 --gpu l4 --device cpu
refused 2 "grad_accum_dtype" "${base[@]}" --set data_types.grad_accum_dtype=bf16
# Time grows with the number of layers, not with its square: eight times the layers take eight times
# as long (20 at most here; CPU time, the better of two).
seconds() { # LAYERS STAGE
  local best=999 took
  printf '{"model_type": "gpt2", "n_layer": %d, "n_embd": 4, "n_head": 1, "n_positions": 16, "vocab_size": 300}' \
    "$1" >"$work/deep/config.json"
  for _ in 1 2; do
    took=$( { TIMEFORMAT=%U; time timeout 60 "$czero" plan --config configs/quickstart.json --model "$work/deep" \
      --seq-len 8 --world-size 4 --set zero_optimization.stage="$2" >"$work/out"; } 2>&1 | tail -1)
    best=$(awk -v a="$took" -v b="$best" 'BEGIN { print a < b ? a : b }')
    awk -v t="$took" 'BEGIN { exit t < 2 }' && break
  done
  grep -q peak "$work/out" || echo "no plan of $1 layers" >&2
  echo "$best"
}
mkdir "$work/deep"
for stage in 0 3; do
  few=$(seconds 4096 "$stage") many=$(seconds 32768 "$stage")
  awk -v few="$few" -v many="$many" 'BEGIN { exit !(many > 20 * few + 0.05) }' &&
    complain "stage $stage: 4,096 layers take $few s, 32,768 layers $many s"
done
exit $failed
