"""torch.save of a state of MIB MiB to FILE, made durable: seconds, one line per run. Removes the file.

    python torch_save.py FILE MIB RUNS"""
import os
import sys
import time

import torch


def main():
    path, mib, runs = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    numel = mib * (1 << 20) // 4 // 3
    numbers = torch.empty(numel * 3, dtype=torch.float32)
    numbers.view(torch.int32).random_()
    state = {name: numbers[i * numel:(i + 1) * numel].clone() for i, name in enumerate(("fp32", "exp_avg", "exp_avg_sq"))}
    del numbers
    for _ in range(runs):
        begin = time.perf_counter()
        torch.save(state, path)
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
        print(f"{time.perf_counter() - begin:.4f}", flush=True)
        os.unlink(path)


if __name__ == "__main__":
    main()
