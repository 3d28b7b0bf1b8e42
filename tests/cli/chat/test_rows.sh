#!/usr/bin/env bash
# Claim: data show and train read rows of chats alike: flags exclude turns, members that nothing uses are one warning for
# each file, or an error with --strict, kept tokens or not; contents in parts are texts; turns may have from and value
# under any name of the list; the reasons of rows that are left out are those that they have; bytes that are not UTF-8
# are an error with file and line; a row of thousands of messages or parts takes no more than linear time.
. "$(dirname "$0")/../../support/command.sh"

cat >t.jinja <<'JINJA'
{%- for m in messages %}{{ '<' + m.role[0] + '>' + m.content + '.' }}{% endfor %}
{%- if add_generation_prompt %}<a>{% endif %}
JINJA
show() { "$czero" data show "$1" --tokenizer bytes --chat-template t.jinja "${@:2}" >out 2>err || fail "data show $1: $(cat err)"; }
has() { grep -qF -- "$1" out || fail "no \"$1\" in $(cat out err)"; }

cat >flags.jsonl <<'ROWS'
{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "BAD", "weight": 0}, {"role": "user", "content": "r"}, {"role": "assistant", "content": "GOOD"}]}
{"conversation": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "BAD"}, {"from": "gpt", "value": ["GO", {"type": "text", "text": "OD"}]}], "loss_mask": [0, 1]}
{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": ""}]}
{"text": "abc", "train": false}
ROWS
show flags.jsonl --rows 9
has "<u>q.<a>BAD.<u>r.<a>{+GOOD.+}"
has "{+GO"
has "flags.jsonl:3: 9 tokens, 1 trained, an empty answer"
has "rows       4; 3 are trained on, 1 is left out"
has "           1 has nothing to train"
has "empty      1 row has an answer that says nothing"
[ -s err ] && fail "a warning: $(cat err)"
show flags.jsonl --rows 1 --loss-on all
has "<{+u>q.+}<a>BAD.{+<u>r.<a>GOOD.+}"

cat >c.json <<'JSON'
{"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW", "params": {"lr": 0.003}}}
JSON
train=(train --config c.json --model gpt2-tiny --tokenizer bytes --task sft --chat-template t.jinja --seq-len 64 --steps 1)
"$czero" "${train[@]}" --data flags.jsonl >out 2>err || fail "training: $(cat err)"
grep -qF "1 of 4 rows is left out: 1 has nothing to train" err || fail "another reason: $(cat err)"
grep -qF "1 of 4 rows has an empty answer (first: flags.jsonl:3)" err || fail "the empty answer is not said: $(cat err)"

printf '%s\n' '{"prompt": "a", "completion": "b", "id": 1}' '{"prompt": "a", "completion": "b", "score": 1}' \
  '{"messages": [{"role": "user", "content": "q", "note": "n"}, {"role": "assistant", "content": "a"}], "score": 2}' >unread.jsonl
words="unread.jsonl: members of rows that czero does not use: score (2 times, first: line 2), messages[].note (line 3)"
show unread.jsonl
grep -qF "$words" err || fail "unread members are not named: $(cat err)"
for i in 1 2; do
  "$czero" "${train[@]}" --data unread.jsonl --token-cache tokens >out 2>err || fail "training: $(cat err)"
  [ "$(grep -cF "$words" err)" = 1 ] || fail "run $i: not one warning: $(cat err)"
done
refused 2 "$words" "${train[@]}" --data unread.jsonl --token-cache tokens --strict
refused 2 "$words" data show unread.jsonl --tokenizer bytes --chat-template t.jinja --strict

printf '{"text": "ok"}\n{"messages": [{"role": "user", "content": "\xc4\xe3\xba\xc3\xca\xc0\xbd\xe7"}]}\n' >gbk.jsonl
refused 4 "gbk.jsonl:2: byte 0xc4" data show gbk.jsonl --tokenizer bytes --chat-template t.jinja

python3 - <<'PY'
import json
turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "weight": 0}]
open("long.jsonl", "w").write(json.dumps({"messages": [{"role": "user", "content": ["x"] * 200000}, {"role": "assistant", "content": "a"}]}) + "\n"
                              + json.dumps({"messages": turns[:1] * 99999 + turns[1:], "loss_mask": [0] * 99999 + [1], "note": 1}) + "\n"
                              + json.dumps({"text": "ab", **{f"m{i}": 1 for i in range(50000)}}) + "\n"
                              + json.dumps({"text": "ab"}) + "\n")
PY
show long.jsonl --rows 0 --seq-len 1000000
has "rows       4; 3 are trained on, 1 is left out"
