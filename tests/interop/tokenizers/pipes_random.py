#!/usr/bin/env python3
"""Random tokenizer.json files, of all steps that one can name, against Hugging Face's tokenizers.

    $(scripts/peers.sh) tests/interop/tokenizers/pipes_random.py build/libczero.so [--count N] [--seed S] [--show]

Tokenizer number S is a function of S alone: up to three normalizers, pre-tokenizers and decoders with random options, a
small model made of what the steps leave of a few texts, a post-processor and added tokens. Ids, rows, pairs and decoded
texts of difficult, random, broken and real texts must be equal, or czero must refuse the file; the table at the end counts its
sentences. What the library itself does not load or encode is passed over. --show prints the files of those that differ.
Ends with status 1 if anything differs."""

import argparse
import collections
import json
import os
import pathlib
import random
import re
import sys
import tempfile

os.environ["RUST_BACKTRACE"] = "0"
from tokenizers import Tokenizer

from bpe_check import Ours
from bpe_make import LLAMA3, O200K, QWEN2, QWEN3_5, corpus
from bpe_texts import random_text, torture
from steps_make import CLIP, DEEPSEEK, MARK, spm_train, proto_of

# Expressions that czero has a scanner for, and one that it has not.
EXPRESSIONS = [" {2,}", " +", r"\s+", r"\s", r"\s{2,}|[\n\r\t]", r"[\n\r\t]", r"\n", r"\p{N}", r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", CLIP, DEEPSEEK]
SPLITS = EXPRESSIONS + [LLAMA3, O200K, QWEN2, QWEN3_5, r"[a-e]+"]
STRINGS = [" ", "e", "th", MARK, "``", "''", "a ", "\n", "é", "天", "1", "  ", ".", "aa", "</w>", "##"]
BEHAVIORS = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]


def flip(rng, chance=0.5):
    return rng.random() < chance


def pattern(rng, expressions):
    return {"Regex": rng.choice(expressions)} if flip(rng) else {"String": rng.choice(STRINGS)}


def sequence(rng, kinds, key, most):
    """None, one step, or a Sequence of them, which may hold another."""
    n = rng.choice([0, 1, 1, 2, 2, most])
    names = [kind for kind in kinds if kind != "UnicodeScripts" or flip(rng, 0.1)]
    steps = [{"type": kind, **kinds[kind](rng)} for kind in rng.choices(names, k=n)]
    if n > 2 and flip(rng, 0.3):
        steps = [steps[0], {"type": "Sequence", key: steps[1:]}]
    if n == 0:
        return None
    return steps[0] if n == 1 and flip(rng) else {"type": "Sequence", key: steps}


# ---- steps -----------------------------------------------------------------------------------------------------------


def nothing(rng):
    return {}


def charsmap(rng, cache={}):
    """One of SentencePiece's maps, base64 as the library writes it."""
    from tokenizers import normalizers

    if not cache:
        for rule in ("nmt_nfkc", "nfkc_cf"):
            model = spm_train(["some text to learn from, and some more of it"] * 9, 40, "char", normalization_rule_name=rule)
            step = Tokenizer.from_str(json.dumps(EMPTY))
            step.normalizer = normalizers.Precompiled(proto_of(model).normalizer_spec.precompiled_charsmap)
            cache[rule] = json.loads(step.to_str())["normalizer"]["precompiled_charsmap"]
    return {"precompiled_charsmap": cache[rng.choice(sorted(cache))]}


EMPTY = {
    "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None, "pre_tokenizer": None,
    "post_processor": None, "decoder": None, "model": {"type": "WordLevel", "vocab": {"<unk>": 0}, "unk_token": "<unk>"},
}  # fmt: skip

NORMALIZERS = {
    "BertNormalizer": lambda rng: {"clean_text": flip(rng), "handle_chinese_chars": flip(rng), "strip_accents": rng.choice([None, True, False]), "lowercase": flip(rng)},
    "ByteLevel": nothing, "Lowercase": nothing, "NFC": nothing, "NFD": nothing, "NFKC": nothing, "NFKD": nothing, "Nmt": nothing,
    "Precompiled": charsmap, "StripAccents": nothing,
    "Prepend": lambda rng: {"prepend": rng.choice([MARK, "x", " ", "ab"])},
    "Replace": lambda rng: {"pattern": pattern(rng, EXPRESSIONS), "content": rng.choice(["", " ", MARK, "x", "yz"])},
    "Strip": lambda rng: {"strip_left": flip(rng), "strip_right": flip(rng)},
}  # fmt: skip


def metaspace(rng):
    return {"replacement": rng.choice([MARK, MARK, "_"]), "prepend_scheme": rng.choice(["always", "first", "never"]), "split": flip(rng)}


