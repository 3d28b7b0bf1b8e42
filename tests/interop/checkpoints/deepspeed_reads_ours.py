#!/usr/bin/env python3
"""Checkpoints both ways: DeepSpeed takes what czero saved, and czero what DeepSpeed saved.

  deepspeed_reads_ours.py CZERO [NAME...]                      all runs below, or those named
  deepspeed_reads_ours.py --folder DIR --config FILE           a folder that is there already

Run with the python that scripts/peers.sh prints. For each run czero trains a few steps and saves;
then DeepSpeed
  - consolidates the folder with its own zero_to_fp32 (stages 1-3), as does ours: the same bytes,
  - resumes from it with load_checkpoint, strictly: masters, moments, step counts, loss scale,
    schedule and counters are those of the files, weights those of zero_to_fp32,
  - trains on, as does `czero train --resume`: the same losses, rates, norms and scales,
  - converts it with ds_to_universal (Adam, stages 1-3): the same weights and moments;
and the other way around DeepSpeed trains and saves, and both continue from there.
"""
import argparse
import json
import math
import pathlib
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "training"))
import curves
from runs import OFFLOAD, optimizer, scheduler

MODEL = curves.FIXTURES / "models" / "gpt2-tiny"
TEXT = curves.FIXTURES / "text" / "fortunes.txt"
SAVED, MORE, SEQ = 4, 4, 32
LIMITS = {"fp32": (1e-4, 1e-3), "bf16": (2e-2, 5e-2), "fp16": (2e-2, 5e-2)}  # loss absolute, norm relative
FACTS = ("global_steps", "skipped_steps", "global_samples")

OFFLOAD_BOTH = {**OFFLOAD, "offload_param": {"device": "cpu", "pin_memory": False}}
ADAMW = optimizer("AdamW", lr=1e-3, betas=[0.9, 0.95], weight_decay=0.1, torch_adam=True)
FUSED = optimizer("AdamW", lr=1e-3, weight_decay=0.01)
WARMUP = scheduler("WarmupLR", warmup_max_lr=1e-3, warmup_num_steps=6, warmup_type="linear")
DYNAMIC = {"enabled": True, "initial_scale_power": 18, "loss_scale_window": 1000, "hysteresis": 2}
BF16 = {"bf16": {"enabled": True}}
RUNS = []


def run(name, opt, world=1, freeze="", groups="", zero=None, trains=True, universal=None, tiers=("", ""), **sections):
    """trains: whether both train on alike; universal: whether ds_to_universal can convert it (None: by
    stage and optimizer); tiers: where czero keeps optimizer states and parameters ("": as the config says).
    """
    stage = int(name[1])
    config = {"train_micro_batch_size_per_gpu": 2, "optimizer": opt, "scheduler": WARMUP, "gradient_clipping": 1.0,
              "zero_optimization": {"stage": stage, **(zero or {})}, **sections}
    if opt["type"] in ("SGD", "Lion"):
        config["zero_allow_untested_optimizer"] = True
    if universal is None:
        universal = stage > 0 and opt["type"].startswith("Adam")
    RUNS.append(dict(name=name, world=world, freeze=freeze, groups=groups, trains=trains, universal=universal, tiers=tiers,
                     config=config))


