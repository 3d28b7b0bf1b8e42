"""Optimizers' steps: twelve updates of eight parameters by torch's and DeepSpeed's own classes (FusedLamb's with the kernel of
training/lamb_kernel.py) with random settings and gradients, replayed by tests/unit/optim/test_formulas from the config's names down to the kernel."""
import os
import pathlib
import random
import sys
import tempfile

from . import outcome

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "training"))

AREA = "optimizers"


def draw(rng, golden):
    """(the config's type, offload, the peer's class, settings), as golden.CASES has them."""
    import torch
    from deepspeed.ops.lamb import FusedLamb
    settings = {"lr": 10 ** rng.uniform(-5, -1.3)}
    decay = {"weight_decay": rng.choice([0, rng.random() * 0.3])}
    kind = rng.choice(["torch-adam", "cpu-adam", "cpu-lion", "cpu-adagrad", "torch-adagrad", "sgd", "lamb"])
    betas = {"betas": [round(rng.uniform(0, 0.99), 3), round(rng.uniform(0.5, 0.9999), 4)]}
    eps = {"eps": 10 ** rng.uniform(-9, -3)}
    if kind == "torch-adam":
        decoupled = rng.random() < 0.5
        return ("AdamW" if decoupled else "Adam", False, torch.optim.AdamW if decoupled else torch.optim.Adam,
                {"torch_adam": True, **({} if decoupled else {"adam_w_mode": False}), **settings, **decay, **betas, **eps})
    if kind == "cpu-adam":
        mode = {"adam_w_mode": rng.random() < 0.5, "bias_correction": rng.random() < 0.7}
        return "Adam", True, golden.DeepSpeedCPUAdam, {**mode, **settings, **decay, **betas, **eps}
    if kind == "cpu-lion":
        return "Lion", True, golden.DeepSpeedCPULion, {**settings, **decay, **betas}
    if kind == "cpu-adagrad":
        return "Adagrad", True, golden.DeepSpeedCPUAdagrad, {**settings, **decay, **eps}
    if kind == "torch-adagrad":
        more = {"lr_decay": rng.random() * 0.2, "initial_accumulator_value": rng.random()}
        return "Adagrad", False, torch.optim.Adagrad, {**settings, **decay, **eps, **more}
    if kind == "lamb":
        more = {"bias_correction": rng.random() < 0.7, "max_coeff": rng.uniform(0.5, 10), "min_coeff": rng.uniform(0.001, 0.5)}
        return "Lamb", False, FusedLamb, {**settings, **decay, **betas, **eps, **more}
    momentum = rng.choice([0, rng.uniform(0.1, 0.99)])
    more = {"momentum": momentum} if momentum else {}
    if momentum:
        more.update(rng.choice([{"nesterov": True}, {"dampening": rng.random()}, {}]))
    return "SGD", False, torch.optim.SGD, {**settings, **decay, **more}


def run(tools, seed, n):
    import lamb_kernel
    import optim_golden
    import torch
    lamb_kernel.allow_lamb()
    with tempfile.TemporaryDirectory() as scratch:
        path = pathlib.Path(scratch) / "case.csv"
        for i in range(n):
            kind, offload, peer, settings = draw(random.Random(seed + i), optim_golden)
            torch.manual_seed(seed + i)
            optim_golden.write(path, kind, offload, peer, settings)
            os.environ.update(CZ_OPTIM_CASES=scratch, CK_RUN_CASE="peers_own_classes_agree")
            done = tools.run(program="tests/optim/test_formulas")
            case = f"{peer.__name__} seed {seed + i} {settings}"
            wrong = [line for line in done.stdout.splitlines() if "case.csv" in line or ":F:" in line or ":E:" in line]
            if done.returncode == 0:
                yield outcome.agreed(AREA, case)
            else:
                yield outcome.disagreed(AREA, case, (wrong or [outcome.sentence(done)])[0])
