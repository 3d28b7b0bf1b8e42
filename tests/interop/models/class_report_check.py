#!/usr/bin/env python3
"""Classification reports beside scikit-learn's on the same predictions.

  class_report_check.py build/libczero_internal.so [--count N]   random predictions, every figure and line
  class_report_check.py --make                          tests/fixtures/class_report/*.txt again

Random cases have classes that never occur, that are never predicted, or one class alone. Figures
agree to 1e-15, reports with ASCII names to the byte. A golden file holds: "n digits", a name per
line, the matrix, then what scikit-learn prints.
"""
import argparse
import ctypes
import pathlib
import random
import re
import warnings

import numpy as np
from sklearn.metrics import (classification_report, confusion_matrix,
                             precision_recall_fscore_support)

warnings.filterwarnings("ignore", "A single label was found")
DATA = pathlib.Path(__file__).resolve().parents[2] / "fixtures" / "class_report"


class Figures(ctypes.Structure):
    _fields_ = [(name, ctypes.c_double) for name in ("precision", "recall", "f1", "support")]

    def values(self):
        return [self.precision, self.recall, self.f1]


class Summary(ctypes.Structure):
    _fields_ = [("accuracy", ctypes.c_double), ("macro", Figures), ("weighted", Figures),
                ("n_examples", ctypes.c_double)]


def load(path):
    lib = ctypes.CDLL(path)
    doubles = ctypes.POINTER(ctypes.c_double)
    lib.class_report_compute.restype = Summary
    lib.class_report_compute.argtypes = [doubles, ctypes.c_size_t, ctypes.POINTER(Figures)]
    lib.class_report_print.argtypes = [ctypes.c_void_p, doubles, ctypes.c_size_t,
                                       ctypes.POINTER(ctypes.c_char_p), ctypes.c_int, ctypes.c_bool]
    return lib


def as_doubles(matrix):
    flat = matrix.astype(float).ravel()
    return (ctypes.c_double * len(flat))(*flat)


def ours_text(lib, matrix, names, digits):
    libc = ctypes.CDLL(None)
    libc.tmpfile.restype = ctypes.c_void_p
    for call in (libc.rewind, libc.fclose):
        call.argtypes = [ctypes.c_void_p]
    libc.fread.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p]
    stream = libc.tmpfile()
    c_names = (ctypes.c_char_p * len(names))(*[n.encode() for n in names])
    status = lib.class_report_print(stream, as_doubles(matrix), len(names), c_names, digits, False)
    assert status == 0, status
    libc.rewind(stream)
    buffer = ctypes.create_string_buffer(1 << 20)
    n = libc.fread(buffer, 1, 1 << 20, stream)
    libc.fclose(stream)
    return buffer.raw[:n].decode()


def random_case(rng):
    """(labels, predictions, number of classes); some classes are never labels, or never predicted."""
    n = rng.choice([1, 2, 2, 3, 6, 17, 40, 300])
    truth = rng.sample(range(n), rng.randint(1, n))
    guess = rng.sample(range(n), rng.randint(1, n))
    count = rng.choice([1, 2, 5, 50, 1000])
    labels = [rng.choice(truth) for _ in range(count)]
    hit = rng.random()
    return labels, [y if rng.random() < hit else rng.choice(guess) for y in labels], n


def theirs_text(labels, predictions, names, digits):
    present = sorted(set(labels) | set(predictions))
    text = classification_report(labels, predictions, labels=present, digits=digits,
                                 target_names=[names[k] for k in present], zero_division=0)
    # Without a single hit scikit-learn counts in floats, and shows it.
    return re.sub(r"(\d+)\.0$", r"  \1", text, flags=re.M)


def check(lib, rng):
    labels, predictions, n = random_case(rng)
    matrix = confusion_matrix(labels, predictions, labels=list(range(n)))
    figures = (Figures * n)()
    summary = lib.class_report_compute(as_doubles(matrix), n, figures)
    theirs = precision_recall_fscore_support(labels, predictions, labels=list(range(n)),
                                             zero_division=0)
    ours = np.array([f.values() + [f.support] for f in figures]).T
    assert np.allclose(ours, theirs, rtol=1e-15, atol=0), (labels, predictions)
    for average, mine in (("macro", summary.macro), ("weighted", summary.weighted)):
        want = precision_recall_fscore_support(labels, predictions, average=average,
                                               zero_division=0)[:3]
        assert np.allclose(mine.values(), want, rtol=1e-15, atol=0), (average, labels, predictions)
    assert summary.accuracy == np.mean(np.equal(labels, predictions))
    names = ["x" * rng.randint(1, 30) + str(k) for k in range(n)]
    digits = rng.randint(2, 6)
    text = ours_text(lib, matrix, names, digits).split("\nneither")[0]
    want = theirs_text(labels, predictions, names, digits)
    assert text == want, f"ours:\n{text}\nscikit-learn:\n{want}"


GOLDENS = {  # name: (seed, classes that are labels, classes that are predicted, names, examples, digits)
    "six": (1, range(6), range(6), ["none", "like", "sad", "disgust", "anger", "happy"], 400, 4),
    "never_predicted": (2, range(3), [0, 1], ["neg", "neutral", "pos"], 30, 2),
    "absent": (3, [0, 2], [0, 3], ["a", "absent", "only labelled", "only predicted"], 50, 2),
    "one_class": (4, [0], [0], ["all there is"], 7, 3),
}


def make():
    DATA.mkdir(parents=True, exist_ok=True)
    for name, (seed, truth, guess, names, count, digits) in GOLDENS.items():
        rng = random.Random(seed)
        labels = [rng.choice(list(truth)) for _ in range(count)]
        predictions = [y if y in guess and rng.random() < .6 else rng.choice(list(guess))
                       for y in labels]
        matrix = confusion_matrix(labels, predictions, labels=list(range(len(names))))
        lines = [f"{len(names)} {digits}", *names, *(" ".join(map(str, row)) for row in matrix)]
        text = theirs_text(labels, predictions, names, digits)
        (DATA / f"{name}.txt").write_text("\n".join(lines) + "\n" + text)
        print(f"{name}\n{text}")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", nargs="?")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--make", action="store_true")
    args = parser.parse_args()
    if args.make:
        make()
    if args.library:
        lib, rng = load(args.library), random.Random(9)
        for _ in range(args.count):
            check(lib, rng)
        print(f"{args.count} reports are scikit-learn's")


if __name__ == "__main__":
    main()
