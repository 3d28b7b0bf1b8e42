#!/usr/bin/env bash
# Claim: no name and no link in a checkpoint or model folder makes a command read, list or copy a file
# outside of it: ds_id, states, shards, indexes, manifests, `latest`, universal folders, resume states,
# configs and tokenizers. Links inside, a Hugging Face cache, and links that the user names work.
set -uo pipefail
cd "$(dirname "$0")/../../.."
build=$1
fixtures=$(readlink -f "$1/fixtures")
work=$(mktemp -d /tmp/czero-beneath-XXXXXX)
trap 'rm -rf "$work"' EXIT
failed=0
complain() {
  local text=$*
  echo "${text:0:600}" >&2
  failed=1
}

# expect CODE PATTERN COMMAND… : the secret is in neither stream, the pattern is
expect() {
  local code=$1 pattern=$2
  shift 2
  "$build/$1" "${@:2}" >"$work/out" 2>"$work/err" </dev/null
  local got=$?
  [ $got = "$code" ] || complain "exit $got instead of $code: $* ($(cat "$work/out" "$work/err"))"
  [ -z "$pattern" ] || grep -qE -- "$pattern" "$work/out" "$work/err" || complain "$*: no \"$pattern\" in: $(cat "$work/out" "$work/err")"
}
# leaks PATH… : bytes of the secret are nowhere in them
leaks() { if grep -rqa 'hunter2secret' "$@" 2>/dev/null; then complain "$*: holds the secret"; fi; }

# Two secrets: a text, and numbers (a piece of it in fp32 is still its bytes).
mkdir "$work/victim"
python3 -c 'print("hunter2secret" * 4000, end="")' >"$work/victim/other.tensor.swp"
cp "$work/victim/other.tensor.swp" "$work/victim/key.pem"
printf '{"hunter2secret": 1}' >"$work/victim/key.json"

# ---- names in a stage-3 checkpoint with swap files -----------------------------------------------

swapped=$fixtures/checkpoints/expected/s3-swapped
# rename FOLDER OLD NEW: a string of every rank's optimizer pickle is another one, under a good checksum
rename() {
  python3 - "$1"/t3 "$2" "$3" <<'PY'
import pathlib, struct, sys, zipfile
old, new = (b"X" + struct.pack("<I", len(s)) + s for s in (a.encode() for a in sys.argv[2:4]))
for path in pathlib.Path(sys.argv[1]).glob("*_optim_states.pt"):
    with zipfile.ZipFile(path) as z:
        records = [(i.filename, z.read(i)) for i in z.infolist()]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as z:
        for name, data in records:
            if name.endswith("data.pkl"):
                assert old in data, old
                data = data.replace(old, new)
            z.writestr(name, data)
PY
}
hostile() { rm -rf "$work/s3"; cp -r "$swapped" "$work/s3"; }
refused() { # PATTERN: by all commands that read a checkpoint
  rm -rf "$work/fp32"
  expect 4 "$1" zero_to_fp32 "$work/s3" "$work/fp32" --safe_serialization
  leaks "$work/fp32"
  expect 4 "$1" czero inspect "$work/s3" --sums
  expect 4 "$1" czero fsck "$work/s3"
}

hostile
expect 0 'wrote' zero_to_fp32 "$work/s3" "$work/fp32" --safe_serialization # it is a checkpoint
hostile
rename "$work/s3" 7_7 ../../../../victim/other
refused 'name of a swap file.*is refused'
hostile
rename "$work/s3" 7_7 "$work/victim/other"
refused 'name of a swap file.*is refused'
# A name that is cut off after 255 bytes ends in what the author of the file wants.
hostile
prefix=offloaded_tensors/rank00/
target=../../../../victim/key.pem
pad=$(python3 -c "import sys; n = 255 - len('$prefix$target'); print('./' * (n // 2) + '/' * (n % 2))")
rename "$work/s3" exp_avg "../../../../${pad}victim/key.pem"
expect 4 'name of a swap file.*is refused' czero inspect "$work/s3" --sums
expect 4 'name of a swap file.*is refused' czero fsck "$work/s3"
# Names that are long are not cut; the file just is not there.
hostile
rename "$work/s3" 7_7 "$(printf '7%.0s' {1..150})"
expect 2 '7{150}\.tensor\.swp is not in the tag' zero_to_fp32 "$work/s3" "$work/fp32"
hostile
rename "$work/s3" 7_7 "$(printf '7%.0s' {1..400})"
expect 1 'name too long' zero_to_fp32 "$work/s3" "$work/fp32"
# A swap file, its folder, and the folder of all, as links
for link in offloaded_tensors/rank00/7_7.tensor.swp offloaded_tensors/rank00 offloaded_tensors; do
  hostile
  outside=$work/moved/$link
  rm -rf "$work/moved" && mkdir -p "$(dirname "$outside")" && mv "$work/s3/t3/$link" "$outside"
  ln -s "$outside" "$work/s3/t3/$link"
  refused 'a link leads out'
  rm "$work/s3/t3/$link" && cp -r "$outside" "$work/s3/t3/inside"
  ln -s "$(python3 -c "print('../' * '$link'.count('/'))")inside" "$work/s3/t3/$link"
  expect 0 'wrote' zero_to_fp32 "$work/s3" "$work/fp32"
