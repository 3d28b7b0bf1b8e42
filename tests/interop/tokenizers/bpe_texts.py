"""Texts that go wrong in tokenizers."""

import random

PLAIN = [
    "", " ", "  ", "\n", "\r\n", "\t", "a", " a", "a ", "Hello, world!", "The quick brown fox jumps over the lazy dog.",
    "I'm you're he's we'll they've she'd don't", "I'M YOU'RE HE'S WE'LL THEY'VE SHE'D DON'T", "'s 's's '' 'x ' s", "a'ſx 'ſ",
    "'re're've'll'LL'lL'd'D'm'M't'T'sS", "l'été d'accord O'Reilly's", "  leading", "trailing   ", "two  spaces   three    four",
    "a\n\nb\n\n\nc", "a \n b\n  c \n\n d", "line\r\nline\r\n\r\nline", "tabs\t\tand\t spaces \t", "\n\n  x", "  \n", "x \n\n   ",
    "1 12 123 1234 12345 1234567890", "3.14159 1,000,000 0x1F 1e-10 ½ ² Ⅷ ٣٤٥ 一二三 १२३", "abc123def456", "a1b2c3", "12ab34",
    "snake_case camelCase PascalCase SCREAMING_CASE HTTPServer iPhone", "if (x == 0) {\n\treturn f(a[i], *p);\n}\n",
    "def f(x):\n    return x ** 2  # square\n\n\nclass A:\n    pass\n", "https://example.com/a/b?c=d&e=f#g", "a/b//c///\n/",
    "!!!???...---___===", "...\n\n...", "(a)[b]{c}<d>", "“quotes” ‘single’ «guillemets» „low“", "em—dash en–dash", "$5 €10 £20 100%",
    "naïve café résumé Ångström", "nai\u0308ve cafe\u0301 re\u0301sume\u0301 A\u030angstro\u0308m", "\u1e9b\u0323 \u212b \u2126 \u0344",
    "你好，世界！今天天气不错。", "日本語のテキスト、カタカナ。", "한국어 텍스트", "\u1112\u1161\u11ab\u1100\u1173\u11af", "中文 English 混合 text 123 你好",
    "Русский текст", "Ελληνικά κείμενο", "עברית עם נִקּוּד", "العَرَبِيَّة", "हिन्दी में पाठ", "ภาษาไทย", "தமிழ்", "ქართული", "ǅ ǈ ʰ ª º",
    "👍 👨‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 👋🏽 ❤️", "a👍b", "👍👍👍", "\u200b\u200c\u200d\ufeff", "a\u00a0b\u00a0\u00a0c \u3000d\u2003e\u2028f\u0085g",
    "\u00a0\u00a0foo \u3000bar\u3000", "\x00\x01\x1f\x7f", "a\u0301\u0301\u0301b", "\u0301start", " \u0301x", "\U0001d400\U0001d7d8",
    "\U000e0001\U0010ffff\ue000", "x" * 100, " " * 100, "ab" * 300, "\n" * 50 + "x", "a" * 1000, "!" * 200, "1" * 100, "👍" * 60, "你" * 120,
    "<|endoftext|>", "a<|endoftext|>b", " <|endoftext|> ", "<|endoftext", "<|im_start|>user\nhi<|im_end|>\n", "<|begin_of_text|>x<|eot_id|>",
    "<s>a</s>", "a <mask> b", "<unk>", "whatsoever xyzzy 你好 whatsoever", "a <left> b <right> c <both> d", "<left><right>  <both>",
    "word words sword word, word", "wordy wordyword", "éé é e\u0301 e\u0301e\u0301 éÉ", "z  x y   q x y x y", "abcd abc ab abcdab", "a\n\nb\n\n\n\nc",
    "<|a|><|b|> <|a|>", "x <nl>  y<nl>\n\nz", "天 天天 a天 天b 天。", "word<left>  word", "  <left>", "<right>   ", "<right>  <left>",
]  # fmt: skip


def torture(small=False):
    """small: short, and without NUL, which czero's JSON refuses."""
    return [text[:200].replace("\x00", "\x02") for text in PLAIN] if small else list(PLAIN)


POOLS = [
    (0x20, 0x7F), (0x20, 0x7F), (0x61, 0x7B), (0x09, 0x0E), (0x20, 0x21), (0x30, 0x3A), (0xA0, 0x250), (0x300, 0x370), (0x370, 0x600),
    (0x900, 0xE00), (0x1100, 0x1200), (0x1E00, 0x2000), (0x2000, 0x2070), (0x3000, 0x3100), (0x4E00, 0x9FFF), (0xAC00, 0xD7A4),
    (0xF900, 0xFB00), (0x1F300, 0x1FA00), (0x1D400, 0x1D800), (0, 0xD800), (0xE000, 0x110000),
]  # fmt: skip
BITS = ["'s", "'LL", " ", "  ", "\n", "\r\n", "\t", "e\u0301", "<|endoftext|>", "<|a|>", "<left>", " <right> ", "word", "ab", "天", "<nl>", "<mask>", "1", "."]


def random_text(seed, n=200):
    rng = random.Random(seed)
    out = []
    for _ in range(rng.randrange(n)):
        if rng.random() < 0.3:
            out.append(rng.choice(BITS))
            continue
        lo, hi = rng.choice(POOLS)
        for _ in range(rng.choice([1, 1, 2, 5])):
            c = rng.randrange(lo, hi)
            out.append(chr(c) if not 0xD800 <= c < 0xE000 else "x")
    return "".join(out)
