#!/usr/bin/env python3
"""Conversations to tokens and masks beside transformers' apply_chat_template(tokenize=True).

    $(scripts/peers.sh) tests/interop/chat/chat_check.py build/libczero_internal.so [--random N] [--seed S]

A small byte-level tokenizer is trained, and given every chat template of the installed trl and
transformers. Rows are the conversations of conversations.py and N random ones a template: ids must be equal, and where the
template has {% generation %} the mask of the assistant's tokens, too. Where it has none, czero finds
answers by rendering beginnings of the conversation: the mask must be what transformers gives for the
same beginnings. Prompts with completions are compared with TRL's way of making them, and prompts alone with
apply_chat_template(add_generation_prompt=True). Ends with status
1 if anything differs."""

import argparse
import collections
import ctypes
import json
import pathlib
import random
import re
import sys
import tempfile

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from conversations import CONVERSATIONS, WIDE, random_conversation
from jinja_check import NOW, templates
from jinja_engine import Refused

# Plain answers begin as the generation prompt does, but for templates that ask for reasoning, or for none.
PLAIN = [{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello there"}]},
         {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}, {"role": "user", "content": "Where?"},
                       {"role": "assistant", "content": "Here"}]}]
REASONS = re.compile(r"deepseek_r1_distill|deepseekv3|nemotron_3")

SPECIAL = ["<s>", "</s>", "<pad>", "<|im_start|>", "<|im_end|>", "<|user|>", "<|assistant|>", "<|end|>", "<think>", "</think>", "<start_of_turn>", "<end_of_turn>", "<|eot_id|>",
           "<|start_header_id|>", "<|end_header_id|>", "<|begin_of_text|>", "[INST]", "[/INST]"]


class Encoder(ctypes.Structure):
    _fields_ = [("tokenizer", ctypes.c_void_p), ("chat", ctypes.c_void_p), ("loss", ctypes.c_int), ("now", ctypes.c_int64), ("end", ctypes.c_char * 256), ("turn_end", ctypes.c_char * 256), ("turn_id", ctypes.c_int64)]


class TextBuf(ctypes.Structure):
    _fields_ = [("s", ctypes.c_void_p), ("n", ctypes.c_size_t), ("cap", ctypes.c_size_t)]


class Tokens(ctypes.Structure):
    _fields_ = [("ids", ctypes.POINTER(ctypes.c_int32)), ("trained", ctypes.POINTER(ctypes.c_uint8)), ("n", ctypes.c_size_t), ("n_trained", ctypes.c_size_t), ("lacks_end", ctypes.c_bool), ("has_empty", ctypes.c_bool), ("is_excluded", ctypes.c_bool), ("fault", ctypes.c_int),
                ("has_start", ctypes.c_bool), ("start", TextBuf)]


class Reading(ctypes.Structure):
    _fields_ = [("chat", ctypes.c_void_p), ("trains_all", ctypes.c_bool)]


