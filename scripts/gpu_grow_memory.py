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


def meminfo(key):
    with open("/proc/meminfo") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith(key + ":"))


def touch(nbytes):
    with mmap.mmap(-1, nbytes) as m:
        step = 256 << 20
        for at in range(0, nbytes, step):
            end = min(nbytes, at + step)
            m[at:end:PAGE] = b"\1" * len(range(at, end, PAGE))


def main():
    before = total = meminfo("MemTotal")
    end, most = time.monotonic() + SECONDS, FIRST
    while time.monotonic() < end:
        touch(min(most, meminfo("MemAvailable") * 4 // 5) // PAGE * PAGE)
        now = meminfo("MemTotal")
        if now <= total + (64 << 20):
            break
        total, most = now, 4 * most
    print(f"memory: {before / 2**30:.1f} GiB before, {meminfo('MemTotal') / 2**30:.1f} GiB after some was touched")


if __name__ == "__main__":
    main()
