"""Tokenizers beside Hugging Face's: the fixtures' on random and broken texts, vocab.json with random special tokens beside
transformers' classes, and random tokenizer.json files of all steps (tokenizers/pipes_random.py)."""
import json
import pathlib
import random
import re
import sys
import tempfile

from . import outcome

INTEROP = pathlib.Path(__file__).resolve().parents[1]
sys.path += [str(INTEROP), str(INTEROP / "tokenizers")]

AREA = "tokenizers"


class Differs(Exception):
    pass


def strict(comparison):
    """A comparison of bpe_check.py or pieces_check.py that stops at the first difference."""

    class Strict(comparison):
        def complain(self, what, text, a, b):
            raise Differs(f"{what} differ on {text!r:.150}: {a!r:.150}, not {b!r:.150}")

    return Strict


def fixtures():
    """(name, a comparison) of each tokenizer in the fixtures."""
    import bpe_check
    import pieces_check
    from fixtures import FIXTURES
    for file in sorted((FIXTURES / "tokenizers").rglob("tokenizer.json")):
        yield file.parent.name, strict(bpe_check.Comparison)(file.parent.name, file.parent)
    for file in sorted((FIXTURES / "tokenizers").rglob("tokenizer.model")):
        yield file.parent.name, strict(pieces_check.Comparison)(file.parent.name, file.parent)


def check_fixture(name, comparison, seed):
    from bpe_texts import random_text
    text = random_text(seed)
    try:
        comparison.same(text)
        if hasattr(comparison, "broken"):
            comparison.broken(seed)
    except Differs as difference:
        return outcome.disagreed(AREA, f"{name}, text {seed}", difference)
    return outcome.agreed(AREA, f"{name}, text {seed}")


# ---- vocab.json and merges.txt ---------------------------------------------------------------------

WORDS = ["<|endoftext|>", "<s>", "</s>", "<unk>", "<pad>", "<mask>", "<x>", "<y y>", "é|"]
NAMES = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"]


def write_older(rng, folder):
    """A small byte-level vocabulary, some of WORDS in it, and a config that names special tokens."""
    from tokenizers import pre_tokenizers
    tokens = sorted(pre_tokenizers.ByteLevel.alphabet()) + ["he", "Ġhe", "ll", "hell"]
    tokens += [w for w in WORDS if rng.random() < 0.3 and " " not in w]
    rng.shuffle(tokens)
    (folder / "vocab.json").write_text(json.dumps({t: i for i, t in enumerate(tokens)}))
    (folder / "merges.txt").write_text("#version: 0.2\nh e\nĠ he\nl l\nhe ll\n")
    config = {"tokenizer_class": rng.choice(["GPT2Tokenizer", "Qwen2Tokenizer", "RobertaTokenizer"])}
    for name in NAMES:
        if rng.random() < 0.25:
            config[name] = rng.choice(WORDS + [None])
    if config["tokenizer_class"] == "RobertaTokenizer":  # transformers fails without them
        config = {k: v for k, v in config.items() if v is not None or k not in ("cls_token", "sep_token")}
    if rng.random() < 0.3:
        config["additional_special_tokens"] = rng.sample(WORDS, 2)
    if rng.random() < 0.3:
        config["add_bos_token"] = True
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return config


def check_older(seed):
    import bpe_check
    import transformers
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        config = write_older(rng, folder)
        case = f"vocab.json seed {seed} {json.dumps(config, ensure_ascii=False)}"
        try:
            theirs = getattr(transformers, config["tokenizer_class"]).from_pretrained(folder)
        except Exception as failure:
            return outcome.refused(AREA, case, f"transformers: {type(failure).__name__}")
        try:
            ours = bpe_check.Ours(folder)
            for _ in range(5):
                text = "".join(rng.choice(WORDS + ["hell", " he", "é", "  "]) for _ in range(rng.randrange(1, 9)))
                want = theirs(text)["input_ids"]
                have = ours.encode_input(text.encode())[0]
                if have != want:
                    return outcome.disagreed(AREA, case, f"{text!r}: {have}, not {want}")
        except RuntimeError as failure:
            return outcome.disagreed(AREA, case, failure)
    return outcome.agreed(AREA, case)


# ---- random files ----------------------------------------------------------------------------------


def check_random(seed, learned, folder):
    import pipes_random
    from tokenizers import Tokenizer
    try:
        file, rng = pipes_random.make(seed, learned)
        Tokenizer.from_str(json.dumps(file))
    except BaseException as failure:
        if isinstance(failure, (KeyboardInterrupt, AssertionError, NameError, TypeError)):
            raise
        return outcome.refused(AREA, f"tokenizer.json seed {seed}", "the library does not load it")
    try:
        pipes_random.compare(folder, file, seed, rng, learned)
    except RuntimeError as failure:
        why = re.sub(r"^\S*tokenizer\.json[:0-9, ]*|\"[^\"]*\"|[0-9]+", "…", str(failure))
        return outcome.refused(AREA, f"tokenizer.json seed {seed}", why)
    except pipes_random.Differs as difference:
        return outcome.disagreed(AREA, f"tokenizer.json seed {seed}", str(difference)[:400])
    return outcome.agreed(AREA, f"tokenizer.json seed {seed}")


def run(tools, seed, n):
    import bpe_check
    from bpe_make import corpus
    from bpe_texts import torture
    bpe_check.Ours.load(str(tools.build / "libczero_internal.so"))
    comparisons = list(fixtures())
    learned = [t for t in [t[i:i + 200] for t in corpus(True)[:2] for i in range(0, 20000, 200)] + torture() if t]
    with tempfile.TemporaryDirectory() as scratch:
        for i in range(n):
            if i % 4 == 0:
                yield check_fixture(*comparisons[i // 4 % len(comparisons)], seed + i)
            elif i % 4 == 1:
                yield check_older(seed + i)
            else:
                yield check_random(seed + i, learned, pathlib.Path(scratch))
