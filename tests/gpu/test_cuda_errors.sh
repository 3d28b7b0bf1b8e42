#!/usr/bin/env bash
# Claim: what keeps a run off the GPU is reported in one sentence, with the exit code of its kind, by
# every command that takes --device; --device cpu works all the same, and a plan needs no GPU.
set -uo pipefail
cd "$(dirname "$0")/../.."
build=$1
czero=$build/czero
models=$build/fixtures/models
simulated=$build/cuda_sim/libczero_cuda.so
work=$(mktemp -d /tmp/czero-cuda-errors-XXXXXX)
trap 'rm -rf "$work"' EXIT
failed=0
complain() { echo "$*" >&2; failed=1; }

base=(--config configs/quickstart.json --model gpt2-tiny --seq-len 16)
train=(train "${base[@]}" --data README.md --tokenizer bytes --steps 1 --quiet)
plan=(plan "${base[@]}")

# The command says one sentence with these words in it, and nothing else, and exits so.
refused() { # what is tested, exit code, words, command…
  local what=$1 code=$2 words=$3 got
  shift 3
  timeout 120 "$czero" "$@" >"$work/out" 2>"$work/err"
  got=$?
  sed -i '/^cuda_sim: .* as asked$/d' "$work/err" # what the simulated device says of itself
  [ $got = "$code" ] || complain "$what: exit $got, not $code"
  grep -qE -- "$words" "$work/err" || complain "$what: \"$(cat "$work/err")\" does not say: $words"
  [ "$(grep -cv ': warning: ' "$work/err")" = 1 ] || complain "$what: not one sentence: $(cat "$work/err")"
}

# Under this environment, training on cuda is refused, on the CPU it runs, and plans are made.
no_gpu() { # what, exit code, words
  refused "$1" "$2" "$3" "${train[@]}" --device cuda
  grep -q -- '--device cpu' "$work/err" || complain "$1: no way out is named: $(cat "$work/err")"
  refused "$1 (verify)" "$2" "$3" verify "$models/gpt2" --device cuda
  refused "$1 (generate)" "$2" "$3" generate --model "$models/gpt2-tiny" --prompt a --device cuda
  "$czero" "${train[@]}" --device cpu >"$work/out" 2>&1 || complain "$1: --device cpu: $(cat "$work/out")"
  "$czero" "${plan[@]}" --device cuda >"$work/out" 2>&1 || complain "$1: plan: $(cat "$work/out")"
}

plugin() { # C source of a plug-in for the tests that follow, flags…
  printf '%s\n' "$1" | cc -shared -fPIC -I. -o "$CZERO_CUDA_PLUGIN" -xc - -xnone "${@:2}"
}

# ---- names
for name in tpu cudax cuda: cuda:x cuda:-1 cuda:1x cuda:99999 'cuda: 1' cuda:1:2 cpu:one; do
  refused "--device $name" 2 "device \"$name\"" "${train[@]}" --device "$name"
  refused "plan --device $name" 2 "device \"$name\"" "${plan[@]}" --device "$name"
done
refused "--device cpu:1" 2 'only cpu:0' "${train[@]}" --device cpu:1
"$czero" "${train[@]}" --device cpu:0 2>"$work/err" || complain "cpu:0: $(cat "$work/err")"
CZERO_CUDA_PLUGIN=none "$czero" "${plan[@]}" --device cuda:3 >/dev/null 2>"$work/err" || complain "plan cuda:3: $(cat "$work/err")"

# ---- the plug-in's file
export CZERO_CUDA_PLUGIN=$work/libczero_cuda.so
no_gpu "no plug-in" 2 'the plug-in .*/libczero_cuda\.so is not here'
echo "not a library" >"$CZERO_CUDA_PLUGIN"
no_gpu "a file that is no library" 2 'the plug-in cannot be loaded \(.*libczero_cuda\.so'
plugin 'int czero_something;'
no_gpu "another library" 2 'belongs to another version of czero'
plugin '#include "device/plugin.h"
__attribute__((visibility("default"))) const struct device_plugin czero_cuda_plugin = {
    .version = DEVICE_PLUGIN_VERSION - 1, .ops_nbytes = sizeof(struct device_ops),
    .host_nbytes = sizeof(struct device_plugin_host)};'
