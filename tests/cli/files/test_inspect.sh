#!/usr/bin/env bash
# Claim: `czero inspect` shows files and folders on stdout with exit 0, as text or as JSON; what it
# cannot show is one sentence on stderr and exit 2, damage exit 4.
set -uo pipefail
cd "$(dirname "$0")/../../.."
czero=$1/czero
work=$(mktemp -d /tmp/czero-inspect-XXXXXX)
trap 'rm -rf "$work"' EXIT
failed=0
complain() { echo "$*" >&2; failed=1; }

expect() { # CODE STREAM PATTERN -- arguments
  local code=$1 stream=$2 pattern=$3
  shift 4
  "$czero" inspect "$@" >"$work/out" 2>"$work/err"
  local got=$?
  [ $got = "$code" ] || complain "exit $got instead of $code: inspect $*"
  grep -qE -- "$pattern" "$work/$stream" || complain "no \"$pattern\" in: $(cat "$work/$stream")"
  [ $code = 0 ] || [ "$(wc -l <"$work/err")" = 1 ] || complain "more than a sentence: $(cat "$work/err")"
}
fixtures=$1/fixtures
pt=$fixtures/formats/pt
expect 0 out 'weight: float32 \(3, 4\)  data/0$' -- "$pt/simple.pt"
expect 0 out '"kind": "torch"' -- "$pt/simple.pt" --json
expect 0 out 'min .* max .* crc32 [0-9a-f]{8}' -- "$pt/simple.pt" --sums
expect 0 out 'records' -- "$pt/simple.pt" --all
expect 0 out 'safetensors, 28 tensors' -- "$fixtures/models/gpt2"
expect 0 out '"dtype": "F32"' -- "$fixtures/models/gpt2/model.safetensors" --json
expect 2 err 'legacy torch format' -- "$pt/legacy.pt"
expect 2 err 'is a file' -- "$pt/simple.pt" --tag x
expect 2 err 'is text' -- "$fixtures/models/gpt2/config.json"
expect 2 err 'nowhere' -- "$work/nowhere"
"$czero" inspect 2>/dev/null
[ $? = 2 ] || complain "no PATH is no usage error"
head -c 1000 "$pt/simple.pt" >"$work/cut.pt"
expect 4 err 'cut\.pt' -- "$work/cut.pt"
"$czero" inspect --help >"$work/out" && grep -q -- --sums "$work/out" || complain "no help"
"$czero" inspect "$pt/simple.pt" >/dev/full 2>"$work/err"
[ $? = 1 ] || complain "a full disk is no failure"

# Of long lists the middle is left out, and counted: all lines together are all tensors.
python3 - "$work" <<'PY'
import json, struct, sys
for n in 64, 65, 100:
    header = json.dumps({f"t{i:03}": {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]} for i in range(n)}).encode()
    header += b" " * (-len(header) % 8)
    open(f"{sys.argv[1]}/{n}.safetensors", "wb").write(struct.pack("<Q", len(header)) + header + bytes(n))
PY
for n in 64 65 100; do
  "$czero" inspect "$work/$n.safetensors" >"$work/out" || complain "$n tensors: exit $?"
  shown=$(grep -cE '^ *t[0-9]{3}' "$work/out") more=$(sed -nE 's/^ *(…|\.\.\.) ([0-9]+) more$/\2/p' "$work/out")
  [ $((shown + more)) = $n ] && [ $shown -le 64 ] || complain "$shown and $more of $n tensors"
  [ "$("$czero" inspect "$work/$n.safetensors" --all | grep -cE "^ *t[0-9]{3}")" = $n ] || complain "--all leaves some of $n out"
done

# Whose the states are cannot be told here: the rest is shown, and nothing is damaged.
twins=$fixtures/checkpoints/wrappers/s0-fp32-groups
expect 0 out 'ZeRO stage    0' -- "$twins"
grep -q "do not tell which parameters" "$work/err" || complain "no word about the states"
"$czero" fsck "$twins" >"$work/out" || complain "fsck of $twins: exit $?"

runs=$fixtures/runs
for ckpt in "$runs"/*/ckpt; do
  expect 0 out 'saved by      DeepSpeed 0\.1' -- "$ckpt"
  expect 0 out '"kind": "checkpoint"' -- "$ckpt" --json --sums
done
expect 0 out 'ZeRO stage    2, 2 ranks' -- "$runs/s2-bf16-adamw/ckpt" --tag global_step20
# The optimizer has its name, with its settings and, in elastic files, without
expect 0 out 'optimizer     AdamW, lr ' -- "$runs/s2-bf16-adamw/ckpt"
expect 0 out '"optimizer": "AdamW"' -- "$runs/s2-bf16-adamw/ckpt" --json
for elastic in fused-adamw:AdamW torch-adamw:AdamW sgd-momentum:SGD; do
  expect 0 out "optimizer     ${elastic#*:}, without its settings" -- "$fixtures/checkpoints/resume/${elastic%:*}/ckpt"
  expect 0 out "\"optimizer\": \"${elastic#*:}\"" -- "$fixtures/checkpoints/resume/${elastic%:*}/ckpt" --json
done
expect 2 err "no tag 'x'" -- "$runs/s2-bf16-adamw/ckpt" --tag x
[ $failed = 0 ] && echo "inspect works"
exit $failed
