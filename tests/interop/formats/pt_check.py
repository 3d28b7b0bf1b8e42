#!/usr/bin/env python3
"""Our .pt files read by torch and zipfile, torch's read by us.

    $(scripts/peers.sh) tests/interop/formats/pt_check.py build/libczero_internal.so [--count N] [--large DIR]

Writes N random files (default 200) through the library and compares every tensor that torch.load
gives (restricted, and mapped), checks every CRC with zipfile and every computed offset with torch's
own; saves N random objects with torch.save and reads each tensor back through the library. --large:
also a file of 4.5 GiB in DIR, whole."""

import argparse
import ctypes as c
import io
import os
import random
import sys
import tempfile
import zipfile

os.environ["TORCH_SERIALIZATION_DEBUG"] = "1"  # torch compares computed offsets with read ones
import torch

U64, SIZE, I64, P = c.c_uint64, c.c_size_t, c.c_int64, c.c_void_p
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32,
          torch.int16, torch.int8, torch.uint8, torch.bool]  # in the order of base/dtype.h


class CreateOptions(c.Structure):
    _fields_ = [("path", c.c_char_p), ("archive", c.c_char_p), ("pickle", P), ("pickle_nbytes", SIZE),
                ("storage_nbytes", c.POINTER(U64)), ("n_storages", SIZE)]


class TensorDesc(c.Structure):
    _fields_ = [("dtype", c.c_int), ("storage_idx", SIZE), ("storage_numel", U64), ("off", U64),
                ("ndim", c.c_int), ("shape", c.POINTER(I64)), ("requires_grad", c.c_bool),
                ("ds_id", c.c_char_p)]


class Written(c.Structure):
    _fields_ = [("nbytes", U64), ("crc", c.c_uint32)]


class Dtype(c.Structure):
    _fields_ = [("torch_name", c.c_char_p), ("size", SIZE), ("has_base", c.c_bool), ("base", c.c_int)]


class Tensor(c.Structure):
    _fields_ = [("dtype", c.POINTER(Dtype)), ("key", c.c_char_p), ("storage_nbytes", U64), ("off", U64),
                ("numel", U64), ("ndim", c.c_int), ("shape", c.POINTER(I64)), ("stride", c.POINTER(I64))]


class Node(c.Structure):
    _fields_ = [("kind", c.c_int), ("boolean", c.c_bool), ("integer", I64), ("real", c.c_double),
                ("text", P), ("n", SIZE), ("module", c.c_char_p), ("name", c.c_char_p), ("items", P),
                ("pairs", P), ("n_pairs", SIZE), ("args", P), ("state", P), ("tensor", c.POINTER(Tensor))]


def load_library(path):
    lib = c.CDLL(os.path.abspath(path))
    lib.cz_last_error.restype = c.c_char_p
    for name in ("pickle_writer_create", "pickle_get", "pt_root"):
        getattr(lib, name).restype = P
    lib.crc32_update.restype = c.c_uint32
    return lib


def check(lib, status):
    if status != 0:
        sys.exit(f"status {status}: {lib.cz_last_error().decode()}")


def random_tensor(rng, nbytes_max=300000):
    dtype = rng.choice(DTYPES)
    shape = [rng.randrange(0, 9) for _ in range(rng.randrange(0, 5))]
    if rng.random() < 0.2:
        shape = [rng.randrange(0, nbytes_max)]
    data = torch.randint(0, 256, (int(torch.Size(shape).numel()) * dtype.itemsize,), dtype=torch.uint8)
    if dtype is torch.bool:
        data &= 1
    return data.view(dtype).reshape(shape) if data.numel() else torch.empty(shape, dtype=dtype)


