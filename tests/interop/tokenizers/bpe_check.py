#!/usr/bin/env python3
"""czero's byte-level BPE against Hugging Face's tokenizers: ids, special tokens, decoded text.

    $(scripts/peers.sh) tests/interop/tokenizers/bpe_check.py build/libczero.so DIR [NAME...] [--random N] [--quick]

DIR is what bpe_make.py wrote. Texts: the torture list, random Unicode, the fixtures' texts, every
character in several surroundings (of unassigned and private ones every 97th, and all of them in
one), and what Python makes of bytes that are no UTF-8 (U+FFFD). Ends with status 1 if anything differs."""

import argparse
import ctypes
import json
import pathlib
import random
import sys
import unicodedata

from tokenizers import Tokenizer

from bpe_texts import random_text, torture
sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from fixtures import FIXTURES, ROOT



class Input(ctypes.Structure):
    _fields_ = [("text", ctypes.c_char_p), ("nbytes", ctypes.c_size_t), ("pair", ctypes.c_char_p), ("pair_nbytes", ctypes.c_size_t)]


class Ours:
    lib = None

    def __init__(self, folder):
        self.tok = ctypes.c_void_p()
        self.check(self.lib.cz_tokenizer_open(str(folder).encode(), ctypes.byref(self.tok)))
        self.decoder = ctypes.c_void_p()
        self.check(self.lib.cz_tokenizer_decoder_create(self.tok, ctypes.byref(self.decoder)))

    @classmethod
    def load(cls, path):
        cls.lib = lib = ctypes.CDLL(path)
        cls.libc = ctypes.CDLL(None)
        lib.cz_last_error.restype = ctypes.c_char_p
        lib.cz_tokenizer_vocab_size.restype = ctypes.c_int64
        lib.cz_tokenizer_vocab_size.argtypes = [ctypes.c_void_p]
        lib.cz_tokenizer_decode.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p]
        lib.cz_tokenizer_encode.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p]
        cls.libc.free.argtypes = [ctypes.c_void_p]

    def check(self, status):
        if status != 0:
            raise RuntimeError(self.lib.cz_last_error().decode())

    def encode(self, text):
        ids, n = ctypes.POINTER(ctypes.c_int32)(), ctypes.c_size_t()
        self.check(self.lib.cz_tokenizer_encode(self.tok, text, len(text), ctypes.byref(ids), ctypes.byref(n)))
        out = ids[: n.value]
        self.libc.free(ids)
        return out

    def encode_input(self, text, pair=None):
        limit = 64 * (len(text) + len(pair or b"")) + 64
        ids, types, n = (ctypes.c_int32 * limit)(), (ctypes.c_int32 * limit)(), ctypes.c_int64()
        row = Input(text, len(text), pair, len(pair or b""))
        self.check(self.lib.cz_tokenizer_encode_input(self.tok, ctypes.byref(row), ctypes.c_int64(limit), ids, types, ctypes.byref(n), None))
        return ids[: n.value], types[: n.value]

    def decode(self, ids):
        text, n, out = ctypes.c_char_p(), ctypes.c_size_t(), b""
        for i in ids:
            self.check(self.lib.cz_tokenizer_decode(self.decoder, i, ctypes.byref(text), ctypes.byref(n)))
            out += ctypes.string_at(text, n.value)
        self.lib.cz_tokenizer_decoder_end(self.decoder, ctypes.byref(text), ctypes.byref(n))
        return (out + ctypes.string_at(text, n.value)).decode()


SURROUNDINGS = ["{}", " {}", "a{}b", "1{}2", "'{}", "{} ", "\n{}\n", "{0}{0}", "{}'s", "e{}\u0301", "  {}a", ".{}"]


