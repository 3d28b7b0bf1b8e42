#!/usr/bin/env python3
"""GPT-2 124M in bf16 on one GPU: czero's tokens/s beside PyTorch's eager and compiled and llm.c's; MFU.

    python3 bench/gpu/train_gpu.py [--batch 64] [--steps 20] [--seconds 300] [--czero build-gpu/czero]
                               [--llmc DIR [--llmc-from DIR]] [--tiny [--peers]]

1024 tokens a row, the same tokens for all, no dropout, AdamW, clipping at norm 1; the batch is halved
until it fits, for each side by itself. Every side trains in a process of its own, czero before and after the
peers; a side's figure is its median step without the first three. MFU: (6 N + 12 L C T) FLOP a token, N
without the positions, over the chip's dense bf16 rate by its datasheet. A figure is printed as soon as it is
known; what --seconds leave no time for is skipped. llm.c keeps all activations, too, and has its own attention
(cuDNN's needs what few machines have installed); it is built in the folder --llmc, of sources that are copied
there from --llmc-from (--only-llmc: and nothing else). --tiny: shapes for the simulated device, without
peers; --peers: with them, on the CPU.
"""
import argparse
import os
import re
import shutil
import statistics
import sys
import tempfile

from gpu_common import (ROOT, Clock, TooLarge, config_dir, figure, gib, last_words, median_step, nvidia_smi, run_alone, run_peer,
                        skipped, token_file, train_czero)

NAMES = {"eager": "eager", "compiled": "compiled", "bf16": "bf16 weights, eager",
         "bf16-compiled": "bf16 weights, compiled"}
PEAKS = {"H100": 989e12, "H200": 989e12, "A100": 312e12}  # dense bf16, SXM, by the datasheets
LAYERS, WIDTH, HEADS, VOCABULARY = 12, 768, 12, 50304


def ds_config(batch):
    return {"train_micro_batch_size_per_gpu": batch, "gradient_clipping": 1.0, "bf16": {"enabled": True},
            "zero_optimization": {"stage": 0}, "czero": {"keep_all_activations": True},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.01}}}


# llm.c calls CUDA as it was before 13: the call by which memory is advised took a device's number.
OLD_CALLS = """#pragma once
#include <cuda_runtime.h>
#if CUDART_VERSION >= 13000
static inline cudaError_t cudaMemAdvise(const void *p, size_t nbytes, cudaMemoryAdvise advice, int device)
{
    cudaMemLocation at = {};
    at.type = device < 0 ? cudaMemLocationTypeHost : cudaMemLocationTypeDevice;
    at.id = device < 0 ? 0 : device;
    return cudaMemAdvise(p, nbytes, advice, at);
}
#endif
"""


def build_llmc(args, clock):
    """Its program, made for this GPU alone."""
    program = os.path.join(args.llmc, "train_gpt2cu")
    if os.path.exists(program):
        return program
    if args.llmc_from and not os.path.exists(args.llmc):
        shutil.copytree(args.llmc_from, args.llmc)
    old_calls = os.path.join(os.path.abspath(args.llmc), "old_calls.h")
    with open(old_calls, "w") as f:
        f.write(OLD_CALLS)
    capability = (nvidia_smi("--query-gpu=compute_cap", "--format=csv,noheader").splitlines() or ["9.0"])[0]
    flags = os.environ.get("NVCC_APPEND_FLAGS", "")
    os.environ["NVCC_APPEND_FLAGS"] = f"{flags} -include {old_calls}"
    command = ["make", "-C", args.llmc, "train_gpt2cu", "NO_MULTI_GPU=1", "NO_USE_MPI=1", "PRECISION=BF16",
               f"GPU_COMPUTE_CAPABILITY={capability.replace('.', '')}"]
    code, _, errors = run_alone(command, clock.left(150))
    if code != 0 and "nvidia-ml" in errors:  # it is linked with, and not needed where its header is not
        code, _, errors = run_alone([*command, "NVCC_LDFLAGS=-lcublas -lcublasLt"], clock.left(150))
    os.environ["NVCC_APPEND_FLAGS"] = flags
    if code != 0:
        raise RuntimeError("it does not build: " + last_words(errors, "make failed"))
    return program


def run_llmc(args, batch, data, clock):
    """Its own trainer on the same tokens, from random weights: tokens/s of its median step."""
    program = os.path.abspath(build_llmc(args, clock))
    with tempfile.TemporaryDirectory() as out:
        # a loss of other tokens before and after training cannot be left out: -v 0 divides by it
        _, words, errors = run_alone([program, "-i", data, "-j", data, "-e", "d12", "-o", out, "-b", str(batch), "-t",
                                      str(args.seq_len), "-d", str(batch * args.seq_len), "-x", str(args.steps), "-v",
                                      "1000", "-m", "1", "-s", "0", "-n", "0", "-r", "0"], clock.left(90))
    steps = [float(ms) for ms in re.findall(r"\| ([\d.]+) ms \|", words)]
    if not steps:
        raise RuntimeError("no steps in what it prints: " + last_words(errors or words, "nothing"))
    return batch * args.seq_len / statistics.median(steps[3:] or steps) * 1e3