done
hostile
ln -sf "$work/victim/key.pem" "$work/s3/t3/offloaded_tensors/rank00/7_7.tensor.swp"
refused 'a link leads out'

# ---- other files of checkpoints ------------------------------------------------------------------

runs=$fixtures/runs
for name in mp_rank_00_model_states.pt bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt; do
  rm -rf "$work/s2" && cp -r "$runs/s2-bf16-adamw/ckpt" "$work/s2"
  mv "$work/s2/global_step20/$name" "$work/$name" && ln -s "../../$name" "$work/s2/global_step20/$name"
  expect 4 "$name: a link leads out" zero_to_fp32 "$work/s2" "$work/fp32"
  expect 4 "$name: a link leads out" czero inspect "$work/s2"
  expect 4 "$name: a link leads out" czero fsck "$work/s2"
done
rm -rf "$work/s2" && cp -r "$runs/s2-bf16-adamw/ckpt" "$work/s2"

# `latest`: a tag that is a link to elsewhere is the file's choice; named by the user it is the user's
mv "$work/s2/global_step20" "$work/elsewhere" && ln -s ../elsewhere "$work/s2/global_step20"
expect 4 'a link leads out' zero_to_fp32 "$work/s2" "$work/fp32"
expect 4 'a link leads out' czero inspect "$work/s2"
expect 4 'a link leads out' czero fsck "$work/s2"
expect 2 'no checkpoint is in this folder' czero fsck "$work/s2" --all
expect 0 wrote zero_to_fp32 "$work/s2" "$work/fp32" --tag global_step20
expect 0 'no damage' czero fsck "$work/s2" --tag global_step20
expect 0 'no damage' czero fsck "$work/s2/global_step20"
ln -s "$work/elsewhere" "$work/linked"
expect 0 wrote zero_to_fp32 "$work/linked" "$work/fp32"
ln -s s2 "$work/linked_folder"
rm "$work/s2/global_step20" && mv "$work/elsewhere" "$work/s2/global_step20"
expect 0 'no damage' czero fsck "$work/linked_folder"
expect 0 wrote zero_to_fp32 "$work/linked_folder/" "$work/fp32"
mkdir "$work/s2/real" && mv "$work/s2/global_step20" "$work/s2/real/20" && ln -s real/20 "$work/s2/global_step20"
expect 0 'no damage' czero fsck "$work/s2"
printf '%s' '../victim' >"$work/s2/latest"
expect 4 'does not name a tag' zero_to_fp32 "$work/s2" "$work/fp32"
ln -sf "$work/victim/key.json" "$work/s2/latest"
expect 4 'a link leads out' zero_to_fp32 "$work/s2" "$work/fp32"

# Universal folders
universal=$fixtures/checkpoints/expected/u2
parameter=$(find "$universal/t3/zero" -mindepth 1 -maxdepth 1 -type d -printf '%f\n' | LC_ALL=C sort | head -1)
for link in zero "zero/$parameter" "zero/$parameter/fp32.pt"; do
  rm -rf "$work/u" "$work/moved" && cp -r "$universal" "$work/u"
  mv "$work/u/t3/$link" "$work/moved" && ln -s "$work/moved" "$work/u/t3/$link"
  expect 4 'a link leads out' czero inspect "$work/u" --sums
  expect 4 'a link leads out' czero fsck "$work/u"
done

# ---- indexes -------------------------------------------------------------------------------------

