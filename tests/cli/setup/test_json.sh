#!/usr/bin/env bash
# Claim: with --json, each command that reports prints one JSON document on stdout and nothing else, with keys that
# docs/json.md lists for it; exit codes stay; config check and fsck print one for a failure, too. cJSON reads each one as
# our reader does, and the lines of train, generate and predict, and the JSON files that commands write.
set -uo pipefail
build=$(cd "$1" && pwd)
export PATH=$build:$PATH
cd "$(dirname "$0")/../../.." || exit 1
command -v python3 >/dev/null || { echo "skipped: python3 is needed"; exit 77; }
work=$(mktemp -d /tmp/czero-json-XXXXXX)
trap 'rm -rf "$work"' EXIT
export OMP_NUM_THREADS=1
failed=0
complain() { echo "$*" >&2; failed=1; }
cat >"$work/check.py" <<'PY'
import json, re, sys
section, path, free = sys.argv[1], sys.argv[2], sys.argv[3].split()  # free: what these members hold is not checked
page = open("docs/json.md").read().split("\n## " + section + "\n")[1].split("\n## ")[0]
known = set(re.findall(r"`([^`]+)`", page))
def refuse(constant):
    raise ValueError(constant + " is no JSON")
document = json.loads(open(path, encoding="utf-8").read(), parse_constant=refuse)
assert isinstance(document, dict), "no object"
used = set(document)
for key, value in document.items():
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, dict) and key not in free:
            used |= set(item)
if not used <= known:
    sys.exit(f"docs/json.md, {section}: no " + ", ".join(sorted(used - known)))
PY
judge=$build/tests/formats/test_json_cjson # made where cJSON is found
[ -x "$judge" ] || echo "cJSON is not asked: install libcjson-dev"
judged() { # files
  [ ! -x "$judge" ] || "$judge" "$@" >"$work/verdict" 2>&1 || complain "cJSON: $(cat "$work/verdict")"
}
judged_lines() { # command…: each line of stdout is a document
  rm -f "$work"/line.*
  "$@" 2>"$work/err" | split -a 4 -l 1 - "$work/line."
  [ -e "$work/line.aaaa" ] || complain "$*: no line: $(cat "$work/err")"
  judged "$work"/line.*
}
json() { # exit code, section of docs/json.md, members with names of users, command…
  local code=$1 section=$2 free=$3
  shift 3
  "$@" --json >"$work/out" 2>"$work/err"
  local got=$?
  [ $got = "$code" ] || complain "$*: exit $got, not $code: $(cat "$work/err")"
  python3 "$work/check.py" "$section" "$work/out" "$free" || complain "$*: $(head -c 300 "$work/out")"
  judged "$work/out"
}
models=$build/fixtures/models
checkpoint=$build/fixtures/runs/s0-bf16-adamw/ckpt
json 0 'czero bench' 'profile step_seconds_per_billion_parameters' czero bench --seconds 0.2 --quiet
json 0 'czero config check' '' czero config check configs/quickstart.json
echo '{"zero_optimization": {"stage": 9}}' >"$work/bad.json"
json 2 'czero config check' '' czero config check "$work/bad.json"
grep -q '"can_train": false' "$work/out" || complain "a bad config can train"
grep -q 'stage: 9 is outside' "$work/out" || complain "the error is not in the document"
czero config show configs/quickstart.json --json >"$work/out" || complain "config show fails"
judged "$work/out"
json 0 'czero config diff' '' czero config diff configs/quickstart.json configs/classification.json
json 1 'czero config diff' '' czero config diff configs/quickstart.json configs/classification.json --exit-code
echo '{"text": "abc"}' >"$work/rows.jsonl"
json 0 'czero data show' '' czero data show "$work/rows.jsonl" --tokenizer bytes
json 0 'czero export' '' zero_to_fp32 "$checkpoint" "$work/fp32"
json 0 'czero fsck' '' czero fsck "$checkpoint"
json 0 'czero inspect' 'groups tensors files others' czero inspect "$checkpoint"
json 0 'czero inspect' 'metadata tensors' czero inspect "$models/gpt2/model.safetensors"
json 0 'czero plan' '' czero plan --config configs/quickstart.json --model gpt2-tiny --seq-len 8
json 0 'czero tune' '' czero tune --model gpt2-tiny --seq-len 8 --host-memory 4GB
json 3 'czero tune' '' czero tune --model gpt2-7b --seq-len 64 --host-memory 8GB
json 0 'czero verify' '' czero verify "$models/gpt2"
grep -q '"agrees": true' "$work/out" || complain "verify does not agree"

# a language model, trained for a step
head -c 2000 examples/data/fortunes.txt >"$work/text.txt"
czero train --config configs/quickstart.json --model gpt2-tiny --data "$work/text.txt" --seq-len 16 --steps 1 --quiet \
  --export "$work/lm" 2>"$work/err" || complain "no language model: $(cat "$work/err")"
json 0 'czero eval' '' czero eval --model "$work/lm" --data "$work/text.txt" --seq-len 16

json 0 'czero vocab' '' czero vocab --data "$work/text.txt" --type bpe --size 300 -o "$work/v1"
grep -q '"tokens": 300' "$work/out" || complain "vocab: $(cat "$work/out")"
json 0 'czero vocab' '' czero vocab --data "$work/text.txt" --size 100 -o "$work/v2"

# a classifier, trained for a step, and an export of its checkpoint
printf 'text,label\ngood day,a\nbad day,b\ngood,a\nbad,b\n' >"$work/data.csv"
echo '{"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}}' >"$work/ds.json"
czero train --config "$work/ds.json" --model bert-tiny --tokenizer bytes --data "$work/data.csv" --task classification --steps 1 --quiet \
  --seq-len 16 --save "$work/run" --export "$work/classifier" 2>"$work/err" || complain "no classifier: $(cat "$work/err")"
if [ -d "$work/classifier" ]; then
  json 0 'czero eval' 'classes' czero eval --model "$work/classifier" --data "$work/data.csv" --tokenizer bytes
  json 0 'czero predict' 'probabilities' czero predict --model "$work/classifier" --text 'a good day' --tokenizer bytes
  json 0 'czero export' '' czero export "$work/run" "$work/exported"
fi
judged_lines czero train --config configs/quickstart.json --model gpt2-tiny --data "$work/text.txt" --seq-len 16 --steps 2 --log-json --quiet
judged_lines czero generate --model "$work/lm" --tokenizer bytes --prompt 'a "\
' --max-new-tokens 4 --json
judged_lines czero predict --model "$work/classifier" --text 'a "good" day' --text 'ü' --tokenizer bytes --json
find "$work" -name '*.json' ! -name bad.json >"$work/written"
mapfile -t written <"$work/written"
judged "${written[@]}"
[ $failed = 0 ] && echo "documents are as docs/json.md says"
exit $failed
