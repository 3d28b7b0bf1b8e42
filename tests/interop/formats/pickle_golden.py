#!/usr/bin/env python3
"""Make the pickles in fixtures/formats/pickle: what torch.save writes for values that are none of
DeepSpeed's usual ones, and three data.pkl of DeepSpeed's own checkpoints.

    $(scripts/peers.sh) tests/interop/formats/pickle_golden.py && tests/fixtures/pack.sh formats"""

import collections
import pathlib
import sys
import io
import zipfile

import numpy
import torch

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from fixtures import FIXTURES

OUT = FIXTURES / "formats" / "pickle"
REAL = {
    "model_s2_fp16": "s2-fp16-dynscale/ckpt/global_step20/mp_rank_00_model_states.pt",
    "optim_s2_fp16": "s2-fp16-dynscale/ckpt/global_step20/zero_pp_rank_0_mp_rank_00_optim_states.pt",
    "optim_s3_bf16": "s3-bf16-dp3-frozen/ckpt/global_step10/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
}


def numbers():
    """In each list the same number again and again."""
    return {
        "1.5": [numpy.float64(1.5), numpy.float32(1.5), numpy.float16(1.5), numpy.array(1.5, ">f8")[()]],
        "-3": [numpy.int8(-3), numpy.int16(-3), numpy.int32(-3), numpy.int64(-3), numpy.float32(-3)],
        "200": [numpy.uint8(200), numpy.uint16(200), numpy.uint32(200), numpy.uint64(200)],
        "1": [numpy.bool_(True), numpy.int64(1), numpy.array(1, ">i4")[()]],
        "18446744073709551615": [numpy.uint64(2**64 - 1)],
        "none of them": [numpy.complex64(1), numpy.str_("1"), numpy.array([1.0]), numpy.datetime64(1, "s")],
    }


def parameters():
    weight = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))
    frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    tagged = torch.nn.Parameter(torch.zeros(3))
    tagged.ds_id = "7"
    plain = torch.arange(4.0)
    plain.ds_id = "0_27"
    needs = torch.ones(1, requires_grad=True)
    return {"weight": weight, "frozen": frozen, "tagged": tagged, "plain": plain, "needs": needs}


def version3():
    bytes_ = torch.arange(12, dtype=torch.uint8)
    names = ("float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64")
    out = {name: bytes_.to(torch.float32).to(getattr(torch, name)) for name in names}
    out["view"] = out["uint16"].reshape(3, 4)[1:, ::2]
    return out


def containers():
    shared = [1, 2]
    return {
        "set": {1},
        "frozenset": frozenset({2}),
        "bytes": b"\x00\x7f\x80\xff",
        "no bytes": b"",
        "size": torch.Size([2, 3]),
        "no size": torch.Size([]),
        "dtype": torch.bfloat16,
        "device": torch.device("cuda", 3),
        "ordered": collections.OrderedDict(a=1),
        "default": collections.defaultdict(list, {"k": [1]}),
        "counter": collections.Counter("aab"),
        "deque": collections.deque([1, 2], 5),
        "twice": (shared, shared),
        "large": 2**70,
        "text": "h\u00e9\0\U0001f600",
        "surrogate": "\ud800",
    }


def batches():
    return {
        "lists": [list(range(n)) for n in (0, 1, 2, 999, 1000, 1001, 2001)],
        "dicts": [{i: None for i in range(n)} for n in (0, 1, 2, 1000, 1001)],
        "ordered": [collections.OrderedDict.fromkeys(range(n)) for n in (0, 1, 1000, 1001)],
    }


def data_pkl(source):
    with zipfile.ZipFile(source) as z:
        name = next(n for n in z.namelist() if n.endswith("/data.pkl"))
        return z.read(name)


def saved(value):
    file = io.BytesIO()
    torch.save(value, file)
    return data_pkl(file)


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    made = (numbers, parameters, version3, containers, batches)
    pickles = {make.__name__: saved(make()) for make in made}
    pickles |= {name: data_pkl(FIXTURES / "runs" / path) for name, path in REAL.items()}
    for name, data in pickles.items():
        (OUT / f"{name}.pkl").write_bytes(data)
        print(f"{name}.pkl", len(data))


if __name__ == "__main__":
    main()
