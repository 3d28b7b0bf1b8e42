#!/usr/bin/env python3
"""Differential test of `czero config show` against DeepSpeed 0.19.8's own parser.

Run it manually with a Python that has deepspeed (scripts/peers.sh makes one):

    PEERS/bin/python tests/interop/training/config_oracle.py build/czero [--count 3000] [--seed 1]

It makes random configs (from nothing, and by changing the files of fixtures/real_configs),
lets both parsers resolve them at a random world size, and prints every disagreement: one accepts
what the other refuses, or a value differs. Feeding `show` its own output must give the same bytes,
and DeepSpeed must resolve that output to the same values. Exit 0: no disagreement.
"""
import argparse
import pathlib
import copy
import glob
import json
import logging
import os
import random
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

os.environ["DS_ACCELERATOR"] = "cpu"
import hjson  # noqa: E402
from deepspeed.runtime import config as ds_config  # noqa: E402
from deepspeed.utils import logger  # noqa: E402

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from fixtures import FIXTURES  # noqa: E402

logger.setLevel(logging.CRITICAL)
CONFIGS = FIXTURES / "real_configs"


class FakeDist:
    """As many ranks as asked for, without starting any."""
    world_size = 1

    def get_rank(self):
        return 0

    def get_world_size(self, group=None):
        return self.world_size


fake = FakeDist()
ds_config.dist = fake

# ---- what DeepSpeed makes of a file, under the names that `config show` prints -------------------

STAGE3 = {"prefetch_bucket_size", "param_persistence_threshold", "model_persistence_threshold",
          "max_live_parameters", "max_reuse_distance", "gather_16bit_weights_on_model_save",
          "module_granularity_threshold", "use_all_reduce_for_fetch_params", "allgather_sequential"}
HIDDEN = {"cpu_offload", "cpu_offload_param", "stage3_gather_fp16_weights_on_model_save"}


def plain(value):
    if hasattr(value, "model_dump"):
        return {k: plain(getattr(value, k)) for k in type(value).model_fields if hasattr(value, k)}
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, os.PathLike):
        return str(value)
    if type(value).__module__.startswith("torch") or isinstance(value, ds_config.Enum):
        return str(value)
    return value


def comm_name(dtype):
    return {"torch.float32": "fp32", "torch.float16": "fp16", "torch.bfloat16": "bf16"}.get(
        str(dtype)) if dtype is not None else None


def resolve(path, world_size):
    """A flat dict of dotted names, or the exception."""
    fake.world_size = world_size
    try:
        c = ds_config.DeepSpeedConfig(path)
    except Exception as e:  # noqa: BLE001
        return e
    zero = {("stage3_" + k if k in STAGE3 else k): v for k, v in plain(c.zero_config).items()
            if k not in HIDDEN}
    out = {
        "optimizer": {"type": c.optimizer_name, "params": c.optimizer_params,
                      "legacy_fusion": c.optimizer_legacy_fusion},
        "scheduler": {"type": c.scheduler_name, "params": c.scheduler_params},
        "fp16": plain(c.float16_config), "bf16": plain(c.bfloat16_config),
        "zero_optimization": zero, "aio": c.aio_config,
        "activation_checkpointing": dict(vars(c.activation_checkpointing_config)),
        "flops_profiler": dict(vars(c.flops_profiler_config)),
        "hybrid_engine": plain(c.hybrid_engine), "compile": plain(c.compile_config),
        "timers": {"throughput": plain(c.timers_config)},
        "communication_data_type": comm_name(c.communication_data_type),
        "seq_parallel_communication_data_type": comm_name(c.seq_parallel_communication_data_type),
        "data_types": {"grad_accum_dtype": c.grad_accum_dtype, "param_dtype": c.param_dtype,
                       "buffer_dtype": c.buffer_dtype,
                       "keep_in_fp32_modules": c.keep_in_fp32_modules},
        "checkpoint": {"load_universal": c.load_universal_checkpoint,
                       "use_node_local_storage": c.use_node_local_storage,
                       "tag_validation": c.checkpoint_config["tag_validation"],
                       "writer": c.checkpoint_config["writer"]},
        "use_data_before_expert_parallelism": c.use_data_before_expert_parallel_,
        "pipeline": c.pipeline,
    }
    autotuning = dict(vars(c.autotuning_config))
    for unused in ("start_step", "end_step"):
        autotuning.pop(unused)
    out["autotuning"] = autotuning
    for name in ("tensorboard", "csv_monitor", "wandb", "comet"):
        out[name] = plain(getattr(c.monitor_config, name))
    if c.comms_config.comms_logger_enabled:
        out["comms_logger"] = plain(c.comms_config.comms_logger)
    tp = plain(c.tensor_parallel_config)
    tp.pop("dtype", None)
    tp["tp"] = tp.pop("tensor_parallel")
    tp["kernel_inject"] = tp.pop("replace_with_kernel_inject")
    out["tensor_parallel"] = tp
    if c.weight_quantization_config is not None:
        out["weight_quantization"] = {k: v for k, v in
                                      plain(c.weight_quantization_config).items()}
    for name in ("train_batch_size", "train_micro_batch_size_per_gpu",
                 "gradient_accumulation_steps", "managed_gradient_accumulation",
                 "steps_per_print", "dump_state", "disable_python_gc", "disable_allgather",
                 "prescale_gradients", "gradient_predivide_factor", "gradient_allreduce_op",
                 "gradient_clipping", "zero_allow_untested_optimizer",
                 "zero_force_ds_cpu_optimizer", "wall_clock_breakdown", "memory_breakdown",
                 "dataloader_drop_last", "log_level"):
        out[name] = getattr(c, name)
    return out


