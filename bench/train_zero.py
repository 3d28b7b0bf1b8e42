#!/usr/bin/env python3
"""GPT-2 over ranks on one host: each ZeRO stage beside DeepSpeed's on the same cores, and beside stage 0.

    python3 bench/train_zero.py [--stages 0 1 2 3] [--peer-stages 1 2 3] [--ranks 2] [--rounds 2]

Every rank has one core. Each round runs `czero launch -n N -- train` and DeepSpeed (gloo) at every stage
in turns, so that slow drifts of the machine hit all alike; a side's figure is its median step without the
first two of each run. The peer's environment comes from scripts/peers.sh.
"""
import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TEXT = os.path.join(ROOT, "examples", "data", "fortunes.txt")


def ds_config(args, stage):
    config = {
        "train_micro_batch_size_per_gpu": args.batch,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.01}},
        "zero_optimization": {"stage": stage},
    }
    if args.precision == "bf16":
        config["bf16"] = {"enabled": True}
    return config


def run_czero(args, stage, path):
    command = [args.czero, "launch", "-n", str(args.ranks), "--", "train", "--config", path,
               "--model", args.model, "--data", TEXT, "--tokenizer", "bytes", "--shuffle", "off",
               "--seq-len", str(args.seq_len), "--steps", str(args.steps), "--log-json", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    ends = [0.0] + [line["elapsed_s"] for line in lines]
    return {"seconds": [b - a for a, b in zip(ends, ends[1:])], "losses": [x["loss"] for x in lines]}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run_deepspeed(args, stage, path):
    cores = sorted(os.sched_getaffinity(0))
    env = dict(os.environ, WORLD_SIZE=str(args.ranks), MASTER_ADDR="127.0.0.1", OMP_NUM_THREADS="1",
               MASTER_PORT=str(free_port()), DS_ACCELERATOR="cpu", TOKENIZERS_PARALLELISM="false")
    command = [args.python, os.path.join(ROOT, "bench", "peers", "deepspeed_gpt2.py"), "--config", path,
               "--model", args.model, "--seq-len", str(args.seq_len), "--steps", str(args.steps),
               "--threads", "1", "--data", TEXT]
    ranks = []
    for rank in range(args.ranks):
        core = cores[rank % len(cores)]
        ranks.append(subprocess.Popen(command, env=dict(env, RANK=str(rank)), text=True,
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                      preexec_fn=lambda core=core: os.sched_setaffinity(0, [core])))
    outputs = [rank.communicate() for rank in ranks]
    for rank, (_, err) in zip(ranks, outputs):
        if rank.returncode != 0:
            sys.exit(err)
    return json.loads(outputs[0][0].strip().splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--czero", default=os.path.join(ROOT, "build", "czero"))
    parser.add_argument("--python", help="the peers' python (default: scripts/peers.sh)")
    parser.add_argument("--model", default="gpt2")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="bf16")
    parser.add_argument("--stages", type=int, nargs="*", default=[0, 1, 2, 3])
    parser.add_argument("--peer-stages", type=int, nargs="*", default=[1, 2, 3])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--batch", type=int, default=2, help="rows per rank")
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    if args.peer_stages and not args.python:
        script = os.path.join(ROOT, "scripts", "peers.sh")
        args.python = subprocess.run([script], check=True, capture_output=True, text=True).stdout.strip()

    sides = [(stage, "czero", run_czero) for stage in args.stages]
    sides += [(stage, "DeepSpeed", run_deepspeed) for stage in args.peer_stages]
    runs = {(stage, name): [] for stage, name, _ in sides}
    with tempfile.TemporaryDirectory() as work:
        for _ in range(args.rounds):
            for stage, name, run in sorted(sides, key=lambda side: side[0]):
                path = os.path.join(work, "ds_config.json")
                with open(path, "w") as f:
                    json.dump(ds_config(args, stage), f)
                runs[stage, name].append(run(args, stage, path))

    tokens = args.ranks * args.batch * args.seq_len
    rates = {}
    print(f"{args.model}, {args.precision}, {args.ranks} ranks x 1 core, {args.batch} x {args.seq_len} per rank")
    for (stage, name), side in sorted(runs.items()):
        seconds = [s for run in side for s in run["seconds"][2:]]
        rates[stage, name] = tokens / statistics.median(seconds)
        print(f"stage {stage} {name}: {rates[stage, name]:7.1f} tokens/s median "
              f"({tokens / max(seconds):.1f} to {tokens / min(seconds):.1f}), first losses "
              + " ".join(f"{x:.3f}" for x in side[0]["losses"][:3]))
    for stage in args.stages:
        if (stage, "DeepSpeed") in rates:
            print(f"stage {stage}: czero / DeepSpeed {rates[stage, 'czero'] / rates[stage, 'DeepSpeed']:.2f}x")
        if 0 in args.stages and stage > 0:
            print(f"stage {stage}: {100 * rates[stage, 'czero'] / rates[0, 'czero']:.1f} % of stage 0")


if __name__ == "__main__":
    main()
