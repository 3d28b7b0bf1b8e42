#!/usr/bin/env bash
# Build czero with its CUDA plug-in on a machine with an NVIDIA GPU, or take the programs that scripts/gpu_pack.sh
# --prebuilt packed; run all checks on the device, and print one table: check, result, goal, ratio, pass | fail |
# skipped with the reason. The table is written anew after every row.
#   scripts/gpu_check.sh --part A               what decides first, in at most 7 minutes: the kernels' tests and their times
#   scripts/gpu_check.sh --part B               then, in 8: agreement with PyTorch, GPT-2 124M beside it, the other tests
#   scripts/gpu_check.sh --part C               then, in 8: the machine, offload, recorded runs, the largest model
#   scripts/gpu_check.sh                        all stages
#   scripts/gpu_check.sh --stage build,agree    these stages, in this order, of: build agree large oracle memory bench
#                                               profile train largest sanitize
#     --minutes N     limit of the whole run (default 28)
#     --limit S       limit of a step in seconds; every step also has its own limit
#     --continue      run only the steps that earlier commands have not finished; a bench with less than
#                     half of its time left waits for the next command
#     --out DIR       report.md, report.json and logs.tar.gz (default build-gpu/report); the rows of earlier
#                     stages stay in the build folder until their stage runs again
#     --pack FILE     the output of scripts/gpu_pack.sh: libraries, programs, wheels (default .gpu/pack.tar.xz, if it is there
#                     and holds programs or the libraries are not installed)
#     --deps DIR      unpacked libraries and headers; --wheels DIR, --llmc DIR
#     --build DIR     (default build-gpu; missing targets are built first); --jobs N parallel compiles and tests (default: the cores)
#     --nvme DIR      folder for swap files of the largest model
#     --only REGEX    only the steps that match; --list lists the steps and runs none
#     --simulated     use the simulated device, to test this script without measuring;
#     --peers         with --simulated: also run PyTorch and DeepSpeed on the CPU
# Exit: 0 no failure, 1 a failure, 2 usage.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
ALL_STAGES="build agree large oracle memory bench profile train largest sanitize"
stages=all part='' minutes='' out='' pack='' deps='' wheels='' llmc='' build='' jobs='' nvme='' peers='' prebuilt='' limit_max=600 only=. except='' list='' simulated='' continue=''

usage() { echo "gpu_check: $*; see gpu_check.sh --help" >&2; exit 2; }
while [ $# -gt 0 ]; do
  case $1 in
    --simulated) simulated=1 && shift && continue ;;
    --peers) peers=1 && shift && continue ;;
    --list) list=1 && shift && continue ;;
    --continue) continue=1 && shift && continue ;;
    --help | -h) sed -n '2,/^set /s/^# \{0,1\}//p' "$0" && exit 0 ;;
    --*) [[ ${2:---} != --* ]] || usage "$1 needs a value" ;;
    *) usage "$1: not an option" ;;
  esac
  case $1 in
    --stage) stages=$2 ;;
    --part) part=$2 ;;
    --minutes) minutes=$2 ;;
    --out) out=$2 ;;
    --pack) pack=$2 ;;
    --deps) deps=$2 ;;
    --wheels) wheels=$2 ;;
    --llmc) llmc=$2 ;;
    --build) build=$2 ;;
    --jobs) jobs=$2 ;;
    --limit) limit_max=$2 ;;
    --nvme) nvme=$2 ;;
    --only) only=$2 ;;
    *) usage "$1: no such option" ;;
  esac
  shift 2
done
case $part in
  '') : "${minutes:=28}" ;;
  A) : "${minutes:=7}" ;;
  B | C) : "${minutes:=8}" ;;
  *) usage "--part $part: A, B or C" ;;
