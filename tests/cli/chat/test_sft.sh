#!/usr/bin/env bash
# Claim: czero train --task sft trains on chats in all forms of rows, plain, gzipped and as a list, with the same
# curve; two ranks have the curve of one rank with the same steps, packed or not; a resumed run continues exactly;
# rows that cannot be trained on are named by line, and more than half of them end the run before its first step;
# a missing, broken or refusing template is a sentence with its place.
. "$(dirname "$0")/../../support/command.sh"

cat >t.jinja <<'JINJA'
{%- for m in messages %}<{{ m.role[0] }}>{{ m.content }}.{% endfor %}
{%- if add_generation_prompt %}<a>{% endif %}
JINJA
python3 - <<'PY'
import gzip, json
rows, turns = [], ["red", "blue sky", "a cat", "one two", "yes", "no way"]
for i in range(24):
    q, a = turns[i % 6] * (1 + i % 2), turns[(i + 1) % 6]
    chat = [{"role": "user", "content": q}, {"role": "assistant", "content": a}]
    rows.append([{"messages": chat}, {"prompt": chat[:1], "completion": chat[1:]}, {"instruction": q, "input": "", "output": a},
                 {"conversations": [{"from": "human", "value": q}, {"from": "gpt", "value": a}]}][i % 4])
lines = "".join(json.dumps(r) + "\n" for r in rows)
open("chat.jsonl", "w").write(lines)
open("chat.json", "w").write(json.dumps(rows))
gzip.open("chat.jsonl.gz", "wt").write(lines)
open("bad.jsonl", "w").write(lines + '{"messages": [{"role": "user", "content": "alone"}]}\n')
open("half.jsonl", "w").write((lines.split("\n")[0] + "\n") + '{"messages": [{"role": "user", "content": "alone"}]}\n' * 2)
for name, micro, gas in (("one", 2, 4), ("two", 2, 2)):
    json.dump({"train_micro_batch_size_per_gpu": micro, "gradient_accumulation_steps": gas,
               "optimizer": {"type": "AdamW", "params": {"lr": 0.003}}}, open(name + ".json", "w"))
PY
train=(train --model gpt2-tiny --tokenizer bytes --task sft --chat-template t.jinja --seq-len 48 --quiet)

for data in chat.jsonl chat.json chat.jsonl.gz; do
  "$czero" "${train[@]}" --config one.json --data $data --steps 7 --curve $data.csv >out 2>err || fail "$data: training failed"
  cmp chat.jsonl.csv $data.csv || fail "$data: another curve"
done
awk -F, 'NR == 2 { first = $2 } END { exit !($2 < 0.9 * first) }' chat.jsonl.csv || fail "nothing was learnt"

# 24 rows in steps of 8 and, packed, an incomplete last step
for packing in "" --packing; do
  "$czero" "${train[@]}" --config one.json --data chat.jsonl --eval-data chat.json --steps 7 $packing --curve one.csv >one.out 2>err ||
    fail "one rank $packing"
  "$czero" launch -n 2 "${train[@]}" --config two.json --data chat.jsonl --eval-data chat.json --steps 7 $packing --curve two.csv \
    >two.out 2>err || fail "two ranks $packing"
  paste -d, one.csv two.csv | awk -F, 'NR > 1 && ($2 - $7 > 1e-5 || $7 - $2 > 1e-5) { bad = 1 } END { exit bad }' ||
    fail "two ranks differ $packing"
  grep -q '^eval_loss [0-9.]*$' one.out || fail "no eval_loss"
  cmp <(grep eval_accuracy one.out) <(grep eval_accuracy two.out) || fail "two ranks count other hits $packing"
  "$czero" "${train[@]}" --config one.json --data chat.jsonl --steps 4 $packing --save run >out 2>err || fail "saving $packing"
  "$czero" "${train[@]}" --config one.json --data chat.jsonl --steps 7 $packing --resume run --curve rest.csv >out 2>err ||
    fail "resuming $packing"
  cmp <(tail -n 3 one.csv) <(tail -n 3 rest.csv) || fail "a resumed run differs $packing"
  rm -r run one.csv two.csv rest.csv
done

for run in kept found; do
  "$czero" train --model gpt2-tiny --tokenizer bytes --task sft --chat-template t.jinja --seq-len 48 --config one.json --data chat.jsonl --steps 4 --token-cache tokens \
    --curve $run.csv >out 2>$run.err || fail "--token-cache: $run"
done
cmp kept.csv found.csv && cmp kept.csv <(head -n 5 chat.jsonl.csv) || fail "kept tokens train otherwise"
grep -qF "tokens from --token-cache" found.err && ! grep -qF "from --token-cache" kept.err || fail "tokens are not kept, or not found"
refused 2 "--token-cache needs --task sft" train --model gpt2-tiny --config one.json --data t.jinja --seq-len 8 --steps 1 --token-cache tokens
refused 1 "chat.jsonl" "${train[@]}" --config one.json --data chat.jsonl --steps 1 --token-cache chat.jsonl/x

