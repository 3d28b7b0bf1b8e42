#!/usr/bin/env bash
# Claims: nothing that czero made remains in nvme_path when a run ends, well, by a signal, by an error or
# because another rank was killed; what a killed run leaves is gone after the next one, and never
# the file of a running process, or other files; a folder that cannot be used, or a disk too
# small, is refused before training with a sentence and the exit code of its kind; without offload,
# on the host and on NVMe the curve and the weights are the same bytes; the step log says what NVMe
# moved. The same for a swap file that is striped over several folders.
set -uo pipefail
build=$(cd "$1" && pwd)
source_dir=$(cd "$(dirname "$0")/../../.." && pwd)
czero=$build/czero
work=$(mktemp -d /tmp/czero-offload-XXXXXX)
mounted=
running=
cleanup() {
  [ -z "$running" ] || kill -KILL -- "-$running" 2>/dev/null
  [ -z "$mounted" ] || umount "$mounted" 2>/dev/null
  rm -rf "$work"
}
trap cleanup EXIT
cd "$work" || exit 1
unset CZERO_LOG
head -c 40000 "$source_dir/examples/data/fortunes.txt" >text.txt
train=(train --model gpt2-tiny --data text.txt --tokenizer bytes --seq-len 16 --seed 3)

config() { # STAGE OPTIMIZER_DEVICE PARAM_DEVICE NVME_PATH
  cat <<JSON
{"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 1.0, "bf16": {"enabled": true},
 "optimizer": {"type": "AdamW", "params": {"lr": 0.003, "weight_decay": 0.1}},
 "zero_optimization": {"stage": $1,
   "offload_optimizer": {"device": "$2", "nvme_path": "$4"},
   "offload_param": {"device": "$3", "nvme_path": "$4", "max_in_cpu": 0}}}
JSON
}

fail() {
  echo "$1" >&2
  ls -laR swap* 2>/dev/null >&2
  cat out.txt err.txt >&2
  exit 1
}

run() { # COMMAND…: keeps output and exit code
  "$@" >out.txt 2>err.txt
  code=$?
}

refused() { # CODES WORDS COMMAND…: one of the codes, one sentence with these words, no step made
  local codes=$1 words=$2
  shift 2
  run "$@"
  [[ " $codes " == *" $code "* ]] || fail "exit code $code instead of one of $codes: $words"
  grep -q -- "$words" err.txt || fail "no sentence with '$words'"
  grep -q 'step 1/' out.txt err.txt && fail "a step was made: $words"
  return 0
}

gone() { # PATH WHAT
  [ ! -e "$1" ] || fail "something stays in nvme_path: $2"
}

# ---- the same bytes, and what the log says -------------------------------------------------------

for stage in 0 1 2 3; do
  for tiers in "none none" "cpu cpu" "nvme none" "nvme nvme"; do
    read -r optimizer params <<<"$tiers"
    name=s$stage-$optimizer-$params
    config $stage "$optimizer" "$params" swap/a/b >ds.json
    run "$czero" launch -n 2 -- "${train[@]}" --config ds.json --steps 5 --curve $name.csv --export $name --save $name-ckpt
    [ $code = 0 ] || fail "$name: exit code $code"
    gone swap "$name"
    grep -q 'disk [0-9.]*+[0-9.]* GB/s, [0-9]*% exposed' out.txt err.txt
    [ $? = "$([ "$optimizer" = nvme ]; echo $?)" ] || fail "$name: what the log says of the disk"
    cmp s$stage-none-none.csv $name.csv || fail "$name: another curve"
    cmp s$stage-none-none/model.safetensors $name/model.safetensors || fail "$name: other weights"
    [ $stage = 0 ] && continue
    run "$build/zero_to_fp32" $name-ckpt $name-fp32 --safe_serialization
    [ $code = 0 ] || fail "$name: zero_to_fp32 ends with $code"
    cmp s$stage-none-none-fp32/model.safetensors $name-fp32/model.safetensors || fail "$name: other masters"
  done
done

# Figures for programs: bytes each way, the whole optimizer state once (12 bytes a parameter and blocks), in the forward of the next
# step; it fits into the tiles of the sweep's buffers, so it is not read again.
config 1 nvme none swap >ds.json
run "$czero" "${train[@]}" --config ds.json --steps 3 --log-json
[ $code = 0 ] || fail "--log-json: exit code $code"
moved() { # WAY STEP
  grep '"step": '"$2", out.txt | sed 's/.*"swap_'"$1"'_bytes": \([0-9]*\).*/\1/'
}
[ "$(moved read 1)" = 0 ] && [ "$(moved written 1)" = 0 ] || fail "an update is made before its first use"
for bytes in "$(moved read 2)" "$(moved written 2)" "$(moved written 3)"; do
  [ "$bytes" -ge $((12 * 120576)) ] && [ "$bytes" -le $((12 * 120576 + 65536)) ] || fail "bytes of a step: $bytes"
done
[ "$(moved read 3)" = 0 ] || fail "what is in the buffers is read again: $(moved read 3)"
grep -q '"swap_exposed_s": [0-9.e-]*' out.txt || fail "swap_exposed_s is missing"

