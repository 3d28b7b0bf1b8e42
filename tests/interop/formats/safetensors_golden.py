"""Make the files in fixtures/formats/safetensors with the reference implementation (safetensors 0.8, torch).

    $(scripts/peers.sh) tests/interop/formats/safetensors_golden.py build/fixtures/formats/safetensors && tests/fixtures/pack.sh formats

tensor "a_KIND" of each dtype holds bytes that count up from 1; "scalar" and "empty" show the edge
shapes; "naïve \\"name\\"\\n" needs escapes."""
import ctypes
import sys

import numpy
import torch
from huggingface_hub import save_torch_state_dict
from safetensors import TensorSpec, serialize_file

out = sys.argv[1]
BYTES = {
    "bool": 1, "float4_e2m1fn_x2": 1, "uint8": 1, "int8": 1, "float8_e5m2": 1, "float8_e4m3fn": 1,
    "float8_e8m0fnu": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "int16": 2, "uint16": 2,
    "float16": 2, "bfloat16": 2, "int32": 4, "uint32": 4, "float32": 4, "complex64": 8,
    "float64": 8, "int64": 8, "uint64": 8,
}
specs, keep = {}, []


def add(name, dtype, shape, nbytes):
    data = numpy.array([(i + 1) % 256 for i in range(max(nbytes, 1))], dtype=numpy.uint8)
    if dtype == "bool":
        data &= 1
    keep.append(data)
    specs[name] = TensorSpec(dtype=dtype, shape=shape, data_ptr=data.ctypes.data, data_len=nbytes)


for dtype, size in BYTES.items():
    add("a_" + dtype, dtype, [2, 3], 6 * size)
add("scalar", "float32", [], 4)
add("empty", "int64", [3, 0], 0)
add('naïve "name"\n', "uint8", [1], 1)
serialize_file(specs, out + "/all_dtypes.safetensors", {"format": "pt"})

state = {name: torch.arange(n, dtype=dtype) for name, n, dtype in [
    ("z.first", 10, torch.float32), ("big", 40, torch.float32), ("b.half", 8, torch.bfloat16),
    ("a.second", 9, torch.float32), ("c.ids", 3, torch.int64), ("last", 1, torch.float32)]}
save_torch_state_dict(state, out + "/sharded", max_shard_size=64)
