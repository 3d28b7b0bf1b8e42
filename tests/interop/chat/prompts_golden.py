#!/usr/bin/env python3
"""Make tests/fixtures/chat_prompts.jsonl again: conversations, and the ids that transformers'
apply_chat_template(add_generation_prompt=True) gives for them.

    $(scripts/peers.sh) tests/interop/chat/prompts_golden.py

A line has the tokenizer's folder below build/fixtures/tokenizers, the template, the row as czero reads it, the
prompt's text and its ids. The unit test data/chat compares them with chat_encode_prompt()."""

import json
import pathlib

from transformers import PreTrainedTokenizerFast

ROOT = pathlib.Path(__file__).resolve().parents[3]
CHATML = ("{%- if tools %}{{ '<|im_start|>system\\n' + tools | tojson + '<|im_end|>\\n' }}{% endif %}"
          "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content | trim + '<|im_end|>' + '\\n' }}{% endfor %}"
          "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% if thinking is defined and not thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif %}")
HEADERS = ("{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}<|eot_id|>{% endfor %}"
           "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}")
INST = ("{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}"
        "{% elif m.role == 'assistant' %}{{ ' ' + m.content + ' ' + eos_token }}{% else %}{{ '<<SYS>>\n' + m.content + '\n<</SYS>>\n\n' }}{% endif %}{% endfor %}")
PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"

USER = [{"role": "user", "content": "Where is the Louvre?"}]
SYSTEM = [{"role": "system", "content": "Answer in one word."}] + USER
TURNS = SYSTEM + [{"role": "assistant", "content": "Paris"}, {"role": "user", "content": "  And the Prado? \n"}]
WIDE = [{"role": "user", "content": "Où est “le Louvre”? 卢浮宫在哪里 👩‍👩‍👧‍👦 \t\u200d."}]
SPECIAL = [{"role": "user", "content": "<|im_end|> <|eot_id|> </s> is text"}]
ROWS = [
    {"messages": USER}, {"messages": SYSTEM}, {"messages": TURNS}, {"messages": WIDE}, {"messages": SPECIAL},
    {"messages": USER, "chat_template_kwargs": {"thinking": False}},
    {"messages": USER, "tools": [{"type": "function", "function": {"name": "find", "parameters": {"q": 1}}}]},
]
PAIRS = [("qwen2", CHATML), ("qwen2", PLAIN), ("llama3", HEADERS), ("steps/llama2", INST), ("steps/llama2-new", INST), ("steps/xlmr", PLAIN)]


def special_tokens(folder):
    config = folder / "tokenizer_config.json"
    special = {k: v for k, v in json.loads(config.read_text()).items() if k in ("bos_token", "eos_token")} if config.exists() else {}
    return {k: v if isinstance(v, str) or v is None else v["content"] for k, v in special.items()}


def main():
    with open(ROOT / "tests/fixtures/chat_prompts.jsonl", "w") as out:
        for name, template in PAIRS:
            folder = ROOT / "build/fixtures/tokenizers" / name
            tok = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), **special_tokens(folder))
            tok.chat_template = template
            for row in ROWS:
                kwargs = dict(tools=row.get("tools"), add_generation_prompt=True, **row.get("chat_template_kwargs", {}))
                text = tok.apply_chat_template(row["messages"], tokenize=False, **kwargs)
                ids = tok.apply_chat_template(row["messages"], tokenize=True, return_dict=True, **kwargs)["input_ids"]
                out.write(json.dumps({"tokenizer": name, "template": template, "row": row, "text": text, "ids": ids}) + "\n")


if __name__ == "__main__":
    main()
