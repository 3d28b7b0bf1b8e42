#!/usr/bin/env bash
# Claim: zero_to_fp32 takes the options of DeepSpeed's script, gives its files their names, says what
# went wrong in one sentence with the right exit code, and a kill, a full disk or a folder that cannot
# be written leave no file under a final name. It is linked with neither MPI, oneDNN nor hwloc.
set -uo pipefail
cd "$(dirname "$0")/../../.."
tool=$1/zero_to_fp32
runs=$1/fixtures/runs
work=$(mktemp -d /tmp/czero-zero-to-fp32-XXXXXX)
trap 'umount "$work/disk" 2>/dev/null; chmod -R u+w "$work"; rm -rf "$work"' EXIT
failed=0
complain() { echo "$*" >&2; failed=1; }
ckpt=$runs/s2-fp32-adamw-gas2/ckpt

# expect CODE PATTERN -- arguments: PATTERN is looked for on stderr
expect() {
  local code=$1 pattern=$2
  shift 3
  "$tool" "$@" >"$work/out.txt" 2>"$work/err.txt"
  local got=$?
  [ $got = "$code" ] || complain "exit $got instead of $code: $*: $(cat "$work/err.txt")"
  [ -z "$pattern" ] || grep -q -- "$pattern" "$work/err.txt" || complain "no \"$pattern\" in: $(cat "$work/err.txt") ($*)"
  if [ "$code" != 0 ] && [ "$(grep -c . "$work/err.txt")" != 1 ]; then
    complain "more than a sentence: $(cat "$work/err.txt")"
  fi
}
# files FOLDER NAME… : exactly these
files() {
  local dir=$1
  shift
  local got want
  got=$(find "$dir" -mindepth 1 -printf '%P\n' | LC_ALL=C sort | tr '\n' ' ')
  want=$(printf '%s\n' "$@" | grep . | LC_ALL=C sort | tr '\n' ' ')
  [ "$got" = "$want" ] || complain "$dir holds \"$got\", not \"$want\""
}

# what it is made of (utf8proc: widths of text on a terminal)
ldd "$tool" >"$work/needs" || complain "ldd: exit $?"
for library in mpi dnnl hwloc uring czero; do
  if grep -q "lib$library" "$work/needs"; then complain "linked with $library"; fi
done
nm "$tool" >"$work/names" 2>/dev/null
if grep -qE ' [TU] (MPI_|dnnl_|hwloc_|engine_|comm_|ops_)' "$work/names"; then
  complain "contains symbols of modules that it does not use"
fi

# options and names
"$tool" --help >"$work/out.txt" || complain "--help: exit $?"
for option in --max_shard_size --safe_serialization --tag --exclude_frozen_parameters --debug --dtype --verify; do
  grep -q -- "$option" "$work/out.txt" || complain "--help lacks $option"
done
"$tool" --version >"$work/out" && grep -q '^zero_to_fp32 (czero) [0-9]' "$work/out" || complain "--version"
tag=$(cat "$ckpt/latest")
began=$(date +%s)
expect 0 "" -- "$ckpt" "$work/a"
seconds=$(sed -n 's/.* in \([0-9]*\)\.[0-9] s$/\1/p' "$work/out.txt")
[ "${seconds:-999999}" -le $(($(date +%s) - began + 1)) ] || complain "it took less: $(cat "$work/out.txt")"
files "$work/a" pytorch_model.bin
grep -q "^wrote 1 file, 28 tensors (and 1 tied name), " "$work/out.txt" || complain "$(cat "$work/out.txt")"
expect 0 "" -- "$ckpt" "$work/b/c/d" --safe_serialization -t "$tag" --quiet
files "$work/b/c/d" model.safetensors
[ -s "$work/out.txt" ] && complain "--quiet prints"
expect 0 "" -- "$ckpt/$tag" "$work/t" # a tag's folder, taken as it is
cmp -s "$work/a/pytorch_model.bin" "$work/t/pytorch_model.bin" || complain "the tag's own folder gives other bytes"
expect 0 "transformer.wte.weight: trained, float32, (256, 64), tied: lm_head.weight" -- "$ckpt" "$work/t" -d
expect 0 "stage 3, 2 ranks" -- "$runs"/s3-bf16-adamw/ckpt "$work/t" --debug --verify
grep -q "verified" "$work/out.txt" || complain "--verify is not told"
expect 0 "" -- "$ckpt" "$work/s" --max_shard_size 200KB
grep -q '"total_size": ' "$work/s/pytorch_model.bin.index.json" || complain "no index"
n=$(find "$work/s" -name 'pytorch_model-0000?-of-0000?.bin' | wc -l)
grep -q "^wrote $n files" "$work/out.txt" || complain "$n shards, but $(cat "$work/out.txt")"
expect 0 "" -- "$ckpt" "$work/s" --max_shard_size none --dtype=bfloat16
files "$work/s" pytorch_model.bin
[ "$(stat -c %s "$work/s/pytorch_model.bin")" -lt $(($(stat -c %s "$work/a/pytorch_model.bin") * 2 / 3)) ] ||
  complain "bfloat16 is not smaller"