class Comparison:
    def __init__(self, name, folder):
        self.name, self.folder = name, folder
        self.ours = Ours(folder)
        self.theirs = load_theirs(folder)
        self.n_texts = self.n_ids = self.n_failed = 0

    def complain(self, what, text, a, b):
        self.n_failed += 1
        if self.n_failed <= 5:
            print(f"  {self.name}: {what} differ on {text!r:.300}\n    ours   {a!r:.300}\n    theirs {b!r:.300}")

    def same(self, text, data=None, light=False):
        data = text.encode() if data is None else data
        self.n_texts += 1
        theirs = self.theirs.encode(text, add_special_tokens=False).ids
        ours = self.ours.encode(data)
        self.n_ids += len(theirs)
        if ours != theirs:
            self.complain("ids", text, ours, theirs)
            return False
        if light:
            return True
        back = self.theirs.decode(theirs, skip_special_tokens=False)
        if self.ours.decode(ours) != back:
            self.complain("decoded texts", text, self.ours.decode(ours), back)
        row = self.theirs.encode(text)
        if self.ours.encode_input(data) != (row.ids, row.type_ids):
            self.complain("rows", text, self.ours.encode_input(data), (row.ids, row.type_ids))
        return True

    def pairs(self, texts):
        for a, b in zip(texts, reversed(texts)):
            row = self.theirs.encode(a, b)
            ours = self.ours.encode_input(a.encode(), b.encode())
            if ours != (row.ids, row.type_ids):
                self.complain("pairs", a, ours, (row.ids, row.type_ids))

    def characters(self):
        every = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
        some = [c for c in every if c % 97 == 0 or unicodedata.category(chr(c)) not in ("Cn", "Co")]
        for form in SURROUNDINGS:
            chosen = every if form == "a{}b" else some
            for i in range(0, len(chosen), 256):
                texts = [form.format(chr(c)) for c in chosen[i : i + 256]]
                if self.same("\n\na ".join(texts), light=True):
                    continue
                for text in texts:
                    self.same(text, light=True)

    def broken(self, seed):
        rng = random.Random(seed)
        data = bytearray(random_text(seed).encode())
        for _ in range(rng.randrange(1, 8)):
            if data and rng.random() < 0.5:
                del data[rng.randrange(len(data))]
            else:
                data.insert(rng.randrange(len(data) + 1), rng.randrange(256))
        text = bytes(data).decode(errors="replace")  # both refuse bytes that are not UTF-8
        self.same(text, text.encode())


def load_theirs(folder):
    if (folder / "tokenizer.json").exists():
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    else:
        import transformers

        name = json.loads((folder / "tokenizer_config.json").read_text())["tokenizer_class"]
        tokenizer = getattr(transformers, name).from_pretrained(str(folder))._tokenizer
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def corpora():
    text = (FIXTURES / "text" / "fortunes.txt").read_bytes()
    posts = json.loads((FIXTURES / "text" / "weibo6" / "train.json").read_text())
    chinese = "\n".join(post for post, _ in posts[:5000])
    code = "".join(path.read_text() for module in ("base", "data", "engine") for path in sorted((ROOT / module).glob("*.c")))
    whole = [text, chinese.encode(), chinese.replace(" ", "").encode(), code.encode()]
    parts = [data[i : i + (1 << 16)] for data in whole for i in range(0, len(data), 1 << 16)]
    texts = [part.decode(errors="replace") for part in parts]
    return [(text, text.encode()) for text in texts]


def compare(name, folder, args):
    c = Comparison(name, folder)
    lists = torture()
    for text in lists:
        c.same(text)
    c.pairs(lists)
    for seed in range(args.random):
        c.same(random_text(seed))
        c.broken(seed)
    for text, data in corpora():
        c.same(text, data, light=True)
    if not args.quick:
        c.characters()
    print(f"{name}: {c.n_texts} texts, {c.n_ids} ids, {c.n_failed} differences", flush=True)
    return c.n_failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("dir", type=pathlib.Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--random", type=int, default=2000)
    parser.add_argument("--quick", action="store_true", help="not every character")
    args = parser.parse_args()
    Ours.load(args.library)
    print("Python's Unicode", unicodedata.unidata_version)
    names = args.names or sorted(p.name for p in args.dir.iterdir() if p.is_dir())
    sys.exit(1 if sum(compare(name, args.dir / name, args) for name in names) else 0)


if __name__ == "__main__":
    main()
