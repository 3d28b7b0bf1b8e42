"""Checkpoints that DeepSpeed saves in the middle of a run: czero resumes from each and follows the
run that DeepSpeed did not interrupt; and the other way round, DeepSpeed resumes from what czero saved.

Some go through a universal checkpoint (ds_to_universal) to another stage and number of ranks, some have
two parameter groups, some had their states on NVMe. The model is a GPT-2 of 2,000 parameters on random
bytes in fp32, so that a wrong step count, rate or moment shows in the loss after one update.
"""
import csv
import json
import pathlib
import random
import shutil
import sys
import tempfile

from . import outcome

INTEROP = pathlib.Path(__file__).resolve().parents[1]
sys.path += [str(INTEROP / "training"), str(INTEROP / "checkpoints")]
import ckpt_cases
import curves
import lamb_kernel

AREA = "resume"
SEQ = 8
TOLERANCE = 1e-5
MODEL = {"vocab_size": 256, "n_positions": SEQ, "n_embd": 4, "n_layer": 1, "n_head": 1, "resid_pdrop": 0.0,
         "embd_pdrop": 0.0, "attn_pdrop": 0.0}
LLAMA = {"model_type": "llama", "vocab_size": 256, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2,
         "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": SEQ}
WIDE = {**MODEL, "n_embd": 256, "n_head": 4}  # DeepSpeed swaps tensors of a MiB and more
CPU = {"offload_optimizer": {"device": "cpu"}}
NVME = {"offload_optimizer": {"device": "nvme"}, "sub_group_size": 300000, "stage3_param_persistence_threshold": 0}

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
    "lamb": ({"type": "Lamb", "params": {"lr": 0.02, "weight_decay": 0.05}}, {}),  # without ZeRO: that needs whole norms
    "nvme-adam": ({"type": "AdamW", "params": {"lr": 0.0003}}, NVME),  # at stage 3
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


def config_of(optimizer, schedule, stage, elastic, gas=1, micro=2):
    section, zero = OPTIMIZERS[optimizer]
    config = {"train_micro_batch_size_per_gpu": micro, "gradient_accumulation_steps": gas, "gradient_clipping": 0.0,
              "optimizer": section, "zero_allow_untested_optimizer": True,
              "zero_optimization": {"stage": stage, **zero, **({"elastic_checkpoint": True} if elastic else {})}}
    if SCHEDULERS[schedule]:
        config["scheduler"] = SCHEDULERS[schedule]
    return config


def micro_of(world):
    """Rows of a rank: 1, 2 and 4 ranks have the same batch."""
    return 2 if world == 3 else 4 // world


def write_inputs(rank, world, model, folder, seed, n_bytes):
    """The model's folder and the bytes that it reads. In a child: torch's threads do not survive a fork."""
    import torch
    import transformers
    torch.manual_seed(seed)
    config = transformers.AutoConfig.for_model(**{"model_type": "gpt2", **model})
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder / "model")
    (folder / "data.txt").write_bytes(bytes(random.Random(seed).choices(range(32, 127), k=n_bytes)))


def with_swap(config, folder):
    """A copy, in which NVMe is this folder."""
    config = json.loads(json.dumps(config))
    offload = config["zero_optimization"].get("offload_optimizer", {})
    if offload.get("device") == "nvme":
        folder.mkdir(exist_ok=True)
        offload["nvme_path"] = str(folder)
    return config


def train(rank, world, config, folder, steps, saved=0, resumed="", groups="one"):
    """In a child of its own: all steps, of which the first `saved` are in the checkpoint; or those that are left after
    the checkpoint in the folder `resumed`."""
    import deepspeed
    import torch
    torch.manual_seed(0)
    lamb_kernel.allow_lamb()
    model = curves.load_model(str(folder / "model"), "")
    config = with_swap(config, folder / "swap")
    # By name DeepSpeed takes torch's schedulers without ZeRO only; its users then hand them over.
    client, named = None, config.get("scheduler", {}).get("type", "")
    if config["zero_optimization"]["stage"] > 0 and hasattr(torch.optim.lr_scheduler, named):
        params = config.pop("scheduler")["params"]
        client = lambda optimizer: getattr(torch.optim.lr_scheduler, named)(optimizer, **params)
    engine = deepspeed.initialize(model=model, model_parameters=curves.param_groups(model, groups), lr_scheduler=client,
                                  config=config)[0]
    if resumed:
        assert engine.load_checkpoint(str(folder / resumed))[0], "load_checkpoint found nothing"
    micro, gas = engine.train_micro_batch_size_per_gpu(), engine.gradient_accumulation_steps()
    tokens = torch.tensor(list((folder / "data.txt").read_bytes()), dtype=torch.long)
    rows = []
    engine.train()
    for step in range(engine.global_steps, steps):
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


