#!/usr/bin/env python3
"""What scripts/gpu_check.sh knows about results: one row per step or figure, tables from rows.

    gpu_report.py row --stage S --what W --goal G --code N --seconds N --log FILE     → rows (TSV)
    gpu_report.py table --rows FILE --out DIR [--machine WORDS]
                                                         → DIR/report.md, DIR/report.json, the table in brief on stdout
    gpu_report.py curve HAVE.csv WANT.csv LOSS_TOLERANCE → "result: …", exit 1 where they differ
    gpu_report.py run DIR                                → world, steps, seq, accumulation, stage of a recorded run
    gpu_report.py worst                                  → "result: …" from what `czero verify` prints

A log's last "result: …" is a row's result, its last "skipped: …" (with exit code 77) the reason. Lines
{"figure": …} become rows of their own (bench/gpu/gpu_common.py says what is in them). Steps that run side by side append
to the same file: what is written for one is one write.
"""
import argparse
import csv
import json
import math
import os
import re
import sys

CALLS_SHOWN = 12  # of a training step, in the brief table
COLUMNS = ["stage", "what", "result", "goal", "ratio", "status", "reason", "seconds", "step"]
STAGES = ["build", "agree", "large", "oracle", "memory", "bench", "profile", "train", "largest", "sanitize"]


def clean(text):
    return re.sub(r"\s+", " ", str(text)).strip()


def read_log(path):
    try:
        with open(path, errors="replace") as f:
            return f.read().splitlines()
    except OSError:
        return []


def last_with(lines, prefix):
    found = [line[len(prefix):] for line in lines if line.startswith(prefix)]
    return found[-1] if found else ""


def figures(lines):
    found = []
    for line in lines:
        if line.startswith('{"figure"'):
            try:
                found.append(json.loads(line))
            except ValueError:  # cut off where its program was ended
                name = re.match(r'\{"figure": "([^"]*)', line)
                found.append({"figure": name.group(1) if name else "?", "skipped": f"not to be read: {line[-80:]}"})
    return found


def number(x):
    return "" if x is None else f"{x:.3g}" if not abs(x) >= 1000 else f"{x:,.0f}"


def figure_row(stage, f, simulated, seconds):
    """A ratio at least (or at most, for "goal_max") the goal passes; without a goal it is told. "pass" is
    for those that compare by themselves."""
    ratio, goal, goal_max = f.get("ratio"), f.get("goal"), f.get("goal_max")
    goal_text = f"≥ {goal:g}" if goal is not None else f"≤ {goal_max:g}" if goal_max is not None else ""
    goal_text = clean(f"{goal_text} {f.get('goal_of', '')}")
    result = clean(f"{number(f.get('value'))} {f.get('unit', '')}")
    if "skipped" in f:
        return [stage, f["figure"], "", goal_text, "", "skipped", f["skipped"], seconds]
    status = "told"
    if simulated:
        status = "ran"
    elif "pass" in f:
        status = "pass" if f["pass"] else "fail"
    elif ratio is not None and goal is not None:
        status = "pass" if ratio >= goal else "fail"
    elif ratio is not None and goal_max is not None:
        status = "pass" if ratio <= goal_max else "fail"
    return [stage, f["figure"], result, goal_text, number(ratio), status, f.get("note", ""), seconds]


def reason_of(code, lines, limit):
    if code in (124, 137):
        cases = [line for line in lines if re.match(r"(not )?ok \d+ ", line)]
        return f"no end after {limit} s" + (f"; the last case that ended: {cases[-1]}" if cases else "")
    words = [line for line in lines if line.strip() and not line.startswith(("result: ", '{"figure"'))]
    # Check's programs say first what failed; others say it last
    failures = [line for line in words if re.search(r":[FE]:|FAILED|: error:|=== +(Invalid|Error|Misaligned)|ERROR SUMMARY", line)]
    return f"exit {code}: " + (failures[0] if failures else words[-1] if words else "said nothing")


