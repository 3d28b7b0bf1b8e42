#!/usr/bin/env bash
# Claim: an output never replaces a file of another kind or an input of its command, by whatever path it is named, and is
# written over its own kind; a folder is not created under the name of a file.
. "$(dirname "$0")/../../support/command.sh"

head -c 3000 "$source_dir/examples/data/fortunes.txt" >data.txt
echo '{"train_batch_size": 2}' >ds.json
echo '# notes' >notes.md
printf 'text,label\ngood day,pos\nbad day,neg\n' >labels.csv
printf '{"text": "good day", "label": "pos"}\n{"text": "bad", "label": "neg"}\n' >labels.jsonl
printf 'text\tlabel\ngood day\tpos\n' >labels.tsv
train=(train --config ds.json --model gpt2-tiny --data data.txt --seq-len 16 --steps 1 --quiet)

# kept CODE FILE ARGUMENTS…: FILE stays as it was
kept() {
  local code=$1 file=$2 before
  shift 2
  before=$(sha256sum <"$file")
  refused "$code" "$file" "$@"
  [ "$before" = "$(sha256sum <"$file")" ] || fail "$*: $file is lost"
}
written() { "$czero" "$@" >out 2>err || fail "$*: refused"; }

"$czero" vocab --data data.txt --kind wordpiece --size 100 -o vocab >out 2>err || fail "vocab"
written train --config ds.json --model bert-tiny --task classification --tokenizer vocab --data labels.csv --seq-len 16 --steps 1 \
  --curve curve.csv --metrics metrics.csv --export cls --quiet
ln -s data.txt link.txt
for option in --curve --metrics; do
  for file in notes.md labels.jsonl cls/config.json cls/model.safetensors vocab/vocab.txt; do kept 4 $file "${train[@]}" $option $file; done
  for file in data.txt link.txt ./ds.json; do kept 2 $file "${train[@]}" $option $file; done
  refused 2 "is a folder" "${train[@]}" $option cls
  : >empty.csv
  written "${train[@]}" $option empty.csv
  kept 2 empty.csv "${train[@]}" $option empty.csv
  written "${train[@]}" $option empty.csv --force
done
kept 4 metrics.csv "${train[@]}" --curve metrics.csv
kept 4 curve.csv "${train[@]}" --metrics curve.csv
refused 2 'files of their own' "${train[@]}" --curve same.csv --metrics same.csv
printf 'step,lo' >part.csv # of a run that was killed at once
written "${train[@]}" --curve part.csv
printf 'step,epoch,spl' >part.csv
written "${train[@]}" --metrics part.csv
printf '\0\1\2\3' >binary.bin
for option in --curve --metrics; do kept 4 binary.bin "${train[@]}" $option binary.bin; done
written "${train[@]}" --curve /dev/null --metrics /dev/stderr

for file in notes.md labels.tsv cls/config.json cls/model.safetensors ds.json curve.csv; do
  kept 4 $file predict --model cls --data labels.csv -o $file
done
printf 'The probability of rain\nis "value"d at 0.25\n' >rain.md
printf 'day\tprobability\nmonday\t0.25\n' >rain.tsv
printf '0.25 of all probabilities\n' >rain.txt
printf '{"text": "good day", "value": 3.5}\n{"text": "bad day", "value": 1.5}\n' >rain.jsonl
printf '{"text": "good day", "probabilities": [0.5, 0.5]}\n' >soft.jsonl
for file in rain.md rain.tsv rain.txt rain.jsonl soft.jsonl; do kept 4 $file predict --model cls --data labels.csv -o $file; done
kept 2 labels.jsonl predict --model cls --data labels.jsonl -o labels.jsonl
kept 4 labels.jsonl predict --model cls --data labels.csv -o labels.jsonl
for form in "" --json; do
  written predict --model cls --data labels.csv -o p$form.tsv $form
  written predict --model cls --data labels.csv -o p$form.tsv $form
done
for n in 1 2; do
  written predict --model cls --text "good day" -o one.txt
  written predict --model cls --data labels.csv --keep text --json -o kept.jsonl
done
mkdir folder
cp labels.jsonl folder
kept 2 folder/labels.jsonl predict --model cls --data folder -o folder/labels.jsonl

for file in notes.md labels.csv metrics.csv ds.json; do kept 4 $file eval --model cls --data labels.jsonl --confusion $file; done
kept 2 labels.csv eval --model cls --data labels.csv --confusion labels.csv
kept 2 metrics.csv plot metrics.csv -o metrics.csv
kept 4 notes.md plot metrics.csv -o notes.md
for n in 1 2; do
  written plot metrics.csv -o m.svg
  written eval --model cls --data labels.jsonl --confusion c.svg
  written tune --model gpt2-tiny --seq-len 16 --host-memory 2GB -o tuned.json
done
for file in notes.md cls/config.json labels.jsonl; do kept 4 $file tune --model gpt2-tiny --seq-len 16 --host-memory 2GB -o $file; done
kept 2 data.txt init --model gpt2-tiny --data data.txt --seq-len 16 --epochs 1 --yes -o data.txt --force

written "${train[@]}" --save run
for name in x.safetensors pytorch_model.bin X.PT x.ckpt; do
  refused 2 "$name" export run $name
  refused 2 "$name" "${train[@]}" --export $name
  refused 2 "$name" "${train[@]}" --save $name
  refused 2 "$name" vocab --data data.txt --kind wordpiece --size 100 -o $name
  [ ! -e $name ] || fail "$name was written"
  code=0
  "$build/zero_to_fp32" run $name >out 2>err || code=$?
  [ $code = 2 ] && [ ! -e $name ] || fail "zero_to_fp32 $name: exit code $code"
  mkdir $name
  "$build/zero_to_fp32" run $name >out 2>err || fail "zero_to_fp32 into a folder of this name"
done
kept 2 notes.md export run notes.md
refused 2 "create one of this name" export run out.bin