run("s0-fp32", ADAMW)
run("s0-fp32-fused-groups", FUSED, world=2, groups="hf")
run("s0-bf16", ADAMW, world=2, **BF16)
run("s0-bf16-fused", FUSED, **BF16)
run("s0-bf16-frozen", ADAMW, freeze="h.0.", **BF16)
# At stage 0 DeepSpeed does not multiply an fp16 loss by the scale (docs/compatibility.md, Q1).
run("s0-fp16-scale1", ADAMW, fp16={"enabled": True, "loss_scale": 1})
run("s0-fp16-dynamic", ADAMW, trains=False, fp16=DYNAMIC)
run("s0-fp16-fused-dynamic", FUSED, world=2, groups="hf", trains=False, fp16=DYNAMIC)
run("s1-fp32", ADAMW, world=2)
run("s1-fp32-one", ADAMW)
run("s1-bf16-groups", FUSED, world=2, groups="hf", **BF16)
run("s1-bf16-roundrobin", ADAMW, world=2, zero={"round_robin_gradients": True}, **BF16)
run("s1-bf16-aligned", ADAMW, world=2, zero={"parameter_alignment": True}, **BF16)
run("s1-bf16-sum-fp32", ADAMW, world=2, data_types={"grad_accum_dtype": "fp32"}, **BF16)
run("s1-fp16-static", FUSED, fp16={"enabled": True, "loss_scale": 256})
run("s1-fp32-frozen", ADAMW, world=2, freeze="wpe")
run("s1-fp32-sgd", optimizer("SGD", lr=0.05, momentum=0.9), world=2)
run("s1-fp32-adagrad", optimizer("Adagrad", lr=0.01))
run("s1-fp32-lion-offload", optimizer("Lion", lr=3e-4), zero=OFFLOAD)
run("s2-fp32-frozen", ADAMW, world=2, freeze="wpe")
run("s2-bf16", FUSED, **BF16)
run("s2-bf16-offload", FUSED, world=2, zero=OFFLOAD, **BF16)
run("s2-fp16-dynamic", ADAMW, world=2, fp16=DYNAMIC)
run("s2-fp16-groups", FUSED, world=2, groups="hf", fp16=DYNAMIC)
run("s3-fp32", ADAMW)
run("s3-fp32-ranks", ADAMW, world=2, zero={"stage3_param_persistence_threshold": 100})
run("s3-bf16-frozen", ADAMW, world=2, freeze="h.0.", **BF16)
run("s3-bf16-subgroups", FUSED, world=2, groups="hf", zero={"sub_group_size": 5000}, **BF16)
run("s3-bf16-offload", FUSED, world=2, zero=OFFLOAD, **BF16)
STATES16 = optimizer("AdamW", lr=1e-3, eps=1e-3, weight_decay=0.01, fp32_optimizer_states=False)
run("s1-fp16-masters16-states16", STATES16, zero=OFFLOAD, universal=False,
    fp16={"enabled": True, "loss_scale": 256, "fp16_master_weights_and_grads": True})
run("s2-bf16-masters16-states16", STATES16, world=2, zero=OFFLOAD, universal=False,
    bf16={"enabled": True, "bf16_master_weights_and_grads": True})
run("s3-fp16-dynamic", ADAMW, world=2, fp16=DYNAMIC)
# What czero keeps on NVMe; DeepSpeed, which has that at stage 3 alone, keeps it in host memory.
NVME = ("nvme", "nvme")
run("s0-bf16-nvme", ADAMW, world=2, tiers=NVME, **BF16)
run("s1-fp32-nvme", FUSED, world=2, zero=OFFLOAD, tiers=NVME)
run("s1-fp32-lion-nvme", optimizer("Lion", lr=3e-4), zero=OFFLOAD, tiers=("nvme", ""))
run("s1-fp32-adagrad-nvme", optimizer("Adagrad", lr=0.01), world=2, zero=OFFLOAD, tiers=("nvme", "cpu"))
run("s2-bf16-nvme", FUSED, world=2, zero=OFFLOAD, tiers=("nvme", ""), **BF16)
run("s2-bf16-nvme-frozen", FUSED, world=2, freeze="wpe", zero=OFFLOAD, tiers=NVME, **BF16)
run("s2-fp16-nvme-groups", FUSED, world=2, groups="hf", zero=OFFLOAD, tiers=NVME, fp16=DYNAMIC)
run("s3-fp32-nvme", FUSED, zero=OFFLOAD_BOTH, tiers=NVME)
run("s3-bf16-nvme", FUSED, world=2, zero={**OFFLOAD_BOTH, "sub_group_size": 5000}, tiers=NVME, **BF16)
run("s3-bf16-nvme-frozen", FUSED, world=2, freeze="h.0.", zero=OFFLOAD, tiers=("cpu", "nvme"), **BF16)


# ---- what DeepSpeed holds after load_checkpoint ----------------------------------------------------


