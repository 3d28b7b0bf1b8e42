#!/usr/bin/env python3
"""Adam on the host: czero beside PyTorch's fused AdamW and DeepSpeed's CPU Adam, in one run.

    scripts/peers.sh && python3 bench/bench_adam.py [--numel N] [--rounds R] [--threads T] [--json]

fp32: one step over N parameters. bf16: what a 16-bit model costs on the host; czero takes bf16
gradients and writes bf16 parameters in the same pass, the peers cast the gradient to fp32, multiply by
the inverse loss scale, step, and cast the parameters to bf16. czero and the peers take turns step by
step, so that both see the same machine. Memory: 24 bytes per parameter for each side.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PEERS = pathlib.Path(os.environ.get("CZERO_PEERS", pathlib.Path.home() / ".cache/czero-peers/venv"))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--numel", type=int, default=64 << 20)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def reenter_with_peers():
    """This script runs under any Python; torch and DeepSpeed live in their own environment."""
    python = PEERS / "bin/python"
    if pathlib.Path(sys.prefix).resolve() == PEERS.resolve():
        return
    if not python.exists():
        sys.exit(f"bench_adam: no peers in {PEERS}; run scripts/peers.sh first")
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    os.execv(python, [str(python), *sys.argv])


class Ours:
    """bench_adam --serve: one step at a time, timed there."""

    LINES = ["triad", "triad_streamed", "adam_fp32", "adam_bf16"]

    def __init__(self, args):
        command = [str(args.build / "bench/bench_adam"), "--serve", "--numel", str(args.numel)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def seconds(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit("bench_adam: the C side stopped")
        return float(answer)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def peer_steps(numel):
    """name -> a function that runs one step, over shared tensors."""
    import torch
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    param = torch.nn.Parameter(torch.linspace(-1, 1, numel))
    param.grad = torch.linspace(2e-3, -2e-3, numel)
    grad16 = param.grad.to(torch.bfloat16)
    param16 = param.detach().to(torch.bfloat16)
    keywords = dict(lr=1e-4, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
    fused = torch.optim.AdamW([param], fused=True, **keywords)
    deepspeed = DeepSpeedCPUAdam([param], **keywords)
    fused.step()
    deepspeed.step()
    deepspeed.state[param] = fused.state[param] | {"step": 1}  # one set of moments serves both

    def sequence(step):
        param.grad.copy_(grad16)
        param.grad.mul_(0.5)
        step()
        param16.copy_(param.detach())

    return {
        "torch_fused_fp32": fused.step,
        "deepspeed_fp32": deepspeed.step,
        "torch_fused_bf16": lambda: sequence(fused.step),
        "deepspeed_bf16": lambda: sequence(deepspeed.step),
    }


def timed(step):
    begin = time.perf_counter()
    step()
    return time.perf_counter() - begin


def measure(args):
    """name -> seconds of every round; a first round warms up."""
    ours, peers = Ours(args), peer_steps(args.numel)
    every = {name: [] for name in [*Ours.LINES, *peers]}
    for _ in range(args.rounds + 1):
        for name in Ours.LINES:
            every[name].append(ours.seconds(name))
        for name, step in peers.items():
            every[name].append(timed(step))
    ours.close()
    return {name: seconds[1:] for name, seconds in every.items()}


def main():
    args = arguments()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    reenter_with_peers()
    import torch

    torch.set_num_threads(args.threads)
    every = measure(args)
    best = {name: min(seconds) for name, seconds in every.items()}
    median = {name: statistics.median(seconds) for name, seconds in every.items()}
    numel = args.numel
    ratios = {
        "fp32 vs torch fused AdamW": median["torch_fused_fp32"] / median["adam_fp32"],
        "fp32 vs DeepSpeed CPUAdam": median["deepspeed_fp32"] / median["adam_fp32"],
        "bf16 vs torch (cast, scale, step, cast)": median["torch_fused_bf16"] / median["adam_bf16"],
        "bf16 vs DeepSpeed (cast, scale, step, cast)": median["deepspeed_bf16"] / median["adam_bf16"],
        "fp32 bandwidth vs triad": 28 / 12 * median["triad"] / median["adam_fp32"],
        "bf16 bandwidth vs triad": 28 / 12 * median["triad"] / median["adam_bf16"],
    }
    if args.json:
        print(json.dumps({"numel": numel, "threads": args.threads, "best_s": best, "median_s": median,
                          "ratios": ratios}))
        return
    print(f"{numel / 1e6:.0f} M parameters, {args.threads} thread(s)")
    for name in best:
        print(f"  {name:<20} best {best[name] * 1e3:8.1f} ms   median {median[name] * 1e3:8.1f} ms")
    print("czero is faster by (medians)")
    for name, ratio in ratios.items():
        print(f"  {name:<46} {ratio:5.2f} x")


if __name__ == "__main__":
    main()
