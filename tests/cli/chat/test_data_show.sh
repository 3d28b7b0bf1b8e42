#!/usr/bin/env bash
# Claim: czero data show prints rows with their trained tokens and what is cut, in colour on a terminal and between marks
# elsewhere, names every row that is left out with its reason, and counts lengths, tokens per epoch and packed rows as
# training does, which refuses what it says is refused; --json has the same; text of a row cannot pass for a report or
# reach the terminal as controls.
. "$(dirname "$0")/../../support/command.sh"

cat >t.jinja <<'JINJA'
{%- for m in messages %}{{ '<' + m.role[0] + '>' + m.content + '.' }}{% endfor %}
{%- if add_generation_prompt %}<a>{% endif %}
JINJA
cat >rows.jsonl <<'ROWS'
{"messages": [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "c\nrows 9\u001b[31md"}]}
{"messages": [{"role": "user", "content": "alone"}]}

{"messages": [{"role": "user", "content": "0123456789012345678901234567890123456789"}, {"role": "assistant", "content": "x"}]}
{"messages": [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "0123456789012345678901234567890123456789"}]}
{"messages": [{"role": "user"}, {"role": "assistant", "content": "x"}]}
{"prompt": "ab", "completion": "cd\u00e9"}
{"text": "abcd"}
ROWS
show=(data show rows.jsonl --tokenizer bytes --chat-template t.jinja --seq-len 32)

"$czero" "${show[@]}" --rows 9 >out 2>err || fail "data show"
for line in "rows.jsonl:1: 24 tokens, 15 trained" "  <u>ab.<a>{+c" "  rows 9\x1b[31md.+}" \
  "rows.jsonl:2: 9 tokens, 0 trained; left out: nothing of this row is trained: it has no answer, or its flags exclude every answer" \
  "rows.jsonl:4: 49 tokens, 0 trained, 17 cut; left out: the answer begins after token 32 (--seq-len)" \
  "  <u>01234567890123456789012345678[-90123456789.<a>x.-]" "  <u>ab.<a>{+01234567890123456789012+}[-34567890123456789.-]" "  ab{+cdé+}" "  a{+bcd+}" \
  "rows       7; 4 are trained on, 3 are left out" "           1 is refused by the template" "           1 has nothing to train" \
  "           1 has its answer after token 32 (--seq-len)" "lengths    4 to 50 tokens, half of them up to 9" \
  "cut        2 of 7 rows were truncated to 32 tokens (--seq-len), 35 tokens are lost" "epoch      66 tokens, 45 (68.2 %) of them trained"; do
  grep -qF -- "$line" out || fail "no line \"$line\""
done
[ "$(grep -c '^rows ' out)" = 1 ] || fail "a text passes for a line of the report"
! grep -q $'\033' out || fail "a control character of a row, or a colour where there is no terminal"
"$czero" "${show[@]}" --rows 9 --left-out >out 2>err || fail "--left-out"
grep -qF "rows.jsonl:6: t.jinja:1: 'content' is undefined" out || fail "a refused row has no reason"
[ "$(grep -c '^rows.jsonl:' out)" = 3 ] || fail "other rows than those left out"
"$czero" "${show[@]}" --rows 1 --line 5 --packing >out 2>err || fail "--line"
grep -q '^rows.jsonl:5:' out && [ "$(grep -c '^rows.jsonl:' out)" = 1 ] || fail "--line is not where the rows begin"
grep -qx 'packed     3 rows of 32 tokens, 68.8 % full' out || fail "packed rows"

