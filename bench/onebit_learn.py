#!/usr/bin/env python3
"""Do the 1-bit optimizers learn what AdamW learns? A small GPT-2 over several ranks, the same rows in the same order.

    python3 bench/onebit_learn.py [--steps 1040] [--ranks 4] [--out docs/one_bit_learn] [--only AdamW OneBitAdam]

Trains with AdamW, OneBitAdam and ZeroOneAdam through `czero launch`, evaluates checkpoints on text that none of
them has seen, and writes OUT.csv and OUT.svg. Runs that --work already holds are not made again.
"""
import argparse
import csv
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
COLORS = {"AdamW": "#444444", "OneBitAdam": "#1f77b4", "ZeroOneAdam": "#d95f02"}


# ---- what is trained ---------------------------------------------------------------------------


def model_config(args):
    return {"model_type": "gpt2", "vocab_size": 256, "n_positions": args.seq_len, "n_embd": args.width,
            "n_layer": args.layers, "n_head": args.width // 32, "attn_pdrop": 0.0, "embd_pdrop": 0.0,
            "resid_pdrop": 0.0, "layer_norm_epsilon": 1e-5, "initializer_range": 0.02,
            "activation_function": "gelu_new", "tie_word_embeddings": True}


def optimizer_params(args, name):
    params = {"lr": args.lr, "betas": [0.9, args.beta2], "eps": args.eps, "weight_decay": args.weight_decay}
    freeze = round(args.warm_up * args.steps)
    if name == "OneBitAdam":
        params.update(freeze_step=freeze, comm_backend_name="compressed")
    if name == "ZeroOneAdam":
        params.update(var_freeze_step=freeze, var_update_scaler=args.var_update_scaler,
                      local_step_scaler=args.local_step_scaler, local_step_clipper=args.local_step_clipper,
                      comm_backend_name="compressed")
    return params


def ds_config(args, name):
    return {"train_micro_batch_size_per_gpu": args.batch, "gradient_clipping": args.clip,
            "optimizer": {"type": name, "params": optimizer_params(args, name)},
            "scheduler": {"type": "WarmupCosineLR",
                          "params": {"total_num_steps": args.steps, "warmup_num_steps": args.lr_warm_up,
                                     "cos_min_ratio": args.lr_end}},
            "bf16": {"enabled": args.precision == "bf16"},
            "zero_optimization": {"stage": args.stage}}


def split_text(args, work):
    """Every 20th block of 4 KiB is kept for validation: both halves then hold all kinds of the text."""
    with open(args.text, "rb") as f:
        text = f.read()
    blocks = [text[i:i + 4096] for i in range(0, len(text), 4096)]
    parts = {"train.txt": [b for i, b in enumerate(blocks) if i % 20 != 19],
             "validation.txt": [b for i, b in enumerate(blocks) if i % 20 == 19]}
    for name, part in parts.items():
        with open(os.path.join(work, name), "wb") as f:
            f.write(b"".join(part))


def write_json(path, value):
    with open(path, "w") as f:
        json.dump(value, f, indent=1)
    return path


# ---- the runs ----------------------------------------------------------------------------------


def launch(args, ranks, arguments, **files):
    command = [args.czero, "launch", "-n", str(ranks), "--", "train", "--tokenizer", "bytes", "--seq-len",
               str(args.seq_len), "--quiet"] + arguments
    done = subprocess.run(command, text=True, stderr=subprocess.PIPE, **files)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    return done


def eval_loss(text):
    return float(re.findall(r"^eval_loss (\S+)", text, re.M)[-1])


def evaluate(args, work, checkpoint):
    """A checkpoint's validation loss: one step at rate 0 on its weights, which changes nothing, and the loss."""
    config = {"train_micro_batch_size_per_gpu": args.batch,
              "optimizer": {"type": "AdamW", "params": {"lr": 0.0, "weight_decay": 0.0}}}
    done = launch(args, len(os.sched_getaffinity(0)),
                  ["--config", write_json(os.path.join(work, "eval.json"), config), "--model",
                   os.path.join(work, "model"), "--init", checkpoint, "--steps", "1",
                   "--data", os.path.join(work, "train.txt"), "--eval-data", os.path.join(work, "validation.txt")],
                  stdout=subprocess.PIPE)
    return eval_loss(done.stdout)