# usage
expect 2 "CHECKPOINT_DIR and OUTPUT_DIR are missing" --
expect 2 "OUTPUT_DIR is missing" -- "$ckpt"
expect 2 "unexpected word" -- "$ckpt" "$work/x" more
expect 2 "did you mean --max_shard_size" -- "$ckpt" "$work/x" --max_shard 5GB
expect 2 "is not a size" -- "$ckpt" "$work/x" --max_shard_size 5GiB
expect 2 "is not one of" -- "$ckpt" "$work/x" --dtype int8
expect 2 "nonexistent" -- "$work/nonexistent" "$work/x"
# A flipped bit in a weight is found by the shard's own checksum; a moment's is no weight's
cp -r "$ckpt" "$work/bad"
chmod -R u+w "$work/bad"
python3 - "$work/bad/$tag" <<'PY'
import glob, sys, zipfile
path = sorted(glob.glob(sys.argv[1] + "/*optim_states.pt"))[0]
records = [r for r in zipfile.ZipFile(path).infolist() if "/data/" in r.filename]
largest = max(r.file_size for r in records)
for turn, record in enumerate(r for r in records if r.file_size == largest):
    bytes_ = bytearray(open(path, "rb").read())
    head = bytes_[record.header_offset:record.header_offset + 30]
    at = record.header_offset + 30 + int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
    bytes_[at + largest // 2] ^= 4
    open(sys.argv[1] + f"/../flip{turn}", "wb").write(bytes_)
open(sys.argv[1] + "/../name", "w").write(path)
PY
n_found=0
for flip in "$work"/bad/flip?; do
  cp "$flip" "$(cat "$work/bad/name")"
  for format in "" --safe_serialization; do
    code=0
    "$tool" "$work/bad" "$work/bad-out" $format --quiet 2>"$work/err" || code=$?
    if [ $code = 4 ]; then
      n_found=$((n_found + 1))
      grep -q "optim_states.pt: record data/.* is damaged: its CRC-32 is" "$work/err" || complain "$(cat "$work/err")"
      [ -e "$work/bad-out" ] && complain "a damaged checkpoint left $(ls "$work/bad-out")"
    else
      [ $code = 0 ] || complain "exit $code: $(cat "$work/err")"
    fi
    rm -rf "$work/bad-out"
  done
done
[ $n_found = 2 ] || complain "a flipped weight was found $n_found times of 2"

expect 2 "global_step99" -- "$ckpt" "$work/x" -t global_step99
expect 2 "global_step98" -- "$ckpt" "$work/x" -tglobal_step98
expect 2 "global_step97" -- "$ckpt" "$work/x" -t=global_step97
tag_of=$(cat "$ckpt/latest")
for form in "-t $tag_of" "-t$tag_of" "-t=$tag_of"; do
  # shellcheck disable=SC2086
  expect 0 "" -- "$ckpt" "$work/by-tag" $form --quiet
  [ -s "$work/by-tag/pytorch_model.bin" ] || complain "$form: no weights in $(ls "$work/by-tag")"
  rm -rf "$work/by-tag"
done
expect 2 "unknown option -x" -- "$ckpt" "$work/x" -xyz
mkdir "$work/empty"
expect 2 "$work/empty" -- "$work/empty" "$work/x"
[ -e "$work/x" ] && complain "a failure made a folder"

# damaged and incomplete checkpoints
copy() { rm -rf "$work/ckpt"; cp -r "$1" "$work/ckpt"; chmod -R u+w "$work/ckpt"; shard=$(find "$work/ckpt" -name "$2"); }
copy "$ckpt" '*rank_1_*optim*'
rm "$shard"
expect 4 "$(basename "$shard")" -- "$work/ckpt" "$work/x"
copy "$ckpt" '*rank_1_*optim*'
cp "$shard" "${shard/rank_1/rank_2}"
expect 4 "rank_2" -- "$work/ckpt" "$work/x"
for name in '*rank_1_*optim*' '*model_states.pt'; do
  copy "$ckpt" "$name"
  truncate -s -100 "$shard"
  expect 4 "$(basename "$shard")" -- "$work/ckpt" "$work/x"
  truncate -s 0 "$shard"
  expect 4 "$(basename "$shard")" -- "$work/ckpt" "$work/x"
done
copy "$runs"/s3-bf16-adamw/ckpt '*rank_1_*model*'
rm "$shard"
expect 4 "$(basename "$shard")" -- "$work/ckpt" "$work/x"
[ -e "$work/x" ] && complain "a failure made a folder"

# places that cannot be written
: >"$work/file"
expect 2 "$work/file" -- "$ckpt" "$work/file"
expect 1 "/proc/czero" -- "$ckpt" /proc/czero
if [ "$(id -u)" != 0 ]; then
  mkdir -m 555 "$work/readonly"
  expect 1 "$work/readonly" -- "$ckpt" "$work/readonly"
fi
if mkdir "$work/disk" && mount -t tmpfs -o size=300k tmpfs "$work/disk" 2>/dev/null; then
  for format in "" --safe_serialization "--max_shard_size=100KB" "--safe_serialization --max_shard_size=100KB"; do
    # shellcheck disable=SC2086
    expect 1 "No space left" -- "$ckpt" "$work/disk/out" $format
    files "$work/disk" ""
  done
  umount "$work/disk"
  mount -t tmpfs -o ro tmpfs "$work/disk"
  expect 1 "Read-only" -- "$ckpt" "$work/disk/out"
  umount "$work/disk"
else
  echo "full and read-only disks left out: tmpfs cannot be mounted here"
fi
if "$tool" "$ckpt" "$work/full" >/dev/full 2>"$work/err.txt"; then complain "/dev/full as stdout is fine"; fi

# Hugging Face's split takes tensors without elements for one storage: the later ones come after all others of the first one's shard
(cd "$work" && PYTHONPATH=$OLDPWD/tests/cli/files python3 - <<'PY') || complain "no checkpoint with empty buffers"
import os
from repeated_elements import pairs, tensor, text, write
os.makedirs("empty/t")
open("empty/latest", "w").write("t")
sizes = {"none": 0, "mask": 240, "scale": 100, "nothing": 0, "weight": 4}
write("empty/t/mp_rank_00_model_states.pt", pairs([
    ("module", pairs([(name, tensor(name, n, (n,), (1,))) for name, n in sizes.items()])),
    ("buffer_names", b"](" + b"".join(text(name) for name in sizes if name != "weight") + b"e"), ("shared_params", b"}"),
    ("ds_version", text("0.19.8")), ("dp_world_size", b"K\1"), ("mp_world_size", b"K\1"), ("global_steps", b"K\1")]), sizes)
PY
names() {
  python3 -c 'import pickletools, sys, zipfile
z = zipfile.ZipFile(sys.argv[1])
strings = [x for _, x, _ in pickletools.genops(z.read(next(n for n in z.namelist() if n.endswith("/data.pkl"))))]
print(*[x for x in strings if x in ("none", "mask", "scale", "nothing", "weight")])' "$work/$1"
}
expect 0 "" -- "$work/empty" "$work/one"
[ "$(names one/pytorch_model.bin)" = "none mask scale weight nothing" ] || complain "empty: $(names one/pytorch_model.bin)"
expect 0 "" -- "$work/empty" "$work/two" --max_shard_size 1KB
two=two/pytorch_model-0000
[ "$(names ${two}1-of-00002.bin), $(names ${two}2-of-00002.bin)" = "none mask nothing, scale weight" ] ||
  complain "empty, in shards: $(names ${two}1-of-00002.bin), $(names ${two}2-of-00002.bin)"

# files may not grow that large (ulimit -f, in KiB)
(ulimit -f 10 && "$tool" "$ckpt" "$work/large" 2>"$work/err.txt")
code=$?
[ $code = 1 ] && grep -q 'File too large' "$work/err.txt" && [ ! -e "$work/large" ] ||
  complain "ulimit -f: exit $code: $(cat "$work/err.txt")"

# killed while it writes: whatever was there stays (test_consolidate_faults.c tries every moment)
mkdir "$work/kill"
echo old >"$work/kill/pytorch_model.bin"
for delay in 0 0.001 0.002 0.004 0.006 0.01; do
  "$tool" "$ckpt" "$work/kill" --max_shard_size 20KB --quiet &
  pid=$!
  sleep $delay
  kill -9 $pid 2>/dev/null
  wait $pid 2>/dev/null
  code=$?
  if [ $code = 0 ]; then # it was faster
    rm -rf "$work/kill"
    mkdir "$work/kill"
    echo old >"$work/kill/pytorch_model.bin"
  elif [ ! -e "$work/kill/pytorch_model.bin.index.json" ]; then
    [ "$(cat "$work/kill/pytorch_model.bin")" = old ] || complain "killed after $delay s: the old file is gone"
  fi
done
expect 0 "" -- "$ckpt" "$work/kill" # and the next run tidies up
files "$work/kill" pytorch_model.bin
exit $failed
