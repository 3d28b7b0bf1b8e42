"""Checkpoints that DeepSpeed saves of random models that are not czero's.

For each: fsck finds no damage; inspect shows every master, state, buffer and frozen weight with the bits that DeepSpeed
had in memory; zero_to_fp32 writes what DeepSpeed's own script writes, in both formats, and what it cannot do is compared
with the model's file; ds_to_universal's folder holds the same bits; export writes a folder that transformers loads.
"""
import contextlib
import io
import json
import pathlib
import random
import sys
import tempfile
import zlib

from . import outcome

INTEROP = pathlib.Path(__file__).resolve().parents[1]
sys.path += [str(INTEROP / "training"), str(INTEROP / "checkpoints")]
import ckpt_cases
import curves
import lamb_kernel
import other_models

AREA = "checkpoints"
ADAMW = {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1}}
OPTIMIZERS = {
    "torch-adamw": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}},
    "fused-adamw": ADAMW,
    "cpu-adamw": ADAMW,
    "cpu-lion": {"type": "Lion", "params": {"lr": 0.001}},
    "sgd": {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}},
    "adagrad": {"type": "Adagrad", "params": {"lr": 0.01}},
    "lamb": {"type": "Lamb", "params": {"lr": 0.01}},
}
PRECISIONS = {"fp32": {}, "bf16": {"bf16": {"enabled": True}}, "fp16": {"fp16": {"enabled": True, "initial_scale_power": 4}}}
EXPORTED = ("bert", "llama", "gpt2")


def draw(seed):
    """A case: what the ranks are told, and its name."""
    rng = random.Random(seed)
    kind = rng.choice(other_models.KINDS[:-1] + ("modules",))
    stage, world, precision = rng.randint(0, 3), rng.choice([1, 1, 2, 2, 3, 4]), rng.choice(list(PRECISIONS))
    optimizer, zero = rng.choice(list(OPTIMIZERS)), {"stage": stage}
    if rng.random() < 0.06:
        kind, stage, precision, optimizer = "wide", 3, "bf16", "cpu-adamw"
        zero = {"stage": 3, "sub_group_size": 300000, "stage3_param_persistence_threshold": 0,
                "offload_optimizer": {"device": "nvme"}}
    elif optimizer.startswith("cpu-"):
        stage = zero["stage"] = max(stage, 1)
        zero["offload_optimizer"] = {"device": "cpu"}
    if stage in (1, 2):
        zero.update({k: True for k in ("round_robin_gradients", "elastic_checkpoint") if rng.random() < 0.25})
    elif stage == 3 and kind != "wide":
        zero.update(sub_group_size=rng.choice([20, 300, 10**9]), stage3_param_persistence_threshold=rng.choice([0, 100, 10**5]))
    config = {"train_micro_batch_size_per_gpu": 2, "optimizer": OPTIMIZERS[optimizer], "zero_optimization": zero,
              "zero_allow_untested_optimizer": True, **PRECISIONS[precision]}
    if precision == "bf16" and stage == 1 and rng.random() < 0.3:
        config["data_types"] = {"grad_accum_dtype": "fp32"}
    case = dict(kind=kind, seed=seed, config=config, groups=rng.choice([1, 1, 2, 3]), frozen=rng.choice([0, 0, 0.3]),
                exclude=rng.random() < 0.15, tag=rng.choice(["", "", "t3", "runs/a/step 3"]))
    universal = stage > 0 and "adam" in optimizer and kind != "wide" and rng.random() < 0.3
    name = f"{kind} seed {seed}: {optimizer} {precision} {json.dumps(zero)}, {world} ranks"
    return name, world, case, universal


def groups_of(rng, model, n):
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [{"params": [], **({"weight_decay": 0.01 * g} if g else {})} for g in range(n)]
    for p in trained:
        rng.choice(groups)["params"].append(p)
    return [g for g in groups if g["params"]]


def states_of(engine):
    """Names of the moments, by one parameter's: a step is no tensor or has no dimension."""
    held = getattr(engine.optimizer, "optimizer", engine.optimizer).state
    return sorted({k for state in held.values() for k, v in state.items() if hasattr(v, "dim") and v.dim() > 0})


def shown(tensor):
    """What inspect --sums says of a tensor."""
    import torch
    flat = torch.empty(tensor.numel(), dtype=tensor.dtype).copy_(tensor.detach().flatten())
    return {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape),
            "crc32": f"{zlib.crc32(flat.view(torch.uint8).numpy().tobytes()):08x}"}


def train(rank, world, case, folder):
    """In a child of its own. {name: what inspect should show} of what DeepSpeed has in memory."""
    import deepspeed
    import torch
    curves.allow_fp16()
    lamb_kernel.allow_lamb()
    rng = random.Random(case["seed"])
    torch.manual_seed(case["seed"])
    model, loss = other_models.build(case["kind"], rng)
    if rank == 0 and hasattr(model, "save_pretrained"):
        model.save_pretrained(folder / "model")
    parameters = list(model.parameters())
    for p in parameters[1:]:
        p.requires_grad_(rng.random() >= case["frozen"])
    config, stage = json.loads(json.dumps(case["config"])), case["config"]["zero_optimization"]["stage"]
    nvme = config["zero_optimization"].get("offload_optimizer", {}).get("device") == "nvme"
    if nvme:
        config["zero_optimization"]["offload_optimizer"]["nvme_path"] = str(folder / "swap")
        (folder / "swap").mkdir(exist_ok=True)
    engine = deepspeed.initialize(model=model, model_parameters=groups_of(rng, model, case["groups"]), config=config)[0]
    rng = random.Random(100 * case["seed"] + rank)
    for _ in range(2):
        engine.backward(loss(engine, rng))
        engine.step()
    expected = ckpt_cases.collect(engine, stage, ["exp_avg", "exp_avg_sq"] if nvme else states_of(engine))
    if stage < 3 and not case["exclude"]:
        expected.update({"frozen." + n: p.detach() for n, p in engine.module.named_parameters() if not p.requires_grad})
    saved = {f"buffer.{prefix}.{name}".replace("..", ".") for prefix, module in engine.module.named_modules()
             for name in module._buffers if name not in module._non_persistent_buffers_set}
    engine.save_checkpoint(str(folder / "ckpt"), tag=case["tag"] or None, exclude_frozen_parameters=case["exclude"])
    return {k: shown(t) for k, t in expected.items() if not k.startswith("buffer.") or k in saved}


