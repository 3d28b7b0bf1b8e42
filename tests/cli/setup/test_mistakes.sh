#!/usr/bin/env bash
# Claims: what people type by mistake, or as other programs have it, gets an exit code of 2 and a sentence with
# the right name: commands, presets, options of torchrun, deepspeed and Trainer, sizes without a unit, levels of
# the log. Bare czero prints its help. Every line of an error names the program; errors are red and warnings
# yellow on a terminal alone, and not with NO_COLOR or TERM=dumb. Without UTF-8, help and tables are ASCII.
set -uo pipefail
build=$(cd "$1" && pwd)
czero=$build/czero
cd "$(dirname "$0")/../../.." || exit 1
work=$(mktemp -d /tmp/czero-mistakes-XXXXXX)
trap 'rm -rf "$work"' EXIT
failed=0
complain() { echo "$*" >&2; failed=1; }
expect() { # exit code, part of the sentence, words…
  local code=$1 part=$2
  shift 2
  "$czero" "$@" >"$work/out" 2>"$work/err"
  local got=$?
  [ $got = "$code" ] || complain "czero $*: exit $got, not $code: $(cat "$work/err")"
  grep -qF -- "$part" "$work/err" || complain "czero $*: \"$part\" is not said: $(cat "$work/err")"
  grep -qv '^czero' "$work/err" && [ $# -gt 0 ] && complain "czero $*: a line without a name: $(cat "$work/err")"
  return 0
}

# ---- commands, help and the version
expect 2 'Usage: czero COMMAND'
grep -q '^czero: a command is missing' "$work/err" || complain "bare czero does not say what is wrong"
grep -q '^  train ' "$work/err" || complain "bare czero lists no commands"
expect 2 'unknown command "trian"; did you mean train?' trian
expect 2 'unknown command "exprot"; did you mean export?' exprot
expect 2 'unknown command "bananas" (see czero --help)' bananas
expect 2 'it is a program: zero_to_fp32 CHECKPOINT_DIR OUTPUT_DIR' zero_to_fp32 a b
expect 2 'czero help: unknown command "trian"; did you mean train?' help trian
expect 2 'unknown action "chekc"; did you mean check?' config chekc
version=$("$czero" --version)
for words in -V version 'train --version' 'train -V' 'config check --version'; do
  # shellcheck disable=SC2086
  [ "$("$czero" $words)" = "$version" ] || complain "czero $words is not \"$version\""
done
[ "$("$build/zero_to_fp32" -V)" = "zero_to_fp32 (${version/ /) }" ] || complain "zero_to_fp32 -V: $("$build/zero_to_fp32" -V)"

# ---- options
expect 2 '--config, --model, --data and --steps or --epochs are missing' train
expect 2 'did you mean --lr?' train --learning_rate 1
expect 2 'did you mean --micro-batch?' train --per_device_train_batch_size=8
expect 2 'did you mean --config?' train --deepspeed ds.json
expect 2 'did you mean --save?' train --output_dir out
expect 2 'did you mean --seq-len?' train --seq_len 3
expect 2 'did you mean --precision bf16?' train --bf16
expect 2 'ranks are started by: czero launch -n N train' train --num_gpus 2
expect 2 'did you mean -n?' launch --num_gpus 2 train
while read -r theirs ours; do
  expect 2 "did you mean $ours?" train $theirs
done <<'NAMES'
--monitor=val_acc --best-metric
--save_total_limit=3 --save-keep
--load_best_model_at_end --best-metric
--max_steps=5 --steps
--max_epochs=5 --epochs
--evaluation_strategy=epoch --eval-interval
--eval_strategy --eval-interval
--check_val_every_n_epoch=1 --eval-interval epoch
--accumulate_grad_batches=2 --accumulation
--gradient_clip_val=1 --max-grad-norm
--validation_file=x --eval-data
--lora_r=8 --lora rank=N
--overwrite_output_dir --force
NAMES
expect 2 'ranks are started by: czero launch -n N train' train --gpus 2
expect 2 'did you mean -n?' launch --nproc_per_node=2 train

# ---- presets and sizes
small=(--model gpt2-tiny --seq-len 8)
expect 2 'did you mean the preset llama-7b, which has random weights?' tune --model llama-7B --seq-len 8 --host-memory 4GB
expect 2 'did you mean the preset gpt2, which has random weights?' tune --model gpt-2 --seq-len 8 --host-memory 4GB
expect 2 '--host-memory: "24" is 24 bytes; did you mean 24GB?' tune "${small[@]}" --host-memory 24
expect 2 '--gpu-memory: "24" is 24 bytes; did you mean 24GB?' tune "${small[@]}" --host-memory 64GB --gpu-memory 24
expect 2 '--nvme: "1.5" is 1 byte; did you mean 1.5GB?' tune "${small[@]}" --host-memory 64GB --nvme 1.5
expect 2 '--host-memory: "64" is 64 bytes; did you mean 64GB?' init --model gpt2-tiny --yes --device cpu \
  --data examples/data/fortunes.txt --host-memory 64 -o "$work/ds.json"

# ---- files
expect 2 'fortunes.txt: is text: any editor shows it' inspect examples/data/fortunes.txt
head -c 5000 /dev/zero >"$work/zeros"
expect 4 'not a .pt file' inspect "$work/zeros"

# ---- the log
CZERO_BIND=core expect 2 'CZERO_BIND=core: use none or cores' train
CZERO_LOG=chatty expect 2 'CZERO_LOG=chatty: use warning, info, step, micro (or debug), bucket or tensor' train
for level in warning info step micro debug bucket tensor ''; do
  CZERO_LOG=$level "$czero" config check configs/quickstart.json >/dev/null 2>"$work/err" ||
    complain "CZERO_LOG=$level: $(cat "$work/err")"
done
generate=("$czero" generate --model gpt2-tiny --prompt x --max-new-tokens 1)
OMP_NUM_THREADS=1 "${generate[@]}" >/dev/null 2>"$work/quiet"
OMP_NUM_THREADS=1 "${generate[@]}" -v >/dev/null 2>"$work/verbose"
[ "$(wc -l <"$work/verbose")" -gt "$(wc -l <"$work/quiet")" ] || complain "-v logs no more: $(cat "$work/verbose")"
grep -q 'kernels' "$work/verbose" || complain "-v does not tell of the kernels: $(cat "$work/verbose")"

# ---- errors of several lines
echo '{"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW"}, "foo": 1, "bar": 2}' >"$work/bad.json"
expect 2 'bar: unknown key' train --config "$work/bad.json" --model gpt2-tiny --data examples/data/fortunes.txt \
  --seq-len 8 --steps 1 --strict
[ "$(wc -l <"$work/err")" -gt 1 ] || complain "one line of several problems: $(cat "$work/err")"

# ---- colours
red=$'\033[1;31m'
red_on_terminal() { # variables
  script -qec "env $* $czero trian" /dev/null </dev/null >"$work/out"
  grep -qF "${red}czero:" "$work/out"
}
if script -qec true /dev/null </dev/null >/dev/null 2>&1; then
  red_on_terminal TERM=xterm NO_COLOR= || complain "no red on a terminal"
  red_on_terminal TERM=xterm NO_COLOR=1 && complain "red with NO_COLOR"
  red_on_terminal TERM=dumb NO_COLOR= && complain "red with TERM=dumb"
else
  echo "note: no script(1) here, colours on a terminal are not seen"
fi
TERM=xterm expect 2 'czero: unknown' trian
grep -qF "$red" "$work/err" && complain "red in a file"

# ---- ASCII
plan=(plan --config configs/quickstart.json "${small[@]}")
checkpoint=$build/fixtures/runs/s0-bf16-adamw/ckpt/global_step20/mp_rank_00_model_states.pt
for words in --help "inspect $checkpoint" 'launch --help' 'train --help' 'tune --help' "${plan[*]}" "tune ${small[*]} --host-memory 4GB"; do
  # shellcheck disable=SC2086
  LC_ALL=C "$czero" $words >"$work/out" 2>&1 || complain "LC_ALL=C czero $words: exit $?"
  LC_ALL=C grep -n '[^ -~]' "$work/out" && complain "LC_ALL=C czero $words: not ASCII"
done
long=$(printf 'x%.0s' {1..3000})
LC_ALL=C.UTF-8 "$czero" plan --model gpt2-tiny "--$long" 2>"$work/err"
grep -q '…' "$work/err" || complain "no name is shortened: this test's question is wrong"
LC_ALL=C "$czero" plan --model gpt2-tiny "--$long" 2>"$work/err"
grep -q 'xxx\.\.\.' "$work/err" || complain "LC_ALL=C: an error's name is not shortened"
LC_ALL=C grep -n '[^ -~]' "$work/err" && complain "LC_ALL=C: an error is not ASCII"
LC_ALL=C.UTF-8 "$czero" inspect "$checkpoint" >"$work/out"
grep -q '…' "$work/out" || complain "no list is shortened: this test's question is wrong"
LC_ALL=C.UTF-8 "$czero" "${plan[@]}" >"$work/out"
grep -q '×' "$work/out" || complain "no × in a UTF-8 locale"

[ $failed = 0 ] && echo "mistakes are answered"
exit $failed
