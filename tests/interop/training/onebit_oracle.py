#!/usr/bin/env python3
"""Random configs of the 1-bit family: `czero launch` at stages 0 and 1 beside our replay.

  onebit_oracle.py build/czero [--first SEED] [--count N]

One to five ranks, all three optimizers, fp32, bf16 and fp16, accumulation, clipping, frozen
parameters, groups, schedules and every setting that moves the schedule. Prints, per seed, the
largest difference in the loss before and after the freeze, and every disagreement. Needs PyTorch
and transformers alone: the python of scripts/peers.sh, with or without --onebit.
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile

import curves
import onebit_curves

STEPS = 24
FREEZE = {"": "", "wpe": "wpe", "h.0.": r"h\.0\."}


def adam(rng):
    return {"lr": rng.choice([5e-4, 1e-3, 2e-3]), "eps": rng.choice([3e-3, 5e-3, 1e-2]),
            "freeze_step": rng.randint(1, 12)}


def zero_one(rng):
    return {"lr": rng.choice([1e-4, 3e-4]), "eps": rng.choice([1e-3, 3e-3]), "var_freeze_step": rng.randint(1, 20),
            "var_update_scaler": rng.randint(1, 5), "local_step_scaler": rng.randint(1, 6),
            "local_step_clipper": rng.randint(1, 9)}


def lamb(rng):
    return {"lr": rng.choice([2e-3, 5e-3]), "eps": rng.choice([1e-8, 1e-4]), "freeze_step": rng.randint(3, 12),
            "max_coeff": rng.choice([0.3, 1.0]), "min_coeff": rng.choice([0.01, 0.1]),
            "coeff_beta": rng.choice([0.5, 0.9]), "factor_max": rng.choice([2.0, 4.0]),
            "factor_min": rng.choice([0.5, 0.8]), "factor_threshold": rng.choice([0.05, 0.1, 0.3])}


KINDS = {"OneBitAdam": adam, "ZeroOneAdam": zero_one, "OneBitLamb": lamb}


def random_run(seed):
    rng = random.Random(seed)
    kind = rng.choice(list(KINDS))
    params = {"comm_backend_name": "compressed", "betas": rng.choice([[0.9, 0.999], [0.8, 0.95], [0.9, 0.98]]),
              "weight_decay": rng.choice([0.0, 0.0, 0.05, 0.3]), **KINDS[kind](rng)}
    config = {"train_micro_batch_size_per_gpu": rng.randint(1, 2), "gradient_accumulation_steps": rng.choice([1, 1, 2]),
              "gradient_clipping": rng.choice([0.0, 0.0, 0.7, 1.5]),
              "optimizer": {"type": kind, "params": params}}
    if rng.random() < 0.5:
        config["scheduler"] = {"type": "WarmupLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": params["lr"],
                                                              "warmup_num_steps": rng.randint(2, 8),
                                                              "warmup_type": rng.choice(["log", "linear"])}}
    precision = rng.choice(["fp32", "fp32", "bf16", "fp16"])
    if precision == "bf16":
        config["bf16"] = {"enabled": True}
    elif precision == "fp16":
        config["fp16"] = {"enabled": True, "loss_scale": rng.choice([128, 1024, 4096])}
        if kind == "OneBitLamb":  # refuses a static scale
            config["fp16"] = {"enabled": True, "initial_scale_power": 10}
    return dict(name=f"seed {seed}", world=rng.randint(1, 5), steps=STEPS, seq=rng.choice([32, 64]),
                freeze=rng.choice(["", "", "wpe", "h.0."]), groups=rng.choice(["", "", "hf"]), config=config)


def by_czero(czero, run, stage):
    data = curves.ROOT / "tests" / "data"
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "config.json").write_text(json.dumps(run["config"]))
        command = [czero, "launch", "-n", str(run["world"]), "--", "train", "--config", "config.json",
                   "--model", str(data / "models" / "gpt2-tiny"), "--data", str(data / "text" / "fortunes-64k.txt"),
                   "--tokenizer", "bytes", "--shuffle", "off", "--seq-len", str(run["seq"]), "--steps", str(STEPS),
                   "--curve", "curve.csv", "--quiet", "--set", f"zero_optimization.stage={stage}"]
        if run["groups"]:
            command += ["--groups", run["groups"]]
        if run["freeze"]:
            command += ["--freeze", FREEZE[run["freeze"]]]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr.strip()[-400:])
        return [[int(row[0]), *row[1:]] for row in onebit_curves.read_curve(folder / "curve.csv")]


def describe(run):
    c = run["config"]
    return f"{run['name']}: {c['optimizer']['type']} {onebit_curves.precision(c)} world {run['world']} " \
        f"gas {c['gradient_accumulation_steps']} clip {c['gradient_clipping']} seq {run['seq']} " \
        f"freeze '{run['freeze']}' groups '{run['groups']}'"


def spread(run, replayed):
    """How far the replay's own losses move when weights are moved by a rounding step, after the freeze."""
    step = 2 * onebit_curves.half_step(run["config"])
    rows = [onebit_curves.by_replay(run, nudged=factor * step) for factor in (1, -1, 2)]
    return max(onebit_curves.difference(run, row, replayed)[0][1] for row in rows)


def try_seed(czero, seed):
    """Whether czero agrees with the replay as closely as that with itself, and its stages with each other."""
    run = random_run(seed)
    whole, split = by_czero(czero, run, 0), by_czero(czero, run, 1)
    replayed = onebit_curves.by_replay(run)
    worst, wrong = onebit_curves.difference(run, whole, replayed)
    stages = [f"step {a[0]}: {a[1:]} at stage 0, {b[1:]} at stage 1" for a, b in zip(whole, split) if a != b]
    print(f"{describe(run)}: {worst[0]:.2g} before the freeze, {worst[1]:.2g} after it", *(wrong + stages)[:4],
          sep="\n    ", flush=True)
    if wrong:
        moved = spread(run, replayed)
        print(f"    a rounding step in the weights moves the replay by {moved:.2g}", json.dumps(run["config"]),
              sep="\n    ", flush=True)
        if all("loss" in line for line in wrong) and worst[1] < 4 * moved:
            wrong = []
    return not wrong and not stages


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("czero")
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--count", type=int, default=20)
    args = parser.parse_args()
    curves.quiet_peers()
    import torch
    torch.set_num_threads(1)
    import transformers  # noqa: F401
    czero = str(pathlib.Path(args.czero).resolve())
    failed = [seed for seed in range(args.first, args.first + args.count) if not try_seed(czero, seed)]
    if failed:
        sys.exit(f"{len(failed)} of {args.count} disagree: {failed}")


if __name__ == "__main__":
    main()
