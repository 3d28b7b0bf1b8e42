#!/usr/bin/env python3
"""GPT-2 training on the CPU beside PyTorch eager: tokens/s and peak memory, as ratios.

    python3 bench/train_gpt2.py [--model gpt2] [--precision fp32 bf16] [--rounds 2]

Runs `czero train` and the peer in turns on the same cores (each round: one, then the other, so that
slow drifts of the machine hit both), takes each side's median step without its first two, and prints
czero's rate over PyTorch's. The peer's environment comes from scripts/peers.sh.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TEXT = os.path.join(ROOT, "examples", "data", "fortunes.txt")


def ds_config(precision, batch):
    config = {
        "train_micro_batch_size_per_gpu": batch,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.01}},
    }
    if precision == "bf16":
        config["bf16"] = {"enabled": True}
        config["zero_optimization"] = {"stage": 1}
    return config


def run_czero(args, precision, env):
    with tempfile.TemporaryDirectory() as work:
        path = os.path.join(work, "ds_config.json")
        with open(path, "w") as f:
            json.dump(ds_config(precision, args.batch), f)
        command = [args.czero, "train", "--config", path, "--model", args.model, "--data", TEXT,
                    "--tokenizer", "bytes", "--shuffle", "off", "--seq-len", str(args.seq_len),
                    "--steps", str(args.steps), "--log-json", "--quiet"]
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.dup2(write_end, 1)
            os.execvpe(command[0], command, env)
        os.close(write_end)
        with os.fdopen(read_end) as f:
            lines = [json.loads(line) for line in f]
        _, status, usage = os.wait4(pid, 0)
        if status != 0:
            sys.exit(f"{' '.join(command)} failed with status {status}")
        ends = [0.0] + [line["elapsed_s"] for line in lines]
        return {
            "seconds": [b - a for a, b in zip(ends, ends[1:])],
            "losses": [line["loss"] for line in lines],
            "peak_rss_bytes": usage.ru_maxrss * 1024,
        }


def run_torch(args, precision, env):
    command = [args.python, os.path.join(ROOT, "bench", "peers", "torch_gpt2.py"),
               "--model", args.model, "--precision", precision, "--batch", str(args.batch),
               "--seq-len", str(args.seq_len), "--steps", str(args.steps),
               "--threads", str(args.threads), "--data", TEXT]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return json.loads(done.stdout.strip().splitlines()[-1])


def summary(runs, tokens):
    """Median, worst and best tokens/s without each run's first two steps; peak RSS; first losses."""
    seconds = [s for run in runs for s in run["seconds"][2:]]
    losses = " ".join(f"{x:.3f}" for x in runs[0]["losses"][:3])
    return (tokens / statistics.median(seconds), tokens / max(seconds), tokens / min(seconds),
            max(run["peak_rss_bytes"] for run in runs), losses)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--czero", default=os.path.join(ROOT, "build", "czero"))
    parser.add_argument("--python", help="the peers' python (default: scripts/peers.sh)")
    parser.add_argument("--model", default="gpt2")
    parser.add_argument("--precision", nargs="+", default=["fp32", "bf16"])
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    if not args.python:
        script = os.path.join(ROOT, "scripts", "peers.sh")
        args.python = subprocess.run([script], check=True, capture_output=True, text=True).stdout.strip()
    env = dict(os.environ, OMP_NUM_THREADS=str(args.threads))

    tokens = args.batch * args.seq_len
    print(f"{args.model}, batch {args.batch} x {args.seq_len}, {args.threads} threads")
    for precision in args.precision:
        # fp32 masters, as czero keeps them, are what autocast has; weights and states in bf16 alone
        # are PyTorch's fastest form.
        peers = ["bf16", "autocast"] if precision == "bf16" else [precision]
        runs = {"czero": []} | {f"torch {peer}": [] for peer in peers}
        for _ in range(args.rounds):
            for peer in peers:
                runs[f"torch {peer}"].append(run_torch(args, peer, env))
            runs["czero"].append(run_czero(args, precision, env))
        figures = {name: summary(side, tokens) for name, side in runs.items()}
        for name, (rate, low, high, rss, losses) in figures.items():
            print(f"{precision} {name}: {rate:7.1f} tokens/s median ({low:.1f} to {high:.1f}),"
                  f" peak RSS {rss / 2**30:.2f} GiB, first losses {losses}")
        for name in list(figures)[1:]:
            print(f"{precision} czero / {name}: tokens/s {figures['czero'][0] / figures[name][0]:.2f}x,"
                  f" peak RSS {figures['czero'][3] / figures[name][3]:.2f}x")


if __name__ == "__main__":
    main()
