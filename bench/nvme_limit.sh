#!/usr/bin/env bash
# A model whose states are larger than the memory it gets: inside a control group (version 1 or 2)
# with a memory limit the run is refused without offload and trains with its states on NVMe.
# Prints the peak that the kernel counted, tokens per second and bytes moved; then, where the
# machine has the memory, the speed without limit and offload, and whether the losses are the same.
#
#   sudo bench/nvme_limit.sh [--model gpt2-medium] [--limit-mib 2048] [--steps 6] [--batch 4]
#        [--seq-len 128] [--stage 3] [--accumulation 1] [--gradients true]
#        [--dir FOLDER_ON_THE_DISK] [--czero build/czero] [--lora rank=16] [--compare false]
#
# With --lora an adapter is trained, and --model is a folder whose bf16 weights stay where they are:
# bench/lora/llama_folder.py makes one of 8 billion parameters. --compare false leaves out the run without limit.
# Needs root (it makes a group) and about 16 bytes a parameter on the disk. With --gradients true they go
# to NVMe as well: memory then does not grow with the model.
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
declare -A arg=([model]=gpt2-medium [limit-mib]=2048 [steps]=6 [batch]=4 [seq-len]=128 [stage]=3
  [accumulation]=1 [gradients]=false [lora]=none [compare]=true [dir]=/var/tmp [czero]=$top/build/czero)