def command_row(args):
    lines = read_log(args.log)
    found = figures(lines)
    rows = [figure_row(args.stage, f, args.simulated, args.seconds) for f in found]
    if args.stage == "memory":  # figures of several runs have the same names
        for row in rows:
            row[1] = f"{args.what}: {row[1]}"
    variant = args.what.partition(", ")[2] if args.what.startswith(("a training step", "attention, ")) else ""
    for row in rows if variant else []:  # nor are these one figure
        row[1] += f", {variant}"
    result = last_with(lines, "result: ")
    if not result:  # Check's summary
        counts = [re.match(r"(\d+)%: Checks: (\d+)", line) for line in lines]
        result = next((f"{m.group(2)} cases, {m.group(1)} %" for m in counts if m), "")
    if args.code == 77:
        reason = last_with(lines, "skipped: ") or (lines[-1] if lines else "")
        rows.append([args.stage, args.what, "", args.goal, "", "skipped", reason, args.seconds])
    elif args.code != 0:
        rows.append([args.stage, args.what, result, args.goal, "", "fail",
                     reason_of(args.code, lines, args.limit), args.seconds])
    elif not found:
        rows.append([args.stage, args.what, result, args.goal, "", "pass", "", args.seconds])
    text = "".join("\t".join(clean(cell)[:300] for cell in [*row, args.what]) + "\n" for row in rows)
    os.write(sys.stdout.fileno(), text.encode())


def read_rows(path):
    rows = []
    with open(path, errors="replace") as f:
        for line in f:
            cells = line.rstrip("\n").split("\t")
            if len(cells) != len(COLUMNS):
                cells = ["", clean(line)[:80], "", "", "", "fail", "a row that cannot be read", "0", ""]
            rows.append(dict(zip(COLUMNS, cells)))
    place = {stage: i for i, stage in enumerate(STAGES)}
    beside = {"agree", "train"}  # started side by side: rows come in the order in which they end
    rows.sort(key=lambda r: (place.get(r["stage"], 99), r["what"] if r["stage"] in beside else ""))
    return rows


def markdown(rows, machine, shown):
    cell = lambda text: text.replace("|", "\\|")
    counts = {}
    for r in rows:
        counts[r["status"]] = counts.get(r["status"], 0) + 1
    total = ", ".join(f"{n} {status}" for status, n in sorted(counts.items()))
    lines = [f"On {machine}. {total or 'Nothing was run'}.", "",
             "| stage | what | result | goal | ratio | | why |", "|---|---|---|---|---|---|---|"]
    for r in shown:
        lines.append("| " + " | ".join(cell(r[c]) for c in ["stage", "what", "result", "goal", "ratio", "status", "reason"]) + " |")
    return "\n".join(lines) + "\n"


def brief(rows):
    """For a terminal, or for readers of only the end of a long output: where a stage has many steps those that passed,
    or were skipped for the same reason, are a number; of a training step's calls the first, which take longest, are
    shown; what failed comes last, once more."""
    kept, folded, n_calls = [], {}, {}
    for r in rows:
        if r["what"].startswith("step: ") and not r["what"].startswith("step: model"):
            n_calls[r["step"]] = n_calls.get(r["step"], 0) + 1
            if n_calls[r["step"]] > CALLS_SHOWN:
                continue
        is_one_of_many = r["stage"] in ("agree", "oracle", "train", "sanitize") and r["status"] in ("pass", "skipped")
        if not is_one_of_many:
            kept.append(r)
        else:
            folded.setdefault((r["stage"], r["status"], r["reason"]), []).append(r)
    for (stage, status, reason), same in folded.items():
        others = {"stage": stage, "what": f"{len(same)} others", "status": status, "reason": reason}
        kept.append(same[0] if len(same) == 1 else dict.fromkeys(COLUMNS, "") | others)
    place = {stage: i for i, stage in enumerate(STAGES)}
    kept.sort(key=lambda r: place.get(r["stage"], 99))
    failed = [f"failed: {r['stage']}: {r['what']}: {r['result']} {r['reason']}".rstrip() + "\n" for r in rows
              if r["status"] == "fail"]
    return kept, "".join(failed)