no_gpu "an older plug-in" 2 'libczero_cuda\.so belongs to another version of czero'
plugin '#include "device/plugin.h"
static const struct device_ops ops = {.name = "cuda", .kind = DEVICE_CUDA};
__attribute__((visibility("default"))) const struct device_plugin czero_cuda_plugin = {
    .version = DEVICE_PLUGIN_VERSION, .ops_nbytes = sizeof(struct device_ops),
    .host_nbytes = sizeof(struct device_plugin_host), .device = &ops};'
no_gpu "a plug-in without calls" 2 'belongs to another version of czero'

# a library of CUDA's that the plug-in needs is not on this machine
echo 'int cublasLtCreate(void) { return 0; }' |
  cc -shared -fPIC -Wl,-soname,libcublasLt.so.0 -o "$work/libcublasLt.so.0" -xc -
plugin 'int cublasLtCreate(void); int use(void) { return cublasLtCreate(); }' \
  -Wl,--no-as-needed "$work/libcublasLt.so.0"
rm "$work/libcublasLt.so.0"
no_gpu "no cuBLASLt" 2 'needs libcublasLt\.so\.0, which is not found'

# ---- what the simulated device plays
export CZERO_CUDA_PLUGIN=$simulated
CZERO_CUDA_SIM_FAULT=no-driver no_gpu "no driver" 2 'no NVIDIA driver is loaded on this machine'
CZERO_CUDA_SIM_FAULT=old-driver \
  no_gpu "an old driver" 2 'driver is too old: it supports CUDA up to [0-9.]+, this build needs [0-9.]+;'
CZERO_CUDA_SIM_FAULT=no-device no_gpu "no GPU" 2 'there is no NVIDIA GPU in this machine'
CUDA_VISIBLE_DEVICES='' CZERO_CUDA_SIM_FAULT=no-device \
  no_gpu "none visible" 2 'no GPU is visible with CUDA_VISIBLE_DEVICES=""'
CZERO_CUDA_SIM_FAULT=capability:7.5 \
  no_gpu "an old GPU" 2 'cuda:0 \(Simulated.*\) has compute capability 7\.5; this build needs 8\.0'
CZERO_CUDA_SIM_FAULT=start-error:34 no_gpu "a stub" 2 "toolkit's stub was loaded"
CZERO_CUDA_SIM_FAULT=start-error:802 no_gpu "a driver that is not ready" 2 'is not ready \(is nvidia-fabricmanager'
CZERO_CUDA_SIM_FAULT=start-error:803 no_gpu "two drivers" 2 'of different versions: restart'
CZERO_CUDA_SIM_FAULT=start-error:804 no_gpu "a compatibility package" 2 'compatibility package does not go with'
CZERO_CUDA_SIM_FAULT=start-error:999 no_gpu "something else" 2 'the NVIDIA driver says ".*" \(cudaErrorUnknown\); does nvidia-smi'
CZERO_CUDA_SIM_FAULT=start-error:46 refused "a GPU for one process" 1 'another process has the GPU for itself' \
  "${train[@]}" --device cuda
refused "--device cuda:1" 2 'cuda:1: there is 1, counted from 0' "${train[@]}" --device cuda:1
CZERO_CUDA_SIM_DEVICES=2 refused "cuda:2" 2 'there are 2' "${train[@]}" --device cuda:2

# in the middle of a run
one_row=(--set train_micro_batch_size_per_gpu=1 --device cuda)
CZERO_CUDA_SIM_FAULT=oom-at:3 refused "no memory" 3 'do not fit into cuda:0, which has .* left' "${train[@]}" "${one_row[@]}"
CZERO_CUDA_SIM_FAULT=host-oom-at:1 refused "no page-locked memory" 3 '[KM]iB of host memory cannot be page-locked for the GPU' \
  "${train[@]}" "${one_row[@]}"
CZERO_CUDA_SIM_FAULT=lost-at:40 refused "a lost GPU" 1 'the GPU stopped working for this process' "${train[@]}" "${one_row[@]}"
CZERO_CUDA_SIM_FAULT=lost-at:40 \
  refused "a lost GPU (verify)" 1 'the GPU stopped working' verify "$models/gpt2" --device cuda