def deepspeed_curve(config, world, folder, steps, **more):
    ranks = curves.run_apart(world, train, config=config, folder=folder, steps=steps, **more)
    return [(sum(r[s][0] for r in ranks) / world, ranks[0][s][1]) for s in range(len(ranks[0]))]


def czero_curve(tools, config, world, folder, steps, groups, *options):
    """The losses of the steps that were made, or the sentence that refuses them."""
    (folder / "config.json").write_text(json.dumps(with_swap(config, folder / "czero-swap")))
    done = tools.run("launch", "-n", world, "--", "train", "--config", folder / "config.json", "--model",
                     folder / "model", "--data", folder / "data.txt", "--tokenizer", "bytes", "--shuffle", "off",
                     "--seq-len", SEQ, "--quiet", "--curve", folder / "curve.csv", "--steps", steps, "--groups", groups,
                     *options)
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


def check_files(tools, folder, optimizer):
    """What fsck and inspect say of a checkpoint, or ''."""
    for command in (["fsck", folder], ["inspect", folder, "--json"]):
        done = tools.run(*command)
        if done.returncode != 0:
            return outcome.sentence(done)
    named = json.loads(done.stdout)["optimizer"]
    return "" if named.lower() == optimizer.lower() else f"inspect says that {named} saved it, not {optimizer}"


def convert(folder, config, saved):
    tag = f"global_step{saved}"
    ckpt_cases.to_universal(folder / "ckpt" / tag, folder / "universal" / tag, config["zero_optimization"]["stage"])


def check(tools, case, seed, saved, steps=8):
    """case: see cases()."""
    name, config, world, groups, target = (case[k] for k in ("name", "config", "world", "groups", "target"))
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        rows = steps * config["gradient_accumulation_steps"] * world * micro_of(world)
        curves.run_apart(1, write_inputs, model=case["model"], folder=folder, seed=seed, n_bytes=rows * SEQ + 1)
        try:
            want = deepspeed_curve(config, world, folder, steps, groups=groups,
                                   saved=0 if case["ours"] else saved)[saved:]
        except RuntimeError as failure:
            return outcome.refused(AREA, name, "DeepSpeed: " + str(failure).splitlines()[0])
        if case["ours"]:
            made, wrong = czero_curve(tools, config, world, folder, saved, groups, "--save", folder / "ckpt")
            if made is None:
                return outcome.disagreed(AREA, name, wrong)
        wrong = check_files(tools, folder / "ckpt", config["optimizer"]["type"])
        if wrong:
            return outcome.disagreed(AREA, name, wrong)
        resumed, saving = "ckpt", config
        if target:
            resumed, (stage, world) = "universal", target
            try:
                convert(folder, config, saved)
            except ValueError as failure:
                return outcome.disagreed(AREA, name, f"ds_to_universal: {failure}")
            config = {**config, "checkpoint": {"load_universal": True}, "train_micro_batch_size_per_gpu": micro_of(world),
                      "zero_optimization": {**config["zero_optimization"], "stage": stage}}
        if case.get("back"):
            return there_and_back(tools, case, folder, config, steps, saved, want)
        if case["ours"]:
            resume = lambda: deepspeed_curve(config, world, folder, steps, resumed=resumed, groups=groups)
            try:
                have = resume()
            except RuntimeError as failure:
                # Is it the file? Its own of the same run, in the same place.
                for part in ("ckpt", "universal"):
                    shutil.rmtree(folder / part, ignore_errors=True)
                deepspeed_curve(saving, case["world"], folder, saved, groups=groups, saved=saved)
                try:
                    if target:
                        convert(folder, saving, saved)
                    resume()
                    return outcome.disagreed(AREA, name, f"DeepSpeed: {failure}")
                except (RuntimeError, ValueError) as same:
                    return outcome.refused(AREA, name, f"DeepSpeed, of its own checkpoint, too: {str(same).splitlines()[0]}")
        else:
            have, wrong = czero_curve(tools, config, world, folder, steps, groups, "--resume", folder / resumed)
        wrong = wrong if have is None else gap(have, want)
        return outcome.disagreed(AREA, name, wrong) if wrong else outcome.agreed(AREA, name)


def there_and_back(tools, case, folder, config, steps, saved, want):
    """czero continues from DeepSpeed's checkpoint, two steps or to the last but one, and saves; DeepSpeed does the rest."""
    middle = min(saved + 2, steps - 1)
    ours, wrong = czero_curve(tools, config, case["world"], folder, middle, case["groups"], "--resume", folder / "ckpt", "--save", folder / "back")
    if ours is None:
        return outcome.disagreed(AREA, case["name"], wrong)
    theirs = deepspeed_curve(config, case["world"], folder, steps, resumed="back", groups=case["groups"])
    wrong = gap(ours + theirs, want)
    return outcome.disagreed(AREA, case["name"], wrong) if wrong else outcome.agreed(AREA, case["name"])


