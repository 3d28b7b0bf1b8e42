#!/usr/bin/env bash
# Make the tables of docs/memory.md with czero plan:
#   scripts/memory_tables.sh [build/czero]            on stdout
#   scripts/memory_tables.sh [build/czero] --write    into docs/memory.md
# Sizes of workspaces depend on kernels and threads, so both are fixed here.
export CZERO_CUDA_PLUGIN=none # as on a machine without a GPU, everywhere
set -euo pipefail
cd "$(dirname "$0")/.."
czero=build/czero write=
for word in "$@"; do
  if [ "$word" = --write ]; then write=1; else czero=$word; fi
done
export CZERO_ISA=avx2 OMP_NUM_THREADS=4

zero=zero_optimization
recompute=(--set czero.activation_checkpointing.every=1)
optimizer_cpu=(--set $zero.stage=3 --set $zero.offload_optimizer.device=cpu)
params_cpu=(--set $zero.offload_param.device=cpu)
optimizer_nvme=(--set $zero.stage=3 --set $zero.offload_optimizer.device=nvme --set $zero.offload_optimizer.nvme_path=/tmp)
params_nvme=(--set $zero.offload_param.device=nvme --set $zero.offload_param.nvme_path=/tmp)

# GiB of GPU, host (without the program) and NVMe of one rank, as cells of a table.
cells() { # model, options…
  local model=$1
  shift
  "$czero" plan --config configs/bf16.json --model "$model" --seq-len 1024 \
    --set train_micro_batch_size_per_gpu=1 --set $zero.reduce_bucket_size=50000000 "${recompute[@]}" "$@" --json 2>/dev/null |
    awk -F': |,' '
      /"host_peak_bytes"/ { host = $2 }
      /"device_peak_bytes"/ { gpu = $2 }
      /"nvme_bytes"/ { nvme = $2 }
      /"baseline_bytes"/ { host -= $2 }
      function cell(n) { return n == 0 ? "-" : sprintf("%.1f", n / 1073741824) }
      END { printf " %s / %s / %s |", cell(gpu), cell(host), cell(nvme) }'
}

row() { # what, options…
  local what=$1
  shift
  printf '| %s |' "$what"
  for model in gpt2 gpt2-1.3b gpt2-7b gpt2-13b gpt2-70b; do cells "$model" "$@"; done
  printf '\n'
}

head_of() {
  printf '\n%s\n\n| | 124M | 1.3B | 7B | 13B | 70B |\n|---|---|---|---|---|---|\n' "$1"
}

tables() {
  head_of "One rank on the CPU:"
  row "all in memory"
  row "optimizer on NVMe" "${optimizer_nvme[@]}"
  row "optimizer and parameters on NVMe" "${optimizer_nvme[@]}" "${params_nvme[@]}"
  row "the same, and gradients" "${optimizer_nvme[@]}" "${params_nvme[@]}" --set czero.offload_gradients=true
  head_of "One rank with a GPU:"
  row "all on the GPU" --device cuda
  row "optimizer in the host" --device cuda "${optimizer_cpu[@]}"
  row "optimizer and parameters in the host" --device cuda "${optimizer_cpu[@]}" "${params_cpu[@]}"
  row "optimizer on NVMe" --device cuda "${optimizer_nvme[@]}"
  row "optimizer on NVMe, parameters in the host" --device cuda "${optimizer_nvme[@]}" "${params_cpu[@]}"
  row "optimizer and parameters on NVMe" --device cuda "${optimizer_nvme[@]}" "${params_nvme[@]}"
  head_of "One of eight ranks, each with a GPU:"
  for stage in 0 1 2 3; do row "stage $stage" --device cuda --world-size 8 --set $zero.stage=$stage; done
  row "stage 3, optimizer in the host" --device cuda --world-size 8 "${optimizer_cpu[@]}"
  row "stage 3, optimizer and parameters on NVMe" --device cuda --world-size 8 "${optimizer_nvme[@]}" "${params_nvme[@]}"
}

if [ -z "$write" ]; then
  tables
  exit
fi
page=$(mktemp)
trap 'rm -f "$page"' EXIT
tables >"$page.tables"
sed -e '/<!-- tables: begin/,/<!-- tables: end/{/<!-- tables: begin/{p;r '"$page.tables"'
};/<!-- tables: end/p;d}' docs/memory.md >"$page"
rm -f "$page.tables"
cp "$page" docs/memory.md
