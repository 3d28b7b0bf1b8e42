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
--dtype=bf16 --precision fp32, bf16 or fp16
--assistant_only_loss --loss-on assistant
--completion_only_loss --loss-on completion
--last_turn_only --loss-on completion
--mask_history --loss-on completion
--train_on_inputs --loss-on all
--train_on_prompt --loss-on all
--group_by_length --bucket (labelled texts), or --packing (chats)
--do_eval --eval-data
--sample_packing --packing
--base_model --model
--datasets --data
--val_set_size=1 --eval-split
--cutoff_len=8 --seq-len
--finetuning_type=lora --lora, or no option to train all weights
--target_modules=q --lora targets=NAMES
--rank=8 --lora rank=N
--train_data=x --data
--texta_name=x --text-column
--textb_name=x --pair-column
--label_name=x --label-column
--train_batchsize=8 --micro-batch
--dirpath=x --save
--pretrained_model_path=x --model
--load_checkpoints_path=x --resume DIR, or --init DIR for its weights alone
--strategy=x --config FILE, DeepSpeed's
--scheduler_type=x --lr-scheduler
--min_lr=0 --set scheduler.params.warmup_min_lr=X
--data_dir=x --data DIR/FILE
--warmup=0.01 --warmup-ratio SHARE (below 1), or --warmup-steps N
NAMES
while IFS='~' read -r words theirs; do
  # shellcheck disable=SC2086
  expect 2 "$words" $theirs
done <<'NAMES'
unknown option --id_name; did you mean --keep NAME, or --fields?~predict --id_name x
unknown option --id_name: czero predict --keep NAME copies a column~train --id_name x
unknown option --output_save_path; did you mean -o?~predict --output_save_path x
unknown option --num_nodes: several hosts are for: czero launch --hostfile FILE~train --num_nodes 2
unknown option --learning-rate: the learning rate is optimizer.params.lr of the config~init --learning-rate 1
unknown option --lr: the learning rate is~init --lr 1
unknown option --batch_size; did you mean --batch?~predict --batch_size 8
czero generate and czero chat take it~train --max_new_tokens 5
czero export DIR OUT_DIR --merge~train --merge
czero does not quantise weights~train --load_in_4bit
czero adds no noise~train --neftune_noise_alpha 5
czero chooses its attention kernels itself~train --flash_attention true
czero reads data in threads of its own~train --dataloader_num_workers 4
its member "text"~train --dataset_text_field text
czero names checkpoints by their step~train --filename x
czero takes the classes from the data~train --num_labels 2
evaluations have the micro-batch of training~train --valid_batchsize 8
czero evaluates all rows~train --limit_val_batches 8
says whether greater values are better~train --mode max
--precision: "16" is not one of fp32|bf16|fp16; did you mean fp16?~train --precision 16
did you mean fp16?~train --precision 16-mixed
did you mean bf16?~train --precision bf16-mixed
did you mean fp32?~train --precision 32
--warmup-steps: "0.01" is not a whole number; --warmup-ratio takes a share of the steps~train --warmup-steps 0.01
--packing takes no value: remove the value~train --packing true
--packing takes no value: remove the value~train --packing=true
--packing takes no value: leave the option out~train --packing False
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
