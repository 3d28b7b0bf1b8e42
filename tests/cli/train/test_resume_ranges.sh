#!/usr/bin/env bash
# Claim: numbers of czero_state.json that no config may have, and counters that no run has, are refused with exit 4
# and a sentence that names them; nothing is trained with them.
set -euo pipefail
build=$(cd "$1" && pwd)
source_dir=$(cd "$(dirname "$0")/../../.." && pwd)
czero=$build/czero
work=$(mktemp -d /tmp/czero-ranges-XXXXXX)
trap 'rm -rf "$work"' EXIT
cd "$work"
head -c 4000 "$source_dir/examples/data/fortunes.txt" >text.txt
cat >config.json <<'JSON'
{"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 0.003}}}
JSON
train=(train --config config.json --model gpt2-tiny --data text.txt --tokenizer bytes --seq-len 8 --quiet)
"$czero" "${train[@]}" --steps 2 --save run >out 2>err || { cat err; exit 1; }
rm run/*/czero_manifest.json # a program that writes a state can write its sums
state=$(echo run/*/czero_state.json)
cp "$state" good.json
cp -r run whole
"$czero" "${train[@]}" --steps 3 --resume whole >out 2>err || { cat err; exit 1; }
python3 - "$czero" "$state" "${train[@]}" <<'PY'
import json, subprocess, sys
czero, path, *train = sys.argv[1:]
good = open("good.json").read()
cases = [
    (["groups", 0, "lr"], [1e308, -0.1], "lr"),
    (["groups", 0, "betas"], [[2, 0.9], [0.9, -1], [1, 0.9], [0.9], [0.9, 1e400]], "betas"),
    (["global_steps"], [-1, 2**62], "global_steps"),
    (["skipped_steps"], [-1], "skipped_steps"),
    (["micro_steps"], [-5], "micro_steps"),
    (["n_updates"], [-1], "n_updates"),
    (["last_batch_iteration"], [-7, 2**62], "last_batch_iteration"),
    (["scale_history", 0], [-1], "scale"),
    (["loss_scale", "scale"], [0, -2, 1e400], "scale"),
    (["seed"], ["-1", "x"], "seed"),
    (["world_size"], [0, -1], "world_size"),
    (["zero_stage"], [4, -1], "zero_stage"),
]
failed = n = 0
for keys, values, name in cases:
    for value in values:
        state = json.loads(good)
        at = state
        for key in keys[:-1]:
            at = at[key]
        at[keys[-1]] = value
        text = json.dumps(state).replace("Infinity", "1e400")
        open(path, "w").write(text)
        done = subprocess.run([czero, *train, "--steps", "3", "--resume", "run"], capture_output=True, text=True)
        n += 1
        if done.returncode != 4 or name not in done.stderr or done.stderr.count("\n") != 1:
            print(f"{keys} {value}: exit {done.returncode}: {done.stderr}{done.stdout}", file=sys.stderr)
            failed += 1
print(n, "states")
sys.exit(1 if failed else 0)
PY
