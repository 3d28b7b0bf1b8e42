#!/usr/bin/env python3
"""czero's reader of SentencePiece's tokenizer.model against the sentencepiece package: ids and decoded text. Of DeBERTa's
spm.model, too, in texts without its special tokens; texts with them, and pairs, against transformers' tokenizer.

    $(scripts/peers.sh) tests/interop/tokenizers/pieces_check.py build/libczero.so DIR [NAME...] [--random N]

DIR/NAME/tokenizer.model is what steps_make.py wrote (OUT/pieces). Texts as in bpe_check.py. Ends with status 1 if
anything differs."""

import argparse
import pathlib
import random
import sys

import sentencepiece
import transformers

from bpe_check import SURROUNDINGS, Ours, corpora
from bpe_texts import random_text, torture

SPECIALS = ["[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]"]


class Comparison:
    def __init__(self, name, folder):
        self.name = name
        self.ours = Ours(folder)
        self.is_deberta = (folder / "spm.model").exists()
        model = folder / ("spm.model" if self.is_deberta else "tokenizer.model")
        self.theirs = sentencepiece.SentencePieceProcessor(model_file=str(model))
        self.n_texts = self.n_ids = self.n_failed = 0

    def complain(self, what, text, a, b):
        self.n_failed += 1
        if self.n_failed <= 5:
            print(f"  {self.name}: {what} differ on {text!r:.300}\n    ours   {a!r:.300}\n    theirs {b!r:.300}")

    def same(self, text, light=False):
        if self.is_deberta and any(token in text for token in SPECIALS):
            return True
        self.n_texts += 1
        theirs, ours = self.theirs.encode(text), self.ours.encode(text.encode())
        self.n_ids += len(theirs)
        if ours != theirs:
            self.complain("ids", text, ours, theirs)
            return False
        if not light and self.ours.decode(ours) != self.theirs.decode(theirs):
            self.complain("decoded texts", text, self.ours.decode(ours), self.theirs.decode(theirs))
        return True

    def specials(self, folder):
        """Words that transformers' class and the model's own map of characters treat alike."""
        theirs, rng = transformers.AutoTokenizer.from_pretrained(folder), random.Random(1)
        words = "the and a book, of war don't peace? (salt)".split() + SPECIALS
        for _ in range(1000):
            text, pair = (rng.choice([" ", ""]).join(rng.choice(words) for _ in range(rng.randint(1, 9))) for _ in "ab")
            want, pairs = theirs(text, add_special_tokens=False)["input_ids"], theirs(text, pair)
            self.n_texts += 1
            if self.ours.encode(text.encode()) != want:
                self.complain("ids", text, self.ours.encode(text.encode()), want)
            ids, types = self.ours.encode_input(text.encode(), pair.encode())
            if (ids, types) != (pairs["input_ids"], pairs["token_type_ids"]):
                self.complain("pairs", text + " | " + pair, ids, pairs["input_ids"])

    def characters(self):
        every = [c for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000]
        for form in SURROUNDINGS[:4]:
            for i in range(0, len(every), 256):
                texts = [form.format(chr(c)) for c in every[i : i + 256]]
                if not self.same("\n\na ".join(texts), light=True):
                    for text in texts:
                        self.same(text, light=True)


def compare(name, folder, args):
    c = Comparison(name, folder)
    for text in torture():
        c.same(text)
    for seed in range(args.random):
        c.same(random_text(seed))
    for text, _ in corpora():
        c.same(text, light=True)
    if c.is_deberta:
        c.specials(folder)
    if not args.quick:
        c.characters()
    print(f"{name}: {c.n_texts} texts, {c.n_ids} ids, {c.n_failed} differences", flush=True)
    return c.n_failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("dir", type=pathlib.Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--random", type=int, default=1000)
    parser.add_argument("--quick", action="store_true", help="not every character")
    args = parser.parse_args()
    Ours.load(args.library)
    names = args.names or sorted(p.name for p in args.dir.iterdir())
    sys.exit(1 if sum(compare(name, args.dir / name, args) for name in names) else 0)


if __name__ == "__main__":
    main()
