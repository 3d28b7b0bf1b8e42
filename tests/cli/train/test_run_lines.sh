#!/usr/bin/env bash
# Claims: a run says in its first line what it trains and where results go, in its last what it cost and
# what to do next; Ctrl-C saves with --save, and a second one ends at once; --resume auto continues or
# starts; neither another run's checkpoints nor a model are replaced without --force; what a config
# leaves open is filled in, and the result is the same as with everything written out.
set -euo pipefail
build=$(cd "$1" && pwd)
source_dir=$(cd "$(dirname "$0")/../../.." && pwd)
czero=$build/czero
work=$(mktemp -d /tmp/czero-lines-XXXXXX)
trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "$*" >&2; head -20 out err >&2; exit 1; }
says() { grep -qE -- "$1" err || fail "not said: $1"; }

head -c 60000 "$source_dir/examples/data/fortunes.txt" >text.txt
echo '{"train_batch_size": 4}' >bare.json
train=("$czero" train --model gpt2-tiny --data text.txt --tokenizer bytes --seq-len 32)

# The first and the last line
"${train[@]}" --config bare.json --steps 6 --save runs/a --export model --curve a.csv >out 2>err || fail "training failed"
head -3 err | tr '\n' '|' | grep -qE '^czero: training gpt2-tiny: 120\.6 k parameters, RANDOM weights; tokenizer: bytes\|czero: fp32, ZeRO stage 0, 1 rank, batch 4 = 4 x 1 x 1, rows of 32 tokens, 6 steps\|czero: planned memory: [0-9.]+ MiB; keeps runs/a \(checkpoints\), model \(model\)\|$' ||
  fail "the first line: $(head -1 err)"
tail -2 err | head -1 | grep -qE '^czero: trained 6 steps in [0-9:]+, [0-9.k]+ tokens/s, peak memory [0-9.]+ MiB; saved runs/a/global_step6; exported model$' ||
  fail "the line before the last: $(tail -2 err)"
[ "$(tail -1 err)" = 'czero: next: czero generate --model model --prompt "…"' ] || fail "the last line: $(tail -1 err)"
says "filled in as Hugging Face's Trainer does: optimizer AdamW \(lr 5e-05, betas \[0.9, 0.999\], eps 1e-08, weight_decay 0.0\), scheduler linear \(warmup_num_steps 0, total_num_steps 6\)"
"${train[@]}" --config bare.json --steps 2 --quiet >out 2>err || fail "--quiet failed"
[ ! -s err ] || fail "--quiet prints"
"${train[@]}" --config bare.json --steps 2 >out 2>err || fail "no folders: failed"
head -3 err | grep -q 'NOTHING IS KEPT' || fail "nothing is kept, and it is not said"

# An evaluation on a narrow terminal: its line breaks between figures
if command -v script >/dev/null; then
  printf '%s ' "${train[@]}" --config bare.json --steps 1 --eval-data text.txt --eval-interval 1 >command
  script -qec "stty cols 50; $(cat command)" /dev/null >out </dev/null || fail "a narrow terminal"
  tr -d '\r' <out | grep -A1 '^eval at step 1 (epoch' >err || fail "no evaluation: $(cat out)"
  [ "$(awk 'length > 50' err | wc -l)" = 0 ] && grep -qE '^  (perplexity [0-9.]+|train loss [0-9.]+)' err || fail "the line of an evaluation"
fi

# The same run with everything written out, and by options: the same rates and losses
cat >full.json <<'JSON'
{"train_batch_size": 4, "gradient_clipping": 1.0,
 "optimizer": {"type": "AdamW", "params": {"lr": 5e-5, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0}},
 "scheduler": {"type": "linear", "params": {"total_num_steps": 6}}}
JSON
cat >auto.json <<'JSON'
{"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
 "gradient_clipping": "auto", "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"},
 "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}}}
JSON
"${train[@]}" --config full.json --steps 6 --curve full.csv --quiet
"${train[@]}" --config auto.json --micro-batch 4 --lr 5e-5 --steps 6 --curve auto.csv --quiet
cmp a.csv full.csv && cmp a.csv auto.csv || fail "filled in, written out, and by options: curves differ"
"${train[@]}" --config bare.json --steps 10 --lr 1e-3 --lr-scheduler cosine --warmup-ratio 0.2 --dry-run-lr >out 2>err || fail "rates"
awk -F, 'NR == 2 && $2 != 0 || NR == 4 && $2 != 0.001 || NR == 11 && $2 > 0.0001 {exit 1}' out || fail "cosine with a warm-up of 2"