def load_files(folder, rank):
    """This rank's two dictionaries; the second None at stage 0."""
    import torch
    tag = pathlib.Path(folder) / (pathlib.Path(folder) / "latest").read_text().strip()
    load = lambda name: torch.load(name, map_location="cpu", weights_only=False)
    optim = sorted(tag.glob(f"*zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"))
    model = sorted(tag.glob(f"zero_pp_rank_{rank}_*model_states.pt")) or sorted(tag.glob("mp_rank_00_model_states.pt"))
    return load(model[0]), load(optim[0])["optimizer_state_dict"] if optim else None


def flat_masters(engine, saved):
    """Pairs of (held, saved) masters and torch's state_dict() of both, stage by stage."""
    model, optim = saved
    wrapper, stage = engine.optimizer, engine.zero_optimization_stage()
    if stage == 0 and not hasattr(wrapper, "fp32_groups") and not hasattr(wrapper, "fp32_groups_flat"):
        return [], wrapper.state_dict(), model["optimizer"]
    if stage == 0:
        flat = hasattr(wrapper, "fp32_groups_flat")
        key = "fp32_groups_flat" if flat else "fp32_groups"
        flatten = lambda groups: groups if flat else [t for group in groups for t in group]
        return (list(zip(flatten(getattr(wrapper, key)), flatten(model["optimizer"][key]))), wrapper.optimizer.state_dict(),
                model["optimizer"]["optimizer_state_dict"])
    if stage == 3:
        wrapper._set_fp32_optimizer_param_groups()
        held = wrapper.optimizer.state_dict()
        wrapper._clear_fp32_optimizer_param_groups()
        return (list(zip(wrapper.fp32_partitioned_groups_flat, optim["fp32_flat_groups"])), held,
                optim["optimizer_state_dict"])
    partitions = getattr(wrapper, "single_partition_of_fp32_groups", None)
    if partitions is None:  # BF16_Optimizer: stage 1 whose gradients are summed in fp32
        partitions = wrapper.fp32_groups_flat_partition
    held = [have[:want.numel()] for have, want in zip(partitions, optim["single_partition_of_fp32_groups"])]
    return (list(zip(held, optim["single_partition_of_fp32_groups"])), wrapper.optimizer.state_dict(),
            optim["base_optimizer_state"])


def same_value(a, b):
    import torch
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        a, b = torch.as_tensor(a).flatten(), torch.as_tensor(b).flatten()
        n = min(a.numel(), b.numel())  # states of another alignment may carry more padding
        return torch.equal(a[:n].float(), b[:n].float())
    return a == b or (isinstance(a, (list, tuple)) and list(a) == list(b))


def compare_states(held, saved):
    wrong = []
    if set(held["state"]) != set(saved["state"]):
        wrong.append(f"states of {sorted(held['state'])}, saved {sorted(saved['state'])}")
    for key in set(held["state"]) & set(saved["state"]):
        for name, want in saved["state"][key].items():
            have = held["state"][key].get(name)
            if have is None or not same_value(have, want):
                wrong.append(f"state {key} {name} differs")
    for i, (have, want) in enumerate(zip(held["param_groups"], saved["param_groups"])):
        wrong += [f"param_groups[{i}].{k}: {have.get(k)} against {v}" for k, v in want.items()
                  if k != "params" and not same_value(have.get(k), v)]
    return wrong


def loaded_facts(engine, folder, rank):
    """What of the files DeepSpeed does not hold now."""
    model, optim = saved = load_files(folder, rank)
    wrong = []
    masters, held, states = flat_masters(engine, saved)
    for i, (have, want) in enumerate(masters):
        if not same_value(have.detach(), want.detach()):
            wrong.append(f"master {i} differs")
    wrong += compare_states(held, states)
    wrong += [f"{key}: {getattr(engine, key)} against {model[key]}" for key in FACTS if getattr(engine, key) != model[key]]
    if engine.lr_scheduler is not None and engine.lr_scheduler.state_dict() != model["lr_scheduler"]:
        wrong.append(f"schedule {engine.lr_scheduler.state_dict()} against {model['lr_scheduler']}")
    if optim and engine.fp16_enabled():
        have, want = vars(engine.optimizer.loss_scaler), vars(optim["loss_scaler"])
        wrong += [f"loss_scaler.{k}: {have.get(k)} against {v}" for k, v in want.items() if have.get(k) != v]
    if not optim and engine.fp16_enabled():
        have = engine.optimizer.loss_scale_config
        for key in ("cur_scale", "cur_iter", "last_overflow_iter"):
            if key in model["optimizer"] and getattr(have, key) != model["optimizer"][key]:
                wrong.append(f"{key}: {getattr(have, key)} against {model['optimizer'][key]}")
    return wrong


