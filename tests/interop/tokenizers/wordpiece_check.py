"""czero's WordPiece ids against Hugging Face's (transformers' BertTokenizerFast from a folder with
vocab.txt, and tokenizers from its tokenizer.json): the fixture texts, every character of Unicode,
and random mixtures of the difficult ones, under all settings of case, accents and Chinese.

    python tests/interop/tokenizers/wordpiece_check.py [--seed N] [--rounds N] [--vocab DIR]
Exits 1 at the first difference and prints it. --vocab: a folder with a real vocabulary, for the
fixture texts (else one is trained on them).
"""
import argparse
import itertools
import json
import os
import pathlib
import random
import sys
import tempfile

os.environ["TOKENIZERS_PARALLELISM"] = "false"
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import BertTokenizerFast
from transformers.utils import logging

from czero_tokenizer import Tokenizer as Czero
sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from fixtures import FIXTURES

logging.set_verbosity_error()  # long texts are meant
TEXT = FIXTURES / "text"
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
CHARACTERS = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
failures = 0


def write_folder(path, tokens, **config):
    path.mkdir(exist_ok=True)
    (path / "vocab.txt").write_text("".join(t + "\n" for t in tokens), "utf-8", newline="\n")
    (path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer", **config}))
    return path


def same(what, text, ours, theirs):
    global failures
    if ours == theirs:
        return
    failures += 1
    n = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
    print(f"{what}: differ at token {n}: ours {ours[n:n+8]} theirs {theirs[n:n+8]} of {text[:60]!r}")
    if failures >= 10:
        sys.exit(1)


def hugging_face(path):
    """their tokenizer of a folder, and ours of it and of the tokenizer.json that theirs saves"""
    fast = BertTokenizerFast.from_pretrained(path)
    ours = [("", Czero(path))]
    if len(fast) < 100000:
        saved = path.parent / (path.name + "-json")
        saved.mkdir(exist_ok=True)
        fast.backend_tokenizer.save(str(saved / "tokenizer.json"))
        ours.append((" (json)", Czero(saved)))
    return fast, ours


def compare(what, folder, texts, pairs=()):
    fast, ours = hugging_face(folder)
    backend = fast.backend_tokenizer
    for form, tok in ours:
        if tok.vocab_size != len(fast):
            print(f"{what}{form}: {tok.vocab_size} ids, theirs {len(fast)}")
    for text in texts:
        shown = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        theirs = backend.encode(shown, add_special_tokens=False).ids
        for form, tok in ours:
            same(what + form, shown, tok.encode(shown), theirs)
        if len(theirs) < 2000:
            words = backend.decode(theirs, skip_special_tokens=False)
            same(what + " (decode)", shown, ours[0][1].decode(theirs), words)
    for a, b, n in pairs:
        theirs = fast(a, b, truncation=True, max_length=n, return_token_type_ids=True)
        for form, tok in ours:
            ids, types = tok.encode_input(a, b, n)
            same(f"{what}{form} (row of {n})", a, ids, theirs["input_ids"])
            same(f"{what}{form} (segments, row of {n})", a, types, theirs["token_type_ids"])


def settings():
    for lower, accents, chinese in itertools.product([True, False], [None, True, False], [True, False]):
        yield dict(do_lower_case=lower, strip_accents=accents, tokenize_chinese_chars=chinese)


# ---- texts ------------------------------------------------------------------------------------

MARKS = "\u0300\u0301\u0307\u0316\u0327\u0334\u0345\u05b0\u0c4d\u0f71\u0f72\u0f74\u302a\u302e\u302f\u3099" \
        "\u1b44\u1dfb\ua953\u08d4\u08e1\u1e000\u1e944\u1e94a\u0e38\u0ebb\u0340\u0344\u0903\u093f\u0bd7" \
        "\U0001d165\U0001d166\U0001d16d\U0001d172\U0001d1aa\U0001e000\U0001e02a\U0001e944\U0001e94a\U000111c0\U00011446"
LETTERS = "aAzZ09ÀÉİıŁßẞΣσςΩℵÅKſǅﬁéＡｶ한각힣가ㄱ中國字豈㐀𠀀𪜀𫝀丽ЙйЇїאבשּׁيﷺกำไทय़ড়ஔ丸\U0001f600\U0001f468\U0001f3fd\U0001f1e9\u212a\u2126\u1fef\u037e\u0374\u2260\u226e"
SPACES = " \t\n\r\u000b\u000c\u0085\u00a0\u1680\u2000\u200a\u2028\u2029\u202f\u205f\u3000\u180e\u200b\ufeff"
CONTROLS = "\0\x01\x1b\x7f\x80\u00ad\u061c\u200b\u200c\u200d\u200e\u202e\u2060\ufff9\ufffd\ufffe\ue000\uf8ff\U000e0001\U000e0061\U000f0000\U0010fffd"
PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~¡§«·»¿‐–—‘’“”…‰†•※⁂、。〈「！＃～＿⸮⹓𑁇𐄀꩜"
PIECES = ["[MASK]", "[UNK]", "[CLS]", "[SEP]", "[PAD]", "[mask]", "[MASK", "MASK]", "[[MASK]]", "[unused1]", "##a", "don't", "x" * 99, "y" * 100, "z" * 101, "é" * 100, "é" * 101, "한" * 40]


def mixture(rng):
    kinds = [MARKS, MARKS, LETTERS, LETTERS, SPACES, CONTROLS, PUNCTUATION, PIECES, CHARACTERS]
    return "".join(rng.choice(rng.choice(kinds)) for _ in range(rng.randint(1, 60)))


def broken(rng):
    data = bytearray(mixture(rng).encode())
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(data) + 1)
        data[at : at + rng.randint(0, 2)] = bytes(rng.randrange(256) for _ in range(rng.randint(0, 2)))
    return bytes(data)


