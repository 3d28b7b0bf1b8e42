#!/usr/bin/env python3
"""Classify Chinese microblog posts: a small BERT from random weights, one epoch, several ways to run it.

    bench/weibo6.py                        the table on standard output
    bench/weibo6.py --write                into docs/classification.md
    bench/weibo6.py --only "two ranks"     rows whose name contains that

40,133 posts in six classes come from text/weibo6/train.json of the fixtures, which a build unpacks (--data); every tenth
is kept for evaluation. Spaces inside the posts, which separate words, are removed; the vocabulary
is one token per character, made by czero vocab. The global batch is 64 in every row. Time is the
command's from start to end, start-up and both evaluations included; memory is the largest resident
set (VmHWM) of any rank, read while it runs. Needs python3 alone.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ZERO = "zero_optimization"
BEGIN, END = "<!-- weibo6 table -->", "<!-- end of the weibo6 table -->"

# name, ranks, --set assignments; NVME is replaced by a folder.
ROWS = [
    ("one rank, fp32", 1, [f"{ZERO}.stage=0"]),
    ("two ranks, ZeRO-1", 2, [f"{ZERO}.stage=1"]),
    ("two ranks, ZeRO-2", 2, [f"{ZERO}.stage=2"]),
    ("two ranks, ZeRO-3", 2, [f"{ZERO}.stage=3"]),
    ("two ranks, ZeRO-2, bf16", 2, [f"{ZERO}.stage=2", "bf16.enabled=true"]),
    ("two ranks, ZeRO-3, bf16", 2, [f"{ZERO}.stage=3", "bf16.enabled=true"]),
    ("two ranks, ZeRO-2, optimizer on NVMe", 2,
     [f"{ZERO}.stage=2", f"{ZERO}.offload_optimizer.device=nvme", f"{ZERO}.offload_optimizer.nvme_path=NVME"]),
    ("two ranks, ZeRO-3, optimizer and parameters on NVMe", 2,
     [f"{ZERO}.stage=3", f"{ZERO}.offload_optimizer.device=nvme", f"{ZERO}.offload_optimizer.nvme_path=NVME",
      f"{ZERO}.offload_param.device=nvme", f"{ZERO}.offload_param.nvme_path=NVME"]),
]


def split(path, folder):
    posts = json.load(open(path, encoding="utf-8"))
    parts = {"train": [p for i, p in enumerate(posts) if i % 10 != 9], "dev": posts[9::10]}
    for name, part in parts.items():
        with open(os.path.join(folder, name + ".json"), "w", encoding="utf-8") as f:
            json.dump(part, f, ensure_ascii=False)
    counts = [sum(1 for _, label in parts["dev"] if label == k) for k in range(6)]
    return max(counts) / len(parts["dev"])


def children(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as f:
            return [int(word) for word in f.read().split()]
    except OSError:
        return []


def peak_kib(pid):
    try:
        with open(f"/proc/{pid}/status") as f:
            return int(re.search(r"VmHWM:\s+(\d+)", f.read()).group(1))
    except (OSError, AttributeError):
        return 0


def run(command, log):
    """Seconds, largest VmHWM of a rank in MiB, standard output."""
    begin, peaks = time.time(), {}
    with open(log, "w") as err, tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(command, stdout=out, stderr=err)
        while process.poll() is None:
            for pid in children(process.pid) or [process.pid]:
                peaks[pid] = max(peaks.get(pid, 0), peak_kib(pid))
            time.sleep(0.05)
        seconds = time.time() - begin
        out.seek(0)
        text = out.read()
    if process.returncode != 0:
        sys.exit(f"{' '.join(command)}\nended with {process.returncode}:\n{open(log).read()[-2000:]}")
    return seconds, max(peaks.values()) / 1024, text


def measure(o, folder, name, ranks, sets):
    export = os.path.join(folder, re.sub(r"\W+", "-", name))
    train = ["train", "--config", os.path.join(ROOT, "configs/weibo6.json"), "--model", o.model,
             "--task", "classification", "--data", os.path.join(folder, "train.json"),
             "--eval-data", os.path.join(folder, "dev.json"), "--strip-spaces",
             "--tokenizer", os.path.join(folder, "vocab"), "--epochs", "1",
             "--metrics", export + ".csv", "--export", export,
             "--set", f"train_micro_batch_size_per_gpu={64 // ranks}"]
    for item in sets:
        train += ["--set", item.replace("NVME", os.path.join(folder, "nvme"))]
    command = [o.czero] + (["launch", "-n", str(ranks), "--"] if ranks > 1 else []) + train
    seconds, mib, text = run(command, export + ".log")
    accuracy = float(re.search(r"eval_accuracy ([\d.]+)", text).group(1))
    macro = float(re.search(r"macro avg\s+[\d.]+\s+[\d.]+\s+([\d.]+)", text).group(1))
    loss = float(re.search(r"eval_loss ([\d.]+)", text).group(1))
    return seconds, mib, accuracy, macro, loss


def table(o, folder):
    majority = split(o.data, folder)
    os.makedirs(os.path.join(folder, "nvme"), exist_ok=True)
    subprocess.run([o.czero, "vocab", "--kind", "char", "--size", "6000", "--min-count", "2", "--data",
                    os.path.join(folder, "train.json"), "-o", os.path.join(folder, "vocab")],
                   check=True, stdout=subprocess.DEVNULL)
    lines = ["| run | seconds | MiB per rank | accuracy | macro F1 | loss |", "|---|---|---|---|---|---|"]
    for name, ranks, sets in ROWS:
        if o.only and o.only not in name:
            continue
        seconds, mib, accuracy, macro, loss = measure(o, folder, name, ranks, sets)
        lines.append(f"| {name} | {seconds:.0f} | {mib:.0f} | {accuracy:.3f} | {macro:.3f} | {loss:.3f} |")
        print(lines[-1], file=sys.stderr)
    lines += ["", f"Predicting the largest class for every text gives an accuracy of {majority:.3f}."]
    return "\n".join(lines)


def write(text):
    path = os.path.join(ROOT, "docs/classification.md")
    page = open(path, encoding="utf-8").read()
    head, rest = page.split(BEGIN)
    with open(path, "w", encoding="utf-8") as f:
        f.write(head + BEGIN + "\n" + text + "\n" + END + rest.split(END)[1])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--czero", default=os.path.join(ROOT, "build/czero"))
    p.add_argument("--data", default=os.path.join(ROOT, "build/fixtures/text/weibo6/train.json"))
    p.add_argument("--model", default="bert-mini", help="a preset (default: bert-mini, 4 layers of 256)")
    p.add_argument("--only", help="rows whose name contains this")
    p.add_argument("--keep", help="a folder for vocabulary, logs, curves and trained models")
    p.add_argument("--write", action="store_true", help="into docs/classification.md")
    o = p.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = o.keep or temporary
        os.makedirs(folder, exist_ok=True)
        text = table(o, folder)
    if o.write:
        write(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
