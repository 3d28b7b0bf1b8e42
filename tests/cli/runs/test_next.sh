#!/usr/bin/env bash
# Claim: the command in a run's last line works as printed, for every task, with adapters and without an export; the first lines
# count what is trained; files of the config's monitors hold each step once after a resume; a trainer's folder names those inside.
. "$(dirname "$0")/../../support/command.sh"

head -c 3000 "$source_dir/examples/data/fortunes.txt" >text.txt
printf 'text,label\ngood day,pos\nbad day,neg\nno way,neg\n' >labels.csv
printf 'good O\nday B-X\n\nbad O\n\n' >words.conll
printf '%s\n' '{"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"yo"}]}' >chat.jsonl
echo "{{ messages[0].content }}{% generation %}{{ messages[1].content if messages[1] }}{% endgeneration %}" >t.jinja
"$czero" vocab --data text.txt --kind wordpiece --size 100 -o vocab >out 2>err || fail "vocab"
cat >ds.json <<'JSON'
{"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}}
JSON
command=
next() { # NAME ARGUMENTS…: train, then type what the last line says, which stays in $command
  local name=$1
  shift
  "$czero" train --config ds.json --steps 2 "$@" >out 2>err || fail "$name: training"
  command=$(tail -1 err | sed -n 's/^czero: next: czero //p')
  [ -n "$command" ] || fail "$name: no next command"
  eval "'$czero' $command" >out 2>err </dev/null || fail "$name: czero $command"
}
lm=(--model gpt2-tiny --tokenizer bytes --data text.txt --seq-len 16)
sft=(--task sft --tokenizer bytes --data chat.jsonl --chat-template t.jinja --seq-len 32)
cls=(--model bert-tiny --tokenizer vocab --task classification --data labels.csv --seq-len 16)
next causal-lm "${lm[@]}" --export lm/
next masked-lm --model bert-tiny --task masked-lm --tokenizer vocab --data text.txt --seq-len 16 --export mlm
next sft --model gpt2-tiny "${sft[@]}" --export sft
next classification "${cls[@]}" --export cls
next token-classification --model bert-tiny --tokenizer vocab --task token-classification --data words.conll --seq-len 16 --export ner
next checkpoint "${lm[@]}" --save run//
[[ $command == *run* && $command != *//* ]] || fail "two slashes: $command"
rm -rf exported
next adapter --model lm "${sft[@]}" --lora --export adapter
next 'an adapter in a checkpoint' --model lm "${sft[@]}" --lora --save adapter-run

# ---- what is trained
"$czero" train --config ds.json "${lm[@]}" --steps 1 >out 2>err || fail "all"
grep -q '^czero: trainable: 120,576 of 120,576 (100 %)$' err || fail "all parameters: $(grep trainable err)"
"$czero" train --config ds.json "${lm[@]}" --freeze 'h\.|wte|wpe' --steps 1 >out 2>err || fail "--freeze"
grep -q '^czero: trainable: 128 of 120,576 (0.106 %)$' err || fail "--freeze: $(grep trainable err)"

# ---- monitors of the config: steps after the checkpoint are those of a run that was cut off
cat >mon.json <<'JSON'
{"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
 "csv_monitor": {"enabled": true, "output_path": "mon", "job_name": "a"}}
JSON
"$czero" train --config mon.json "${lm[@]}" --steps 3 --save cut --quiet >out 2>err || fail "monitors"
"$czero" train --config mon.json "${lm[@]}" --steps 6 --resume cut --quiet >out 2>err || fail "monitors, cut off later"
printf '7,8\n' >mon/a/notes.csv
printf 'step,other\r\n99,1\r\n' >mon/a/mine.csv
"$czero" train --config mon.json "${lm[@]}" --steps 6 --resume cut --quiet >out 2>err || fail "monitors, resumed"
for f in mon/a/Train_*.csv; do
  [ "$(sort -u "$f" | wc -l)" = "$(wc -l <"$f")" ] && [ "$(tail -n +2 "$f" | cut -d, -f1 | sort -u | wc -l)" = 6 ] &&
    [ "$(wc -l <"$f")" = 7 ] || fail "$f: $(cat "$f")"
done
[ "$(wc -l <mon/a/notes.csv)" = 1 ] && [ "$(wc -l <mon/a/mine.csv)" = 2 ] || fail "files of others were cut"

# ---- a trainer's folder
for n in 10 9; do
  mkdir -p trainer/checkpoint-$n/global_step$n
  echo global_step$n >trainer/checkpoint-$n/latest
done
refused 2 'name one of them, such as trainer/checkpoint-10' inspect trainer
refused 2 'name one of them, such as trainer/checkpoint-10' train --config ds.json "${lm[@]}" --steps 1 --resume trainer
