#!/usr/bin/env python3
"""Are the vocabularies of `czero vocab --type bpe` those of the tokenizers library's trainer?

    tests/interop/tokenizers/vocab_check.py [--czero build/czero] [--random N] [--seed S] [FILE…]

Each file (default: the fortunes of examples/), and N texts drawn at random over few letters and many scripts, are trained
on line by line, with several sizes and counts; tokens and merges have to be equal one by one. Times are told beside.
Then transformers reads the folder, and both give the same ids. Needs tokenizers and transformers (scripts/peers.sh).
"""
import argparse
import json
import pathlib
import random
import subprocess
import tempfile
import time

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer

from czero_tokenizer import Tokenizer as Ours

ROOT = pathlib.Path(__file__).resolve().parents[3]
SCRIPTS = ["abc", "aab ", "abcdefghij  ", "ab\u00e9\u4e2d\U0001f600 '", "0123456789.,x ", "=-=- "]


def theirs(lines, size, least):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size, min_frequency=least, show_progress=False, special_tokens=["<|endoftext|>"],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    begin = time.perf_counter()
    tok.train_from_iterator(lines, trainer)
    model = json.loads(tok.to_str())["model"]
    return model["vocab"], [tuple(m) for m in model["merges"]], time.perf_counter() - begin


def ours(czero, path, size, least, out):
    begin = time.perf_counter()
    subprocess.run([czero, "vocab", "--data", path, "--type", "bpe", "--size", str(size), "--min-count", str(least), "-o", out],
                   check=True, capture_output=True)
    seconds = time.perf_counter() - begin
    model = json.loads((pathlib.Path(out) / "tokenizer.json").read_text())["model"]
    return model["vocab"], [tuple(m) for m in model["merges"]], seconds


def lines_of(path):
    return [line for line in pathlib.Path(path).read_text().split("\n") if line]


def compare(czero, path, size, least):
    with tempfile.TemporaryDirectory() as work:
        out = f"{work}/vocab"
        have, want = ours(czero, path, size, least, out), theirs(lines_of(path), size, least)
        what = f"{pathlib.Path(path).name}, size {size}, at least {least} times"
        for i, (a, b) in enumerate(zip(have[1], want[1])):
            assert a == b, f"{what}: merge {i} is {a}, not {b}"
        assert have[0] == want[0] and len(have[1]) == len(want[1]), f"{what}: {len(have[1])} merges, not {len(want[1])}"
        mine, hf = Ours(out), AutoTokenizer.from_pretrained(out)
        for line in lines_of(path)[:200]:
            assert mine.encode(line) == hf(line)["input_ids"], f"{what}: ids of {line!r}"
            assert mine.decode(mine.encode(line)) == line, f"{what}: text of {line!r}"
        return len(have[1]), have[2], want[2]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--czero", default=str(ROOT / "build" / "czero"))
    parser.add_argument("--random", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("files", nargs="*", default=[str(ROOT / "examples/data/fortunes.txt")])
    args = parser.parse_args()
    for path in args.files:
        for size, least in (300, 2), (2000, 2), (8000, 1), (30000, 3):
            n, mine, other = compare(args.czero, path, size, least)
            print(f"{pathlib.Path(path).name}, size {size}, at least {least} times: {n} merges, {mine:.2f} s, theirs {other:.2f} s")
    draw = random.Random(args.seed)
    for i in range(args.random):
        with tempfile.TemporaryDirectory() as work:
            letters = draw.choice(SCRIPTS)
            path = f"{work}/random{i}.txt"
            text = "\n".join("".join(draw.choice(letters) for _ in range(draw.randint(1, 60))) for _ in range(draw.randint(1, 80)))
            pathlib.Path(path).write_text("a" + text + "\n")
            compare(args.czero, path, draw.choice([257, 260, 300, 500, 2000]), draw.choice([1, 2, 5]))
    print(f"{args.random} random texts of seed {args.seed}: equal")


if __name__ == "__main__":
    main()
