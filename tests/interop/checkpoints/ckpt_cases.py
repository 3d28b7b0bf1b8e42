#!/usr/bin/env python3
"""Small checkpoints by DeepSpeed itself, of every kind that it writes, each with what it holds.

  ckpt_cases.py OUT [NAME...]   train a tiny model under DeepSpeed on CPU and save OUT/NAME, with
                                OUT/NAME/expected.safetensors: fp32 masters, optimizer states and
                                buffers as DeepSpeed has them in memory, by name

Run with the python that scripts/peers.sh prints. fixtures/checkpoints/expected holds some of them
(`ckpt_cases.py build/fixtures/checkpoints/expected --shipped`, then tests/fixtures/pack.sh checkpoints);
`CZ_CKPT_CASES=OUT` makes test_ckpt_cases read a whole set.
"""
import argparse
import glob
import itertools
import json
import multiprocessing
import os
import pathlib
import shutil
import socket
import subprocess
import sys

ADAM = {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.1, "torch_adam": True}}
FUSED = {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.1}}
BF16 = {"bf16": {"enabled": True}}
OFFLOAD = {"sub_group_size": 300000, "stage3_param_persistence_threshold": 0}
FP16 = {"fp16": {"enabled": True, "initial_scale_power": 4}}


def case(world, stage, precision=None, zero=None, groups=1, optimizer=ADAM, shipped=False,
         universal=False, **more):
    config = {"train_micro_batch_size_per_gpu": 2, "optimizer": optimizer,
              "zero_optimization": {"stage": stage, **(zero or {})}, **(precision or {}),
              **more.pop("config", {})}
    return {"world": world, "groups": groups, "shipped": shipped, "universal": universal,
            "config": config, **more}


CASES = {
    "s0-fp32-groups": case(1, 0, groups=2),
    "s0-bf16-groups": case(2, 0, BF16, groups=2, shipped=True),
    "s0-fp16-fused": case(1, 0, FP16, groups=2, optimizer=FUSED, shipped=True),
    "s1-fp16": case(3, 1, FP16),
    "s1-bf16opt": case(2, 1, BF16, shipped=True,
                       config={"data_types": {"grad_accum_dtype": "fp32"}}),
    "s2-rr": case(2, 2, zero={"round_robin_gradients": True}, groups=2, shipped=True),
    "s2-align": case(2, 2, BF16, zero={"parameter_alignment": True}, shipped=True),
    "s2-offload": case(2, 2, BF16, zero={"offload_optimizer": {"device": "cpu"}}, optimizer=FUSED),
    "s2-sgd": case(2, 2, optimizer=None, sgd=True, config={"zero_allow_untested_optimizer": True}),
    "s2-elastic": case(3, 2, zero={"elastic_checkpoint": True}),
    "s3-sub": case(3, 3, BF16, groups=2, shipped=True,
                   zero={"sub_group_size": 20, "stage3_param_persistence_threshold": 0}),
    "s3-fp32": case(2, 3),
    "s3-exclude": case(2, 3, FP16, exclude_frozen=True),
    "s3-nvme": case(2, 3, BF16, zero=OFFLOAD | {"offload_optimizer": {"device": "nvme"}},
                    optimizer=FUSED, wide=True),  # needs libaio's headers
    "s3-swapped": {"swap_of": "s3-sub", "shipped": True},
    "u2": case(3, 2, BF16, groups=2, universal=True, shipped=True),
    "u2-rr": case(3, 2, BF16, zero={"round_robin_gradients": True}, universal=True),
    "u3": case(3, 3, BF16, groups=2, universal=True, shipped=True,
               zero={"stage3_param_persistence_threshold": 0}),
}


def make_model(wide=False):
    import torch
    from torch import nn

    class Norm(nn.Module):
        """With buffers as BatchNorm has them, which on CPU does not mix precisions."""

        def __init__(self, n):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(n))
            self.bias = nn.Parameter(torch.zeros(n))
            self.register_buffer("running_mean", torch.zeros(n))
            self.register_buffer("num_batches_tracked", torch.tensor(0))

        def forward(self, h):
            with torch.no_grad():
                self.running_mean += 0.1 * (h.mean(0) - self.running_mean)
                self.num_batches_tracked += 1
            return (h - h.mean(0)) * self.weight + self.bias

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(7, 5)
            self.l1 = nn.Linear(5, 9)
            self.fz = nn.Linear(9, 9)
            self.bn = Norm(9)
            self.l2 = nn.Linear(9, 5, bias=False)
            self.out = nn.Linear(5, 7, bias=False)
            self.out.weight = self.emb.weight
            if wide:  # only tensors of a MiB and more are swapped
                self.wide = nn.Linear(800, 801)

        def forward(self, ids):
            h = self.bn(self.fz(self.l1(self.emb(ids))))
            loss = nn.functional.cross_entropy(self.out(self.l2(h)).float(), (ids + 1) % 7)
            return loss + self.wide(torch.ones_like(h[:1, :1]).expand(1, 800)).float().square().mean() if wide else loss

    torch.manual_seed(5)
    model = Model()
    for p in model.fz.parameters():
        p.requires_grad_(False)
    return model