esac
[[ $minutes =~ ^[0-9]+$ && $minutes -gt 0 ]] || usage "--minutes $minutes: a number above 0"
[[ ${jobs:=$(nproc)} =~ ^[0-9]+$ && $jobs -gt 0 ]] || usage "--jobs $jobs: a number above 0"
[[ $limit_max =~ ^[0-9]+$ && $limit_max -gt 0 ]] || usage "--limit $limit_max: a number above 0"
[ "$stages" = all ] && stages=$ALL_STAGES
for stage in ${stages//,/ }; do
  [[ " $ALL_STAGES " == *" $stage "* ]] || usage "--stage $stage: one of $ALL_STAGES"
done
python=$(python3 -c 'import sys; print(sys.executable)') || usage "python3 is needed" # itself, not what starts it
build=$(realpath -m "${build:-build-gpu${simulated:+-sim}}")
out=$(realpath -m "${out:-$build/report}")
deadline=$((SECONDS + minutes * 60))
logs=$build/report/logs rows=$build/report/rows.tsv ended=$build/report/ended.tsv
mkdir -p "$logs" "$out" || exit 2
touch "$rows" "$ended"
work=$(mktemp -d "${TMPDIR:-/tmp}/czero-gpu-check-XXXXXX")
trap 'rm -rf "$work"' EXIT
# What DeepSpeed compiles stays in the build folder; locks of processes that were stopped there do not. Check ends cases after 4 s
# unless told; programs side by side share the GPU, and start slowly; one case that hangs leaves time for the others.
export OMP_WAIT_POLICY=passive PYTHONUNBUFFERED=1 TORCH_EXTENSIONS_DIR=$build/torch_extensions
rm -f "$TORCH_EXTENSIONS_DIR"/*/lock
export CK_DEFAULT_TIMEOUT=${CK_DEFAULT_TIMEOUT:-$([ -n "$simulated" ] && echo 150 || echo 120)}

# ---- where things are ----

# The first file of that name in the packages of NVIDIA's that this python has.
python_packages_have() {
  python3 -c '
import glob, os, site, sys
found = [f for root in sys.path + site.getsitepackages() for f in glob.glob(os.path.join(root, "nvidia", "*", sys.argv[1]))]
print(found[0] if found else "")
sys.exit(not found)' "$1"
}

unpack() { # the pack, once
  [ -n "$pack" ] || [ ! -e .gpu/pack.tar.xz ] || pack=.gpu/pack.tar.xz
  [ -n "$pack" ] || return 0
  [ -f "$pack" ] || usage "--pack $pack: no such file"
  local to=$build/pack
  if [ "$pack" -nt "$to/.unpacked" ]; then
    rm -rf "$to" && mkdir -p "$to"
    if command -v xz >/dev/null; then tar -C "$to" -xf "$pack"; else "$python" -m tarfile -e "$pack" "$to"; fi || exit 2
    touch "$to/.unpacked"
  fi
  [ ! -d "$to/prebuilt" ] || prebuilt=$to/prebuilt
  [ -n "$deps" ] || deps=$to/deps
  [ -n "$wheels" ] || [ ! -d "$to/wheels" ] || wheels=$to/wheels
  [ -n "$llmc" ] || [ ! -d "$to/llm.c" ] || llmc=$to/llm.c
}
installed() { pkg-config --exists hwloc liburing libutf8proc libdeflate zlib libzstd check 2>/dev/null; }
[ -n "$list" ] || [ -n "$deps" ] || { [ -z "$pack" ] && [ ! -e .gpu/pack.tar.xz ] && installed; } || unpack
[ -z "$deps" ] || deps=$(realpath -m "$deps")
[ -z "$llmc" ] || llmc=$(realpath -m "$llmc")
fixtures=$build/fixtures
export CZERO_TEST_BUILD=$build # programs of a pack were built elsewhere
command -v nvcc >/dev/null || [ ! -x /usr/local/cuda/bin/nvcc ] || PATH=$PATH:/usr/local/cuda/bin
# NCCL, where only PyTorch's packages have it.
system_has_nccl() { [[ $(ldconfig -p 2>/dev/null) == *libnccl.so.2* ]] || [ -e /usr/local/cuda/lib64/libnccl.so.2 ]; }
if [ -z "$simulated$list${CZERO_NCCL_LIBRARY:-}" ] && ! system_has_nccl; then
  nccl=$(python_packages_have lib/libnccl.so.2) && export CZERO_NCCL_LIBRARY=$nccl
fi
czero=$build/czero
unset CZERO_CUDA_PLUGIN
if [ -n "$simulated" ]; then
  export CZERO_CUDA_PLUGIN=$build/cuda_sim/libczero_cuda.so
fi

# ---- a step: one or several rows ----

# step STAGE WHAT GOAL SECONDS COMMAND…: passes with exit 0, is skipped with 77. Its log may hold
# "result: …", "skipped: …", or JSON lines of benches (bench/gpu/gpu_common.py), each of which is a row.
# Benches hear in SECONDS_LEFT what they have.
step() {
  local stage=$1 what=$2 goal=$3 limit=$4 left=$((deadline - SECONDS)) begin=$SECONDS code log is_whole=1 least=5
  shift 4
  [[ $what =~ $only && ! (-n $except && $what =~ $except) ]] || return 0
  [ -z "$list" ] || { printf '%-9s %s\n' "$stage" "$what"; return 0; }
  [ -z "$continue" ] || ! grep -qxF "$stage"$'\t'"$what" "$ended" || return 0
  log=$logs/$stage-$(tr -cs 'A-Za-z0-9\n' _ <<<"$what").log
  [ "$limit" -le "$limit_max" ] || limit=$limit_max
  [ -z "$continue" ] || [[ $stage != bench && $stage != largest ]] || least=$((limit / 2))
  if [ $left -lt $least ]; then
    echo "skipped: the $minutes minutes are over" >"$log"
    code=77 is_whole=''
  else
    [ "$limit" -le "$left" ] || { limit=$left && is_whole=''; }
    rm -f "$log.cases"
    SECONDS_LEFT=$((limit > 20 ? limit - 10 : limit)) CK_TAP_LOG_FILE_NAME=$log.cases \
      timeout -k 10 "$limit" bash -uo pipefail -c '"$@"' step "$@" >"$log" 2>&1 </dev/null
    code=$?
    # Check's programs say at their end what there was: of one that had none, the cases that ended
    [ $code != 124 ] || [ ! -e "$log.cases" ] || cat "$log.cases" >>"$log"
    rm -f "$log.cases"
    if [ $code = 0 ]; then
      [ -n "$is_whole" ] || grep -q 'no time is left' "$log" || is_whole=1
    elif [ "$stage" = build ]; then
      is_whole=''
    fi
  fi
  [ -z "$is_whole" ] || printf '%s\t%s\n' "$stage" "$what" >>"$ended"
  (
    flock 9 # steps beside each other end at any time
    awk -F'\t' -v stage="$stage" -v what="$what" '$1 != stage || $9 != what' "$rows" >"$rows.new"
    "$python" scripts/gpu_report.py row --stage "$stage" --what "$what" --goal "$goal" --code $code \
      --limit "$limit" --seconds $((SECONDS - begin)) ${simulated:+--simulated} --log "$log" >>"$rows.new"
    mv "$rows.new" "$rows"
    table
  ) 9>"$rows.lock"
  [ $code = 0 ] || [ $code = 77 ] || echo "failed: $what ($log)" >&2
  return $code
}

# In the background, --jobs at a time (or, of what is several programs itself, ranks_beside), with two threads
# each; await() waits for all.
beside() {
  while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
  OMP_NUM_THREADS=2 step "$@" &
}
ranks_beside() {
  while [ "$(jobs -rp | wc -l)" -ge $(((jobs + 3) / 4)) ]; do wait -n; done
  OMP_NUM_THREADS=2 step "$@" &
}
await() { wait; }

# The rows of a stage that begins go; with --continue only those of steps that have not ended.
forget() {
  [ -n "$continue" ] || { grep -v "^$1"$'\t' "$ended" >"$work/ended"; cp "$work/ended" "$ended"; }
  awk -F'\t' -v stage="$1" 'FILENAME == ARGV[1] {ended[$0]; next} $1 != stage || ($1 "\t" $9) in ended' \
    "$ended" "$rows" >"$work/rows"
  cp "$work/rows" "$rows"
}

# What is known so far, in --out: after every row, so that it exists even if this script is ended; the logs after
# every stage.
table() {
  local code
  "$python" scripts/gpu_report.py table --rows "$rows" --out "$out" --machine "$gpu" ${simulated:+--simulated} >"$work/table.new"
  code=$?
  mv "$work/table.new" "$work/table"
  return $code
}
report() {
  local log
  find "$logs" -name '*.log' -size +1M | while read -r log; do
    { head -c 400000 "$log" && printf '\n…\n' && tail -c 400000 "$log"; } >"$work/log" && mv "$work/log" "$log"
  done
  tar -C "$build/report" -czf "$out/logs.tar.gz" logs
  table
}

# ---- stages ----

toolkit_has_cublas() {
  printf '#include <cublasLt.h>\nint main() { return !cublasLtGetVersion(); }\n' |
    nvcc -x cu - -lcublasLt -o "$work/cublas" >/dev/null 2>&1
}
configure() {
  local args=(-G Ninja -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DCZ_WERROR=OFF -DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON
    -DCZ_GPU_TESTS="$([ -n "$simulated" ] && echo OFF || echo ON)")
  if [ -n "$deps" ]; then
    local rpath="-Wl,--disable-new-dtags,-rpath,$deps/lib"
    export PKG_CONFIG_LIBDIR=$deps/lib/pkgconfig PKG_CONFIG_PATH=''
    args+=(-DCMAKE_PREFIX_PATH="$deps" -DDNNL_LIBRARY="$deps/lib/libdnnl.so" -DDNNL_INCLUDE_DIR="$deps/include"
      -DCMAKE_EXE_LINKER_FLAGS="$rpath" -DCMAKE_SHARED_LINKER_FLAGS="$rpath")
    if ! command -v pkg-config >/dev/null; then
      printf '#!/bin/sh\nLD_LIBRARY_PATH=%s exec %s "$@"\n' "$deps/lib" "$deps/bin/pkgconf" >"$build/pkg-config"
      chmod +x "$build/pkg-config"
      args+=(-DPKG_CONFIG_EXECUTABLE="$build/pkg-config")
    fi
  fi
  mkdir -p "$build"
  local cublas cuda_flags="--threads 2" # a file's two architectures at a time: the longest take 40 s
  if ! toolkit_has_cublas && cublas=$(python_packages_have include/cublasLt.h); then
    # a toolkit without cuBLASLt: PyTorch's packages have it, under names that no linker looks for (llm.c's does)
    cublas=${cublas%/include/cublasLt.h}
    echo "cuBLASLt from $cublas"
    mkdir -p "$build/cublas"
    ln -sfn "$cublas/include" "$build/cublas/include"
    for name in cublas cublasLt; do ln -sf "$(ls "$cublas/lib/lib$name".so* | head -1)" "$build/cublas/lib$name.so"; done
    args+=(-DCMAKE_C_FLAGS="-isystem $cublas/include" -DCMAKE_CXX_FLAGS="-isystem $cublas/include"
      -DCUDA_cublasLt_LIBRARY="$(readlink -f "$build/cublas/libcublasLt.so")")
    cuda_flags+=" -isystem $cublas/include"
  fi
  args+=(-DCMAKE_CUDA_FLAGS="$cuda_flags")
  cmake "${args[@]}" || return 1
  [ -n "$simulated" ] || grep -q '^CMAKE_CUDA_COMPILER:.*nvcc' "$build/CMakeCache.txt" || {
    echo "nvcc was not found"
    return 1
  }
}

compile() {
  local targets=(czero)
  [ -n "$simulated" ] || targets+=(czero_cuda)
  mapfile -t -O ${#targets[@]} targets < <(ninja -C "$build" -t targets all |
    sed -n 's,^\(tests/gpu/[a-z_0-9]*\|bench/[a-z_0-9]*cuda[a-z_0-9]*\|examples/custom_layer\): .*EXECUTABLE.*,\1,p')
  # what cannot be built costs its own row only; of what can be only the last line is worth a log
  ninja -k 0 -j "$jobs" -C "$build" "${targets[@]}" >"$build/ninja.out" 2>&1
  local code=$?
  grep -v '^\[[0-9/]*\] ' "$build/ninja.out"
  tail -1 "$build/ninja.out"
  [ $code = 0 ] || return 1
  echo "result: ${#targets[@]} targets, -j $jobs, $(nvcc --version | grep -o 'release [0-9.]*'), $(gcc --version | head -1)"
}

# The hardware, for readers of the table, and its rates, for predictions.
machine() {
  local how=(--seconds 20)
  [ -z "$simulated" ] || { how=(--seconds 1) && export CZERO_CUDA_SIM_MEMORY=50000000; } # small products
  timeout 20 nvidia-smi || echo "no nvidia-smi here, or none that answers"
  uname -a
  lscpu | grep -E '^(Model name|CPU\(s\)|Thread)'
  [ -n "$simulated" ] || python3 scripts/gpu_grow_memory.py
  grep -E '^(MemTotal|MemAvailable)' /proc/meminfo
  cat /sys/fs/cgroup/memory.max 2>/dev/null
  ulimit -l
  df -h . "${TMPDIR:-/tmp}" /dev/shm
  rm -f "$build/report/machine.json"
  "$czero" bench "${how[@]}" --profile "$build/report/machine.json" || return 1
  printf 'result: %s cores, %s GiB of host memory available, a GPU: %s\n' "$(nproc)" \
    "$(awk '/MemAvailable/ {printf "%.0f", $2 / 1048576}' /proc/meminfo)" \
    "$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["device"] or "none")' "$build/report/machine.json")"
}

# The pack's programs, where a build would put them, with their libraries beside czero. Those of compilers and cuBLASLt are
# the machine's own; where it has none, the pack's, and PyTorch's.
adopt() {
  local library name found
  [ "$(cat "$prebuilt/sources.sha256")" = "$(scripts/gpu_pack.sh --sources)" ] || {
    echo "skipped: the pack's programs are of other sources than these"
    return 77
  }
  cp -r "$prebuilt/." "$build/" && unpack_fixtures || return 1
  for library in "$deps"/lib/*.so.*; do ln -sf "$library" "$build/"; done
  for library in "$deps"/runtime/*; do
    name=${library##*/}
    [[ $(ldconfig -p 2>/dev/null) == *"$name"* ]] && rm -f "$build/$name" || ln -sf "$library" "$build/$name"
  done
  name=libcublasLt.so.13
  if [[ $(ldconfig -p 2>/dev/null) != *"$name"* ]] && [ ! -e /usr/local/cuda/lib64/$name ]; then
    found=$(python_packages_have lib/$name) && ln -sf "$found" "$build/$name"
  elif [ -e /usr/local/cuda/lib64/$name ]; then
    ln -sf /usr/local/cuda/lib64/$name "$build/$name"
  fi
  for library in czero ${simulated:+cuda_sim/}libczero_cuda.so tests/gpu/test_norm_cuda; do
    ! ldd "$build/$library" | grep 'not found' || { echo "skipped: $library does not start here"; return 77; }
  done
  "$czero" --version | sed 's/^/result: /'
}