def whole_weights(engine):
    """fp32 masters and moments by name, gathered over the ranks as DeepSpeed does; frozen ones as they are."""
    import deepspeed
    from deepspeed.utils import safe_get_full_fp32_param
    weights = {}
    for name, p in engine.module.named_parameters():
        if engine.zero_optimization_stage() > 0 and p.requires_grad:
            weights[name] = safe_get_full_fp32_param(p).detach().clone()
            continue
        with deepspeed.zero.GatheredParameters([p]):
            weights[name] = p.detach().clone()
    return weights


def train_steps(engine, rank, world, first, steps):
    """Boundaries first .. first+steps-1 of the fixtures' order."""
    import torch
    micro = engine.train_micro_batch_size_per_gpu()
    tokens = torch.tensor(list(TEXT.read_bytes()[:(first + steps) * world * micro * SEQ + 1]), dtype=torch.long)
    rows = []
    engine.train()
    for step in range(first, first + steps):
        inputs, targets = curves.micro_batch(tokens, (step * world + rank) * micro, micro, SEQ)
        loss = curves.token_loss(engine, inputs, targets)
        engine.backward(loss)
        engine.step()
        norm = engine.get_global_grad_norm()
        rows.append((loss.item(), engine.get_lr()[0], math.nan if norm is None else float(norm),
                     curves.loss_scale_of(engine)))
    return rows


def engine_make(case):
    import deepspeed
    import torch
    torch.manual_seed(0)
    curves.allow_fp16()
    model = curves.load_model(MODEL, case["freeze"])
    return deepspeed.initialize(model=model, model_parameters=curves.param_groups(model, case["groups"]),
                                config=case["config"])[0]


def resume(rank, world, case, folder, more):
    """Load, look, and train on. Returns (rows, nothing), what is wrong, and the whole weights as loaded."""
    engine = engine_make(case)
    path, _ = engine.load_checkpoint(folder)
    wrong = [] if path else ["load_checkpoint found nothing"]
    wrong += loaded_facts(engine, folder, rank)
    weights = {n: w.float().numpy() for n, w in whole_weights(engine).items()} if rank == 0 or world > 1 else {}
    rows = train_steps(engine, rank, world, engine.global_steps, more)
    return (rows, []), wrong, weights if rank == 0 else {}


def make(rank, world, case, folder, steps, more):
    """DeepSpeed trains, saves, and trains on."""
    engine = engine_make(case)
    train_steps(engine, rank, world, 0, steps)
    engine.save_checkpoint(folder)
    return train_steps(engine, rank, world, steps, more), []


# ---- the checks ------------------------------------------------------------------------------------


def czero(binary, case, folder, *arguments):
    config = folder / "config.json"
    config.write_text(json.dumps(case["config"]))
    command = [binary, "launch", "-n", str(case["world"]), "--", "train", "--config", config, "--model", MODEL, "--data",
               TEXT, "--tokenizer", "bytes", "--shuffle", "off", "--seq-len", str(SEQ), "--quiet", *arguments]
    for key in ("freeze", "groups"):
        command += [f"--{key}", case[key]] if case[key] else []
    for what, tier in zip(("offload_optimizer", "offload_param"), case.get("tiers", ("", ""))):
        path = f"zero_optimization.{what}"
        command += ["--set", f"{path}.device={tier}", "--set", f"{path}.nvme_path={folder / 'swap'}"] if tier else []
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise RuntimeError("czero: " + done.stderr.strip())
    if (folder / "swap").exists():
        raise RuntimeError("czero leaves something in nvme_path")


