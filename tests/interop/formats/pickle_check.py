#!/usr/bin/env python3
"""czero's pickles against Python's and torch's own. czero is called through its shared library.

    $(scripts/peers.sh) tests/interop/formats/pickle_check.py [build/libczero_internal.so] [--random N] [--damaged N]

Reading: values of every kind in protocols 2 to 5, random ones, every .pt file of
the fixtures, and damaged pickles, where whatever both accept has to be the same tree.
Writing: a .pt file of every call of the writer, loaded by torch, also with weights_only."""

import argparse
import collections
import ctypes
import os
import pathlib
import pickle
import random
import resource
import struct
import sys
import tempfile
import types
import zipfile

import torch

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from fixtures import FIXTURES, ROOT

sys.path.insert(0, str(ROOT / "tests" / "fuzz"))
import seeds  # noqa: E402
from pickle_trees import TORCH_MODULE, Budget, Library, TooLarge, python_tree, theirs  # noqa: E402

# ---- checks ---------------------------------------------------------------------------------------


def difference(a, b, where="root"):
    if type(a) is not type(b) or not isinstance(a, (tuple, list)):
        return None if a == b else f"{where}: {a!r:.200} and {b!r:.200}"
    if len(a) != len(b):
        return f"{where}: {len(a)} and {len(b)} parts: {a!r:.200} and {b!r:.200}"
    for i, (x, y) in enumerate(zip(a, b)):
        found = difference(x, y, f"{where}.{i}")
        if found:
            return found
    return None


def same_globals(tree):
    """Classes that Python keeps as its own stand for themselves by name: modules do not matter."""
    if isinstance(tree, tuple) and tree and tree[0] == "global":
        return ("global", tree[2])
    if isinstance(tree, (tuple, list)):
        return type(tree)(same_globals(t) for t in tree)
    return tree


class Checks:
    def __init__(self, library):
        self.library = library
        self.n = self.n_failed = 0

    def same(self, label, mine, other):
        self.n += 1
        found = difference(same_globals(mine), same_globals(other))
        if found:
            self.n_failed += 1
            print(f"{label}: {found}")

    def parsed(self, label, data, other):
        mine, why = self.library.tree(data)
        if mine is None:
            self.n += 1
            self.n_failed += 1
            print(f"{label}: refused: {why}")
        else:
            self.same(label, mine, other)


def random_value(rng, depth, made):
    kind = rng.randrange(16 if depth else 9)
    if made and kind == 0:
        return rng.choice(made)
    simple = [None, True, rng.randrange(-(2**70), 2**70), rng.randrange(-300, 70000), rng.random() * 10.0 ** rng.randrange(-300, 300)]
    if kind < 6:
        return rng.choice(simple)
    if kind < 8:
        return "".join(chr(rng.choice((65, 233, 0x20AC, 0x1F600, 0))) for _ in range(rng.randrange(300 if kind == 7 else 5)))
    if kind == 8:
        return rng.randbytes(rng.randrange(300))
    n = rng.choice((0, 1, 2, 3, 4, 7, 30))
    values = [random_value(rng, depth - 1, made) for _ in range(n)]
    keys = [rng.choice((rng.randrange(50), f"k{i}", (i, "x"), float(i), b"k")) for i in range(n)]
    made_now = {
        9: lambda: values,
        10: lambda: tuple(values),
        11: lambda: dict(zip(keys, values)),
        12: lambda: collections.OrderedDict(zip(keys, values)),
        13: lambda: set(keys),
        14: lambda: frozenset(keys),
        15: lambda: collections.defaultdict(list, zip(keys, values)),
    }[kind]()
    made.append(made_now)
    return made_now


def check_values(checks, n_random):
    values = list(seeds.odd_values())
    for seed in range(n_random):
        values.append(random_value(random.Random(seed), 5, []))
    for i, value in enumerate(values):
        for protocol in (2, 3, 4, 5):
            data = pickle.dumps(value, protocol)
            checks.parsed(f"value {i} in protocol {protocol}", data, python_tree(data))


def pt_files():
    for root in (FIXTURES / "formats" / "pt", FIXTURES / "runs"):
        for path in sorted(root.rglob("*.pt")):
            if path.name not in ("script.pt", "deflated.pt") and zipfile.is_zipfile(path):
                yield path


