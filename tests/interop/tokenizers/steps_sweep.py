#!/usr/bin/env python3
"""Every character of Unicode through each step that tokenizer.json can name, alone, against Hugging Face's tokenizers.

    $(scripts/peers.sh) tests/interop/tokenizers/steps_sweep.py build/libczero.so [--contexts N] [--only NAME]

What a step makes of a text is seen whole: behind it stands ByteLevel, and a vocabulary of bytes that marks the last one of
each word. Characters that differ are listed with what is left of both sides. Ends with status 1 if any other differs."""

import argparse
import json
import pathlib
import random
import sys
import tempfile

from pipes_random import BEHAVIORS, EMPTY, NORMALIZERS, SPLITS, charsmap
from bpe_check import SURROUNDINGS, Ours
from tokenizers import Tokenizer, pre_tokenizers

CONTEXTS = ["a{}b", "e{}\u0334\u0301", "1{}2"] + SURROUNDINGS
RNG = random.Random(0)


def bert(**options):
    return {"clean_text": False, "handle_chinese_chars": False, "strip_accents": False, "lowercase": False, **options}


def steps():
    """Name → (kind, step)."""
    out = {}
    for name in ("ByteLevel", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Nmt", "StripAccents"):
        out[name] = ("normalizer", {"type": name})
    for option in ("clean_text", "handle_chinese_chars", "strip_accents", "lowercase"):
        out[f"Bert {option}"] = ("normalizer", {"type": "BertNormalizer", **bert(**{option: True})})
    out["Precompiled"] = ("normalizer", {"type": "Precompiled", **charsmap(RNG)})
    out["Strip"] = ("normalizer", {"type": "Strip", "strip_left": True, "strip_right": True})
    for name in ("BertPreTokenizer", "Whitespace", "WhitespaceSplit"):
        out[f"{name}."] = ("pre_tokenizer", {"type": name})
    out["Digits"] = ("pre_tokenizer", {"type": "Digits", "individual_digits": True})
    for behavior in BEHAVIORS:
        out[f"Punctuation {behavior}"] = ("pre_tokenizer", {"type": "Punctuation", "behavior": behavior})
    out["Metaspace"] = ("pre_tokenizer", {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True})
    out["FixedLength"] = ("pre_tokenizer", {"type": "FixedLength", "length": 2})
    out["GPT-2"] = ("pre_tokenizer", {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True, "trim_offsets": True})
    for i, regex in enumerate(SPLITS[:-1]):
        out[f"Split {i} {regex[:30]}"] = ("pre_tokenizer", {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False})
    return out


def file_of(kind, step):
    end = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False, "trim_offsets": True}
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {t: i for i, t in enumerate(["<unk>"] + letters + [c + "</w>" for c in letters])}
    model = {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None, "end_of_word_suffix": "</w>",
             "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": vocab, "merges": []}  # fmt: skip
    file = {**EMPTY, "model": model, "pre_tokenizer": end}
    if step["type"] == "ByteLevel":  # it is behind the step already
        file[kind], file["pre_tokenizer"] = step, step if kind == "pre_tokenizer" else None
    elif kind == "normalizer":
        file[kind] = step
    else:
        file[kind] = {"type": "Sequence", "pretokenizers": [step, end]}
    return file


def sweep(folder, kind, step, contexts):
    file = file_of(kind, step)
    (folder / "tokenizer.json").write_text(json.dumps(file))
    ours, theirs, differ = Ours(folder), Tokenizer.from_str(json.dumps(file)), {}
    every = [c for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000]

    def pair(text):
        return ours.encode(text.encode()), theirs.encode(text, add_special_tokens=False).ids

    for form in contexts:
        for i in range(0, len(every), 512):
            some = [c for c in every[i : i + 512] if c not in differ]
            a, b = pair("\n\na ".join(form.format(chr(c)) for c in some))
            if a == b:
                continue
            for c in some:
                a, b = pair(form.format(chr(c)))
                if a != b:
                    differ[c] = (form, a, b)
    return differ


def ranges(chars):
    out = []
    for c in sorted(chars):
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return " ".join(f"{a:04X}" if a == b else f"{a:04X}-{b:04X}" for a, b in out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--contexts", type=int, default=len(CONTEXTS))
    parser.add_argument("--only")
    args = parser.parse_args()
    Ours.load(args.library)
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, (kind, step) in steps().items():
            if args.only and args.only not in name:
                continue
            differ = sweep(pathlib.Path(folder), kind, step, CONTEXTS[: args.contexts])
            failed += len(differ)
            print(f"{name}: {len(differ)} characters differ {ranges(differ)[:900]}", flush=True)
            for c in sorted(differ)[:2]:
                form, a, b = differ[c]
                print(f"    {form.format(chr(c))!r}: ours {a}, theirs {b}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