PRE_TOKENIZERS = {
    "BertPreTokenizer": nothing,
    "ByteLevel": lambda rng: {"add_prefix_space": flip(rng), "trim_offsets": flip(rng), "use_regex": flip(rng)},
    "CharDelimiterSplit": lambda rng: {"delimiter": rng.choice("e .天|")},
    "Digits": lambda rng: {"individual_digits": flip(rng)},
    "FixedLength": lambda rng: {"length": rng.randint(1, 9)},
    "Metaspace": metaspace,
    "Punctuation": lambda rng: {"behavior": rng.choice(BEHAVIORS)},
    "Split": lambda rng: {"pattern": pattern(rng, SPLITS), "behavior": rng.choice(BEHAVIORS), "invert": flip(rng, 0.3)},
    "UnicodeScripts": nothing, "Whitespace": nothing, "WhitespaceSplit": nothing,
}  # fmt: skip

DECODERS = {
    "BPEDecoder": lambda rng: {"suffix": rng.choice(["</w>", "e", ""])},
    "ByteFallback": nothing,
    "ByteLevel": lambda rng: {"add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    "CTC": lambda rng: {"pad_token": "<pad>", "word_delimiter_token": rng.choice(["|", MARK]), "cleanup": flip(rng)},
    "Fuse": nothing,
    "Metaspace": metaspace,
    "Replace": lambda rng: {"pattern": {"String": rng.choice(STRINGS)}, "content": rng.choice(["", " ", "x"])},
    "Strip": lambda rng: {"content": rng.choice([" ", "e", MARK]), "start": rng.randint(0, 2), "stop": rng.randint(0, 2)},
    "WordPiece": lambda rng: {"prefix": rng.choice(["##", "e"]), "cleanup": flip(rng)},
}  # fmt: skip

# ---- models ----------------------------------------------------------------------------------------------------------


def words_of(steps, texts):
    """What the model would see."""
    tokenizer, words = Tokenizer.from_str(json.dumps(steps)), []
    for text in texts:
        if tokenizer.normalizer:
            text = tokenizer.normalizer.normalize_str(text)
        words += [w for w, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)] if tokenizer.pre_tokenizer else [text]
    return [w for w in words if w]


def alphabet(rng, words, most=150):
    counts = collections.Counter(c for w in words for c in w)
    return [c for c, _ in counts.most_common(most) if not flip(rng, 0.05)]


def bpe(rng, words):
    prefix, suffix = (rng.choice(["", "", "", "##", "@"]) for _ in range(2))
    specials = rng.choice([[], ["<unk>"]])
    options = {"fuse_unk": flip(rng), "byte_fallback": flip(rng), "ignore_merges": flip(rng, 0.3)}
    chars, merges = set(alphabet(rng, words)), []
    split = []
    for word in rng.sample(words, min(len(words), 300)):
        word = word[:60]
        parts = [(prefix if i else "") + c + (suffix if i + 1 == len(word) else "") for i, c in enumerate(word)]
        split.append(parts if set(word) <= chars else [])
    tokens = dict.fromkeys(specials + sorted({t for parts in split for t in parts} | chars))
    if options["byte_fallback"] and flip(rng, 0.8):
        tokens |= dict.fromkeys(f"<0x{b:02X}>" for b in range(256))
    for _ in range(rng.choice([0, 5, 60])):
        pairs = [pair for parts in split for pair in zip(parts, parts[1:])]
        if not pairs:
            break
        a, b = rng.choice(pairs)
        whole = a + b[len(prefix):]
        tokens[whole] = None
        merges.append([a, b])
        for parts in split:
            i = 0
            while i + 1 < len(parts):
                if (parts[i], parts[i + 1]) == (a, b):
                    parts[i : i + 2] = [whole]
                i += 1
    tokens |= dict.fromkeys(w[:30] for w in rng.sample(words, min(len(words), 5)) if options["ignore_merges"])
    vocab = {t: i for i, t in enumerate(tokens)}
    return {"type": "BPE", "dropout": None, "unk_token": "<unk>" if specials else None, "continuing_subword_prefix": prefix or None,
            "end_of_word_suffix": suffix or None, **options, "vocab": vocab, "merges": merges}  # fmt: skip


def parts_of(rng, words, n):
    out = []
    for _ in range(n):
        word = rng.choice(words)
        at = rng.randrange(len(word))
        out.append(word[at : at + rng.randint(1, 8)])
    return out


def unigram(rng, words):
    pieces = dict.fromkeys(["<unk>"] + alphabet(rng, words) + parts_of(rng, words, 150))
    has_bytes = flip(rng, 0.3)
    if has_bytes and flip(rng, 0.8):
        pieces |= dict.fromkeys(f"<0x{b:02X}>" for b in range(256))
    tie = flip(rng, 0.3)
    scores = [[p, 0.0 if p == "<unk>" else -7.25 if tie else round(-rng.uniform(1, 15), rng.choice([2, 14]))] for p in pieces]
    return {"type": "Unigram", "unk_id": rng.choice([0, 0, 0, None]), "vocab": scores, "byte_fallback": has_bytes}