model=$fixtures/models/gpt2-tiny
mkdir "$work/indexed" && cp "$model/config.json" "$work/indexed"
for name in ../../x /x ../victim/key.pem ../indexed/config.json; do
  for index in model.safetensors.index.json pytorch_model.bin.index.json; do
    rm -f "$work"/indexed/*.index.json
    printf '{"metadata": {}, "weight_map": {"a": "%s"}}' "$name" >"$work/indexed/$index"
    expect 4 'is refused: it .*leads out of the folder' czero fsck "$work/indexed"
    grep -q missing "$work/out" && complain "fsck tells whether $name is there"
    expect 4 'leads out of the folder' czero generate --model "$work/indexed" --prompt x
  done
done
rm -f "$work"/indexed/*.index.json
printf '{"metadata": {}, "weight_map": {"a": "shard"}}' >"$work/indexed/model.safetensors.index.json"
ln -s "$work/victim/key.pem" "$work/indexed/shard"
expect 4 'shard: a link leads out' czero fsck "$work/indexed"
expect 4 'shard: a link leads out' czero inspect "$work/indexed"
expect 4 'shard: a link leads out' czero generate --model "$work/indexed" --prompt x

# ---- model folders and tokenizers ----------------------------------------------------------------

cp -r "$model" "$work/hf"
printf 'To be, or not to be, that is the question.\n%.0s' {1..40} >"$work/text"
cat >"$work/ds.json" <<'JSON'
{"train_batch_size": 2, "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}}
JSON
train=(czero train --config "$work/ds.json" --data "$work/text" --seq-len 16 --steps 1 --quiet)
generate=(czero generate --prompt "To be" --max-new-tokens 2 --tokenizer bytes)

ln -s hf "$work/my_model" # the user's own link to the folder
expect 0 '' "${generate[@]}" --model "$work/my_model"
for name in config.json model.safetensors; do
  cp "$work/hf/$name" "$work/kept" && ln -sf "$work/kept" "$work/hf/$name"
  expect 4 "$name: a link leads out" "${generate[@]}" --model "$work/hf"
  rm "$work/hf/$name" && cp "$work/kept" "$work/hf/$name"
  mv "$work/hf/$name" "$work/hf/blob" && ln -s blob "$work/hf/$name"
  expect 0 '' "${generate[@]}" --model "$work/hf"
  rm "$work/hf/$name" && mv "$work/hf/blob" "$work/hf/$name"
done

# A tokenizer's files are copied into what users publish: none may come from elsewhere
for kind in gpt2 qwen2; do
  names="added_tokens.json special_tokens_map.json tokenizer_config.json"
  [ $kind = gpt2 ] && names="$names vocab.json merges.txt"
  [ $kind = qwen2 ] && names="$names tokenizer.json"
  for name in $names; do
    rm -rf "$work/t" "$work/exported" && cp -r "$fixtures/tokenizers/$kind" "$work/t"
    sed 's/"vocab_size": [0-9]*/"vocab_size": 160000/' "$model/config.json" >"$work/t/config.json"
    ln -sf "$work/victim/key.json" "$work/t/$name"
    expect 4 "$name: a link leads out" "${train[@]}" --model "$work/t" --init random --export "$work/exported"
    leaks "$work/exported"
  done
done

# ---- a Hugging Face cache ------------------------------------------------------------------------

cache=$work/hub/models--org--tiny
mkdir -p "$cache/blobs" "$cache/snapshots/0123abc" "$cache/refs"
for file in "$model"/*; do
  sum=$(sha256sum "$file" | cut -c1-64)
  cp "$file" "$cache/blobs/$sum" && ln -s "../../blobs/$sum" "$cache/snapshots/0123abc/$(basename "$file")"
done
expect 0 '' "${generate[@]}" --model "$cache/snapshots/0123abc"
expect 0 'no damage' czero fsck "$cache/snapshots/0123abc"
expect 0 'safetensors' czero inspect "$cache/snapshots/0123abc"
ln -s "$cache/snapshots/0123abc" "$work/from_hub"
expect 0 '' "${generate[@]}" --model "$work/from_hub"
(cd "$cache/snapshots/0123abc" && "$build/czero" inspect . >/dev/null) || complain "in the snapshot's folder"
rm -rf "$work/exported"
expect 0 '' "${train[@]}" --model "$cache/snapshots/0123abc" --tokenizer bytes --export "$work/exported"
[ "$(find "$work/exported" -type l | wc -l)" = 0 ] || complain "an export has links"
mv "$cache" "$work/hub/tiny" # no cache any more
expect 4 'a link leads out' "${generate[@]}" --model "$work/hub/tiny/snapshots/0123abc"

# ---- a run that resumes --------------------------------------------------------------------------

expect 0 '' "${train[@]}" --model "$model" --tokenizer bytes --save "$work/run"
cp -r "$work/run" "$work/again" && mkdir "$work/private" && mv "$work/again/model" "$work/private"
ln -s ../private/model "$work/again/model"
expect 4 'model/config.json: a link leads out' czero export "$work/again" "$work/exported"
expect 4 'model/config.json: a link leads out' czero export "$work/again/global_step1" "$work/exported"
expect 0 wrote czero export "$work/again" "$work/exported" --model "$work/again/model" --force
rm "$work/again/model" && mkdir "$work/again/inside" && mv "$work/private/model" "$work/again/inside"
ln -s inside/model "$work/again/model"
expect 0 wrote czero export "$work/again" "$work/exported" --force
for name in czero_state.json czero_manifest.json mp_rank_00_model_states.pt latest; do
  rm -rf "$work/again" && cp -r "$work/run" "$work/again"
  folder=$work/again/global_step1
  [ $name = latest ] && folder=$work/again
  mv "$folder/$name" "$work/kept" && ln -s "$work/kept" "$folder/$name"
  expect 4 "$name: a link leads out" "${train[@]}" --steps 2 --model "$model" --tokenizer bytes --resume "$work/again"
done
exit $failed
