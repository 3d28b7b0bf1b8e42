#!/usr/bin/env python3
"""Whether DeepSpeed's own parser accepts what `czero tune -o` and `czero init` write, and reads the
same from it.

Run it manually with a Python that has deepspeed (scripts/peers.sh makes one):

    PEERS/bin/python tests/interop/training/tune_configs.py build/czero

Budgets from a laptop to a server, with and without GPU and NVMe, all precisions and several ranks.
Each config is resolved by DeepSpeed 0.19.8; stage, offload, buckets and the batch triangle must be
those that tune chose, and no key may be unknown; of init's configs batch, precision and the
schedule. Exit 0: all accepted.
"""
import json
import logging
import os
import subprocess
import sys
import tempfile

os.environ["DS_ACCELERATOR"] = "cpu"
from deepspeed.runtime import config as ds_config  # noqa: E402
from deepspeed.utils import logger  # noqa: E402

logger.setLevel(logging.CRITICAL)


class FakeDist:
    world_size = 1

    def get_rank(self):
        return 0

    def get_world_size(self, group=None):
        return self.world_size


fake = FakeDist()
ds_config.dist = fake

CASES = [  # model, ranks, precision, GPU, host, NVMe
    ("gpt2", 1, "fp32", "0", "4GB", "0"),
    ("gpt2", 1, "bf16", "0", "1500MB", "10GB"),
    ("gpt2-1.3b", 1, "bf16", "24GB", "64GB", "0"),
    ("gpt2-1.3b", 1, "fp16", "5GB", "32GB", "0"),
    ("gpt2-1.3b", 1, "bf16", "4GB", "12GB", "100GB"),
    ("gpt2-1.3b", 4, "bf16", "8GB", "128GB", "0"),
    ("gpt2-7b", 1, "bf16", "16GB", "32GB", "200GB"),
    ("gpt2-7b", 8, "bf16", "24GB", "256GB", "0"),
    ("gpt2-13b", 2, "bf16", "24GB", "128GB", "1TB"),
    ("gpt2-70b", 8, "bf16", "80GB", "1TB", "0"),
    ("gpt2-70b", 1, "bf16", "24GB", "256GB", "2TB"),
]


def tune(czero, case, path):
    model, ranks, precision, gpu, host, nvme = case
    text = subprocess.run(
        [czero, "tune", "--model", model, "--seq-len", "512", "--world-size", str(ranks), "--precision", precision,
         "--gpu-memory", gpu, "--host-memory", host, "--nvme", nvme, "--json", "-o", path],
        check=True, capture_output=True, text=True).stdout
    return json.loads(text)["offers"][0]


def differences(c, offer, ranks):
    zero = c.zero_config

    def device(section):
        return "none" if section is None or section.device is None else str(getattr(section.device, "value", section.device))

    pairs = [("stage", zero.stage, offer["zero_stage"]),
             ("offload_optimizer", device(zero.offload_optimizer), offer["offload_optimizer"]),
             ("offload_param", device(zero.offload_param), offer["offload_param"]),
             ("micro-batch", c.train_micro_batch_size_per_gpu, offer["micro_batch"]),
             ("accumulation", c.gradient_accumulation_steps, offer["gradient_accumulation_steps"]),
             ("batch", c.train_batch_size,
              offer["micro_batch"] * offer["gradient_accumulation_steps"] * ranks)]
    if offer["offload_optimizer"] != "none":
        pairs.append(("ratio", zero.offload_optimizer.ratio, offer["ratio"]))
    return [f"{name}: {got} instead of {want}" for name, got, want in pairs if got != want]


INITS = [  # model, task, ranks, precision, flags
    ("gpt2-tiny", "causal-lm", 1, "fp32", ["--steps", "500"]),
    ("gpt2-1.3b", "causal-lm", 2, "bf16", ["--epochs", "1", "--device", "cuda", "--gpu-memory", "24GB"]),
    ("llama-160m", "causal-lm", 4, "bf16", ["--steps", "1000", "--seq-len", "256"]),
    ("bert-base", "classification", 2, "bf16", ["--epochs", "3", "--batch", "48"]),
    ("bert-base", "classification", 1, "fp16", ["--steps", "1"]),
    ("distilbert-base", "classification", 3, "fp32", ["--epochs", "2"]),
]


def init_differences(czero, case, folder, path):
    model, task, ranks, precision, flags = case
    data = os.path.join(folder, "train.json" if task == "classification" else "text.txt")
    with open(data, "w") as f:
        json.dump([["some words", label] for label in "abcabc"], f)
    host = [] if "--host-memory" in flags else ["--host-memory", "128GB"]
    subprocess.run([czero, "init", "--model", model, "--data", data, "--task", task, "--ranks", str(ranks),
                    "--precision", precision, "--yes", "--force", "-o", path, *flags, *host],
                   check=True, capture_output=True)
    c = ds_config.DeepSpeedConfig(path)
    batch = int(flags[flags.index("--batch") + 1]) if "--batch" in flags else -(-32 // ranks) * ranks
    pairs = [("batch", c.train_batch_size, batch),
             ("bf16", c.bfloat16_config.enabled, precision == "bf16"),
             ("fp16", c.float16_config.enabled, precision == "fp16"),
             ("scheduler", c.scheduler_name, "WarmupDecayLR"),
             ("the end is the run's", c.scheduler_params["total_num_steps"], "auto")]
    return [f"{what}: {got} instead of {want}" for what, got, want in pairs if got != want]


def main():
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            path = os.path.join(folder, "ds_config.json")
            offer, fake.world_size = {}, case[1]
            try:
                offer = tune(sys.argv[1], case, path)
                bad = differences(ds_config.DeepSpeedConfig(path), offer, case[1])
            except Exception as e:  # whatever it refuses with
                bad = [f"{type(e).__name__}: {e}"]
            failed += bool(bad)
            print("BAD" if bad else "ok ", *case, offer.get("configuration", ""), *bad)
        for case in INITS:
            fake.world_size = case[2]
            try:
                bad = init_differences(sys.argv[1], case, folder, os.path.join(folder, "init.json"))
            except Exception as e:
                bad = [f"{type(e).__name__}: {e} {getattr(e, 'stderr', '')}"]
            failed += bool(bad)
            print("BAD" if bad else "ok ", "init", *case, *bad)
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
