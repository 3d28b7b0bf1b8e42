"""Checkpoints of czero and DeepSpeed as whole weights: files, or numpy arrays. No torch is needed."""

from __future__ import annotations

import ctypes
from typing import Dict, NamedTuple, Optional, Union

import numpy

from . import _library as lib
from ._library import C, PathLike

_DTYPES = {"fp32": 0, "float32": 0, "bf16": 1, "bfloat16": 1, "fp16": 2, "float16": 2}
# enum cz_dtype; numpy has no bf16, so its bits come as uint16
_ARRAYS = [numpy.float32, numpy.uint16, numpy.float16, numpy.float64, numpy.int64, numpy.int32,
           numpy.int16, numpy.int8, numpy.uint8, numpy.bool_]


def dtype_number(name: str) -> int:
    if name not in _DTYPES:
        raise ValueError(f'dtype "{name}": fp32, bf16 or fp16 is needed')
    return _DTYPES[name]


class Consolidated(NamedTuple):
    """What zero_to_fp32() wrote."""

    n_tensors: int
    n_files: int
    numel: int
    nbytes: int


def zero_to_fp32(checkpoint_dir: PathLike, output_dir: PathLike,
                 max_shard_size: Union[str, int, None] = "5GB", safe_serialization: bool = False,
                 tag: Optional[Union[str, int]] = None, exclude_frozen_parameters: bool = False, *,
                 dtype: str = "fp32", verify: bool = False) -> Consolidated:
    """Write a checkpoint's weights as pytorch_model.bin or, with safe_serialization, as
    model.safetensors: the work of DeepSpeed's script of this name, in constant memory.

    checkpoint_dir is the folder of tags, or of one tag; tag None: the one that `latest` names.
    Files larger than max_shard_size become several with an index; None: one file. verify reads the
    output again and compares it.
    """
    limit = ctypes.c_uint64(0)
    if max_shard_size is not None:
        C.cz_parse_size(str(max_shard_size).encode(), ctypes.byref(limit))
    options = lib.new(lib.ConsolidateOptions, dir=lib.path(checkpoint_dir), tag=lib.tag_text(tag),
                      out_dir=lib.path(output_dir), format=int(safe_serialization),
                      shard_nbytes_max=limit.value, exclude_frozen=exclude_frozen_parameters,
                      has_dtype=dtype_number(dtype) != 0, dtype=dtype_number(dtype), verify=verify)
    result = lib.new(lib.ConsolidateResult)
    C.cz_consolidate(ctypes.byref(options), ctypes.byref(result))
    return Consolidated(result.n_tensors, result.n_files, result.numel, result.nbytes)


def load_state_dict_from_zero_checkpoint(
        checkpoint_dir: PathLike, tag: Optional[Union[str, int]] = None,
        exclude_frozen_parameters: bool = False, *, dtype: str = "fp32",
        verify: bool = True) -> Dict[str, numpy.ndarray]:
    """A checkpoint's weights by name, as arrays; a tied weight's names share one array.

    Floating-point tensors are float32: the saved masters, and frozen 16-bit weights widened.
    dtype "fp16" rounds them to float16, dtype "bf16" to bfloat16, whose bits come as uint16
    (`(a.astype(numpy.uint32) << 16).view(numpy.float32)` widens them). Others keep their type.
    verify compares checksums first: a flipped bit is a CorruptError.
    """
    options = lib.new(lib.WeightsOptions, dir=lib.path(checkpoint_dir), tag=lib.tag_text(tag),
                      exclude_frozen=exclude_frozen_parameters,
                      has_dtype=dtype_number(dtype) != 0, dtype=dtype_number(dtype))
    weights = ctypes.c_void_p()
    state: Dict[str, numpy.ndarray] = {}
    C.cz_weights_open(ctypes.byref(options), ctypes.byref(weights))
    try:
        if verify:
            C.cz_weights_check(weights)
        info = lib.new(lib.WeightInfo)
        for idx in range(C.cz_weights_count(weights)):
            C.cz_weights_at(weights, idx, ctypes.byref(info))
            array = numpy.empty(tuple(info.shape[:info.ndim]), _ARRAYS[info.dtype])
            C.cz_weights_read(weights, idx, array.ctypes.data, array.nbytes)
            for name in [info.name] + info.aliases[:info.n_aliases]:
                state[lib.text(name)] = array
    finally:
        C.cz_weights_close(weights)
    return state


get_fp32_state_dict_from_zero_checkpoint = load_state_dict_from_zero_checkpoint  # DeepSpeed's name
