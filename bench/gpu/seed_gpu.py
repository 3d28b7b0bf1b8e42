#!/usr/bin/env python3
"""A model of 1.3 B parameters on one GPU with everything offloaded: memory against the plan, steps/s
beside DeepSpeed's; and a ZeRO-Offload step beside its parts.

    python3 bench/gpu/seed_gpu.py [seed] [offload] [--czero build-gpu/czero] [--steps 8] [--seconds 400]
                              [--profile FILE] [--tiny [--peers]]

seed: 24 layers × 2048, batch 1, 512 tokens, bf16, stage 3, optimizer and parameters in host memory,
activations recomputed. DeepSpeed trains with the same config file in a process of its own.
offload: the same model at stage 2 with the optimizer on the host, at batch 8 and at batch 64, without clipping and
overflow check, so that the update runs beside the backward; and at batch 8 with both, DeepSpeed's default. A step is
compared with the longest of what it is made of:
  compute   forward and backward with everything on the GPU, by czero's own clock (wall_clock_breakdown)
  Adam      on the host: the plan's parameters at the rate that `czero bench` measured
  transfer  the plan's bytes to the host and to the GPU at the rates that `czero bench` measured
--profile: what `czero bench` measured; measured now and kept there where there is no such file. A figure is
printed as soon as it is known; what --seconds leave no time for is skipped. --tiny: a shape for the
simulated device, without peers; --peers: with them, on the CPU.
"""
import argparse
import json
import os
import re
import statistics
import sys
import tempfile

from gpu_common import (ROOT, Clock, against_plan, config_dir, figure, gib, machine_profile, median_step, plan_czero,
                        run_peer, skipped, token_file, train_czero)

LAYERS, WIDTH, HEADS, VOCABULARY = 24, 2048, 16, 50304


