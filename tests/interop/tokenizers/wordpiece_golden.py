"""Make fixtures/tokenizers/wordpiece: a vocabulary, difficult texts, and the ids that Hugging
Face's tokenizers give them. The texts are bytes, not always UTF-8, separated by lines "%%%"; an .ids
file has a tokenizer_config.json in its first line and then a line of ids for each text.

    python tests/interop/tokenizers/wordpiece_golden.py
"""
import json
import pathlib
import random
import sys
import tempfile

from transformers import BertTokenizerFast

from wordpiece_check import CHARACTERS_WITHOUT_BREAKS, PIECES, SPECIALS, broken, mixture, write_folder

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from fixtures import FIXTURES

OUT = FIXTURES / "tokenizers" / "wordpiece"
SETTINGS = {
    "uncased": dict(do_lower_case=True),
    "cased": dict(do_lower_case=False),
    "accents": dict(do_lower_case=True, strip_accents=False, tokenize_chinese_chars=False),
    "bare": dict(do_lower_case=False, strip_accents=True),
}
SENTENCES = [
    "The quick brown fox, unaffable, don't!",
    "Ça va? Ünïcödé naïve façade Ångström",
    "我爱北京天安门。繁體字,简体字",
    "İstanbul ΣΊΣΥΦΟΣ Straße ǅungla ﬁne",
    "한국어 각힣 \u1112\u1161\u11ab",
    "שָׁלוֹם עֲלֵיכֶם السَّلَامُ عَلَيْكُمْ",
    "हिन्दी ไทยภาษา বাংলা",
    "👨\u200d👩\u200d👧\u200d👦 🇩🇪 👍🏽 e\u0301\u0327 o\u0302\u0303",
    "a [MASK] b[MASK]c [mask] [UNK] [CLS]x[SEP] [PAD]",
    "tab\tnbsp\u00a0ls\u2028ps\u2029zwsp\u200bbom\ufeffsoft\u00adhyphen",
    *PIECES,
]


def backend(folder):
    return BertTokenizerFast.from_pretrained(folder).backend_tokenizer


def main():
    rng = random.Random(20261122)
    texts = [s.encode() for s in SENTENCES]
    texts += [mixture(rng).encode() for _ in range(70)] + [broken(rng) for _ in range(25)]
    texts = [t for t in texts if b"%%%" not in t]
    words = ["the", "quick", "brown", "fox", "un", "##aff", "##able", "don", "naive", "##ive", "na"]
    with tempfile.TemporaryDirectory() as tmp:
        tmp = pathlib.Path(tmp)
        full = words + CHARACTERS_WITHOUT_BREAKS + ["##" + c for c in CHARACTERS_WITHOUT_BREAKS]
        used = set()
        for name, config in SETTINGS.items():  # what of the full vocabulary these texts need
            tok = backend(write_folder(tmp / name, SPECIALS + full, **config))
            for t in texts:
                used |= set(tok.encode(t.decode("utf-8", "replace"), add_special_tokens=False).tokens)
        kept = [t for t in full if t in used or t in words]
        rng.shuffle(kept)
        kept = kept[: len(kept) * 19 // 20]  # and some words have a part that is no token
        OUT.mkdir(parents=True, exist_ok=True)
        write_folder(tmp / "kept", SPECIALS + kept)
        (OUT / "vocab.txt").write_bytes((tmp / "kept" / "vocab.txt").read_bytes())
        (OUT / "texts.bin").write_bytes(b"\n%%%\n".join(texts))
        for name, config in SETTINGS.items():
            folder = write_folder(tmp / "kept", SPECIALS + kept, **config)
            lines = [(folder / "tokenizer_config.json").read_text()]
            for t in texts:
                ids = backend(folder).encode(t.decode("utf-8", "replace"), add_special_tokens=False).ids
                lines.append(" ".join(map(str, ids)))
            (OUT / (name + ".ids")).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
