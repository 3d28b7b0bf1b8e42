#!/usr/bin/env bash
# The full matrix of bit equality: at each number of ranks, the SHA-256 of the fp32 masters after 30
# steps is the same for stages 0-3, overlap on and off, bucket and sub-group sizes tiny, default and
# huge, over shared memory and over MPI, in fp32, bf16 and static fp16, with clipping; with
# accumulation 3 the same inside stages 0-1 and inside 2-3, and within 1e-6 on the loss across. Lamb
# the same in fp32, bf16 and dynamic fp16.
#   ctest --test-dir build -L slow -R matrix      (CZ_WORLDS="2 3" and so on: a part of it)
set -euo pipefail
czero=$1/czero fixtures=$1/fixtures
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
export OMP_WAIT_POLICY=passive OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
mpi=yes
command -v mpirun >/dev/null || { mpi=no; echo "no mpirun here: shared memory only"; }

declare -A dtypes=(
  [fp32]='"fp16": {"enabled": false}'
  [bf16]='"bf16": {"enabled": true}'
  [fp16]='"fp16": {"enabled": true, "loss_scale": 1024}'
  [fp16-dynamic]='"fp16": {"enabled": true, "initial_scale_power": 24, "loss_scale_window": 5}'
)
declare -A optimizers=(
  [adamw]='"type": "AdamW", "params": {"lr": 0.001, "weight_decay": 0.1}'
  [lamb]='"type": "Lamb", "params": {"lr": 0.01, "weight_decay": 0.1}'
)
optimizer=adamw
declare -A sizes=(
  [tiny]='"reduce_bucket_size": 500, "sub_group_size": 700, "stage3_prefetch_bucket_size": 300,
    "stage3_max_live_parameters": 1000, "stage3_max_reuse_distance": 100,
    "stage3_param_persistence_threshold": 0'
  [default]='"round_robin_gradients": false'
  [huge]='"reduce_bucket_size": 1000000000000, "sub_group_size": 1000000000000,
    "stage3_prefetch_bucket_size": 1000000000, "stage3_param_persistence_threshold": 5000'
)

# run BACKEND WORLD STAGE OVERLAP SIZE DTYPE ACCUMULATION -> "sha256 loss"
run() {
  local launch=("$czero" launch -n "$2" -- train)
  [ "$1" = shm ] || launch=(mpirun -n "$2" --oversubscribe "$czero" train)
  cat >"$tmp/config.json" <<JSON
{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": $7, "gradient_clipping": 0.5,
 ${dtypes[$6]}, "optimizer": {${optimizers[$optimizer]}}, "zero_allow_untested_optimizer": true,
 "zero_optimization": {${sizes[$5]},
  "stage": $3, "overlap_comm": $4}}
JSON
  rm -rf "$tmp/export" "$tmp/curve.csv"
  "${launch[@]}" --config "$tmp/config.json" --model "$fixtures/models/gpt2-tiny" --quiet \
    --data "$fixtures/text/fortunes-64k.txt" --seq-len 16 --steps 30 --shuffle off \
    --export "$tmp/export" --curve "$tmp/curve.csv" >"$tmp/out" 2>&1 || {
    echo "failed: $*" >&2
    tail -5 "$tmp/out" >&2
    return 1
  }
  echo "$(sha256sum <"$tmp/export/model.safetensors" | cut -d' ' -f1)" \
    "$(tail -1 "$tmp/curve.csv" | cut -d, -f2)"
}

n_runs=0 n_failed=0

# all_equal WORLD DTYPE ACCUMULATION STAGES: sets `loss`
all_equal() {
  local want="" have stage overlap size backend backends=shm
  [ "$mpi" = no ] || [ "$1" = 1 ] || backends="shm mpi"
  for backend in $backends; do
    for stage in $4; do
      for overlap in false true; do
        for size in tiny default huge; do
          have=$(run "$backend" "$1" "$stage" "$overlap" "$size" "$2" "$3") || have="nothing 0"
          n_runs=$((n_runs + 1))
          loss=${have#* }
          have=${have% *}
          [ -n "$want" ] || want=$have
          if [ "$have" != "$want" ]; then
            echo "differs: $optimizer $backend world $1 stage $stage overlap $overlap $size $2 accumulation $3"
            n_failed=$((n_failed + 1))
          fi
        done
      done
    done
  done
}

for world in ${CZ_WORLDS:-1 2 3 4}; do
  for dtype in ${CZ_DTYPES:-fp32 bf16 fp16}; do
    all_equal "$world" "$dtype" 1 "0 1 2 3"
    echo "world $world $dtype: $n_runs runs so far, $n_failed differ"
  done
  optimizer=lamb
  for dtype in fp32 bf16 fp16-dynamic; do
    all_equal "$world" "$dtype" 1 "0 1 2 3"
    echo "world $world $dtype, Lamb: $n_runs runs so far, $n_failed differ"
  done
  optimizer=adamw
  all_equal "$world" fp32 3 "0 1"
  first=$loss
  all_equal "$world" fp32 3 "2 3"
  python3 -c "import sys; sys.exit(abs($first - $loss) > 1e-6)" || {
    echo "world $world: losses of the two classes differ: $first and $loss"
    n_failed=$((n_failed + 1))
  }
done
echo "$n_runs runs, $n_failed failures"
[ "$n_failed" = 0 ]
