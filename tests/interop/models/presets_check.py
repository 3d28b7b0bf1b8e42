#!/usr/bin/env python3
"""Parameters of every preset, counted by transformers and by czero.

  $(scripts/peers.sh) tests/interop/models/presets_check.py build/libczero_internal.so [NAME...]

The config.json of each preset makes a model of transformers without memory (meta tensors); its parameters must have the
names, shapes and number of czero's, tied ones counted once. Experts, which transformers joins in memory, are counted.
Exit 1 if any differs."""
import ctypes
import json
import pathlib
import sys
import tempfile

import torch
import transformers

NDIM_MAX = 4


class ParamInfo(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("name", ctypes.c_char_p), ("ndim", ctypes.c_int), ("shape", ctypes.c_int64 * NDIM_MAX),
                ("numel", ctypes.c_size_t), ("trainable", ctypes.c_bool)]  # fmt: skip


def library(path):
    lib = ctypes.CDLL(path)
    lib.model_preset_name.restype = lib.cz_last_error.restype = ctypes.c_char_p
    lib.cz_model_open.restype = ctypes.c_void_p
    lib.cz_model_n_params.restype = ctypes.c_size_t
    lib.model_preset_name.argtypes = [ctypes.c_size_t]
    for name in ("cz_model_n_params", "cz_model_destroy"):
        getattr(lib, name).argtypes = [ctypes.c_void_p]
    lib.cz_model_param.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ParamInfo)]
    lib.model_export_config.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int]
    return lib


def ours(lib, name, folder):
    """Shapes by name; config.json goes to the folder."""
    model, shapes = lib.cz_model_open(name.encode()), {}
    if not model or lib.model_export_config(model, str(folder).encode(), 0):
        raise SystemExit(f"{name}: {lib.cz_last_error().decode()}")
    for i in range(lib.cz_model_n_params(model)):
        info = ParamInfo(size=ctypes.sizeof(ParamInfo))
        assert lib.cz_model_param(model, i, ctypes.byref(info)) == 0
        shapes[info.name.decode()] = tuple(info.shape[: info.ndim])
    lib.cz_model_destroy(model)
    return shapes


def theirs(folder):
    config = transformers.AutoConfig.from_pretrained(folder)
    head = json.loads((folder / "config.json").read_text())["architectures"][0]
    with torch.device("meta"):
        model = getattr(transformers, head)(config)
    return {name: tuple(p.shape) for name, p in model.named_parameters()}


def count(shapes):
    return sum(int(torch.Size(shape).numel()) for shape in shapes.values())


def compare(lib, name):
    with tempfile.TemporaryDirectory() as work:
        a = ours(lib, name, work)
        b = theirs(pathlib.Path(work))
    names = {n for n in a.keys() | b.keys() if a.get(n) != b.get(n) and ".experts." not in n}
    same = count(a) == count(b) and not names
    print(f"{name:22}{count(a):16,}{count(b):16,}  {'' if same else 'differ: ' + ' '.join(sorted(names)[:4])}", flush=True)
    return same


def main():
    lib = library(sys.argv[1])
    every = [lib.model_preset_name(i) for i in range(1000)]
    names = sys.argv[2:] or [name.decode() for name in every if name]
    results = [compare(lib, name) for name in names]
    print(f"{sum(results)} of {len(results)} presets agree")
    sys.exit(not all(results))


if __name__ == "__main__":
    main()