def halving(batch, run, is_too_much):
    """(batch, run(batch)) at the first of batch, batch/2, … that fits."""
    while True:
        try:
            return batch, run(batch)
        except RuntimeError as e:
            if batch == 1 or not is_too_much(e):
                raise
            print(f"batch {batch}: {e}", file=sys.stderr)
            batch //= 2


def ours(args, model, data, batch, clock):
    return halving(batch, lambda b: train_czero(args.czero, ds_config(b), model, data, args.seq_len, args.steps,
                                                timeout=clock.left(120)), lambda e: isinstance(e, TooLarge))


def beside_torch(args, model, data, batch, rate, clock, mode, attention, goal):
    name = f"GPT-2 124M beside PyTorch {NAMES[mode]}" + (f", {attention} attention" if attention != "any" else "")
    if args.tiny and not args.peers:
        return skipped(name, "a tiny run", goal=goal)
    try:
        batch, run = halving(batch, lambda b: run_peer(
            "torch_gpu.py", "--model", model, "--data", data, "--mode", mode, "--attention", attention, "--batch", b, "--seq-len", args.seq_len,
            "--steps", args.steps, "--device", "cpu" if args.tiny else "cuda",
            timeout=clock.left(150)), lambda e: "out of memory" in str(e))
    except RuntimeError as e:
        return skipped(name, e, goal=goal)
    theirs = batch * args.seq_len / median_step(run)
    note = f"theirs {theirs:,.0f}, torch {run['torch']}, attention {run['attention']}, batch {batch}"
    note += f", GPU {gib(run['peak_gpu'])}" if run["peak_gpu"] else ""
    figure(name, rate, "tokens/s", ratio=rate / theirs, goal=goal, goal_of="x their tokens/s", note=note)


def beside_llmc(args, data, batch, rate, clock):
    name = "GPT-2 124M beside llm.c"
    if not args.llmc:
        return skipped(name, "no sources here (--llmc DIR)", goal=1.0)
    if args.tiny:
        return skipped(name, "a tiny run", goal=1.0)
    try:
        theirs = run_llmc(args, batch, data, clock)
    except (RuntimeError, OSError) as e:
        return skipped(name, e, goal=1.0)
    figure(name, rate, "tokens/s", ratio=rate / theirs, goal=1.0, goal_of="x their tokens/s",
           note=f"theirs {theirs:,.0f}, batch {batch}, without cuDNN")


def tell(args, name, run, batch, rate):
    layers, width, vocabulary = args.shape[0], args.shape[1], args.shape[3]
    numel = vocabulary * width + layers * (12 * width * width + 13 * width) + 2 * width
    flops = 6 * numel + 12 * layers * width * args.seq_len
    chip = nvidia_smi("--query-gpu=name", "--format=csv,noheader")
    peak = next((rate for name, rate in PEAKS.items() if name in chip), None)
    note = f"batch {batch}, {rate:,.0f} tokens/s, losses {run['losses'][0]:.3f} to {run['losses'][-1]:.3f}"
    note += f", GPU {gib(run['peak_gpu'])}" if run["peak_gpu"] else ""
    if peak:
        mfu = rate * flops / peak
        figure(f"{name}: MFU", 100 * mfu, "%", ratio=mfu, goal=0.45, goal_of="of the chip's bf16 rate", note=note)
    else:
        figure(name, rate, "tokens/s", note=note)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--czero", default=os.path.join(ROOT, "build-gpu", "czero"))
    parser.add_argument("--llmc", help="a folder to build llm.c in")
    parser.add_argument("--llmc-from", help="its sources, where they are elsewhere")
    parser.add_argument("--only-llmc", action="store_true")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=600, help="for all of it (default: 600)")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--peers", action="store_true", help="in a tiny run, too: on the CPU")
    args = parser.parse_args()
    clock = Clock(args.seconds)
    if args.only_llmc:
        return print("result:", build_llmc(args, clock))
    args.shape = LAYERS, WIDTH, HEADS, VOCABULARY
    if args.tiny:
        args.shape = 2, 64, 2, 512
        args.batch, args.seq_len, args.steps = 1, 32, 3
    with tempfile.TemporaryDirectory() as work:
        model = config_dir(os.path.join(work, "model"), *args.shape, args.seq_len)
        data = token_file(os.path.join(work, "tokens.bin"), args.batch * args.seq_len * args.steps + 1, args.shape[3])
        batch, first = ours(args, model, data, args.batch, clock)
        rate = batch * args.seq_len / median_step(first)
        tell(args, "GPT-2 124M", first, batch, rate)
        both = ["any"] if args.tiny else ["cudnn", "flash"]  # whichever is faster is the peer
        for mode, attention, goal in [*(("compiled", a, 1.1) for a in both), ("eager", "any", 1.2)]:
            beside_torch(args, model, data, batch, rate, clock, mode, attention, goal)
        beside_llmc(args, data, batch, rate, clock)
        for mode in "bf16", "bf16-compiled":
            beside_torch(args, model, data, batch, rate, clock, mode, "any", None)
        name = "GPT-2 124M, again after the peers"
        try:
            batch, again = ours(args, model, data, batch, clock)
        except RuntimeError as e:
            return skipped(name, e)
        tell(args, name, again, batch, batch * args.seq_len / median_step(again))


if __name__ == "__main__":
    try:
        main()
    except RuntimeError as e:
        sys.exit(f"train_gpu: {e}")