# ---- several folders -----------------------------------------------------------------------------

striped() { # STAGE CZERO_SECTION: config, in which nvme_path may be missing
  config "$1" nvme nvme "" | sed 's/"nvme_path": "", //; s/, "nvme_path": ""//; s|^{|{"czero": {'"$2"'}, |'
}

for stage in 0 3; do
  striped $stage '"nvme_paths": ["disk0/swap", "disk1", "disk2/"], "nvme_rates": [2, 1, 1.5], "tile_numel": 8192' >ds.json
  rm -f striped.csv
  run "$czero" launch -n 2 -- "${train[@]}" --config ds.json --steps 5 --curve striped.csv --export striped$stage
  [ $code = 0 ] || fail "several folders: exit code $code"
  cmp s$stage-none-none.csv striped.csv || fail "several folders: another curve"
  cmp s$stage-none-none/model.safetensors striped$stage/model.safetensors || fail "several folders: other weights"
  for disk in 0 1 2; do gone disk$disk "several folders"; done
done
run "$czero" plan --model gpt2-tiny --config ds.json --seq-len 16
grep -q 'swap file .*disk0/swap .*, disk1 .*, disk2 ' out.txt || fail "the plan does not show the folders"
striped 2 '"nvme_paths": ["disk0", "disk1"], "nvme_rates": [1]' >ds.json
refused 2 "czero.nvme_rates" "$czero" "${train[@]}" --config ds.json --steps 2
striped 2 '"nvme_paths": ["disk0", "disk1"], "nvme_rates": [1, -1]' >ds.json
refused 2 "czero.nvme_rates" "$czero" "${train[@]}" --config ds.json --steps 2
config 2 nvme nvme elsewhere | sed 's/^{/{"czero": {"nvme_paths": ["disk0", "disk1"]}, /' >ds.json
refused 2 "offload_optimizer.nvme_path.*none of czero.nvme_paths" "$czero" "${train[@]}" --config ds.json --steps 2
config 2 nvme nvme disk1 | sed 's/^{/{"czero": {"nvme_paths": ["disk0", "disk1"]}, /' >ds.json
run "$czero" "${train[@]}" --config ds.json --steps 2
[ $code = 0 ] || fail "nvme_path is one of nvme_paths: exit code $code"

# ---- every way out -------------------------------------------------------------------------------

start() { # COMMAND…: in a process group of its own, until its swap file is there and steps are made
  rm -f curve.csv
  set -m
  "$@" --steps 1000000 --curve curve.csv --quiet >out.txt 2>err.txt &
  running=$!
  set +m
  local tries=0
  until [ -s curve.csv ] && [ "$(wc -l <curve.csv)" -gt 2 ]; do
    kill -0 "$running" 2>/dev/null || fail "the run ended by itself"
    [ $((tries += 1)) -lt 3000 ] || fail "no step is made"
    sleep 0.01
  done
  [ "$(files)" -gt 0 ] || fail "there is no swap file"
}

files() { find swap -name 'czero-swap*' 2>/dev/null | wc -l; }

ended() { # sets code
  wait "$running" 2>/dev/null
  code=$?
  running=
}

config 3 nvme nvme swap >ds.json
for ranks in 1 2; do
  command=("$czero")
  [ $ranks = 1 ] || command+=(launch -n 2 --)
  command+=("${train[@]}" --config ds.json)

  start "${command[@]}"
  kill -TERM "$running"
  ended
  [ $code = 0 ] || fail "SIGTERM, $ranks ranks: exit code $code"
  gone swap "SIGTERM, $ranks ranks"

  for signal in INT HUP QUIT; do
    start "${command[@]}"
    kill -$signal "$running"
    ended
    gone swap "SIG$signal, $ranks ranks"
    case $signal$ranks in
      INT2) [ $code = 0 ] || fail "SIGINT, 2 ranks: exit code $code" ;;
      *) [ $code -gt 128 ] || fail "SIG$signal, $ranks ranks: exit code $code" ;;
    esac
  done

  # Killed: files stay, and the next run in that folder removes them.
  start "${command[@]}"
  kill -KILL -- "-$running"
  ended
  [ "$(files)" = $ranks ] || fail "SIGKILL, $ranks ranks: $(files) files"
  start "${command[@]}"
  [ "$(files)" = $ranks ] || fail "leftovers of $ranks killed ranks stay: $(files) files"
  kill -TERM "$running"
  ended
  gone swap "after leftovers, $ranks ranks"
done

# Killed with a file in each of two folders: the next run removes both.
striped 3 '"nvme_paths": ["swap", "swap2"]' >ds.json
start "$czero" "${train[@]}" --config ds.json
kill -KILL -- "-$running"
ended
[ "$(files)" = 1 ] && [ "$(ls swap2 | wc -l)" = 1 ] || fail "SIGKILL, two folders: no file in each"
run "$czero" "${train[@]}" --config ds.json --steps 1
[ $code = 0 ] || fail "after leftovers in two folders: exit code $code"
gone swap "leftovers in two folders"
gone swap2 "leftovers in two folders"
config 3 nvme nvme swap >ds.json

