#!/usr/bin/env bash
# Claim: `czero init` writes a config that `czero config check --strict` passes and a command line
# that runs; the same files whether flags, a terminal's answers or guesses say what they should be;
# nothing is overwritten unasked; what is missing or wrong gets a sentence and exit code 2.
set -uo pipefail
cd "$(dirname "$0")/../../.." || exit 1
build=$(cd "$1" && pwd)
export PATH=$build:$PATH
work=$(mktemp -d /tmp/czero-init-XXXXXX)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failed=0
complain() { echo "$*" >&2; failed=1; }

python3 - <<'PY'
import json, random
r = random.Random(1)
words = {"like": "good fine nice", "sad": "bad poor grey", "none": "day food road"}
rows = [[" ".join(r.choice(words[k].split()) for _ in range(6)), k] for k in r.choices(list(words), k=96)]
json.dump(rows, open("train it.json", "w"))  # a name that a shell must quote
json.dump(rows[:30], open("dev.json", "w"))
PY
head -c 20000 /dev/urandom | base64 >text
cp text text.txt

flags=(--model bert-tiny --data "train it.json" --task classification --eval-data dev.json --tokenizer bytes
  --device cpu --host-memory 2GB --ranks 2 --precision fp32 --seq-len 32 --epochs 1 --batch 16)
