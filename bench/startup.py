#!/usr/bin/env python3
"""Start-up: how long from exec to the end of `czero config check`, and to the end of step 1.

    python3 bench/startup.py [--runs 20]

Prints minimum, median and worst of the runs, beside the budgets (20 ms and 300 ms) and beside
starting a Python that imports torch, when the peers are installed.
"""
import argparse
import os
import statistics
import subprocess
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PEERS = os.environ.get("CZERO_PEERS", os.path.expanduser("~/.cache/czero-peers/venv"))


def timed(command, runs):
    seconds = []
    for _ in range(runs):
        begin = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        seconds.append(time.perf_counter() - begin)
    return seconds


def report(name, seconds, budget):
    ms = sorted(1e3 * s for s in seconds)
    line = f"{name}: min {ms[0]:.1f} ms, median {statistics.median(ms):.1f} ms, worst {ms[-1]:.1f} ms"
    print(line + (f", budget {budget} ms" if budget else ""))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--czero", default=os.path.join(ROOT, "build", "czero"))
    parser.add_argument("--runs", type=int, default=20)
    args = parser.parse_args()
    config = os.path.join(ROOT, "configs", "quickstart.json")
    text = os.path.join(ROOT, "examples", "data", "fortunes.txt")
    checked = os.path.join(ROOT, "configs", "zero2.json")
    report("czero config check", timed([args.czero, "config", "check", checked], args.runs), 20)
    report("czero train, gpt2-tiny, 1 step",
           timed([args.czero, "train", "--config", config, "--model", "gpt2-tiny", "--data", text,
                  "--seq-len", "64", "--steps", "1", "--quiet"], args.runs), 300)
    python = os.path.join(PEERS, "bin", "python")
    if os.path.exists(python):
        report("python, import torch", timed([python, "-c", "import torch"], min(args.runs, 5)), None)


if __name__ == "__main__":
    main()
