"""Writes tests/fixtures/lr/*.csv: what DeepSpeed's own schedules give for 200 updates, and torch's for 40.

    <peers>/bin/python tests/interop/training/lr_golden.py

Each file begins with "# key=value" lines: the scheduler's type, the optimizer's own lr per group
(the first base_lr) and the parameters. Then one row per index i from -1: i, and for each group lr, beta1 and
beta2 as the optimizer holds them after that index was reached. Numbers are shortest round-trip doubles.
Made with DeepSpeed 0.19.8 and torch 2.15.
"""
import logging
import os
import pathlib

os.environ.setdefault("DS_ACCELERATOR", "cpu")
import torch
from deepspeed.runtime import lr_schedules

logging.disable(logging.WARNING)
OUT = pathlib.Path(__file__).resolve().parents[2] / "fixtures" / "lr"
STEPS, TORCH_STEPS = 200, 40

CASES = {
    "warmup_log": ("WarmupLR", [1e-3], dict(warmup_num_steps=10)),
    "warmup_linear": ("WarmupLR", [1e-3],
                      dict(warmup_min_lr=1e-6, warmup_max_lr=3e-4, warmup_num_steps=37, warmup_type="linear")),
    "warmup_one": ("WarmupLR", [7e-4], dict(warmup_num_steps=1)),
    "warmup_long": ("WarmupLR", [2e-5], dict(warmup_num_steps=5000, warmup_min_lr=1e-7)),
    "warmup_groups": ("WarmupLR", [1e-3, 5e-4, 1e-5],
                      dict(warmup_min_lr=[0, 1e-5, 1e-6], warmup_num_steps=50, warmup_type="linear")),
    "decay_log": ("WarmupDecayLR", [1e-3], dict(total_num_steps=20, warmup_num_steps=10)),
    "decay_linear": ("WarmupDecayLR", [1e-2],
                     dict(total_num_steps=150, warmup_min_lr=1e-5, warmup_max_lr=[6e-4], warmup_num_steps=30,
                          warmup_type="linear")),
    "decay_short": ("WarmupDecayLR", [1e-2], dict(total_num_steps=12, warmup_num_steps=40)),
    "cosine_linear": ("WarmupCosineLR", [0.01],
                      dict(total_num_steps=12, warmup_num_steps=4, cos_min_ratio=0.1, warmup_type="linear")),
    "cosine_log": ("WarmupCosineLR", [3e-4, 1e-4],
                   dict(total_num_steps=180, warmup_min_ratio=0.05, warmup_num_steps=25)),
    "cosine_equal": ("WarmupCosineLR", [3e-4], dict(total_num_steps=20, warmup_num_steps=20)),
    "range_linear": ("LRRangeTest", [1e-3],
                     dict(lr_range_test_min_lr=1e-5, lr_range_test_step_size=7, lr_range_test_step_rate=1.5)),
    "range_stairs": ("LRRangeTest", [1e-3, 1e-3],
                     dict(lr_range_test_min_lr=[1e-4, 3e-5], lr_range_test_step_size=13,
                          lr_range_test_step_rate=2, lr_range_test_staircase=True)),
    "cycle_plain": ("OneCycle", [1e-3],
                    dict(cycle_min_lr=1e-4, cycle_max_lr=1e-3, decay_lr_rate=0.01, cycle_first_step_size=8,
                         cycle_second_step_size=6, decay_step_size=3, cycle_min_mom=0.85, cycle_max_mom=0.95)),
    "cycle_stairs": ("OneCycle", [1e-3],
                     dict(cycle_min_lr=1e-4, cycle_max_lr=2e-3, cycle_first_step_size=50,
                          cycle_second_step_size=70, cycle_first_stair_count=5, cycle_second_stair_count=8)),
    "cycle_groups": ("OneCycle", [1e-3, 2e-3],
                     dict(cycle_min_lr=[1e-5, 2e-5], cycle_max_lr=[1e-3, 3e-3], cycle_first_step_size=45,
                          decay_step_size=10, decay_lr_rate=0.3, decay_mom_rate=0.0001,
                          cycle_min_mom=[0.8, 0.7], cycle_max_mom=[0.9, 0.92])),
    "cycle_no_momentum": ("OneCycle", [1e-3],
                          dict(cycle_min_lr=1e-5, cycle_max_lr=1e-3, cycle_first_step_size=30,
                               cycle_second_step_size=0, cycle_momentum=False)),
}

TORCH_CASES = {
    "torch_step": ("StepLR", [0.1], dict(step_size=7, gamma=0.3)),
    "torch_milestones": ("MultiStepLR", [0.1], dict(milestones=[25, 3, 9, 9], gamma=0.7)),
    "torch_constant": ("ConstantLR", [0.1], dict(total_iters=9)),
    "torch_linear": ("LinearLR", [0.1, 0.03], dict(start_factor=0.07, end_factor=0.9, total_iters=31)),
    "torch_exponential": ("ExponentialLR", [0.1], dict(gamma=0.93)),
    "torch_polynomial": ("PolynomialLR", [0.1], dict(total_iters=33, power=1.7)),
    "torch_cosine": ("CosineAnnealingLR", [0.1], dict(T_max=13, eta_min=0.003)),
    "torch_restarts": ("CosineAnnealingWarmRestarts", [0.1], dict(T_0=3, T_mult=2, eta_min=0.001)),
    "torch_cyclic": ("CyclicLR", [0.1, 0.1],
                     dict(base_lr=[0.001, 0.002], max_lr=[0.01, 0.03], step_size_up=7, step_size_down=4,
                          mode="triangular2", base_momentum=[0.7, 0.6], max_momentum=[0.9, 0.93])),
    "torch_cyclic_exp": ("CyclicLR", [0.1], dict(base_lr=0.001, max_lr=0.01, step_size_up=5, mode="exp_range",
                                                 gamma=0.97, cycle_momentum=False)),
    "torch_one_cycle": ("OneCycleLR", [0.1], dict(max_lr=0.02, total_steps=41)),
    "torch_three_phases": ("OneCycleLR", [0.1], dict(max_lr=0.02, total_steps=45, three_phase=True, pct_start=0.37,
                                                     anneal_strategy="linear", div_factor=10)),
}


def text(value):
    if isinstance(value, list):
        return " ".join(text(v) for v in value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else repr(value)


def rows(classes, kind, base_lr, params, steps):
    groups = [{"params": [torch.zeros(1, requires_grad=True)], "lr": lr} for lr in base_lr]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95))
    schedule = getattr(classes, kind)(optimizer, **params)
    for i in range(-1, steps):
        yield [i] + [v for g in optimizer.param_groups for v in (g["lr"], *g["betas"])]
        schedule.step()


def write(name, case, classes, steps):
    kind, base_lr, params = case
    with open(OUT / f"{name}.csv", "w") as f:
        print(f"# type={kind}", file=f)
        print(f"# base_lr={text(base_lr)}", file=f)
        for key, value in params.items():
            print(f"# {key}={text(value)}", file=f)
        for row in rows(classes, kind, base_lr, params, steps):
            print(",".join(text(v) for v in row), file=f)


for name, case in CASES.items():
    write(name, case, lr_schedules, STEPS)
for name, case in TORCH_CASES.items():
    write(name, case, torch.optim.lr_scheduler, TORCH_STEPS)
