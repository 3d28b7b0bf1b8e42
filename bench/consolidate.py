#!/usr/bin/env python3
"""Consolidation beside DeepSpeed's own script, and beside what the disk can write.

    python3 bench/consolidate.py [--work DIR] [--stages 2 3] [--rounds 3] [--big-gb 6]

First, GPT-2 124M saved by DeepSpeed on two ranks (made once, 1.6 GB a stage): zero_to_fp32 and DeepSpeed's
zero_to_fp32.py in turns, whole processes, and the peak memory of both. Ours ends when its output is on
disk; the script's ends when it has handed it to the page cache, and once more with a sync after it.
Then a synthetic checkpoint of --big-gb (0: left out) against plain writing of as many bytes with
O_DIRECT and fsync, in turns. All shards are read once before, so that both sides read from memory.
The peer's environment comes from scripts/peers.sh.
"""
import argparse
import json
import mmap
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PEERS = os.environ.get("CZERO_PEERS", os.path.expanduser("~/.cache/czero-peers/venv"))
TEXT = os.path.join(ROOT, "examples", "data", "fortunes.txt")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def make_checkpoint(args, stage, folder):
    config = folder + ".json"
    with open(config, "w") as f:
        json.dump({"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True},
                   "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}},
                   "zero_optimization": {"stage": stage}}, f)
    env = dict(os.environ, WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()),
               OMP_NUM_THREADS="1", DS_ACCELERATOR="cpu", LOCAL_SIZE="2")
    command = [os.path.join(PEERS, "bin", "python"), os.path.join(ROOT, "bench", "peers", "deepspeed_gpt2.py"),
               "--config", config, "--steps", "1", "--seq-len", "16", "--threads", "1", "--data", TEXT,
               "--save", folder]
    ranks = [subprocess.Popen(command, env=dict(env, RANK=str(r), LOCAL_RANK=str(r)),
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for r in range(2)]
    errors = [rank.communicate()[1] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        sys.exit("DeepSpeed could not save: " + "\n".join(errors)[-2000:])


def read_once(folder):
    """Into the page cache."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with open(os.path.join(path, name), "rb", buffering=0) as f:
                while block := f.read(1 << 22):
                    total += len(block)
    return total


def timed(command, env=None):
    """Seconds and peak RSS of a process."""
    begin = time.perf_counter()
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begin
    if status != 0:
        sys.exit(f"{' '.join(command)}: {process.stderr.read().decode()[-2000:]}")
    process.stderr.close()
    return seconds, usage.ru_maxrss * 1024


def fresh(folder):
    shutil.rmtree(folder, ignore_errors=True)
    os.sync()
    return folder


def beside_script(args, stage):
    folder = os.path.join(args.work, f"gpt2-stage{stage}")
    if not os.path.exists(os.path.join(folder, "latest")):
        make_checkpoint(args, stage, folder)
    read_once(folder)
    out = os.path.join(args.work, "out")
    ours = [args.zero_to_fp32, folder, out, "--quiet"]
    script = [os.path.join(PEERS, "bin", "python"), os.path.join(folder, "zero_to_fp32.py"), folder, out]
    env = dict(os.environ, DS_ACCELERATOR="cpu")
    a, b, b_synced = [], [], []
    for _ in range(args.rounds):
        fresh(out)
        a.append(timed(ours))
        fresh(out)
        begin = time.perf_counter()
        b.append(timed(script, env))
        os.sync()
        b_synced.append(time.perf_counter() - begin)
    nbytes = sum(os.path.getsize(os.path.join(out, name)) for name in os.listdir(out))
    fresh(out)
    t, u = statistics.median(x[0] for x in a), statistics.median(x[0] for x in b)
    v = statistics.median(b_synced)
    print(f"stage {stage}, {nbytes / 1e6:.0f} MB: czero {t:.2f} s, {max(x[1] for x in a) / 2**20:.0f} MiB; "
          f"script {u:.2f} s ({v:.2f} s synced), {max(x[1] for x in b) / 2**20:.0f} MiB; "
          f"{u / t:.1f} times as fast ({v / t:.1f} with both on disk)")


def plain_write(path, nbytes):
    """Seconds for writing that many bytes past the page cache, fsync included."""
    block = mmap.mmap(-1, 8 << 20)
    block.write(os.urandom(1 << 20) * 8)
    begin = time.perf_counter()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_DIRECT)
    os.posix_fallocate(fd, 0, nbytes)
    for off in range(0, nbytes, len(block)):
        os.pwrite(fd, block, off)
    os.fsync(fd)
    os.close(fd)
    return time.perf_counter() - begin


def make_big(args, folder):
    """A stage-2 checkpoint of two ranks, written by torch as DeepSpeed lays it out, without moments."""
    code = os.path.join(ROOT, "bench", "peers", "big_checkpoint.py")
    subprocess.run([os.path.join(PEERS, "bin", "python"), code, folder, str(args.big_gb)], check=True)


def beside_disk(args):
    folder = os.path.join(args.work, f"big-{args.big_gb}")
    if not os.path.exists(os.path.join(folder, "latest")):
        make_big(args, folder)
    read_once(folder)
    out = os.path.join(args.work, "out")
    ratios = []
    for _ in range(args.rounds):
        fresh(out)
        t, rss = timed([args.zero_to_fp32, folder, out, "--quiet"] + args.options)
        nbytes = sum(os.path.getsize(os.path.join(out, name)) for name in os.listdir(out))
        fresh(out)
        os.mkdir(out)
        u = plain_write(os.path.join(out, "plain"), nbytes // (8 << 20) * (8 << 20))
        ratios.append(u / t)
        print(f"{nbytes / 1e9:.2f} GB: czero {nbytes / t / 1e9:.2f} GB/s, {rss / 2**20:.0f} MiB; "
              f"plain write {nbytes / u / 1e9:.2f} GB/s: {100 * u / t:.0f} %")
    fresh(out)
    print(f"median {100 * statistics.median(ratios):.0f} % of plain writing")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--zero-to-fp32", default=os.path.join(ROOT, "build", "zero_to_fp32"))
    parser.add_argument("--work", default="/tmp/czero-bench-consolidate", help="tens of GB free, a real disk")
    parser.add_argument("--stages", type=int, nargs="*", default=[2, 3])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--big-gb", type=float, default=6)
    parser.add_argument("--options", nargs="*", default=[], help="more options of zero_to_fp32 for the big one")
    args = parser.parse_args()
    os.makedirs(args.work, exist_ok=True)
    for stage in args.stages:
        beside_script(args, stage)
    if args.big_gb > 0:
        beside_disk(args)


if __name__ == "__main__":
    main()
