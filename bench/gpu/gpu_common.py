"""What the benches for GPUs share: figures, data, czero's and the peers' runs.

A figure is one JSON line on stdout, a row of scripts/gpu_check.sh's table:
  figure    what it is
  value, unit
  ratio     of what the goal is about; goal: at least, goal_max: at most; goal_of: in words
  skipped   why there is none; note: anything else
"""
import json
import math
import os
import random
import re
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PEERS = os.path.join(ROOT, "bench", "peers")


def figure(name, value=None, unit="", **more):
    print(json.dumps({"figure": name, "value": value, "unit": unit, **more}), flush=True)


def skipped(name, why, **more):
    print(json.dumps({"figure": name, "skipped": str(why).strip()[:200], **more}), flush=True)


def against_plan(name, measured, planned):
    """A figure that passes as a plan does: within 2 % or 32 MiB of it, whichever is more."""
    near = abs(measured - planned) <= max(0.02 * planned, 32 << 20)
    figure(name, measured / 2**30, "GiB", ratio=measured / planned, goal_of="within max(2 %, 32 MiB) of the plan",
           note=f"planned {gib(planned)}", **{"pass": near})


def gib(nbytes):
    return f"{nbytes / 2**30:.2f} GiB"


class Clock:
    """The seconds that a bench has: what no longer fits is left out with a reason."""

    def __init__(self, seconds):
        self.end = time.monotonic() + seconds

    def left(self, at_most=math.inf):
        return max(0, min(at_most, self.end - time.monotonic()))


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


GPT2_VOCABULARY = 50257  # tokens; tables have a few rows more, and llm.c refuses tokens of those


def token_file(path, n, vocabulary):
    """Tokens as frequent as words are (Zipf), in llm.c's format: what embeddings and losses meet in earnest."""
    draw = random.Random(1)
    words = range(min(vocabulary, GPT2_VOCABULARY))
    some = draw.choices(words, [1.0 / (i + 2) for i in words], k=min(n, 1 << 20))
    with open(path, "wb") as f:
        f.write(struct.pack("<3i", 20240520, 1, n) + bytes(4 * 253))
        block = struct.pack(f"<{len(some)}H", *some)
        for begin in range(0, n, len(some)):
            f.write(block[:2 * (n - begin)])
    return path


def host_free():
    """Bytes of host memory that may be had now, within a container's limit."""
    with open("/proc/meminfo") as f:
        free = next(int(line.split()[1]) * 1024 for line in f if line.startswith("MemAvailable:"))
    try:
        with open("/sys/fs/cgroup/memory.max") as most, open("/sys/fs/cgroup/memory.current") as used:
            return min(free, int(most.read()) - int(used.read()))
    except (OSError, ValueError):  # no limit
        return free


def gpu_free():
    """Free bytes of GPU 0; None if they are unknown."""
    try:
        import pynvml
        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).free
    except Exception:  # no NVML, no GPU
        return None


class GpuWatch:
    """The most memory of GPU 0 in use while it runs, beyond what was in use before; None if it is unknown."""

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


def nvidia_smi(*query):
    """What it answers, or "": some machines have none, and some have one that does not answer."""
    try:
        done = subprocess.run(["nvidia-smi", *query], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


class TooLarge(RuntimeError):
    """It does not fit."""


def last_words(text, otherwise):
    """What a program that failed said: the error that it names, or its last line. (czero's sentence has its name
    in front, and may have the plan behind it.)"""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"(\w+\.)*\w*(Error|Exception)\b|czero( \w+)?: (?!warning)", line)]
    return (errors or lines or [otherwise])[-1]


