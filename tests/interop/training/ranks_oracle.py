#!/usr/bin/env python3
"""Random configs on random GPT-2 shapes over ranks: DeepSpeed's curve against `czero launch`.

  ranks_oracle.py CZERO [--first SEED] [--count N]

Run with the python that scripts/peers.sh prints; about 10 s a seed on two cores. A seed repeats its
config; its stage is seed mod 4. Prints a line per seed, and the config of one that disagrees.
"""
import argparse
import json
import math
import pathlib
import random
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
import curves
from runs import OFFLOAD

STEPS = 8
TEXT = curves.ROOT / "tests" / "data" / "text" / "fortunes-64k.txt"
# Nothing divides anything: embedding, layers, heads, inner width, vocabulary, positions.
SHAPES = {"three": (30, 3, 3, None, 259, 40), "one": (22, 1, 2, 31, 300, 33),
          "deep": (15, 5, 5, None, 257, 48), "wide": (66, 2, 6, None, 256, 64)}
# loss (absolute), norm (relative)
LIMITS = {"fp32": (1e-5, 1e-4), "bf16": (5e-3, 2e-2), "fp16": (5e-3, 2e-2)}
WIRE_LIMITS = (1e-4, 1e-3)  # fp32 that travels in 16 bits


def models_make(folder):
    import torch
    import transformers
    torch.manual_seed(7)
    for name, (width, layers, heads, inner, vocabulary, positions) in SHAPES.items():
        shape = transformers.GPT2Config(n_embd=width, n_layer=layers, n_head=heads, n_inner=inner,
                                        vocab_size=vocabulary, n_positions=positions, resid_pdrop=0,
                                        embd_pdrop=0, attn_pdrop=0, bos_token_id=None, eos_token_id=None)
        transformers.GPT2LMHeadModel(shape).save_pretrained(folder / name)


def pick_optimizer(rng, stage, precision, config):
    """At stage 0 DeepSpeed's 16-bit wrappers take a dry step: only what it does not move is drawn."""
    kinds = ["SGD", "Adagrad"] if stage == 0 and precision != "fp32" else ["AdamW", "Adam", "SGD", "Adagrad", "Lion"]
    kind = rng.choice([k for k in kinds if stage or k != "Lion"])
    params = {"lr": {"AdamW": 1e-3, "Adam": 2e-3, "SGD": 0.05, "Adagrad": 0.005, "Lion": 2e-4}[kind]}
    if kind == "SGD":
        params["momentum"] = 0.9
        config["zero_allow_untested_optimizer"] = True
    elif kind != "Adagrad":
        params["weight_decay"] = rng.choice([0, 0.01, 0.1])
    if kind == "Adam" and rng.random() < 0.5:
        params["adam_w_mode"] = False
    if kind == "Lion" or (stage and kind != "SGD" and rng.random() < 0.2):
        config["zero_optimization"].update(OFFLOAD)
    config["optimizer"] = {"type": kind, "params": params}
    if rng.random() < 0.3:
        config["scheduler"] = {"type": "WarmupLR", "params": {"warmup_max_lr": params["lr"], "warmup_num_steps": 4}}


def pick_precision(rng, stage, config):
    precision = rng.choice(["fp32", "fp32", "bf16", "fp16"])
    config["gradient_clipping"] = rng.choice([0.0, 0.2, 1.0, 3.0])
    if precision == "bf16":
        config["bf16"] = {"enabled": True}
        if stage and rng.random() < 0.4:
            config["data_types"] = {"grad_accum_dtype": "fp32"}
    if precision == "fp16":
        config["fp16"] = {"enabled": True, "loss_scale": rng.choice([64, 1024]) if stage else 1}
    if rng.random() < 0.3:
        config["communication_data_type"] = rng.choice(["fp32", "bf16", "fp16"])
    return precision


def pick_reduction(rng, stage, config):
    zero = config["zero_optimization"]
    if rng.random() < 0.5:
        zero["reduce_bucket_size"] = rng.choice([1, 500, 3000, 20000])
    if rng.random() < 0.4:
        zero["overlap_comm"] = rng.random() < 0.5
    for key in ("round_robin_gradients", "contiguous_gradients"):
        if stage in (1, 2) and rng.random() < 0.3:
            zero[key] = rng.random() < 0.5
    if stage and rng.random() < 0.4:
        zero["reduce_scatter"] = False
    if stage and zero.get("reduce_scatter", True):
        return
    kind = rng.choice(["", "divide", "pre", "sum"])
    if kind == "divide":
        # Never the number of ranks: at stage 3 DeepSpeed's mean is then wrong.
        config["gradient_predivide_factor"] = rng.choice([1.5, 0.5])
    elif kind == "pre":
        config["prescale_gradients"] = True
    elif kind == "sum" and stage < 3:
        config["gradient_allreduce_op"] = "sum"