def differences(want, got, path=""):
    if isinstance(want, dict) and isinstance(got, dict):
        out = []
        for key, value in want.items():
            if key in got:
                out += differences(value, got[key], f"{path}.{key}")
            elif value is not None:
                out.append(f"{path}.{key}: {value!r} is missing")
        return out
    return [] if want == got else [f"{path}: {want!r} became {got!r}"]


# ---- making configs ---------------------------------------------------------------------------------

VALUES = ["true", "false", "null", "0", "1", "2", "3", "4", "8", "16", "-1", "1.0", "0.0", "2.5", "0.5",
          "1e9", "5e8", "1e10", "1e18", "1e19", "1e30", "1e-5", "-0.0", "99999999999999999999999",
          '"2"', '"2.0"', '"2.5"', '" 2 "', '"1_000"', '"5e8"', '"true"', '"FALSE"', '"y"', '"Off"',
          '""', '"inf"', '".5"', '"007"', '"auto"', "[]", "[1]", '["a"]', '["a", "a", "b"]', "{}",
          '{"enabled": true}', '{"device": "cpu"}', '"cpu"', '"nvme"', '"none"', '"CPU"', '"fp16"',
          '"bf16"', '"FP32"', '"float32"', '"mean"', '"SUM"', '"Warn"', '"fail"', '"fast"',
          '"replica"', '"/a//b/./c/"', '"Adam"', '"AdamW"', '"ADAM"', '"SGD"', '"WarmupLR"', '"z1"',
          '["z1", "z3"]', '"torch"', '"step"', '"throughput"', '{"throughput": {"enabled": false}}']
EXTRA = ["bfloat16", "bfloat16.enabled", "optimizer.params.lr", "optimizer.params.max_grad_norm",
         "scheduler.params.warmup_num_steps", "zero_optimization.cpu_offload",
         "zero_optimization.cpu_offload_param", "zero_optimization.cpu_offload_use_pin_memory",
         "zero_optimization.stage3_gather_fp16_weights_on_model_save",
         "zero_optimization.prefetch_bucket_size", "zero_optimization.max_live_parameters",
         "zero_optimization.offload_param.device", "zero_optimization.offload_param.nvme_path",
         "zero_optimization.offload_param.buffer_count",
         "zero_optimization.offload_optimizer.device",
         "zero_optimization.offload_optimizer.ratio",
         "zero_optimization.offload_optimizer.nvme_path",
         "zero_optimization.offload_optimizer.pin_memory", "zero_optimization.zenflow.topk_ratio",
         "zero_optimization.zenflow.select_interval", "zero_optimization.zenflow.update_interval",
         "zero_optimization.mics_shard_size", "zero_optimization.strict", "fp16.strict",
         "zero_optimization.foo", "fp16.foo", "bf16.check_overflow", "foo", "elasticity",
         "sparse_gradients", "amp", "allgather_size", "vocabulary_size", "torch_autocast.dtype",
         "checkpoint.writer.type", "checkpoint.writer.data_parallel", "checkpoint.writer",
         "autotuning.model_info", "autotuning.model_info.num_params", "aio.thread_count",
         "data_efficiency.data_sampling.dynamic_batching.max_batch_size",
         "data_efficiency.data_sampling.dynamic_batching.max_tokens", "expert_parallel",
         "expert_parallel.load_balance_coeff", "weight_quantization.num_bits",
         "weight_quantization", "tensor_parallel.tensor_parallel", "tensor_parallel.dtype",
         "tensor_parallel.replace_with_kernel_inject", "pipeline.use_reentrant",
         "zero_optimization.self", "timers", "comms_logger", "zero_optimization.leaf_module"]


