#!/usr/bin/env python3
"""Saving a state: our .pt writer, torch.save of as many bytes, and fio's sequential write, in turns.

    python3 bench/save.py [--dir .] [--mib 1500] [--rounds 5] [--threads 1] [--engine]

--engine: instead of our .pt writer alone, a whole checkpoint of GPT-2 124M through the engine (1.9 GB; the others
write as many bytes). Every side ends with the bytes on disk (fsync). fio writes 1 MiB at a time past the page cache, eight in flight.
Prints each side's median in MB/s, and ours over the others: the goals are >= 1 of torch.save and >= 0.8 of fio.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def check(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    return done.stdout


def ours(args, path):
    program = os.path.join(ROOT, "build", "bench", "bench_save")
    return float(check([program, path, str(args.mib), "--threads", str(args.threads)]))


def engine(args, path):
    program = os.path.join(ROOT, "build", "bench", "bench_save_engine")
    seconds, mib = check([program, args.dir]).split()
    args.mib = round(float(mib))
    return float(seconds)


def torch(args, path):
    return float(check([args.python, os.path.join(ROOT, "bench", "peers", "torch_save.py"), path, str(args.mib), "1"]))


def fio(args, path):
    text = check(["fio", "--name=save", f"--filename={path}", "--rw=write", "--bs=1m", f"--size={args.mib}m",
                  "--direct=1", "--ioengine=io_uring", "--iodepth=8", "--end_fsync=1", "--output-format=json"])
    os.unlink(path)
    return json.loads(text)["jobs"][0]["write"]["runtime"] / 1e3


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dir", default=".", help="on the disk to measure")
    parser.add_argument("--mib", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="that hand us pieces")
    parser.add_argument("--engine", action="store_true", help="a checkpoint through the engine")
    args = parser.parse_args()
    args.python = check([os.path.join(ROOT, "scripts", "peers.sh")]).strip()
    sides = {"czero": engine if args.engine else ours, "torch.save": torch}
    if shutil.which("fio"):
        sides["fio"] = fio
    else:
        print("fio is not installed: left out")
    seconds = {name: [] for name in sides}
    for _ in range(args.rounds):
        for name, run in sides.items():
            seconds[name].append(run(args, os.path.join(args.dir, "bench_save.pt")))
    nbytes = args.mib * (1 << 20)
    mine = statistics.median(seconds["czero"])
    for name, values in seconds.items():
        median = statistics.median(values)
        line = f"{name}: {nbytes / median / 1e6:.0f} MB/s, median of {args.rounds} ({min(values):.2f} to {max(values):.2f} s)"
        print(line if name == "czero" else f"{line}; czero is {median / mine:.2f}x")


if __name__ == "__main__":
    main()