def train(args, work, name):
    """Leaves log (a JSON line per step, then the final loss) and evals.json in a folder of the optimizer's."""
    folder = os.path.join(work, name)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    saved = os.path.join(folder, "saved")
    arguments = ["--config", write_json(os.path.join(folder, "ds_config.json"), ds_config(args, name)),
                 "--model", os.path.join(work, "model"), "--init", "random", "--seed", str(args.seed),
                 "--data", os.path.join(work, "train.txt"), "--eval-data", os.path.join(work, "validation.txt"),
                 "--steps", str(args.steps), "--log-json"]
    if args.eval_every:
        arguments += ["--save", saved, "--save-interval", str(args.eval_every)]
    with open(os.path.join(folder, "log"), "w") as log:
        launch(args, args.ranks, arguments, stdout=log)
    with open(os.path.join(folder, "log")) as log:
        evals = {args.steps: eval_loss(log.read())}
    for step in range(args.eval_every, args.steps, args.eval_every) if args.eval_every else []:
        evals[step] = evaluate(args, work, os.path.join(saved, f"global_step{step}"))
    shutil.rmtree(saved, ignore_errors=True)
    write_json(os.path.join(folder, "evals.json"), evals)


def read_run(work, name):
    with open(os.path.join(work, name, "log")) as log:
        steps = [json.loads(line) for line in log if line.startswith("{")]
    with open(os.path.join(work, name, "evals.json")) as f:
        evals = {int(step): loss for step, loss in json.load(f).items()}
    return {"steps": steps, "evals": dict(sorted(evals.items()))}


# ---- what comes out ----------------------------------------------------------------------------


def rows_of(run, interval):
    """One row per interval steps: mean loss, validation loss at its end, bytes sent by rank 0 so far, seconds so far."""
    rows, sent = [], 0
    steps = run["steps"]
    for at in range(0, len(steps), interval):
        part = steps[at:at + interval]
        sent += sum(s.get("sent_bytes", 0) for s in part)
        last = part[-1]
        rows.append({"step": last["step"], "loss": sum(s["loss"] for s in part) / len(part),
                     "eval_loss": run["evals"].get(last["step"]), "sent_bytes": int(sent),
                     "seconds": last["elapsed_s"]})
    return rows


def write_csv(path, tables):
    with open(path, "w", newline="") as f:
        out = csv.writer(f, lineterminator="\n")
        out.writerow(["optimizer", "step", "loss", "eval_loss", "sent_bytes", "seconds"])
        for name, rows in tables.items():
            for r in rows:
                held_out = "" if r["eval_loss"] is None else f"{r['eval_loss']:.6f}"
                out.writerow([name, r["step"], f"{r['loss']:.4f}", held_out, r["sent_bytes"], f"{r['seconds']:.1f}"])


class Panel:
    """One plot: a frame, ticks, and lines in data coordinates."""

    def __init__(self, left, title, x_label, x_range, y_range, log=False):
        self.left, self.top, self.width, self.height = left, 40, 380, 260
        self.x_range, self.y_range, self.log = x_range, y_range, log
        self.parts = [f'<rect x="{left}" y="{self.top}" width="{self.width}" height="{self.height}" '
                      'fill="none" stroke="#999"/>',
                      f'<text x="{left}" y="{self.top - 12}" font-weight="bold">{title}</text>',
                      f'<text x="{left + self.width / 2}" y="{self.top + self.height + 38}" '
                      f'text-anchor="middle">{x_label}</text>']

    def at(self, x, y):
        (x0, x1), (y0, y1) = self.x_range, self.y_range
        share = math.log(x / x0) / math.log(x1 / x0) if self.log else (x - x0) / (x1 - x0)
        share_y = (min(max(y, y0), y1) - y0) / (y1 - y0)
        return self.left + share * self.width, self.top + (1 - share_y) * self.height

    def ticks(self, xs, ys, x_text):
        for x in xs:
            px, _ = self.at(x, self.y_range[0])
            self.parts.append(f'<text x="{px:.1f}" y="{self.top + self.height + 17}" '
                              f'text-anchor="middle">{x_text(x)}</text>')
        for y in ys:
            _, py = self.at(self.x_range[0], y)
            self.parts.append(f'<line x1="{self.left}" x2="{self.left + self.width}" y1="{py:.1f}" y2="{py:.1f}" '
                              'stroke="#e5e5e5"/>')
            self.parts.append(f'<text x="{self.left - 6}" y="{py + 4:.1f}" text-anchor="end">{y:g}</text>')

    def line(self, points, color, width, dots=False):
        places = [self.at(x, y) for x, y in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="{width}" '
                          f'stroke-opacity="{1 if dots else 0.35}"/>')
        if dots:
            self.parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{color}"/>' for x, y in places]


def evals_of(rows):
    return [r for r in rows if r["eval_loss"] is not None]


def loss_range(tables):
    losses = [r["eval_loss"] for rows in tables.values() for r in evals_of(rows)]
    return math.floor(min(losses) * 10 - 1) / 10, math.ceil(max(losses) * 10 + 1) / 10


def loss_ticks(low, high):
    step = 0.1 if high - low < 0.8 else 0.2 if high - low < 1.6 else 0.5
    return [round(n * step, 1) for n in range(math.ceil(low / step), math.floor(high / step) + 1)]