def wordpiece(rng, words):
    prefix, chars = rng.choice(["##", "##", "", "e"]), alphabet(rng, words)
    pieces = dict.fromkeys(["<unk>"] + chars + [prefix + c for c in chars] + [(prefix if flip(rng) else "") + p for p in parts_of(rng, words, 120)])
    return {"type": "WordPiece", "unk_token": "<unk>", "continuing_subword_prefix": prefix, "max_input_chars_per_word": rng.choice([3, 20, 100]),
            "vocab": {p: i for i, p in enumerate(pieces)}}  # fmt: skip


def wordlevel(rng, words):
    counts = dict.fromkeys(["<unk>"] + rng.sample(words, min(len(words), 200)))
    return {"type": "WordLevel", "vocab": {w: i for i, w in enumerate(counts)}, "unk_token": "<unk>"}


MODELS = [bpe, bpe, bpe, unigram, unigram, wordpiece, wordlevel]

# ---- around them -----------------------------------------------------------------------------------------------------


def added_tokens(rng, model):
    """Tokens of the model or behind them, with random flags."""
    vocab = model["vocab"] if isinstance(model["vocab"], dict) else {p: i for i, (p, _) in enumerate(model["vocab"])}
    contents = rng.sample(["<s>", "</s>", "<pad>", "<mask>", "<|a|>", "word", "ab", "天", rng.choice(["É", "e\u0301", "\ufb01"]), "a b", " x", "<unk>", "1"], rng.randint(0, 6))
    out, n = [], len(vocab)
    for content in contents:
        at = vocab.get(content, n)
        n += at == n
        out.append({"id": at, "content": content, "single_word": flip(rng, 0.2), "lstrip": flip(rng, 0.2), "rstrip": flip(rng, 0.2),
                    "normalized": flip(rng, 0.4), "special": flip(rng)})  # fmt: skip
    return sorted(out, key=lambda t: t["id"])


def template(rng, ids):
    """Pieces of $A and $B with special tokens around."""
    marks = list(ids)

    def special():
        return [{"SpecialToken": {"id": rng.choice(marks), "type_id": rng.randint(0, 1)}}] if marks and flip(rng) else []

    a, b = ([{"Sequence": {"id": which, "type_id": rng.randint(0, 1)}}] for which in "AB")
    return {"type": "TemplateProcessing", "single": special() + a + special(), "pair": special() + a + special() + b + special(),
            "special_tokens": {m: {"id": m, "ids": [ids[m]], "tokens": [m]} for m in marks}}  # fmt: skip


