#!/usr/bin/env python3
"""Steps with everything on NVMe beside the step in memory, in turns: accumulation layer by layer and micro-batch by
micro-batch, bytes moved per parameter, and the same on a slower disk.

    python3 bench/offload/offload.py --dir FOLDER_ON_THE_DISK [--model gpt2-medium] [--seq-len 256] [--accumulation 8] [--rounds 3]
    sudo python3 bench/offload/offload.py … --limit-mb 300       also with the disk held to 300 MB/s each way (control group)
    … --sides memory,layers,deepspeed                            beside DeepSpeed's stage 3 with everything on NVMe (scripts/peers.sh)
    … --older CZERO                                              then a few steps of an older czero with everything on NVMe, by itself

Each side is a process of bench_train that makes a step when it is asked for one; ratios are medians over rounds of
steps in turns. Sides: memory; states and states_layers (states on NVMe, in the two orders), and boundary (the same with the update at the boundary:
czero.late_update false); layers and micro (parameters and gradients, too; in the two orders of accumulation); deepspeed. The losses of
czero's sides must be equal. The limit holds all sides but memory, in a group of their own; with it the time in which the disk
could move a step's bytes is printed, too.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SIDES = {  # name: (states, parameters and gradients, order, late update)
    "memory": ("none", "none", "micro_batches", True),
    "boundary": ("nvme", "none", "micro_batches", False),
    "states": ("nvme", "none", "micro_batches", True),
    "states_layers": ("nvme", "none", "layers", True),
    "layers": ("nvme", "nvme", "layers", True),
    "micro": ("nvme", "nvme", "micro_batches", True),
    "deepspeed": ("nvme", "nvme", "micro_batches", True),
}


def config(args, folder, name):
    states, params, order, late = SIDES[name]
    swap = os.path.join(folder, name)
    path = os.path.join(folder, f"{name}.json")
    value = {
        "train_micro_batch_size_per_gpu": args.batch, "gradient_accumulation_steps": args.accumulation,
        "gradient_clipping": 1.0, "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.01}},
        "zero_optimization": {"stage": 3, "offload_optimizer": {"device": states, "nvme_path": swap},
                              "offload_param": {"device": params, "nvme_path": swap}},
        "aio": {"block_size": 1048576, "queue_depth": 16},
        "czero": {"accumulation_order": order, "offload_gradients": params == "nvme", "late_update": late},
    }
    if name == "deepspeed":
        zero = value["zero_optimization"]
        # Pipelining takes buffers for three groups of master, gradient and two moments; those of parameters hold the largest, the embedding.
        zero["offload_optimizer"].update(pipeline_read=True, pipeline_write=True, buffer_count=12)
        # By default a billion elements stay in memory, and as many are not released after use: all of them.
        zero["offload_param"].update(buffer_count=24, buffer_size=60_000_000, max_in_cpu=0)
        zero.update(stage3_max_live_parameters=100_000_000, stage3_max_reuse_distance=0, stage3_prefetch_bucket_size=12_000_000)
        zero["sub_group_size"] = 50_000_000
        os.makedirs(swap, exist_ok=True)
    with open(path, "w") as f:
        json.dump(value, f)
    return path


def command_of(args, folder, name):
    path = config(args, folder, name)
    if name != "deepspeed":
        return [os.path.join(args.build, "bench", "bench_train"), args.model, "bf16", str(args.batch), str(args.seq_len), "--config", path]
    python = subprocess.run([os.path.join(ROOT, "scripts", "peers.sh")], capture_output=True, text=True, check=True).stdout.strip()
    return [python, os.path.join(ROOT, "bench", "peers", "deepspeed_offload.py"), path, args.model, str(args.seq_len), str(os.cpu_count())]


class Side:
    def __init__(self, args, folder, name):
        self.name = name
        self.rows = []
        self.process = subprocess.Popen(command_of(args, folder, name), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def step(self):
        """Seconds, CPU seconds, loss, peak, bytes read, bytes written, seconds waited."""
        print("", file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{self.name}: ended with {self.process.wait()}")
        self.rows.append([float(x) for x in line.split()])

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Group:
    """A control group (version 1 or 2) whose members read and write a disk at no more than a given rate."""

    def __init__(self, folder, mb):
        device = os.stat(folder).st_dev
        disk = f"{os.major(device)}:{os.minor(device)}"
        name, rate = f"czero-offload-{os.getpid()}", mb * 1000 * 1000
        mounts = [line.split() for line in open("/proc/mounts")]
        old = [m[1] for m in mounts if m[2] == "cgroup" and "blkio" in m[3].split(",")]
        new = [m[1] for m in mounts if m[2] == "cgroup2"]
        if old:
            self.path = os.path.join(old[0], name)
            os.mkdir(self.path)
            for way in ("read", "write"):
                self.write(f"blkio.throttle.{way}_bps_device", f"{disk} {rate}")
        elif new and "io" in open(os.path.join(new[0], "cgroup.controllers")).read().split():
            self.path = os.path.join(new[0], name)
            with open(os.path.join(new[0], "cgroup.subtree_control"), "w") as f:
                f.write("+io")
            os.mkdir(self.path)
            self.write("io.max", f"{disk} rbps={rate} wbps={rate}")
        else:
            sys.exit("no control group that limits a disk can be made here")

    def write(self, name, text):
        with open(os.path.join(self.path, name), "w") as f:
            f.write(text)

    def add(self, side):
        """All threads: the I/O thread, too."""
        self.write("cgroup.procs", str(side.process.pid))

    def close(self):
        os.rmdir(self.path)


def report(args, title, sides, first):
    base = sides[0]
    print(f"{title}: {args.model}, bf16, {args.batch} x {args.seq_len} tokens, accumulation {args.accumulation}, "
          f"{len(base.rows) - first} rounds")
    tokens = args.batch * args.seq_len * args.accumulation
    for side in sides:
        rows = side.rows[first:]
        if "deepspeed" not in (side.name, base.name) and any(a[2] != b[2] for a, b in zip(side.rows, base.rows)):
            sys.exit(f"{side.name}: other losses than {base.name}")
        ratio = statistics.median(a[0] / b[0] for a, b in zip(rows, base.rows[first:]))
        seconds = statistics.median(r[0] for r in rows)
        read, written = rows[-1][4], rows[-1][5]
        print(f"  {side.name:13} {seconds:7.2f} s a step, {statistics.median(r[1] for r in rows):7.2f} s of processor time, {tokens / seconds:7.1f} tokens/s, {ratio:.3f} x {base.name}; "
              f"{read / args.numel:5.2f} bytes a parameter read, {written / args.numel:5.2f} written; waited "
              f"{statistics.median(r[6] for r in rows):.2f} s; peak {rows[-1][3] / 1e9:.2f} GB", flush=True)


def plan_numel(args, path):
    out = subprocess.run([os.path.join(args.build, "czero"), "plan", "--config", path, "--model", args.model,
                          "--seq-len", str(args.seq_len), "--json"], capture_output=True, text=True, check=True).stdout
    plan = json.loads(out)
    print("planned:", ", ".join(f"{t['accumulation_order']} {t['nvme_read_bytes'] / 1e9:.2f} GB read, "
                                f"{t['nvme_written_bytes'] / 1e9:.2f} GB written" for t in plan["traffic"]))
    return plan["parameters"]


def older(args, folder, group):
    """Steps of an older czero, which bench_train of this build cannot drive: `czero train` on text, in the group."""
    text = os.path.join(ROOT, "examples", "data", "fortunes.txt")
    command = [args.older, "train", "--config", config(args, folder, "micro"), "--model", args.model, "--data", text, "--tokenizer",
               "bytes", "--seq-len", str(args.seq_len), "--steps", str(1 + args.rounds), "--log-json"]
    value = json.load(open(command[3]))
    del value["czero"]["accumulation_order"], value["czero"]["late_update"]  # newer than the binary
    json.dump(value, open(command[3], "w"))
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    if group:
        group.write("cgroup.procs", str(process.pid))
    steps = [row for row in map(json.loads, process.stdout) if "loss" in row and "step" in row]
    if process.wait() != 0:
        sys.exit(f"{args.older}: ended with {process.returncode}")
    print(f"older czero: {steps[1:]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dir", default="/var/tmp", help="on the disk to measure")
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--model", default="gpt2-medium")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--accumulation", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sides", default="memory,states,layers,micro")
    parser.add_argument("--limit-mb", type=int, default=0)
    parser.add_argument("--older", help="an older czero's binary")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="czero-offload-", dir=args.dir) as folder:
        args.numel = plan_numel(args, config(args, folder, "layers"))
        sides = [Side(args, folder, name) for name in args.sides.split(",")]
        for _ in range(1 + args.rounds):  # the first step of each is not counted
            for side in sides:
                side.step()
        report(args, "disk as it is", sides, 1)
        if args.limit_mb:
            group = Group(folder, args.limit_mb)
            slow = [side for side in sides if side.name != "memory"]
            for side in slow:
                group.add(side)
            first = len(slow[0].rows)
            for _ in range(args.rounds):
                for side in slow:
                    side.step()
            report(args, f"disk held to {args.limit_mb} MB/s", slow, first)
            for side in slow:
                most = max(side.rows[-1][4], side.rows[-1][5])
                print(f"  {side.name:8} the disk's {most / args.limit_mb / 1e6:.2f} s")
        for side in sides:
            side.close()
        if args.older:
            older(args, folder, group if args.limit_mb else None)
        if args.limit_mb:
            group.close()


if __name__ == "__main__":
    main()
