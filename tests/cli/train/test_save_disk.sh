#!/usr/bin/env bash
# Claim: on a disk that is too small for the next checkpoint a save fails with a sentence, nothing of
# it stays, the run continues, and what was saved before stays whole and is resumed from when there is
# space again; a read-only disk is reported, and what is on it can be resumed and checked.
set -uo pipefail
build=$(cd "$1" && pwd)
source_dir=$(cd "$(dirname "$0")/../../.." && pwd)
czero=$build/czero
work=$(mktemp -d /tmp/czero-disk-XXXXXX)
disk=$work/disk
mkdir "$disk"
trap 'umount "$disk" 2>/dev/null; rm -rf "$work"' EXIT
if ! mount -t tmpfs -o size=200k tmpfs "$disk" 2>/dev/null; then
  echo "skipped: tmpfs cannot be mounted here"
  exit 77
fi
cd "$work" || exit 1
export OMP_NUM_THREADS=1
head -c 20000 "$source_dir/examples/data/fortunes.txt" >text.txt
mkdir model
cat >model/config.json <<'JSON'
{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 256, "n_positions": 16,
 "n_embd": 16, "n_layer": 1, "n_head": 2, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
JSON
printf '{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "optimizer": {"type": "AdamW",
  "params": {"lr": 0.001}}, "zero_optimization": {"stage": 2}}' >ds.json
train=(train --model model --init random --config ds.json --data text.txt --tokenizer bytes --seq-len 8
  --quiet --save disk --save-interval 1)
fail() {
  echo "$1" >&2
  ls -la disk disk/* >&2
  cat out.txt err.txt >&2
  exit 1
}
run() { # COMMAND…: keeps output and exit code
  "$@" >out.txt 2>err.txt
  code=$?
}
leftovers() { compgen -G 'disk/.*.saving' || compgen -G 'disk/.*.deleting' || compgen -G 'disk/*.tmp*'; }

for ranks in 1 2; do
  command=("$czero")
  [ $ranks = 1 ] || command+=(launch -n 2 --)
  for kilobytes in 60 200 400; do # no checkpoint fits, one does, two do
    rm -rf disk/* disk/.[!.]* curve.csv
    mount -o "remount,size=${kilobytes}k" "$disk" || fail "cannot remount"
    run "${command[@]}" "${train[@]}" --steps 6 --curve curve.csv
    [ $code = 1 ] || fail "$kilobytes KB, $ranks ranks: exit code $code"
    grep -q 'not saved, but the run continues.*No space left on device' err.txt || fail "no sentence"
    [ "$(wc -l <curve.csv)" = 7 ] || fail "$kilobytes KB, $ranks ranks: the run did not continue"
    leftovers && fail "$kilobytes KB, $ranks ranks: leftovers stay"
    n=$(find disk -mindepth 1 -maxdepth 1 -type d ! -name model | wc -l)
    [ "$n" = $((kilobytes / 200)) ] || fail "$kilobytes KB, $ranks ranks: $n tags"
    [ "$n" = 0 ] && continue
    [ "$(cat disk/latest)" = "global_step$n" ] || fail "latest names another tag"
    run "$czero" fsck disk --all
    [ $code = 0 ] || fail "$kilobytes KB, $ranks ranks: damage"
  done
done

# space again
mount -o remount,size=2m "$disk" || fail "cannot remount"
run "$czero" "${train[@]}" --resume disk --steps 6 --save-keep 2
[ $code = 0 ] || fail "with space again: exit code $code"
[ "$(cat disk/latest)" = global_step6 ] || fail "with space again: not saved"

# read-only
mkdir disk/hf
mount -o remount,ro "$disk" || fail "cannot remount"
run "$czero" "${train[@]:0:${#train[@]}-5}" --steps 1 --curve none.csv --export disk/hf
[ $code = 1 ] || fail "read-only: --export: exit code $code"
grep -q '^czero: --export: .*disk/hf/.czero-run: cannot be opened for writing: Read-only file system$' err.txt || fail "--export: no sentence"
run "$czero" "${train[@]:0:${#train[@]}-5}" --steps 1 --curve none.csv --export disk/new
[ $code = 1 ] || fail "read-only: --export of a new folder: exit code $code"
grep -q '^czero: --export: disk/new: cannot be created as a folder: Read-only file system$' err.txt || fail "--export: no sentence"
run "$czero" "${train[@]:0:${#train[@]}-5}" --steps 1 --curve disk/c.csv
[ $code = 1 ] || fail "read-only: --curve: exit code $code"
grep -q '^czero: --curve: cannot write disk/c.csv: Read-only file system$' err.txt || fail "--curve: no sentence"
[ ! -e none.csv ] || fail "trained before it was found that nothing can be exported"
run "$czero" "${train[@]}" --resume disk --steps 8
[ $code = 1 ] || fail "read-only: exit code $code"
grep -q 'Read-only file system' err.txt || fail "read-only: no sentence"
run "$czero" fsck disk --all
[ $code = 0 ] || fail "read-only: fsck"
echo "full and read-only disks keep what was saved"
