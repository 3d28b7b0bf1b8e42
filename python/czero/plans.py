"""Planning before training: will it fit, and how long will a step take?"""

from __future__ import annotations

import ctypes
import json
import math
from dataclasses import dataclass
from typing import Any, Dict, Optional

from . import _library as lib
from ._library import C, PathLike
from .engine import Config, engine_options, open_model


@dataclass(frozen=True)
class Plan:
    """Every byte of a run, for rank 0: peaks of one rank in each place."""

    fits: bool  # into what this machine has left
    host_nbytes: int  # the program and pinned memory included
    device_nbytes: int
    pinned_nbytes: int
    nvme_nbytes: int
    sent_nbytes: int  # to the other ranks, in an optimizer step
    step_s: Optional[float]  # None without a profile
    table: str  # for people
    details: Dict[str, Any]  # what `czero plan --json` prints

    def __str__(self) -> str:
        return self.table


def plan(model: PathLike, config: Config, *, seq_len: Optional[int] = None, world_size: int = 1,
         device: str = "cpu", profile: Optional[PathLike] = None) -> Plan:
    """Plan a run without starting it; nothing is allocated, and device "cuda" needs no GPU.

    profile is a file of `czero bench --profile FILE`, from which step_s is predicted.
    """
    handle = ctypes.c_void_p()
    n_ranks = lib.integer(world_size, "world_size", 1)
    opened = open_model(model, seq_len=seq_len)
    try:
        options = engine_options(config, device=device)
        how = lib.new(lib.PlanOptions, world_size=n_ranks, profile_path=lib.optional(profile))
        C.cz_plan_create(ctypes.byref(options), ctypes.byref(how), opened, ctypes.byref(handle))
        host, gpu, pinned, nvme = (C.cz_plan_nbytes(handle, place) for place in range(4))
        seconds = C.cz_plan_step_s(handle)
        return Plan(C.cz_plan_fits(handle), host, gpu, pinned, nvme, C.cz_plan_sent_nbytes(handle),
                    None if math.isnan(seconds) else seconds, lib.taken(C.cz_plan_table, handle),
                    json.loads(lib.taken(C.cz_plan_json, handle)))
    finally:
        C.cz_plan_destroy(handle)
        C.cz_model_destroy(opened)