def groups_of(model, n):
    trainable = [p for p in model.parameters() if p.requires_grad]
    if n == 1:
        return trainable
    return [{"params": [p for p in trainable if p.dim() > 1]},
            {"params": [p for p in trainable if p.dim() <= 1], "weight_decay": 0.0}]


def stage0_tensors(engine, param):
    """(master, state) of a parameter: DeepSpeed's helpers know ZeRO's optimizers only."""
    wrapper = engine.optimizer
    if hasattr(wrapper, "fp32_groups"):
        for low, high in zip(wrapper.fp16_groups, wrapper.fp32_groups):
            for a, b in zip(low, high):
                if a is param:
                    return b, wrapper.optimizer.state[b]
    if hasattr(wrapper, "fp32_groups_flat"):
        for low, flat in zip(wrapper.fp16_groups, wrapper.fp32_groups_flat):
            at = 0
            for a in low:
                if a is param:
                    cut = lambda t: t[at:at + a.numel()].view(a.shape)
                    state = wrapper.optimizer.state[flat]
                    return cut(flat), {k: cut(v) for k, v in state.items()
                                       if hasattr(v, "numel") and v.numel() == flat.numel()}
                at += a.numel()
    return param, wrapper.state[param]


def gather(piece):
    """All ranks' pieces, one behind the other."""
    import torch
    world = torch.distributed.get_world_size()
    pieces = [torch.empty_like(piece) for _ in range(world)]
    torch.distributed.all_gather(pieces, piece.detach().contiguous())
    return pieces


def flat_groups(opt):
    """Stages 1-2, by group: parameters, their offsets in the flat buffer, this rank's partition."""
    if hasattr(opt, "single_partition_of_fp32_groups"):
        groups, partitions = opt.round_robin_bit16_groups, opt.single_partition_of_fp32_groups
    else:
        groups, partitions = opt.bf16_groups, opt.fp32_groups_flat_partition
    offsets = getattr(opt, "round_robin_bit16_offsets", None)  # with alignment, which 0.16.9 does not have
    if offsets is None:
        offsets = [list(itertools.accumulate((p.numel() for p in params), initial=0)) for params in groups]
    yield from zip(groups, offsets, partitions)


def flat_tensors(opt, states):
    """{parameter: {"master": tensor, state: tensor …}}; DeepSpeed's own helper fails for states
    when gradients go round-robin."""
    import torch
    out = {}
    for params, offsets, partition in flat_groups(opt):
        held = {"master": partition, **{s: opt.optimizer.state[partition][s] for s in states}}
        for what, piece in held.items():
            whole = torch.cat(gather(piece))
            for p, at in zip(params, offsets):
                out.setdefault(p, {})[what] = whole[at:at + p.numel()].view(p.shape)
    return out


