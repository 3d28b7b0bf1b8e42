#!/usr/bin/env python3
"""A model of 1.3 B parameters on one GPU with everything offloaded: memory against the plan, steps/s
beside DeepSpeed's; and a ZeRO-Offload step beside its parts.

    python3 bench/seed_gpu.py [--czero build-gpu/czero] [--steps 8] [--tiny]

Full offload: 24 layers × 2048, batch 1, 512 tokens, bf16, stage 3, optimizer and parameters in host
memory, activations recomputed. DeepSpeed trains with the same config file in a process of its own.
ZeRO-Offload: the same model at stage 2 with the optimizer on the host, batch 8. Its step is compared
with the longest of what it is made of: the same step with everything on the GPU (compute), Adam on the
host, and the transfer of gradients and parameters, the last two at the rates that `czero bench` measures.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

from gpu_common import (ROOT, config_dir, figure, median_step, plan_czero, run_peer, skipped, token_file,
                        train_czero)


def ds_config(batch, zero, recompute):
    config = {"train_micro_batch_size_per_gpu": batch, "bf16": {"enabled": True}, "zero_optimization": zero,
              "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.01}}}
    if recompute:
        config["czero"] = {"activation_checkpointing": {"every": 1}}
    return config


def gib(nbytes):
    return f"{nbytes / 2**30:.2f} GiB"


def seed(args, model, data):
    """Full offload."""
    cpu = {"device": "cpu", "pin_memory": True}
    config = ds_config(1, {"stage": 3, "offload_optimizer": cpu, "offload_param": cpu}, True)
    plan = plan_czero(args.czero, config, model, args.seq_len)
    run = train_czero(args.czero, config, model, data, args.seq_len, args.steps)
    rate = 1 / median_step(run)
    planned = plan["device_peak_bytes"]
    if run["peak_gpu"]:
        figure("1.3 B, all on the host: GPU memory", run["peak_gpu"] / 1e9, "GB", ratio=run["peak_gpu"] / 5e9,
               goal_max=1.0, goal_of="x 5 GB", note=f"planned {gib(planned)} with a context of its own")
    else:
        figure("1.3 B, all on the host: GPU memory, planned", planned / 1e9, "GB", note="nobody measures it here")
    figure("1.3 B, all on the host: host memory", run["peak_rss"] / 1e9, "GB",
           ratio=run["peak_rss"] / plan["host_peak_bytes"], goal_of="x the plan", note=f"planned {gib(plan['host_peak_bytes'])}")
    name = "1.3 B, all on the host, beside DeepSpeed"
    if args.tiny and not args.peers:
        figure("1.3 B, all on the host", rate, "steps/s")
        return skipped(name, "a tiny run", goal=2.0)
    with tempfile.TemporaryDirectory() as work:
        path = os.path.join(work, "ds_config.json")
        with open(path, "w") as f:
            json.dump({k: v for k, v in config.items() if k != "czero"}, f)
        try:
            peer = run_peer("deepspeed_gpu.py", "--config", path, "--model", model, "--data", data, "--seq-len",
                            args.seq_len, "--steps", args.steps, "--checkpoint", "--device",
                            "cpu" if args.tiny else "cuda")
        except RuntimeError as e:
            figure("1.3 B, all on the host", rate, "steps/s")
            return skipped(name, e, goal=2.0)
    theirs = 1 / median_step(peer)
    note = f"theirs {theirs:.3f}, DeepSpeed {peer['deepspeed']}, host {gib(peer['peak_rss'])}"
    figure(name, rate, "steps/s", ratio=rate / theirs, goal=2.0, goal_of="x their steps/s", note=note)


def offload_step(args, model, data):
    batch = 1 if args.tiny else 8
    with tempfile.TemporaryDirectory() as work:
        path = os.path.join(work, "machine.json")
        done = subprocess.run([args.czero, "bench", "--quiet", "--seconds", "2" if args.tiny else "20", "--profile",
                               path], capture_output=True, text=True)
        if done.returncode != 0:
            return skipped("ZeRO-Offload step", done.stderr)
        with open(path) as f:
            machine = json.load(f)
    on_gpu = train_czero(args.czero, ds_config(batch, {"stage": 0}, False), model, data, args.seq_len, args.steps)
    config = ds_config(batch, {"stage": 2, "overlap_comm": True, "offload_optimizer": {"device": "cpu", "pin_memory": True}}, False)
    numel = plan_czero(args.czero, config, model, args.seq_len)["parameters"]
    run = train_czero(args.czero, config, model, data, args.seq_len, args.steps)
    parts = {"on the GPU": median_step(on_gpu), "Adam on the host": numel / machine["adam_bf16_parameters_per_second"],
             "transfer": 2 * numel * (1 / machine["device_to_host_bytes_per_second"]
                                      + 1 / machine["host_to_device_bytes_per_second"])}
    longest = max(parts, key=parts.get)
    note = ", ".join(f"{name} {seconds:.3f} s" for name, seconds in parts.items())
    figure("ZeRO-Offload step, 1.3 B", median_step(run), "s", ratio=median_step(run) / parts[longest], goal_max=1.15,
           goal_of=f"x the longest part ({longest})", note=note)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--czero", default=os.path.join(ROOT, "build-gpu", "czero"))
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--peers", action="store_true", help="in a tiny run, too: on the CPU")
    args = parser.parse_args()
    layers, width, heads, vocabulary = 24, 2048, 16, 50304
    if args.tiny:
        layers, width, heads, vocabulary = 2, 64, 2, 512
        args.seq_len, args.steps = 32, 3
    with tempfile.TemporaryDirectory() as work:
        model = config_dir(os.path.join(work, "model"), layers, width, heads, vocabulary, args.seq_len)
        data = token_file(os.path.join(work, "tokens.bin"), 8 * args.seq_len * args.steps + 1, vocabulary)
        seed(args, model, data)
        offload_step(args, model, data)


if __name__ == "__main__":
    try:
        main()
    except RuntimeError as e:
        sys.exit(f"seed_gpu: {e}")
