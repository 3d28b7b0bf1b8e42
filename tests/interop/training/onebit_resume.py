#!/usr/bin/env python3
"""Checkpoints of the 1-bit family both ways: DeepSpeed 0.16.9 resumes from czero's, czero from its.

  onebit_resume.py CZERO [NAME...]     all runs below, or those named

Run with the python that `scripts/peers.sh --onebit` prints. What DeepSpeed has loaded from czero's
folder must be the files' weights, moments and counters. Then
  - DeepSpeed trains on from czero's folder as it does from its own,
  - czero trains on from its own as DeepSpeed does that never stopped: errors are not lost,
  - czero's first loss from DeepSpeed's folder is DeepSpeed's. (Later ones are not compared: rank 0's
    errors alone are in there, and DeepSpeed's own first step after a load only initialises.)
"""
import argparse
import csv
import json
import pathlib
import subprocess
import sys
import tempfile

import curves
import onebit_curves

MODEL = curves.FIXTURES / "models" / "gpt2-tiny"
TEXT = curves.FIXTURES / "text" / "fortunes.txt"
SAVED, MORE, SEQ, WORLD = 10, 4, 32, 2
STEADY = {"enabled": True, "initial_scale_power": 10, "loss_scale_window": 1000, "hysteresis": 1}
RUNS = {}


def run(name, kind, params, **sections):
    """SAVED is past the freeze, unless the name says otherwise."""
    RUNS[name] = {"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0.0, "zero_optimization": {"stage": 0},
                  "optimizer": {"type": kind, "params": {"comm_backend_name": "compressed", "eps": 1e-3, **params}},
                  **sections}


run("adam", "OneBitAdam", {"lr": 1e-3, "freeze_step": 6, "weight_decay": 0.01})
run("adam-warm-up", "OneBitAdam", {"lr": 1e-3, "freeze_step": 12})
run("adam-fp16", "OneBitAdam", {"lr": 1e-3, "freeze_step": 6}, fp16=STEADY)
run("zeroone", "ZeroOneAdam", {"lr": 1e-3, "var_freeze_step": 40, "var_update_scaler": 2})
run("lamb", "OneBitLamb", {"lr": 5e-3, "freeze_step": 6, "max_coeff": 0.3, "min_coeff": 0.01})


def engine_make(config):
    import deepspeed
    import torch
    torch.manual_seed(0)
    curves.allow_fp16()
    model = curves.load_model(MODEL, "")
    return deepspeed.initialize(model=model, model_parameters=curves.param_groups(model, ""), config=config)[0]


def train_steps(engine, rank, world, steps):
    import torch
    first, micro = engine.global_steps, engine.train_micro_batch_size_per_gpu()
    tokens = torch.tensor(list(TEXT.read_bytes()[:(first + steps) * world * micro * SEQ + 1]), dtype=torch.long)
    losses = []
    engine.train()
    for step in range(first, first + steps):
        inputs, targets = curves.micro_batch(tokens, (step * world + rank) * micro, micro, SEQ)
        loss = curves.token_loss(engine, inputs, targets)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def differences(engine, folder):
    """What of the optimizer's states is not as in the model file; errors DeepSpeed has dropped."""
    import torch
    saved = torch.load(next(pathlib.Path(folder).glob("*/mp_rank_00_model_states.pt")), weights_only=False)
    optimizer = saved["optimizer"].get("optimizer_state_dict", saved["optimizer"])
    base = engine.optimizer if not hasattr(engine.optimizer, "optimizer") else engine.optimizer.optimizer
    loaded = base.state_dict()["state"]
    wrong = [] if len(loaded) == len(optimizer["state"]) else ["another number of states"]
    for number, state in optimizer["state"].items():
        for key, value in state.items():
            if key in ("worker_error", "server_error", "momentum_accumulator"):
                continue
            have = loaded[number][key]
            same = torch.equal(have, value) if torch.is_tensor(value) else have == value
            wrong += [] if same else [f"state {number}: {key} is {have}, not {value}"]
    module = engine.module.state_dict()
    wrong += [f"{n} differs" for n, w in saved["module"].items() if not torch.equal(module[n], w)]
    return wrong + ([] if engine.global_steps == SAVED else [f"{engine.global_steps} steps"])


def resume(rank, world, config, folder):
    engine = engine_make(config)
    path, _ = engine.load_checkpoint(str(folder))
    wrong = differences(engine, folder) if path else ["load_checkpoint found nothing"]
    return train_steps(engine, rank, world, MORE), wrong


def make(rank, world, config, folder):
    engine = engine_make(config)
    train_steps(engine, rank, world, SAVED)
    engine.save_checkpoint(str(folder))
    return train_steps(engine, rank, world, MORE), []


def czero(binary, folder, config, *arguments):
    """Train; the losses of this part."""
    (folder / "curve.csv").unlink(missing_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    command = [binary, "launch", "-n", WORLD, "--", "train", "--config", folder / "config.json", "--model", MODEL,
               "--data", TEXT, "--tokenizer", "bytes", "--shuffle", "off", "--seq-len", SEQ, "--quiet", "--curve",
               folder / "curve.csv", *arguments]
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise RuntimeError("czero: " + done.stderr.strip())
    with open(folder / "curve.csv") as f:
        return [float(row["loss"]) for row in csv.DictReader(f)]


def mean(ranks):
    return [sum(each) / WORLD for each in zip(*(losses for losses, _ in ranks))]


def gap(one, other):
    return max(abs(a - b) for a, b in zip(one, other))


def check(binary, name, config):
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        ours, theirs, steps = scratch / "ours", scratch / "theirs", ("--steps", SAVED + MORE)
        czero(binary, scratch, config, "--steps", SAVED, "--save", ours)
        whole = mean(curves.run_apart(WORLD, make, config=config, folder=theirs))
        from_ours = curves.run_apart(WORLD, resume, config=config, folder=ours)
        from_theirs = mean(curves.run_apart(WORLD, resume, config=config, folder=theirs))
        on = czero(binary, scratch, config, *steps, "--resume", ours)[-MORE:]
        over = czero(binary, scratch, config, *steps, "--resume", theirs)[-MORE:]
    gaps = {"DeepSpeed from ours as from its own": gap(mean(from_ours), from_theirs),
            "czero from ours as DeepSpeed without a stop": gap(on, whole),
            "czero from theirs, first loss": gap(over[:1], whole)}
    limit = 2e-2 if "fp16" in config else 1e-2
    wrong = [w for _, rank in from_ours for w in rank]
    wrong += [f"{what}: losses differ by {g:.2g}" for what, g in gaps.items() if not g <= limit]
    print(f"{name}: " + "; ".join(f"{what}: {g:.1e}" for what, g in gaps.items()), *wrong[:4], sep="\n    ")
    return not wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", metavar="CZERO")
    parser.add_argument("names", nargs="*", metavar="NAME")
    arguments = parser.parse_args()
    onebit_curves.prepare()
    binary = pathlib.Path(arguments.binary).resolve()
    results = [check(binary, n, c) for n, c in RUNS.items() if not arguments.names or n in arguments.names]
    sys.exit(0 if results and all(results) else 1)


if __name__ == "__main__":
    main()
