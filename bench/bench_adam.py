#!/usr/bin/env python3
"""The optimizers on the host: czero beside PyTorch's fused AdamW and DeepSpeed's CPU classes, in one run.

    scripts/peers.sh && python3 bench/bench_adam.py [--numel N] [--rounds R] [--threads T] [--only WORD] [--cpu] [--json]

fp32: one step over N parameters. bf16: what a 16-bit model costs on the host; czero takes bf16 gradients
and writes bf16 parameters in the same pass. The peers do what DeepSpeed's offload does: cast the gradient
to fp32, multiply by the inverse of loss scale and clip factor, step, cast the parameters to bf16 (its
gradient norm, one more pass, is left out). czero and the peers take turns step by step, so that both see
the same machine. Memory: 24 bytes per parameter for each side. Arrays should be 4 times the last-level
cache or more: the default, 256 MiB each, is for caches up to 64 MiB.
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
    parser.add_argument("--only", default="", help="lines whose name holds this: adam_, adam_bf16, lion, …")
    parser.add_argument("--cpu", action="store_true", help="one thread, processor time: for a busy machine")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.cpu:
        args.threads = 1
    return args


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

    NBYTES = {"triad": 12, "triad_streamed": 12, "adam_fp32": 28, "adam_bf16": 28, "adam_fp16": 28,
              "adagrad_fp32": 20, "adagrad_bf16": 20, "lion_fp32": 20, "lion_bf16": 20,
              "lamb_fp32": 40, "lamb_bf16": 40}

    def __init__(self, args):
        command = [str(args.build / "bench/bench_adam"), "--serve", "--numel", str(args.numel)]
        command += ["--cpu"] if args.cpu else []
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
    from deepspeed.ops.adagrad import DeepSpeedCPUAdagrad
    from deepspeed.ops.adam import DeepSpeedCPUAdam
    from deepspeed.ops.lion import DeepSpeedCPULion

    param = torch.nn.Parameter(torch.linspace(-1, 1, numel))
    param.grad = torch.linspace(2e-3, -2e-3, numel)
    grad16 = param.grad.to(torch.bfloat16)
    param16 = param.detach().to(torch.bfloat16)
    keywords = dict(lr=1e-4, weight_decay=0.01)
    adam = keywords | dict(betas=(0.9, 0.999), eps=1e-8)
    torch_adam = torch.optim.AdamW([param], fused=True, **adam)
    torch_adam.step()
    # One set of moments serves all.
    state = torch_adam.state[param] | {"step": 1}
    optimizers = {"torch_adam": torch_adam, "deepspeed_adam": DeepSpeedCPUAdam([param], **adam),
                  "deepspeed_adagrad": DeepSpeedCPUAdagrad([param], **keywords),
                  "deepspeed_lion": DeepSpeedCPULion([param], betas=(0.9, 0.999), **keywords)}
    for name, optimizer in optimizers.items():
        if optimizer is not torch_adam:
            optimizer.state[param] = dict(state)

    def sequence(step):
        param.grad.copy_(grad16)
        param.grad.mul_(0.5)
        step()
        param16.copy_(param.detach())

    steps = {}
    for name, optimizer in optimizers.items():
        steps[f"{name}_fp32"] = optimizer.step
        steps[f"{name}_bf16"] = lambda step=optimizer.step: sequence(step)
    return steps


def timed(step, clock):
    begin = clock()
    step()
    return clock() - begin


def measure(args):
    """name -> seconds of every round; a first round warms up."""
    ours = Ours(args)
    names = [name for name in Ours.NBYTES if name.startswith("triad") or args.only in name]
    peers = {name: step for name, step in peer_steps(args.numel).items() if args.only in name}
    every = {name: [] for name in [*names, *peers]}
    for _ in range(args.rounds + 1):
        for name in names:
            every[name].append(ours.seconds(name))
        for name, step in peers.items():
            every[name].append(timed(step, time.process_time if args.cpu else time.perf_counter))
    ours.close()
    return {name: seconds[1:] for name, seconds in every.items()}


def ratios_of(seconds):
    """Faster than each peer by, and bytes moved against the triad's."""
    ratios = {}
    for peer in seconds:
        if peer.startswith(("torch", "deepspeed")):
            ours = peer.split("_", 1)[1]
            how = " (cast, scale, step, cast)" if peer.endswith("bf16") else ""
            ratios[f"{ours} against {peer.split('_')[0]}{how}"] = seconds[peer] / seconds[ours]
    for ours in (name for name in seconds if name in Ours.NBYTES and not name.startswith("triad")):
        for triad in ("triad", "triad_streamed"):
            bandwidth = Ours.NBYTES[ours] / 12 * seconds[triad] / seconds[ours]
            ratios[f"{ours} bandwidth against {triad}"] = bandwidth
    return ratios


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
    ratios, of_best = ratios_of(median), ratios_of(best)
    if args.json:
        print(json.dumps({"numel": numel, "threads": args.threads, "best_s": best, "median_s": median,
                          "ratios": ratios, "ratios_of_best": of_best}))
        return
    print(f"{numel / 1e6:.0f} M parameters, {args.threads} thread(s)")
    for name in best:
        print(f"  {name:<24} best {best[name] * 1e3:8.1f} ms   median {median[name] * 1e3:8.1f} ms"
              f"   {numel / median[name] * 1e-6:8.0f} M/s")
    print(f"{'ratios':<60} medians    bests")
    for name, ratio in ratios.items():
        print(f"  {name:<58} {ratio:6.2f} x {of_best[name]:6.2f} x")


if __name__ == "__main__":
    main()
