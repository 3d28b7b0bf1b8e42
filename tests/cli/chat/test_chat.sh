#!/usr/bin/env bash
# Claim: czero chat answers each line of standard input with the conversation so far, as czero generate --messages answers the same messages; /clear, /system,
# /save and /exit do what the help says; the key/value cache keeps what two prompts begin with and changes no answer; a full context drops the oldest
# messages with a line about them; on a terminal Ctrl-C stops an answer, not the chat, and Ctrl-D leaves.
. "$(dirname "$0")/../../support/command.sh"

mkdir base
cp "$build"/fixtures/tokenizers/qwen2/* base
python3 - <<'PY'
import json
open("base/chat_template.jinja", "w").write(
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
user = lambda text: {"role": "user", "content": text}
says = lambda text: {"role": "assistant", "content": text}
with open("chats.jsonl", "w") as f:
    for chat in ([user("hi"), says("good day"), user("more"), says("see you")], [user("more"), says("of what")],
                 [{"role": "system", "content": "count"}, user("hi"), says("one two three")], [user("hi"), says("good day"), user("hi"), says("again")]):
        f.write((json.dumps({"messages": chat}) + "\n") * 4)
json.dump({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
           "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256, "eos_token_id": 500, "tie_word_embeddings": False},
          open("base/config.json", "w"))
json.dump({"train_micro_batch_size_per_gpu": 8, "optimizer": {"type": "AdamW", "params": {"lr": 4e-3}}}, open("ds.json", "w"))
PY
"$czero" train --config ds.json --task sft --data chats.jsonl --seq-len 96 --model base --init random --steps 120 --export x --quiet >out 2>err || fail "training"

says() { # WANT INPUT ARGUMENTS…
  local want=$1 input=$2
  shift 2
  printf "$input" | "$czero" chat --model x "$@" >out 2>err || fail "chat $*"
  [ "$(cat out)" = "$(printf "$want")" ] || fail "\"$input\" is not answered with \"$want\""
}
says 'good day\nsee you' 'hi\nmore\n'
says 'good day\nagain' 'hi\n\n  \nhi'
says 'of what' 'more\r\n'
says 'good day\nof what' 'hi\n/clear\nmore\n'
grep -qF "the conversation is empty" err || fail "/clear says nothing"
says 'one two three' 'hi\n' --system count
says 'good day\none two three\ngood day' 'hi\n/clear\n/system count\nhi\n/clear\n/system\nhi\n'
says 'good day' 'hi\n/exit\nmore\n'
says 'good day' 'hi\n/quit\nmore\n'
refused 2 'unexpected word "x"; did you mean --model x?' chat x
says '' ''
CZERO_LOG=step "$czero" chat --model x >out 2>err < <(printf 'hi\nmore\n') || fail "the log"
# the second prompt begins with the first one and its answer, all of which is kept
grep -o 'chat: .*' err >log
printf 'chat: %s\n' '16 tokens of prompt, 0 of them kept' '39 tokens of prompt, 21 of them kept' | cmp -s - log || fail "the cache: $(cat log)"

# a saved conversation is a row that generate answers, and train reads
rm -f said.jsonl
says 'good day\nsee you' 'hi\nmore\n/save said.jsonl\n'
python3 -c 'import json
assert json.loads(open("said.jsonl").read()) == {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "good day"},
                                                              {"role": "user", "content": "more"}, {"role": "assistant", "content": "see you"}]}' 2>err || fail "/save"
says 'one two three' '/system count\nhi\n/save said.jsonl\n'
[ "$(wc -l <said.jsonl)" = 2 ] && grep -qF '{"role": "system", "content": "count"}' said.jsonl || fail "/save does not append"
"$czero" generate --model x --messages said.jsonl >out 2>err && [ "$(cat out)" = "$(printf 'see you\n\none two three')" ] || fail "generate answers the saved row otherwise"
echo notes >notes.md
for line in "/save notes.md" "/save" "/nosuch x" "$(printf 'caf\xe9')"; do
  code=0
  printf 'hi\n%s\nmore\n' "$line" | "$czero" chat --model x >out 2>err || code=$?
  [ $code -ge 2 ] && [ "$(cat out)" = "good day" ] || fail "$line: exit code $code"
done
[ "$(cat notes.md)" = notes ] || fail "/save overwrites notes"
"$czero" chat --model x < <(echo //nosuch) >out 2>err || fail "a message that begins with /"

# a full context
printf 'hi\nhi\nmore\nhi\nhi\n' | "$czero" chat --model x --context 40 --max-new-tokens 8 --system count >out 2>err || fail "a full context"
grep -qE "the context of 40 tokens is full: the model no longer sees the first [0-9]+ messages" err && [ "$(wc -l <out)" = 5 ] || fail "nothing is dropped"
code=0
echo "$(seq 100)" | tr '\n' ' ' | "$czero" chat --model x --context 40 >out 2>err || code=$?
[ $code = 2 ] && grep -qE "the message makes [0-9]+ tokens, but the context has 40" err || fail "a message beyond the context: $code"
printf 'hi\n' | "$czero" chat --model x --context 18 >out 2>err || fail "a short context"
grep -qF "the answer ends at the end of the context (18 tokens)" err || fail "an answer is cut in silence"

# what standard input holds besides lines of text
says 'good day' '\xef\xbb\xbfhi\n'
input() { # CODE WORDS ANSWERS BYTES
  local got=0
  printf "$4" | "$czero" chat --model x >out 2>err || got=$?
  [ $got = "$1" ] && [ "$(cat out)" = "$3" ] || fail "\"$4\": exit code $got"
  grep -qF "$2" err || fail "\"$4\": no \"$2\""
}
input 2 "standard input:2: byte 3 of the line is NUL" "good day" 'hi\nmo\0re\n'
input 2 "standard input:1: byte 2 of the line is NUL; the text looks like utf-16le" "" 'h\0i\0 \0y\0o\0u\0 \0t\0h\0e\0r\0e\0\n\0'
input 2 "standard input:3: byte 0xe9 at offset 3 is not UTF-8" "good day" 'hi\n\ncaf\xe9\n'
code=0
"$czero" chat --model x <. >out 2>err || code=$?
[ $code = 1 ] && grep -qF "standard input: cannot be read" err || fail "an error while reading is the end of the input: $code"
code=0
head -c 17000000 /dev/zero | tr '\0' a | "$czero" chat --model x >out 2>err || code=$?
[ $code = 2 ] && grep -qF "standard input:1: the line is longer than 16 MiB" err || fail "a line without an end: $code"

refused 2 "--temperature must be at least 0" chat --model x --temperature -0.5
refused 2 "--top-p must be above 0" chat --model x --top-p 2
refused 2 "--repetition-penalty must be above 0" chat --model x --repetition-penalty -1
refused 2 "--context 257: x has 256 tokens" chat --model x --context 257
refused 2 "has no chat template" chat --model gpt2-tiny
refused 2 "--model" chat
"$czero" chat --model x >/dev/full 2>err < <(echo hi) && fail "a full disk goes unnoticed"

# ---- a terminal
cat >terminal.py <<'PY'
import os, pty, select, signal, sys, time
signal.alarm(100)
pid, fd = pty.fork()
if pid == 0:
    os.execvp(sys.argv[1], sys.argv[1:])
seen = b""
def until(text, seconds=30):
    global seen
    end = time.time() + seconds
    while text not in seen and time.time() < end:
        if select.select([fd], [], [], 0.2)[0]:
            try:
                seen += os.read(fd, 4096)
            except OSError:
                break
    assert text in seen, (text, seen)
    seen = seen[seen.index(text) + len(text):]
until(b"/help lists commands, Ctrl-D leaves")
until(b"> ")
os.write(fd, b"hi\n")
until(b"good day")
until(b"> ")
os.write(fd, b"\x03")  # at the prompt: another prompt
until(b"> ")
os.write(fd, b"/nosuch\n")
until(b"/nosuch is no command; /help lists them")
until(b"> ")
os.write(fd, b"/sav x\n")
until(b"did you mean /save?")
until(b"> ")
os.write(fd, b"more\x1b[D\x1bOH\x1b[1;5C\x01\n")  # keys: left, Home, Ctrl-right, Ctrl-A
until(b"arrows and other keys")
until(b"see you")
until(b"> ")
os.write(fd, b"\x04")
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
PY
TERM=dumb python3 terminal.py "$czero" chat --model x >out 2>err || fail "a terminal"
# an answer that would take a thousand tokens is stopped, and the chat continues
cat >stopped.py <<'PY'
import os, pty, select, signal, sys, time
signal.alarm(100)
pid, fd = pty.fork()
if pid == 0:
    os.execvp(sys.argv[1], sys.argv[1:])
def read(seconds, until=b"\0"):
    seen, end = b"", time.time() + seconds
    while time.time() < end and until not in seen and select.select([fd], [], [], max(0, end - time.time()))[0]:
        try:
            seen += os.read(fd, 4096)
        except OSError:
            break
    return seen
assert b"> " in read(60, b"> ")
os.write(fd, b"hi\n")
answer = read(60, b"hi\r\n") + read(0.5)
os.write(fd, b"\x03")
answer += read(1)
os.write(fd, b"\x04")
answer += read(60)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, answer
assert len(answer) < 1000, len(answer)
PY
printf '%s' "{% for m in messages %}{{ m.content }}{% endfor %}" >t.jinja
TERM=dumb python3 stopped.py "$czero" chat --model gpt2 --tokenizer bytes --chat-template t.jinja >out 2>err || fail "a stopped answer"
