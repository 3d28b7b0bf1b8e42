#!/usr/bin/env bash
# Claim: `czero verify` prints an error per tensor and exits 0 when all agree, 1 when one does not,
# 2 or 4 when there is nothing sound to compare; --dump writes what an oracle could be made of.
set -uo pipefail
cd "$(dirname "$0")/../../.."
czero=$1/czero
work=$(mktemp -d /tmp/czero-verify-XXXXXX)
trap 'rm -rf "$work"' EXIT
failed=0
complain() { echo "$*" >&2; failed=1; }
models=$1/fixtures/models

"$czero" verify "$models/gpt2" --dump "$work/dump" >"$work/out" || complain "exit $?"
[ "$(grep -c '^grad\.' "$work/out")" = 28 ] || complain "28 gradients expected"
[ "$(grep -c '^out\.' "$work/out")" = 2 ] || complain "logits and loss expected"
tail -1 "$work/out" | grep -q "30 tensors compared.*they agree" || complain "$(tail -1 "$work/out")"
# every error below 2e-5
awk '/^(grad|out)\./ && $2 + 0 > 2e-5 { print "too far off:", $0; bad = 1 } END { exit bad }' \
  "$work/out" >&2 || failed=1
size=$(stat -c %s "$work/dump")
[ "$size" -gt 250000 ] || complain "the dump has $size bytes"

# another model's weights under this oracle
mkdir "$work/other"
cp "$models/gpt2/config.json" "$models/gpt2/oracle.safetensors" "$work/other"
"$czero" verify "$work/other" >"$work/out" # no weights: random ones
[ $? = 1 ] || complain "random weights agree"
grep -q "beyond 1e-04" "$work/out" || complain "no tensor is marked"
tail -1 "$work/out" | grep -q "they differ" || complain "$(tail -1 "$work/out")"

# a value that is no number is the worst of all, wherever it stands
mkdir "$work/nan"
cp "$models"/gpt2/{config.json,model.safetensors,oracle.safetensors} "$work/nan"
python3 - "$work/nan/oracle.safetensors" <<'PY' || complain "no oracle with NaN"
import json, sys
raw = bytearray(open(sys.argv[1], "rb").read())
n = int.from_bytes(raw[:8], "little")
at = 8 + n + json.loads(raw[8:8 + n])["out.logits"]["data_offsets"][0]
raw[at:at + 4] = b"\0\0\xc0\x7f"
open(sys.argv[1], "wb").write(raw)
PY
"$czero" verify "$work/nan" >"$work/out"
[ $? = 1 ] || complain "NaN agrees"
tail -1 "$work/out" | grep -q "worst relative error nan: they differ" || complain "$(tail -1 "$work/out")"
"$czero" verify "$work/nan" --json >"$work/out"
grep -q '"worst_error": null' "$work/out" || complain "--json loses NaN"

expect() { # CODE PATTERN -- arguments
  local code=$1 pattern=$2
  shift 3
  "$czero" verify "$@" >"$work/out" 2>"$work/err"
  local got=$?
  [ $got = "$code" ] || complain "exit $got instead of $code: verify $*"
  grep -q -- "$pattern" "$work/err" || complain "no \"$pattern\" in: $(cat "$work/err")"
}
expect 2 DIR --
expect 2 config.json -- /nonexistent
rm "$work/other/oracle.safetensors"
expect 2 oracle.safetensors -- "$work/other"
head -c 5000 "$models/gpt2/oracle.safetensors" >"$work/other/oracle.safetensors"
expect 4 oracle.safetensors -- "$work/other"
expect 1 nowhere -- "$models/gpt2" --dump /nowhere/dump
"$czero" verify --help >"$work/out" && grep -q -- --dump "$work/out" || complain "no help"
[ $failed = 0 ] && echo "verify works"
exit $failed
