#!/usr/bin/env python3
"""Attention forward and backward on a GPU beside PyTorch's flash attention, on GPT-2's shape.

    python3 bench/attention_gpu.py [--czero build-gpu/czero] [--tiny]

16 × 12 heads of 64 over 1024 positions, causal, bf16: bench/ops_cuda.c's case, which runs first.
"""
import argparse
import json
import os
import subprocess
import sys

from gpu_common import ROOT, figure, skipped

NAME = "attention forward+backward beside PyTorch's flash attention"


def ours(args):
    program = os.path.join(os.path.dirname(os.path.abspath(args.czero)), "bench", "ops_cuda")
    done = subprocess.run([program, *(["--tiny"] if args.tiny else []), "attention"], capture_output=True, text=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    if done.returncode != 0 or not lines or "seconds" not in lines[-1]:
        raise RuntimeError(done.stderr.strip() or "bench/ops_cuda printed no time")
    return lines[-1]["seconds"]


def theirs():
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if not torch.cuda.is_available():
        raise ImportError("torch sees no GPU")
    q, k, v = (torch.randn(16, 12, 1024, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in "qkv")
    dout = torch.randn_like(q)

    def once():
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        out.backward(dout)

    for _ in range(5):
        once()
    times = []
    for _ in range(7):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(20):
            q.grad = k.grad = v.grad = None
            once()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 20e3)
    return sorted(times)[3], torch.__version__


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--czero", default=os.path.join(ROOT, "build-gpu", "czero"))
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    seconds = ours(args)
    try:
        peer, version = theirs()
    except ImportError as e:
        return skipped(NAME, e, goal=0.7)
    figure(NAME, seconds * 1e3, "ms", ratio=peer / seconds, goal=0.7, goal_of="x their speed",
           note=f"theirs {peer * 1e3:.3f} ms, torch {version}")


if __name__ == "__main__":
    try:
        main()
    except RuntimeError as e:
        sys.exit(f"attention_gpu: {e}")