CZERO_CUDA_SIM_MEMORY=30000000 "$czero" "${train[@]}" "${one_row[@]}" --model gpt2 >"$work/out" 2>"$work/err"
[ $? = 3 ] || complain "a plan that does not fit: not exit 3 but: $(head -1 "$work/err")"
grep -q 'master weights\|exp_avg' "$work/err" || complain "a plan that does not fit shows no table"

# what was saved before is there, for the CPU too
CZERO_CUDA_SIM_FAULT=lost-at:400 refused "a lost GPU, later" 1 'start again from the last checkpoint' "${train[@]}" \
  "${one_row[@]}" --steps 100 --save "$work/save" --save-interval 1
saved=$(sed 's/global_step//' "$work/save/latest" 2>/dev/null)
[ "${saved:-0}" -ge 1 ] || complain "nothing was saved before the loss"
"$czero" "${train[@]}" --set train_micro_batch_size_per_gpu=1 --steps $((saved + 1)) --resume "$work/save" \
  >"$work/out" 2>&1 || complain "on the CPU it does not continue: $(cat "$work/out")"

# ---- what GPUs cannot do together
sed 's|"zero_optimization": {|&"offload_param": {"device": "nvme", "nvme_path": "'"$work"'"},|' configs/offload.json >"$work/nvme.json"
refused "parameters in two files" 2 '2 GPUs is for stage 3' plan --config "$work/nvme.json" --model gpt2-tiny --seq-len 16 \
  --world-size 2 --device cuda
"$czero" plan --config "$work/nvme.json" --model gpt2-tiny --seq-len 16 --device cuda >/dev/null 2>"$work/err" ||
  complain "parameters in a file: $(cat "$work/err")"

# ---- the plug-in of this build, where there is no driver
unset CZERO_CUDA_PLUGIN
if [ ! -e "$build/libczero_cuda.so" ] || [ -n "$(find base device ops comm -newer "$build/libczero_cuda.so" \
  \( -name '*.cu' -o -name '*.h' -o -path '*/cuda/*' \) -print -quit)" ]; then
  echo "the plug-in is not built, or is older than its sources: not tried"
elif [ -e /proc/driver/nvidia/version ] || [ -e /dev/nvidiactl ]; then
  echo "there is a driver: its absence is not tried"
else
  no_gpu "no driver" 2 'no NVIDIA driver is loaded on this machine'
  CUDA_VISIBLE_DEVICES='' no_gpu "no driver, none visible" 2 'no NVIDIA driver'

  # CUDA's own runtime beside a driver that does not start
  mkdir "$work/driver"
  answering() { # what cuInit() says, the CUDA version that the driver knows
    cc -shared -fPIC -Wl,-soname,libcuda.so.1 -o "$work/driver/libcuda.so.1" -DSAYS="$1" -DKNOWS="$2" -xc - <<'EOF'
#include <string.h>
int cuInit(unsigned flags) { return flags ? 1 : SAYS; }
int cuDriverGetVersion(int *version) { return *version = KNOWS, 0; }
static int refuse(void) { return 3; }
int cuGetProcAddress_v2(const char *name, void **f, int version, unsigned long long flags, int *found)
{
    (void)version, (void)flags;
    if (found) *found = 0;
    *f = !strcmp(name, "cuInit")               ? (void *)cuInit
         : !strcmp(name, "cuDriverGetVersion") ? (void *)cuDriverGetVersion
         : !strcmp(name, "cuGetProcAddress")   ? (void *)cuGetProcAddress_v2
                                               : (void *)refuse;
    return 0;
}
EOF
  }
  beside() { LD_LIBRARY_PATH=$work/driver${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} no_gpu "cuInit() says $1" "${@:2}"; }
  answering 0 12080 && beside old 2 'it supports CUDA up to 12\.8, this build needs [0-9.]+;'
  answering 100 99000 && beside 100 2 'there is no NVIDIA GPU'
  answering 34 99000 && beside 34 2 "toolkit's stub was loaded"
  answering 803 99000 && beside 803 2 'of different versions: restart'
  answering 999 99000 && beside 999 2 'says "unknown error" \(cudaErrorUnknown\)'
fi

[ $failed = 0 ] && echo "every refusal is one sentence"
exit $failed
