"""Run the commands of the pages; see test_pages.sh.

A page's blocks of sh run in their order in one folder, by bash -euo pipefail, with the build's folder as build/ and in PATH. A block without a language, or
of text, directly after one is its output: each of its lines stands in what the block prints, in this order. Numbers match any number, except in words that
begin a line and after "lr", "step", "epoch"; "…" matches anything. "…" in a command stands for the options of a run that trains a language model.

A block that begins with "$ " is a terminal: a command, and what it prints, in this order, with its numbers (0.3 % apart at most, since kernels differ). Where the
command asks, the page's line has the question and its answer; the default of a question is the machine's.

    pages.py BUILD SOURCE [BUILD [PYTHON]]        the second BUILD is what test_pages.sh was given; CZERO_PAGES="docs/chat.md …" runs some pages alone
"""

import csv
import ctypes
import functools
import hashlib
import json
import os
import pathlib
import pty
import re
import select
import shutil
import subprocess
import sys
import time

BUILD, SOURCE = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
PYTHON = sys.argv[4] if len(sys.argv) > 4 else None
PAGES = ["README.md"] + [f"docs/{name}.md" for name in
                         ("finetune", "chat", "classification", "init", "checkpoints", "lora", "data", "ranks", "metrics", "memory", "zero_to_fp32", "install", "python",
                          "tokenizers")]
PROGRAMS = {"czero", "build/czero", "zero_to_fp32", "build/zero_to_fp32", "cat", "echo", "printf", "head", "tail", "shuf", "wc", "sh"}  # what pages may run here
SECONDS = 60  # of one block
ANY_RUN = "--config ds_config.json --model path/to/gpt2 --data corpus.txt --seq-len 32 --steps 2"  # what "…" of a command stands for
problems = []
used = set()  # of the list of skipped commands


# ---- what the pages name -----------------------------------------------------------------------


