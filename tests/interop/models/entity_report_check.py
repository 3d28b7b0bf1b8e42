#!/usr/bin/env python3
"""Entities and their report beside seqeval's (default mode) on the same tags.

  entity_report_check.py build/libczero_internal.so [--count N]   random tags, every figure and line
  entity_report_check.py --make                         tests/fixtures/entity_report/*.txt again

Random tags are IOB2, IOB1, IOE, IOBES, or without any order, with types that have dashes and other letters. Figures agree
to 1e-15, reports to the byte. A golden file holds: the digits, a line per sentence (its tags, a tab, the predicted ones),
an empty line, then what seqeval prints.
"""
import argparse
import ctypes
import pathlib
import random
import warnings

from seqeval.metrics import classification_report

warnings.filterwarnings("ignore")
DATA = pathlib.Path(__file__).resolve().parents[2] / "fixtures" / "entity_report"


class Figures(ctypes.Structure):
    _fields_ = [(name, ctypes.c_double) for name in ("precision", "recall", "f1", "support")]


class Summary(ctypes.Structure):
    _fields_ = [("micro", Figures), ("macro", Figures), ("weighted", Figures)]


class Counts(ctypes.Structure):
    _fields_ = [(name, ctypes.c_double) for name in ("there", "found", "right")]


def load(path):
    lib, pointer = ctypes.CDLL(path), ctypes.c_void_p
    lib.entity_scheme_create.argtypes = [ctypes.POINTER(ctypes.c_char_p), ctypes.c_size_t, ctypes.POINTER(pointer)]
    lib.entity_scheme_destroy.argtypes = [pointer]
    lib.entity_scheme_n_types.argtypes = [pointer]
    lib.entity_scheme_n_types.restype = ctypes.c_size_t
    lib.entity_scheme_type.argtypes = [pointer, ctypes.c_size_t]
    lib.entity_scheme_type.restype = ctypes.c_char_p
    lib.entity_count.argtypes = [pointer, pointer, pointer, ctypes.c_size_t, pointer]
    lib.entity_report_compute.argtypes = [pointer, ctypes.c_size_t, ctypes.POINTER(Figures)]
    lib.entity_report_compute.restype = Summary
    lib.entity_report_print.argtypes = [pointer, pointer, pointer, ctypes.c_int]
    return lib


def printed(lib, scheme, counts, digits):
    libc = ctypes.CDLL(None)
    libc.tmpfile.restype = ctypes.c_void_p
    for call in (libc.rewind, libc.fclose):
        call.argtypes = [ctypes.c_void_p]
    libc.fread.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p]
    stream = libc.tmpfile()
    assert lib.entity_report_print(stream, scheme, counts, digits) == 0
    libc.rewind(stream)
    buffer = ctypes.create_string_buffer(1 << 20)
    n = libc.fread(buffer, 1, 1 << 20, stream)
    libc.fclose(stream)
    return buffer.raw[:n].decode()


def draw_tags(rng, n, kinds, types):
    """Mostly words outside, and runs of one type."""
    tags, kind = [], "O"
    for _ in range(n):
        if rng.random() < .5:
            kind = rng.choice(types)
        tags.append("O" if rng.random() < .4 else f"{rng.choice(kinds)}-{kind}")
    return tags


def random_case(rng):
    kinds = rng.choice(["BI", "I", "IE", "BIES", "BI"])  # other letters: docs/classification.md
    types = rng.sample(["LOC", "PER", "ORG", "B-2", "a-b", "\u00e9", "MISC", "I", "x"], rng.randint(1, 6))
    labels = [draw_tags(rng, rng.randint(1, 12), kinds, types) for _ in range(rng.choice([1, 3, 30]))]
    hit = rng.random()
    guesses = [[y if rng.random() < hit else rng.choice(draw_tags(rng, 1, kinds, types)) for y in row] for row in labels]
    labels[0][0] = f"B-{types[0]}"  # seqeval has no report of nothing
    return labels, guesses


def check(lib, rng):
    labels, guesses = random_case(rng)
    digits = rng.randint(2, 6)
    names = sorted({tag for row in labels + guesses for tag in row})
    scheme = ctypes.c_void_p()
    assert lib.entity_scheme_create((ctypes.c_char_p * len(names))(*[n.encode() for n in names]), len(names),
                                    ctypes.byref(scheme)) == 0
    n_types = lib.entity_scheme_n_types(scheme)
    counts, figures = (Counts * n_types)(), (Figures * n_types)()
    for row, guess in zip(labels, guesses):
        classes = [(ctypes.c_int32 * len(row))(*[names.index(tag) for tag in tags]) for tags in (row, guess)]
        assert lib.entity_count(scheme, *classes, len(row), counts) == 0
    summary = lib.entity_report_compute(counts, n_types, figures)
    want = classification_report(labels, guesses, output_dict=True, zero_division=0)
    mine = {lib.entity_scheme_type(scheme, i).decode(): figures[i] for i in range(n_types)
            if counts[i].there + counts[i].found}
    mine |= {"micro avg": summary.micro, "macro avg": summary.macro, "weighted avg": summary.weighted}
    assert mine.keys() == want.keys(), (mine.keys(), want)
    for name, theirs in want.items():
        ours = mine[name]
        for a, b in zip((ours.precision, ours.recall, ours.f1, ours.support), theirs.values()):
            assert abs(a - b) <= 1e-15 * max(abs(b), 1), (name, a, b, labels, guesses)
    text, theirs = printed(lib, scheme, counts, digits), classification_report(labels, guesses, digits=digits,
                                                                               zero_division=0)
    assert text == theirs, f"ours:\n{text}\nseqeval:\n{theirs}"
    lib.entity_scheme_destroy(scheme)


def make():
    DATA.mkdir(parents=True, exist_ok=True)
    for name, kinds, digits in ("iob2", "BI", 4), ("iob1", "I", 2), ("iobes", "BIES", 6):
        rng = random.Random(name)
        types = ["LOC", "PER", "ORG", "long-type name"]
        labels = [[tag.replace(" ", "_") for tag in draw_tags(rng, rng.randint(1, 9), kinds, types)] for _ in range(12)]
        guesses = [[y if rng.random() < .7 else rng.choice(["O", "I-LOC", "B-PER"]) for y in row] for row in labels]
        rows = [" ".join(a) + "\t" + " ".join(b) for a, b in zip(labels, guesses)]
        text = classification_report(labels, guesses, digits=digits, zero_division=0)
        (DATA / f"{name}.txt").write_text("\n".join([str(digits), *rows, "", ""]) + text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", nargs="?")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--make", action="store_true")
    args = parser.parse_args()
    if args.make:
        make()
    if args.library:
        lib = load(args.library)
        for seed in range(args.count):
            check(lib, random.Random(seed))
        print(f"{args.count} reports are seqeval's")


if __name__ == "__main__":
    main()
