#!/usr/bin/env bash
# Claim: `czero fsck` says "no damage" and exits 0 for DeepSpeed's own checkpoints and files; damage
# is a sentence that names the file (and what is there) with exit 4; what cannot be checked exits
# 1 or 2; --json says the same in JSON, --quiet only what is wrong.
set -uo pipefail
cd "$(dirname "$0")/../../.."
czero=$1/czero
work=$(mktemp -d /tmp/czero-fsck-XXXXXX)
trap 'rm -rf "$work"' EXIT
failed=0
complain() { echo "$*" >&2; failed=1; }

expect() { # CODE STREAM PATTERN -- arguments
  local code=$1 stream=$2 pattern=$3
  shift 4
  "$czero" fsck "$@" >"$work/out" 2>"$work/err"
  local got=$?
  [ $got = "$code" ] || complain "exit $got instead of $code: fsck $* ($(cat "$work/out" "$work/err"))"
  grep -qE -- "$pattern" "$work/$stream" || complain "no \"$pattern\" in: $(cat "$work/$stream")"
}
poke() { # FILE OFFSET: another byte there
  local old
  old=$(od -An -tu1 -j "$2" -N 1 "$1")
  # shellcheck disable=SC2059
  printf "\\x$(printf %02x $((old ^ 16)))" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}

fixtures=$1/fixtures
pt=$fixtures/formats/pt
expect 0 out '^.*simple.pt: 1 file, [0-9]+ tensors?, [0-9]+ bytes: no damage$' -- "$pt/simple.pt"
expect 0 out 'without a checksum' -- "$pt/no_crc.pt"
expect 2 err 'legacy torch format' -- "$pt/legacy.pt"
expect 2 err 'compressed' -- "$pt/deflated.pt"
expect 0 out 'no damage' -- "$fixtures/models/gpt2"
expect 2 err 'nowhere' -- "$work/nowhere"
expect 2 err 'nothing to check' -- "$work"
expect 2 err 'DIR' --
expect 2 err 'is a file' -- "$pt/simple.pt" --tag x
cp "$pt/simple.pt" "$work/x.pt"
cp "$pt/simple.pt" "$work/y.pt"
poke "$work/x.pt" 130
expect 4 out 'x\.pt: .*data\.pkl.*damaged' -- "$work/x.pt"
expect 4 out '2 files.*1 finding' -- "$work"
expect 4 out '"clean": false' -- "$work" --json
expect 4 out '"file": ".*x\.pt"' -- "$work" --json
expect 4 out 'x\.pt' -- "$work" --quiet
[ "$(wc -l <"$work/out")" = 1 ] || complain "--quiet prints more than damage"
rm "$work/x.pt"
expect 0 out '"clean": true' -- "$work/y.pt" --json
"$czero" fsck "$work/y.pt" --quiet >"$work/out" || complain "--quiet: exit $?"
[ -s "$work/out" ] && complain "--quiet says that all is well"
"$czero" fsck --help >"$work/out" && grep -q -- --all "$work/out" || complain "no help"

runs=$fixtures/runs
for ckpt in "$runs"/*/ckpt; do expect 0 out 'no damage' -- "$ckpt"; done
cp -r "$runs/s2-bf16-adamw/ckpt" "$work/ckpt"
tag=$work/ckpt/global_step20
shard=$tag/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt
poke "$shard" 300000
expect 4 out 'rank_1.*record data/2 \(transformer\..*exp_avg_sq, and 15 more\)' -- "$work/ckpt"
poke "$shard" 300000
cp "$shard" "${shard/rank_1/rank_2}"
expect 4 out 'stale' -- "$work/ckpt"
mv "${shard/rank_1/rank_2}" "$shard"
expect 0 out 'no damage' -- "$work/ckpt"
truncate -s 400000 "$shard"
expect 4 out 'rank_1' -- "$work/ckpt"
rm "$shard"
expect 4 out 'missing' -- "$work/ckpt"
expect 4 out 'missing' -- "$tag"
echo none >"$work/ckpt/latest"
expect 4 out 'none' -- "$work/ckpt"
expect 4 out 'none' -- "$work/ckpt" --all
expect 2 err "no tag 'x'" -- "$work/ckpt" --tag x
cp -r "$fixtures/checkpoints/expected/u3" "$work/u3"
expect 0 out 'no damage' -- "$work/u3"
rm "$work/u3/t3/zero/l2.weight/fp32.pt"
expect 4 out 'l2.weight/fp32.pt' -- "$work/u3"
cp -r "$fixtures/formats/safetensors/sharded" "$work/sharded"
expect 0 out 'no damage' -- "$work/sharded"
index=$work/sharded/model.safetensors.index.json
sed -i '0,/-0000[12]-of/s//-00003-of/' "$index"
expect 4 out 'should be in model-00003-of-00003.safetensors and is not' -- "$work/sharded"
[ $failed = 0 ] && echo "fsck works"
exit $failed
