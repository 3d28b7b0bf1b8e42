#!/usr/bin/env bash
# Claim: --save-keep removes only checkpoints that czero saved under their names, and of these only the files
# that their manifests list. Copies of a tag, folders of the user with a manifest in them, and the user's
# files in an old tag stay; none of them counts as one of the newest.
set -uo pipefail
build=$(cd "$1" && pwd)
source_dir=$(cd "$(dirname "$0")/../../.." && pwd)
work=$(mktemp -d /tmp/czero-save-keep-XXXXXX)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
fail() { echo "$*" >&2; ls -la run run/* >&2; cat err.txt >&2; exit 1; }
head -c 20000 "$source_dir/examples/data/fortunes.txt" >text.txt
train() {
  "$build/czero" train --config "$source_dir/configs/zero0.json" --model gpt2-tiny --data text.txt --tokenizer bytes \
    --seq-len 16 --save run "$@" >out.txt 2>err.txt || fail "train failed: $*"
}
train --steps 3 --save-interval 1
cp -r run/global_step2 run/best2
cp -r run/global_step2 run/global_step2.bak
for i in 0 1 2; do
  mkdir "run/user_data_$i"
  cp run/global_step3/czero_manifest.json "run/user_data_$i"
  sed 's/"global_steps": [0-9]*/"global_steps": 1000000000000000/' run/global_step3/czero_state.json \
    >"run/user_data_$i/czero_state.json"
  echo mine >"run/user_data_$i/mine.txt"
done
echo mine >run/global_step1/notes.txt
find run/best2 run/global_step2.bak run/user_data_* -type f -exec sha256sum {} + | sort >before

train --resume run --steps 4 --save-keep 2
find run/best2 run/global_step2.bak run/user_data_* -type f -exec sha256sum {} + | sort >after
cmp before after || fail "files that are not czero's changed"
for tag in 3 4; do
  "$build/czero" fsck "run/global_step$tag" >fsck.txt 2>&1 || fail "global_step$tag: $(cat fsck.txt)"
done
[ ! -e run/global_step2 ] || fail "global_step2 stays"
[ "$(ls -A run/global_step1)" = notes.txt ] || fail "global_step1 is not the user's file alone"
grep -q 'run/global_step1: the checkpoint was removed, but not the folder' err.txt || fail "no sentence about the folder"

train --resume run --steps 5 --save-keep 1
[ "$(cat run/latest)" = global_step5 ] || fail "latest: $(cat run/latest)"
[ ! -e run/global_step3 ] && [ ! -e run/global_step4 ] || fail "older checkpoints stay"
find run/best2 run/global_step2.bak run/user_data_* -type f -exec sha256sum {} + | sort >after
cmp before after || fail "files that are not czero's changed"
[ -e run/global_step1/notes.txt ] || fail "the user's file is gone"
[ -z "$(find run -name '.*' -not -name run)" ] || fail "something hidden stays"
echo "two runs kept what is not theirs"