def flat_names(tree, prefix=""):
    out = {}
    for key, value in tree.items():
        out[prefix + key] = value
        if isinstance(value, dict):
            out.update(flat_names(value, prefix + key + "."))
    return out


LIKELY = {
    bool: ["true", "false", "true", "false", "1", "0", "1.0", "0.0", '"true"', '"off"', '"auto"'],
    int: ["0", "1", "2", "7", "1000", "5e8", "1e9", "2.0", "3e4", '"500"', '" 12 "', "true",
          '"1_000"', "1e12", "123456789012345678901234567890", '"auto"'],
    float: ["0", "1", "0.5", "0.25", "1.0", "2", '"0.5"', "1e-3", "1e5", "true", '"auto"'],
    str: ['"a"', '"logs/x"', '""', '"fp16"', '"bf16"', '"mean"', '"Mean"', '"sum"', '"warn"',
          '"IGNORE"', '"cpu"', '"nvme"', '"none"', '"torch"', '"auto"'],
    type(None): ["null", "1", "0.5", '"x"', "true", "false", '"fp32"', '"info"', "{}"],
}


def likely(rng, names, path):
    kind = type(names.get(path))
    return Raw(rng.choice(LIKELY[kind] if kind in LIKELY and rng.random() < 0.9 else VALUES))


class Raw:
    """A value that is written to the file as it is."""

    def __init__(self, text):
        self.text = text


def put(tree, path, value):
    *parents, last = path.split(".")
    for name in parents:
        if not isinstance(tree.get(name), dict):
            tree[name] = {}
        tree = tree[name]
    tree[last] = value


def dump(value):
    if isinstance(value, Raw):
        return value.text
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)}: {dump(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(dump, value)) + "]"
    return json.dumps(value)


BATCH = ["train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"]


def batch(rng, tree):
    for name in BATCH:
        tree.pop(name, None)
    numbers = ["1", "2", "4", "8", "16", "32", "24", "33", "10", "17", "64", "3.2e1", "1.5", "2.0",
               "true", "0", "-4", "null", "1e10", '"8"', '"auto"', "6", "12", "1e12", "2.5e9"]
    weights = [9] * 7 + [2] * 3 + [4] + [1] * 14
    for name in rng.sample(BATCH, rng.choice([1, 1, 1, 2, 2, 3])):
        tree[name] = Raw(rng.choices(numbers, weights)[0])


def random_tree(rng, names):
    tree = {"train_batch_size": 8}
    for _ in range(rng.randint(0, 6)):
        path = rng.choice(list(names))
        put(tree, path, likely(rng, names, path))
    if rng.random() < 0.3:
        batch(rng, tree)
    if rng.random() < 0.5 and not isinstance(tree.get("zero_optimization"), Raw):
        put(tree, "zero_optimization.stage", rng.randint(0, 3))
    return tree


def changed(rng, tree, names):
    tree = copy.deepcopy(tree)
    own = flat_names(tree)
    for _ in range(rng.randint(1, 3)):
        path = rng.choice(list(own if own and rng.random() < 0.6 else names))
        put(tree, path, likely(rng, names, path))
    if rng.random() < 0.4 or not any(n in tree for n in BATCH):
        batch(rng, tree)
    for name in list(tree):
        if name in ("elasticity", "compression_training", "curriculum_learning",
                    "quantize_training", "amp", "sparse_attention", "eigenvalue") \
                and rng.random() < 0.9:
            del tree[name]
    return tree


def every_value(names):
    """Each key with each value, alone."""
    for path in names:
        for value in dict.fromkeys(VALUES + [v for kind in LIKELY.values() for v in kind]):
            tree = {"train_batch_size": 8}
            put(tree, path, Raw(value))
            yield dump(tree)
            if path.startswith(("zero_optimization.", "fp16.", "bf16.")):
                put(tree, "zero_optimization.stage", 1)
                yield dump(tree)


def broken(rng, text):
    """A few bytes of the text changed, with the characters that matter to the dialect."""
    text = list(text)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(text))
        action = rng.random()
        if action < 0.4:
            del text[at]
        elif action < 0.8:
            text.insert(at, rng.choice(["{", "}", "[", "]", ",", ":", '"', "\n", " ", "#x\n", "//y\n",
                                        "/*z*/", "1", "e", ".", "-", "\t", "\\", "0"]))
        else:
            text[at] = rng.choice(",:\n {}[]\"")
        if not text:
            break
    return "".join(text)