# Nothing is built where the pack's programs run.
build_czero() {
  if [ -n "$prebuilt" ] && step build "the pack's programs" "" 120 adopt; then return; fi
  step build "configure" "" 120 configure || return
  step build "compile" "≤ 180 s on 16 cores" 420 compile
}

# What peers compile at their first use: where nothing is measured.
build_peers() {
  [ -n "$simulated" ] && [ -z "$peers" ] || beside build "DeepSpeed and its CPU Adam" "" 300 deepspeed_ready
  [ -n "$simulated" ] || [ -z "$llmc" ] || beside build "llm.c" "" 180 llmc_ready
}

measure_machine() { [ ! -x "$czero" ] && [ -z "$list" ] || step build "this machine" "" 120 machine; }

stage_build() {
  build_peers
  build_czero
  await
  measure_machine
}

stage_agree() {
  local program name
  for program in "$build"/tests/gpu/test_*; do
    name=${program##*/}
    [ -f "$program" ] && [ -x "$program" ] && [[ $name != *_slow && $name != test_large_cuda ]] || continue
    beside agree "$name" "all cases" 240 "$program"
  done
  for program in tests/gpu/test_*.sh; do
    name=${program##*/}
    [[ $name != *_slow.sh && $name != test_cuda_errors.sh ]] || continue
    beside agree "$name" "all claims" 240 bash "$program" "$build"
  done
  await
}

oracle() { # folder
  "$czero" verify "$1" --device cuda | tee /dev/stderr | python3 scripts/gpu_report.py worst
  return "${PIPESTATUS[0]}"
}

# As tests/fixtures/unpack.cmake does, where there is no CMake.
unpack_plainly() {
  local path name
  mkdir -p "$fixtures"
  for path in tests/fixtures/*; do
    name=${path##*/}
    case $name in
      *.tar.xz) [ -d "$fixtures/${name%.tar.xz}" ] || "$python" -m tarfile -e "$path" "$fixtures" || return 1 ;;
      *.sh | *.cmake | *.md) ;;
      *) ln -sfn "$PWD/$path" "$fixtures/$name" ;;
    esac
  done
  ln -sf "$PWD/examples/data/fortunes.txt" "$fixtures/text/fortunes.txt"
}
unpack_fixtures() {
  if command -v cmake >/dev/null; then cmake -DTO="$fixtures" -P tests/fixtures/unpack.cmake; else unpack_plainly; fi
}

