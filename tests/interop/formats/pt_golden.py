#!/usr/bin/env python3
"""Make the .pt files in fixtures/formats/pt: what torch.save and other writers of zips produce.

    $(scripts/peers.sh) tests/interop/formats/pt_golden.py

Where a file holds a tensor X and X.want, the second has the same elements in a plain layout; X.f32
has them as fp32."""

import io
import pathlib
import sys
import os
import shutil
import tarfile
import zipfile

import torch

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from fixtures import FIXTURES

OUT = FIXTURES / "formats" / "pt"


def strides():
    base = torch.arange(2 * 3 * 4 * 5, dtype=torch.float32).reshape(2, 3, 4, 5)
    views = {
        "plain": base,
        "transposed": base[0, 0].t(),
        "permuted": base.permute(3, 1, 0, 2),
        "sliced": base[:, 1:, ::2, 1:4],
        "column": base[:, :, 2, 3],
        "every_third": base.flatten()[1::3],
        "expanded": base[0, 0, 0].expand(3, 2, 5),
        "expanded_inside": base[1, 2, :, :1].expand(4, 6),
        "ones": base[:, 1:2, 3:4, :],
        "scalar": base[1, 2, 3, 4],
        "empty": base[:0],
        "empty_inside": base[:, :, :0, ::2],
        "offset": base.flatten()[100:],
        "whole_dims": base.transpose(0, 1),
    }
    out = {}
    for name, view in views.items():
        out[name] = view
        out[name + ".want"] = view.contiguous().clone()
    return out


def dtypes():
    numbers = torch.tensor([0.0, 1.0, -2.5, 1e-8, 65504.0, 3.3e38, float("inf"), -0.0, 1 / 3])
    integers = torch.tensor([0, 1, 2, 100, 127])
    out = {}
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        x = numbers.double().to(dtype)
        out[str(dtype)[6:]] = x
        out[str(dtype)[6:] + ".f32"] = x.to(torch.float32)
    wide = torch.tensor([1e300, 1.0 + 2.0**-40, -(2.0**-149), 3.4028235677973366e38], dtype=torch.float64)
    out["wide"], out["wide.f32"] = wide, wide.to(torch.float32)
    for dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool):
        x = integers.to(dtype)
        if dtype in (torch.int64, torch.int32):
            x = torch.cat([x, torch.tensor([-(2**31) + 1, 2**24 + 1], dtype=dtype)])
        elif dtype in (torch.int16, torch.int8):
            x = -x
        out[str(dtype)[6:]] = x
        out[str(dtype)[6:] + ".f32"] = x.to(torch.float32)
    for dtype in (torch.float8_e4m3fn, torch.uint16, torch.uint32, torch.uint64, torch.complex64):
        out[str(dtype)[6:]] = integers.to(torch.float32).to(dtype)
    return out


def numbers():
    return {
        "step": torch.tensor(20.0),
        "step_int": 20,
        "step_double": torch.tensor([0.1], dtype=torch.float64),
        "step_int32": torch.tensor(2**24 + 1, dtype=torch.int32),
        "lr": 0.25,
        "two": torch.tensor([1.0, 2.0]),
        "text": "x",
    }


def simple():
    weight = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    return {"weight": weight, "tied": weight, "row": weight[1], "other": torch.ones(5)}


def many():
    """Twelve storages: sorted as text, data/10 comes before data/2."""
    return {f"t{i}": torch.full((i,), float(i)) for i in range(12)}


def records(path):
    with zipfile.ZipFile(path) as z:
        return [(i.filename, z.read(i)) for i in z.infolist()]


def rewrite(source, target, order=None, **options):
    items = records(source)
    if order:
        items.sort(key=order)
    with zipfile.ZipFile(target, "w", **options) as z:
        for name, data in items:
            z.writestr(name, data)


class Pipe(io.RawIOBase):
    """A file that cannot be rewound: zipfile then writes descriptors behind the payloads."""

    def __init__(self, path):
        self.file = open(path, "wb")

    def writable(self):
        return True

    def write(self, data):
        return self.file.write(data)


def other_writers():
    plain = OUT / "simple.pt"
    rewrite(plain, OUT / "zipfile.pt")
    rewrite(plain, OUT / "deflated.pt", compression=zipfile.ZIP_DEFLATED)
    # the order and the records of torch 1.6: no marks but `version`, storages sorted as text
    old = [(n, d) for n, d in records(OUT / "many.pt") if "/." not in n and "byteorder" not in n]
    with zipfile.ZipFile(OUT / "text_order.pt", "w") as z:
        for name, data in sorted(old):
            z.writestr(name, data)
    with zipfile.ZipFile(Pipe(OUT / "streamed.pt"), "w") as z:
        for name, data in records(plain):
            z.writestr(name, data)
    with zipfile.ZipFile(OUT / "folders.pt", "w") as z:
        z.mkdir("simple")
        z.mkdir("simple/data")
        for name, data in records(plain):
            with z.open(name, "w", force_zip64=True) as f:
                f.write(data)
        z.comment = b"made manually"
    with tarfile.open(OUT / "tar.pt", "w", format=tarfile.USTAR_FORMAT) as t:
        data = b"\x80\x02}."
        info = tarfile.TarInfo("pickle")
        info.size = len(data)
        t.addfile(info, io.BytesIO(data))


def main():
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    os.chdir(OUT)
    torch.save(strides(), "strides.pt")
    torch.save(dtypes(), "dtypes.pt")
    torch.save(numbers(), "numbers.pt")
    torch.save(simple(), "simple.pt")
    torch.save(many(), "many.pt")
    torch.save(simple(), "protocol4.pt", pickle_protocol=4)
    torch.save(simple(), "legacy.pt", _use_new_zipfile_serialization=False)
    with open("object.pt", "wb") as f:
        torch.save(simple(), f)
    torch.serialization.set_crc32_options(False)
    torch.save(simple(), "no_crc.pt")
    torch.serialization.set_crc32_options(True)
    torch.utils.serialization.config.save.storage_alignment = 4096
    torch.save({"a": torch.ones(3)}, "aligned_4096.pt")
    torch.utils.serialization.config.save.storage_alignment = 64
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), "script.pt")
    other_writers()
    for path in sorted(OUT.iterdir()):
        print(path.name, path.stat().st_size)


if __name__ == "__main__":
    main()
