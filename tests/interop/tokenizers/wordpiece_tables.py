"""Write the character tables of data/tokenizer/wordpiece/wordpiece_tables.c: what Hugging Face's tokenizers (its Rust
library) take for control characters, punctuation, accents and white space, asked character by
character. These are Unicode's categories as of the version that the library was built with, which
is older than utf8proc's; ids only agree with the library's own view.

    python tests/interop/tokenizers/wordpiece_tables.py > data/tokenizer/wordpiece/wordpiece_tables.c
"""
import unicodedata

import tokenizers
from tokenizers import normalizers, pre_tokenizers


def bert(**on):
    flags = dict(clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=False)
    return normalizers.BertNormalizer(**{**flags, **on})


CHARACTERS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
clean, strip = bert(clean_text=True), bert(strip_accents=True)
nfd, words = normalizers.NFD(), pre_tokenizers.BertPreTokenizer()


def splits(c):
    return [s for s, _ in words.pre_tokenize_str("a" + chr(c) + "a")]


def ranges(members):
    out = []
    for c in members:
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def table(name, about, members):
    rows = ["{0x%X, 0x%X}" % tuple(r) for r in ranges(members)]
    lines, line = [], ""
    for row in rows:
        if len(line) + len(row) + 2 > 94:
            lines.append(line.rstrip())
            line = ""
        line += row + ", "
    lines.append(line.rstrip())
    print("/* %s */" % about)
    print("const struct wp_range wp_%s[] = {" % name)
    for line in lines:
        print("    " + line)
    print("};\nconst size_t wp_n_%s = CZ_ARRAY_LEN(wp_%s);\n" % (name, name))


# Characters that stay when accents go, and still take part in canonical ordering.
OVERLINE = "\u0334"  # combining class 1
IOTA = "\u0345"  # combining class 240
REPRESENTATIVES = {}
for c in CHARACTERS:
    k = unicodedata.combining(chr(c))
    if k and k not in REPRESENTATIVES and strip.normalize_str(chr(c)) == "":
        REPRESENTATIVES[k] = chr(c)


def combining_class(c):
    """Of a character that has one: the class just above the highest that it sorts behind."""
    below = [k for k, r in REPRESENTATIVES.items() if nfd.normalize_str(chr(c) + r) != chr(c) + r]
    above = [k for k, r in REPRESENTATIVES.items() if nfd.normalize_str(r + chr(c)) != r + chr(c)]
    known = unicodedata.combining(chr(c))
    if max(below, default=0) < known < min(above, default=256):
        return known
    raise SystemExit("U+%04X: class unclear" % c)


def is_ordered(c):
    if strip.normalize_str(chr(c)) != chr(c) or clean.normalize_str(chr(c)) != chr(c):
        return False
    first, second = chr(c) + OVERLINE, "a" + IOTA + chr(c)
    return nfd.normalize_str(first) != first or nfd.normalize_str(second) != second


print("/* Made by tests/interop/tokenizers/wordpiece_tables.py from tokenizers %s: do not edit." % tokenizers.__version__)
print(" * Ranges of characters, both ends included. */")
print('#include "data/tokenizer/wordpiece/wordpiece_impl.h"\n')
print("/* clang-format off */\n")
table("dropped", "Removed by cleaning: control, format and private use characters, U+0000, U+FFFD.",
      [c for c in CHARACTERS if clean.normalize_str(chr(c)) == ""])
table("spaces", "What separates words.",
      [c for c in CHARACTERS if splits(c) == ["a", "a"]])
table("punctuation", "What is a word by itself.",
      [c for c in CHARACTERS if splits(c) == ["a", chr(c), "a"]])
table("accents", "Removed with accents: marks without a width of their own.",
      [c for c in CHARACTERS if strip.normalize_str(chr(c)) == ""])
ordered = [c for c in CHARACTERS if is_ordered(c)]
classes = {c: combining_class(c) for c in ordered}
rows = []
for c in ordered:
    if rows and rows[-1][1] == c - 1 and rows[-1][2] == classes[c]:
        rows[-1][1] = c
    else:
        rows.append([c, c, classes[c]])
print("/* Marks that stay when accents go, and their combining classes. */")
print("const struct wp_mark wp_marks[] = {")
for i in range(0, len(rows), 3):
    print("    " + " ".join("{0x%X, 0x%X, %d}," % tuple(r) for r in rows[i : i + 3]))
print("};\nconst size_t wp_n_marks = CZ_ARRAY_LEN(wp_marks);")
