"""What the benches for GPUs share: figures, data, czero's and the peers' runs.

A figure is one JSON line on stdout, a row of scripts/gpu_check.sh's table:
  figure    what it is
  value, unit
  ratio     of what the goal is about; goal: at least, goal_max: at most; goal_of: in words
  skipped   why there is none; note: anything else
"""
import json
import os
import random
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PEERS = os.path.join(ROOT, "bench", "peers")


def figure(name, value=None, unit="", **more):
    print(json.dumps({"figure": name, "value": value, "unit": unit, **more}), flush=True)


def skipped(name, why, **more):
    print(json.dumps({"figure": name, "skipped": str(why).strip()[-200:], **more}), flush=True)


def config_dir(folder, layers, width, heads, vocabulary, positions):
    """A Hugging Face folder of a GPT-2 without dropout, and without weights."""
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": layers, "n_embd": width,
                   "n_head": heads, "vocab_size": vocabulary, "n_positions": positions, "n_ctx": positions,
                   "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "layer_norm_epsilon": 1e-5,
                   "activation_function": "gelu_new", "tie_word_embeddings": True, "bos_token_id": 0,
                   "eos_token_id": 0}, f)
    return folder


def token_file(path, n, vocabulary):
    """Tokens as frequent as words are (Zipf), in llm.c's format: what embeddings and losses meet in earnest."""
    draw = random.Random(1)
    weights = [1.0 / (i + 2) for i in range(vocabulary)]
    some = draw.choices(range(vocabulary), weights, k=min(n, 1 << 20))
    with open(path, "wb") as f:
        f.write(struct.pack("<3i", 20240520, 1, n) + bytes(4 * 253))
        block = struct.pack(f"<{len(some)}H", *some)
        for begin in range(0, n, len(some)):
            f.write(block[:2 * (n - begin)])
    return path


class GpuWatch:
    """The most memory of GPU 0 in use while it runs, over what was in use before; None where nobody can tell."""

    def __init__(self, period=0.05):
        self.period, self.peak, self.before, self.stop = period, None, None, threading.Event()
        try:
            import pynvml
            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByIndex(0)
            self.used = lambda: pynvml.nvmlDeviceGetMemoryInfo(handle).used
            self.before = self.peak = self.used()
        except Exception:  # no NVML, no GPU
            self.used = None

    def __enter__(self):
        if self.used:
            self.thread = threading.Thread(target=self.watch, daemon=True)
            self.thread.start()
        return self

    def watch(self):
        while not self.stop.is_set():
            self.peak = max(self.peak, self.used())
            time.sleep(self.period)

    def __exit__(self, *_):
        if self.used:
            self.stop.set()
            self.thread.join()

    def nbytes(self):
        return self.peak - self.before if self.used else None


def train_czero(czero, config, model, data, seq_len, steps, device="cuda", extra=()):
    """{"seconds": per step, "losses", "peak_rss", "peak_gpu"}; RuntimeError with czero's sentence."""
    with tempfile.TemporaryDirectory() as work:
        path = os.path.join(work, "ds_config.json")
        with open(path, "w") as f:
            json.dump(config, f)
        command = [czero, "train", "--config", path, "--model", model, "--init", "random", "--data", data,
                   "--shuffle", "off", "--seq-len", str(seq_len), "--steps", str(steps), "--device", device,
                   "--log-json", "--quiet", *extra]
        errors = os.path.join(work, "errors")
        with GpuWatch() as watch, open(errors, "w") as f:
            child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=f, text=True)
            lines = [json.loads(line) for line in child.stdout]
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = status
        if status != 0:
            with open(errors) as f:
                raise RuntimeError((f.read().strip().splitlines() or [f"status {status}"])[-1])
    ends = [0.0] + [line["elapsed_s"] for line in lines]
    return {"seconds": [b - a for a, b in zip(ends, ends[1:])], "losses": [x["loss"] for x in lines],
            "peak_rss": usage.ru_maxrss * 1024, "peak_gpu": watch.nbytes()}


def plan_czero(czero, config, model, seq_len, extra=()):
    with tempfile.TemporaryDirectory() as work:
        path = os.path.join(work, "ds_config.json")
        with open(path, "w") as f:
            json.dump(config, f)
        done = subprocess.run([czero, "plan", "--config", path, "--model", model, "--seq-len", str(seq_len),
                               "--device", "cuda", "--json", *extra], capture_output=True, text=True)
    if done.returncode not in (0, 3) or not done.stdout:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    return json.loads(done.stdout)


def run_peer(script, *arguments, timeout=300):
    """The last line of a peer's output as JSON; RuntimeError with the end of what it said."""
    try:
        done = subprocess.run([sys.executable, os.path.join(PEERS, script), *map(str, arguments)],
                              capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"no end after {timeout} s") from None
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        raise RuntimeError((done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1])
    return json.loads(lines[-1])


def median_step(run, n_warm=3):
    return statistics.median(run["seconds"][n_warm:] or run["seconds"])