def make(rng, names, sources, texts):
    kind = rng.random()
    if kind < 0.45 or not sources:
        return dump(random_tree(rng, names))
    if kind < 0.85:
        return dump(changed(rng, rng.choice(sources), names))
    return broken(rng, rng.choice(texts))


# ---- the comparison ---------------------------------------------------------------------------------

# Refusals by decision: docs/compatibility.md.
NOT_OURS = ("not supported:", "duplicate key", "is too large", "beyond 2^63")


def by_decision(stderr):
    return all(any(text in line for text in NOT_OURS) for line in stderr.strip().split("\n"))


def show(czero, path, world_size):
    return subprocess.run([czero, "config", "show", path, "--world-size", str(world_size), "--quiet"],
                          capture_output=True, text=True, check=False)


def judge(text, world_size, result, want):
    """None, or what is wrong."""
    if result.returncode not in (0, 2):
        return f"czero exit {result.returncode}: {result.stderr}"
    if isinstance(want, Exception):
        return f"accepted, but {type(want).__name__}: {str(want)[:300]}" if result.returncode == 0 \
            else None
    if result.returncode == 2:
        return None if by_decision(result.stderr) else f"refused: {result.stderr[:400]}"
    bad = differences(want, json.loads(result.stdout))
    return "; ".join(bad) if bad else None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("czero")
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--every-value", action="store_true",
                        help="each key with each value instead of random configs (minutes)")
    parser.add_argument("--files", nargs="*", default=[],
                        help="these config files, at world size 2, instead of random ones")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=20, help="disagreements printed in full")
    args = parser.parse_args()
    rng = random.Random(args.seed)

    with tempfile.TemporaryDirectory() as folder:
        plain_file = os.path.join(folder, "plain.json")
        with open(plain_file, "w") as f:
            f.write('{"train_batch_size": 8}')
        defaults = json.loads(show(args.czero, plain_file, 1).stdout)
        names = {n: v for n, v in flat_names(defaults).items() if not n.startswith("czero")}
        names.update((n, ...) for n in EXTRA)
        sources, texts = [], []
        for path in sorted(glob.glob(os.path.join(CONFIGS, "[0-9]*.json"))):
            with open(path) as f:
                texts.append(f.read())
            try:
                tree = hjson.loads(texts[-1])
            except Exception:  # noqa: BLE001
                continue
            if isinstance(tree, dict):
                sources.append(json.loads(json.dumps(tree)))
        made = [open(path).read() for path in args.files] or \
            (list(every_value(names)) if args.every_value else
             [make(rng, names, sources, texts) for _ in range(args.count)])
        cases = []
        for i, text in enumerate(made):
            path = os.path.join(folder, f"{i}.json")
            with open(path, "w") as f:
                f.write(text)
            world_size = 2 if args.files else 1 if args.every_value else \
                rng.choice([1, 1, 1, 2, 4, 8, 3])
            cases.append((text, path, world_size))
        with ThreadPoolExecutor(2) as pool:
            results = list(pool.map(lambda c: show(args.czero, c[1], c[2]), cases))
        n_bad = n_accepted = n_decided = 0
        for (text, path, world_size), result in zip(cases, results):
            if "sequence_parallel_size" in text:
                continue  # DeepSpeed looks for it in the file's name (docs/deepspeed-behaviour.md)
            want = resolve(path, world_size)
            if isinstance(want, Exception) and '"auto"' in text:
                continue  # show fills in what DeepSpeed cannot read, as a trainer does
            problem = judge(text, world_size, result, want)
            n_accepted += result.returncode == 0
            n_decided += not isinstance(want, Exception) and result.returncode == 2
            if not problem and result.returncode == 0:
                with open(path, "w") as f:
                    f.write(result.stdout)
                again = show(args.czero, path, world_size)
                if again.stdout != result.stdout:
                    problem = f"show of its own output differs: {again.stderr[:300]}"
                else:
                    got = resolve(path, world_size)
                    bad = [str(got)] if isinstance(got, Exception) else differences(want, got)
                    if bad:
                        problem = "DeepSpeed reads the output otherwise: " + "; ".join(bad)[:400]
            if problem:
                n_bad += 1
                if n_bad <= args.show:
                    print(f"--- world {world_size}: {problem}\n{text[:1500]}\n")
        print(f"{len(cases)} configs, {n_accepted} accepted, {n_decided} refused by decision, "
              f"{n_bad} disagreements")
    return 1 if n_bad else 0


if __name__ == "__main__":
    sys.exit(main())