def make_tokenizer(folder):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    text = [json.dumps(c, ensure_ascii=False) for c in CONVERSATIONS] + [WIDE, "The quick brown fox. Hello, world! assistant user system"]
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tok.train_from_iterator(text, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tok, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    fast.save_pretrained(folder)
    return fast


class Ours:
    def __init__(self, path, folder):
        self.lib = lib = ctypes.CDLL(path)
        lib.cz_last_error.restype = ctypes.c_char_p
        self.folder = folder
        self.tok = ctypes.c_void_p()
        self.check(lib.cz_tokenizer_open(str(folder).encode(), ctypes.byref(self.tok)))

    def check(self, status):
        if status != 0:
            raise Refused(status, self.lib.cz_last_error().decode())

    def open(self, template, loss):
        self.encoder = Encoder()
        self.check(self.lib.chat_encoder_open(ctypes.byref(self.encoder), self.tok, str(template).encode() if template else None, loss.encode() if loss else None))
        self.encoder.now = NOW  # as jinja_check.py

    def reading(self):
        return Reading(self.encoder.chat, self.encoder.loss == 3)

    def close(self):
        self.lib.chat_encoder_close(ctypes.byref(self.encoder))

    def prompt(self, row):
        data, read, text = json.dumps(row).encode(), ctypes.create_string_buffer(1024), TextBuf()
        ids, n = ctypes.POINTER(ctypes.c_int32)(), ctypes.c_size_t()
        try:
            self.check(self.lib.chat_row_read(data, ctypes.c_size_t(len(data)), b"row", ctypes.byref(self.reading()), read))
            self.check(self.lib.chat_encode_prompt(ctypes.byref(self.encoder), read, b"row", ctypes.byref(text), ctypes.byref(ids), ctypes.byref(n)))
            return ids[: n.value]
        finally:
            self.lib.text_buf_free(ctypes.byref(text))
            self.lib.chat_row_free(read)

    def encode(self, row):
        data, out, read = json.dumps(row).encode(), Tokens(), ctypes.create_string_buffer(1024)
        try:
            self.check(self.lib.chat_row_read(data, ctypes.c_size_t(len(data)), b"row", ctypes.byref(self.reading()), read))
            self.check(self.lib.chat_encode(ctypes.byref(self.encoder), read, b"row", ctypes.byref(out)))
            self.start = ctypes.string_at(out.start.s, out.start.n).split(b"\0")[:2] if out.start.n else None
            return out.ids[: out.n], [int(x) for x in out.trained[: out.n]]
        finally:
            self.lib.chat_tokens_free(ctypes.byref(out))
            self.lib.chat_row_free(read)


def row_of(case, **parts):
    """a row as czero reads it: other variables stand in chat_template_kwargs"""
    row = {k: case[k] for k in ("tools", "documents") if k in case}
    row["chat_template_kwargs"] = {k: v for k, v in case.items() if k not in ("messages", "tools", "documents")}
    return dict(row, **parts)


def apply(tok, messages, case, **more):
    rest = {k: v for k, v in case.items() if k not in ("messages", "tools", "documents")}
    tools = case.get("tools") or None
    return tok.apply_chat_template(messages, tools=tools, documents=case.get("documents"), tokenize=True, return_dict=True, **rest, **more)


def ends_inside_character(text, spans):
    return any(ord(text[e - 1]) > 127 for s, e in spans if 0 < e <= len(text))


class Report:
    def __init__(self):
        self.counts = collections.Counter()
        self.shown = 0

    def compare(self, name, expected, error, got, refusal):
        kind = "both refuse" if error and refusal else "equal" if not error and not refusal and expected == got else "differ"
        if kind == "differ" and refusal and "cannot be found" in str(refusal):
            kind = "answer not found"
        if kind == "differ" and refusal and "a list of parts" in str(refusal):
            kind = "parts dropped"
        if kind == "differ" and refusal and refusal.unsupported:
            kind = "unsupported"
        self.counts[kind] += 1
        if kind == "differ" and self.shown < 12:
            self.shown += 1
            print(f"{name}: differs\n   expected {str(error or expected)[:600]}\n   got {str(refusal or got)[:600]}")


def outcome(f):
    try:
        return f(), None
    except Refused as e:
        return None, e
    except Exception as e:
        return None, e


def is_text(value):
    return value is None or isinstance(value, str)


def is_message(m):
    """a message as czero takes it: contents are texts, or lists of parts of text"""
    content = m.get("content")
    if isinstance(content, list):
        content = None if all(isinstance(p, dict) and p.get("type") == "text" for p in content) else 0
    calls = m.get("tool_calls")
    return isinstance(m.get("role"), str) and is_text(content) and (calls is None or isinstance(calls, list)) and all(is_text(m.get(k)) for k in ("reasoning_content", "reasoning", "thinking"))


def is_row(case):
    """what czero takes for a conversation: objects, at least one"""
    messages = case["messages"]
    tools = case.get("tools")
    return (isinstance(messages, list) and messages and all(isinstance(x, dict) and is_message(x) for x in messages)
            and (tools is None or isinstance(tools, list) and all(isinstance(x, dict) for x in tools)))


def contents(case, f):
    return dict(case, messages=[dict(m, content=f(m["content"])) if "content" in m else m for m in case["messages"]])


def agreed(f, case, got):
    """f(case), or what it gives for the contents that czero gives to templates for texts, or for lists alone"""
    joined = contents(case, lambda c: "\n".join(p["text"] for p in c) if isinstance(c, list) else c)
    listed = contents(joined, lambda c: [{"type": "text", "text": c}] if isinstance(c, str) else c)
    first = outcome(lambda: f(case))
    for other in (joined, listed):
        if first[1] is None and first[0] == got or other == case:
            continue
        expected, error = outcome(lambda: f(other))
        if (error is None and expected == got) or (first[1] is not None and "no beginning" in str(error)):
            return expected, error
    return first


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library")
    parser.add_argument("--random", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    marked, unmarked, pairs, asked = Report(), Report(), Report(), Report()
    with tempfile.TemporaryDirectory() as folder:
        tok = make_tokenizer(folder)
        ours = Ours(args.library, folder)
        n_templates = n_cases = others = 0
        for name, text in templates():
            path = pathlib.Path(folder) / (name.replace("/", ".") + ".jinja")
            path.write_text(text)
            tok.chat_template = text
            marks = re.search(r"\{\%-?\s*generation\s*-?\%\}", tok.chat_template)
            cases = [c for c in list(CONVERSATIONS) + [random_conversation(rng) for _ in range(args.random)] if is_row(c)]
            _, broken = outcome(lambda: tok.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False))
            _, refused = outcome(lambda: ours.open(path, "assistant"))
            if refused:
                marked.compare(f"{path.name} (parsing)", None if broken else "", broken, "", refused)
                continue
            n_templates += 1
            for row in PLAIN:
                _, refusal = outcome(lambda: ours.encode(row))
                if not refusal and ours.start and not REASONS.search(path.name):
                    print(f"{path.name}: answers follow {ours.start[0]}, the generation prompt is {ours.start[1]}")
                    others += 1
            n_cases += len(cases)
            for i, case in enumerate(cases):
                def theirs(case=case):
                    out = apply(tok, case["messages"], case, return_assistant_tokens_mask=bool(marks))
                    if marks:
                        return out["input_ids"], out["assistant_masks"]
                    ids, mask = out["input_ids"], [0] * len(out["input_ids"])
                    text = tok.decode(ids)
                    for k, message in enumerate(case["messages"]):
                        if message.get("role") not in ("assistant", "model"):
                            continue
                        before = apply(tok, case["messages"][:k], case, add_generation_prompt=True)["input_ids"] if k else None
                        after = apply(tok, case["messages"][: k + 1], case)["input_ids"]
                        if before is None or ids[: len(before)] != before or ids[: len(after)] != after:
                            raise ValueError("no beginning")
                        mask[len(before): len(after)] = [1] * (len(after) - len(before))
                    return ids, mask
                got, refusal = outcome(lambda: ours.encode(row_of(case, messages=case["messages"])))
                expected, error = agreed(theirs, case, got)
                if marks:
                    # transformers leaves out the later tokens of a character that ends a span
                    if expected and got and expected[0] == got[0] and all(g >= e for e, g in zip(expected[1], got[1])):
                        extra = [j for j, (e, g) in enumerate(zip(expected[1], got[1])) if g > e]
                        if extra and all("\ufffd" in tok.decode([got[0][j]]) for j in extra):
                            got = expected
                    marked.compare(f"{path.name}, case {i}", expected, error, got, refusal)
                else:
                    if error is not None and "no beginning" in str(error) and refusal is None:
                        error = None  # found behind the beginning of the answer
                        expected = got
                    unmarked.compare(f"{path.name}, case {i}", expected, error, got, refusal)
                if case["messages"][-1].get("role") not in ("assistant", "model"):
                    def ask(case=case):
                        return apply(tok, case["messages"], case, add_generation_prompt=True)["input_ids"]
                    got, refusal = outcome(lambda: ours.prompt(row_of(case, messages=case["messages"])))
                    expected, error = agreed(ask, case, got)
                    asked.compare(f"{path.name}, prompt {i}", expected, error, got, refusal)
            ours.close()
            ours.open(path, "completion")
            for i, case in enumerate(cases):
                k = len(case["messages"]) - 1
                if k < 1:
                    continue

                def split(case=case):
                    before = apply(tok, case["messages"][:k], case, add_generation_prompt=True)["input_ids"]
                    ids = apply(tok, case["messages"], case)["input_ids"]
                    if ids[: len(before)] != before:
                        raise ValueError("no beginning")
                    return ids, [0] * len(before) + [1] * (len(ids) - len(before))
                row = row_of(case, prompt=case["messages"][:k], completion=case["messages"][k:])
                got, refusal = outcome(lambda: ours.encode(row))
                expected, error = agreed(split, case, got)
                pairs.compare(f"{path.name}, pair {i}", expected, error, got, refusal)
            ours.close()
    print(f"seed {args.seed}: {n_templates} templates, {n_cases / max(n_templates, 1):.0f} conversations each")
    bad = others
    for name, report in (("templates with generation blocks", marked), ("templates without", unmarked), ("prompts and completions", pairs), ("prompts alone", asked)):
        print(f"{name}: {dict(report.counts)}")
        bad += report.counts["differ"]
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