def pick_fetches(rng, zero):
    for key, values in {"sub_group_size": [1, 300, 5000], "stage3_param_persistence_threshold": [0, 50, 2000, 10**6],
                        "stage3_prefetch_bucket_size": [0, 1000], "stage3_max_live_parameters": [0, 8000],
                        "stage3_max_reuse_distance": [0, 8000]}.items():
        if rng.random() < 0.5:
            zero[key] = rng.choice(values)


def pick(seed):
    rng = random.Random(seed)
    stage = seed % 4
    config = {"train_micro_batch_size_per_gpu": rng.choice([1, 2, 3]),
              "gradient_accumulation_steps": rng.choice([1, 1, 2, 3]), "zero_optimization": {"stage": stage}}
    precision = pick_precision(rng, stage, config)
    pick_optimizer(rng, stage, precision, config)
    pick_reduction(rng, stage, config)
    if stage == 3:
        pick_fetches(rng, config["zero_optimization"])
    # DeepSpeed rebuilds Adagrad with one group and fails with two.
    groups = "" if config["optimizer"]["type"] == "Adagrad" else rng.choice(["", "", "hf"])
    return dict(config=config, precision=precision, world=rng.choice([2, 3, 4, 5]), model=rng.choice(sorted(SHAPES)),
                seq=rng.choice([16, 24, 33]), freeze=rng.choice(["", "", "", "h.0.", "ln_f", "wte"]), groups=groups)


def train_czero(czero, folder, case):
    (folder / "config.json").write_text(json.dumps(case["config"]))
    command = [czero, "launch", "-n", str(case["world"]), "--", "train", "--config", folder / "config.json",
               "--model", folder / case["model"], "--data", TEXT, "--tokenizer", "bytes", "--shuffle", "off",
               "--seq-len", str(case["seq"]), "--steps", str(STEPS), "--curve", folder / "curve.csv", "--quiet"]
    for key in ("freeze", "groups"):
        command += [f"--{key}", case[key]] if case[key] else []
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip())
    return curves.read_curve(folder / "curve.csv")


def judge(case, theirs, ours):
    """Worst loss and norm differences, and what disagrees."""
    limits = LIMITS[case["precision"]]
    if case["precision"] == "fp32" and case["config"].get("communication_data_type", "fp32") != "fp32":
        limits = WIRE_LIMITS
    loss, norm, wrong = 0.0, 0.0, []
    if len(theirs) != len(ours):
        wrong.append(f"{len(ours)} steps against {len(theirs)}")
    for row, got in zip(theirs, ours):
        want = dict(zip(curves.COLUMNS, row))
        loss = max(loss, abs(float(got["loss"]) - float(want["loss"])))
        if math.isfinite(float(want["grad_norm"])):
            norm = max(norm, abs(float(got["grad_norm"]) / float(want["grad_norm"]) - 1))
        wrong += [f"step {want['step']} {key}: {got[key]} against {want[key]}" for key in ("lr_next", "loss_scale")
                  if not curves.same(got[key], want[key], 1e-9 * abs(float(want[key])))]
    if not loss <= limits[0]:
        wrong.append("loss")
    if not norm <= limits[1]:
        wrong.append("grad_norm")
    return loss, norm, wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("czero", type=pathlib.Path)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=40)
    args = parser.parse_args()
    curves.quiet_peers()
    import torch
    torch.set_num_threads(1)
    import deepspeed  # noqa: F401  (imported once, here, for all children)
    bad = 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        models_make(folder)
        for seed in range(args.first, args.first + args.count):
            case = pick(seed)
            about = " ".join(f"{k} {v}" for k, v in case.items() if v and k != "config")
            try:
                theirs, _ = curves.train_apart(config=case["config"], steps=STEPS, world=case["world"], seq=case["seq"],
                                               freeze=case["freeze"], groups=case["groups"],
                                               model_dir=str(folder / case["model"]), text=str(TEXT),
                                               watch_overflow=False)
                loss, norm, wrong = judge(case, theirs, train_czero(args.czero.resolve(), folder, case))
                print(f"{seed}: {about}: loss {loss:.2g}, norm {norm:.2g}", flush=True)
            except RuntimeError as failure:
                print(f"{seed}: {about}", flush=True)
                wrong = [str(failure)]
            if wrong:
                bad += 1
                print("    DISAGREES", *wrong[:3], json.dumps(case["config"]), sep="\n    ", flush=True)
    print(f"{bad} of {args.count} disagree")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