def table(args):
    rows = read_rows(args.rows)
    machine = "the simulated device: nothing here is a measurement" if args.simulated else args.machine or "an unknown machine"
    os.makedirs(args.out, exist_ok=True)
    with open(os.path.join(args.out, "report.md"), "w") as f:
        f.write(markdown(rows, machine, rows))
    with open(os.path.join(args.out, "report.json"), "w") as f:
        json.dump({"machine": machine, "simulated": args.simulated, "rows": rows}, f, indent=1, ensure_ascii=False)
        f.write("\n")
    shown, failed = brief(rows)
    sys.stdout.write(markdown(rows, machine, shown) + failed)
    return 1 if any(r["status"] == "fail" for r in rows) else 0


def near(have, want, tolerance):
    return (math.isnan(have) and math.isnan(want)) or have == want or abs(have - want) <= tolerance


def curve(args):
    have, want = ([dict((k, float(v)) for k, v in row.items()) for row in csv.DictReader(open(path))]
                  for path in (args.have, args.want))
    if len(have) != len(want):
        print(f"{len(have)} steps, not {len(want)}")
        return 1
    worst, wrong = 0.0, ""
    for h, w in zip(have, want):
        step = f"step {int(w['step'])}"
        worst = max(worst, abs(h["loss"] - w["loss"]))
        if not near(h["loss"], w["loss"], args.tolerance):
            wrong = wrong or f"{step}: loss {h['loss']:.7g}, not {w['loss']:.7g}"
        if not near(h["lr_next"], w["lr_next"], 1e-9 * abs(w["lr_next"])):
            wrong = wrong or f"{step}: lr {h['lr_next']:.9g}, not {w['lr_next']:.9g}"
        if h["loss_scale"] != w["loss_scale"]:
            wrong = wrong or f"{step}: loss scale {h['loss_scale']:g}, not {w['loss_scale']:g}"
    print(f"result: loss within {worst:.2g} (at most {args.tolerance:g}) over {len(want)} steps")
    if wrong:
        print(wrong)
    return 1 if wrong else 0


def run(args):
    with open(os.path.join(args.dir, "run.json")) as f:
        r = json.load(f)
    with open(os.path.join(args.dir, "ds_config.json")) as f:
        c = json.load(f)
    print(r["world"], r["steps"], r["seq"], c.get("gradient_accumulation_steps", 1),
          c.get("zero_optimization", {}).get("stage", 0))


def worst(_):
    """`czero verify` prints a relative error at the end of each line."""
    found = [float(x) for line in sys.stdin for x in re.findall(r"(?<![\w.])\d\.\d+e[-+]\d+", line)]
    if found:
        print(f"result: {max(found):.2g}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    p = commands.add_parser("row")
    p.set_defaults(run=command_row)
    for name in ["--stage", "--what", "--goal", "--log"]:
        p.add_argument(name, default="")
    for name in ["--code", "--seconds", "--limit"]:
        p.add_argument(name, type=int, default=0)
    p.add_argument("--simulated", action="store_true")
    p = commands.add_parser("table")
    p.set_defaults(run=table)
    p.add_argument("--machine", default="")
    p.add_argument("--rows", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--simulated", action="store_true")
    p = commands.add_parser("curve")
    p.set_defaults(run=curve)
    p.add_argument("have")
    p.add_argument("want")
    p.add_argument("tolerance", type=float)
    p = commands.add_parser("run")
    p.set_defaults(run=run)
    p.add_argument("dir")
    commands.add_parser("worst").set_defaults(run=worst)
    args = parser.parse_args()
    sys.exit(args.run(args) or 0)


if __name__ == "__main__":
    main()