def shard_tensors(opt, states):
    """The same of stage 3: every rank has a chunk of each parameter."""
    import torch
    out = {}
    for i, (params, flat) in enumerate(zip(opt.fp16_groups, opt.fp32_partitioned_groups_flat)):
        is_swapped = opt._swappable_optimizer_subgroup(i)
        if is_swapped:
            opt._optimizer_states_and_gradient_swap_in(i)
        held = {"master": flat, **{s: opt.optimizer.state[flat][s] for s in states}}
        for what, piece in held.items():
            pieces, at = gather(piece), 0
            for p in params:
                chunk = -(-p.ds_numel // len(pieces))
                whole = torch.cat([piece[at:at + chunk] for piece in pieces])[:p.ds_numel]
                out.setdefault(p, {})[what] = whole.view(p.ds_shape)
                at += chunk
        if is_swapped:
            opt._optimizer_states_and_gradient_swap_out(i)
    return out


def collect(engine, stage, states):
    """Every rank calls this: gathering is collective."""
    held = {}
    if stage == 3:
        held = shard_tensors(engine.optimizer, states)
    elif stage > 0 or hasattr(engine.optimizer, "bf16_groups"):  # 0.16.9 has BF16_Optimizer at stage 0, too
        held = flat_tensors(engine.optimizer, states)
    out = {}
    for name, p in engine.module.named_parameters():
        if not p.requires_grad:
            continue
        if p not in held:
            master, state = stage0_tensors(engine, p)
            held[p] = {"master": master, **{s: state[s] for s in states}}
        out.update({f"{what}.{name}": t for what, t in held[p].items()})
    out.update({"buffer." + name: b for name, b in engine.module.named_buffers()})
    return {k: v.detach().clone().contiguous() for k, v in out.items()}


def frozen_tensors():
    return {"frozen." + n: p.detach() for n, p in make_model().named_parameters()
            if not p.requires_grad}


def train(name, out, rank, port):
    c = CASES[name]
    os.environ.update(DS_ACCELERATOR="cpu", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                      RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(c["world"]),
                      OMP_NUM_THREADS="1")
    import torch
    import deepspeed
    from deepspeed.accelerator import get_accelerator
    from safetensors.torch import save_file
    get_accelerator().is_fp16_supported = lambda: True
    model = make_model(c.get("wide"))
    config = json.loads(json.dumps({k: v for k, v in c["config"].items() if v is not None}))
    stage = config["zero_optimization"]["stage"]
    if name == "s3-nvme":
        config["zero_optimization"]["offload_optimizer"]["nvme_path"] = out + ".swap"
        os.makedirs(out + ".swap", exist_ok=True)
    client = {}
    if c.get("sgd"):
        client["optimizer"] = torch.optim.SGD(groups_of(model, 1), lr=0.1, momentum=0.9)
    else:
        client["model_parameters"] = groups_of(model, c["groups"])
    engine, _, _, _ = deepspeed.initialize(model=model, config=config, **client)
    torch.manual_seed(100 + rank)
    for _ in range(3):
        engine.backward(engine(torch.randint(0, 7, (8,))))
        engine.step()
    states = ["momentum_buffer"] if c.get("sgd") else ["exp_avg", "exp_avg_sq"]
    expected = collect(engine, stage, states)
    engine.save_checkpoint(out, tag="t3",
                           exclude_frozen_parameters=bool(c.get("exclude_frozen")))
    if rank == 0:
        if not c.get("exclude_frozen"):
            dtype = torch.bfloat16 if "bf16" in config else torch.float16 if "fp16" in config else torch.float32
            expected.update({k: v.to(dtype) for k, v in frozen_tensors().items()})
        save_file(expected, os.path.join(out, "expected.safetensors"))


def to_universal(tag, out, stage):
    """DeepSpeed's converter: from one tag's folder to another."""
    import deepspeed
    program = pathlib.Path(deepspeed.__file__).parent / "checkpoint" / "ds_to_universal.py"
    command = [sys.executable, program, "--input_folder", tag, "--output_folder", out, "--num_extract_workers", "1",
               "--num_merge_workers", "1"]
    if stage < 3:
        command.append("--inject_missing_state")
    done = subprocess.run([str(a) for a in command], env={**os.environ, "DS_ACCELERATOR": "cpu"}, capture_output=True,
                          text=True)
    if done.returncode:
        raise ValueError((done.stderr.strip().splitlines() or ["no sentence"])[-1])


def convert(folder, stage):
    """A universal checkpoint in place of the one that it is made from."""
    plain = folder.with_name(folder.name + "-plain")
    folder.rename(plain)
    folder.mkdir()
    to_universal(plain / "t3", folder / "t3", stage)
    shutil.move(plain / "expected.safetensors", folder)
    shutil.rmtree(plain)


def swap_out(source, folder):
    """A copy of a stage-3 checkpoint as if every other sub-group had been swapped to NVMe: small
    tensors never are, so a real one would not be small."""
    import torch
    import deepspeed  # its classes are in the pickles
    shutil.copytree(source, folder, dirs_exist_ok=True)
    for path in sorted((folder / "t3").glob("*_optim_states.pt")):
        rank = int(path.name.split("pp_rank_")[1].split("_")[0])
        swap = folder / "t3" / "offloaded_tensors" / f"rank{rank:02d}"
        swap.mkdir(parents=True)
        state = torch.load(path, weights_only=False)
        inner = state["optimizer_state_dict"]
        for i, flat in enumerate(inner["fp32_flat_groups"]):
            if i % 2 == 0:
                continue
            held = inner["optimizer_state_dict"]["state"][i]
            for prefix, tensor in [("", flat), ("exp_avg-", held["exp_avg"]), ("exp_avg_sq-", held["exp_avg_sq"])]:
                raw = tensor.detach().numpy().tobytes()
                raw += b"\xff" * (-len(raw) % 1024)
                (swap / f"{prefix}{flat.ds_id}.tensor.swp").write_bytes(raw)
                tensor.data = torch.Tensor()
                tensor.ds_id = prefix + flat.ds_id.split("-")[-1]
        torch.save(state, path)


def make(name, out):
    c = CASES[name]
    folder = out / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if "swap_of" in c:
        swap_out(out / c["swap_of"], folder)
        print(name)
        return
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    spawn = multiprocessing.get_context("spawn")
    ranks = [spawn.Process(target=train, args=(name, str(folder), r, port)) for r in range(c["world"])]
    for p in ranks:
        p.start()
    for p in ranks:
        p.join()
    if any(p.exitcode for p in ranks):
        sys.exit(f"{name}: a rank failed")
    shutil.rmtree(out / (name + ".swap"), ignore_errors=True)
    for script in glob.glob(str(folder / "*.py")):
        os.remove(script)
    if c["universal"]:
        convert(folder, c["config"]["zero_optimization"]["stage"])
    print(name)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--shipped", action="store_true")
    args = parser.parse_args()
    for name in args.names or CASES:
        if CASES[name]["shipped"] or not args.shipped:
            make(name, args.out)


if __name__ == "__main__":
    main()
