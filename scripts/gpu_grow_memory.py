#!/usr/bin/env python3
"""Touch memory where a machine gets more of it as it is used: some virtual machines show a part at first, and a plan
looks at what is there. Nothing happens where the total does not grow, after at most 4 GiB.

Never takes more than four fifths of what is available, and gives all back.
"""
import mmap
import time

PAGE = 4096
FIRST = 4 << 30
SECONDS = 40
PATIENCE = 3  # until more of it is there
NOTICEABLE = 64 << 20


def meminfo(key):
    with open("/proc/meminfo") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith(key + ":"))


def total_after_touching(nbytes, before):
    """What there is in all while so much is in use: more, or after some patience."""
    with mmap.mmap(-1, nbytes) as m:
        step = 256 << 20
        for at in range(0, nbytes, step):
            end = min(nbytes, at + step)
            m[at:end:PAGE] = b"\1" * len(range(at, end, PAGE))
        patience = time.monotonic() + PATIENCE
        while meminfo("MemTotal") <= before + NOTICEABLE and time.monotonic() < patience:
            time.sleep(0.1)
        return meminfo("MemTotal")


def main():
    before = total = meminfo("MemTotal")
    end, most = time.monotonic() + SECONDS, FIRST
    while time.monotonic() < end:
        now = total_after_touching(min(most, meminfo("MemAvailable") * 4 // 5) // PAGE * PAGE, total)
        if now <= total + NOTICEABLE:
            break
        total, most = now, 4 * most
    print(f"memory: {before / 2**30:.1f} GiB before, {meminfo('MemTotal') / 2**30:.1f} GiB after some was touched")


if __name__ == "__main__":
    main()