def write_file(lib, path, tensors):
    """tensors: name → tensor; gives what the writer says of the file."""
    w = P(lib.pickle_writer_create())
    lib.pickle_dict_begin(w)
    for i, (name, t) in enumerate(tensors.items()):
        shape = (I64 * max(t.ndim, 1))(*t.shape)
        desc = TensorDesc(DTYPES.index(t.dtype), i, t.numel(), 0, t.ndim, shape, False, None)
        lib.pickle_put_string(w, name.encode())
        lib.pickle_put_tensor(w, c.byref(desc))
    lib.pickle_dict_end(w)
    text, n = P(), SIZE()
    check(lib, lib.pickle_writer_take(w, c.byref(text), c.byref(n)))
    lib.pickle_writer_destroy(w)
    sizes = (U64 * max(len(tensors), 1))(*[t.nbytes for t in tensors.values()])
    options = CreateOptions(path.encode(), None, text, n, sizes, len(tensors))
    pt, written = P(), Written()
    check(lib, lib.pt_create(c.byref(options), c.byref(pt)))
    for i, t in reversed(list(enumerate(tensors.values()))):
        step = max(1, t.nbytes // 3)
        for off in range(0, t.nbytes, step):
            n_now = min(step, t.nbytes - off)
            check(lib, lib.pt_write(pt, SIZE(i), U64(off), SIZE(n_now), P(t.data_ptr() + off), None))
    check(lib, lib.pt_finish(pt, c.c_bool(True), c.byref(written)))
    lib.pt_writer_destroy(pt)
    c.CDLL(None).free(text)
    return written


def same(a, b):
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    flat = [torch.empty(x.numel(), dtype=x.dtype).copy_(x.flatten()) for x in (a, b)]
    return torch.equal(flat[0].view(torch.uint8), flat[1].view(torch.uint8))


def expect(condition, what):
    if not condition:
        sys.exit(f"FAILED: {what}")


def check_offsets(path):
    """torch can compute where payloads are instead of reading headers: both must agree."""
    from torch.utils.serialization import config
    config.load.calculate_storage_offsets = True
    try:
        return torch.load(path, mmap=True, weights_only=True)
    finally:
        config.load.calculate_storage_offsets = False


def ours_by_torch(lib, rng, path):
    tensors = {f"t{i}": random_tensor(rng) for i in range(rng.randrange(0, 30))}
    written = write_file(lib, path, tensors)
    data = open(path, "rb").read()
    expect(written.nbytes == len(data), f"{path}: length")
    expect(written.crc == lib.crc32_update(0, data, SIZE(len(data))), f"{path}: checksum")
    with zipfile.ZipFile(path) as z:
        expect(z.testzip() is None, f"{path}: zipfile finds a bad record")
        if "t0" in tensors:
            stem = os.path.basename(path).rsplit(".", 1)[0]
            expect(z.getinfo(f"{stem}/data/0").file_size == tensors["t0"].nbytes, f"{path}: size")
    for got in (torch.load(path, weights_only=True), torch.load(path, mmap=True, weights_only=True),
                torch.load(io.BytesIO(data), weights_only=True), check_offsets(path)):
        expect(list(got) == list(tensors), f"{path}: names")
        for name, t in tensors.items():
            expect(same(got[name], t), f"{path}: {name}")


def random_view(rng, t):
    for _ in range(rng.randrange(0, 4)):
        if t.ndim == 0:
            break
        d = rng.randrange(t.ndim)
        n = t.shape[d]
        how = rng.randrange(5)
        if how == 0 and n > 0:
            begin = rng.randrange(n)
            t = t.narrow(d, begin, rng.randrange(1, n - begin + 1))
        elif how == 1:
            t = t.transpose(d, rng.randrange(t.ndim))
        elif how == 2 and n > 0:
            t = t[(slice(None),) * d + (slice(rng.randrange(n), None, rng.randrange(1, 4)),)]
        elif how == 3 and n > 0:
            t = t.select(d, rng.randrange(n))
        elif how == 4:
            t = t.unsqueeze(0).expand(rng.randrange(1, 4), *t.shape)
    return t


def torchs_by_us(lib, rng, path):
    views = {f"v{i}": random_view(rng, random_tensor(rng, 2_000_000)) for i in range(rng.randrange(1, 20))}
    torch.save(views, path)
    pt = P()
    check(lib, lib.pt_open(path.encode(), c.byref(pt)))
    check(lib, lib.pt_verify(pt, None, None))
    root = P(lib.pt_root(pt))
    for name, want in views.items():
        t = c.cast(P(lib.pickle_get(root, name.encode())), c.POINTER(Node)).contents.tensor
        expect(t.contents.numel == want.numel(), f"{path}: {name}: numel")
        begin = rng.randrange(want.numel() + 1)
        n = rng.randrange(want.numel() - begin + 1)
        for off, count in ((0, want.numel()), (begin, n)):
            got = torch.empty(count, dtype=want.dtype)
            check(lib, lib.pt_read(pt, t, U64(off), SIZE(count), P(got.data_ptr())))
            expect(same(got, want.flatten()[off:off + count]), f"{path}: {name}: {off}, {count}")
    lib.pt_close(pt)


def large(lib, folder):
    path = os.path.join(folder, "large.pt")
    tensors = {"before": torch.arange(10), "large": torch.zeros(9 << 29, dtype=torch.uint8),
               "after": torch.arange(5.0), "empty": torch.empty(0)}
    tensors["large"][-3:] = 7
    write_file(lib, path, tensors)
    with zipfile.ZipFile(path) as z:
        expect(z.testzip() is None, f"{path}: zipfile finds a bad record")
    for got in (torch.load(path, mmap=True, weights_only=True), check_offsets(path)):
        for name, t in tensors.items():
            expect(same(got[name], t), f"{path}: {name}")
    os.unlink(path)
    print("large: good")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--large", metavar="DIR")
    args = parser.parse_args()
    lib = load_library(args.library)
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(args.seed, args.seed + args.count):
            rng = random.Random(seed)
            torch.manual_seed(seed)
            ours_by_torch(lib, rng, os.path.join(folder, f"ours{seed}.pt"))
            torchs_by_us(lib, rng, os.path.join(folder, f"torchs{seed}.pt"))
            for name in os.listdir(folder):
                os.unlink(os.path.join(folder, name))
    print(f"{args.count} files of ours and {args.count} of torch's: every tensor equal")
    if args.large:
        large(lib, args.large)


if __name__ == "__main__":
    main()
