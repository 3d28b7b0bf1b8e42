#!/usr/bin/env bash
# Claims: weights that a run begins with keep what they were trained for, wherever they come from. --resume, --init (of a checkpoint or a folder)
# and --model take the classes' order from the weights' folder; other classes or another tokenizer are refused by --resume and a
# warning, with --strict an error, elsewhere; --resume with other rows warns. Folders that say nothing are no reason to warn.
. "$(dirname "$0")/../../support/command.sh"

printf '{"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}}' >ds.json
rows() { # FILE FIRST SECOND SHIFT
  echo text,label >"$1"
  for i in $(seq 12); do echo "words $i of a row,$([ $(((i + $4) % 2)) = 0 ] && echo "$2" || echo "$3")"; done >>"$1"
}
rows l.csv neg pos 0
rows order.csv neg pos 1 # the classes come in another order
rows other.csv good bad 0
sed 's/words 7/words 70/' l.csv >changed.csv
sed 1d l.csv | cut -d, -f1 >t.txt
"$czero" vocab --data t.txt --kind wordpiece --size 40 -o vocab >out 2>err || fail "no vocabulary"
mkdir mixed
cp vocab/* mixed/
{ head -n 5 vocab/vocab.txt; sed 1,5d vocab/vocab.txt | sort -r; } >mixed/vocab.txt # as many tokens, other ids
train() { "$czero" train --config ds.json --task classification --seq-len 16 --quiet "$@"; }
base=(--model bert-tiny --tokenizer vocab)
train "${base[@]}" --data l.csv --steps 3 --save run --export cls >out 2>err || fail "no run"
! grep -q warning err || fail "a new run warns"
labels() { python3 -c 'import json,sys; print(json.load(open(sys.argv[1] + "/config.json"))["id2label"])' "$1"; }

args() { printf '%s\0' train --config ds.json --task classification --seq-len 16 --quiet; }
mapfile -d '' -t t < <(args)
for from in "--resume run" "--resume run/global_step3" "--init run" "--init cls"; do
  train "${base[@]}" --data order.csv --steps 4 $from --export again --force >out 2>err || fail "$from: other order"
  [ "$(labels again)" = "$(labels cls)" ] || fail "$from: $(labels again) instead of $(labels cls)"
done
for from in "--resume run" "--resume run/global_step3"; do
  refused 2 'class 0 is "' "${t[@]}" "${base[@]}" --data other.csv --steps 4 $from
  refused 2 'another tokenizer than this run' "${t[@]}" --model bert-tiny --tokenizer mixed --data l.csv --steps 4 $from
done
for from in "--init run" "--init cls"; do
  train "${base[@]}" --data other.csv --steps 1 $from >out 2>err || fail "$from: other classes"
  grep -q 'class 0 is "\|which is now called' err || fail "$from: no word about classes"
  train --model bert-tiny --tokenizer mixed --data l.csv --steps 1 $from >out 2>err || fail "$from: another tokenizer"
  grep -q 'another tokenizer than this run' err || fail "$from: no word about the tokenizer"
  refused 2 'another tokenizer than this run' "${t[@]}" --model bert-tiny --tokenizer mixed --data l.csv --steps 1 $from --strict
done
refused 2 'class 0 is "' "${t[@]}" "${base[@]}" --data other.csv --steps 1 --init run --strict
train --model cls --tokenizer mixed --data l.csv --steps 1 >out 2>err || fail "--model: another tokenizer"
grep -q 'another tokenizer than this run' err || fail "--model: no word about the tokenizer"
train --model cls --data other.csv --steps 1 >out 2>err || fail "--model: other classes"
grep -q 'which is now called' err || fail "--model: no word about classes"

train "${base[@]}" --data changed.csv --steps 4 --resume run >out 2>err || fail "other rows"
grep -q 'warning: --data holds other rows than the run that is resumed' err || fail "no word about other rows"
train "${base[@]}" --data l.csv --steps 4 --resume run >out 2>err || fail "no resume"
! grep -q warning err || fail "the same run warns"
cat >out <err
rm -r run/model # a program that writes checkpoints alone
train "${base[@]}" --data l.csv --steps 4 --resume run >out 2>err || fail "no resume without run/model"