mkdir flags pty guess
(cd flags && ln -s ../*.json . && czero init "${flags[@]}" >out 2>err </dev/null) || complain "flags: $(cat flags/err)"
czero config check --strict flags/ds_config.json >out 2>err || complain "the config: $(cat err)"
grep -q '"stage"' flags/ds_config.json || complain "no stage"
command_of() { sed -n '/^exec /,$p' "$1" | sed 's/^exec "$czero"/czero/; /^  "$@"$/d' | sed '$s/ \\$//'; }
command_of flags/train.sh | diff - flags/out >&2 || complain "the script and what is printed differ"
grep -q "preset: its weights are random" flags/err || complain "what a preset is: $(cat flags/err)"
head -1 flags/out | grep -q '^czero launch -n 2 -- train ' || complain "no launch: $(cat flags/out)"

# a terminal: wrong answers are asked again, Enter takes the guess
cat >terminal.py <<'PY'
import os, pty, sys
answers = [line.rstrip("\n") for line in open(sys.argv[1])]
pid, fd = pty.fork()
if pid == 0:
    os.execvp(sys.argv[2], sys.argv[2:])
shown = b""
try:
    while True:
        piece = os.read(fd, 4096)
        if not piece:
            break
        shown += piece
        if shown.endswith(b": ") and answers:  # a question
            os.write(fd, (answers.pop(0) + "\n").encode())
except OSError:
    pass
sys.stdout.buffer.write(shown)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
PY
printf '%s\n' nothing-here bert-tiny none.json 'train it.json' '' dev.json '' '' 2GB zero 2 fp32 32 1 15 16 >answers
(cd pty && ln -s ../*.json . && timeout 60 python3 ../terminal.py ../answers czero init >out) || complain "terminal: $(cat pty/out)"
cmp flags/ds_config.json pty/ds_config.json || complain "terminal: another config"
cmp flags/train.sh pty/train.sh || complain "terminal: another command"
grep -q 'Task: .* \[classification\]: ' pty/out || complain "no guess of the task: $(cat pty/out)"
grep -q 'Host\|host' pty/out || complain "no question about the host"
grep -q 'cannot be divided evenly over 2 ranks' pty/out || complain "a batch of 15 is taken"

# guesses
(cd guess && ln -s ../*.json . && czero init --model bert-tiny --data "train it.json" --yes >out 2>err) || complain "guesses: $(cat guess/err)"
grep -q -- '--task classification' guess/out || complain "the task is not guessed: $(cat guess/out)"
czero init --model gpt2-tiny --data text --yes -o lm/ds.json --script lm/run.sh --steps 3 --host-memory 1GB >out 2>err || complain "$(cat err)"
grep -q -- '--task causal-lm' out || complain "a decoder's task is not guessed"
[ "$(stat -c %a lm/run.sh)" = 755 ] || complain "the script has mode $(stat -c %a lm/run.sh)"
# bf16 where the processor multiplies it, also when it may use less than it has
fast=fp32
grep -qm1 -E '^flags.* (avx512_bf16|amx_bf16)( |$)' /proc/cpuinfo && fast=bf16
grep -q "^lm/ds.json: .*, $fast; " err || complain "not $fast: $(cat err)"
CZERO_ISA=scalar czero init --model gpt2-tiny --data text --yes -o slow/ds.json --steps 3 --host-memory 1GB >out 2>err || complain "$(cat err)"
grep -q '^slow/ds.json: .*, fp32; ' err || complain "bf16 without a processor for it: $(cat err)"
czero init --model gpt2-1.3b --data text --yes --device cuda --gpu-memory 24GB --host-memory 64GB -o gpu/ds.json >out 2>err || complain "$(cat err)"
grep -q -- '--device cuda' out || complain "no device: $(cat out)"
czero config check --strict gpu/ds.json >out 2>err || complain "the GPU's config: $(cat err)"

head -c 40000 /dev/zero >tokens
czero init --model gpt2-tiny --data u16:tokens --yes -o tok/ds.json >out 2>err || complain "tokens: $(cat err)"
grep -q -- '--tokenizer' out && complain "tokens need no tokenizer: $(cat out)"

# what is printed runs
(cd flags && sh ./train.sh >run 2>&1) || complain "the command: $(cat flags/run)"
[ -s flags/model/config.json ] || complain "the command exports no model"
grep -q ',eval,' flags/metrics.csv || complain "no evaluation: $(cat flags/metrics.csv)"
czero plot flags/metrics.csv >out 2>err || complain "plot: $(cat err)"
sh lm/run.sh >run 2>&1 || complain "the language model: $(cat run)"
[ -s lm/model/config.json ] || complain "the language model is not exported"
# without czero on PATH; what stands behind the script's name goes to train, and a second run continues
PATH=/usr/bin:/bin sh lm/run.sh --steps 5 --quiet >run 2>&1 || complain "the second run: $(cat run)"
steps=$(grep -c ',train,\|^[0-9]*,' lm/metrics.csv)
[ "$(cat lm/checkpoints/latest)" = global_step5 ] || complain "the second run ends at $(cat lm/checkpoints/latest)"
[ "$steps" -le 6 ] || complain "the second run began anew: $(cat lm/metrics.csv)"
# the rate warms up for a tenth of the run, whatever its length, and falls to zero
czero init --model gpt2-tiny --data text --yes -o epoch/ds.json --host-memory 1GB >out 2>err || complain "$(cat err)"
sh epoch/train.sh --quiet >run 2>&1 || complain "an epoch: $(cat run)"
python3 -c 'import json, sys
p = json.load(open("epoch/ds.json"))["scheduler"]
steps = int(open("epoch/checkpoints/latest").read().strip()[len("global_step"):])
assert p["type"] == "WarmupDecayLR" and p["params"]["total_num_steps"] == "auto", (p, steps)
assert p["params"]["warmup_num_steps"] == "auto", p' || complain "the schedule: $(cat epoch/ds.json)"
grep -q -- '--warmup-ratio 0.1' epoch/train.sh || complain "no warm-up: $(cat epoch/train.sh)"

expect() { # exit code, part of the sentence, arguments…
  local code=$1 part=$2
  shift 2
  czero init "$@" >out 2>err </dev/null
  local got=$?
  [ $got = "$code" ] || complain "$*: exit $got, not $code"
  grep -q -- "$part" err || complain "$*: $(cat err)"
  [ ! -e new ] || complain "$*: leaves something behind"
}
without() { # the flags but one
  local i
  rest=(-o new/ds.json)
  for ((i = 0; i < ${#flags[@]}; i += 2)); do
    [ "${flags[i]}" = "$1" ] || rest+=("${flags[i]}" "${flags[i + 1]}")
  done
}
for flag in --model --data --task --device --host-memory --ranks --precision --seq-len --epochs --batch; do
  without $flag
  expect 2 "^czero: $flag is missing" "${rest[@]}"
done
before=$(cat flags/ds_config.json flags/train.sh)
expect 2 "exists already (use --force" "${flags[@]}" -o flags/ds_config.json
expect 2 "exists already (use --force" "${flags[@]}" -o flags/other.json
[ "$before" = "$(cat flags/ds_config.json flags/train.sh)" ] || complain "files were touched"
[ ! -e flags/other.json ] || complain "half of the files was written"
czero init "${flags[@]}" --seq-len 16 -o flags/ds_config.json --force >out 2>err || complain "--force: $(cat err)"
grep -q -- '--seq-len 16' flags/train.sh || complain "--force overwrites nothing"
new=(--yes -o new/ds.json)
expect 3 "nothing fits" --model gpt2-7b --data text --host-memory 4GB "${new[@]}"
expect 2 "gpt2-huge" --model gpt2-huge --data text "${new[@]}"
expect 2 "no-file" --model gpt2-tiny --data no-file "${new[@]}"
expect 2 "no head for classification" --model granite-tiny --data text --task classification "${new[@]}"
expect 2 "--task sorting" --model gpt2-tiny --data text --task sorting "${new[@]}"
expect 2 "have no labels" --model bert-tiny --data text.txt --task classification "${new[@]}"
expect 2 "--tokenizer is missing" --model bert-tiny --data text "${new[@]}"
expect 2 "needs a \[MASK\]" --model bert-tiny --data text --tokenizer bytes "${new[@]}"
expect 2 "takes at most 64 tokens" --model gpt2-tiny --data text --seq-len 65 "${new[@]}"
expect 2 "--host-memory: " --model gpt2-tiny --data text --host-memory lots "${new[@]}"
expect 2 "needs --device cuda" --model gpt2-tiny --data text --device cpu --gpu-memory 4GB "${new[@]}"
expect 2 "--gpu-memory is missing" --model gpt2-tiny --data text --device cuda "${new[@]}"
expect 2 "--ranks 0" --model gpt2-tiny --data text --ranks 0 "${new[@]}"
expect 2 "--precision int8" --model gpt2-tiny --data text --precision int8 "${new[@]}"
expect 2 "give one" --model gpt2-tiny --data text --epochs 1 --steps 1 "${new[@]}"
expect 1 "cannot" --model gpt2-tiny --data text --yes -o /proc/nowhere/ds.json
czero init --help >out
grep -q -- "--force" out || complain "no help"
exit $failed
