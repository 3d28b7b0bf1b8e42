#!/usr/bin/env python3
"""Makes tests/fixtures/jinja_snippets.jsonl: what jinja2, as transformers sets it up, makes of the snippets of snippets.py and of
400 random ones. The first line holds the variables. {"t": template, "out": text, "spans": [[begin, end], …] in bytes} or
{"t": template, "refused": "invalid" or "unsupported"}, where czero's own status tells which. Cases where the two differ by
intention (docs/compatibility.md) are left out.

    TZ=UTC $(scripts/peers.sh) tests/interop/chat/jinja_golden.py build/libczero_internal.so
"""

import json
import pathlib
import random
import sys

import jinja_check as check
from jinja_engine import Engine
from snippets import SNIPPETS, VALUES, random_snippet

OUT = pathlib.Path(__file__).resolve().parents[3] / "tests/fixtures/jinja_snippets.jsonl"


def expected_of(text):
    try:
        compiled = check.peer._compile_jinja_template(text)
    except Exception as e:
        return None, e
    return check.theirs(compiled, check.plain(dict(VALUES, tools=None, documents=None, add_generation_prompt=False)))


def main():
    engine, rng = Engine(sys.argv[1]), random.Random(1)
    snippets = dict.fromkeys(list(SNIPPETS) + [random_snippet(rng) for _ in range(400)])
    n_left_out = 0
    with open(OUT, "w") as out:
        out.write(json.dumps({"now": check.NOW, "values": VALUES}) + "\n")
        for text in snippets:
            expected, error = expected_of(text)
            refusal = None
            try:
                engine.parse(text, "snippet").render(VALUES, check.NOW)
            except check.Refused as e:
                refusal = e
            row = {"t": text}
            if refusal is not None and refusal.unsupported:
                row["refused"] = "unsupported"
            elif error is not None:
                row["refused"] = "invalid"
            elif refusal is not None:
                n_left_out += 1
                continue
            else:
                row["out"] = expected[0]
                spans = [[len(expected[0][:at].encode()) for at in span] for span in expected[1]]
                if spans:
                    row["spans"] = spans
            out.write(json.dumps(row, ensure_ascii=False) + "\n")
    print(f"{len(snippets)} snippets, {n_left_out} left out")


if __name__ == "__main__":
    main()
