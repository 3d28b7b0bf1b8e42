#!/usr/bin/env python3
"""Small byte-level BPE tokenizers, trained by Hugging Face's library: no model hub is needed.

    $(scripts/peers.sh) tests/interop/tokenizers/bpe_make.py OUT [--tokens N]   one folder per style
    $(scripts/peers.sh) tests/interop/tokenizers/bpe_make.py --shipped          fixtures/tokenizers again: a few hundred
                                                                     tokens each, and golden_bpe.json
"""

import argparse
import sys
import copy
import json
import pathlib

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from bpe_texts import torture
sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from fixtures import FIXTURES, ROOT

SHIPPED = FIXTURES / "tokenizers"

CASELESS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = CASELESS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + SPACES
QWEN2 = CASELESS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + SPACES
QWEN3_5 = CASELESS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + SPACES
CAPITALS, SMALLS = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{CAPITALS}*{SMALLS}+{CASELESS}?|[^\r\n\p{{L}}\p{{N}}]?{CAPITALS}+{SMALLS}*{CASELESS}?|"
    + r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|"
    + SPACES
)


def corpus(shipped):
    """English, Chinese and code; the shipped ones come from what is in the tree alone."""
    text = (FIXTURES / "text" / "fortunes-64k.txt").read_text(errors="replace")
    if not shipped:
        text = (FIXTURES / "text" / "fortunes.txt").read_text(errors="replace")
        posts = json.loads((FIXTURES / "text" / "weibo6" / "train.json").read_text())
        text += "\n".join(post.replace(" ", "") for post, _ in posts[:8000])
    code = "".join(path.read_text() for path in sorted((ROOT / "base").glob("*.h")))
    return [text, code[:60000]] + ["".join(map(str, torture()))] * 3


def byte_level(**options):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, **options)


def split(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level(use_regex=False)])


def train(texts, n_tokens, pre_tokenizer, normalizer=None, specials=(), alphabet=None, **model):
    tokenizer = Tokenizer(models.BPE(**model))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer:
        tokenizer.normalizer = normalizer
    letters = pre_tokenizers.ByteLevel.alphabet() if alphabet is None else alphabet
    options = {"limit_alphabet": len(letters)} if alphabet is not None else {}
    trainer = trainers.BpeTrainer(
        vocab_size=n_tokens, initial_alphabet=letters, special_tokens=list(specials), show_progress=False, **options
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def changed(tokenizer, change):
    """The tokenizer after an edit of its JSON."""
    data = json.loads(tokenizer.to_str())
    change(data)
    return Tokenizer.from_str(json.dumps(data))


def gpt2(texts, n):
    tokenizer = train(texts, n, byte_level())
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer, {"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|endoftext|>", "bos_token": "<|endoftext|>"}


def qwen2(texts, n):
    tokenizer = train(texts, n, split(QWEN2), normalizers.NFC())
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer.add_special_tokens(specials)
    first = tokenizer.get_vocab_size() - len(specials)
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    table = {str(first + i): {"content": token, **flags} for i, token in enumerate(specials)}
    config = {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    return tokenizer, {**config, "bos_token": None, "unk_token": None, "added_tokens_decoder": table}


def llama3(texts, n):
    tokenizer = train(texts, n, split(LLAMA3), ignore_merges=True)

    def add_words(data):  # that no merge makes
        vocab = data["model"]["vocab"]
        for word in ["Ġwhatsoever", "xyzzy", "ä½łå¥½"]:
            vocab.setdefault(word, len(vocab))
        data["model"]["merges"] = [" ".join(pair) for pair in data["model"]["merges"]]  # the older spelling

    tokenizer = changed(tokenizer, add_words)
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"])
    begin = tokenizer.token_to_id("<|begin_of_text|>")
    template = processors.TemplateProcessing(
        single="<|begin_of_text|> $A",
        pair="<|begin_of_text|> $A <|begin_of_text|>:1 $B:1",
        special_tokens=[("<|begin_of_text|>", begin)],
    )
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|begin_of_text|>"}
    return tokenizer, {**config, "eos_token": {"__type": "AddedToken", "content": "<|eot_id|>"}}


def o200k(texts, n):
    tokenizer = train(texts, n, split(O200K))
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return tokenizer, None


def qwen3_5(texts, n):
    return train(texts, n, split(QWEN3_5), unk_token="<none>"), None


def digits(texts, n):
    steps = [pre_tokenizers.Digits(individual_digits=True), byte_level(use_regex=True)]
    return train(texts, n, pre_tokenizers.Sequence(steps)), None


def prefix(texts, n):
    tokenizer = train(texts, n, pre_tokenizers.ByteLevel(add_prefix_space=True))
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return tokenizer, None


def roberta(texts, n):
    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    tokenizer = train(texts, n, byte_level(), specials=specials)
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True)])
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    names = {"cls_token": "<s>", "sep_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>", "mask_token": "<mask>"}
    return tokenizer, {"tokenizer_class": "RobertaTokenizer", **names}


