#!/usr/bin/env bash
# Claim: while files are truncated, written anew or replaced again and again, every command that reads them
# either gives what it gives for the file at rest, or exits with 4 and a sentence that names the file. None is
# ended by a signal (SIGBUS), and no output of a mixture stays.
set -uo pipefail
cd "$(dirname "$0")/../../.."
build=$1
work=$(mktemp -d /tmp/czero-changing-XXXXXX)
changer=
stop() { [ -n "$changer" ] && kill "$changer" && wait "$changer" 2>/dev/null; changer=; }
trap 'stop; rm -rf "$work"' EXIT
failed=0
complain() { echo "$*" >&2; failed=1; }

# A model of a few MiB, and a checkpoint of it: reading takes longer than a change.
mkdir "$work/model"
sed -e 's/"n_embd": 64/"n_embd": 256/' "$1/fixtures/models/gpt2-tiny/config.json" >"$work/model/config.json"
cat >"$work/ds.json" <<'JSON'
{"train_batch_size": 2, "zero_optimization": {"stage": 2}, "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}}
JSON
printf 'To be, or not to be, that is the question.\n%.0s' {1..40} >"$work/text"
"$build/czero" train --config "$work/ds.json" --data "$work/text" --model "$work/model" --init random --tokenizer bytes \
  --seq-len 16 --steps 1 --quiet --save "$work/run" --export "$work/hf" || complain "train: exit $?"

cat >"$work/change.py" <<'PY'
import os, random, sys, time
path, how = sys.argv[1:]
whole = open(path, "rb").read()
while True:
    time.sleep(random.random() * 0.004)
    if how == "replace":
        with open(path + ".new", "wb") as f:
            f.write(whole)
        os.rename(path + ".new", path)
        continue
    n = random.choice([0, 100, len(whole) // 2, len(whole) - 1])
    with open(path, "r+b") as f:
        f.truncate(n)
        time.sleep(random.random() * 0.002)
        f.seek(n)
        f.write(whole[n:])
PY

# changing FILE HOW OUTPUT COMMAND… : OUTPUT is compared with what it is for the file at rest
changing() {
  local file=$1 how=$2 output=$3 n_fine=0 n_refused=0 got
  shift 3
  rm -rf "$output"
  "$@" >"$work/out" 2>"$work/err" || complain "at rest: $*: $(head -c 300 "$work/err")"
  [ "$output" = "$work/out" ] || rm -rf "$work/want"
  cp -r "$output" "$work/want"
  cp "$file" "$work/backup"
  python3 "$work/change.py" "$file" "$how" &
  changer=$!
  for _ in $(seq 15); do
    rm -rf "$output"
    "$@" >"$work/out" 2>"$work/err"
    got=$?
    case $got in
    0)
      n_fine=$((n_fine + 1))
      diff -rq "$work/want" "$output" >/dev/null || complain "$how: $*: another output"
      ;;
    4)
      n_refused=$((n_refused + 1))
      grep -q "$(basename "$file")" "$work/err" || complain "$how: $*: $(head -c 300 "$work/err")"
      [ "$output" = "$work/out" ] || [ -z "$(find "$output" -type f 2>/dev/null)" ] || complain "$how: $*: a mixture stays"
      ;;
    *) complain "$how: exit $got: $*: $(head -c 300 "$work/err")" ;;
    esac
  done
  stop
  cp "$work/backup" "$file"
  [ $how = replace ] || [ $n_refused -gt 0 ] || complain "$how: $*: never refused ($n_fine times fine)"
}

tag=$work/run/global_step1
for how in cut replace; do
  for file in "$tag"/*_optim_states.pt "$tag/mp_rank_00_model_states.pt"; do
    changing "$file" $how "$work/fp32" "$build/zero_to_fp32" "$work/run" "$work/fp32" --quiet
    changing "$file" $how "$work/out" "$build/czero" inspect "$work/run" --sums
  done
  changing "$work/hf/model.safetensors" $how "$work/out" "$build/czero" inspect "$work/hf" --sums
  changing "$work/hf/model.safetensors" $how "$work/out" "$build/czero" generate --model "$work/hf" --tokenizer bytes \
    --prompt "To be" --max-new-tokens 2 --temperature 0
done
exit $failed
