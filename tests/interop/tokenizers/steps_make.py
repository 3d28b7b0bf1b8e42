#!/usr/bin/env python3
"""Small tokenizers in the shapes that model families ship: chains of steps around BPE of characters, Unigram,
WordPiece and WordLevel, and SentencePiece's tokenizer.model. No model hub is needed.

    $(scripts/peers.sh) tests/interop/tokenizers/steps_make.py OUT [--tokens N]   one folder per family; OUT/pieces: tokenizer.model
    $(scripts/peers.sh) tests/interop/tokenizers/steps_make.py --shipped          fixtures/tokenizers/steps again

Then: bpe_check.py build/libczero.so OUT, and pieces_check.py build/libczero.so OUT/pieces."""

import argparse
import json
import pathlib
import tempfile

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from bpe_make import SHIPPED, changed, corpus, save
from bpe_texts import torture

MARK = "▁"


# ---- SentencePiece ---------------------------------------------------------------------------------------------------


def spm_train(texts, n_tokens, kind, **options):
    """Bytes of a tokenizer.model."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "corpus.txt"
        path.write_text("\n".join(texts), errors="replace")
        options = {"hard_vocab_limit": kind != "unigram", "character_coverage": 0.98, "num_threads": 1, **options}
        sentencepiece.SentencePieceTrainer.train(
            input=str(path), model_prefix=folder + "/m", vocab_size=n_tokens, model_type=kind, max_sentence_length=100000,
            minloglevel=2, **options
        )  # fmt: skip
        return (pathlib.Path(folder) / "m.model").read_bytes()


def proto_of(data):
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(data)
    return proto


def unused(data, step=7, score=None):
    """Every step-th normal piece of more than one character is unused; or all have one score, so that ways tie."""
    proto = proto_of(data)
    for i, piece in enumerate(p for p in proto.pieces if p.type == 1):
        if score is not None:
            piece.score = score
        elif i % step == 0 and len(piece.piece) > 1:
            piece.type = 5
    return proto.SerializeToString()


def charsmap(proto):
    return proto.normalizer_spec.precompiled_charsmap


def merges_of(proto):
    """All pairs of pieces that make a piece, the best first (as transformers' converter lists them)."""
    scores = {p.piece: p.score for p in proto.pieces}
    order = {p.piece: i for i, p in enumerate(proto.pieces)}
    merges = []
    for piece, score in scores.items():
        local = [(piece[:i], piece[i:], score) for i in range(1, len(piece)) if piece[:i] in scores and piece[i:] in scores]
        merges += sorted(local, key=lambda m: (order[m[0]], order[m[1]]))
    return [(a, b) for a, b, _ in sorted(merges, key=lambda m: m[2], reverse=True)]


# ---- families --------------------------------------------------------------------------------------------------------


def sentence_bpe(source, normalizer, pre_tokenizer, strips, **options):
    def make(data):
        proto = proto_of(data[source])
        vocab = {p.piece: i for i, p in enumerate(proto.pieces)}
        model = models.BPE(vocab, merges_of(proto), unk_token="<unk>", fuse_unk=True, byte_fallback=True, **options)
        tokenizer = Tokenizer(model)
        if normalizer:
            tokenizer.normalizer = normalizer
        if pre_tokenizer:
            tokenizer.pre_tokenizer = pre_tokenizer
        steps = [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
        tokenizer.decoder = decoders.Sequence(steps + [decoders.Strip(content=" ", left=1)] * strips)
        tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in ("<unk>", "<s>", "</s>")])
        tokenizer.add_tokens([AddedToken("<|user|>", rstrip=True, normalized=False), AddedToken("<word>", normalized=True)])
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", vocab["<s>"])]
        )
        return tokenizer, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}

    return make


def unigram(source, normalizer, pre_tokenizer, byte_fallback=False, decoder=None, template="xlmr"):
    def make(data):
        proto = proto_of(data[source])
        vocab = [(p.piece, p.score) for p in proto.pieces]
        tokenizer = Tokenizer(models.Unigram(vocab, proto.trainer_spec.unk_id, byte_fallback))
        steps = [charsmap_step(proto) if step == "map" else step for step in normalizer]
        if steps:
            tokenizer.normalizer = normalizers.Sequence(steps)
        if pre_tokenizer:
            tokenizer.pre_tokenizer = pre_tokenizer
        tokenizer.decoder = decoder or decoders.Metaspace(replacement=MARK, prepend_scheme="always")
        tokenizer.add_special_tokens(["<s>", "</s>", "<unk>", AddedToken("<mask>", lstrip=True, special=True, normalized=True)])
        s, e = tokenizer.token_to_id("<s>"), tokenizer.token_to_id("</s>")
        single, pair = {"xlmr": ("<s> $A </s>", "<s> $A </s> </s> $B </s>"), "t5": ("$A </s>", "$A </s> $B </s>"),
                        "albert": ("<s>:0 $A:0 </s>:0", "<s>:0 $A:0 </s>:0 $B:1 </s>:1")}[template]  # fmt: skip
        tokenizer.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=[("<s>", s), ("</s>", e)])
        return tokenizer, {"eos_token": "</s>", "pad_token": "<pad>"}

    return make