def train_czero(czero, config, model, data, seq_len, steps, device="cuda", extra=(), timeout=300,
                weights=("--init", "random")):
    """{"seconds": per step, "first": seconds until the first step began, "losses", "norms" of gradients, "peak_rss",
    "peak_gpu", "log": what it said}; RuntimeError, or TooLarge, with czero's sentence. weights (): the model's own."""
    with tempfile.TemporaryDirectory() as work:
        path, errors = os.path.join(work, "ds_config.json"), os.path.join(work, "errors")
        with open(path, "w") as f:
            json.dump(config, f)
        command = [czero, "train", "--config", path, "--model", model, *weights, "--data", data,
                   "--shuffle", "off", "--seq-len", str(seq_len), "--steps", str(steps), "--device", device,
                   "--log-json", "--quiet", *extra]
        if timeout < 5:
            raise RuntimeError("no time is left")
        begin = time.monotonic()
        with GpuWatch() as watch, open(errors, "w") as f:
            child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=f, text=True)
            killer = threading.Timer(timeout, child.kill)
            killer.start()
            lines = [json.loads(line) for line in child.stdout if line.endswith("}\n")]  # the last may be cut off
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = status
            in_time = killer.is_alive()
            killer.cancel()
        with open(errors) as f:
            log = f.read()
    if not in_time:
        raise RuntimeError(f"no end after {timeout:.0f} s, {len(lines)} steps")
    if status != 0:
        words = last_words(log, f"status {status}")
        raise TooLarge(words) if os.waitstatus_to_exitcode(status) == 3 else RuntimeError(words)
    ends = [0.0] + [line["elapsed_s"] for line in lines]
    return {"seconds": [b - a for a, b in zip(ends, ends[1:])], "losses": [x["loss"] for x in lines],
            "norms": [x["grad_norm"] for x in lines],
            "first": time.monotonic() - begin - ends[-1], "log": log,
            "peak_rss": usage.ru_maxrss * 1024, "peak_gpu": watch.nbytes()}


def czero_json(*command):
    """The JSON object that a command of czero's prints; RuntimeError with its sentence. Exit code 3, what
    does not fit, is an answer."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in (0, 3) or not done.stdout:
        raise RuntimeError(last_words(done.stderr, f"exit {done.returncode}"))
    return json.loads(done.stdout)


def machine_profile(czero, path, seconds):
    """What `czero bench` measured, or measures now and keeps in the file."""
    if not os.path.exists(path):
        done = subprocess.run([czero, "bench", "--quiet", "--seconds", str(seconds), "--profile", path],
                              capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(last_words(done.stderr, f"exit {done.returncode}"))
    with open(path) as f:
        return json.load(f)


def plan_czero(czero, config, model, seq_len, extra=()):
    with tempfile.TemporaryDirectory() as work:
        path = os.path.join(work, "ds_config.json")
        with open(path, "w") as f:
            json.dump(config, f)
        return czero_json(czero, "plan", "--config", path, "--model", model, "--seq-len", str(seq_len), "--device",
                          "cuda", "--json", *extra)


def end_group(child, patience=4):
    """End a session leader and what it has started. First by asking: ninja's commands are groups of their own,
    which it ends when it is asked to, and which continue when it is killed. (scripts/gpu_check.sh waits 10 seconds
    between the two.)"""
    for number, seconds in (signal.SIGTERM, patience), (signal.SIGKILL, 0):
        try:
            os.killpg(child.pid, number)
        except ProcessLookupError:
            break
        until = time.monotonic() + seconds
        while time.monotonic() < until and child.poll() is None:
            time.sleep(0.05)
    child.wait()


def run_alone(command, timeout):
    """(exit code, stdout, stderr) of a program in a session of its own: with it goes whatever it has started,
    compilers say, when its time is over or this program is ended."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(command, stdout=out, stderr=errors, start_new_session=True)
        asked = signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))
        try:
            child.wait(timeout)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"no end after {timeout:.0f} s") from None
        finally:
            signal.signal(signal.SIGTERM, asked)
            end_group(child)
        texts = []
        for f in (out, errors):
            f.seek(0)
            texts.append(f.read())
    return child.returncode, *texts


def run_peer(script, *arguments, timeout=300):
    """The last JSON line of a peer's output; RuntimeError with the error that it names. Less than a
    quarter of a minute is not enough to start one."""
    if timeout < 15:
        raise RuntimeError("no time is left")
    code, out, errors = run_alone([sys.executable, os.path.join(PEERS, script), *map(str, arguments)], timeout)
    lines = [line for line in out.splitlines() if line.startswith("{")]
    if code != 0 or not lines:
        raise RuntimeError(last_words(errors, f"exit {code}"))
    return json.loads(lines[-1])


def median_step(run, n_warm=3):
    return statistics.median(run["seconds"][n_warm:] or run["seconds"])