def post_processor(rng, ids):
    marks = list(ids)
    choices = [lambda: None, lambda: template(rng, ids), lambda: {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": flip(rng), "use_regex": True}]
    if len(marks) >= 2:
        ends = {"sep": [marks[0], ids[marks[0]]], "cls": [marks[1], ids[marks[1]]]}
        choices += [lambda: {"type": "BertProcessing", **ends},
                    lambda: {"type": "RobertaProcessing", **ends, "trim_offsets": flip(rng), "add_prefix_space": flip(rng)}]  # fmt: skip
    if flip(rng, 0.2):
        return {"type": "Sequence", "processors": [p for p in (rng.choice(choices)() for _ in range(2)) if p]}
    return rng.choice(choices)()


def any_steps(rng):
    return {"normalizer": sequence(rng, NORMALIZERS, "normalizers", 3), "pre_tokenizer": sequence(rng, PRE_TOKENIZERS, "pretokenizers", 3),
            "decoder": sequence(rng, DECODERS, "decoders", 3)}, rng.choice(MODELS)  # fmt: skip


def byte_level_steps(rng):
    """What czero has faster code for."""
    bytes_alone = {"type": "ByteLevel", "add_prefix_space": flip(rng), "trim_offsets": flip(rng), "use_regex": flip(rng)}
    split = {"type": "Split", "pattern": {"Regex": rng.choice([LLAMA3, O200K, QWEN2, QWEN3_5])}, "behavior": "Isolated", "invert": False}
    pre = bytes_alone if flip(rng) else {"type": "Sequence", "pretokenizers": [split, {**bytes_alone, "use_regex": False}]}
    return {"normalizer": rng.choice([None, {"type": "NFC"}]), "pre_tokenizer": pre, "decoder": {**bytes_alone, "use_regex": True}}, bpe


def bert_steps(rng):
    """And for this."""
    return {"normalizer": {"type": "BertNormalizer", **NORMALIZERS["BertNormalizer"](rng)}, "pre_tokenizer": {"type": "BertPreTokenizer"},
            "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": flip(rng)}}, wordpiece  # fmt: skip


def make(seed, texts):
    rng = random.Random(seed)
    steps, make_model = rng.choice([any_steps] * 7 + [byte_level_steps] * 2 + [bert_steps])(rng)
    file = {**EMPTY, **steps}
    words = words_of(file, [rng.choice(texts) for _ in range(6)]) or ["a"]
    model = make_model(rng, words)
    added = added_tokens(rng, model)
    ids = {t["content"]: t["id"] for t in added if t["special"]}
    return {**file, "model": model, "added_tokens": added, "post_processor": post_processor(rng, ids)}, rng


# ---- comparison ------------------------------------------------------------------------------------------------------


class Differs(Exception):
    pass


def equal(what, text, ours, theirs):
    if ours != theirs:
        raise Differs(f"{what} of {text!r:.200}\n    ours   {ours!r:.400}\n    theirs {theirs!r:.400}")


def texts_for(rng, seed, texts):
    out = [(t, t.encode()) for t in rng.sample(texts, 4) + [random_text(seed, 60), random_text(seed + 1, 30)]]
    data = bytearray(random_text(seed + 2, 40).encode())
    for _ in range(3):
        data.insert(rng.randrange(len(data) + 1), rng.randrange(256))
    broken = bytes(data).decode(errors="replace")
    return [*out, (broken, bytes(data))]


def is_determined(theirs):
    """Of two added tokens that the normalizers make one, the library finds one or the other."""
    added = [t.content for t in theirs.get_added_tokens_decoder().values() if t.normalized]
    made = [theirs.normalizer.normalize_str(t) if theirs.normalizer else t for t in added]
    return len(set(made)) == len(made)


def compare(folder, file, seed, rng, texts):
    theirs = Tokenizer.from_str(json.dumps(file))
    (folder / "tokenizer.json").write_text(json.dumps(file))
    ours, n = Ours(folder), 0
    for text, data in texts_for(rng, seed, texts):
        try:
            want = theirs.encode(text, add_special_tokens=False).ids
            row, pair = theirs.encode(text), theirs.encode(text, "ab 天")
            back = theirs.decode(want, skip_special_tokens=False)
        except BaseException as error:  # a panic of the library is no Exception
            if isinstance(error, KeyboardInterrupt):
                raise
            continue
        equal("ids", text, ours.encode(data), want)
        equal("row", text, ours.encode_input(data), (row.ids, row.type_ids))
        equal("pair", text, ours.encode_input(data, "ab 天".encode()), (pair.ids, pair.type_ids))
        equal("decoded text", text, ours.decode(want), back)
        n += 1
    return n


def outline(file):
    """The file without the tables that make it long."""
    def short(node):
        if isinstance(node, dict):
            return {k: "…" if k in ("vocab", "merges", "precompiled_charsmap") else short(v) for k, v in node.items()}
        return [short(v) for v in node] if isinstance(node, list) else node

    return json.dumps({k: short(v) for k, v in file.items() if v and k not in ("version",)}, ensure_ascii=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1, help="the first")
    parser.add_argument("--show", action="store_true")
    args = parser.parse_args()
    Ours.load(args.library)
    learned = [t[i : i + 200] for t in corpus(True)[:2] for i in range(0, 20000, 200)] + torture()
    learned = [t for t in learned if t]
    refusals, n_texts, n_equal, n_differ, n_skipped = collections.Counter(), 0, 0, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(args.seed, args.seed + args.count):
            try:
                file, rng = make(seed, learned)
                if not is_determined(Tokenizer.from_str(json.dumps(file))):
                    n_skipped += 1
                    continue
            except BaseException as error:
                if isinstance(error, (KeyboardInterrupt, AssertionError, NameError, TypeError)):
                    raise
                n_skipped += 1
                continue
            try:
                n_texts += compare(pathlib.Path(folder), file, seed, rng, learned)
                n_equal += 1
            except RuntimeError as error:
                refusals[re.sub(r"^\S*tokenizer\.json[:0-9, ]*|\"[^\"]*\"|[0-9]+", "…", str(error))] += 1
            except Differs as error:
                n_differ += 1
                print(f"{seed}: {error}", *([outline(file)] if args.show else []), sep="\n    ", flush=True)
    for sentence, n in refusals.most_common():
        print(f"{n:6} refused: {sentence}")
    print(f"seeds {args.seed} to {args.seed + args.count - 1}: {n_equal} equal on {n_texts} texts, {n_differ} differ, "
          f"{sum(refusals.values())} refused, {n_skipped} that the library does not load or determine")
    sys.exit(1 if n_differ else 0)


if __name__ == "__main__":
    main()