def data_pkl(path):
    """The bytes as stored in the file: no_crc.pt says nothing of their sum."""
    with zipfile.ZipFile(path) as z:
        info = next(i for i in z.infolist() if i.filename.endswith("/data.pkl") or i.filename == "data.pkl")
    with open(path, "rb") as f:
        f.seek(info.header_offset + 26)
        n_name, n_extra = struct.unpack("<HH", f.read(4))
        f.seek(n_name + n_extra, 1)
        return f.read(info.file_size)


def check_files(checks):
    n = 0
    for path in pt_files():
        other = torch.load(path, weights_only=False, pickle_module=TORCH_MODULE, map_location="cpu")
        checks.parsed(str(path), data_pkl(path), theirs(other, Budget()))
        n += 1
    print(n, ".pt files")


def damage(rng, data):
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        if len(data) < 4:
            break
        at = rng.randrange(2, len(data))
        what = rng.randrange(4)
        if what == 0:
            data[at] = rng.randrange(256)
        elif what == 1:
            del data[at : at + rng.randrange(1, 6)]
        elif what == 2:
            data[at:at] = bytes(rng.choice(b"()]}.N0125abehjqrstuKMGX\x81\x85\x86\x87\x88\x8f\x90\x93\x94R") for _ in range(rng.randrange(1, 4)))
        else:
            start = rng.randrange(2, len(data))
            data[at:at] = data[start : start + rng.randrange(1, 20)]
    return bytes(data)


def check_damaged(checks, n):
    sources = []
    for value in list(seeds.odd_values()) + [random_value(random.Random(s), 3, []) for s in range(100)]:
        for protocol in (2, 4):
            data = pickle.dumps(value, protocol)
            if len(data) < 3000:
                sources.append(data)
    counts = collections.Counter()
    why_refused = collections.Counter()
    for seed in range(n):
        rng = random.Random(seed)
        data = damage(rng, rng.choice(sources))
        try:
            other = python_tree(data)
        except TooLarge:
            continue
        except RecursionError:
            continue
        except Exception:
            other = None
        mine, why = checks.library.tree(data)
        counts["czero " + ("accepts" if mine else "refuses") + ", Python " + ("accepts" if other else "refuses")] += 1
        if mine and other:
            checks.same(f"damaged {seed}", mine, other)
        elif other:
            why_refused[" ".join(w for w in why.split(": ")[-1].split() if not any(c.isdigit() for c in w))[:60]] += 1
    for what, count in sorted(counts.items()):
        print(f"{count:7} damaged: {what}")
    for what, count in why_refused.most_common(25):
        print(f"{count:7}   only czero refuses: {what}")


# ---- writing --------------------------------------------------------------------------------------


class Desc(ctypes.Structure):
    _fields_ = [
        ("dtype", ctypes.c_int),
        ("storage_idx", ctypes.c_size_t),
        ("storage_numel", ctypes.c_uint64),
        ("off", ctypes.c_uint64),
        ("ndim", ctypes.c_int),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("requires_grad", ctypes.c_bool),
        ("ds_id", ctypes.c_char_p),
    ]


class CreateOptions(ctypes.Structure):
    _fields_ = [
        ("path", ctypes.c_char_p),
        ("archive", ctypes.c_char_p),
        ("pickle", ctypes.c_char_p),
        ("pickle_nbytes", ctypes.c_size_t),
        ("storage_nbytes", ctypes.POINTER(ctypes.c_uint64)),
        ("n_storages", ctypes.c_size_t),
    ]


class Written(ctypes.Structure):
    _fields_ = [("nbytes", ctypes.c_uint64), ("crc", ctypes.c_uint32)]


BASE_DTYPES = "float32 bfloat16 float16 float64 int64 int32 int16 int8 uint8 bool".split()