# One of two ranks is killed: the other ends by itself, with its own file removed.
start "$czero" launch -n 2 -- "${train[@]}" --config ds.json
mapfile -t pids < <(pgrep -P "$running")
kill -KILL "${pids[1]}"
ended
[ $code != 0 ] || fail "a run whose rank was killed ends well"
[ "$(files)" = 1 ] || fail "a rank was killed: $(files) files"
run "$czero" "${train[@]}" --config ds.json --steps 1
[ $code = 0 ] || fail "after a killed rank: exit code $code"
gone swap "after a killed rank"

# An error under way: nothing but zeros can be learned from, the save folder is a file.
touch not_a_folder
run "$czero" "${train[@]}" --config ds.json --steps 3 --save not_a_folder/x --save-interval 1
[ $code != 0 ] || fail "saved into a file"
gone swap "an error"

# Two runs share a folder; what is not czero's stays, and so does the folder.
mkdir swap
echo mine >swap/czero-notes.txt
start "$czero" "${train[@]}" --config ds.json
run "$czero" "${train[@]}" --config ds.json --steps 3
[ $code = 0 ] || fail "a second run in the folder: exit code $code"
[ "$(files)" = 1 ] || fail "the file of a running process is gone"
kill -TERM "$running"
ended
[ $code = 0 ] || fail "the first run in the folder: exit code $code"
[ "$(ls -A swap)" = czero-notes.txt ] || fail "a user's folder has changed"
rm -r swap

# ---- refusals ------------------------------------------------------------------------------------

config 3 nvme nvme "$work/not_a_folder" >ds.json
refused "1 2 3" "not_a_folder" "$czero" "${train[@]}" --config ds.json --steps 2
config 3 nvme nvme "$work/not_a_folder/swap" >ds.json
refused "1 2 3" "not_a_folder" "$czero" "${train[@]}" --config ds.json --steps 2
config 2 nvme none /proc/czero/swap >ds.json
refused "1 2 3" "/proc/czero" "$czero" "${train[@]}" --config ds.json --steps 2
for stage in 0 1 2 3; do
  config $stage nvme none swap | sed 's/, "nvme_path": "[^"]*"//' >ds.json
  refused 2 "nvme_path" "$czero" "${train[@]}" --config ds.json --steps 2
  config $stage none nvme swap | sed 's/, "nvme_path": "[^"]*"//' >ds.json
  refused 2 "nvme_path" "$czero" "${train[@]}" --config ds.json --steps 2
done
gone swap "refusals"

if [ "$(id -u)" = 0 ] && command -v setpriv >/dev/null; then
  mkdir -m 755 roots
  config 1 nvme none "$work/roots/swap" >ds.json
  chmod 755 "$work" && chmod -R a+rX "$work"
  refused 1 "roots.*Permission denied" setpriv --reuid=65534 --regid=65534 --clear-groups "$czero" "${train[@]}" \
    --config ds.json --steps 2
  gone roots/swap "a folder of another user"
fi

if [ "$(id -u)" = 0 ]; then
  mkdir disk
  mount -t tmpfs -o size=1m tmpfs disk 2>/dev/null && mounted=$work/disk
fi
if [ -n "$mounted" ]; then
  config 2 nvme nvme "$work/disk/swap" >ds.json # needs 1.7 MB
  refused "1 3" "disk" "$czero" "${train[@]}" --config ds.json --steps 2
  refused "1 3" "disk" "$czero" "${train[@]}" --config ds.json --steps 2 --seq-len 64
  grep -q "would fit" err.txt && fail "the sentence offers shorter sequences"
  [ -z "$(ls -A disk)" ] || fail "a refusal leaves something on the disk"
  refused "1 3" "disk" "$czero" launch -n 2 -- "${train[@]}" --config ds.json --steps 2
  [ -z "$(ls -A disk)" ] || fail "a refusal of two ranks leaves something on the disk"
  striped 2 '"nvme_paths": ["'"$work"'/roomy", "'"$work"'/disk/full"]' >ds.json
  mount -o remount,size=512k "$mounted" || fail "cannot remount"
  refused "1 3" "disk/full" "$czero" "${train[@]}" --config ds.json --steps 2
  [ -z "$(ls -A disk)" ] || fail "a refusal leaves something on the disk"
  gone roomy "another folder is full"
  config 2 nvme nvme "$work/disk/swap" >ds.json
  mount -o remount,size=16m "$mounted" || fail "cannot remount"
  run "$czero" launch -n 2 -- "${train[@]}" --config ds.json --steps 2 --curve disk.csv
  [ $code = 0 ] || fail "on tmpfs: exit code $code"
  [ -z "$(ls -A disk)" ] || fail "something stays on the disk"
  mount -o remount,ro "$mounted" || fail "cannot remount"
  refused 1 "Read-only file system" "$czero" "${train[@]}" --config ds.json --steps 2
  umount "$mounted" && mounted=
else
  echo "no tmpfs can be mounted here: full and read-only disks were not tried"
fi
echo "offload: same bytes, no leftovers, clear refusals"
