"""Learning-rate schedules by name with random parameters: DeepSpeed's, torch's and transformers' own
classes beside `czero train --dry-run-lr`, bit for bit over many updates.

Every tenth case of torch's is trained and saved instead: the saved state is torch's state_dict() key for
key, and torch's own objects continue from it with the rates that czero would have had.

Some parameters are wrong on purpose: of another type, null, missing, zero or negative. Both must take
them or both refuse; a schedule that fails on its way must fail in czero at or before that update.
"""
import json
import math
import pathlib
import random
import shutil
import tempfile

from . import outcome

AREA = "schedules"
STEPS = 60
DEEPSPEED = ("WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "LRRangeTest", "OneCycle")
TORCH = ("StepLR", "MultiStepLR", "ConstantLR", "LinearLR", "ExponentialLR", "PolynomialLR", "CosineAnnealingLR",
         "CosineAnnealingWarmRestarts", "CyclicLR", "OneCycleLR")
HUGGING_FACE = ("linear", "cosine", "cosine_with_restarts", "cosine_with_min_lr", "polynomial", "constant",
                "constant_with_warmup", "inverse_sqrt")
# What a config cannot describe.
WITHOUT_VALUE = ("LambdaLR", "MultiplicativeLR", "SequentialLR", "ChainedScheduler", "ReduceLROnPlateau")


def rate(rng):
    return rng.choice([10 ** rng.uniform(-6, -1), round(rng.uniform(1e-4, 0.1), 4), 1e-3])


def count(rng):
    return rng.choice([rng.randint(1, 8), rng.randint(1, 50), rng.randint(1, 200)])


def share(rng):
    return rng.choice([rng.random(), round(rng.random(), 2), 0.5, 1.0])


def sometimes(rng, params, **values):
    """Each of them in half of the cases."""
    params.update({k: v for k, v in values.items() if rng.random() < 0.5})
    return params


def good(rng, kind):
    """Parameters that a person might write."""
    if kind in ("WarmupLR", "WarmupDecayLR"):
        params = {"total_num_steps": count(rng)} if kind == "WarmupDecayLR" else {}
        return sometimes(rng, params, warmup_min_lr=rate(rng), warmup_max_lr=rate(rng), warmup_num_steps=count(rng),
                         warmup_type=rng.choice(["log", "linear"]))
    if kind == "WarmupCosineLR":
        return sometimes(rng, {"total_num_steps": count(rng)}, warmup_min_ratio=share(rng), cos_min_ratio=share(rng),
                         warmup_num_steps=count(rng), warmup_type=rng.choice(["log", "linear"]))
    if kind == "LRRangeTest":
        return sometimes(rng, {}, lr_range_test_min_lr=rate(rng), lr_range_test_step_size=count(rng),
                         lr_range_test_step_rate=rng.uniform(0, 3), lr_range_test_staircase=rng.random() < 0.5)
    if kind == "OneCycle":
        return sometimes(rng, {"cycle_min_lr": rate(rng), "cycle_max_lr": rate(rng),
                               "cycle_first_step_size": count(rng)}, cycle_second_step_size=count(rng),
                         decay_lr_rate=rng.random(), decay_step_size=count(rng), cycle_first_stair_count=count(rng),
                         cycle_second_stair_count=count(rng), cycle_momentum=rng.random() < 0.5,
                         cycle_min_mom=rng.uniform(0.5, 0.9), cycle_max_mom=rng.uniform(0.9, 0.99))
    if kind == "StepLR":
        return sometimes(rng, {"step_size": rng.choice([count(rng), count(rng), 2.5, -3])}, gamma=rng.uniform(0.05, 1.1))
    if kind == "MultiStepLR":
        return sometimes(rng, {"milestones": [rng.randint(-1, 60) for _ in range(rng.randint(0, 5))]}, gamma=share(rng))
    if kind == "ConstantLR":
        return sometimes(rng, {}, factor=share(rng), total_iters=count(rng))
    if kind == "LinearLR":
        return sometimes(rng, {}, start_factor=share(rng), end_factor=share(rng), total_iters=count(rng))
    if kind == "ExponentialLR":
        return {"gamma": rng.choice([0.9, rng.uniform(0.5, 1.02), 1])}
    if kind == "PolynomialLR":
        return sometimes(rng, {}, total_iters=count(rng), power=rng.choice([1, 2, 0.5, rng.uniform(0, 4)]))
    if kind == "CosineAnnealingLR":
        return sometimes(rng, {"T_max": rng.choice([count(rng), count(rng), 7.5])}, eta_min=rate(rng))
    if kind == "CosineAnnealingWarmRestarts":
        return sometimes(rng, {"T_0": count(rng)}, T_mult=rng.randint(1, 4), eta_min=rate(rng))
    if kind == "CyclicLR":
        return sometimes(rng, {"base_lr": rate(rng), "max_lr": rate(rng)}, step_size_up=count(rng),
                         step_size_down=rng.choice([count(rng), None, 0]), gamma=rng.uniform(0.9, 1),
                         mode=rng.choice(["triangular", "triangular2", "exp_range"]), scale_fn=None,
                         scale_mode=rng.choice(["cycle", "iterations"]), cycle_momentum=rng.random() < 0.5,
                         base_momentum=rng.uniform(0.5, 0.9), max_momentum=rng.uniform(0.9, 0.99))
    if kind == "OneCycleLR":
        length = rng.choice([{"total_steps": count(rng)}, {"total_steps": count(rng)},
                             {"epochs": rng.randint(1, 5), "steps_per_epoch": count(rng)}])
        return sometimes(rng, {"max_lr": rate(rng), **length}, pct_start=share(rng), three_phase=rng.random() < 0.5,
                         anneal_strategy=rng.choice(["cos", "linear"]), cycle_momentum=rng.random() < 0.5,
                         div_factor=rng.uniform(1, 50), final_div_factor=10 ** rng.uniform(0, 5),
                         base_momentum=rng.uniform(0.5, 0.9), max_momentum=rng.uniform(0.9, 0.99))
    params = {} if kind == "constant" else {"warmup_num_steps": rng.choice([0, count(rng)])}
    if kind not in ("constant", "constant_with_warmup", "inverse_sqrt"):
        params["total_num_steps"] = count(rng) + STEPS * (kind == "polynomial")
    if kind == "cosine_with_min_lr":
        params[rng.choice(["min_lr", "min_lr_rate"])] = rng.random() * 1e-3
    if kind in ("cosine", "cosine_with_restarts", "cosine_with_min_lr"):
        sometimes(rng, params, num_cycles=rng.choice([0.5, 1, 2, 3]))
    if kind == "polynomial":
        sometimes(rng, params, power=rng.uniform(0.5, 3), lr_end=1e-8)
    if kind == "inverse_sqrt":
        sometimes(rng, params, timescale=count(rng))
    return params


def spoil(rng, params):
    """One parameter wrong, or missing, or unknown."""
    params = dict(params)
    what = rng.random()
    if what < 0.1:
        return {**params, "no_such_parameter": 1}
    if not params:
        return params
    key = rng.choice(sorted(params))
    if what < 0.3:
        del params[key]
    elif what < 0.4:
        params["last_epoch"] = rng.choice([-1, 0, 5, None])
    else:
        params[key] = rng.choice([None, None, "a", 0, 0.0, -1, -0.5, 1, 2, 1.0, 10.0, 1.5, [0.1], [0.1, 0.2], {}])
    return params


def cases(seed, n):
    rng = random.Random(seed)
    for i in range(n):
        kind = rng.choice(TORCH if rng.random() < 0.6 else DEEPSPEED + HUGGING_FACE)
        if rng.random() < 0.02:
            kind = rng.choice(WITHOUT_VALUE)
        params = {} if kind in WITHOUT_VALUE else good(rng, kind)
        # transformers' are called by keyword, so that only the values are of interest.
        if kind not in HUGGING_FACE and rng.random() < 0.4:
            params = spoil(rng, params)
        optimizer = rng.choice(["AdamW", "AdamW", "SGD", "Adagrad"])
        yield optimizer, rate(rng), kind, params


def peer_class(kind):
    if kind in TORCH or kind in WITHOUT_VALUE:
        import torch
        return getattr(torch.optim.lr_scheduler, kind)
    from deepspeed.runtime import lr_schedules
    return getattr(lr_schedules, kind)


def hugging_face(optimizer, kind, params):
    import transformers
    extra = {k: v for k, v in params.items() if k not in ("warmup_num_steps", "total_num_steps")}
    return transformers.get_scheduler(kind, optimizer, params.get("warmup_num_steps"), params.get("total_num_steps"),
                                      scheduler_specific_kwargs=extra)


def peer_rates(optimizer, lr, kind, params):
    """The rate of each update and, if it fails, after how many: (rates, failure or '')."""
    import torch
    weight = [torch.zeros(1, requires_grad=True)]
    opt = getattr(torch.optim, optimizer)(weight, lr=lr)
    rates = []
    try:
        if kind in HUGGING_FACE:
            schedule = hugging_face(opt, kind, params)
        else:
            schedule = peer_class(kind)(opt, **json.loads(json.dumps(params)))
        for step in range(STEPS):
            value = opt.param_groups[0]["lr"]
            if isinstance(value, complex) or not math.isfinite(value):
                raise ValueError(f"a rate of {value}")
            rates.append(float(value))
            opt.step()
            schedule.step()
    except Exception as failure:
        return rates, f"{type(failure).__name__}: {failure}"
    return rates, ""


def czero_rates(tools, folder, optimizer, lr, kind, params):
    config = {"train_batch_size": 1, "gradient_clipping": 0.0,
              "optimizer": {"type": optimizer, "params": {"lr": lr}}, "scheduler": {"type": kind, "params": params}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "data.txt").write_text("text\n")
    done = tools.run("train", "--config", folder / "config.json", "--model", "gpt2", "--data", folder / "data.txt",
                     "--tokenizer", "bytes", "--seq-len", 1, "--dry-run-lr", "--quiet", "--steps", STEPS)
    rows = [line.split(",") for line in done.stdout.splitlines()[1:]]
    return [float(row[1]) for row in rows if len(row) == 2], outcome.sentence(done) if done.returncode else ""


def compare(case, want, failure, have, sentence):
    if failure and sentence:
        if len(have) > len(want):
            return outcome.disagreed(AREA, case, f"the peer fails at update {len(want)} ({failure}), czero later")
        return outcome.agreed(AREA, case)
    if failure:
        return outcome.disagreed(AREA, case, f"the peer fails at update {len(want)} ({failure}), czero does not")
    if sentence:
        return outcome.refused(AREA, case, sentence.split(": ", 2)[-1])
    for step, (a, b) in enumerate(zip(have, want)):
        if a != b:
            return outcome.disagreed(AREA, case, f"update {step + 1}: {a!r}, not {b!r}")
    if len(have) != len(want):
        return outcome.disagreed(AREA, case, f"{len(have)} rates instead of {len(want)}")
    return outcome.agreed(AREA, case)


# ---- checkpoints -----------------------------------------------------------------------------------

SAVED = 3
MODEL = {"model_type": "gpt2", "vocab_size": 256, "n_positions": 8, "n_embd": 4, "n_layer": 1, "n_head": 1}


def saved_files(tools, folder, lr, kind, params):
    """The model's file of a run of SAVED updates, or the sentence that refuses it."""
    import torch
    (folder / "model").mkdir(exist_ok=True)
    (folder / "model/config.json").write_text(json.dumps(MODEL))
    (folder / "long.txt").write_bytes(bytes(range(32, 127)) * 4)
    config = {"train_batch_size": 1, "gradient_clipping": 0.0, "scheduler": {"type": kind, "params": params},
              "optimizer": {"type": "AdamW", "params": {"lr": lr, "torch_adam": True}}}
    (folder / "config.json").write_text(json.dumps(config))
    done = tools.run("train", "--config", folder / "config.json", "--model", folder / "model", "--data",
                     folder / "long.txt", "--tokenizer", "bytes", "--seq-len", 4, "--init", "random", "--quiet", "--steps", SAVED, "--save",
                     folder / "run")
    if done.returncode:
        return None, outcome.sentence(done)
    file = next((folder / "run").glob("*/mp_rank_00_model_states.pt"))
    return torch.load(file, weights_only=False, map_location="cpu"), ""


def typed(value):
    """With the types, which == does not compare."""
    if isinstance(value, dict):
        return type(value).__name__, [(typed(k), typed(v)) for k, v in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [typed(v) for v in value]
    return type(value).__name__, value


def as_floats(params):
    """torch keeps 1 where a person wrote 1 for 1.0; czero knows which parameters are counts."""
    counts = ("step_size", "total_iters", "T_max", "T_0", "T_mult", "total_steps", "epochs", "steps_per_epoch",
              "step_size_up", "step_size_down", "milestones")
    return {k: float(v) if isinstance(v, int) and not isinstance(v, bool) and k not in counts else v
            for k, v in params.items()}


def check_state(tools, folder, lr, kind, params):
    import torch
    params = as_floats(params)
    case = f"state of {kind} {json.dumps(params)}"
    weight = [torch.zeros(1, requires_grad=True)]
    opt = torch.optim.AdamW(weight, lr=lr)
    try:
        schedule = peer_class(kind)(opt, **json.loads(json.dumps(params)))
        for _ in range(SAVED):
            opt.step()
            schedule.step()
    except Exception as failure:
        return outcome.refused(AREA, case, f"torch: {type(failure).__name__}")
    saved, why = saved_files(tools, folder, lr, kind, params)
    if not saved:
        return outcome.refused(AREA, case, why.split(": ", 2)[-1])
    if typed(saved["lr_scheduler"]) != typed(schedule.state_dict()):
        return outcome.disagreed(AREA, case, f"{saved['lr_scheduler']}, not {schedule.state_dict()}")
    have, want = saved["optimizer"]["param_groups"][0], opt.state_dict()["param_groups"][0]
    if {k: v for k, v in have.items() if k != "params"} != {k: v for k, v in want.items() if k != "params"} or \
            list(have) != list(want):
        return outcome.disagreed(AREA, case, f"param_groups {have}, not {want}")
    opt.load_state_dict({"state": {}, "param_groups": [{**have, "params": [0]}]})
    schedule.load_state_dict(saved["lr_scheduler"])
    rates, failure = czero_rates(tools, folder, "AdamW", lr, kind, params)
    for step in range(SAVED, len(rates)):
        if opt.param_groups[0]["lr"] != rates[step]:
            return outcome.disagreed(AREA, case, f"torch continues with {opt.param_groups[0]['lr']!r}, not {rates[step]!r}")
        opt.step()
        if step + 1 < len(rates):
            schedule.step()
    return outcome.agreed(AREA, case)


def run(tools, seed, n):
    import logging
    import warnings
    import deepspeed  # noqa: F401
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        for i, (optimizer, lr, kind, params) in enumerate(cases(seed, n)):
            if kind in TORCH and i % 10 == 0:
                yield check_state(tools, folder, lr, kind, good(random.Random(seed + i), kind))
                shutil.rmtree(folder / "run", ignore_errors=True)
                continue
            case = f"{optimizer} {lr:g} {kind} {json.dumps(params)}"
            want, failure = peer_rates(optimizer, lr, kind, params)
            have, sentence = czero_rates(tools, folder, optimizer, lr, kind, params)
            yield compare(case, want, failure, have, sentence)
