#!/usr/bin/env python3
"""The same GPT-2 weights in czero and in transformers on one GPU: do they learn alike?

    python3 bench/gpu/same_weights_gpu.py [--batch 8] [--steps 5] [--seconds 120] [--czero build-gpu/czero] [--tiny [--peers]]

transformers draws GPT-2 124M (vocabulary 50257: no multiple of 8) once and saves it; both sides then train on the same
tokens with AdamW and clipping at norm 1, in fp32 and in bf16 (PyTorch by autocast over fp32 weights, as czero has fp32
masters). Two figures each: the largest relative difference of a step's loss, and of its gradient's norm. --tiny: a
small model for the simulated device; --peers: with PyTorch on the CPU.
"""
import argparse
import os
import sys
import tempfile

from gpu_common import ROOT, Clock, config_dir, figure, run_peer, skipped, token_file, train_czero

# name, config, at most: of the loss, of the norm
KINDS = [("fp32", {}, 1e-4, 1e-3), ("bf16", {"bf16": {"enabled": True}}, 2e-3, 3e-2)]


def ds_config(batch, more):
    return {"train_micro_batch_size_per_gpu": batch, "gradient_clipping": 1.0, "zero_optimization": {"stage": 0},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.01}}, **more}


def worst(have, want):
    return max(abs(a - b) / abs(b) for a, b in zip(have, want, strict=True))


def compare(args, model, data, kind, clock):
    name, more, loss_most, norm_most = kind
    what = f"the same weights, {name}"
    try:
        ours = train_czero(args.czero, ds_config(args.batch, more), model, data, args.seq_len, args.steps,
                           timeout=clock.left(90), weights=())
        theirs = run_peer("torch_gpu.py", "--model", model, "--weights", "--data", data, "--mode", f"{name}-like", "--batch",
                          args.batch, "--seq-len", args.seq_len, "--steps", args.steps, "--device",
                          "cpu" if args.tiny else "cuda", timeout=clock.left(90))
    except RuntimeError as e:
        return skipped(f"{what}: loss", e, goal_max=loss_most)
    for of, key, most in ("loss", "losses", loss_most), ("norm of the gradient", "norms", norm_most):
        apart = worst(ours[key], theirs[key])
        note = ", ".join(f"{a:.5g} and {b:.5g}" for a, b in zip(ours[key], theirs[key]))
        figure(f"{what}: {of}", apart, "", ratio=apart, goal_max=most, goal_of="apart over all steps", note=note)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--czero", default=os.path.join(ROOT, "build-gpu", "czero"))
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=200, help="for all of it (default: 200)")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--peers", action="store_true", help="in a tiny run, too: on the CPU")
    args = parser.parse_args()
    clock, shape = Clock(args.seconds), (12, 768, 12, 50257)
    if args.tiny:
        shape = 2, 64, 2, 257
        args.batch, args.seq_len = 2, 32
        if not args.peers:
            return skipped("the same weights", "a tiny run")
    with tempfile.TemporaryDirectory() as work:
        model = config_dir(os.path.join(work, "model"), *shape, args.seq_len)
        data = token_file(os.path.join(work, "tokens.bin"), args.batch * args.seq_len * args.steps + 1, shape[3])
        try:
            run_peer("torch_gpu.py", "--model", model, "--draw", timeout=clock.left(60))
        except RuntimeError as e:
            return skipped("the same weights", e)
        for kind in KINDS:
            compare(args, model, data, kind, clock)


if __name__ == "__main__":
    try:
        main()
    except RuntimeError as e:
        sys.exit(f"same_weights_gpu: {e}")