# ---- comparisons: (what is wrong or '', what could not be compared or '') ----------------------------

UNKNOWN = "the optimizer's states do not tell which parameters they belong to"


def check_inspect(tools, ckpt, expected, optimizer):
    done = tools.run("inspect", ckpt, "--sums", "--json")
    if done.returncode:
        return outcome.sentence(done), ""
    unknown = UNKNOWN if UNKNOWN in done.stderr else ""  # at stage 0 DeepSpeed saves no names
    if unknown:  # nor which of them are frozen
        expected = {k: v for k, v in expected.items() if k.startswith("buffer.")}
    content, have = json.loads(done.stdout), {}
    if content["optimizer"] != optimizer:
        return f"inspect says that {content['optimizer']} saved it, not {optimizer}", ""
    for tensor in content["tensors"]:
        for name in (tensor["name"], *tensor["aliases"]):
            have["master." + name if tensor["kind"] == "trained" else f"{tensor['kind']}.{name}"] = tensor
            for state, held in tensor.get("states", {}).items():
                have[f"{state}.{name}"] = {**held, "shape": tensor["shape"]}
    for name, want in expected.items():
        if name not in have:
            return f"inspect does not show {name}", ""
        got = {k: have[name][k] for k in want}
        if got != want:
            return f"inspect shows {name} as {got}, not {want}", ""
    return "", unknown


def check_fsck(tools, ckpt):
    done = tools.run("fsck", ckpt)
    return outcome.sentence(done) if done.returncode else "", ""


def check_script(ckpt):
    import consolidate_check
    with tempfile.TemporaryDirectory() as scratch, contextlib.redirect_stdout(io.StringIO()):
        try:
            wrong = consolidate_check.check(str(ckpt), scratch)
        except ValueError as failure:
            return "", f"DeepSpeed's script: {str(failure).split(': ')[-1]}"
    return "; ".join(wrong[:2]), ""


def check_universal(tools, folder, tag, stage, expected, optimizer):
    out = folder / "universal"
    try:
        ckpt_cases.to_universal(folder / "ckpt" / tag, out / tag, stage)
    except ValueError as failure:
        return "", f"ds_to_universal: {str(failure)[:120]}"
    expected = {k: v for k, v in expected.items() if not k.startswith("frozen.")}
    return check_inspect(tools, out / tag, expected, optimizer)


def check_export(tools, folder, expected):
    import torch
    import transformers
    done = tools.run("export", folder / "ckpt", folder / "out", "--model", folder / "model", "--quiet")
    if done.returncode:
        return outcome.sentence(done), ""
    config = transformers.AutoConfig.from_pretrained(folder / "out")
    model = getattr(transformers, config.architectures[0]).from_pretrained(folder / "out", dtype=torch.float32)
    for name, tensor in model.named_parameters():
        want = expected.get("master." + name)
        if want and shown(tensor) != want:
            return f"export: {name} is {shown(tensor)}, not {want}", ""
    return "", ""


def check(tools, seed):
    name, world, case, universal = draw(seed)
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        try:
            expected = curves.run_apart(world, train, case=case, folder=folder)[0]
        except RuntimeError as failure:
            return outcome.refused(AREA, name, "DeepSpeed: " + str(failure).splitlines()[0][:120])
        ckpt = folder / "ckpt"
        tag, stage = (ckpt / "latest").read_text().strip(), case["config"]["zero_optimization"]["stage"]
        optimizer = case["config"]["optimizer"]["type"]
        comparisons = [lambda: check_fsck(tools, ckpt), lambda: check_inspect(tools, ckpt, expected, optimizer),
                       lambda: check_script(ckpt)]
        if universal:
            comparisons.append(lambda: check_universal(tools, folder, tag, stage, expected, optimizer))
        if case["kind"] in EXPORTED and not (case["exclude"] and case["frozen"]):
            comparisons.append(lambda: check_export(tools, folder, expected))
        missed = ""
        for comparison in comparisons:
            wrong, why = comparison()
            if wrong:
                return outcome.disagreed(AREA, name, wrong)
            missed = missed or why
    return outcome.refused(AREA, name, missed) if missed else outcome.agreed(AREA, name)


def import_once(tools):
    curves.quiet_peers()
    import consolidate_check
    import deepspeed  # noqa: F401
    from transformers import BertForMaskedLM, GPT2LMHeadModel, LlamaForCausalLM, OPTForCausalLM, T5Model  # noqa: F401
    consolidate_check.TOOL = str(tools.build / "zero_to_fp32")


def run(tools, seed, n):
    import_once(tools)
    for i in range(n):
        yield check(tools, seed + i)