def precision(config):
    return next((p for p in ("bf16", "fp16") if config.get(p, {}).get("enabled")), "fp32")


def judge(case, theirs, ours):
    """What disagrees between two continuations: DeepSpeed's rows and czero's curve."""
    loss_limit, norm_limit = LIMITS[precision(case["config"])]
    wrong = [] if len(theirs) == len(ours) else [f"{len(ours)} steps against {len(theirs)}"]
    worst = 0.0
    if not case["trains"]:
        return math.nan, wrong
    for want, got in zip(theirs, ours):
        want = dict(zip(curves.COLUMNS, want))
        step = f"step {got['step']}"
        worst = max(worst, abs(float(got["loss"]) - float(want["loss"])))
        wrong += [f"{step} {key}: {got[key]} against {want[key]}" for key in ("lr_next", "loss_scale")
                  if not curves.same(got[key], want[key], 1e-9 * abs(float(want[key])))]
        norm = float(want["grad_norm"])
        if math.isfinite(norm) and norm > 0 and abs(float(got["grad_norm"]) / norm - 1) > norm_limit:
            wrong.append(f"{step} grad_norm: {got['grad_norm']} against {want['grad_norm']}")
    if worst > loss_limit:
        wrong.append(f"loss differs by {worst:.3g}")
    return worst, wrong


def script_weights(folder):
    """DeepSpeed's own consolidation, and what ours may hold beyond it (stage 1 drops frozen weights there)."""
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
    return {n: t.detach().float().numpy() for n, t in get_fp32_state_dict_from_zero_checkpoint(str(folder)).items()}


def compare_weights(what, have, want, names):
    import numpy
    missing = [n for n in names if n not in have]
    wrong = [f"{what}: no {missing[0]} and {len(missing) - 1} more"] if missing else []
    return wrong + [f"{what}: {n} differs" for n in names
                    if n in have and not numpy.array_equal(have[n].ravel(), want[n].ravel())]


def check_consolidated(case, folder, weights):
    """zero_to_fp32 gives what the resumed engine holds."""
    if case["config"]["zero_optimization"]["stage"] == 0:
        return []
    script = script_weights(folder)
    names = [n for n in weights if n in script]
    wrong = compare_weights("zero_to_fp32", script, weights, names)
    left = [n for n in weights if n not in script and not (case["freeze"] and case["freeze"] in n)]
    return wrong + [f"zero_to_fp32 lacks {n}" for n in left]


def check_ours(tool, folder, weights, scratch):
    """Our zero_to_fp32 gives the same weights."""
    from safetensors.numpy import load_file
    done = subprocess.run([str(tool), str(folder), str(scratch / "consolidated"), "--safe_serialization"],
                          capture_output=True, text=True)
    if done.returncode != 0:
        return ["our zero_to_fp32: " + done.stderr.strip()]
    ours = load_file(scratch / "consolidated" / "model.safetensors")
    return compare_weights("our zero_to_fp32", ours, weights, list(weights))


def check_universal(case, folder, weights, scratch):
    """ds_to_universal converts it, with these weights."""
    import torch
    tag = (folder / "latest").read_text().strip()
    out = scratch / "universal" / tag
    command = [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--input_folder", folder / tag,
               "--output_folder", out, "--num_extract_workers", "1", "--num_merge_workers", "1",
               "--inject_missing_state"]
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode != 0:
        return ["ds_to_universal: " + (done.stderr.strip().splitlines() or ["?"])[-1]]
    have = {}
    for n in weights:
        path = out / "zero" / n / "fp32.pt"
        if path.exists():
            value = torch.load(path, map_location="cpu", weights_only=False)
            value = value["param"] if isinstance(value, dict) else value
            have[n] = value.detach().float().numpy().ravel()[:weights[n].size]
    names = [n for n in weights if not (case["freeze"] and case["freeze"] in n)]
    return compare_weights("ds_to_universal", have, weights, names)


