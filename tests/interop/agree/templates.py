"""Conversations under real chat templates, to ids and to what of them is trained: chat/chat_check.py. Where a template marks nothing, what is
trained follows the rule of docs/chat.md; renderings that do not meet its condition are compared by ids alone."""
import ast
import pathlib
import re
import subprocess
import sys

from . import outcome

AREA = "templates"
REFUSALS = ("unsupported", "parts dropped", "answer not found", "both refuse")


def run(tools, seed, n):
    """n random conversations for each template, besides the written ones."""
    program = pathlib.Path(__file__).resolve().parents[1] / "chat" / "chat_check.py"
    done = subprocess.run([sys.executable, program, tools.build / "libczero_internal.so", "--random", str(n), "--seed", str(seed)],
                          capture_output=True, text=True)
    reports = re.findall(r"^(\w[\w ]+): (\{.*\})$", done.stdout, re.M)
    if not reports:
        yield outcome.disagreed(AREA, "all", outcome.sentence(done))
    differences = "\n".join(line for line in done.stdout.splitlines() if not re.match(r"\w[\w ]+: \{", line))
    for name, counts in reports:
        for kind, count in ast.literal_eval(counts).items():
            for _ in range(count):
                if kind == "equal":
                    yield outcome.agreed(AREA, name)
                elif kind in REFUSALS:
                    yield outcome.refused(AREA, name, f"{name}: {kind}")
                else:
                    yield outcome.disagreed(AREA, name, differences[:2000])