def rounds(seed, n):
    """LLaMA with one key head, tied and not, from DeepSpeed to czero to DeepSpeed."""
    rng = random.Random(f"back {seed}")
    for _ in range(n):
        optimizer, stage, world = rng.choice(["fused-adamw", "torch-adamw", "cpu-adam"]), rng.choice([3, 3, 3, 2, 1]), rng.choice([1, 2])
        gas, tied, schedule = rng.choice([1, 2]), rng.random() < 0.5, rng.choice(["none", "warmup", "cosine"])
        yield dict(name=f"LLaMA{' tied' if tied else ''} {optimizer} {schedule} stage {stage}, {world} ranks, gas {gas}, there and back",
                   config=config_of(optimizer, schedule, stage, False, gas, micro_of(world)), world=world, groups="one", ours=False,
                   target=None, model={**LLAMA, "tie_word_embeddings": tied}, back=True)


def cases(seed, n):
    """Every optimizer at stages 1 and 2 elastic, then random ones. A case: its name and config, ranks, parameter groups,
    whether czero saves ("ours") or resumes, and the (stage, ranks) that a universal checkpoint goes to."""
    rng = random.Random(seed)
    every = [(o, stage, True) for o in OPTIMIZERS for stage in (1, 2) if o not in ("lamb", "nvme-adam")]
    while len(every) < n:
        every.append((rng.choice(list(OPTIMIZERS)), rng.choice([0, 1, 2, 3]), rng.random() < 0.3))
    for optimizer, stage, elastic in every[:n]:
        schedule, world = rng.choice(list(SCHEDULERS)), rng.choice([1, 1, 2, 3, 4])
        gas, groups, ours = rng.choice([1, 1, 2]), rng.choice(["one", "one", "hf"]), rng.random() < 0.3
        stage = {"lamb": 0, "nvme-adam": 3}.get(optimizer, stage)
        elastic = elastic and stage in (1, 2)
        # Adagrad has no momentum to cycle, and under ZeRO DeepSpeed makes a second one, with one group, which the
        # scheduler that a program made for the first does not reach.
        if "adagrad" in optimizer and schedule.startswith("torch-"):
            schedule = "torch-cosine" if stage == 0 else "decay"
        if "adagrad" in optimizer and stage > 0:
            groups = "one"
        if optimizer == "nvme-adam":  # DeepSpeed itself does not resume from such a run
            ours, world = False, min(world, 2)
        target = None
        if "adam" in optimizer and stage > 0 and world != 3 and not elastic and optimizer != "nvme-adam" and rng.random() < 0.4:
            target = (rng.choice([1, 2, 3]), rng.choice([1, 2, 4]))
        name = (f"{optimizer} {schedule} stage {stage}{' elastic' if elastic else ''}, {world} ranks, gas {gas}, groups {groups}, "
                f"{'czero' if ours else 'DeepSpeed'} saves{', universal to stage %d, %d ranks' % target if target else ''}")
        yield dict(name=name, config=config_of(optimizer, schedule, stage, elastic, gas, micro_of(world)), world=world,
                   groups=groups, ours=ours, target=target, model=WIDE if optimizer == "nvme-adam" else MODEL)


def import_once():
    """Before the children are forked: the peers take a minute to import from a cold disk."""
    curves.quiet_peers()
    import deepspeed
    from transformers import AutoModelForCausalLM, GPT2LMHeadModel, LlamaForCausalLM  # noqa: F401


def run(tools, seed, n):
    import_once()
    for i, case in enumerate(cases(seed, n)):
        yield check(tools, case, seed + i, saved=random.Random(seed + i).choice([1, 3, 4, 5]))
    for i, case in enumerate(rounds(seed, max(n // 5, 1))):
        yield check(tools, case, seed + i, saved=3)


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
        curves.run_apart(1, write_inputs, model=MODEL, folder=folder, seed=1, n_bytes=steps * world * 2 * SEQ + 1)
        rows = deepspeed_curve(config, world, folder, steps, saved=saved)
        for script in (folder / "ckpt").glob("*.py"):
            script.unlink()
        (folder / "ds_config.json").write_text(json.dumps(config, indent=2) + "\n")
        curves.write_curve(folder / "curve.csv",
                           [[s + 1, f"{loss:.9g}", f"{lr:.17g}", "nan", "1"] for s, (loss, lr) in enumerate(rows)])
        print(folder)