# the speed counts tokens, not places: 8 rows of a step have a third of the 24 rows' tokens
"$czero" train --model gpt2-tiny --tokenizer bytes --task sft --chat-template t.jinja --seq-len 48 --config one.json --data chat.jsonl --steps 2 \
  --log-json >steps.json 2>err || fail "--log-json"
python3 - <<'PY' || fail "tokens per second: $(cat steps.json) $(cat err)"
import json, re
first, second = map(json.loads, open("steps.json"))
counted = second["tokens_per_s"] * (second["elapsed_s"] - first["elapsed_s"])
tokens = int(re.search(r"24 examples of (\d+) tokens", open("err").read())[1])
assert abs(counted - tokens / 3) <= 1, (counted, tokens)
PY

# a row that does not end is named by the line on which it begins
head -n 2 chat.jsonl >cut.jsonl
echo '{"messages": [{"role": "user", "content": "cut off here' >>cut.jsonl
head -n 3 chat.jsonl >>cut.jsonl
refused 4 "cut.jsonl:3: a row does not end" "${train[@]}" --config one.json --data cut.jsonl --steps 1
sed -i '3s/.*/{"messages": []/' cut.jsonl
refused 4 "cut.jsonl:3: a row does not end" "${train[@]}" --config one.json --data cut.jsonl --steps 1

# token accuracy: in the metrics, as what is best, and 1 where everything is learnt by heart
head -n 2 chat.jsonl >two.jsonl
"$czero" "${train[@]}" --config one.json --data two.jsonl --eval-data two.jsonl --epochs 60 --eval-interval 30 --metrics m.csv \
  --save run --best-metric accuracy --export tuned >out 2>err || fail "learning two rows by heart"
grep -qx 'eval_accuracy 1.000000' out || fail "what is learnt by heart is not predicted"
awk -F, '$3 == "eval" { n++; if ($5 == "" || $5 < 0 || $5 > 1) bad = 1 } END { exit n != 2 || bad }' m.csv || fail "no accuracy in the metrics"
"$czero" eval --model tuned --tokenizer bytes --task sft --chat-template t.jinja --seq-len 48 --data two.jsonl --json >eval.json 2>err || fail "eval --task sft"
grep -q '"accuracy": 1}' eval.json || fail "eval --task sft: $(cat eval.json)"
awk '/^eval_loss/ { train = $2 } /"loss"/ { sub(/.*"loss": /, ""); d = $0 + 0 - train } END { exit !(train > 0 && d < 1e-5 && d > -1e-5) }' out eval.json ||
  fail "eval has another loss than training: $(cat eval.json)"
refused 2 "--loss-on needs --task sft" eval --model tuned --tokenizer bytes --data two.jsonl --loss-on all
refused 2 "this run has loss and accuracy" "${train[@]}" --config one.json --data two.jsonl --eval-data two.jsonl --steps 1 --save x --best-metric f1
printf 'one two yes no way a cat red blue sky' >text.txt
"$czero" train --model tuned --config one.json --data text.txt --eval-data text.txt --seq-len 8 --steps 1 --export lm --quiet >train.out 2>err || fail "lm"
"$czero" eval --model lm --data text.txt --seq-len 8 --json >out 2>err || fail "eval"
python3 - <<'PY' || fail "eval has another accuracy than train"
import json
train = dict(line.split() for line in open("train.out"))
found = json.load(open("out"))
assert abs(found["accuracy"] - float(train["eval_accuracy"])) < 1e-6 and abs(found["loss"] - float(train["eval_loss"])) < 1e-5, (found, train)
PY

"$czero" "${train[@]}" --config one.json --data bad.jsonl --steps 1 >out 2>err || fail "a bad row"
grep -q "bad.jsonl:25: nothing of this row is trained" err || fail "the bad row is not named"
refused 2 "2 of 3 rows cannot be trained on" "${train[@]}" --config one.json --data half.jsonl --steps 1
echo '{"question": 1}' >none.jsonl
refused 2 "none.jsonl:1: no messages" "${train[@]}" --config one.json --data none.jsonl --steps 1
echo '{{ x | nosuch }}' >broken.jinja
plain=(train --model gpt2-tiny --tokenizer bytes --task sft --seq-len 48 --quiet --config one.json --data chat.jsonl --steps 1)
refused 2 "broken.jinja:1: the filter nosuch is not supported" "${plain[@]}" --chat-template broken.jinja
refused 2 "has no chat template" "${plain[@]}"
refused 2 "--chat-template nosuch: is no file" "${plain[@]}" --chat-template nosuch
refused 2 "--packing needs --task sft" train --model gpt2-tiny --config one.json --data t.jinja --seq-len 8 --steps 1 --packing
