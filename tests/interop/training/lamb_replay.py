#!/usr/bin/env python3
"""Lamb written down once more, in plain PyTorch, beside `czero train`.

  lamb_replay.py build/czero [--steps N]

gpt2-tiny over the fixtures' text: the formulas of ops/lamb/lamb.h in fp32 and in float64, one trust ratio per
parameter, the gradient of the mean over ranks, clipped; against czero at stages 0 to 3 on one and two ranks. Prints
the largest differences of losses and gradient norms; czero's own curves must be one curve per number of ranks.

Run with the python that scripts/peers.sh prints.
"""
import argparse
import csv
import json
import math
import pathlib
import subprocess
import sys
import tempfile

from curves import FIXTURES, load_model, micro_batch, quiet_peers
from lamb_kernel import lamb

MICRO, SEQ, CLIP = 2, 64, 1.0
PARAMS = {"lr": 0.01, "betas": [0.9, 0.99], "eps": 1e-6, "weight_decay": 0.05, "max_coeff": 4.0, "min_coeff": 0.02}


def update(p, g, state, t):
    """One update of one tensor, in its own dtype; the trust ratio is returned."""
    b1, b2 = PARAMS["betas"]
    return lamb(p, None, state["m"], state["v"], g, PARAMS["lr"], b1, b2, PARAMS["max_coeff"], PARAMS["min_coeff"],
                PARAMS["eps"], 1.0, t, 1, True, PARAMS["weight_decay"]).item()


def replay(world, steps, dtype):
    """Losses, norms and all trust ratios."""
    import torch
    text = (FIXTURES / "text" / "fortunes.txt").read_bytes()
    tokens = torch.tensor(list(text[:(steps * world * MICRO + 1) * SEQ + 1]), dtype=torch.long)
    model = load_model(FIXTURES / "models" / "gpt2-tiny", None).to(dtype)
    params = list(model.parameters())
    states = [{"m": torch.zeros_like(p), "v": torch.zeros_like(p)} for p in params]
    losses, norms, ratios = [], [], []
    for step in range(steps):
        model.zero_grad()
        losses.append(0.0)
        for rank in range(world):
            inputs, targets = micro_batch(tokens, (step * world + rank) * MICRO, MICRO, SEQ)
            logits = model(input_ids=inputs, use_cache=False).logits
            loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))
            (loss / world).backward()
            losses[-1] += loss.item() / world
        norm = math.sqrt(sum(p.grad.double().pow(2).sum().item() for p in params))
        clip = max(1.0, (norm + 1e-6) / CLIP)
        norms.append(norm)
        with torch.no_grad():
            ratios += [update(p, p.grad / clip, s, step + 1) for p, s in zip(params, states)]
    return losses, norms, ratios


def train(czero, work, world, stage, steps):
    config = {"train_micro_batch_size_per_gpu": MICRO, "gradient_clipping": CLIP, "zero_allow_untested_optimizer": True,
              "optimizer": {"type": "Lamb", "params": PARAMS}, "zero_optimization": {"stage": stage}}
    (work / "config.json").write_text(json.dumps(config))
    launch = [czero, "launch", "-n", str(world), "--", "train"] if world > 1 else [czero, "train"]
    (work / "curve.csv").unlink(missing_ok=True)
    subprocess.run([*launch, "--config", work / "config.json", "--model", FIXTURES / "models" / "gpt2-tiny", "--data",
                    FIXTURES / "text" / "fortunes.txt", "--tokenizer", "bytes", "--seq-len", str(SEQ), "--steps",
                    str(steps), "--shuffle", "off", "--curve", work / "curve.csv", "--quiet"], check=True,
                   stdout=subprocess.DEVNULL)
    rows = list(csv.DictReader(open(work / "curve.csv")))
    return [float(r["loss"]) for r in rows], [float(r["grad_norm"]) for r in rows]


def largest(a, b, relative=False):
    return max(abs(x - y) / (abs(y) if relative else 1) for x, y in zip(a, b, strict=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("czero", type=lambda p: pathlib.Path(p).absolute())
    parser.add_argument("--steps", type=int, default=30)
    args = parser.parse_args()
    quiet_peers()
    import torch
    failed = False
    for world in (1, 2):
        exact = replay(world, args.steps, torch.float64)
        single = replay(world, args.steps, torch.float32)
        curves = []
        with tempfile.TemporaryDirectory() as work:
            for stage in range(4):
                curves.append(train(args.czero, pathlib.Path(work), world, stage, args.steps))
        losses, norms = curves[0]
        print(f"{world} rank{'s' if world > 1 else ''}, {args.steps} steps, loss {losses[0]:.4f} to {losses[-1]:.4f}, "
              f"trust ratios {min(exact[2]):.3g} to {max(exact[2]):.3g}")
        for name, other in (("float64", exact), ("fp32", single)):
            loss, norm = largest(losses, other[0]), largest(norms, other[1], relative=True)
            print(f"  czero against PyTorch in {name}: loss {loss:.2g}, norm {norm:.2g} (relative)")
            failed |= loss > 1e-5 or norm > 1e-4
        print(f"  PyTorch in fp32 against float64: loss {largest(single[0], exact[0]):.2g}")
        one = all(curve == curves[0] for curve in curves)
        print(f"  stages 0 to 3 of czero: {'one curve' if one else 'SEVERAL CURVES'}")
        failed |= not one
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