class Writer:
    def __init__(self, library):
        self.c = library.c
        self.w = ctypes.c_void_p(self.c.pickle_writer_create())
        self.storages = []

    def __getattr__(self, name):
        call = getattr(self.c, name)
        return lambda *args: call(self.w, *args)

    def text(self, value):
        self.pickle_put_string(value.encode())

    def tensor(self, t, ds_id=None, off=0, storage=None):
        if storage is None:
            storage = len(self.storages)
            self.storages.append(bytes(t.contiguous().untyped_storage()))
        numel = len(self.storages[storage]) // t.element_size()
        shape = (ctypes.c_int64 * max(1, t.dim()))(*t.shape)
        desc = Desc(BASE_DTYPES.index(str(t.dtype)[6:]), storage, numel, off, t.dim(), shape, t.requires_grad, ds_id)
        self.pickle_put_tensor(ctypes.byref(desc))

    def save(self, library, path):
        out, n = ctypes.c_char_p(), ctypes.c_size_t()
        raw = ctypes.c_void_p()
        assert self.pickle_writer_take(ctypes.byref(raw), ctypes.byref(n)) == 0, library.error()
        data = ctypes.string_at(raw, n.value)
        sizes = (ctypes.c_uint64 * max(1, len(self.storages)))(*[len(s) for s in self.storages])
        options = CreateOptions(os.fsencode(path), None, data, len(data), sizes, len(self.storages))
        pt = ctypes.c_void_p()
        assert self.c.pt_create(ctypes.byref(options), ctypes.byref(pt)) == 0, library.error()
        for i, storage in enumerate(self.storages):
            if storage:
                assert self.c.pt_write(pt, ctypes.c_size_t(i), ctypes.c_uint64(0), ctypes.c_size_t(len(storage)), storage, None) == 0
        written = Written()
        assert self.c.pt_finish(pt, ctypes.c_bool(True), ctypes.byref(written)) == 0, library.error()
        self.c.pt_writer_destroy(pt)
        del out


def equal(a, b):
    if isinstance(b, torch.Tensor):
        raw = lambda t: t.detach().contiguous().flatten().view(torch.uint8).tolist() if t.numel() else []  # noqa: E731
        return (a.dtype, a.shape, a.requires_grad, raw(a)) == (b.dtype, b.shape, b.requires_grad, raw(b))
    if isinstance(b, dict):
        return type(a) is type(b) and list(a) == list(b) and all(equal(a[k], b[k]) for k in b)
    if isinstance(b, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b))
    return type(a) is type(b) and (a == b or (a != a and b != b))


def plain_state(w):
    """Every call that torch.load(weights_only=True) takes; returns what it should give."""
    want = collections.OrderedDict()
    w.pickle_ordered_dict_begin()
    base = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4)
    for name in BASE_DTYPES:
        want[name] = base.to(getattr(torch, name))
        w.text(name)
        w.tensor(want[name])
    for name, t in {"scalar": torch.tensor(2.5), "empty": torch.zeros(0), "grad": torch.ones(3, requires_grad=True)}.items():
        want[name] = t
        w.text(name)
        w.tensor(t)
    want["slice"] = want["float32"].flatten()[5:11]
    w.text("slice")
    w.tensor(want["slice"], off=5, storage=0)
    numbers = [0, 255, 256, 65535, 65536, -1, 2**31 - 1, -(2**31), 2**31, 2**40, -(2**63), 2**63 - 1]
    want["numbers"] = numbers + [0.5, float("inf"), float("nan"), -0.0, True, False, None, "h\u00e9\U0001f600"]
    w.text("numbers")
    w.pickle_list_begin()
    for n in numbers:
        w.pickle_put_int(ctypes.c_int64(n))
    for x in (0.5, float("inf"), float("nan"), -0.0):
        w.pickle_put_double(ctypes.c_double(x))
    w.pickle_put_bool(ctypes.c_bool(True))
    w.pickle_put_bool(ctypes.c_bool(False))
    w.pickle_put_none()
    w.text("h\u00e9\U0001f600")
    w.pickle_list_end()
    for n in (0, 1, 999, 1000, 1001, 2000, 2001):
        want[f"list {n}"] = list(range(n))
        want[f"dict {n}"] = {i: str(i) for i in range(n)}
        w.text(f"list {n}")
        w.pickle_list_begin()
        for i in range(n):
            w.pickle_put_int(ctypes.c_int64(i))
        w.pickle_list_end()
        w.text(f"dict {n}")
        w.pickle_dict_begin()
        for i in range(n):
            w.pickle_put_int(ctypes.c_int64(i))
            w.text(str(i))
        w.pickle_dict_end()
    for shape in ((), (7,), (2, 3), (2, 3, 4), (1, 2, 3, 4, 5)):
        want[f"size {shape}"] = torch.Size(shape)
        w.text(f"size {shape}")
        w.pickle_put_size((ctypes.c_int64 * max(1, len(shape)))(*shape), ctypes.c_int(len(shape)))
    want["dtype"] = torch.bfloat16
    w.text("dtype")
    w.pickle_put_global(b"torch", b"bfloat16")
    want["tuple"] = ((), (1,), (1, 2, 3, 4))
    w.text("tuple")
    w.pickle_tuple_begin()
    for t in want["tuple"]:
        w.pickle_tuple_begin()
        for i in t:
            w.pickle_put_int(ctypes.c_int64(i))
        w.pickle_tuple_end()
    w.pickle_tuple_end()
    w.pickle_dict_end()
    w.pickle_state_begin()
    w.text("_metadata")
    w.pickle_dict_begin()
    w.pickle_dict_end()
    w.pickle_state_end()
    return want


