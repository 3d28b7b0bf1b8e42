#!/usr/bin/env python3
"""Swapping to disk: ours through io_uring and by threads, fio (io_uring) and DeepSpeed's aio handle, in turns.

    python3 bench/nvme.py --dir FOLDER_ON_THE_DISK [--mib 512] [--rounds 7] [--block-kib 1024] [--depth 8]

All work on one file, which our swap has preallocated and written, with the same block and depth, past the page cache.
Prints each side's median in MB/s for reading and writing, its CPU seconds per GB, and ours over the others: the goals
are >= 0.95 of fio and >= 1 of DeepSpeed in both directions. DeepSpeed is left out where its environment
(scripts/peers.sh) is not installed; --no-deepspeed leaves it out too.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Side:
    """A program that makes a pass for each line and answers with seconds and CPU seconds."""

    def __init__(self, name, command, n_greetings):
        self.name = name
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        stderr=subprocess.DEVNULL if "python" in command[0] else None)
        self.greetings = [self.answer() for _ in range(n_greetings)]

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{self.name}: ended with {self.process.wait()}")
        return line.strip()

    def run(self, direction):
        print(direction, file=self.process.stdin, flush=True)
        return tuple(map(float, self.answer().split()))

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Fio:
    name = "fio"

    def __init__(self, path, args):
        self.command = ["fio", "--name=swap", f"--filename={path}", f"--bs={args.block_kib}k", f"--size={args.mib}m",
                        "--direct=1", "--ioengine=io_uring", f"--iodepth={args.depth}", "--output-format=json"]
        if args.fio_fixed:
            self.command += ["--fixedbufs", "--registerfiles"]
        if args.fio_huge:
            self.command += ["--iomem=mmaphuge"]

    def run(self, direction):
        done = subprocess.run(self.command + [f"--rw={direction}"], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"fio: {done.stderr}")
        job = json.loads(done.stdout)["jobs"][0]
        seconds = job[direction]["runtime"] / 1e3
        return seconds, seconds * (job["usr_cpu"] + job["sys_cpu"]) / 100

    def close(self):
        pass


def ours(engine, args, checksums=False):
    program = os.path.join(ROOT, "build", "bench", "bench_swap")
    command = [program, args.dir, str(args.mib), "--engine", engine, "--block", str(args.block_kib), "--depth",
               str(args.depth)]
    command += ["--checksums"] if checksums else []
    command += ["--small-pages"] if args.small_pages else []
    return Side(f"czero, {'checksums' if checksums else engine}", command, 2)


def open_sides(args):
    sides = [ours("uring", args)]
    path, how = sides[0].greetings
    print(f"{how}; {args.mib} MiB, blocks of {args.block_kib} KiB, {args.depth} in flight")
    sides.append(ours("threads", args))
    if args.checksums:
        sides.append(ours("uring", args, checksums=True))
    if shutil.which("fio"):
        sides.append(Fio(path, args))
    else:
        print("fio is not installed: left out")
    venv = os.environ.get("CZERO_PEERS", os.path.expanduser("~/.cache/czero-peers/venv"))
    python = os.path.join(venv, "bin", "python")
    if args.no_deepspeed or not os.path.exists(python):
        print("DeepSpeed: left out")
    else:
        peer = os.path.join(ROOT, "bench", "peers", "deepspeed_aio.py")
        command = [python, peer, path, str(args.mib << 20), str(args.block_kib << 10), str(args.depth)]
        sides.append(Side("DeepSpeed aio", command, 1))
    return sides


def report(direction, sides, seconds, cpu, args):
    nbytes = args.mib << 20
    mine = seconds[direction, sides[0].name]
    for side in sides:
        values = seconds[direction, side.name]
        # Of rounds in turns, ratios per round: what disturbs one round disturbs all of it.
        ratio = statistics.median(theirs / own for theirs, own in zip(values, mine))
        per_gb = statistics.median(cpu[direction, side.name]) / nbytes * 1e9
        line = (f"{direction:5} {side.name:15} {nbytes / statistics.median(values) / 1e6:6.0f} MB/s "
                f"({nbytes / max(values) / 1e6:.0f} to {nbytes / min(values) / 1e6:.0f}), {per_gb:.3f} CPU s per GB")
        print(line if side is sides[0] else f"{line}; czero's io_uring is {ratio:.3f}x")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dir", default=".", help="on the disk to measure")
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--block-kib", type=int, default=1024)
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--checksums", action="store_true", help="ours with checksums too, the debug setting")
    parser.add_argument("--small-pages", action="store_true", help="ours without huge pages, as fio and DeepSpeed")
    parser.add_argument("--fio-fixed", action="store_true", help="fio with registered buffers and file too")
    parser.add_argument("--fio-huge", action="store_true", help="fio in huge pages too (needs vm.nr_hugepages)")
    parser.add_argument("--no-deepspeed", action="store_true")
    args = parser.parse_args()
    sides = open_sides(args)
    seconds, cpu = {}, {}
    for i in range(args.rounds):
        for direction in ("read", "write"):
            for side in sides[i % len(sides):] + sides[:i % len(sides)]:  # every side is first in some rounds
                taken, used = side.run(direction)
                seconds.setdefault((direction, side.name), []).append(taken)
                cpu.setdefault((direction, side.name), []).append(used)
    for direction in ("read", "write"):
        report(direction, sides, seconds, cpu, args)
    for side in reversed(sides):
        side.close()


if __name__ == "__main__":
    main()