def charsmap_step(proto):
    return normalizers.Precompiled(charsmap(proto))


def trained(model, trainer, normalizer, pre_tokenizer, decoder, special=()):
    def make(data):
        tokenizer = Tokenizer(model())
        if normalizer:
            tokenizer.normalizer = normalizer
        tokenizer.pre_tokenizer = pre_tokenizer
        if decoder:
            tokenizer.decoder = decoder
        tokenizer.train_from_iterator(data["texts"], trainer(data["n"]))
        tokenizer.add_special_tokens(list(special))
        return tokenizer, None

    return make


def bpe_trainer(**options):
    return lambda n: trainers.BpeTrainer(vocab_size=n, show_progress=False, special_tokens=["<unk>"], **options)


CLIP = r"""'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"""
DEEPSEEK = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^""" + "\r\n" + r"""\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+["""
    + "\r\n" + r"""]*|\s*[""" + "\r\n" + r"""]+|\s+(?!\S)|\s+"""
)  # fmt: skip
LLAMA2 = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
SEQ, SPLIT = pre_tokenizers.Sequence, pre_tokenizers.Split


def metaspace(scheme, split=True):
    return pre_tokenizers.Metaspace(replacement=MARK, prepend_scheme=scheme, split=split)


def families():
    spaces = normalizers.Replace(Regex(" {2,}"), MARK)
    quotes = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    word = {"unk_token": "<unk>"}
    return {
        "llama2": sentence_bpe("bpe", LLAMA2, None, 1),
        "llama2-new": sentence_bpe("bpe", None, metaspace("first", False), 1),
        "mistral": sentence_bpe("bpe", normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)]), None, 1, ignore_merges=True),
        "phi3": sentence_bpe("bpe-map", normalizers.Sequence([normalizers.NFKC(), normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)]), None, 1),
        "gemma": sentence_bpe("bpe-gemma", normalizers.Replace(" ", MARK), SPLIT(" ", "merged_with_previous"), 0),
        "xlmr": unigram("unigram", ["map", normalizers.Strip(left=False, right=True), spaces], metaspace("always")),
        "xlmr-new": unigram("unigram", ["map"], SEQ([pre_tokenizers.WhitespaceSplit(), metaspace("always")])),
        "albert": unigram("unigram-cf", quotes + [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase(), "map",
                          normalizers.Replace(Regex(" {2,}"), " ")], metaspace("first"), template="albert"),
        "t5": unigram("unigram", ["map"], SEQ([pre_tokenizers.WhitespaceSplit(), metaspace("always")]), template="t5"),
        "deberta": unigram("unigram-cf", [normalizers.Lowercase(), normalizers.Strip(), "map", normalizers.Replace(Regex(" {2,}"), " ")],
                           SEQ([pre_tokenizers.Punctuation(behavior="isolated"), metaspace("always")])),
        "unigram-bytes": unigram("unigram-bytes", [normalizers.Nmt(), normalizers.NFKC()], metaspace("never"), True,
                                 decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(replacement=MARK, prepend_scheme="never")])),
        "unigram-whole": unigram("unigram", [normalizers.Replace(" ", MARK)], None),
        "clip": trained(lambda: models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"), bpe_trainer(end_of_word_suffix="</w>",
                        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()),
                        normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]),
                        SEQ([SPLIT(Regex(CLIP), "removed", invert=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]), decoders.ByteLevel()),
        "gpt1": trained(lambda: models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"), bpe_trainer(end_of_word_suffix="</w>", limit_alphabet=400),
                        normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer(), decoders.BPEDecoder(suffix="</w>")),
        "prefix": trained(lambda: models.BPE(unk_token="<unk>", continuing_subword_prefix="##", fuse_unk=True),
                          bpe_trainer(continuing_subword_prefix="##", limit_alphabet=300), normalizers.NFD(), pre_tokenizers.Whitespace(),
                          decoders.WordPiece(prefix="##")),
        "deepseek": trained(lambda: models.BPE(), bpe_trainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet()), None,
                            SEQ([SPLIT(Regex(r"\p{N}{1,3}"), "isolated"), SPLIT(Regex("[一-龥぀-ゟ゠-ヿ]+"), "isolated"),
                                 SPLIT(Regex(DEEPSEEK), "isolated"), byte_level]), decoders.ByteLevel()),
        "wordlevel": trained(lambda: models.WordLevel(unk_token="<unk>"), lambda n: trainers.WordLevelTrainer(vocab_size=n, special_tokens=["<unk>"], show_progress=False),
                             normalizers.NFKD(), SEQ([pre_tokenizers.Whitespace(), pre_tokenizers.Digits(individual_digits=True)]), None),
        "wordpiece": trained(lambda: models.WordPiece(unk_token="<unk>", max_input_chars_per_word=20), lambda n: trainers.WordPieceTrainer(vocab_size=n, special_tokens=["<unk>"], limit_alphabet=500, show_progress=False),
                             normalizers.Lowercase(), SEQ([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation()]), decoders.WordPiece(prefix="##")),
        "tabs": trained(lambda: models.BPE(unk_token="<unk>"), bpe_trainer(limit_alphabet=300), None,
                        SEQ([pre_tokenizers.CharDelimiterSplit("e"), SPLIT("th", "contiguous"), pre_tokenizers.Digits(), byte_level]), decoders.Fuse()),
    }  # fmt: skip


def sources(texts, n):
    short = [t[i : i + 2000] for t in texts for i in range(0, len(t), 2000)]
    return {
        "texts": texts, "n": n,
        "bpe": spm_train(short, n, "bpe", byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False, split_digits=True, allow_whitespace_only_pieces=True),
        "bpe-map": spm_train(short, n, "bpe", byte_fallback=True, normalization_rule_name="nfkc", remove_extra_whitespaces=False),
        "bpe-gemma": spm_train(short, n, "bpe", byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False, add_dummy_prefix=False,
                               allow_whitespace_only_pieces=True, user_defined_symbols=["<start_of_turn>", "\t\t", "<b>", "<br>", "▁▁x"]),
        "unigram": spm_train(short, n, "unigram"),
        "unigram-cf": spm_train(short, n, "unigram", normalization_rule_name="nmt_nfkc_cf", control_symbols=["[CLS]"], user_defined_symbols=["(", "<sep>", "foo"]),
        "unigram-bytes": spm_train(short, n, "unigram", byte_fallback=True, normalization_rule_name="nmt_nfkc", split_by_whitespace=True),
        "suffix": spm_train(short, n, "unigram", treat_whitespace_as_suffix=True),
        "word-bpe": spm_train(short, n, "bpe", normalization_rule_name="nmt_nfkc"),
        "words": spm_train(short, n, "word", byte_fallback=True),
        "chars": spm_train(short, n, "char", user_defined_symbols=["<start>", "ab"]),
        "unigram-unused": unused(spm_train(short, n, "unigram", normalization_rule_name="identity", remove_extra_whitespaces=False)),
        "unigram-equal": unused(spm_train(short, n, "unigram"), 1, -7.25),
    }  # fmt: skip


def golden(tokenizer, text):
    row = tokenizer.encode(text)
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    return {"text": text, "ids": ids, "row": row.ids, "decoded": tokenizer.decode(ids, skip_special_tokens=False)}


RULES = "41\t61\nFB01\t66 69\n2075\t35\n65 301\tE9\n3000\t20\n200B\t\n"  # a small charsmap


def shipped_pieces(short):
    """A tokenizer.model, with what the sentencepiece package makes of the difficult texts."""
    folder = SHIPPED / "pieces"
    folder.mkdir(exist_ok=True)
    symbols = ["<start_of_turn>", "\t\t", "<b>", "<br>"]
    model = spm_train(short, 560, "bpe", byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False, user_defined_symbols=symbols)
    (folder / "tokenizer.model").write_bytes(model)
    reader = sentencepiece.SentencePieceProcessor(model_proto=model)
    cases = [{"text": text, "ids": reader.encode(text), "decoded": reader.decode(reader.encode(text))} for text in torture(small=True)[::3]]
    (folder / "golden.json").write_text(json.dumps(cases, separators=(",", ":")) + "\n")


def make_shipped():
    texts = corpus(True)
    short = [t[i : i + 2000] for t in texts for i in range(0, len(t), 2000)][:60]
    short = [text.replace("\x00", "") for text in short]
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as rules:
        rules.write(RULES)
        rules.flush()
        data = {
            "texts": short, "n": 400,
            "bpe": spm_train(short, 560, "bpe", byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False),
            "unigram": spm_train(short, 400, "unigram", normalization_rule_tsv=rules.name),
        }  # fmt: skip
    shipped_pieces(short)
    cases = {}
    for name in ("llama2", "llama2-new", "xlmr", "xlmr-new", "clip", "gpt1", "wordlevel", "wordpiece"):
        tokenizer, config = families()[name](data)
        save(SHIPPED / "steps" / name, tokenizer, config)
        cases[name] = [golden(tokenizer, text) for text in torture(small=True)[::4]]
    (SHIPPED / "steps" / "golden.json").write_text(json.dumps(cases, separators=(",", ":")) + "\n")


def make(out, n, pieces):
    data = sources(corpus(False), n)
    for name, build in () if pieces else families().items():
        save(out / name, *build(data))
    for name, model in data.items():
        if name not in ("texts", "n"):
            (out / "pieces" / name).mkdir(parents=True, exist_ok=True)
            (out / "pieces" / name / "tokenizer.model").write_bytes(model)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", type=pathlib.Path)
    parser.add_argument("--shipped", action="store_true")
    parser.add_argument("--tokens", type=int, default=3000)
    parser.add_argument("--pieces", action="store_true", help="only OUT/pieces")
    args = parser.parse_args()
    if args.shipped:
        make_shipped()
    elif args.out:
        make(args.out, args.tokens, args.pieces)
    else:
        parser.error("OUT or --shipped")


if __name__ == "__main__":
    main()