def check_writer(checks, folder):
    library = checks.library
    path = folder / "plain.pt"
    w = Writer(library)
    want = plain_state(w)
    w.save(library, path)
    for weights_only in (True, False):
        got = torch.load(path, weights_only=weights_only)
        checks.same(f"written, weights_only={weights_only}", ("equal", equal(got, want)), ("equal", True))
        checks.same("_metadata", got._metadata, {})
        shared = got["slice"].untyped_storage().data_ptr() == got["float32"].untyped_storage().data_ptr()
        checks.same("one storage, two tensors", ("shared", shared), ("shared", True))
    with zipfile.ZipFile(path) as z:
        checks.same("zipfile", z.testzip(), None)
    path = folder / "classes.pt"
    w = Writer(library)
    w.pickle_dict_begin()
    w.text("flat")
    w.tensor(torch.arange(4.0), ds_id=b"0_27")
    w.text("device")
    w.pickle_call_begin(b"torch", b"device")
    w.text("cuda")
    w.pickle_put_int(ctypes.c_int64(3))
    w.pickle_call_end()
    w.text("new")
    w.pickle_put_new(b"types", b"SimpleNamespace")
    w.pickle_state_begin()
    w.text("numel")
    w.pickle_put_int(ctypes.c_int64(5))
    w.pickle_state_end()
    w.pickle_dict_end()
    w.save(library, path)
    got = torch.load(path, weights_only=False)
    checks.same("ds_id", got["flat"].ds_id, "0_27")
    checks.same("device", got["device"], torch.device("cuda", 3))
    checks.same("new", got["new"], types.SimpleNamespace(numel=5))


def check_carried(checks):
    """Trees that are parsed, written again and loaded by Python."""
    take = checks.library.c
    values = list(seeds.odd_values()) + [random_value(random.Random(s), 4, []) for s in range(200)]
    for i, value in enumerate(values):
        data = pickle.dumps(value, 4)
        parsed, raw, n = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t()
        assert take.pickle_parse(data, len(data), b"in", ctypes.byref(parsed)) == 0, checks.library.error()
        w = ctypes.c_void_p(take.pickle_writer_create())
        take.pickle_put_node(w, take.pickle_root(parsed))
        assert take.pickle_writer_take(w, ctypes.byref(raw), ctypes.byref(n)) == 0, checks.library.error()
        again = ctypes.string_at(raw, n.value)
        take.pickle_writer_destroy(w)
        take.pickle_free(parsed)
        checks.same(f"value {i} carried", python_tree(again), python_tree(data))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library", nargs="?", default=ROOT / "build" / "libczero_internal.so")
    parser.add_argument("--random", type=int, default=300)
    parser.add_argument("--damaged", type=int, default=20000)
    args = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    checks = Checks(Library(pathlib.Path(args.library).resolve()))
    check_values(checks, args.random)
    check_files(checks)
    check_damaged(checks, args.damaged)
    check_carried(checks)
    with tempfile.TemporaryDirectory() as folder:
        check_writer(checks, pathlib.Path(folder))
    print(f"{checks.n} comparisons, {checks.n_failed} differences")
    sys.exit(1 if checks.n_failed or checks.n == 0 else 0)


if __name__ == "__main__":
    main()
