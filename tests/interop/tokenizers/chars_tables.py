"""Write data/tokenizer/chars_tables.c: where Hugging Face's tokenizers (its Rust library) know another Unicode than
utf8proc 2.8, asked character by character. Its patterns know a newer one, its normalizers an older one.

    $(scripts/peers.sh) tests/interop/tokenizers/chars_tables.py > data/tokenizer/chars_tables.c
"""
import ctypes

import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

CHARACTERS = [c for c in range(0x80, 0x110000) if not 0xD800 <= c < 0xE000]
CLASSES = {"UPPER": r"[\p{Lu}\p{Lt}]", "LOWER": r"\p{Ll}", "LETTER": r"[\p{Lm}\p{Lo}]", "NUMBER": r"\p{N}", "MARK": r"\p{M}", "OTHER": r"[\p{P}\p{S}]"}

utf8proc = ctypes.CDLL("libutf8proc.so.2")
utf8proc.utf8proc_NFKD.restype = ctypes.c_void_p
libc = ctypes.CDLL(None)
libc.free.argtypes = [ctypes.c_void_p]


def matched(step):
    """Characters that a pre-tokenizer leaves."""
    out = set()
    for i in range(0, len(CHARACTERS), 4096):
        for piece, _ in step.pre_tokenize_str("".join(map(chr, CHARACTERS[i : i + 4096]))):
            out.update(map(ord, piece))
    return out


def is_unassigned(c):
    return utf8proc.utf8proc_category(ctypes.c_int32(c)) == 0


def decomposed(c):
    text = utf8proc.utf8proc_NFKD(chr(c).encode())
    out = ctypes.string_at(text).decode()
    libc.free(text)
    return out


def ranges(value_of):
    """Runs of equal values, without None."""
    out = []
    for c in CHARACTERS:
        value = value_of(c)
        if value is None:
            continue
        if out and out[-1][1] == c - 1 and out[-1][2] == value:
            out[-1][1] = c
        else:
            out.append([c, c, value])
    return out


def rows(items, width=100):
    line = "   "
    for item in items:
        if len(line) + len(item) + 2 > width:
            print(line)
            line = "   "
        line += f" {item},"
    print(line)


classes = {}
for name, pattern in CLASSES.items():
    for c in matched(pre_tokenizers.Split(Regex(pattern), "removed", invert=True)):
        classes[c] = name
marks = {c for c, name in classes.items() if name == "MARK"}
stripped, nfkd = normalizers.StripAccents(), normalizers.NFKD()

print("/* Made by tests/interop/tokenizers/chars_tables.py from tokenizers %s: do not edit. */" % tokenizers.__version__)
print('#include "data/tokenizer/chars_impl.h"\n')
print("/* clang-format off */\n")
print("/* Characters that the library's patterns know and utf8proc 2.8 does not. OTHER: punctuation and")
print(" * symbols; all others are of \\w. */")
print("const struct chars_range chars_newer[] = {")
rows("{0x%X, 0x%X, CHAR_%s}" % tuple(row) for row in ranges(lambda c: classes.get(c) if is_unassigned(c) else None))
print("};\nconst size_t chars_n_newer = CZ_ARRAY_LEN(chars_newer);\n")
print("/* Marks and characters with a decomposition that the library's normalizers do not know. */")
print("const struct chars_range chars_unknown[] = {")


def is_unknown(c):
    if is_unassigned(c) and c not in marks:
        return None
    is_mark = c in marks or utf8proc.utf8proc_category(ctypes.c_int32(c)) in (6, 7, 8)
    kept = stripped.normalize_str(chr(c)) == chr(c) and nfkd.normalize_str(chr(c)) == chr(c)
    return True if kept and (is_mark or decomposed(c) != chr(c)) else None


rows("{0x%X, 0x%X, 0}" % (a, b) for a, b, _ in ranges(is_unknown))
print("};\nconst size_t chars_n_unknown = CZ_ARRAY_LEN(chars_unknown);")
