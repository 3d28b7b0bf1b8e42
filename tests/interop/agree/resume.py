"""Checkpoints that DeepSpeed saves in the middle of a run: czero resumes from each and follows the
run that DeepSpeed did not interrupt.

The model is a GPT-2 of 2,000 parameters on random bytes in fp32, so that a wrong step count, rate or
moment shows in the loss after one update.
"""
import csv
import json
import pathlib
import random
import shutil
import sys
import tempfile

from . import outcome

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "training"))
import curves

AREA = "resume"
SEQ = 8
TOLERANCE = 1e-5
MODEL = {"vocab_size": 256, "n_positions": SEQ, "n_embd": 4, "n_layer": 1, "n_head": 1, "resid_pdrop": 0.0,
         "embd_pdrop": 0.0, "attn_pdrop": 0.0}
CPU = {"offload_optimizer": {"device": "cpu"}}

# By name: section `optimizer` of the config (None: torch's class is handed to DeepSpeed), and what
# zero_optimization needs for it.
OPTIMIZERS = {
    "fused-adam": ({"type": "Adam", "params": {"lr": 0.02, "weight_decay": 0.1}}, {}),
    "fused-adamw": ({"type": "AdamW", "params": {"lr": 0.02, "betas": [0.8, 0.95]}}, {}),
    "torch-adamw": ({"type": "AdamW", "params": {"lr": 0.02, "torch_adam": True, "weight_decay": 0.1}}, {}),
    "cpu-adam": ({"type": "AdamW", "params": {"lr": 0.02, "weight_decay": 0.05}}, CPU),
    "cpu-lion": ({"type": "Lion", "params": {"lr": 0.003, "weight_decay": 0.1}}, CPU),
    "cpu-adagrad": ({"type": "Adagrad", "params": {"lr": 0.02}}, CPU),
    "torch-adagrad": ({"type": "Adagrad", "params": {"lr": 0.02}}, {}),
    "sgd": ({"type": "SGD", "params": {"lr": 0.3}}, {}),
    "sgd-momentum": ({"type": "SGD", "params": {"lr": 0.2, "momentum": 0.9, "nesterov": True}}, {}),
}


def scheduler(kind, **params):
    return {"type": kind, "params": params}


SCHEDULERS = {
    "none": None,
    "warmup": scheduler("WarmupLR", warmup_num_steps=5, warmup_type="linear"),
    "decay": scheduler("WarmupDecayLR", warmup_num_steps=3, total_num_steps=9, warmup_max_lr=0.02),
    "cosine": scheduler("WarmupCosineLR", warmup_num_steps=2, total_num_steps=10),
    "cycle": scheduler("OneCycle", cycle_min_lr=0.002, cycle_max_lr=0.03, cycle_first_step_size=3,
                       decay_step_size=2, decay_lr_rate=0.5),
    "range": scheduler("LRRangeTest", lr_range_test_min_lr=0.002, lr_range_test_step_size=2),
    "torch-step": scheduler("StepLR", step_size=3, gamma=0.5),
    "torch-milestones": scheduler("MultiStepLR", milestones=[2, 5, 5], gamma=0.6),
    "torch-cosine": scheduler("CosineAnnealingLR", T_max=6, eta_min=0.001),
    "torch-restarts": scheduler("CosineAnnealingWarmRestarts", T_0=2, T_mult=2),
    "torch-linear": scheduler("LinearLR", start_factor=0.2, total_iters=6),
    "torch-cyclic": scheduler("CyclicLR", base_lr=0.002, max_lr=0.03, step_size_up=3, cycle_momentum=False),
    "torch-cycle": scheduler("OneCycleLR", max_lr=0.03, total_steps=10),
}


def config_of(optimizer, schedule, stage, elastic, gas=1):
    section, zero = OPTIMIZERS[optimizer]
    config = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": gas, "gradient_clipping": 0.0,
              "optimizer": section, "zero_allow_untested_optimizer": True,
              "zero_optimization": {"stage": stage, **zero, **({"elastic_checkpoint": True} if elastic else {})}}
    if SCHEDULERS[schedule]:
        config["scheduler"] = SCHEDULERS[schedule]
    return config


def write_inputs(rank, world, folder, seed, n_bytes):
    """The model's folder and the bytes that it reads. In a child: torch's threads do not survive a fork."""
    import torch
    import transformers
    torch.manual_seed(seed)
    transformers.GPT2LMHeadModel(transformers.GPT2Config(**MODEL)).save_pretrained(folder / "model")
    (folder / "data.txt").write_bytes(bytes(random.Random(seed).choices(range(32, 127), k=n_bytes)))


def train(rank, world, config, folder, saved, steps):
    """In a child of its own: `steps` steps, of which the first `saved` are in the checkpoint."""
    import deepspeed
    import torch
    torch.manual_seed(0)
    model = curves.load_model(str(folder / "model"), "")
    config = json.loads(json.dumps(config))
    # By name DeepSpeed takes torch's schedulers without ZeRO only; its users then hand them over.
    client, named = None, config.get("scheduler", {}).get("type", "")
    if config["zero_optimization"]["stage"] > 0 and hasattr(torch.optim.lr_scheduler, named):
        params = config.pop("scheduler")["params"]
        client = lambda optimizer: getattr(torch.optim.lr_scheduler, named)(optimizer, **params)
    engine = deepspeed.initialize(model=model, model_parameters=list(model.parameters()), lr_scheduler=client,
                                  config=config)[0]
    micro, gas = engine.train_micro_batch_size_per_gpu(), engine.gradient_accumulation_steps()
    tokens = torch.tensor(list((folder / "data.txt").read_bytes()), dtype=torch.long)
    rows = []
    engine.train()
    for step in range(steps):
        losses = []
        for g in range(gas):
            inputs, targets = curves.micro_batch(tokens, ((step * gas + g) * world + rank) * micro, micro, SEQ)
            loss = curves.token_loss(engine, inputs, targets)
            losses.append(loss.item())
            engine.backward(loss)
            engine.step()
        rows.append((sum(losses) / gas, engine.get_lr()[0]))
        if step + 1 == saved:
            engine.save_checkpoint(str(folder / "ckpt"), tag=f"global_step{saved}")
    return rows