def czero(*args):
    done = subprocess.run([BUILD / "czero", *map(str, args)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"the fixture: czero {' '.join(map(str, args))}: {done.stderr}")


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


CHATML = """{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
LOUVRE = [[("user", "Where is the Louvre?"), ("assistant", "In Paris.")],
          [("system", "Answer in one word."), ("user", "Capital of Peru?"), ("assistant", "Lima")]]


def chat(turns):
    return json.dumps({"messages": [{"role": role, "content": content} for role, content in turns]}) + "\n"


def make_chats(at):
    """base/, a chat model that knows its format, and chats of it"""
    words = ["Rome", "Lima", "Oslo", "Bern", "Kyiv", "Quito"]
    rows = "".join(chat(LOUVRE[0]) + chat(LOUVRE[1]) + chat([("user", f"Say {words[i % 6]}!"), ("assistant", words[i % 6])]) for i in range(100))
    lines = rows.splitlines(True)
    for name, n in (("chats.jsonl", len(lines)), ("chat.jsonl", 45), ("dev.jsonl", 12)):
        write(at / name, "".join(lines[:n]))
    shutil.copytree(BUILD / "fixtures/tokenizers/qwen2", at / "start")
    write(at / "start/chat_template.jinja", CHATML)
    write(at / "start/config.json", json.dumps({
        "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 2048, "eos_token_id": 502, "pad_token_id": 500,
        "tie_word_embeddings": False}))
    write(at / "start.json", json.dumps({"train_micro_batch_size_per_gpu": 8, "optimizer": {"type": "AdamW", "params": {"lr": 3e-3}}}))
    czero("train", "--config", at / "start.json", "--model", at / "start", "--init", "random", "--task", "sft", "--loss-on", "all", "--data", at / "chats.jsonl",
          "--seq-len", 128, "--steps", 20, "--export", at / "base", "--quiet")
    shutil.copytree(at / "base", at / "path/to/qwen3")


def make_texts(at):
    """path/to/gpt2 and path/to/bert with texts for them"""
    write(at / "corpus.txt", (BUILD / "fixtures/text/fortunes-64k.txt").read_text()[:20000])
    write(at / "ds_config.json", json.dumps({"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW", "params": {"lr": 3e-4}}}))
    write(at / "gpt2-start/config.json", json.dumps({
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 256, "n_positions": 256, "n_embd": 8, "n_layer": 1, "n_head": 1}))
    czero("train", "--config", at / "ds_config.json", "--model", at / "gpt2-start", "--init", "random", "--data", at / "corpus.txt", "--seq-len", 32, "--steps", 1,
          "--export", at / "path/to/gpt2", "--quiet")
    shutil.copytree(at / "path/to/gpt2", at / "gpt2")
    for name in ("run", "zero2", "offload"):  # of docs/metrics.md
        write(at / name / "metrics.csv", "step,epoch,split,loss,accuracy,macro_f1,weighted_f1,lr,seconds\n" +
              "".join(f"{i},{i / 8},train,{3 / i:.3f},,,,0.001,{i}.5\n" for i in range(1, 9)))
    write(at / "curve.csv", "step,loss,lr,grad_norm,samples\n" + "".join(f"{i},{3 / i:.3f},0.001,{1 / i:.3f},{i}\n" for i in range(1, 9)))
    czero("train", "--config", at / "ds_config.json", "--model", at / "path/to/gpt2", "--data", at / "corpus.txt", "--seq-len", 32, "--steps", 1,
          "--save", at / "checkpoints", "--quiet")
    shutil.copytree(at / "checkpoints", at / "runs/b")
    good, bad = ["a fine day", "what a lovely day", "good and kind", "I like it"], ["a sad day", "what a dull day", "bad and cold", "I hate it"]
    for name, n in (("train", 24), ("dev", 8), ("test", 8)):
        write(at / f"{name}.csv", "text,label\n" + "".join(f"{(good if i % 2 else bad)[i // 2 % 4]},{'pos' if i % 2 else 'neg'}\n" for i in range(n)))
        write(at / f"{name}.conll", "Anna B-PER\nmoved O\nfrom O\nOslo B-LOC\nto O\nNew B-LOC\nYork I-LOC\n\nIt O\nrains O\n\n" * (n // 4))
    rows = [[bad[i // 2 % 4], "neg"] if i % 2 else [good[i // 2 % 4], "pos"] for i in range(24)]
    write(at / "test.jsonl", "".join(json.dumps({"id": i, "text": text, "label": label}) + "\n" for i, (text, label) in enumerate(rows[:8])))
    write(at / "train.json", json.dumps(rows))
    write(at / "dev.json", json.dumps(rows[:8]))
    write(at / "numbered.csv", (at / "train.csv").read_text().replace(",pos\n", ",1\n").replace(",neg\n", ",0\n"))
    for name, n in (("pairs", 24), ("pairs_dev", 8)):
        write(at / f"{name}.csv", "text,pair,label\n" + "".join(f"{good[i % 4]},{(good if i % 2 else bad)[i // 2 % 4]},{i % 5}.5\n" for i in range(n)))
    czero("vocab", "--data", at / "corpus.txt", "--kind", "wordpiece", "--size", 300, "-o", at / "bert-start")
    shutil.copytree(at / "bert-start", at / "vocab")
    write(at / "bert-start/config.json", json.dumps({
        "model_type": "bert", "architectures": ["BertForMaskedLM"], "vocab_size": 300, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
        "num_attention_heads": 2, "max_position_embeddings": 128}))
    czero("train", "--config", at / "ds_config.json", "--model", at / "bert-start", "--init", "random", "--task", "masked-lm", "--data", at / "corpus.txt",
          "--seq-len", 32, "--steps", 1, "--export", at / "path/to/bert", "--quiet")


def make_fixture(at):
    make_chats(at)
    make_texts(at)
    (at / "build").symlink_to(BUILD)
    (at / "configs").symlink_to(SOURCE / "configs")
    for name in ("start", "start.json", "gpt2-start", "bert-start"):
        path = at / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()


# ---- blocks ------------------------------------------------------------------------------------


def blocks_of(text):
    """(kind, first line, text, whether it follows the block before directly)"""
    out, kind, begin, lines, gap = [], None, 0, [], True
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```") and kind is None:
            kind, begin, lines = line[3:].strip(), number + 1, []
        elif line.startswith("```"):
            out.append((kind, begin, "\n".join(lines) + "\n", not gap))
            kind, gap = None, False
        elif kind is not None:
            lines.append(line)
        elif line.strip():
            gap = True
    return out


@functools.cache
def has_librsvg():
    """PNG is drawn by a library that czero opens at run time, if it is installed."""
    try:
        ctypes.CDLL("librsvg-2.so.2")
    except OSError:
        return False
    return True


def commands_of(text):
    """a block's commands: lines that are continued, and here documents, are part of theirs"""
    out, lines, end = [], [], None
    for line in text.splitlines():
        lines.append(line)
        here = re.search(r"<<'?([A-Z]+)'?$", line)
        if end is not None:
            if line != end:
                continue
            end = None
        elif here:
            end = here.group(1)
            continue
        if line.endswith("\\"):
            continue
        out.append("\n".join(lines))
        lines = []
    return out + (["\n".join(lines)] if lines else [])


def first_line(command):
    return command.split("\n")[0].split("  #")[0].rstrip(" \\")


def read_skipped():
    """(page, command): what runs in its place, or None"""
    out = {}
    for line in (SOURCE / "tests/cli/docs/skipped.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            page, command, why, *instead = line.split(" | ")
            out[page, command] = instead[0] if instead else None
    return out


NUMBER = r"[-+]?[0-9][0-9,]*(?:\.[0-9]+)?(?:e[-+]?[0-9]+)?"


def pattern_of(line):
    """a regular expression for a line of a page"""
    out = ""
    for part in re.split(rf"(…|(?:\b(?:lr|step|epoch|steps|epochs|rows?|examples|ranks?) {NUMBER}(?:/[0-9]+)?|\b(?:pos|neg)\b|{NUMBER}))", line.strip()):
        if part == "…":
            out += ".*"
        elif part in ("pos", "neg"):  # the pages' classifier has seen three steps
            out += "(?:pos|neg)"
        elif re.fullmatch(NUMBER, part):
            out += NUMBER
        else:
            out += re.sub(r"(\\ )+", r"\\s+", re.escape(part))
    return re.compile(out)


def without_colours(text):
    return re.sub(r"\x1b\[[0-9;]*[mK]", "", text)


def is_near(shown, printed):
    a, b = (float(x.replace(",", "")) for x in (shown, printed))
    return abs(a - b) <= max(abs(a), abs(b)) * 0.003


def compare_exactly(page, line_number, shown, printed):
    """the lines of a terminal stand in what was printed, in this order, wherever lines are broken"""
    printed, at = " ".join(without_colours(printed).split()), 0
    for offset, line in enumerate(shown.splitlines()):
        words = re.sub(r"\[[^]]*\]:", "[…]:", " ".join(line.split()))  # the default of a question
        if words in ("", "…"):
            continue
        parts = re.split(f"({NUMBER})", words)
        pattern = re.compile("".join(f"({NUMBER})" if i % 2 else re.escape(part).replace("…", ".*?") for i, part in enumerate(parts)))
        found = next((m for m in pattern.finditer(printed, at) if all(map(is_near, parts[1::2], m.groups()))), None)
        if not found:
            problems.append(f"{page}:{line_number + offset}: the command prints otherwise: {line}\n    {printed[at:at + 2000]}")
            return
        at = found.end()


def converse(command, folder, environment, lines):
    """runs a command on a terminal; questions are answered as the page's lines answer them"""
    pid, fd = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execvpe("bash", ["bash", "-c", command], environment)
    seen, asked, end = "", 0, time.time() + SECONDS
    while time.time() < end:
        try:
            if select.select([fd], [], [], 0.2)[0]:
                seen += os.read(fd, 65536).decode(errors="replace")
                continue
        except OSError:
            break
        tail = seen[asked:].replace("\r", "").split("\n")[-1]
        if tail.endswith(": "):
            question = re.sub(r"\\\[.*\\\]:$", r"\\[.*\\]:", re.escape(tail.rstrip()))  # defaults are of the machine
            answer = next((m.group(1) for m in (re.fullmatch(f"{question} ?(.*)", line) for line in lines) if m), None)
            if answer is None:
                break
            os.write(fd, (answer + "\n").encode())
            asked = len(seen)
    os.close(fd)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), seen


def run_terminal(page, line_number, text, skipped, folder, environment):
    command, *lines = text.splitlines()
    command = command[2:]
    if (page, command) in skipped:
        used.add((page, command))
        return 0
    for name in ("ds_config.json", "train.sh"):  # czero init replaces no file
        if command.startswith("czero init") and (folder / name).exists():
            (folder / name).unlink()
    code, printed = converse(command, folder, environment, lines)
    if code and not (code == 3 and command.startswith("czero tune")):  # an adapter may fit where all weights do not
        problems.append(f"{page}:{line_number}: exit code {code}: {command}\n    {printed[-2000:]}")
    else:
        compare_exactly(page, line_number + 1, "\n".join(lines), printed)
    return 1


def compare(page, line_number, shown, printed):
    lines = [x.strip() for x in re.split(r"[\n\r]", without_colours(printed))]
    at = 0
    for offset, line in enumerate(shown.splitlines()):
        if not line.strip() or line.strip() == "…":
            continue
        pattern = pattern_of(line)
        found = next((i for i in range(at, len(lines)) if pattern.fullmatch(lines[i])), None)
        if found is None:
            problems.append(f"{page}:{line_number + offset}: no such line in the output: {line}\n" + "\n".join("    " + x for x in lines[at:at + 40]))
            return
        at = found + 1


def check_rate(page, line_number, folder):
    """the highest rate of metrics.csv is the one that the page's config gives"""
    config, metrics = folder / "ds_config.json", folder / "metrics.csv"
    if not config.exists() or not metrics.exists():
        return
    rate = json.loads(config.read_text()).get("optimizer", {}).get("params", {}).get("lr")
    rates = [float(row["lr"]) for row in csv.DictReader(open(metrics)) if row.get("lr")]
    if isinstance(rate, float) and rates and abs(max(rates) - rate) > 1e-9:
        problems.append(f"{page}:{line_number}: the run's highest rate is {max(rates):g}, in the page's config it is {rate:g}")


class Finetune:
    """docs/finetune.md: rows are split without a loss, the adapter learns, a finished run that is resumed exports it again, and the merged folder is whole"""

    def __init__(self, folder):
        self.folder, self.adapters = folder, []

    def after_block(self, text):
        if "--export adapter/" in text:
            path = self.folder / "adapter/adapter_model.safetensors"
            self.adapters.append((hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns))

    def problems(self):
        count = {name: len((self.folder / name).read_text().splitlines()) for name in ("chats.jsonl", "train.jsonl", "dev.jsonl")}
        if count["train.jsonl"] + count["dev.jsonl"] != count["chats.jsonl"]:
            yield f"rows are lost between the files: {count}"
        losses = [float(row["loss"]) for row in csv.DictReader(open(self.folder / "metrics.csv")) if row["split"] == "eval"]
        if len(losses) != 3 or losses != sorted(losses, reverse=True) or losses[-1] >= losses[0]:
            yield f"the loss of the evaluations does not fall: {losses}"
        if len(self.adapters) != 2 or self.adapters[0][0] != self.adapters[1][0]:
            yield "a finished run that is resumed exports another adapter"
        elif self.adapters[0][1] == self.adapters[1][1]:
            yield "a finished run that is resumed exports nothing"
        for name in ("merged/model.safetensors", "merged/chat_template.jinja", "merged/tokenizer.json"):
            if not (self.folder / name).exists() or not (self.folder / name).stat().st_size:
                yield f"{name} is missing"
        if (self.folder / "merged/chat_template.jinja").read_text() != CHATML:
            yield "the merged folder has another template"


CLAIMS = {"docs/finetune.md": Finetune}  # what a page's commands have to do besides ending well


def run_page(page, fixture, skipped, work):
    folder = work / page.replace("/", "-")
    shutil.copytree(fixture, folder, symlinks=True)
    environment = dict(os.environ, PATH=f"{BUILD}:{os.environ['PATH']}", COLUMNS="100", OMP_NUM_THREADS="1")
    printed = ""
    n_run = 0
    pythons = []
    claims = CLAIMS[page](folder) if page in CLAIMS else None
    n_problems = len(problems)
    before = None
    for kind, line_number, text, follows in blocks_of((SOURCE / page).read_text()):
        if kind in ("", "text") and text.startswith("$ "):
            n_run += run_terminal(page, line_number, text, skipped, folder, environment)
        elif kind in ("", "text") and follows and before == "sh":
            compare(page, line_number, text, printed)
        before = kind
        if kind == "python" and page == "docs/finetune.md":
            pythons.append(text)
        if kind != "sh":
            continue
        kept = []
        for command in commands_of(text):
            key = (page, first_line(command))
            if not command.strip():
                continue
            if key in skipped:
                used.add(key)
                if not skipped[key]:
                    continue
                command = skipped[key]
            if ".png" in command and not has_librsvg():
                continue
            command = re.sub(r" …(?= |$)", f" {ANY_RUN}", command)
            if command.split()[0] not in PROGRAMS:
                problems.append(f"{page}:{line_number}: {command.split()[0]} is no program that the test runs: list the command in tests/cli/docs/skipped.txt")
            else:
                kept.append(command)
                n_run += 1
        writes_metrics = "--metrics metrics.csv" in "\n".join(kept) and "ds_config.json" in "\n".join(kept)
        try:
            done = subprocess.run(["bash", "-euo", "pipefail", "-c", "\n".join(kept)], cwd=folder, env=environment, text=True, errors="replace",
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SECONDS)
        except subprocess.TimeoutExpired:
            problems.append(f"{page}:{line_number}: takes more than {SECONDS} s")
            break
        printed = done.stdout
        if done.returncode:
            problems.append(f"{page}:{line_number}: exit code {done.returncode}\n" + "\n".join("    " + x for x in (text + printed).splitlines()[-40:]))
            break
        if writes_metrics:
            check_rate(page, line_number, folder)
        if claims:
            claims.after_block(text)
    if claims and len(problems) == n_problems:
        problems.extend(f"{page}: {x}" for x in claims.problems())
    if PYTHON and pythons:
        answers = [subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True).stdout for command in
                   ([PYTHON, "-c", pythons[0]], [BUILD / "czero", "generate", "--model", "base/", "--adapter", "adapter/", "--chat", "Where is the Louvre?"])]
        if not answers[1].strip() or answers[1].strip() not in answers[0]:
            problems.append(f"{page}: transformers writes {answers[0]!r}, czero {answers[1]!r}")
    return n_run


def main():
    work = pathlib.Path.cwd()
    fixture = work / "fixture"
    make_fixture(fixture)
    skipped = read_skipped()
    pages = os.environ.get("CZERO_PAGES", "").split() or PAGES
    n_run = sum(run_page(page, fixture, skipped, work) for page in pages)
    for page, command in skipped:
        if (page, command) not in used and page in pages:
            problems.append(f"tests/cli/docs/skipped.txt: {page} has no such command any more: {command}")
    print(f"{n_run} commands of {len(pages)} pages ran, {sum(not x for x in skipped.values())} are skipped")
    print("\n".join(problems))
    sys.exit(1 if problems else 0)


main()
