#!/usr/bin/env bash
# Claim: --eval-split takes the same random share of --data for evaluation whatever the ranks and after a resume, of each
# class alike, and trains on the others alone; it works for texts, words, values, sets and chats, and is refused with a
# reason where rows join documents; --test-data is evaluated once at the end; --drop-last omits the incomplete step.
. "$(dirname "$0")/../../support/command.sh"

python3 - <<'PY'
import json
rows = [(f"{'good fine' if i % 4 else 'bad poor'} w{i:02d}", "pos" if i % 4 else "neg") for i in range(40)] + [("odd w40", "rare")] * 1 + [("odd w41", "rare")] * 1
open("all.csv", "w").write("text,label\n" + "".join(f"{t},{l}\n" for t, l in rows))
open("values.csv", "w").write("text,label\n" + "".join(f"{t},{i / 4}\n" for i, (t, _) in enumerate(rows)))
open("sets.jsonl", "w").writelines(json.dumps(dict(text=t, labels=[l])) + "\n" for t, l in rows)
open("words.jsonl", "w").writelines(json.dumps(dict(tokens=t.split(), ner_tags=[l] * 2 + ["O"] * (len(t.split()) - 2))) + "\n" for t, l in rows)
open("chat.jsonl", "w").writelines(json.dumps(dict(prompt=t, completion=l)) + "\n" for t, l in rows)
open("text.txt", "w").write(" ".join(t for t, _ in rows))
PY
echo '{"train_micro_batch_size_per_gpu": 4, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}}' >ds.json
"$czero" vocab --data all.csv --type wordpiece --size 90 --min-count 1 -o vocab >out 2>err || fail "no vocabulary"
train() { # DATA MORE…
  "$czero" ${launch:-} train --config ds.json --model "${model:-bert-tiny}" --task "${task:-classification}" --tokenizer "${tokenizer:-vocab}" --data "$@" >out 2>err
}

# ---- which rows -------------------------------------------------------------------------------
train all.csv --eval-split 0.2 --epochs 1 --export a || fail "--eval-split"
grep -q '^ *neg .* 2$' out && grep -q '^ *pos .* 6$' out && ! grep -qE '^ *rare .* [1-9]$' out || fail "not of each class alike"
grep -q '34 texts in 3 classes' err || fail "it does not train on the others alone"
cp out want
launch="launch -n 2 --" train all.csv --eval-split 0.2 --epochs 1 || fail "two ranks"
diff <(sed -n 3,4p want | awk '{print $1, $NF}') <(sed -n 3,4p out | awk '{print $1, $NF}') || fail "two ranks evaluate other rows"
train all.csv --eval-split 0.2 --epochs 2 --export whole || fail "two epochs"
cp out want
train all.csv --eval-split 0.2 --epochs 1 --save run || fail "one epoch"
train all.csv --eval-split 0.2 --epochs 2 --save run --resume run --export parts || fail "resume"
cmp whole/model.safetensors parts/model.safetensors && cmp want out || fail "a resumed run is another run"
train all.csv --eval-split 0.2 --epochs 1 --seed 7 --save other --export b || fail "another seed"
cmp -s a/model.safetensors b/model.safetensors && fail "another seed takes the same rows"
train all.csv --eval-split 0.5 --epochs 1 --save best --best-metric accuracy || fail "--best-metric"
grep -qE '^ *rare .* 1$' out || fail "half of two rows"

# ---- other tasks ------------------------------------------------------------------------------
train values.csv --eval-split 0.25 --epochs 1 && grep -q '^eval_loss' out && grep -q 'data: 31 texts' err || fail "values"
train sets.jsonl --eval-split 0.25 --epochs 1 && grep -q '^eval_f1' out && grep -q 'data: 31 texts' err || fail "sets"
task=token-classification train words.jsonl --eval-split 0.25 --epochs 1 && grep -q '^eval_f1' out && grep -q 'data: 31 texts' err || fail "words"
task=sft model=gpt2-tiny tokenizer=bytes train chat.jsonl --eval-split 0.25 --epochs 1 --seq-len 40 && grep -q '^eval_loss' out || fail "chats"
code=0
task=causal-lm model=gpt2-tiny tokenizer=bytes train text.txt --eval-split 0.25 --steps 1 --seq-len 8 || code=$?
[ $code = 2 ] && grep -q 'rows of a language model join documents' err || fail "text: exit $code"

# ---- test data, incomplete steps --------------------------------------------------------------
train all.csv --eval-split 0.2 --epochs 1 --test-data all.csv --quiet || fail "--test-data"
[ "$(grep -c '^eval_accuracy' out)" = 1 ] && [ "$(grep -c '^test_accuracy' out)" = 1 ] && grep -qE '^ *pos .* 30$' out || fail "--test-data: $(cat out)"
tail -1 out | grep -q '^test_loss' || fail "the test comes last"
train all.csv --epochs 1 --test-data all.csv --export c --quiet && ! grep -q eval_ out && grep -q test_accuracy out || fail "--test-data alone"
"$czero" eval --model c --data all.csv >want 2>err && diff <(head -9 want) <(head -9 out) || fail "eval gives other figures than --test-data"
task=causal-lm model=gpt2-tiny tokenizer=bytes train text.txt --test-data text.txt --steps 1 --seq-len 8 && grep -q '^test_loss' out || fail "--test-data of text"
task=sft model=gpt2-tiny tokenizer=bytes train chat.jsonl --test-data chat.jsonl --steps 1 --seq-len 40 && grep -q '^test_loss' out || fail "--test-data of chats"
train all.csv --epochs 1 && grep -q 'trained 11 steps' err || fail "42 rows in steps of 4"
train all.csv --epochs 1 --drop-last && grep -q 'trained 10 steps' err || fail "--drop-last"

sets=$(for i in $(seq 256); do echo "--set steps_per_print=$i"; done)
refused 2 "--drop-last and 256 values of --set: use 255 at most" train --config ds.json --model bert-tiny --task classification --tokenizer vocab --data all.csv --epochs 1 --drop-last $sets

# ---- what is wrong ----------------------------------------------------------------------------
bad() { # WORDS MORE…
  refused 2 "$1" train --config ds.json --model bert-tiny --task classification --tokenizer vocab --data all.csv --epochs 1 "${@:2}"
}
for share in 0 1 -0.1 1.5; do bad "--eval-split $share: a share between 0 and 1 is needed" --eval-split=$share; done
bad '--eval-split and --eval-data: give one of the two' --eval-split 0.1 --eval-data all.csv
bad 'takes none of 42 examples' --eval-split 0.001
bad '--best-metric needs --eval-data or --eval-split' --best-metric accuracy --save x
bad 'did you mean --eval-split?' --val-split 0.1
bad 'did you mean --eval-split?' --test-size 0.1
bad 'did you mean --class-names?' --class-labels a,b