def step_panel(tables):
    low, high = loss_range(tables)
    last = max(rows[-1]["step"] for rows in tables.values())
    panel = Panel(60, "loss by step (validation: dots)", "step", (0, last), (low, high))
    panel.ticks(range(0, last + 1, max(100, round(last / 600) * 100)), loss_ticks(low, high), str)
    for name, rows in tables.items():
        panel.line([(r["step"], r["loss"]) for r in rows], COLORS[name], 1)
    for name, rows in tables.items():
        panel.line([(r["step"], r["eval_loss"]) for r in evals_of(rows)], COLORS[name], 1.5, dots=True)
    return panel.parts


def bytes_panel(tables):
    sent = [r["sent_bytes"] / 1e6 for rows in tables.values() for r in evals_of(rows) if r["sent_bytes"] > 0]
    if not sent:
        return []
    low, high = loss_range(tables)
    x_range = min(sent) / 1.5, max(sent) * 1.5
    panel = Panel(500, "validation loss by megabytes that a rank has sent", "MB (logarithmic)", x_range, (low, high), True)
    marks = [m * 10 ** n for n in range(10) for m in (1, 2, 5) if x_range[0] <= m * 10 ** n <= x_range[1]]
    panel.ticks(marks, loss_ticks(low, high), lambda x: f"{x:,}")
    for name, rows in tables.items():
        panel.line([(r["sent_bytes"] / 1e6, r["eval_loss"]) for r in evals_of(rows)], COLORS[name], 1.5, dots=True)
    return panel.parts


def legend(tables):
    parts = []
    for i, name in enumerate(tables):
        parts.append(f'<rect x="{330}" y="{54 + 18 * i}" width="12" height="3" fill="{COLORS[name]}"/>')
        parts.append(f'<text x="{348}" y="{60 + 18 * i}">{name}</text>')
    return parts


def write_svg(path, tables):
    parts = step_panel(tables) + bytes_panel(tables) + legend(tables)
    with open(path, "w") as f:
        f.write('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 350" font-family="sans-serif" '
                'font-size="12">\n<rect width="900" height="350" fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n")


def print_summary(args, runs):
    final = {name: run["evals"][args.steps] for name, run in runs.items()}
    for name, run in runs.items():
        sent = sum(s.get("sent_bytes", 0) for s in run["steps"])
        line = f"{name}: validation loss {final[name]:.6f}"
        if "AdamW" in final and name != "AdamW":
            line += f" ({100 * (final[name] / final['AdamW'] - 1):+.2f} % of AdamW's)"
        print(f"{line}, {sent:.0f} bytes sent by rank 0, {run['steps'][-1]['elapsed_s']:.0f} s")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--czero", default=os.path.join(ROOT, "build", "czero"))
    parser.add_argument("--text", default=os.path.join(ROOT, "examples", "data", "fortunes.txt"))
    parser.add_argument("--out", default=os.path.join(ROOT, "docs", "one_bit_learn"))
    parser.add_argument("--work", help="folder for the runs, kept (default: a temporary one)")
    parser.add_argument("--only", nargs="*", default=list(COLORS), choices=list(COLORS))
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=1040)
    parser.add_argument("--eval-every", type=int, default=160, help="steps; 0: at the end only")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--seq-len", type=int, default=64)
    parser.add_argument("--batch", type=int, default=2, help="rows per rank")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--stage", type=int, default=0)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--lr-warm-up", type=int, default=60, help="steps of rising rate")
    parser.add_argument("--lr-end", type=float, default=0.05, help="of the rate, where the cosine ends")
    parser.add_argument("--beta2", type=float, default=0.98)
    parser.add_argument("--eps", type=float, default=1e-6)
    parser.add_argument("--weight-decay", type=float, default=0.01)
    parser.add_argument("--clip", type=float, default=5.0)
    parser.add_argument("--warm-up", type=float, default=0.15, help="share of the steps before the variance freezes")
    parser.add_argument("--var-update-scaler", type=int, default=160)
    parser.add_argument("--local-step-scaler", type=int, default=512)
    parser.add_argument("--local-step-clipper", type=int, default=4)
    return parser.parse_args()


def main():
    args = parse_arguments()
    with tempfile.TemporaryDirectory() as temporary:
        work = args.work or temporary
        os.makedirs(os.path.join(work, "model"), exist_ok=True)
        write_json(os.path.join(work, "model", "config.json"), model_config(args))
        split_text(args, work)
        for name in args.only:
            if not os.path.exists(os.path.join(work, name, "evals.json")):
                train(args, work, name)
        runs = {name: read_run(work, name) for name in args.only}
    tables = {name: rows_of(run, min(20, args.eval_every or 20)) for name, run in runs.items()}
    write_csv(args.out + ".csv", tables)
    write_svg(args.out + ".svg", tables)
    print_summary(args, runs)


if __name__ == "__main__":
    main()
