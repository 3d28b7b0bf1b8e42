#!/usr/bin/env bash
# Claim: what a user gets wrong ends in one sentence on stderr and the documented exit code, and
# leaves nothing under a final name.
set -uo pipefail
build=$(cd "$1" && pwd)
source_dir=$(cd "$(dirname "$0")/../../.." && pwd)
czero=$build/czero
work=$(mktemp -d /tmp/czero-bad-XXXXXX)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failed=0

cp "$source_dir/configs/quickstart.json" config.json
head -c 20000 "$source_dir/examples/data/fortunes.txt" >text.txt
base=(train --config config.json --model gpt2-tiny --data text.txt --seq-len 16 --steps 1 --quiet)

# expect CODE PATTERN ARGS…: runs czero; its stderr must match and hold one sentence for the error.
expect() {
  local want=$1 pattern=$2
  shift 2
  local err code
  err=$("$czero" "$@" 2>&1 >out.txt)
  code=$?
  if [ $code -ne "$want" ] || ! grep -qE -- "$pattern" <<<"$err"; then
    printf 'czero %s\n  exit %d (wanted %d), stderr (wanted /%s/):\n%s\n' "$*" $code "$want" \
      "$pattern" "$err" >&2
    failed=1
  fi
  if [ "$(grep -cv 'warning:' <<<"$err")" -gt 3 ]; then
    printf 'czero %s: more than a sentence:\n%s\n' "$*" "$err" >&2
    failed=1
  fi
}

data() { # the base command on other data
  expect "$1" "$2" train --config config.json --model gpt2-tiny --seq-len 16 --steps 1 --quiet \
    --data "${@:3}"
}

with() { # the base command with some options replaced by later ones
  expect "$1" "$2" "${base[@]}" "${@:3}"
}

# Usage
expect 2 'unknown command "fly"' fly
expect 2 'unknown option --stepz; did you mean --step' train --stepz 3
expect 2 '--model, --data and --steps or --epochs are missing' train --config config.json
with 2 '--steps: 0 is less than 1' --steps 0
with 2 '"x" is not a whole number' --steps x
with 2 'needs --save' --save-interval 2
with 2 'ckpt' --resume ckpt
with 2 'no parameter of gpt2-tiny has such a name; the first is transformer.wte.weight' --freeze wpe.wieght
expect 2 'no parameter of gpt2 has such a name' plan --config config.json --model gpt2 --seq-len 16 --freeze wpe.wieght
expect 2 'epochs: too many steps' train --config config.json --model gpt2-tiny --data text.txt \
  --seq-len 16 --quiet --epochs 9223372036854775807
expect 2 'a pipe can be read only once' "${base[@]}" --config <(cat config.json)
expect 2 'unknown command "fly"' help fly

CZERO_COMPAT=0.17 expect 2 'CZERO_COMPAT=0.17: use 0.16 or 0.19' config check config.json
# what the end of a run needs is opened at its beginning: no step is made
expect 2 'nowhere.txt: cannot be opened' "${base[@]}" --eval-data nowhere.txt --curve never.csv
if [ -e never.csv ]; then
  echo "a curve of a run that did not begin"
  failed=1
fi
CZERO_ISA=mmx with 2 'CZERO_ISA=mmx: use one of'

# Config
with 2 'nothing.json' --config nothing.json
echo '{"train_batch_size": 4, "optimizer": {"type": "Adam", "params": {"lr": "auto"}}}' >auto.json
with 2 'auto\.json:1:72: optimizer\.params\.lr: -1 must not be negative' --config auto.json --lr -1
with 2 'auto\.json:1:22: train_batch_size: the config says 4' --config auto.json --auto train_batch_size=5
echo '{"train_batch_size": 4, "train_batch_size": 4}' >twice.json
with 2 'twice.json:1:.*[Dd]uplicate' --config twice.json
echo '{"train_batch_size": 5, "train_micro_batch_size_per_gpu": 2}' >triangle.json
with 2 '5' --config triangle.json
echo '{"train_batch_size": 4,' >cut.json
with 2 'cut.json:' --config cut.json
with 2 'cuda' --device cuda

# Model
with 2 'gpt2-huge' --model gpt2-huge
mkdir empty broken
with 2 'empty' --model empty
"$czero" "${base[@]}" --export good >/dev/null 2>&1 || { echo "the export failed" >&2; failed=1; }
cp good/config.json broken/
head -c 1000 good/model.safetensors >broken/model.safetensors
with 4 'broken/model.safetensors' --model broken
size=$(stat -c %s good/model.safetensors)
head -c $((size - 4)) good/model.safetensors >broken/model.safetensors
with 4 'broken/model.safetensors' --model broken
with 2 '65.*64|64.*65' --seq-len 65
sed 's|"vocab_size": *256|"vocab_size": 100|' good/config.json >broken/config.json
cp good/model.safetensors broken/
mkdir bare && cp good/config.json bare/
expect 0 'warning: bare has no weights: the text comes from RANDOM weights' generate --model bare --prompt x --max-new-tokens 2
with 4 'wte.weight.*256.*100|wte.weight.*100.*256' --model broken

# Data
data 2 'missing.txt' missing.txt
printf '' >nothing.txt
data 2 'nothing.txt' nothing.txt
printf 'short' >short.txt
data 2 'short.txt' short.txt
mkdir data.d
data 2 'data.d: the folder has no file' data.d

# No space for the output
if [ "$(id -u)" = 0 ] && mkdir tiny && mount -t tmpfs -o size=64k tmpfs tiny 2>/dev/null; then
  with 1 'No space left' --export tiny/model
  if [ -e tiny/model/model.safetensors ] || [ -e tiny/model/config.json ]; then
    echo "a full disk left files under their final names: $(ls tiny/model)" >&2
    failed=1
  fi
  umount tiny
else
  echo "note: no tmpfs could be mounted, the full disk is not tested"
fi
"$czero" config show config.json >/dev/full 2>full.err
[ $? = 1 ] && grep -q '^czero: cannot write to standard output' full.err && ! grep -q Success full.err ||
  { echo "a full standard output: $(cat full.err)" >&2; failed=1; }
with 1 'curve' --curve no/such/folder/curve.csv

[ $failed = 0 ] && echo "all bad input was refused as documented"
exit $failed
