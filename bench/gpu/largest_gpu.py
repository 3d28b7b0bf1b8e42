#!/usr/bin/env python3
"""The largest model that one GPU and its host can train, as `czero tune` predicts: whether it trains, what
it takes beside its plan, and how long a step takes beside what tune said.

    python3 bench/gpu/largest_gpu.py [--gpu-memory SIZE] [--host-memory SIZE] [--nvme DIR] [--disk SIZE] [--seconds 240]
                                 [--steps 3] [--rows 8] [--profile FILE] [--czero build-gpu/czero] [--tiny]

Models are GPT-2s of 1.3 B to 168 B parameters, a tenth apart. tune is asked with the memory that this machine has
free and --rows rows of --seq-len tokens a step, until the largest is found that it says fits; its first offer is trained
from random weights. Memory: what is free now, or as given; --nvme: a folder for swap files, of which --disk (default:
four fifths of what is free there) may be used.

Starting takes time, too: weights are drawn and memory is touched once. A small model that is started first says how long
that takes a parameter, so that a model is chosen whose start and steps fit into --seconds; when that, and not
memory, decides, the figure says so. When the model does not train, the next smaller ones are tried: the first figure
has failed all the same. --tiny: a ladder for the simulated device.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile

from gpu_common import (ROOT, Clock, against_plan, config_dir, czero_json, figure, gib, gpu_free, host_free,
                        machine_profile, median_step, skipped, token_file, train_czero)


def shape_of(numel, aspect, head):
    """Layers and width of about so many parameters: a width of whole heads, about `aspect` times the layers."""
    width = head * max(1, round((numel * aspect / 12) ** (1 / 3) / head))
    return max(1, round(numel / (12 * width * width))), width


def ladder(is_tiny):
    if is_tiny:
        return [shape_of(1e5 * 1.5**i, 32, 32) for i in range(10)]
    return [shape_of(1.3e9 * 1.1**i, 100, 128) for i in range(52)]  # to 168 B


def name_of(shape, numel):
    return f"{shape[0]} × {shape[1]}, {numel / 1e9:.2f} B" if numel >= 1e8 else f"{shape[0]} × {shape[1]}, {numel / 1e6:.2f} M"


class Search:
    """What tune says of each shape; budgets and the folder of models are the same for all."""

    def __init__(self, args, work):
        self.args, self.work, self.answers = args, work, {}
        self.head = 32 if args.tiny else 128
        self.ladder = ladder(args.tiny)
        self.vocabulary = 512 if args.tiny else 50304

    def model(self, shape):
        layers, width = shape
        return config_dir(os.path.join(self.work, f"{layers}x{width}"), layers, width, width // self.head,
                          self.vocabulary, self.args.seq_len)

    def tune(self, shape):
        """{"fits", "parameters", "offer", "config"}"""
        if shape in self.answers:
            return self.answers[shape]
        a, path = self.args, os.path.join(self.work, "ds_config.json")
        command = [a.czero, "tune", "--model", self.model(shape), "--seq-len", str(a.seq_len), "--gpu-memory",
                   str(a.gpu_memory), "--host-memory", str(a.host_memory), "--profile", a.profile, "--batch", str(a.rows),
                   "--json", "-o", path]
        if a.nvme:
            command += ["--nvme", str(a.disk), "--nvme-path", a.nvme]
        answer = czero_json(*command)
        answer["offer"] = answer["offers"][0] if answer["offers"] else {}
        if answer["fits"]:
            with open(path) as f:
                answer["config"] = json.load(f)
        self.answers[shape] = answer
        return answer

    def largest(self, allowed):
        """The index of the last shape that allowed() holds for, or -1; sizes rise, so that is one boundary."""
        fits, fails = -1, len(self.ladder)
        while fits + 1 < fails:
            middle = (fits + fails) // 2
            if allowed(self.ladder[middle]):
                fits = middle
            else:
                fails = middle
        return fits


def seconds_of(search, answer, start_rate):
    """Of the whole run: what a start takes, and the steps that tune predicts (the first one costs twice)."""
    return answer["parameters"] * start_rate + (search.args.steps + 1) * (answer["offer"]["step_seconds"] or 0)


def start_rate(search, clock):
    """Seconds per parameter until training begins and after it ends, of the ladder's first model with
    everything that can be on the host: nearly all of it is memory that is touched and weights that are drawn."""
    shape, a = search.ladder[0], search.args
    answer = search.tune(shape)
    if not answer["fits"]:
        raise RuntimeError(f"the smallest model does not fit: {answer['missing']}")
    cpu = {"device": "cpu", "pin_memory": True}
    config = {**answer["config"], "zero_optimization": {"stage": 3, "offload_optimizer": cpu, "offload_param": cpu}}
    run = train_czero(a.czero, config, search.model(shape), a.data, a.seq_len, 1, timeout=clock.left(120))
    return (run["first"] + run["seconds"][0]) / answer["parameters"]


def train(search, shape, clock):
    """Train what tune offers; prints the figures. False: it did not train."""
    a, answer = search.args, search.tune(shape)
    offer = answer["offer"]
    what = f"the largest model, {name_of(shape, answer['parameters'])}"
    why = f"{offer['configuration']}; budgets {gib(a.gpu_memory)} GPU, {gib(a.host_memory)} host"
    why += f", {gib(a.disk)} disk" if a.nvme else ""
    try:
        run = train_czero(a.czero, answer["config"], search.model(shape), a.data, a.seq_len, a.steps, timeout=clock.left())
    except RuntimeError as e:
        figure(what, answer["parameters"] / 1e9, "B parameters", goal_of="it trains", note=f"{e}; {why}", **{"pass": False})
        return False
    figure(what, answer["parameters"] / 1e9, "B parameters", goal_of="it trains",
           note=f"{a.chosen_by}; {why}; losses {run['losses'][0]:.3f} to {run['losses'][-1]:.3f}; "
                f"{run['first']:.0f} s to start and to end",
           **{"pass": all(x == x for x in run["losses"])})
    if run["peak_gpu"]:
        against_plan("its GPU memory and its plan", run["peak_gpu"], offer["gpu_bytes"])
    else:
        figure("its GPU memory, planned", offer["gpu_bytes"] / 2**30, "GiB", note="not measured here")
    against_plan("its host memory and its plan", run["peak_rss"], offer["host_bytes"])
    seconds = median_step(run, 1)
    predicted = offer["step_seconds"]
    figure("its step beside what tune predicts", seconds, "s", ratio=seconds / predicted if predicted else None,
           goal_of="x the prediction", note=f"predicted {predicted:.3g} s, {a.rows * a.seq_len} tokens a step"
           if predicted else "no prediction: the profile lacks a figure")
    return True


def choose(search, clock):
    """The shape to train; says in args.chosen_by what decided."""
    a = search.args
    rate = start_rate(search, clock)
    by_memory = search.largest(lambda shape: search.tune(shape)["fits"])
    a.chosen_by = "the largest that tune says fits"
    most = clock.left() - 10
    best = search.largest(lambda shape: search.tune(shape)["fits"]
                          and seconds_of(search, search.tune(shape), rate) <= most)
    if best < by_memory:
        shape = search.ladder[by_memory]
        answer = search.tune(shape)
        a.chosen_by = (f"the largest that starts and steps in {most:.0f} s; memory would do for "
                       f"{name_of(shape, answer['parameters'])}, in {seconds_of(search, answer, rate):.0f} s")
    if best < 0:
        raise RuntimeError(f"no model starts within {most:.0f} s")
    return best


def sizes(args):
    """Fill in what was not given."""
    machine = machine_profile(args.czero, args.profile, 20)
    free = gpu_free()  # a part stays for the driver: its tables of page-locked memory, its contexts
    args.gpu_memory = args.gpu_memory or (free and free - (1 << 30)) or machine["device_memory_bytes"]
    args.host_memory = args.host_memory or host_free() * 85 // 100
    if args.nvme:
        os.makedirs(args.nvme, exist_ok=True)
        args.disk = args.disk or shutil.disk_usage(args.nvme).free * 4 // 5


def nbytes_of(text):
    for unit, factor in [("GiB", 1 << 30), ("MiB", 1 << 20), ("GB", 10**9), ("MB", 10**6), ("", 1)]:
        if text.endswith(unit):
            return int(float(text[:len(text) - len(unit)]) * factor)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--czero", default=os.path.join(ROOT, "build-gpu", "czero"))
    parser.add_argument("--gpu-memory", type=nbytes_of, metavar="SIZE", help="24GiB, 24GB, bytes (default: what is free)")
    parser.add_argument("--host-memory", type=nbytes_of, metavar="SIZE", help="likewise")
    parser.add_argument("--nvme", metavar="DIR", help="a folder for swap files (default: none)")
    parser.add_argument("--disk", type=nbytes_of, metavar="SIZE", help="of it (default: four fifths of what is free)")
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=240, help="for all of it (default: 240)")
    parser.add_argument("--profile", help="of `czero bench`; measured where there is none")
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    clock = Clock(args.seconds)
    if args.tiny:
        args.seq_len, args.rows = 32, 2
    with tempfile.TemporaryDirectory() as work:
        args.profile = args.profile or os.path.join(work, "machine.json")
        search = Search(args, work)
        sizes(args)
        args.data = token_file(os.path.join(work, "tokens.bin"), args.rows * args.seq_len * args.steps + 1,
                               search.vocabulary)
        best = choose(search, clock)
        for idx in range(best, max(best - 5, -1), -1):
            if clock.left() < 20:
                return skipped("the largest model that trains", "no time is left for a smaller one")
            if train(search, search.ladder[idx], clock):
                return None
    raise RuntimeError("no model trained")


if __name__ == "__main__":
    try:
        main()
    except (RuntimeError, OSError, subprocess.SubprocessError) as e:
        sys.exit(f"largest_gpu: {e}")
