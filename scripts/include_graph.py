#!/usr/bin/env python3
"""Draws the include graph of the library and its tools: one box per module with its sub-folders.

    scripts/include_graph.py            print the table and the edges
    scripts/include_graph.py --write    write docs/modules.svg, and the table into docs/design.md

An arrow from A to B means that a file of A includes a header of B. Arrows that follow from others (A to B,
B to C, hence A to C) are left out of the drawing; the table lists every direct include. All modules include
base, so arrows to base are drawn only from modules that include nothing else.
"""
import os
import re
import sys
from collections import Counter, defaultdict

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
MODULES = ["tools", "api", "engine", "zero", "checkpoint", "data", "model", "optim", "offload", "comm",
           "ops", "formats", "layout", "device", "base"]
COLUMNS = {  # first column and number of columns of a module's box, of six
    "tools": (0, 4), "api": (4, 2), "engine": (0, 6), "zero": (3, 3), "model": (2, 1), "optim": (3, 1), "checkpoint": (0, 1),
    "data": (1, 1), "ops": (2, 2), "comm": (4, 1), "formats": (0, 2), "layout": (2, 1), "device": (3, 2),
    "offload": (5, 1), "base": (0, 6)}
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)
BEGIN, END = "<!-- modules: begin (scripts/include_graph.py --write) -->", "<!-- modules: end -->"


def sources(module):
    for folder, _, names in os.walk(os.path.join(ROOT, module)):
        for name in names:
            if name.endswith((".c", ".h", ".cu", ".cuh")):
                yield os.path.relpath(os.path.join(folder, name), ROOT)


def read_graph():
    edges = defaultdict(Counter)
    folders = defaultdict(set)
    for module in MODULES:
        for path in sources(module):
            parts = path.split("/")
            if len(parts) > 2:
                folders[module].add(parts[1])
            with open(os.path.join(ROOT, path)) as f:
                for target in INCLUDE.findall(f.read()):
                    to = target.split("/")[0]
                    if "/" in target and to in MODULES and to != module:
                        edges[module][to] += 1
    return edges, folders


def reachable(edges, start):
    seen, todo = set(), list(edges[start])
    while todo:
        module = todo.pop()
        if module not in seen:
            seen.add(module)
            todo += edges[module]
    return seen


def reduced(edges):
    """The edges of each module that do not follow from its other edges."""
    return {m: [t for t in edges[m] if not any(t in reachable(edges, o) for o in edges[m] if o != t)] for m in MODULES}


def levels(edges):
    """A module's level: the longest chain of includes below it."""
    level = {}

    def of(module):
        if module not in level:
            level[module] = 1 + max((of(t) for t in edges[module]), default=-1)
        return level[module]

    for module in MODULES:
        of(module)
    return level


def wrapped(names, width):
    lines = [""]
    for name in names:
        longer = f"{lines[-1]} {name}".strip()
        if len(longer) > width and lines[-1]:
            lines.append(name)
        else:
            lines[-1] = longer
    return [line for line in lines if line]


def svg(edges, folders):
    level, arrows = levels(edges), reduced(edges)
    page, top, column, box = 960, 12, 160, {}
    y = top
    for n in range(max(level.values()), -1, -1):
        row = [m for m in MODULES if level[m] == n]
        text = {m: wrapped(sorted(folders[m]), COLUMNS[m][1] * column // 7 - 5) for m in row}
        height = 30 + 16 * max(len(lines) for lines in text.values())
        for m in row:
            first, span = COLUMNS[m]
            box[m] = (first * column + 10, y, span * column - 20, height, text[m])
        y += height + 40
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {page} {y - 28}" font-family="sans-serif">',
           "<title>Include graph of czero's modules</title>",
           "<style>.box{fill:#f3f5f8;stroke:#5b6675}.name{fill:#14181d;font-size:15px;font-weight:bold}"
           ".sub{fill:#46505c;font-size:12px}.arrow{stroke:#7a8694;fill:none;marker-end:url(#head)}.tip{fill:#7a8694}"
           "@media (prefers-color-scheme:dark){.box{fill:#1f252c;stroke:#8a96a4}.name{fill:#f0f3f6}.sub{fill:#b6c0cb}}</style>",
           '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
           '<path class="tip" d="M0 0L8 4L0 8z"/></marker>']
    for m in MODULES:
        x, y0, width, height, _ = box[m]
        for t in arrows[m]:
            tx, ty, twidth, _, _ = box[t]
            low, high = max(x, tx) + 14, min(x + width, tx + twidth) - 14
            from_x = min(max((low + high) / 2, x + 14), x + width - 14)
            to_x = min(max(from_x, tx + 14), tx + twidth - 14)
            mid = (y0 + height + ty) / 2
            out.append(f'<path class="arrow" d="M{from_x:.0f} {y0 + height}C{from_x:.0f} {mid:.0f} {to_x:.0f} {mid:.0f} {to_x:.0f} {ty}"/>')
    for m in MODULES:
        x, y0, width, height, lines = box[m]
        out.append(f'<rect class="box" x="{x:.0f}" y="{y0}" width="{width}" height="{height}" rx="6"/>')
        out.append(f'<text class="name" x="{x + 10:.0f}" y="{y0 + 20}">{m}</text>')
        out += [f'<text class="sub" x="{x + 10:.0f}" y="{y0 + 38 + 16 * i}">{line}</text>' for i, line in enumerate(lines)]
    return "\n".join(out + ["</svg>", ""])


def table(edges, folders):
    lines = ["| module | sub-folders | includes (number of includes) |", "|---|---|---|"]
    for m in MODULES:
        subs = ", ".join(sorted(folders[m]))
        targets = ", ".join(f"{t} {edges[m][t]}" for t in MODULES if t in edges[m])
        lines.append(f"| {m} | {subs} | {targets} |")
    return "\n".join(lines)


def main():
    edges, folders = read_graph()
    for m in MODULES:
        if m in reachable(edges, m):
            sys.exit(f"include_graph.py: {m} includes itself through other modules")
    if sys.argv[1:] != ["--write"]:
        print(table(edges, folders))
        for m, targets in reduced(edges).items():
            print(f"{m} -> {' '.join(targets)}")
        return
    with open(os.path.join(ROOT, "docs/modules.svg"), "w") as f:
        f.write(svg(edges, folders))
    page = os.path.join(ROOT, "docs/design.md")
    with open(page) as f:
        text = f.read()
    before, rest = text.split(BEGIN)
    with open(page, "w") as f:
        f.write(f"{before}{BEGIN}\n{table(edges, folders)}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