# Resuming
grep -q . runs/a/latest
! "${train[@]}" --config bare.json --steps 9 --save runs/a >out 2>err || fail "another run's folder was taken"
says 'runs/a: holds checkpoints already \(the latest is global_step6\)'
"${train[@]}" --config bare.json --steps 9 --save runs/a --resume >out 2>err || fail "--resume alone"
says '^czero: resumed runs/a at step 6$'
[ -d runs/a/global_step9 ] || fail "no step 9"
"${train[@]}" --config bare.json --steps 9 --resume auto --save runs/a >out 2>err || fail "--resume auto at the end"
says 'all its steps are made, nothing is left to train'
"${train[@]}" --config bare.json --steps 2 --resume auto --save runs/new >out 2>err || fail "--resume auto without a state"
[ -d runs/new/global_step2 ] || fail "no state in runs/new"
"${train[@]}" --config bare.json --steps 3 --save runs/new --force --quiet || fail "--force"
! "${train[@]}" --config bare.json --steps 3 --resume auto >out 2>err || fail "--resume auto without --save"
says 'needs --save'

# Exporting over models
cp -r model base
! "${train[@]}" --config bare.json --steps 2 --export model >out 2>err || fail "a model was replaced"
says '--export model: holds a model already'
! "${train[@]}" --model base --config bare.json --steps 2 --export base >out 2>err || fail "the base was replaced"
says 'is the folder of --model'
cmp model/model.safetensors base/model.safetensors || fail "base changed"
"${train[@]}" --config bare.json --steps 2 --export model --force --quiet || fail "--export --force"
! cmp -s model/model.safetensors base/model.safetensors || fail "--force replaced nothing"
! "${train[@]}" --config bare.json --steps 2 --export text.txt >out 2>err || fail "a file as folder"
says 'is a file'

# Ctrl-C (a background job of a script ignores SIGINT: started with the default)
interrupt() { # times, arguments: the exit code in $code
  local times=$1 pid
  shift
  python3 - "$times" "$@" <<'PY' || code=$?
import os, signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_DFL)
run = subprocess.Popen(sys.argv[2:], stdout=open("out", "w"), stderr=open("err", "w"),
                       preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
while "step 1/" not in open("err").read() and run.poll() is None:
    time.sleep(0.02)
for i in range(int(sys.argv[1])):
    run.send_signal(signal.SIGINT)
    while i == 0 and int(sys.argv[1]) > 1 and "Ctrl-C again" not in open("err").read() and run.poll() is None:
        time.sleep(0.001)
code = run.wait(60)
sys.exit(code if code >= 0 else 128 - code)
PY
}
long=("${train[@]}" --config bare.json --steps 2000000)
code=0; interrupt 1 "${long[@]}" --save runs/stopped
[ $code = 0 ] || fail "Ctrl-C with --save: exit code $code"
says 'Ctrl-C again ends at once'
says '^czero: stopped after [0-9]+ steps .*; saved runs/stopped/global_step[0-9]+; to continue: the same command with --resume'
[ -s runs/stopped/latest ] || fail "Ctrl-C saved nothing"
code=0; interrupt 1 "${long[@]}"
[ $code = 130 ] || fail "Ctrl-C without --save: exit code $code"
# A step of seconds: the second signal does not wait for it.
code=0; interrupt 2 "$czero" train --model gpt2-tiny --data text.txt --tokenizer bytes --seq-len 64 --config bare.json \
  --set train_batch_size=4000 --set train_micro_batch_size_per_gpu=4 --steps 200 --save runs/twice
[ $code = 130 ] || [ -d runs/twice ] || fail "two Ctrl-C: exit code $code"

# A hub's name
! "$czero" train --model org/name --config bare.json --data text.txt --seq-len 8 --steps 1 >out 2>err || fail "org/name"
says 'org/name is not a folder here, but may be a name on a model hub; czero downloads nothing: hf download org/name'
