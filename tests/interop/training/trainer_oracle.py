"""Compare what czero fills into a config with what transformers' Trainer and accelerate fill in, for every
config among the fixtures that leaves something open.

    python3 tests/interop/training/trainer_oracle.py build/czero    # with the python of scripts/peers.sh

Trainer is given its default arguments, but for the sizes, rates and precisions that the config states itself: Trainer
insists on the same values there, czero takes the file's."""

import json
import os
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("DS_ACCELERATOR", "cpu")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from fixtures import FIXTURES  # noqa: E402

STEPS, HIDDEN = 600, 64
OPEN = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping",
        "fp16.enabled", "bf16.enabled", "optimizer.params.lr", "optimizer.params.betas", "optimizer.params.eps",
        "optimizer.params.weight_decay", "scheduler.params.warmup_min_lr", "scheduler.params.warmup_max_lr",
        "scheduler.params.warmup_num_steps", "scheduler.params.total_num_steps", "zero_optimization.reduce_bucket_size",
        "zero_optimization.stage3_prefetch_bucket_size", "zero_optimization.stage3_param_persistence_threshold")


def at(tree, path):
    for name in path.split("."):
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tree


def number(value, otherwise):
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else otherwise


class Arguments:
    """The TrainingArguments that HfTrainerDeepSpeedConfig reads."""

    def __init__(self, config):
        micro = number(at(config, "train_micro_batch_size_per_gpu"), None)
        steps = number(at(config, "gradient_accumulation_steps"), None)
        batch = number(at(config, "train_batch_size"), None)
        self.world_size = 1
        self.per_device_train_batch_size = micro or (batch // steps if batch and steps else 8)
        if batch and not micro and not steps:  # czero: the largest up to 8 that divides the batch
            self.per_device_train_batch_size = next(n for n in range(8, 0, -1) if batch % n == 0)
        self.gradient_accumulation_steps = steps or (batch // self.per_device_train_batch_size if batch else 1)
        self.max_grad_norm = number(at(config, "gradient_clipping"), 1.0)
        self.learning_rate = number(at(config, "optimizer.params.lr"),
                                    number(at(config, "scheduler.params.warmup_max_lr"), 5e-5))
        betas = at(config, "optimizer.params.betas")
        self.adam_beta1, self.adam_beta2 = betas if isinstance(betas, list) else (0.9, 0.999)
        self.adam_epsilon = number(at(config, "optimizer.params.eps"), 1e-8)
        self.weight_decay = number(at(config, "optimizer.params.weight_decay"), 0.0)
        self.fp16 = at(config, "fp16.enabled") is True
        self.bf16 = at(config, "bf16.enabled") is True
        self.fp16_full_eval = self.bf16_full_eval = self.save_on_each_node = False
        self.warmup = number(at(config, "scheduler.params.warmup_num_steps"), 0)
        self.total = number(at(config, "scheduler.params.total_num_steps"), STEPS)

    def get_warmup_steps(self, num_training_steps):
        return self.warmup


class Model:
    class config:
        hidden_size = HIDDEN


def filled_by_trainer(path):
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    config = HfTrainerDeepSpeedConfig(str(path))
    arguments = Arguments(config.config)
    config.trainer_config_process(arguments)
    config.trainer_config_finalize(arguments, Model, arguments.total)
    return config.config


def filled_by_czero(czero, path):
    shown = subprocess.run([czero, "config", "show", "--filled", "--steps", str(STEPS), "--auto", f"hidden_size={HIDDEN}",
                            "--quiet", str(path)], capture_output=True, text=True)
    return json.loads(shown.stdout) if shown.returncode == 0 else shown.stderr.strip()


def same(ours, theirs):
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    return ours == theirs


def main():
    czero = sys.argv[1]
    n_same = n_refused = n_different = 0
    for path in sorted((FIXTURES / "real_configs").glob("[0-9]*.json")):
        try:
            config = json.loads(path.read_text())
        except (ValueError, UnicodeDecodeError):
            continue  # transformers reads JSON only
        if not isinstance(config, dict) or '"auto"' not in path.read_text():
            continue
        ours = filled_by_czero(czero, path)
        if isinstance(ours, str):
            n_refused += 1
            print(f"{path.name}: refused by czero: {ours.splitlines()[0][:150]}")
            continue
        try:
            theirs = filled_by_trainer(path)
        except Exception as e:
            print(f"{path.name}: refused by transformers: {str(e)[:150]}")
            n_refused += 1
            continue
        wrong = [f"{key}: {at(ours, key)} here, {at(theirs, key)} there" for key in OPEN
                 if at(config, key) == "auto" and at(theirs, key) != "auto" and not same(at(ours, key), at(theirs, key))]
        n_different += bool(wrong)
        n_same += not wrong
        for line in wrong:
            print(f"{path.name}: {line}")
    print(f"{n_same} configs are filled in as by transformers, {n_different} differ, {n_refused} refused by one of both")
    return 1 if n_different or n_same < 50 else 0


if __name__ == "__main__":
    sys.exit(main())