def unknown(fuse, fallback):
    """Half of the bytes have no token."""

    def make(texts, n):
        letters = sorted(pre_tokenizers.ByteLevel.alphabet())
        specials = ["<unk>"] + ([f"<0x{i:02X}>" for i in range(0x80, 0x100, 1)] if fallback else [])
        tokenizer = train(
            texts, n, byte_level(), specials=specials, alphabet=letters[:94],
            unk_token="<unk>", fuse_unk=fuse, byte_fallback=fallback,
        )  # fmt: skip

        def drop(data):  # special tokens of the trainer would be found in texts
            data["added_tokens"] = []

        return changed(tokenizer, drop), None

    return make


def nothing_unknown(texts, n):
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    return train(texts, n, byte_level(), alphabet=letters[:94]), None


def added(normalizer, pattern):
    """Every flag of added tokens."""

    def make(texts, n):
        tokenizer = train(texts, n, split(pattern), normalizer)
        tokenizer.add_tokens([
            AddedToken("<left>", lstrip=True, normalized=False), AddedToken("<right>", rstrip=True, normalized=False),
            AddedToken("<both>", lstrip=True, rstrip=True, normalized=False), AddedToken("word", single_word=True, normalized=False),
            AddedToken("wordy", normalized=True), AddedToken("é", normalized=True), AddedToken("e\u0301e\u0301", normalized=True),
            AddedToken(" x y", normalized=False, lstrip=True), AddedToken("ab", normalized=False), AddedToken("abcd", normalized=False),
            AddedToken("\n\n", normalized=False), AddedToken("天", normalized=True, single_word=True),
        ])  # fmt: skip
        tokenizer.add_special_tokens(["<|a|>", "<|a|><|b|>", AddedToken("<nl>", normalized=True, rstrip=True)])
        return tokenizer, None

    return make


STYLES = {
    "gpt2": gpt2, "qwen2": qwen2, "llama3": llama3, "qwen3.5": qwen3_5, "o200k": o200k, "digits": digits, "prefix": prefix, "roberta": roberta,
    "unk": unknown(False, False), "unk-fused": unknown(True, False), "fallback": unknown(True, True), "dropped": nothing_unknown,
    "added": added(None, LLAMA3), "added-nfc": added(normalizers.NFC(), QWEN2),
}  # fmt: skip
OLD_FILES = ("gpt2", "qwen2", "roberta")  # also as vocab.json and merges.txt


def save(folder, tokenizer, config):
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))


def save_old(folder, tokenizer, config):
    """The same as vocab.json and merges.txt."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.model.save(str(folder))
    config = copy.deepcopy(config)
    data = json.loads(tokenizer.to_str())
    outside = {t["content"]: t["id"] for t in data["added_tokens"] if t["content"] not in data["model"]["vocab"]}
    if "added_tokens_decoder" not in config:
        (folder / "added_tokens.json").write_text(json.dumps(outside))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def make(out, n_tokens, styles, shipped):
    texts = corpus(shipped)
    made = {}
    for name in styles:
        made[name] = STYLES[name](texts, n_tokens)
        save(out / name, *made[name])
        if name in OLD_FILES and not shipped:
            save_old(out / (name + "-old"), *made[name])
    return made


def golden(tokenizer, text):
    with_specials = tokenizer.encode(text).ids
    without = tokenizer.encode(text, add_special_tokens=False).ids
    return {"text": text, "ids": without, "n_special": len(with_specials) - len(without),
            "decoded": tokenizer.decode(without, skip_special_tokens=False)}  # fmt: skip


def make_shipped():
    made = make(SHIPPED, 500, ["gpt2", "qwen2", "llama3"], True)
    save_old(SHIPPED / "gpt2", *made["gpt2"])
    (SHIPPED / "gpt2" / "tokenizer.json").unlink()
    cases = {name: [golden(tokenizer, text) for text in torture(small=True)] for name, (tokenizer, _) in made.items()}
    (SHIPPED / "golden_bpe.json").write_text(json.dumps(cases, separators=(",", ":")) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", type=pathlib.Path)
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--shipped", action="store_true")
    args = parser.parse_args()
    if args.shipped:
        make_shipped()
    elif args.out:
        make(args.out, args.tokens, STYLES, False)
    else:
        parser.error("OUT or --shipped")


if __name__ == "__main__":
    main()