while [ $# -gt 0 ]; do
  name=${1#--}
  [ -n "${arg[$name]:-}" ] && [ $# -gt 1 ] || { echo "unknown option $1" >&2; exit 2; }
  arg[$name]=$2
  shift 2
done
[ "$(id -u)" = 0 ] || { echo "skipped: only root makes control groups" >&2; exit 77; }

work=$(mktemp -d "${arg[dir]}/czero-nvme-limit-XXXXXX")
group=
cleanup() {
  rm -rf "$work"
  [ -z "$group" ] || rmdir "$group" 2>/dev/null || true
}
trap cleanup EXIT

# ---- the group -----------------------------------------------------------------------------------

# Makes $group with the limit, and names the files of its version: $peak_file, $oom_file.
make_group() {
  local limit=$((arg[limit-mib] << 20)) name=czero-nvme-limit-$$ mount
  mount=$(awk '$3 == "cgroup" && $4 ~ /(^|,)memory(,|$)/ {print $2; exit}' /proc/mounts)
  if [ -n "$mount" ]; then
    mkdir "$mount/$name" 2>/dev/null || return 1
    group=$mount/$name version=1
    echo $limit >"$group/memory.limit_in_bytes"
    [ ! -e "$group/memory.memsw.limit_in_bytes" ] || echo $limit >"$group/memory.memsw.limit_in_bytes" || return 1
    peak_file=memory.max_usage_in_bytes oom_file=memory.oom_control
    return 0
  fi
  mount=$(awk '$3 == "cgroup2" {print $2; exit}' /proc/mounts)
  [ -n "$mount" ] && grep -qw memory "$mount/cgroup.controllers" || return 1
  echo +memory >"$mount/cgroup.subtree_control" 2>/dev/null || true
  mkdir "$mount/$name" 2>/dev/null || return 1
  group=$mount/$name version=2
  [ -e "$group/memory.max" ] || return 1
  echo $limit >"$group/memory.max"
  [ ! -e "$group/memory.swap.max" ] || echo 0 >"$group/memory.swap.max"
  peak_file=memory.peak oom_file=memory.events
}

make_group || { echo "skipped: no control group with a memory limit can be made here" >&2; exit 77; }

kills() { awk '$1 == "oom_kill" {n = $2} END {print n + 0}' "$group/$oom_file"; }

# The kernel's own high-water mark; kernels before 5.19 keep none in version 2.
peak() { [ -r "$group/$peak_file" ] && cat "$group/$peak_file" || echo 0; }

# ---- the runs ------------------------------------------------------------------------------------

config() { # DEVICE FILE
  cat >"$2" <<JSON
{"train_micro_batch_size_per_gpu": ${arg[batch]}, "gradient_accumulation_steps": ${arg[accumulation]},
 "gradient_clipping": 1.0, "bf16": {"enabled": true}, "czero": {"offload_gradients": ${arg[gradients]}},
 "optimizer": {"type": "AdamW", "params": {"lr": 0.0001, "weight_decay": 0.01}},
 "zero_optimization": {"stage": ${arg[stage]},
  "offload_optimizer": {"device": "$1", "nvme_path": "$work/swap", "pipeline_read": true, "pipeline_write": true},
  "offload_param": {"device": "$1", "nvme_path": "$work/swap", "max_in_cpu": 0},
  "overlap_comm": true}}
JSON
}

source=(--init random)
[ "${arg[lora]}" = none ] || source=(--lora "${arg[lora]}")

train() { # CONFIG OUT: one JSON line a step
  "${arg[czero]}" train --config "$1" --model "${arg[model]}" --data "$top/examples/data/fortunes.txt" \
    --tokenizer bytes --shuffle off --seq-len "${arg[seq-len]}" --steps "${arg[steps]}" --seed 1 "${source[@]}" --log-json >"$2" \
    2>"$2.err"
}

# train() inside the group; what it has read and written so far goes to OUT.io, until it ends.
train_inside() {
  (
    echo "$BASHPID" >"$group/cgroup.procs"
    exec "${arg[czero]}" train --config "$1" --model "${arg[model]}" --data "$top/examples/data/fortunes.txt" \
      --tokenizer bytes --shuffle off --seq-len "${arg[seq-len]}" --steps "${arg[steps]}" --seed 1 "${source[@]}" --log-json \
      >"$2" 2>"$2.err"
  ) &
  local pid=$!
  while kill -0 $pid 2>/dev/null; do
    cat /proc/$pid/io >"$2.io.now" 2>/dev/null && [ -s "$2.io.now" ] && mv "$2.io.now" "$2.io"
    sleep 0.2
  done
  wait $pid
}

losses() { sed 's/.*"loss": *\([^,}]*\).*/\1/' "$1"; }

# Median seconds of a step, the first left out.
step_seconds() {
  sed 's/.*"elapsed_s": *\([0-9.e+-]*\).*/\1/' "$1" | awk 'NR > 1 {print $1 - last} {last = $1}' | sort -g |
    awk '{s[NR] = $1} END {print NR ? s[int((NR + 1) / 2)] : 0}'
}

tokens_per_second() {
  awk -v s="$(step_seconds "$1")" -v n=$((arg[batch] * arg[seq-len] * arg[accumulation])) \
    'BEGIN {printf "%.1f", (s > 0 ? n / s : 0)}'
}

# Mean of a field over all steps but the first.
mean() { sed 's/.*"'"$2"'": *\([0-9.e+-]*\).*/\1/' "$1" | awk 'NR > 1 {t += $1} END {print (NR > 1 ? t / (NR - 1) : 0)}'; }

mib() { awk -v n="$1" 'BEGIN {printf "%.0f MiB", n / 1048576}'; }
io_of() { awk -v key="$2:" '$1 == key {print $2}' "$1"; }

echo "${arg[model]}, bf16, stage ${arg[stage]}, batch ${arg[batch]} × ${arg[seq-len]}; control group version $version," \
  "limit ${arg[limit-mib]} MiB"

config none "$work/none.json"
code=0
train_inside "$work/none.json" "$work/none" || code=$?
[ $code -ne 0 ] || { echo "it fits without offload: choose a lower --limit-mib" >&2; exit 1; }
if [ $code = 3 ]; then
  echo "without offload: refused: $(grep -m1 'the run needs' "$work/none.err" | sed 's/^czero: //')"
else
  echo "without offload: exit code $code, $(kills) killed for memory: $(tail -1 "$work/none.err")"
  exit 1
fi

config nvme "$work/nvme.json"
code=0
train_inside "$work/nvme.json" "$work/nvme" || code=$?
if [ $code -ne 0 ]; then
  echo "with NVMe offload: exit code $code, $(kills) killed for memory" >&2
  cat "$work/nvme.err" >&2
  exit 1
fi
[ ! -e "$work/swap" ] || { echo "something stays in nvme_path" >&2; ls -la "$work/swap" >&2; exit 1; }
[ "$(wc -l <"$work/nvme")" = "${arg[steps]}" ] || { echo "not all steps were made" >&2; exit 1; }
echo "with NVMe offload: ${arg[steps]} steps, peak $(mib "$(peak)"), killed for memory: $(kills)"
echo "  $(tokens_per_second "$work/nvme") tokens/s, $(step_seconds "$work/nvme") s a step;" \
  "each reads $(mib "$(mean "$work/nvme" swap_read_bytes)") and writes $(mib "$(mean "$work/nvme" swap_written_bytes)")," \
  "$(awk -v w="$(mean "$work/nvme" swap_exposed_s)" -v s="$(step_seconds "$work/nvme")" 'BEGIN {printf "%.0f", 100 * w / s}') % exposed"
echo "  the kernel counted $(mib "$(io_of "$work/nvme.io" read_bytes)") read and" \
  "$(mib "$(io_of "$work/nvme.io" write_bytes)") written in all"
[ "$(peak)" -le $((arg[limit-mib] << 20)) ] || { echo "the peak is over the limit" >&2; exit 1; }

[ "${arg[compare]}" = true ] || exit 0
free=$(awk '$1 == "MemAvailable:" {print $2 * 1024}' /proc/meminfo)
code=0
train "$work/none.json" "$work/free" || code=$?
if [ $code = 3 ]; then
  echo "without limit and offload: does not fit into the $(mib "$free") of this machine"
elif [ $code -ne 0 ]; then
  cat "$work/free.err" >&2
  exit 1
else
  echo "without limit and offload: $(tokens_per_second "$work/free") tokens/s, $(step_seconds "$work/free") s a step"
  [ "$(losses "$work/nvme")" = "$(losses "$work/free")" ] || { echo "the losses differ" >&2; exit 1; }
  echo "  the losses of all steps are the same"
fi