stage_oracle() {
  local model
  unpack_fixtures || return
  for model in "$fixtures"/models/{bert-cls,distilbert-cls,gpt2,llama,qwen2}; do
    step oracle "${model##*/}: logits and gradients" "worst relative error ≤ 1e-4" 60 oracle "$model"
  done
}

# The tail of train's arguments that all runs share.
train_args() { # seq-len, steps
  echo --model "$fixtures/models/gpt2-tiny" --data "$fixtures/text/fortunes.txt" --tokenizer bytes \
    --shuffle off --device cuda --quiet --seq-len "$1" --steps "$2"
}

# A recorded run of DeepSpeed's: on one rank by accumulating, or on its own number of ranks, which
# share the GPU.
curve() { # run, ranks: one | all
  local run=$fixtures/runs/$1 world steps seq stage gas tol=1e-4 launch=() sets=()
  read -r world steps seq gas stage < <(python3 scripts/gpu_report.py run "$run")
  [[ $1 == *16-* ]] && tol=2e-2
  [[ $1 == *onebit* || $1 == *zeroone* ]] && tol=5e-3 # a sign near 0 weighs as much as any
  if [ "$2" = all ]; then
    launch=(launch -n "$world" --)
  elif [ "$world" -gt 1 ]; then
    [ "$stage" = 3 ] && stage=2
    sets=(--set "gradient_accumulation_steps=$((gas * world))" --set "zero_optimization.stage=$stage")
  fi
  # shellcheck disable=SC2046
  "$czero" "${launch[@]}" train --config "$run/ds_config.json" $(train_args "$seq" "$steps") \
    "${sets[@]}" --curve "$work/$1-$2.csv" || return 1
  python3 scripts/gpu_report.py curve "$work/$1-$2.csv" "$run/curve.csv" $tol
}

