#!/usr/bin/env bash
# Claims: the figures that a run shows are those of its steps: loss and rate are those of the step itself, the
# time that is left is unknown at the first step; evaluations come at their interval and are
# logged; a file that is no metrics stays; options that exclude each other do so at their smallest values.
set -euo pipefail
build=$(cd "$1" && pwd)
source_dir=$(cd "$(dirname "$0")/../../.." && pwd)
czero=$build/czero
work=$(mktemp -d /tmp/czero-figures-XXXXXX)
trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "$*" >&2; head -40 out err >&2; exit 1; }

head -c 20000 "$source_dir/examples/data/fortunes.txt" >text.txt
head -c 700 text.txt >dev.txt
echo '{"train_batch_size": 2, "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}}}' >bare.json
train=("$czero" train --model gpt2-tiny --config bare.json --data text.txt --tokenizer bytes --seq-len 16)

"${train[@]}" --steps 15 --eval-data dev.txt --eval-interval 5 --metrics m.csv --log-json >out 2>err || fail "training"
python3 - <<'PY' || fail "the figures"
import csv, json, re
steps = [s for s in (json.loads(line) for line in open("out") if line[0] == "{") if "loss" in s]
lines = re.findall(r"^step (\d+)/15  eta (\S+)  loss (\S+)  (.*)$", open("err").read(), re.M)
assert [s["step"] for s in steps] == list(range(1, 16)), steps
assert [int(l[0]) for l in lines] == list(range(1, 16)), lines
assert lines[0][1] == "-:--" and "/s" not in lines[0][3], lines[0]
assert all(re.fullmatch(r"[0-9:]+", l[1]) and " tok/s" in l[3] for l in lines[1:]), lines
for n, (step, line) in enumerate(zip(steps, lines), 1):
    assert abs(float(line[2]) - step["loss"]) < 6e-5, (n, line, step)
    lr = float(re.search(r"lr (\S+)", line[3])[1])
    assert n == 1 or abs(lr - steps[n - 2]["lr_next"]) < 6e-3 * lr, (n, line)
    assert step["tokens_per_s"] > 0 and step["elapsed_s"] >= 0
assert max(s["loss"] for s in steps) - min(s["loss"] for s in steps) > 0.01
rows = list(csv.DictReader(open("m.csv")))
assert [int(r["step"]) for r in rows if r["split"] == "eval"] == [5, 10, 15], rows
assert [int(r["step"]) for r in rows if r["split"] == "train"] == list(range(1, 16))
PY

# A file that does not begin as metrics do: one that ends within its first line, too
for text in 'hello' 'step,epoch,split,lossy' 'text,label\na,b\n'; do
  printf "$text" >other.csv
  cp other.csv before.csv
  ! "${train[@]}" --steps 1 --metrics other.csv >out 2>err || fail "\"$text\" was taken for metrics"
  grep -q 'does not overwrite it' err || fail "no reason"
  cmp -s other.csv before.csv || fail "\"$text\" was touched"
done

for steps in 0 3; do
  for ratio in 0 0.1; do
    code=0
    "${train[@]}" --steps 2 --warmup-steps $steps --warmup-ratio $ratio >out 2>err || code=$?
    [ $code = 2 ] && grep -q -- '--warmup-steps and --warmup-ratio exclude each other' err || fail "$steps and $ratio: exit $code"
  done
done
