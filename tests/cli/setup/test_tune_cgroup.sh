#!/usr/bin/env bash
# Claim: what `czero tune` chooses for a host that the model's states do not fit into trains inside
# a control group of exactly that much memory (v1 or v2; without the right to make one: skipped).
set -uo pipefail
cd "$(dirname "$0")/../../.."
czero=$1/czero
work=$(mktemp -d /tmp/czero-tune-cgroup-XXXXXX)
group=
clean() {
  [ -n "$group" ] && rmdir "$group" 2>/dev/null
  rm -rf "$work"
}
trap clean EXIT
failed=0
complain() { echo "$*" >&2; failed=1; }
budget=$((300 << 20))

name=czero-tune-$$
if mkdir "/sys/fs/cgroup/memory/$name" 2>/dev/null; then
  group=/sys/fs/cgroup/memory/$name
  limit=$group/memory.limit_in_bytes peak=$group/memory.max_usage_in_bytes
elif grep -qw memory /sys/fs/cgroup/cgroup.subtree_control 2>/dev/null && mkdir "/sys/fs/cgroup/$name" 2>/dev/null; then
  group=/sys/fs/cgroup/$name
  limit=$group/memory.max peak=$group/memory.peak
fi
[ -n "$group" ] && echo $budget 2>/dev/null >"$limit" || { echo "no control group may be made here"; exit 77; }

# 27 M parameters: 16 bytes each are 430 MB
mkdir "$work/model"
cat >"$work/model/config.json" <<'JSON'
{"model_type": "gpt2", "vocab_size": 4096, "n_positions": 64, "n_embd": 512, "n_layer": 8, "n_head": 8}
JSON
head -c 65536 /dev/urandom | base64 >"$work/text"
"$czero" tune --model "$work/model" --seq-len 64 --host-memory $budget --nvme 2GB --nvme-path "$work/swap" \
  --batch 8 -o "$work/ds.json" >"$work/out" 2>"$work/err" || complain "tune: exit $?: $(cat "$work/err" "$work/out")"
grep -q '"device": "nvme"' "$work/ds.json" || complain "nothing is on NVMe: $(cat "$work/ds.json")"

# Without a swap file it would not fit, and says so before it starts.
inside() { (echo $BASHPID >"$group/cgroup.procs" && exec "$@"); }
train=("$czero" train --model "$work/model" --data "$work/text" --tokenizer bytes --seq-len 64 --steps 3
  --init random --quiet)
inside "${train[@]}" --config configs/bf16.json >/dev/null 2>"$work/err"
[ $? = 3 ] || complain "all in memory: $(cat "$work/err")"

inside "${train[@]}" --config "$work/ds.json" --save "$work/ckpt" >"$work/out" 2>"$work/err"
got=$?
[ $got = 0 ] || complain "training: exit $got: $(cat "$work/err")"
"$czero" fsck "$work/ckpt" >/dev/null 2>"$work/err" || complain "the checkpoint: $(cat "$work/err")"
[ -e "$work/swap" ] && complain "$work/swap is still there"
[ -r "$peak" ] && echo "limit $budget, peak with page cache $(cat "$peak")"
exit $failed
