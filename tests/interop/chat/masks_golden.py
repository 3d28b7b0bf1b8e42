#!/usr/bin/env python3
"""Makes tests/fixtures/chat_masks.jsonl: conversations, templates with and without {% generation %}, and the ids and the assistant's
mask that transformers gives. The first line holds the rows; a later one a tokenizer, a template, and [row, ids, mask] of each row
whose answers transformers finds.

    $(scripts/peers.sh) tests/interop/chat/masks_golden.py build/libczero_internal.so
"""

import json
import pathlib
import sys
import tempfile

from transformers import PreTrainedTokenizerFast

import chat_check as check
from conversations import CONVERSATIONS
from prompts_golden import CHATML, HEADERS, INST, PLAIN, ROOT, special_tokens

MARKED = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}{{ m.content or '' }}"
          "{% for c in m.tool_calls or [] %}[{{ (c.function or c).name }}]{% endfor %}<|im_end|>{% endgeneration %}\n"
          "{% else %}{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
PAIRS = [("qwen2", MARKED), ("qwen2", CHATML), ("llama3", HEADERS), ("llama3", MARKED), ("steps/llama2", INST), ("steps/llama2", MARKED),
         ("steps/xlmr", PLAIN), ("steps/xlmr", MARKED)]


def theirs(tok, case, marks):
    if marks:
        out = check.apply(tok, case["messages"], case, return_assistant_tokens_mask=True)
        return out["input_ids"], out["assistant_masks"]
    ids = check.apply(tok, case["messages"], case)["input_ids"]
    mask = [0] * len(ids)
    for k, message in enumerate(case["messages"]):
        if message.get("role") == "assistant":
            before = check.apply(tok, case["messages"][:k], case, add_generation_prompt=True)["input_ids"]
            after = check.apply(tok, case["messages"][: k + 1], case)["input_ids"]
            if not k or ids[: len(before)] != before or ids[: len(after)] != after:
                raise ValueError("no beginning")
            mask[len(before) : len(after)] = [1] * (len(after) - len(before))
    return ids, mask


def main():
    cases = [c for c in CONVERSATIONS if check.is_row(c) and len(json.dumps(c)) < 1500]
    rows = [check.row_of(c, messages=c["messages"]) for c in cases]
    n = n_differ = 0
    with tempfile.TemporaryDirectory() as folder, open(ROOT / "tests/fixtures/chat_masks.jsonl", "w") as out:
        out.write(json.dumps({"rows": rows}, ensure_ascii=False) + "\n")
        for name, template in PAIRS:
            tokenizer = ROOT / "build/fixtures/tokenizers" / name
            tok = PreTrainedTokenizerFast(tokenizer_file=str(tokenizer / "tokenizer.json"), **special_tokens(tokenizer))
            tok.chat_template = template
            path = pathlib.Path(folder) / "t.jinja"
            path.write_text(template)
            ours = check.Ours(sys.argv[1], tokenizer)
            ours.open(path, "assistant")
            found = []
            for i, (case, row) in enumerate(zip(cases, rows)):
                got, refusal = check.outcome(lambda: ours.encode(row))
                expected, error = check.agreed(lambda c: theirs(tok, c, template is MARKED), case, got)
                if error is None and refusal is None and sum(expected[1]):
                    n_differ += tuple(expected) != tuple(got)
                    if tuple(expected) == tuple(got):
                        found.append([i, *expected])
            ours.close()
            n += len(found)
            out.write(json.dumps({"tokenizer": name, "template": template, "rows": found}, separators=(",", ":")) + "\n")
    print(f"{n} rows equal, {n_differ} differ and are left out")


if __name__ == "__main__":
    main()
