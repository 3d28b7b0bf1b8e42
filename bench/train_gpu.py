#!/usr/bin/env python3
"""GPT-2 124M in bf16 on one GPU: czero's tokens/s beside PyTorch's eager and compiled and llm.c's; MFU.

    python3 bench/train_gpu.py [--batch 64] [--steps 20] [--czero build-gpu/czero] [--llmc DIR] [--tiny]

1024 tokens a row, the same tokens for all, no dropout, AdamW, clipping at norm 1; the batch is halved
until all fit. Every side trains in a process of its own, czero before and after the peers; a side's
figure is its median step without the first three. MFU: (6 N + 12 L C T) FLOP a token over the chip's
dense bf16 rate by its datasheet. --tiny: shapes for the simulated device, without peers.
"""
import argparse
import os
import re
import subprocess
import sys
import tempfile

from gpu_common import ROOT, config_dir, figure, median_step, run_peer, skipped, token_file, train_czero

PEAKS = {"H100": 989e12, "H200": 989e12, "A100": 312e12}  # dense bf16, SXM, by the datasheets


def ds_config(batch):
    return {"train_micro_batch_size_per_gpu": batch, "gradient_clipping": 1.0, "bf16": {"enabled": True},
            "zero_optimization": {"stage": 0},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.01}}}


def gpu_name():
    try:
        done = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout.strip().splitlines()[0] if done.returncode == 0 else ""


def run_llmc(args, batch, data):
    """Its own trainer on the same tokens, from random weights; its moving mean of tokens/s."""
    program = os.path.join(args.llmc, "train_gpt2cu")
    if not os.path.exists(program):
        done = subprocess.run(["make", "-C", args.llmc, "train_gpt2cu", "NO_MULTI_GPU=1", "PRECISION=BF16"],
                              capture_output=True, text=True, timeout=240)
        if done.returncode != 0:
            raise RuntimeError("it does not build: " + done.stderr.strip()[-150:])
    with tempfile.TemporaryDirectory() as out:
        done = subprocess.run([program, "-i", data, "-j", data, "-e", "d12", "-o", out, "-b", str(batch), "-t",
                               str(args.seq_len), "-d", str(batch * args.seq_len), "-x", str(args.steps), "-v", "0",
                               "-s", "0", "-n", "0"], capture_output=True, text=True, timeout=240)
    rates = re.findall(r"([\d.]+) tok/s", done.stdout)
    if not rates:
        raise RuntimeError("no tokens/s in what it prints: " + (done.stderr or done.stdout).strip()[-150:])
    return float(rates[-1])


def largest(args, model, data):
    """czero's first run, at the largest batch that fits."""
    batch = args.batch
    while True:
        try:
            return batch, train_czero(args.czero, ds_config(batch), model, data, args.seq_len, args.steps)
        except RuntimeError as e:
            if batch == 1 or "fit" not in str(e):
                raise
            print(f"batch {batch}: {e}", file=sys.stderr)
            batch //= 2


def peers(args, model, data, batch, rate):
    device = "cpu" if args.tiny else "cuda"
    for mode, goal in [("eager", 1.2), ("compiled", 1.0), ("bf16", None)]:
        name = f"GPT-2 124M beside PyTorch {mode}" + (" weights, eager" if mode == "bf16" else "")
        if args.tiny and not args.peers:
            skipped(name, "a tiny run", goal=goal)
            continue
        try:
            run = run_peer("torch_gpu.py", "--model", model, "--data", data, "--mode", mode, "--batch", batch,
                           "--seq-len", args.seq_len, "--steps", args.steps, "--device", device)
        except RuntimeError as e:
            skipped(name, e, goal=goal)
            continue
        theirs = batch * args.seq_len / median_step(run)
        figure(name, rate, "tokens/s", ratio=rate / theirs, goal=goal, goal_of="x their tokens/s",
               note=f"theirs {theirs:,.0f}, torch {run['torch']}, batch {batch}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--czero", default=os.path.join(ROOT, "build-gpu", "czero"))
    parser.add_argument("--llmc", help="a folder with llm.c's sources")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--peers", action="store_true", help="in a tiny run, too: on the CPU")
    args = parser.parse_args()
    layers, width, heads, vocabulary = 12, 768, 12, 50304
    if args.tiny:
        layers, width, heads, vocabulary = 2, 64, 2, 512
        args.batch, args.seq_len, args.steps = 1, 32, 3
    with tempfile.TemporaryDirectory() as work:
        model = config_dir(os.path.join(work, "model"), layers, width, heads, vocabulary, args.seq_len)
        data = token_file(os.path.join(work, "tokens.bin"), args.batch * args.seq_len * args.steps + 1, vocabulary)
        batch, first = largest(args, model, data)
        rate = batch * args.seq_len / median_step(first)
        peers(args, model, data, batch, rate)
        if args.llmc:
            try:
                theirs = run_llmc(args, batch, data)
                figure("GPT-2 124M beside llm.c", rate, "tokens/s", ratio=rate / theirs, goal=1.0,
                       goal_of="x their tokens/s", note=f"theirs {theirs:,.0f}")
            except (RuntimeError, OSError, subprocess.TimeoutExpired) as e:
                skipped("GPT-2 124M beside llm.c", e, goal=1.0)
        else:
            skipped("GPT-2 124M beside llm.c", "no sources here (--llmc DIR)", goal=1.0)
        again = train_czero(args.czero, ds_config(batch), model, data, args.seq_len, args.steps)
    rates = sorted(batch * args.seq_len / median_step(run) for run in (first, again))
    numel = vocabulary * width + args.seq_len * width + layers * (12 * width * width + 13 * width) + 2 * width
    flops = 6 * numel + 12 * layers * width * args.seq_len
    name = gpu_name()
    peak = next((rate for chip, rate in PEAKS.items() if chip in name), None)
    note = f"batch {batch}, {rates[0]:,.0f} to {rates[1]:,.0f} tokens/s, losses {first['losses'][0]:.3f} to {first['losses'][-1]:.3f}"
    if first["peak_gpu"]:
        note += f", GPU {first['peak_gpu'] / 2**30:.1f} GiB"
    if peak:
        mfu = rates[-1] * flops / peak
        figure("GPT-2 124M: MFU", 100 * mfu, "%", ratio=mfu, goal=0.4, goal_of="of the chip's bf16 rate", note=note)
    else:
        figure("GPT-2 124M", rates[-1], "tokens/s", note=note)


if __name__ == "__main__":
    try:
        main()
    except RuntimeError as e:
        sys.exit(f"train_gpu: {e}")