"$czero" "${show[@]}" --rows 9 --json >j.json 2>err || fail "--json"
python3 - <<'PY' || fail "--json has other figures"
import json
d = json.load(open("j.json"))
assert d["left_out"] == {"refused": 1, "unfound": 0, "unseen": 0, "untrained": 1, "cut_away": 1} and [r["line"] for r in d["left_out_rows"]] == [2, 4, 6], d
assert (d["rows"], d["tokens_per_epoch"], d["trained_tokens_per_epoch"], d["tokens_cut"], d["batch_rows"]) == (7, 66, 45, 35, 4), d
assert sum(b["rows"] for b in d["lengths"]) == 6
parts = d["shown"][0]["parts"]
assert [p["kind"] for p in parts] == ["read", "trained"] and parts[1]["text"] == "c\nrows 9\x1b[31md." and parts[1]["tokens"] == 15, parts
assert all(row["text"] == "".join(p["text"] for p in row["parts"]) != "" for row in d["shown"]), d["shown"]
PY

# the same figures as a run's, and the same refusal
cat >c.json <<'JSON'
{"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW", "params": {"lr": 0.003}}}
JSON
train=(train --config c.json --model gpt2-tiny --tokenizer bytes --task sft --chat-template t.jinja --seq-len 32 --steps 1)
"$czero" "${train[@]}" --data rows.jsonl >out 2>err || fail "training"
grep -qF "4 examples of 66 tokens, 68.2 % of them trained, in 4 rows" err || fail "training counts otherwise"
grep -qF "data: 2 of 7 rows were truncated to 32 tokens (--seq-len)" err || fail "training says nothing of cut rows"
head -n 4 rows.jsonl >half.jsonl
"$czero" data show half.jsonl --tokenizer bytes --chat-template t.jinja --seq-len 32 >out 2>err || fail "half"
grep -qF "czero train refuses this data: more than half of its rows are left out" out || fail "no word of the refusal"
refused 2 "2 of 3 rows cannot be trained on" "${train[@]}" --data half.jsonl
refused 2 "shows them (czero data show half.jsonl --model gpt2-tiny --tokenizer bytes --chat-template t.jinja --left-out)" "${train[@]}" --data half.jsonl
grep -qF "           1 is refused by the template; the first: rows.jsonl:6: t.jinja:1: 'content' is undefined" <("$czero" "${show[@]}") || fail "no first reason"
head -n 1 rows.jsonl >single.jsonl
"$czero" data show single.jsonl --tokenizer bytes --chat-template t.jinja >out 2>err || fail "one row"
grep -qF "rows       1; 1 is trained on, 0 are left out" out && grep -qF "0 of 1 row was truncated" out || fail "one row is several"

# --model instead of --tokenizer; how answers begin
mkdir base
cp "$build"/fixtures/tokenizers/qwen2/* base/
sed 's/<a>/<b>/' t.jinja >base/chat_template.jinja
"$czero" data show single.jsonl --model base >out 2>err || fail "--model"
grep -qF 'answers    answers follow "<a>", but the generation prompt is "<b>": generate will not begin as trained (1 of 1 row)' out || fail "--model has another template"
"$czero" data show single.jsonl --model base --chat-template t.jinja --json >out 2>err || fail "--model --json"
grep -q '"answers_compared": 1' out && grep -q '"answers_begin_otherwise": 0' out || fail "beginnings in JSON"
refused 2 "--model or --tokenizer" data show single.jsonl

# colours on a terminal only, and not against NO_COLOR
colours() { TERM=xterm script -qec "$1 '$czero' ${show[*]} --rows 1 --seq-len 12" /dev/null </dev/null >out 2>err || fail "on a terminal"; }
if command -v script >/dev/null; then
  colours ""
  grep -qF $'<u>ab.<a>\033[1;32mc\033[0m' out && grep -qF $'\033[31m' out || fail "no colours on a terminal"
  ! grep -qF '{+' out || fail "marks and colours"
  colours "NO_COLOR=1"
  ! grep -q $'\033' out && grep -qF '{+c' out || fail "colours in spite of NO_COLOR"
fi

refused 2 "has no chat template" data show rows.jsonl --tokenizer bytes
echo '{"question": 1}' >none.jsonl
refused 2 "none.jsonl:1: no messages" data show none.jsonl --tokenizer bytes
refused 2 'unknown action "shwo": show' data shwo
refused 2 "nosuch.jsonl" data show nosuch.jsonl --tokenizer bytes
