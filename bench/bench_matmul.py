#!/usr/bin/env python3
"""Matmul, attention and the vocabulary head: czero beside PyTorch on the same cores, in one run.

    scripts/peers.sh && python3 bench/bench_matmul.py [--rounds R] [--threads T] [--cpu] [--json] [WORD …]

The sizes are those of GPT-2 124M with 1024 tokens. czero (bench_matmul --serve) and PyTorch take turns
case by case, so that both see the same machine. WORDs keep the cases that hold all of them. --cpu
compares processor time instead of time on the wall, for one thread on a machine that others use too.
PyTorch's attention is scaled_dot_product_attention, once as it chooses (its flash kernel) and once
forced to the plain form with the score matrix; with windows or documents it gets a mask, and with a
soft cap, which it lacks, it is products, tanh and softmax. Its head is a product, cross_entropy and
backward.
"""
import argparse
import json
import os
import pathlib
import statistics
import string
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PEERS = pathlib.Path(os.environ.get("CZERO_PEERS", pathlib.Path.home() / ".cache/czero-peers/venv"))

LINEARS = [(768, 2304), (768, 768), (768, 3072), (3072, 768)]
CASES = [
    *(f"matmul {dtype} {form} 1024 {i} {o}"
      for dtype in ("fp32", "bf16") for i, o in LINEARS for form in ("fwd", "dgrad", "wgrad")),
    *(f"attention {dtype} {form} 4 12 {t} 64"
      for dtype in ("fp32", "bf16") for t in (256, 1024) for form in ("fwd", "bwd")),
    *(f"attention fp32 {form} 1 2 4096 64{option}"
      for option in ("", " window256", " documents128", " softcap50") for form in ("fwd", "bwd")),
    *(f"ce_head {dtype} train 1024 768 50257" for dtype in ("fp32", "bf16")),
]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("words", nargs="*")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.cpu and args.threads != 1:
        sys.exit("bench_matmul: --cpu goes with --threads 1")
    return args


def reenter_with_peers():
    """This script runs under any Python; torch is installed in its own environment."""
    python = PEERS / "bin/python"
    if pathlib.Path(sys.prefix).resolve() == PEERS.resolve():
        return
    if not python.exists():
        sys.exit(f"bench_matmul: no peers in {PEERS}; run scripts/peers.sh first")
    os.execv(python, [str(python), *sys.argv])


class Ours:
    """bench_matmul --serve: one case at a time, timed there."""

    def __init__(self, args):
        command = [str(args.build / "bench/bench_matmul"), "--serve"] + ["--cpu"] * args.cpu
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def seconds(self, case):
        self.process.stdin.write(case + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit("bench_matmul: the C side stopped")
        return float(answer)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def matmul_peer(dtype, form, n, i, o):
    import torch

    x, w, dy = (torch.randn(shape, dtype=dtype) for shape in ((n, i), (i, o), (n, o)))
    return {"fwd": lambda: x @ w, "dgrad": lambda: dy @ w.t(), "wgrad": lambda: x.t() @ dy}[form]


def attention_mask(t, options):
    """(T,T): which keys a query sees; options: name -> number."""
    import torch

    at = torch.arange(t)
    behind = at[:, None] - at[None, :]
    mask = behind >= 0
    if "window" in options:
        mask &= behind < options["window"]
    if "documents" in options:
        document = at // options["documents"]
        mask &= document[:, None] == document[None, :]
    return mask


def attention_peer(dtype, form, b, h, t, d, options):
    """A pair: what runs outside the measurement, and what is measured."""
    import torch

    mask = attention_mask(t, options) if options else None
    cap = options.get("softcap")
    qkv = torch.randn(b, t, 3 * h * d, dtype=dtype, requires_grad=True)
    q, k, v = (x.view(b, t, h, d).transpose(1, 2) for x in qkv.split(h * d, 2))
    dout = torch.randn(b, h, t, d, dtype=dtype)

    def forward():
        if cap:
            s = cap * torch.tanh(q @ k.transpose(2, 3) / (d ** 0.5 * cap))
            return torch.softmax(s.masked_fill(~mask, float("-inf")), -1) @ v
        if options:
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    if form == "fwd":
        return lambda: None, lambda _: forward()
    return forward, lambda out: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)


def head_peer(dtype, n, c, v):
    import torch

    x = torch.randn(n, c, dtype=dtype, requires_grad=True)
    w = torch.randn(v, c, dtype=dtype).mul_(0.02).requires_grad_()
    labels = torch.arange(n) * 7919 % v

    def step():
        x.grad = w.grad = None
        torch.nn.functional.cross_entropy((x @ w.t()).float(), labels).backward()

    return step


def peers_of(case):
    """name -> function that runs the case once and returns its seconds."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    op, dtype, form, *words = case.split()
    dtype, sizes = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype], [int(w) for w in words if w.isdigit()]
    options = {word.rstrip("0123456789"): int(word.lstrip(string.ascii_lowercase))
               for word in words if not word.isdigit()}
    if op == "matmul":
        run = matmul_peer(dtype, form, *sizes)
        return {"torch": lambda clock: timed(run, clock)}
    if op == "ce_head":
        run = head_peer(dtype, *sizes)
        return {"torch": lambda clock: timed(run, clock)}
    before, run = attention_peer(dtype, form, *sizes, options)

    def masked(clock):
        out = before()
        return timed(lambda: run(out), clock)

    def under(backend):
        def once(clock):
            with sdpa_kernel(backend):
                out = before()
                return timed(lambda: run(out), clock)
        return once

    if options:
        return {"torch masked": masked}
    return {"torch flash": under(SDPBackend.FLASH_ATTENTION), "torch math": under(SDPBackend.MATH)}


def timed(run, clock):
    begin = clock()
    run()
    return clock() - begin


def measure(case, ours, args):
    """name -> median seconds; a first round warms up."""
    clock = time.thread_time if args.cpu else time.perf_counter
    peers = peers_of(case)
    every = {"czero": [], **{name: [] for name in peers}}
    for _ in range(args.rounds + 1):
        every["czero"].append(ours.seconds(case))
        for name, run in peers.items():
            every[name].append(run(clock))
    return {name: statistics.median(seconds[1:]) for name, seconds in every.items()}


def main():
    args = arguments()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    reenter_with_peers()
    import torch

    torch.set_num_threads(args.threads)
    torch.set_grad_enabled(True)
    ours, results = Ours(args), {}
    cases = [case for case in CASES if all(word in case for word in args.words)]
    if not args.json:
        print(f"{args.threads} thread(s), torch {torch.__version__}, medians of {args.rounds} rounds")
        print(f"{'':<36} {'czero ms':>9}   peer ms, and czero is faster by")
    for case in cases:
        medians = measure(case, ours, args)
        results[case] = medians
        if args.json:
            continue
        peers = (f"{name} {seconds * 1e3:.2f} {seconds / medians['czero']:.2f} x"
                 for name, seconds in medians.items() if name != "czero")
        print(f"{case:<36} {medians['czero'] * 1e3:9.2f}   {'   '.join(peers)}", flush=True)
    ours.close()
    if args.json:
        print(json.dumps({"threads": args.threads, "median_s": results}))


if __name__ == "__main__":
    main()
