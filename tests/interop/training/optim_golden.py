"""Writes tests/fixtures/optim/*.csv: what torch's and DeepSpeed's own optimizers do to eight numbers.

    <peers>/bin/python tests/interop/training/optim_golden.py

Each file begins with "# key=value" lines: the optimizer as a config names it (type, offload) and its
parameters. Then, per step, one row of eight gradients and one of the eight parameters after it; the
first row holds the parameters at the start. Numbers are fp32, shortest round-trip.
Made with torch 2.15 and DeepSpeed 0.19.8 (its CPU extensions are compiled on first use).
"""
import os
import pathlib

os.environ.setdefault("DS_ACCELERATOR", "cpu")
import numpy
import torch
from deepspeed.ops.adagrad import DeepSpeedCPUAdagrad
from deepspeed.ops.adam import DeepSpeedCPUAdam
from deepspeed.ops.lion import DeepSpeedCPULion

OUT = pathlib.Path(__file__).resolve().parents[2] / "fixtures" / "optim"
STEPS = 12

# name: (config's type, offload, peer's class, config's params, the peer's own keywords)
CASES = {
    "torch_adamw": ("AdamW", False, torch.optim.AdamW,
                    dict(torch_adam=True, lr=1e-2, betas=[0.9, 0.95], eps=1e-8, weight_decay=0.1)),
    "torch_adam_l2": ("Adam", False, torch.optim.Adam,
                      dict(torch_adam=True, adam_w_mode=False, lr=1e-2, weight_decay=0.1)),
    "cpu_adamw": ("AdamW", True, DeepSpeedCPUAdam, dict(lr=1e-2, betas=[0.8, 0.99], weight_decay=0.1)),
    "cpu_adam_l2": ("Adam", True, DeepSpeedCPUAdam, dict(adam_w_mode=False, lr=3e-3, weight_decay=0.1)),
    "cpu_adam_uncorrected": ("Adam", True, DeepSpeedCPUAdam, dict(bias_correction=False, lr=1e-3)),
    "cpu_lion": ("Lion", True, DeepSpeedCPULion, dict(lr=1e-2, betas=[0.9, 0.99], weight_decay=0.1)),
    "cpu_adagrad": ("Adagrad", True, DeepSpeedCPUAdagrad, dict(lr=1e-2, eps=1e-8, weight_decay=0.1)),
    "torch_adagrad": ("Adagrad", False, torch.optim.Adagrad,
                      dict(lr=1e-2, lr_decay=0.1, weight_decay=0.1, initial_accumulator_value=0.2)),
    "sgd": ("SGD", False, torch.optim.SGD, dict(lr=1e-2)),
    "sgd_momentum": ("SGD", False, torch.optim.SGD,
                     dict(lr=1e-2, momentum=0.9, dampening=0.3, weight_decay=0.1)),
    "sgd_nesterov": ("SGD", False, torch.optim.SGD,
                     dict(lr=1e-2, momentum=0.9, nesterov=True, weight_decay=0.1)),
}


def text(value):
    if isinstance(value, list):
        return " ".join(text(v) for v in value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value)


def row(tensor):
    return ",".join(str(numpy.float32(v)) for v in tensor.detach().numpy())


def make(peer, params, keywords):
    keywords = {k: v for k, v in keywords.items() if k != "torch_adam"}
    if peer.__module__.startswith("torch"):
        keywords.pop("adam_w_mode", None)
    elif "adam_w_mode" in keywords:
        keywords["adamw_mode"] = keywords.pop("adam_w_mode")
    return peer([params], **keywords)


def write(path, kind, offload, peer, keywords):
    """One file, of torch's random numbers."""
    params = torch.nn.Parameter(torch.randn(8))
    optimizer = make(peer, params, keywords)
    with open(path, "w") as f:
        print(f"# type={kind}\n# offload={text(offload)}", file=f)
        for key, value in keywords.items():
            print(f"# {key}={text(value)}", file=f)
        print(row(params), file=f)
        for step in range(STEPS):
            params.grad = torch.randn(8) * torch.tensor([1, 1e-1, 1e-2, 1e-3, 1e-4, 1e-6, 3, 1])
            print(row(params.grad), file=f)
            optimizer.step()
            print(row(params), file=f)


def main():
    torch.manual_seed(7)
    OUT.mkdir(exist_ok=True)
    for name, case in CASES.items():
        write(OUT / f"{name}.csv", *case)


if __name__ == "__main__":
    main()