# One step of the matrix: SHA-256 of the weights after six steps. The first of a name is what the
# others have to equal.
bits() { # name of the group, ranks, train's --set arguments…
  local group=$1 ranks=$2 launch=() dir
  shift 2
  dir=$(mktemp -d "$work/bits-XXXXXX") # @ stands for it
  [ "$ranks" = 1 ] || launch=(launch -n "$ranks" --)
  # shellcheck disable=SC2046
  "$czero" "${launch[@]}" train --config configs/quickstart.json $(train_args 32 6) --export "$dir/x" \
    --set train_micro_batch_size_per_gpu=2 --set gradient_clipping=0.5 "${@//@/$dir}" || return 1
  local sum
  sum=$(sha256sum <"$dir/x/model.safetensors" | cut -c1-16)
  rm -rf "$dir"
  echo "result: $sum"
  local want="$build/report/bits of $group" # for the next command, too
  [ -e "$want" ] || echo "$sum" >"$want"
  [ "$(cat "$want")" = "$sum" ] || { echo "result: $sum, not $(cat "$want")"; return 1; }
}

z=zero_optimization
offloaded() { # stage, optimizer: none | cpu | nvme, parameters: the same → --set arguments
  local stage=$1 tier=$2 params=$3
  printf -- '--set %s ' "$z.stage=$stage"
  [ "$tier" = none ] || printf -- '--set %s ' "$z.offload_optimizer.device=$tier"
  [ "$tier" = nvme ] && printf -- '--set %s ' "$z.offload_optimizer.nvme_path=@"
  [ "$params" = none ] || printf -- '--set %s ' "$z.offload_param.device=$params"
  [ "$params" = nvme ] && printf -- '--set %s ' "$z.offload_param.nvme_path=@"
  return 0
}

bit_matrix() { # name, ranks, precision arguments…
  local name=$1 ranks=$2 stage tier params
  shift 2
  step train "$name, stage 0: weights" "" 90 bits "$name" "$ranks" --set $z.stage=0 "$@"
  for stage in 1 2 3; do
    for tier in none cpu nvme; do
      for params in none cpu nvme; do
        [ $params = none ] || { [ $stage = 3 ] && [ $tier != none ]; } || continue
        # shellcheck disable=SC2046
        beside train "$name, stage $stage, optimizer offload $tier, parameters $params: weights" "the bits of stage 0" 90 \
          bits "$name" "$ranks" $(offloaded $stage $tier $params) "$@"
      done
    done
  done
  await
}

stage_train() {
  [ -n "$continue$list" ] || rm -f "$build/report/bits of "*
  local run name
  unpack_fixtures || return
  for run in "$fixtures"/runs/*; do
    name=${run##*/}
    case $name in *onebit* | *zeroone* | v016* | *frozen* | s2-fp16-dynscale) continue ;; esac
    beside train "curve of $name, one rank" "DeepSpeed's losses" 120 curve "$name" one
  done
  await
  for name in s1-fp32-adamw s2-bf16-adamw s2-bf16-cpuoffload s3-fp32-adamw s3-bf16-cpuoffload s1-fp32-dp3 s2-fp16-dynscale \
    s0-onebitadam s0-onebitadam-dp4 s0-onebitlamb s0-zerooneadam; do
    ranks_beside train "curve of $name, its ranks on one GPU" "DeepSpeed's losses" 120 curve "$name" all
  done
  await
  bit_matrix "bf16" 1 --set bf16.enabled=true
  bit_matrix "fp32" 1
  bit_matrix "bf16, two ranks" 2 --set bf16.enabled=true
}

memory() { # arguments of bench/memory_cuda
  "$build/bench/memory_cuda" "$@"
}

