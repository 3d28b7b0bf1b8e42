#!/usr/bin/env python3
"""Attention on a GPU beside PyTorch's flash attention, shape by shape: those of bench/gpu/attention_cuda.c.

    python3 bench/gpu/attention_gpu.py [--czero build-gpu/czero] [--seconds 200] [--tiny [--peers]]

A figure is forward and backward together, with both beside PyTorch's in the note; q, k and v are stored as heads of rows
(B,T,H,D) on both sides. Where the build has two rows of tensor-core kernels each is timed: CZERO_CUDA_ATTENTION
chooses. PyTorch: scaled_dot_product_attention with the flash backend (fp32: the memory-efficient one), and cuDNN's
in the note. What --seconds leave no time for stays without a peer. --tiny: short lengths for the simulated device, without PyTorch; --peers: with it, on the CPU.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

from gpu_common import ROOT, Clock, figure, last_words, skipped

N_ROUNDS = 7


def program(args, row, seconds):
    """(exit code, stdout, stderr) of bench/attention_cuda with a row of kernels asked for; a kernel that has never run may not end."""
    path = os.path.join(os.path.dirname(os.path.abspath(args.czero)), "bench", "attention_cuda")
    only = ["no such shape"] if row == "none" else []
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen([path, *(["--tiny"] if args.tiny else []), *only], stdout=out, stderr=errors,
                                 env={**os.environ, **({"CZERO_CUDA_ATTENTION": row} if row else {})})
        try:
            child.wait(seconds)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            print(f"no end after {seconds:.0f} s", file=errors, flush=True)
        out.seek(0), errors.seek(0)
        return child.returncode, out.read(), errors.read()


def rows_of_kernels(args):
    """A build with several rows refuses an unknown row; a build with one row ignores the request."""
    return ["flash", "hopper"] if "CZERO_CUDA_ATTENTION" in program(args, "none", 30)[2] else [""]


def is_on_hopper(shape):
    """What the hopper row takes; the rest is the flash row's, or fp32 arithmetic."""
    return shape["dtype"] != "fp32" and shape["dropout"] == 0 and shape["D"] in (64, 128)


def ours(args, row, clock):
    """What bench/attention_cuda says of its shapes, by name; whether it ended well."""
    code, out, errors = program(args, row, max(10, clock.left(60)))
    lines = [json.loads(line) for line in out.splitlines() if line.startswith("{") and line.endswith("}")]
    if code != 0:
        why = last_words(errors, lines[-1].get("skipped", "") if lines else "")
        print(f"attention_cuda {row}: {why}", file=sys.stderr)
    return {x["figure"]: x for x in lines if "forward_ms" in x}, code == 0


class Torch:
    """Seconds of PyTorch's forward, and of forward and backward."""

    def __init__(self, is_tiny):
        import torch
        import torch.nn.attention

        self.torch, self.device = torch, "cpu" if is_tiny else "cuda"
        self.n = 1 if is_tiny else 20
        if not is_tiny and not torch.cuda.is_available():
            raise ImportError("torch sees no GPU")

    def median(self, run):
        for _ in range(2 if self.n == 1 else 5):
            run()
        rounds = []
        for _ in range(N_ROUNDS):
            self.wait()
            begin = time.perf_counter()
            for _ in range(self.n):
                run()
            self.wait()
            rounds.append((time.perf_counter() - begin) / self.n)
        return statistics.median(rounds)

    def wait(self):
        if self.device == "cuda":
            self.torch.cuda.synchronize()

    def time(self, shape, backend):
        torch = self.torch
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[shape["dtype"]]
        B, T, H, G, D = (shape[x] for x in "BTHGD")

        def heads(n):
            return torch.randn(B, T, n, D, device=self.device, dtype=dtype).transpose(1, 2).requires_grad_()

        q, k, v, dout = heads(H), heads(G), heads(G), torch.randn(B, T, H, D, device=self.device, dtype=dtype).transpose(1, 2)
        how = {"is_causal": shape["causal"], "dropout_p": shape["dropout"], "enable_gqa": G != H}

        def forward():
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, **how)

        def both():
            q.grad = k.grad = v.grad = None
            forward().backward(dout)

        with torch.nn.attention.sdpa_kernel(backend):
            return self.median(forward), self.median(both)

    def backends(self, shape):
        known = self.torch.nn.attention.SDPBackend
        if self.device == "cpu":
            return [("math", known.MATH)]
        if shape["dtype"] == "fp32":
            return [("memory-efficient", known.EFFICIENT_ATTENTION)]
        return [("flash", known.FLASH_ATTENTION), ("cuDNN", known.CUDNN_ATTENTION)]


def peers(torch, shape, clock):
    """{name of a backend: (forward, both)}, and why some are missing."""
    found, missing = {}, []
    for name, backend in torch.backends(shape):
        if clock.left() < 5:
            missing.append(f"{name}: no time is left")
            continue
        try:
            found[name] = torch.time(shape, backend)
        except (RuntimeError, TypeError) as e:
            missing.append(f"{name}: {str(e).strip().splitlines()[0][:80]}")
    return found, missing


def compare(name, row, shape, found, missing):
    forward, both = shape["forward_ms"], shape["forward_ms"] + shape["backward_ms"]
    note = f"forward {forward:.4g} ms, {shape['value']:.4g} TFLOP/s"
    for backend, (their_forward, theirs) in found.items():
        note += f"; {backend} {theirs * 1e3:.4g} ms, forward {their_forward * 1e3:.4g} ms"
    note += "".join(f"; {why}" for why in missing)
    is_goal = shape["dtype"] != "fp32"
    more = {}
    if found:
        fastest = min(found, key=lambda backend: found[backend][1])
        more = {"ratio": found[fastest][1] * 1e3 / both, "goal_of": f"x the speed of PyTorch's fastest, {fastest}"}
    if found and is_goal:
        more["goal"] = 1.0
    figure(f"{name}, {row} row" if row else name, both, "ms", note=note, **more)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--czero", default=os.path.join(ROOT, "build-gpu", "czero"))
    parser.add_argument("--seconds", type=float, default=200, help="for all of it (default: 200)")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--peers", action="store_true", help="in a tiny run, too: on the CPU")
    args = parser.parse_args()
    clock, torch = Clock(args.seconds), None
    try:
        torch = Torch(args.tiny) if args.peers or not args.tiny else None
    except ImportError as e:
        skipped("attention beside PyTorch's", e, goal=1.0)
    known, is_good = {}, True
    for row in rows_of_kernels(args):
        shapes, ended_well = ours(args, row, clock)
        is_good = is_good and ended_well
        for name, shape in shapes.items():
            if row == "hopper" and not is_on_hopper(shape):
                continue
            if torch and name not in known:
                known[name] = peers(torch, shape, clock)
            compare(name, row, shape, *known.get(name, ({}, [])))
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