def every_character():
    """each alone in a word, inside one, and under marks of several classes"""
    for block in range(0, len(CHARACTERS), 4096):
        chars = CHARACTERS[block : block + 4096]
        yield " ".join(chars)
        yield " ".join("a" + c + "B" for c in chars)
        yield " ".join("a\u302e" + c + "\u0301\u1b44b" for c in chars)


def fixture_texts():
    out = []
    fortunes = TEXT / "fortunes.txt"
    if fortunes.exists():
        text = fortunes.read_text("utf-8")
        out += [text] + text.split("\n%\n")[:3000]
    weibo = TEXT / "weibo6" / "train.json"
    if weibo.exists():
        out += [t for t, _ in json.loads(weibo.read_text("utf-8"))]
    return out


# ---- vocabularies -----------------------------------------------------------------------------


def all_characters_vocab():
    return SPECIALS + CHARACTERS_WITHOUT_BREAKS + ["##" + c for c in CHARACTERS_WITHOUT_BREAKS]


# A line of vocab.txt cannot hold these: they end it, or are trimmed from its end.
CHARACTERS_WITHOUT_BREAKS = [c for c in CHARACTERS if not c.isspace() and c != "\0"]


def trained_vocab(texts):
    tok = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tok.normalizer, tok.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    tok.train_from_iterator(texts, trainers.WordPieceTrainer(vocab_size=8000, special_tokens=SPECIALS, show_progress=False))
    return [t for t, _ in sorted(tok.get_vocab().items(), key=lambda kv: kv[1])]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=20000)
    parser.add_argument("--vocab")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    texts = fixture_texts()
    with tempfile.TemporaryDirectory() as tmp:
        tmp = pathlib.Path(tmp)
        tokens = trained_vocab(texts) if texts else SPECIALS
        if args.vocab:
            tokens = (pathlib.Path(args.vocab) / "vocab.txt").read_text("utf-8").splitlines()
        for i, s in enumerate(settings()):
            folder = write_folder(tmp / f"fixture{i}", tokens, **s)
            some = texts if i == 0 else rng.sample(texts, min(len(texts), 1000))
            pairs = [(rng.choice(texts), rng.choice(texts + [None]), rng.randint(3, 80)) for _ in range(300)] if texts else []
            compare(f"fixtures {s}", folder, some, pairs)
        print(f"fixtures: {len(texts)} texts, {len(tokens)} tokens")
        everything = all_characters_vocab()
        for i, s in enumerate(settings()):
            folder = write_folder(tmp / f"all{i}", everything, **s)
            some = list(every_character()) + [mixture(rng) for _ in range(args.rounds)] + [broken(rng) for _ in range(args.rounds // 4)]
            compare(f"characters {s}", folder, some)
            print(f"characters {s}: {len(some)} texts")
    print("no differences" if failures == 0 else f"{failures} differences")
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())