stage_memory() {
  local shape=(gpt2 1024 4)
  [ -z "$simulated" ] || shape=(gpt2-tiny 32 2)
  step memory "plan, stage 0, bf16" "within max(2 %, 32 MiB)" 120 \
    memory "${shape[@]}" '{"bf16": {"enabled": true}}'
  step memory "plan, optimizer on the host" "within max(2 %, 32 MiB)" 120 \
    memory "${shape[@]}" '{"bf16": {"enabled": true}, "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}'
  step memory "plan, all on the host" "within max(2 %, 32 MiB)" 120 \
    memory "${shape[@]}" '{"bf16": {"enabled": true}, "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}}'
  step memory "a plan that does not fit is refused before allocating" "exit 3" 60 too_large
}

too_large() {
  local code
  "$czero" train --config configs/bf16.json --model gpt2-70b --data README.md --tokenizer bytes --seq-len 256 \
    --steps 1 --device cuda --quiet --set train_micro_batch_size_per_gpu=1 2>&1 | tail -3
  code=${PIPESTATUS[0]}
  echo "result: exit $code"
  [ "$code" = 3 ]
}

# compute-sanitizer makes programs tens of times slower: single cases, one at a time. One that does not end in
# time without a finding is no failure, nor is a tool that cannot watch this device: that is reported once, at once.
sanitize() { # tool, case of a test program ("" for all), program, arguments…
  local tool=$1 only=$2 sanitizer code said=$work/sanitizer options=()
  shift 2
  sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer \
    /usr/local/cuda*/compute-sanitizer/compute-sanitizer /opt/nvidia/*/compute-sanitizer 2>/dev/null | head -1)
  if [ -n "$simulated" ]; then # whether there is such a case
    CK_RUN_CASE=$only timeout -k 5 "$SECONDS_LEFT" "$@" | tee "$said"
    code=${PIPESTATUS[0]}
    grep -q 'Checks: 0,' "$said" && { echo "no case $only"; return 1; }
    [ "$code" != 0 ] && [ "$code" != 124 ] && return 1
    echo "skipped: the simulated device is no matter for compute-sanitizer"
    return 77
  fi
  [ -n "$sanitizer" ] || { echo "skipped: no compute-sanitizer here"; return 77; }
  [ ! -e "$work/no-sanitizer" ] || { cat "$work/no-sanitizer"; return 77; }
  # what calls return is for programs to look at; a launcher has no context of its own
  [ "$tool" != memcheck ] || options=(--report-api-errors no)
  CK_FORK=no CK_RUN_CASE=$only timeout -k 5 "$SECONDS_LEFT" "$sanitizer" --tool "$tool" --target-processes all \
    --require-cuda-init no "${options[@]}" --error-exitcode 9 --print-limit 20 "$@" | tee "$said"
  code=${PIPESTATUS[0]}
  if grep -q 'Device not supported' "$said"; then
    echo "skipped: compute-sanitizer does not support this device" | tee "$work/no-sanitizer"
    return 77
  fi
  grep -q 'Checks: 0,' "$said" && { echo "no case $only"; return 1; }
  if grep -qE '^=+ +(Invalid|Misaligned|Uninitialized|Barrier error|Potential|(Error|Warning): (Race|Potential))' "$said"; then
    return 9
  elif [ "$code" = 124 ] || [ "$code" = 137 ]; then
    echo "skipped: no findings in $SECONDS_LEFT s, and no end"
    return 77
  elif ! grep -qE '^=+ .*SUMMARY' "$said"; then
    echo "skipped: compute-sanitizer ended with $code before its summary: $(grep '^==' "$said" | tail -1)"
    return 77
  fi
  [ "$code" = 0 ] || echo "the program or the tool ended with $code"
  return "$code"
}

sanitize_case() { # tool, program of tests/gpu, case
  local program=$build/tests/gpu/$2
  [ -x "$program" ] || { [ -n "$list" ] && program=$2; } || return 0
  step sanitize "$1: $2, $3" "no findings" 60 sanitize "$1" "$3" "$program"
}

# Two ranks that share the GPU, their bytes through the host. The sanitizer follows both.
sanitize_ranks() { # tool
  # shellcheck disable=SC2046
  CZERO_DEVICE_COMM=staged sanitize "$1" "" "$czero" launch -n 2 -- train --config configs/quickstart.json \
    $(train_args 32 1) --set train_micro_batch_size_per_gpu=2 --set bf16.enabled=true --set $z.stage=3 \
    --set $z.offload_optimizer.device=cpu
}

# Memory: the kernels with the trickiest tails. Races: those that use shared memory.
stage_sanitize() {
  sanitize_case memcheck test_attention_cuda tensor_cores_agree_with_all_features_together
  sanitize_case racecheck test_attention_cuda tensor_cores_agree_with_all_features_together
  sanitize_case memcheck test_attention_cuda wgmma_agrees_in_reverse_order
  sanitize_case racecheck test_attention_cuda wgmma_agrees_in_reverse_order
  sanitize_case memcheck test_step_cuda adam_agrees_forward
  sanitize_case memcheck test_cross_entropy_cuda it_agrees_forward
  sanitize_case racecheck test_cross_entropy_cuda it_agrees_forward
  sanitize_case racecheck test_norm_cuda norms_agree_forward
  unpack_fixtures && step sanitize "memcheck: two ranks, staged, stage 3" "no findings" 90 sanitize_ranks memcheck
  sanitize_case memcheck test_norm_cuda norms_agree_forward
  sanitize_case racecheck test_reduce_cuda squares_agree_forward
  sanitize_case racecheck test_embedding_cuda backward_agrees_forward
  sanitize_case memcheck test_embedding_cuda backward_agrees_forward
  sanitize_case racecheck test_elementwise_cuda bias_grad_agrees_forward
  sanitize_case memcheck test_ce_head_cuda small_heads_agree_forward
  sanitize_case memcheck test_cuda_device memory_is_zeroed_and_copied_in_stream_order
}
# DeepSpeed from its wheels: those of the packages that this python lacks, and both of a pair that only go
# together.
install_wheels() {
  [ -n "$wheels" ] && [ ! -e "$build/site/.complete" ] || return 0
  local missing
  mapfile -t missing < <(python3 - "$wheels"/*.whl <<'EOF'
import importlib.metadata, os, sys

def is_here(name):
    try:
        return bool(importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return False

pair = ["pydantic", "pydantic_core"]
for wheel in sys.argv[1:]:
    name = os.path.basename(wheel).split("-")[0]
    if not all(map(is_here, pair if name in pair else [name])):
        print(wheel)
EOF
  )
  [ ${#missing[@]} = 0 ] || python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir \
    --disable-pip-version-check --upgrade --target "$build/site" "${missing[@]}" || return 1
  mkdir -p "$build/site" && touch "$build/site/.complete"
}

# DeepSpeed compiles at first use: here, where nothing is measured.
deepspeed_ready() {
  install_wheels || return 1
  export PYTHONPATH=$build/site ${simulated:+DS_ACCELERATOR=cpu}
  python3 -c '
import sys
try:
    import deepspeed, torch, transformers
except ImportError as e:
    print("skipped: this python has no DeepSpeed that works, and no wheel of it is here:", e)
    sys.exit(77)
from deepspeed.accelerator import get_accelerator
for builder in map(get_accelerator().create_op_builder, ["CPUAdamBuilder", "ShareMemCommBuilder"]):
    if builder: # the second is of the CPU alone
        builder.load()
print("result: DeepSpeed", deepspeed.__version__, "torch", torch.__version__, "transformers", transformers.__version__)'
}

llmc_ready() {
  local cublas
  if [ -d "$build/cublas" ]; then
    cublas=$(dirname "$(readlink -f "$build/cublas/libcublas.so")")
    export NVCC_APPEND_FLAGS="-I$build/cublas/include -L$build/cublas -Xlinker -rpath,$cublas"
  fi
  python3 bench/gpu/train_gpu.py --only-llmc --llmc "$build/llm.c" --llmc-from "$llmc" --seconds "$SECONDS_LEFT"
}

python_bench() { # script, arguments…
  install_wheels || echo "the wheels cannot be installed: no DeepSpeed"
  PYTHONPATH=$build/site python3 "$@" --czero "$czero" ${simulated:+--tiny} ${peers:+--peers}
}
# Those that look at the clock, and at what the machine can do.
timed_bench() { python_bench "$@" --seconds "$SECONDS_LEFT"; }

largest() { peers='' timed_bench bench/gpu/largest_gpu.py "$@"; }

# A step of GPT-2 124M taken apart, as it is and with other kernels.
step_table() { # what is set, arguments…
  local setting=$1
  shift
  env ${setting:+"$setting"} "$build/bench/step_cuda" "$@"
}
# Times cuBLASLt's algorithms for the step's products; the table comes back with the report.
measure_algorithms() { # arguments…
  CZERO_CUDA_ALGORITHMS=measure:$out/algorithms "$build/bench/step_cuda" "$@" --steps 1 >/dev/null || return 1
  awk 'NR > 2 { n++; at_first += $NF; best += $(NF - 1); other += $(NF - 2) > 0 }
    END { printf "result: %d products, %d quicker with another algorithm: %.0f us in place of %.0f\n", n, other, best, at_first }' "$out/algorithms"
}
kernels_alone() { env "$1" "$build/bench/attention_cuda" ${simulated:+--tiny} gpt2-124m llama3-8b; }

stage_bench() {
  local shape=(--batch 64)
  [ -z "$simulated" ] || shape=(--tiny)
  step bench "a training step by its calls" "" 60 step_table "" "${shape[@]}"
  step bench "a training step by its calls, bias gradients in products" "" 60 step_table CZERO_CUDA_EPILOGUES=all "${shape[@]}"
  step bench "a training step by its calls, attention with wgmma" "" 60 step_table CZERO_CUDA_ATTENTION=hopper "${shape[@]}"
  step bench "algorithms of products" "" 60 measure_algorithms "${shape[@]}"
  step bench "a training step by its calls, measured algorithms" "" 60 step_table "CZERO_CUDA_ALGORITHMS=$out/algorithms" "${shape[@]}"
  step bench "attention, flash kernels" "" 40 kernels_alone CZERO_CUDA_ATTENTION=flash
  step bench "attention, hopper kernels" "" 40 kernels_alone CZERO_CUDA_ATTENTION=hopper
  step bench "ops on the device" "" 90 "$build/bench/ops_cuda" ${simulated:+--tiny}
  step bench "the same weights" "" 120 timed_bench bench/gpu/same_weights_gpu.py
  step bench "attention beside PyTorch" "" 150 timed_bench bench/gpu/attention_gpu.py
  step bench "GPT-2 124M" "" 280 timed_bench bench/gpu/train_gpu.py ${llmc:+--llmc "$build/llm.c" --llmc-from "$llmc"}
  step bench "1.3 B, all on the host" "" 240 timed_bench bench/gpu/seed_gpu.py seed --profile "$build/report/machine.json"
  step bench "ZeRO-Offload step" "" 240 timed_bench bench/gpu/seed_gpu.py offload --profile "$build/report/machine.json"
}

# Shapes of real training, in programs that leave at once where the device is simulated.
stage_large() {
  step large "large shapes" "within 1 %, repeated to the bit" 150 "$build/tests/gpu/test_large_cuda"
}

# What limits a kernel, in the words of Nsight Compute.
profile() { # kernel, what is set
  local ncu
  ncu=$(command -v ncu || ls /usr/local/cuda*/bin/ncu /opt/nvidia/nsight-compute/*/ncu 2>/dev/null | tail -1)
  [ -n "$ncu" ] || { echo "skipped: no ncu here"; return 77; }
  [ -z "$simulated" ] || { echo "skipped: the simulated device is no matter for ncu"; return 77; }
  env "$2" "$ncu" --clock-control none --kernel-name "regex:$1" --launch-skip 2 --launch-count 1 --set full \
    "$build/bench/attention_cuda" gpt2-124m || return 1
}
stage_profile() {
  step profile "attention_flash_backward" "" 60 profile attention_flash_backward CZERO_CUDA_ATTENTION=flash
  step profile "attention_hopper_forward" "" 60 profile attention_hopper_forward CZERO_CUDA_ATTENTION=hopper
  step profile "attention_hopper_backward" "" 60 profile attention_hopper_backward CZERO_CUDA_ATTENTION=hopper
}

stage_largest() {
  local budgets=()
  [ -z "$simulated" ] || budgets=(--gpu-memory 150MiB --host-memory 150MiB)
  [ -z "$nvme" ] || budgets+=(--nvme "$nvme")
  step largest "the largest model" "" 300 largest "${budgets[@]}" --profile "$build/report/machine.json"
}

# ---- go ----

# A step runs in a shell of its own, so that its time can be limited.
export build out work czero fixtures python prebuilt deps jobs wheels llmc simulated z peers
export -f python_packages_have toolkit_has_cublas adopt unpack_plainly unpack_fixtures configure compile machine oracle train_args curve bits \
  memory too_large sanitize sanitize_ranks install_wheels \
  deepspeed_ready llmc_ready python_bench timed_bench step_table measure_algorithms kernels_alone profile largest

stages=${stages//,/ }
gpu='no GPU that nvidia-smi knows' # in words; it may be slow to answer, and is asked once
gpu_is_here() {
  [ -z "$simulated$list" ] || return 0
  local words
  if words=$(timeout 30 nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null); then
    gpu=${words%%$'\n'*}
  else
    compgen -G '/dev/nvidia[0-9]*' >/dev/null
  fi
}
no_gpu() { echo "no GPU here: nvidia-smi lists none, and there is no /dev/nvidia0"; return 1; }
export -f no_gpu

# Runs what is given for a stage; then writes what is known.
finish() { # stage, command…
  local stage=$1
  shift
  if [ -n "$has_gpu" ]; then "$@" || true; else step "$stage" "a GPU" "" 20 no_gpu; fi
  [ -n "$list" ] || { report && code=0 || code=1; }
}
some() { # regex, command…: those of its steps that match
  local only=$1
  shift
  "$@"
}

# ---- in parts: what decides first comes first ----

CORE='^test_(cuda_device|matmul_cuda|attention_cuda|norm_cuda|step_cuda|ce_head_cuda|embedding_cuda|reduce_cuda)$'
part_A() {
  finish build build_czero
  finish agree some "$CORE" stage_agree
  finish large stage_large
  finish bench some '^(a training step|algorithms|ops on|attention, )' stage_bench
  finish profile stage_profile
}
part_B() {
  finish build build_czero
  finish build build_peers
  except=$CORE finish agree stage_agree
  finish oracle stage_oracle
  await
  finish bench some '^(the same weights|GPT-2|attention beside)' stage_bench
  finish memory stage_memory
  finish sanitize some '^memcheck: test_(attention|step|cross_entropy)_cuda, (tensor|adam|it)' stage_sanitize
}
part_C() {
  finish build build_czero
  finish build build_peers
  await
  finish build measure_machine
  finish bench some '^(1.3 B|ZeRO)' stage_bench
  finish train stage_train
  finish largest stage_largest
  finish sanitize stage_sanitize
}

# ---- all of it ----

has_gpu= watcher=
if gpu_is_here || [ "$stages" = build ]; then # to build, none is needed
  has_gpu=1
  [ -n "$part" ] || [[ " $stages " == *" build "* ]] || [ -n "$list" ] || [ -x "$czero" ] || stages="build $stages"
fi
# Clocks, power and memory of every second, and a GPU that stays awake between short programs.
if [ -n "$has_gpu" ] && [ -z "$simulated$list" ] && command -v nvidia-smi >/dev/null; then
  nvidia-smi dmon -s pucm -d 1 -o T >"$logs/dmon.log" 2>&1 &
  watcher=$!
  trap 'kill "$watcher" 2>/dev/null; rm -rf "$work"' EXIT
fi
if [ -n "$part" ]; then
  "part_$part"
else
  for stage in $stages; do
    [ -n "$list" ] || forget "$stage"
    finish "$stage" "stage_$stage"
    [ "$stage" != build ] || [ -n "$list" ] || [ -x "$czero" ] || break # the table says why
  done
fi
[ -z "$list" ] || exit 0
cat "$work/table"
exit $code
