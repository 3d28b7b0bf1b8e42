"""Peer of bench/comm.py: one rank of DeepSpeed's shared-memory all-reduce (or gloo's), microseconds per size."""
import glob
import os
import statistics
import sys
import time

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("LOCAL_SIZE", os.environ["WORLD_SIZE"])
os.environ.setdefault("LOCAL_RANK", os.environ["RANK"])

import torch
import torch.distributed
from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder

torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
shm = ShareMemCommBuilder().load()
shm.initialize(int(os.environ["WORLD_SIZE"]), rank)
ways = {
    "deepspeed": torch.ops.deepspeed.inference_all_reduce_,
    "gloo": torch.distributed.all_reduce,
}
for way, reduce in ways.items():
    for name, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
        for kib in map(int, sys.argv[1:]):
            x = torch.zeros(kib * 1024 // dtype.itemsize, dtype=dtype)
            n = 20 if kib > 4096 else 200
            us = []
            for k in range(-3, n):
                torch.distributed.barrier()
                begin = time.perf_counter()
                reduce(x)
                if k >= 0:
                    us.append(1e6 * (time.perf_counter() - begin))
            if rank == 0:
                print(way, name, kib, f"{min(us):.1f} {statistics.median(us):.1f}", flush=True)
torch.distributed.destroy_process_group()
if rank == 0:  # it leaves its segments behind
    for path in glob.glob(f"/dev/shm/deepspeed_allreduce_buffer_*_{os.environ['MASTER_PORT']}_*"):
        os.unlink(path)
