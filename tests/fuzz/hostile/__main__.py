#!/usr/bin/env python3
"""The hostile corpus: inputs that are wrong in one chosen place, and the commands that read them.

    PYTHONPATH=tests/fuzz python3 -m hostile BUILD          BUILD/fixtures/hostile, with its table.tsv
    PYTHONPATH=tests/fuzz python3 -m hostile BUILD SEEN     the table takes exit codes and sentences from SEEN

BUILD holds czero, which trains the small checkpoint that resumed runs begin with. SEEN is what
`CZ_HOSTILE_RECORD=SEEN BUILD/tests/cli/test_hostile` wrote: review each line that changes
(docs/fuzzing.md). Lines that are known keep what is expected of them. Pack the folder afterwards:
tests/fixtures/pack.sh hostile."""

import pathlib
import re
import shutil
import subprocess
import sys

from . import accepted, checkpoints, containers, models, strangers, tools

MARK = b"mark-of-the-victim-7Qx"
HEAD = """# Hostile inputs: tests/fuzz/hostile makes this table, tests/cli/files/test_hostile.c runs it (docs/fuzzing.md).
# case, base, set-up, command, exit code, part of what is printed ('…': anything between), what is wrong with the input
"""


def colliding(n_bits=11):
    """2^n_bits short keys with one 32-bit FNV-1a hash: pairs of blocks that collide, one after another."""
    state, blocks = 2166136261, []
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"
    for _ in range(n_bits):
        seen, i = {}, 0
        while True:
            block = "".join(letters[i >> s & 63] for s in (0, 6, 12, 18))
            h = state
            for ch in block:
                h = (h ^ ord(ch)) * 16777619 & 0xFFFFFFFF
            if h in seen and seen[h] != block:
                blocks.append((seen[h], block))
                state = h
                break
            seen[h] = block
            i = i * 5 + 0x3C6F3 & 0xFFFFFF
    keys = [""]
    for a, b in blocks:
        keys = [k + x for k in keys for x in (a, b)]
    return keys


def bases(c, build):
    """Sound models and checkpoints, what every run finds in common/, and what none may read."""
    containers.sharded_model(c)
    models.bert_model(c)
    models.bpe_model(c)
    c.put("common/ds.json", '{"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}, "gradient_clipping": 0, "zero_optimization": {"stage": 2}}\n')
    c.put("common/text.txt", "the quick brown fox jumps over the lazy dog. " * 12)
    run = c.out / "bases" / "run"
    subprocess.run([build / "czero", *"train --config common/ds.json --model common/model --data common/text.txt --tokenizer bytes --seq-len 8 --steps 2 --quiet --save bases/run".split()], cwd=c.out, check=True)
    assert (run / "global_step2").is_dir()
    # what is outside: each kind of file that a name could lead to, sound, and full of the mark
    words = (MARK * 200)[: 4 * 12 * 64]
    c.put("victim/secret.txt", b"-----BEGIN PRIVATE KEY-----\n" + MARK * 20 + b"\n")
    c.put("victim/other.tensor.swp", (MARK * 100)[:1024])
    c.put("victim/fp32.pt", tools.archive(root={"param": tools.tensor("0", 45, 0, (5, 9), (9, 1))}, data=(MARK * 20)[:180]).bytes())
    header, data = tools.weights({"transformer.wte.weight": (256, 4)})
    c.put("victim/model.safetensors", tools.safetensors(header, (MARK * 400)[: len(data)]))
    c.put("victim/config.json", '{"model_type": "gpt2", "x": "' + MARK.decode() + '"}')
    c.put("victim/token.json", '{"token": "' + MARK.decode() + '"}')
    c.put("victim/state.json", '{"format": "' + MARK.decode() + '"}')
    for name in ("mp_rank_00_model_states.pt", "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"):
        t = tools.Torch(c.fixtures / "checkpoints/expected/s2-align/t3" / name)
        t.records = {k: (MARK * 20)[: len(v)] if "/data/" in k and len(v) > 100 else v for k, v in t.records.items()}
        c.put(f"victim/t3/{name}", t.bytes())
    del words


def known(path):
    lines = [line.rstrip("\n").split("\t") for line in open(path, encoding="utf-8", errors="replace") if line.strip() and line[0] != "#"]
    return {(f[0], f[3]): (f[4], f[5]) for f in lines}


def part_of(code, says):
    """What the table keeps of a sentence: its beginning and its end, without the program's name; of an answer, nothing."""
    if code == "0":
        return "no damage" if says.endswith(": no damage") else ""
    for name in ("czero: ", "zero_to_fp32: "):
        says = says.removeprefix(name)
    says = re.sub(r"/(dev/shm|tmp)/czero-test-\w+/box", "…", says)
    says = re.sub(r"/proc/\d+", "/proc/…", says)
    says = says.replace("\ufffd", "…")
    if len(says) > 150:
        says = says[:80].rsplit(" ", 1)[0] + "…" + says[-50:].split(" ", 1)[-1]
    return says.strip()


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    out = build / "fixtures" / "hostile"
    table = out / "table.tsv"
    expected = known(table) if table.exists() else {}
    shutil.rmtree(out, ignore_errors=True)
    c = tools.Corpus(out)
    c.fixtures = build / "fixtures"
    c.colliding = colliding()
    bases(c, build)
    for cases in (containers.zips, containers.pickles, containers.views, containers.tensors, containers.indexes, checkpoints.trees, checkpoints.manifests, checkpoints.latest, checkpoints.universal, checkpoints.states, models.configs, models.model_configs, models.tokenizers, models.labelled, models.token_files, checkpoints.links, checkpoints.look_alikes, strangers.adapters, strangers.chats, strangers.recipes, strangers.generations, strangers.clients):
        cases(c)
    strangers.caches(c, build)
    seen = {k: (v[0], part_of(*v)) for k, v in known(sys.argv[2]).items()} if len(sys.argv) > 2 else {}
    open_ones = dict(line.split(": ", 1) for line in OPEN.strip().splitlines())
    unexplained = []
    with open(table, "w", encoding="utf-8") as f:
        f.write(HEAD)
        for case, why in open_ones.items():
            f.write(f"# open: {case}: {why}\n")
        for case, base, setup, command, idea in c.lines:
            code, says = seen.get((case, command)) or expected.get((case, command)) or ("?", "")
            if case in open_ones:
                continue
            if code == "0":
                reason = accepted.why(case)
                unexplained += [] if reason else [case]
                idea += f" [accepted: {reason}]"
            f.write("\t".join((case, base, setup, command, code, says, idea)) + "\n")
    print("accepted without a reason:", *sorted(set(unexplained)) or ["none"])
    print(len(c.names) - len(open_ones), "inputs,", len(c.lines), "runs;", len(open_ones), "open")


# Cases that are left out of the table because of a known defect. Empty but while one is being fixed.
OPEN = ""
main()
