#!/usr/bin/env bash
# Claim: --epochs N makes N passes over the data, to the row, for every task, however rows, batch, accumulation and
# ranks divide; the run's end, its evaluations, its metrics and `czero inspect` count them the same; a run that is cut in the
# middle ends at the same row, also with another batch.
. "$(dirname "$0")/../../support/command.sh"

head -c 3100 "$source_dir/examples/data/fortunes.txt" >text.txt
head -c 60000 "$source_dir/examples/data/fortunes.txt" >corpus.txt
echo "{{ messages[0].content }}{% generation %}{{ messages[1].content }}{% endgeneration %}" >t.jinja
python3 - <<'PY'
import json
words = ["red", "blue sky", "a cat", "one two three", "yes", "no way"]
rows = [(words[i % 6] + " " + words[(i * 5 + 1) % 6], ["up", "down"][i % 2]) for i in range(23)]
json.dump(rows, open("labels.json", "w"))
open("words.conll", "w").write("".join("".join(f"{w} {'B-X' if len(w) > 3 else 'O'}\n" for w in t.split()) + "\n" for t, _ in rows))
open("chat.jsonl", "w").writelines(json.dumps({"messages": [{"role": "user", "content": t},
    {"role": "assistant", "content": l}]}) + "\n" for t, l in rows)
json.dump({"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}}, open("ds.json", "w"))
PY
"$czero" vocab --data corpus.txt --kind wordpiece --size 200 -o vocab >out 2>err || fail "no vocabulary"

taken() { # FOLDER: rows of an epoch, rows taken in all
  "$czero" inspect "$1" | sed -n 's/.*data: \([0-9]*\) of \([0-9]*\) rows taken in epoch \([0-9]*\).*/\2 \1 \3/p' |
    { read -r n rows epoch && echo "$n $((n * epoch + rows))"; }
}
passes() { # NAME EPOCHS FOLDER: the rows are those of EPOCHS passes
  local n rows
  read -r n rows <<<"$(taken "$3")"
  [ "$rows" = $((n * $2)) ] || fail "$1: $rows rows taken instead of $2 times $n"
}

while read -r name data rest; do
  # shellcheck disable=SC2086
  train=(train --config ds.json --data $data --eval-data $data $rest --quiet)
  for accumulation in 1 5 30; do
    run=("${train[@]}" --set gradient_accumulation_steps=$accumulation --epochs 3 --eval-interval epoch)
    "$czero" "${run[@]}" --save $name-$accumulation --metrics m.csv --curve whole.csv >out 2>err || fail "$name: training failed"
    rm whole.csv
    passes "$name, accumulation $accumulation" 3 $name-$accumulation
    awk -F, '$3 == "train" { t = $2 } $3 == "eval" { e = $2; n++ }
             END { exit !(t == 3 && e == 3 && n >= 1 && n <= 3) }' m.csv || fail "$name: epochs of metrics, accumulation $accumulation"
    # once per epoch, unless one step is more than an epoch
    [ $accumulation = 30 ] || [ "$(grep -c ,eval, m.csv)" = 3 ] || fail "$name: $(grep -c ,eval, m.csv) evaluations"
    rm m.csv
  done
  run=("${train[@]}" --set gradient_accumulation_steps=5)
  "$czero" "${run[@]}" --epochs 3 --save $name-w --curve whole.csv >out 2>err || fail "$name"
  "$czero" "${run[@]}" --steps 4 --save $name-cut --curve cut.csv >out 2>err || fail "$name: cut"
  "$czero" "${run[@]}" --epochs 3 --save $name-cut --resume --curve cut.csv >out 2>err || fail "$name: resumed"
  cmp whole.csv cut.csv || fail "$name: a resumed run is another"
  rm whole.csv cut.csv
  "$czero" "${train[@]}" --set gradient_accumulation_steps=2 --epochs 4 --save $name-cut --resume >out 2>err || fail "$name: longer"
  passes "$name, longer, in other steps" 4 $name-cut
  "$czero" launch -n 3 "${run[@]}" --epochs 2 --save $name-3 >out 2>err || fail "$name: three ranks"
  passes "$name, three ranks" 2 $name-3
done <<TASKS
causal-lm text.txt --model gpt2-tiny --tokenizer bytes --seq-len 64
masked-lm text.txt --model bert-tiny --task masked-lm --tokenizer vocab --seq-len 32
sft chat.jsonl --model gpt2-tiny --task sft --tokenizer bytes --seq-len 32 --chat-template t.jinja
packing chat.jsonl --model gpt2-tiny --task sft --tokenizer bytes --seq-len 32 --chat-template t.jinja --packing
classification labels.json --model bert-tiny --task classification --tokenizer vocab --seq-len 16
token-classification words.conll --model bert-tiny --task token-classification --tokenizer vocab --seq-len 16
TASKS

# ---- parts of a pass, dropped rows, the length of a schedule
train=(train --config ds.json --data text.txt --model gpt2-tiny --tokenizer bytes --seq-len 64 --quiet) # 48 rows
steps() { "$czero" "${train[@]}" --dry-run-lr "$@" 2>err | tail -1 | cut -d, -f1; }
[ "$(steps --epochs 0.5 --set gradient_accumulation_steps=5)" = 3 ] || fail "half a pass of 48 rows in steps of 10"
[ "$(steps --epochs 10 --set gradient_accumulation_steps=20)" = 12 ] || fail "10 passes of 48 rows in steps of 40"
[ "$(steps --epochs 1.1 --set train_micro_batch_size_per_gpu=4)" = 14 ] || fail "1.1 passes of 48 rows in steps of 4"
[ "$(steps --epochs 3 --set train_micro_batch_size_per_gpu=20 --set dataloader_drop_last=true)" = 6 ] ||
  fail "3 passes of 40 rows in steps of 20"
"$czero" "${train[@]}" --set train_micro_batch_size_per_gpu=20 --set dataloader_drop_last=true --epochs 3 --metrics d.csv >out 2>err ||
  fail "drop_last"
[ "$(tail -1 d.csv | cut -d, -f2)" = 3 ] || fail "epochs of metrics with drop_last"
"$czero" "${train[@]}" --set gradient_accumulation_steps=5 --epochs 0.5 --metrics half.csv >out 2>err || fail "half a pass"
[ "$(tail -1 half.csv | cut -d, -f2)" = 0.5 ] || fail "half a pass is not half a pass"
# evaluations every 2 of 5 steps: after steps 2, 4 and the last
"$czero" "${train[@]}" --steps 5 --eval-data text.txt --eval-interval 2 --metrics e.csv >out 2>err || fail "--eval-interval"
[ "$(grep ,eval, e.csv | cut -d, -f1 | tr '\n' ' ')" = "2 4 5 " ] || fail "the last step is not evaluated"
refused 2 "1e+300 epochs: too many steps" "${train[@]}" --epochs 1e300