def ds_config(batch, zero, recompute=False, **more):
    config = {"train_micro_batch_size_per_gpu": batch, "bf16": {"enabled": True}, "zero_optimization": zero,
              "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.01}}, **more}
    if recompute:
        config["czero"] = {"activation_checkpointing": {"every": 1}}
    return config


# ---- full offload ----

def deepspeed(args, config, model, data, clock):
    with tempfile.TemporaryDirectory() as work:
        path = os.path.join(work, "ds_config.json")
        with open(path, "w") as f:
            json.dump({k: v for k, v in config.items() if k != "czero"}, f)
        return run_peer("deepspeed_gpu.py", "--config", path, "--model", model, "--data", data, "--seq-len",
                        args.seq_len, "--steps", args.steps, "--checkpoint", "--device", "cpu" if args.tiny else "cuda",
                        timeout=clock.left(300))


def seed(args, model, data, clock):
    cpu = {"device": "cpu", "pin_memory": True}
    config = ds_config(1, {"stage": 3, "offload_optimizer": cpu, "offload_param": cpu}, recompute=True)
    plan = plan_czero(args.czero, config, model, args.seq_len)
    run = train_czero(args.czero, config, model, data, args.seq_len, args.steps, timeout=clock.left(120))
    rate = 1 / median_step(run)
    what = "1.3 B, all on the host"
    if run["peak_gpu"]:
        figure(f"{what}: GPU memory", run["peak_gpu"] / 1e9, "GB", ratio=run["peak_gpu"] / 5e9, goal_max=1.0,
               goal_of="x 5 GB")
        against_plan(f"{what}: GPU memory and its plan", run["peak_gpu"], plan["device_peak_bytes"])
    else:
        figure(f"{what}: GPU memory, planned", plan["device_peak_bytes"] / 1e9, "GB", note="not measured here")
    against_plan(f"{what}: host memory and its plan", run["peak_rss"], plan["host_peak_bytes"])
    figure(what, rate, "steps/s", note=f"losses {run['losses'][0]:.3f} to {run['losses'][-1]:.3f}, "
           f"{run['first']:.0f} s to start and to end")
    name = f"{what}, beside DeepSpeed"
    if args.tiny and not args.peers:
        return skipped(name, "a tiny run", goal=2.0)
    try:
        peer = deepspeed(args, config, model, data, clock)
    except RuntimeError as e:
        return skipped(name, e, goal=2.0)
    theirs = 1 / median_step(peer)
    note = f"theirs {theirs:.3f}, DeepSpeed {peer['deepspeed']}, host {gib(peer['peak_rss'])}"
    note += f", GPU {gib(peer['peak_gpu'])}" if peer["peak_gpu"] else ""
    figure(name, rate, "steps/s", ratio=rate / theirs, goal=2.0, goal_of="x their steps/s", note=note)


# ---- ZeRO-Offload ----

def computing(args, batch, model, data, clock):
    """Median seconds of forward and backward with everything on the GPU: the update is not in it."""
    config = ds_config(batch, {"stage": 0}, wall_clock_breakdown=True)
    os.environ["CZERO_LOG"] = "info"
    run = train_czero(args.czero, config, model, data, args.seq_len, args.steps, timeout=clock.left(120))
    del os.environ["CZERO_LOG"]
    times = re.findall(r"\| fwd: ([\d.]+) \| bwd: ([\d.]+) ", run["log"])
    if len(times) != args.steps:
        raise RuntimeError(f"{len(times)} times of {args.steps} steps in czero's log")
    return statistics.median([float(f) + float(b) for f, b in times][3:] or [float(f) + float(b) for f, b in times]) / 1e3


def parts_of(args, batch, config, machine, model, data, clock):
    plan = plan_czero(args.czero, config, model, args.seq_len)
    to_host, to_gpu = (sum(phase[key] for phase in plan["phases"] if phase["phase"] != "save")
                       for key in ("to_host_bytes", "to_device_bytes"))
    return {"compute": computing(args, batch, model, data, clock),
            "Adam": plan["parameters"] / machine["adam_bf16_parameters_per_second"],
            "transfer": to_host / machine["device_to_host_bytes_per_second"]
            + to_gpu / machine["host_to_device_bytes_per_second"]}


def offload(args, model, data, clock):
    zero = {"stage": 2, "overlap_comm": True, "offload_optimizer": {"device": "cpu", "pin_memory": True}}
    free = {"gradient_clipping": 0, "bf16": {"enabled": True, "check_grad_overflow": False}}
    small, large = (1, 2) if args.tiny else (8, 64)
    known = {}  # parts by batch
    for batch, more, goal_max in [(small, free, 1.15), (large, free, 1.15), (small, {"gradient_clipping": 1.0}, None)]:
        name = f"ZeRO-Offload step, 1.3 B, batch {batch}" + ("" if goal_max else ", clipped")
        config = {**ds_config(batch, zero), **more}
        try:
            machine = machine_profile(args.czero, args.profile, 20)
            if batch not in known:
                known[batch] = parts_of(args, batch, config, machine, model, data, clock)
            run = train_czero(args.czero, config, model, data, args.seq_len, args.steps, timeout=clock.left(120))
        except (RuntimeError, KeyError, ZeroDivisionError) as e:
            skipped(name, f"{type(e).__name__}: {e}", goal_max=goal_max)
            continue
        parts = known[batch]
        longest = max(parts, key=parts.get)
        figure(name, median_step(run), "s", ratio=median_step(run) / parts[longest], goal_max=goal_max,
               goal_of=f"x the longest part ({longest})",
               note=", ".join(f"{part} {seconds:.4g} s" for part, seconds in parts.items())
               + f"; {median_step(run) / max(parts['compute'], parts['transfer']):.3g} x the longer of compute and transfer")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", help="seed, offload (default: both)")
    parser.add_argument("--czero", default=os.path.join(ROOT, "build-gpu", "czero"))
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=600, help="for all of it (default: 600)")
    parser.add_argument("--profile", help="of `czero bench`")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--peers", action="store_true", help="in a tiny run, too: on the CPU")
    args = parser.parse_args()
    if not set(args.parts) <= {"seed", "offload"}:
        parser.error("parts are seed and offload")
    clock = Clock(args.seconds)
    shape = LAYERS, WIDTH, HEADS, VOCABULARY
    if args.tiny:
        shape = 2, 64, 2, 512
        args.seq_len, args.steps = 32, 3
    with tempfile.TemporaryDirectory() as work:
        args.profile = args.profile or os.path.join(work, "machine.json")
        model = config_dir(os.path.join(work, "model"), *shape, args.seq_len)
        data = token_file(os.path.join(work, "tokens.bin"), 64 * args.seq_len * args.steps + 1, shape[3])
        for part in [seed, offload]:
            if part.__name__ in (args.parts or ["seed", "offload"]):
                part(args, model, data, clock)


if __name__ == "__main__":
    try:
        main()
    except RuntimeError as e:
        sys.exit(f"seed_gpu: {e}")
