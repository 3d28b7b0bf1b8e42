"""Peer of bench/nvme.py: DeepSpeed's aio handle on a file that is there.

    python deepspeed_aio.py FILE NBYTES BLOCK_NBYTES DEPTH

For each line "read" or "write" on stdin: the whole file, from or into one page-locked tensor, as DeepSpeed's swappers
do with theirs; prints seconds and the process's CPU seconds."""
import os
import sys
import time

os.environ.setdefault("DS_ACCELERATOR", "cpu")
real_stdout = os.dup(1)
os.dup2(2, 1)  # DeepSpeed prints while it loads

import torch  # noqa: E402
from deepspeed.ops.op_builder import AsyncIOBuilder  # noqa: E402


def main():
    path, nbytes, block, depth = sys.argv[1], *map(int, sys.argv[2:5])
    out = os.fdopen(real_stdout, "w")
    handle = AsyncIOBuilder().load(verbose=False).aio_handle(block, depth, False, True, 1)
    tensor = handle.new_cpu_locked_tensor(nbytes, torch.empty(0, dtype=torch.uint8))
    tensor.fill_(7)
    print("ready", file=out, flush=True)
    for line in sys.stdin:
        cpu, begin = time.process_time(), time.perf_counter()
        if line[0] == "w":
            handle.async_pwrite(tensor, path)
        else:
            handle.async_pread(tensor, path)
        handle.wait()
        print(f"{time.perf_counter() - begin:.6f} {time.process_time() - cpu:.6f}", file=out, flush=True)


if __name__ == "__main__":
    main()
