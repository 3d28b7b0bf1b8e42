#!/usr/bin/env python3
"""Makes build/fixtures/pipes/pipes.jsonl (then: tests/fixtures/pack.sh pipes): random tokenizer.json files of pipes_random.py, a few
texts each, and the ids, rows, pairs and decoded texts that Hugging Face's tokenizers gives. Files that czero refuses, and those
with SentencePiece's long character maps, are left out.

    $(scripts/peers.sh) tests/interop/tokenizers/pipes_golden.py build/libczero.so [--count 260]
"""

import argparse
import json
import pathlib
import tempfile

import pipes_random as pipes
from bpe_check import Ours
from bpe_texts import random_text, torture
from tokenizers import Tokenizer

OUT = pathlib.Path(__file__).resolve().parents[3] / "build/fixtures/pipes/pipes.jsonl"
PAIR = "ab 天"


def cut(theirs, text, n):
    """The pair cut to n tokens."""
    theirs.enable_truncation(n, strategy="longest_first")
    pair = theirs.encode(text, PAIR)
    theirs.no_truncation()
    return [n, pair.ids, pair.type_ids]


def recorded(theirs, text):
    ids = theirs.encode(text, add_special_tokens=False).ids
    row, pair = theirs.encode(text), theirs.encode(text, PAIR)
    return {"text": text, "ids": ids, "row": [row.ids, row.type_ids], "pair": [pair.ids, pair.type_ids],
            "cut": [cut(theirs, text, n) for n in (8, 13, 14)], "back": theirs.decode(ids, skip_special_tokens=False)}  # fmt: skip


def case(folder, seed, learned):
    file, rng = pipes.make(seed, learned)
    text = json.dumps(file, ensure_ascii=False)
    theirs = Tokenizer.from_str(text)
    if "Precompiled" in text or len(text) > 60000 or not pipes.is_determined(theirs):
        return None
    (folder / "tokenizer.json").write_text(text)
    Ours(folder)  # or it is refused
    texts = [t for t in rng.sample(torture(True), 4) + [random_text(seed, 40), random_text(seed + 1, 20)] if "\0" not in t]
    return {"seed": seed, "file": text, "pair": PAIR, "texts": [recorded(theirs, t) for t in texts]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--count", type=int, default=260)
    args = parser.parse_args()
    Ours.load(args.library)
    learned = [t for t in torture(True) if t.strip()]
    OUT.parent.mkdir(parents=True, exist_ok=True)
    n = seed = 0
    with tempfile.TemporaryDirectory() as folder, open(OUT, "w") as out:
        while n < args.count:
            seed += 1
            try:
                row = case(pathlib.Path(folder), seed, learned)
            except BaseException as error:  # a panic of the library is no Exception
                if isinstance(error, (KeyboardInterrupt, NameError, TypeError)):
                    raise
                continue
            if row:
                out.write(json.dumps(row, ensure_ascii=False) + "\n")
                n += 1
    print(f"{n} files of {seed} seeds")


if __name__ == "__main__":
    main()
