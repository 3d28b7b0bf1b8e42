#!/usr/bin/env python3
"""Small checkpoints of DeepSpeed's own for the tests: fixtures/checkpoints/wrappers/NAME, a few KB a file.

  ckpt_golden.py [NAME...]

Run with the python that scripts/peers.sh prints. A model of odd shapes (nothing divides anything;
tied, partly frozen) takes three steps; what is saved touches what the recorded runs do not: stage 0
in fp32 and under both 16-bit wrappers, parameter groups, sub-groups, alignment, paddings at the end of
several ranks.
"""
import json
import pathlib
import shutil
import sys

sys.dont_write_bytecode = True
sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "training"))
import curves
from runs import OFFLOAD, optimizer, scheduler

OUT = curves.FIXTURES / "checkpoints" / "wrappers"
STEPS = 3
ADAMW = optimizer("AdamW", lr=1e-2, betas=[0.9, 0.95], weight_decay=0.1, torch_adam=True)
FUSED = optimizer("AdamW", lr=1e-2, betas=[0.9, 0.95])
WARMUP = scheduler("WarmupLR", warmup_max_lr=1e-2, warmup_num_steps=2, warmup_type="linear")
BF16 = {"bf16": {"enabled": True}}
DYNAMIC = {"fp16": {"enabled": True, "initial_scale_power": 8, "loss_scale_window": 2, "hysteresis": 1}}
CASES = {}


def case(name, opt, world=1, freeze="", groups="", zero=None, **sections):
    config = {"train_micro_batch_size_per_gpu": 2, "optimizer": opt, "scheduler": WARMUP,
              "gradient_clipping": 1.0, "zero_optimization": {"stage": int(name[1]), **(zero or {})}, **sections}
    if opt["type"] == "SGD":
        config["zero_allow_untested_optimizer"] = True
    CASES[name] = dict(world=world, freeze=freeze, groups=groups, config=config)


case("s0-fp32", ADAMW)
case("s0-fp32-fused", FUSED, groups="hf")
case("s0-fp32-groups", ADAMW, world=2, groups="hf", freeze="fixed")
case("s0-bf16-fused", FUSED, groups="hf", freeze="fixed", **BF16)
case("s0-fp16-fused", FUSED, **DYNAMIC)
case("s0-fp16-unfused", ADAMW, world=2, **DYNAMIC)
case("s1-fp32-groups", ADAMW, world=3, groups="hf", freeze="fixed")
case("s1-bf16-fused", FUSED, world=2, **BF16)
case("s1-fp32-sgd", optimizer("SGD", lr=0.1, momentum=0.9), world=2)
case("s1-fp32-adagrad", optimizer("Adagrad", lr=0.1))
case("s1-bf16-aligned", ADAMW, world=2, zero={"parameter_alignment": True}, **BF16)
case("s2-bf16-frozen", ADAMW, world=4, freeze="fixed", **BF16)
case("s2-fp16-lion-offload", optimizer("Lion", lr=1e-3, weight_decay=0.1), world=2, zero=OFFLOAD, **DYNAMIC)
case("s3-fp32-subgroups", ADAMW, world=3, groups="hf", freeze="fixed", zero={"sub_group_size": 20})
case("s3-bf16-one", FUSED, zero={"sub_group_size": 30}, **BF16)
case("s3-fp16", ADAMW, world=2, groups="hf", **DYNAMIC)


def model_make(freeze):
    import torch
    from torch import nn

    class Toy(nn.Module):
        """ids (B, T) -> logits (B, T, 7), through a frozen layer in the middle."""
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(7, 5)
            self.l1 = nn.Linear(5, 9)
            self.fixed = nn.Linear(9, 9)
            self.norm = nn.LayerNorm(9)
            self.l2 = nn.Linear(9, 5, bias=False)
            self.out = nn.Linear(5, 7, bias=False)
            self.out.weight = self.emb.weight

        def forward(self, ids):
            x = self.norm(self.fixed(torch.tanh(self.l1(self.emb(ids)))))
            return self.out(self.l2(x))

    torch.manual_seed(3)
    model = Toy()
    for name, p in model.named_parameters():
        if freeze and freeze in name:
            p.requires_grad_(False)
    return model


def make(rank, world, case, folder):
    import deepspeed
    import torch
    curves.allow_fp16()
    model = model_make(case["freeze"])
    engine = deepspeed.initialize(model=model, model_parameters=curves.param_groups(model, case["groups"]),
                                  config=case["config"])[0]
    for step in range(STEPS):
        ids = torch.arange(2 * 6).reshape(2, 6) * (step + rank + 2) % 7
        logits = engine(ids).float()
        engine.backward(torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, 7), ids[:, 1:].reshape(-1)))
        engine.step()
    engine.save_checkpoint(folder)
    return []


def main():
    curves.quiet_peers()
    import torch
    torch.set_num_threads(1)
    import deepspeed  # noqa: F401  imported once here, so that the children start at once
    import transformers  # noqa: F401
    for name, each in CASES.items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        folder = OUT / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        curves.run_apart(each["world"], make, case=each, folder=str(folder))
        for script in folder.glob("*.py"):
            script.unlink()
        (folder / "ds_config.json").write_text(json.dumps(each["config"], indent=1) + "\n")
        print(name, sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()), "bytes")


if __name__ == "__main__":
    main()