def check_folder(case, folder, scratch, tool=None):
    """What DeepSpeed makes of a folder: its rows after the resume, and what is wrong."""
    results = curves.run_apart(case["world"], resume, case=case, folder=str(folder), more=MORE)
    wrong = sorted({w for _, each, _ in results for w in each})
    rows, _ = curves.gather([r for r, _, _ in results])
    weights = results[0][2]
    if case["config"]["zero_optimization"]["stage"] == 0 and precision(case["config"]) != "fp32":
        weights = {}  # DeepSpeed's stage 0 has no way to ask for whole masters: they were compared as they are held
    if case["config"]["zero_optimization"].get("round_robin_gradients"):
        # safe_get_full_fp32_param mixes parameters up then; the script does not.
        script = script_weights(folder)
        weights = {n: script.get(n, w) for n, w in weights.items()}
    wrong += check_consolidated(case, folder, weights)
    if tool and weights:
        wrong += check_ours(tool, folder, weights, scratch)
    if case["universal"]:
        wrong += check_universal(case, folder, weights, scratch)
    return rows, wrong


def forward(binary, case, scratch):
    """czero saves; DeepSpeed and czero continue."""
    folder = scratch / "ours"
    czero(binary, case, scratch, "--steps", str(SAVED), "--save", folder)
    theirs, wrong = check_folder(case, folder, scratch, pathlib.Path(binary).parent / "zero_to_fp32")
    curve = scratch / "ours.csv"
    czero(binary, case, scratch, "--steps", str(SAVED + MORE), "--resume", folder, "--curve", curve)
    worst, more = judge(case, theirs, curves.read_curve(curve)[-MORE:])
    return worst, wrong + more


def backward(binary, case, scratch):
    """DeepSpeed saves; DeepSpeed and czero continue."""
    folder = scratch / "theirs"
    ranks = curves.run_apart(case["world"], make, case=case, folder=str(folder), steps=SAVED, more=MORE)
    theirs, _ = curves.gather(ranks)
    curve = scratch / "theirs.csv"
    czero(binary, case, scratch, "--steps", str(SAVED + MORE), "--resume", folder, "--curve", curve)
    return judge(case, theirs, curves.read_curve(curve)[-MORE:])


def report(name, what, result):
    worst, wrong = result
    print(f"{name}: {what}: worst loss difference {worst:.2g}", *wrong[:6], sep="\n    ", flush=True)
    return bool(wrong)


def check_run(binary, case):
    failed = False
    for what, way in (("DeepSpeed reads czero's", forward), ("czero reads DeepSpeed's", backward)):
        with tempfile.TemporaryDirectory() as scratch:
            try:
                failed |= report(case["name"], what, way(binary, case, pathlib.Path(scratch)))
            except RuntimeError as failure:
                failed |= report(case["name"], what, (math.nan, [str(failure)]))
    return failed


def check_one(folder, config, freeze):
    """Any folder of gpt2-tiny, whichever program made it."""
    model, _ = load_files(folder, 0)
    config = json.loads(pathlib.Path(config).read_text())
    config.setdefault("zero_optimization", {"stage": 0})
    case = dict(config=config, world=model["dp_world_size"], freeze=freeze, groups="", trains=True,
                universal=config["zero_optimization"]["stage"] > 0)
    with tempfile.TemporaryDirectory() as scratch:
        rows, wrong = check_folder(case, pathlib.Path(folder).absolute(), pathlib.Path(scratch))
    for row in rows:
        print("   ", *row)
    return report(folder, "DeepSpeed reads it", (math.nan, wrong))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("czero", nargs="?")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--folder")
    parser.add_argument("--config")
    parser.add_argument("--freeze", default="")
    args = parser.parse_args()
    curves.quiet_peers()
    import torch
    torch.set_num_threads(1)
    import deepspeed  # noqa: F401  imported once here, so that the children start at once
    import transformers  # noqa: F401
    if args.folder:
        sys.exit(check_one(args.folder, args.config, args.freeze))
    binary = pathlib.Path(args.czero).absolute()
    chosen = [r for r in RUNS if not args.names or r["name"] in args.names]
    failed = [r["name"] for r in chosen if check_run(binary, r)]
    print(f"{len(chosen) - len(failed)} of {len(chosen)} runs agree")
    if failed:
        sys.exit("failed: " + " ".join(failed))


if __name__ == "__main__":
    main()
