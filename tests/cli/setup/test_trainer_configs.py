"""Every config among the fixtures that DeepSpeed resolves and that leaves something to a trainer ("auto", no optimizer)
can train, or is refused for the reason below; `config check`, `plan` and `train` answer alike.

    test_trainer_configs.py CZERO FIXTURES"""

import json
import pathlib
import subprocess
import sys
import tempfile

REFUSED = {
    "035.json": "sequence_parallel_size",  # needs two ranks for one sequence
    "063.json": "autotuning.enabled", "065.json": "autotuning.enabled",  # DeepSpeed ends such a run after some steps
    "381.json": "autotuning.enabled", "415.json": "autotuning.enabled",
    "097.json": "tensor_parallel.autotp_size", "109.json": "tensor_parallel.autotp_size",  # need ranks for one model
    "421.json": "tensor_parallel.autotp_size", "463.json": "tensor_parallel.autotp_size",
    "305.json": "duplicate key", "307.json": "duplicate key",  # as DeepSpeed refuses them in a file
    "383.json": "zero_quantized_gradients",  # docs/compatibility.md: lossy
}
TRAINED = 10  # every so many of them is trained for a step


def run(czero, *words, cwd):
    done = subprocess.run([czero, *map(str, words)], capture_output=True, text=True, cwd=cwd, timeout=120)
    return done.returncode, done.stderr


def is_open(text):
    if '"auto"' in text:
        return True
    try:
        return "optimizer" not in json.loads(text)
    except ValueError:
        return False


def main():
    czero, fixtures = sys.argv[1], pathlib.Path(sys.argv[2])
    expected = json.loads((fixtures / "real_configs" / "expected.json").read_text())
    n = {"train": 0, "refused": 0}
    failures = []
    with tempfile.TemporaryDirectory() as work:
        text = pathlib.Path(work, "text.txt")
        text.write_text("The quick brown fox jumps over the lazy dog.\n" * 400)
        for name, entry in sorted(expected.items()):
            path = fixtures / "real_configs" / name
            if not entry["resolved"].get("ok", True) or not is_open(path.read_text(errors="replace")):
                continue
            model = ("--model", "gpt2-tiny", "--seq-len", 16)
            train = ("train", "--config", path, *model, "--data", text, "--tokenizer", "bytes", "--steps", 1, "--quiet")
            commands = [("config", "check", path), ("plan", "--config", path, *model)]
            if sum(n.values()) % TRAINED == 0 or name in REFUSED:
                commands.append(train)
            for command in commands:
                code, err = run(czero, *command, cwd=work)
                reason = REFUSED.get(name)
                if (code == 0) != (reason is None) or (reason and (code != 2 or reason not in err)):
                    failures.append(f"{name}: czero {command[0]}: exit {code}: {err.strip()[:200]}")
            n["refused" if name in REFUSED else "train"] += 1
    print(f"{n['train']} configs train, {n['refused']} are refused")
    print(*failures, sep="\n")
    return 1 if failures or n["train"] < 65 else 0


if __name__ == "__main__":
    sys.exit(main())