def deepspeed_curve(config, world, folder, saved, steps):
    ranks = curves.run_apart(world, train, config=config, folder=folder, saved=saved, steps=steps)
    return [(sum(r[s][0] for r in ranks) / world, ranks[0][s][1]) for s in range(steps)]


def czero_curve(tools, config, world, folder, steps):
    """The losses of the resumed part, or the sentence that refuses it."""
    (folder / "config.json").write_text(json.dumps(config))
    done = tools.run("launch", "-n", world, "--", "train", "--config", folder / "config.json", "--model",
                     folder / "model", "--data", folder / "data.txt", "--tokenizer", "bytes", "--shuffle", "off",
                     "--seq-len", SEQ, "--quiet", "--curve", folder / "curve.csv", "--steps", steps, "--resume",
                     folder / "ckpt")
    if done.returncode != 0:
        return None, outcome.sentence(done)
    with open(folder / "curve.csv") as f:
        return [(float(row["loss"]), float(row["lr_next"])) for row in csv.DictReader(f)], ""


def gap(have, want):
    """The first difference, or ''."""
    if len(have) != len(want):
        return f"{len(have)} steps instead of {len(want)}"
    for s, ((loss, lr), (loss_want, lr_want)) in enumerate(zip(have, want)):
        if abs(lr - lr_want) > 1e-9 * abs(lr_want):
            return f"step {s + 1} after it: lr_next {lr}, not {lr_want}"
        if not abs(loss - loss_want) <= TOLERANCE:
            return f"step {s + 1} after it: loss {loss}, not {loss_want}"
    return ""


def check(tools, case, config, world, seed, saved=4, steps=8):
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        gas = config["gradient_accumulation_steps"]
        curves.run_apart(1, write_inputs, folder=folder, seed=seed, n_bytes=steps * gas * world * 2 * SEQ + 1)
        try:
            want = deepspeed_curve(config, world, folder, saved, steps)
        except RuntimeError as failure:
            return outcome.refused(AREA, case, "DeepSpeed: " + str(failure).splitlines()[0])
        fsck = tools.run("fsck", folder / "ckpt")
        if fsck.returncode != 0:
            return outcome.disagreed(AREA, case, outcome.sentence(fsck))
        have, why = czero_curve(tools, config, world, folder, steps)
        if have is None:
            return outcome.disagreed(AREA, case, why)
        wrong = gap(have, want[saved:])
        return outcome.disagreed(AREA, case, wrong) if wrong else outcome.agreed(AREA, case)


def cases(seed, n):
    """Every optimizer at stages 1 and 2 elastic, then random ones."""
    rng = random.Random(seed)
    every = [(o, stage, True) for o in OPTIMIZERS for stage in (1, 2)]
    while len(every) < n:
        every.append((rng.choice(list(OPTIMIZERS)), rng.choice([0, 1, 2, 3]), rng.random() < 0.7))
    for i, (optimizer, stage, elastic) in enumerate(every[:n]):
        schedule, world = rng.choice(list(SCHEDULERS)), rng.choice([1, 1, 2, 3, 4])
        # Adagrad has no momentum to cycle, and under ZeRO DeepSpeed makes a second one, which the scheduler that
        # a program made for the first does not reach.
        if "adagrad" in optimizer and schedule.startswith("torch-"):
            schedule = "torch-cosine" if stage == 0 else "decay"
        gas = rng.choice([1, 1, 2])
        elastic = elastic and stage in (1, 2)
        name = f"{optimizer} {schedule} stage {stage}{' elastic' if elastic else ''}, {world} ranks, gas {gas}"
        yield name, config_of(optimizer, schedule, stage, elastic, gas), world, seed + i


def import_once():
    """Before the children are forked: the peers take a minute to import from a cold disk."""
    curves.quiet_peers()
    import deepspeed
    from transformers import GPT2LMHeadModel


def run(tools, seed, n):
    import_once()
    for case, config, world, case_seed in cases(seed, n):
        yield check(tools, case, config, world, case_seed, saved=random.Random(case_seed).choice([1, 3, 4, 5]))


# ---- the fixtures of tests/unit/engine/state/test_resume_elastic.c --------------------------------

SHIPPED = {
    "torch-adamw": (config_of("torch-adamw", "cycle", 2, True), 2),
    "sgd-momentum": (config_of("sgd-momentum", "warmup", 1, True), 3),
    "fused-adamw": (config_of("fused-adamw", "cosine", 1, True), 2),
}


def make(out, saved=4, steps=8):
    """OUT/NAME: ds_config.json, the model, what it read, the checkpoint, the curve of all steps."""
    import_once()
    for name, (config, world) in SHIPPED.items():
        folder = pathlib.Path(out) / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        curves.run_apart(1, write_inputs, folder=folder, seed=1, n_bytes=steps * world * 2 * SEQ + 1)
        rows = deepspeed_curve(config, world, folder, saved, steps)
        for script in (folder / "ckpt").glob("*.py"):
            script.unlink()
        (folder / "ds_config.json").write_text(json.dumps(config, indent=2) + "\n")
        curves.write_curve(folder / "curve.csv",
                           [[s + 1, f"{loss:.9g}", f"{lr:.17g}", "nan", "1"] for s, (loss, lr) in enumerate(rows)])
        print(folder)
