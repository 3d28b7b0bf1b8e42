#!/usr/bin/env python3
"""Golden training curves: gpt2-tiny trained by DeepSpeed itself, on CPU, on one to four ranks.

  curves.py make   [NAME...]   train the runs of runs.py, write curves/dense/ of the fixtures
  curves.py check  [NAME...]   train them again and compare with the files there
  curves.py replay [NAME...]   train the runs of fixtures/runs that 0.19.8 made again and compare

Run with the python that scripts/peers.sh prints. Every rank of every run trains in a child of its
own, because an engine of DeepSpeed leaves process-wide state behind; ranks use gloo.
"""
import argparse
import csv
import json
import math
import multiprocessing
import os
import pathlib
import sys
import tempfile

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from fixtures import FIXTURES, ROOT

HERE = pathlib.Path(__file__).resolve().parent
GOLDEN = FIXTURES / "curves" / "dense"
COLUMNS = ["step", "loss", "lr_next", "grad_norm", "loss_scale"]
FP16_MAX = 65504.0
ONEBIT = ("onebitadam", "onebitlamb", "zerooneadam")
sys.dont_write_bytecode = True


def quiet_peers():
    """The environment DeepSpeed reads when it is imported and when it starts its process group."""
    os.environ.update(DS_ACCELERATOR="cpu", MASTER_ADDR="127.0.0.1", TOKENIZERS_PARALLELISM="false",
                      OMP_NUM_THREADS="1")


def allow_fp16():
    """DeepSpeed refuses fp16 on a CPU whose matrix units lack it; PyTorch computes it all the same."""
    from deepspeed.accelerator import get_accelerator
    get_accelerator().is_fp16_supported = lambda: True


def nudge(model, relative):
    """Move every weight by up to `relative` of itself: what another order of rounding would do."""
    import torch
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1 + relative * (2 * torch.rand(p.shape) - 1))


def load_model(folder, freeze):
    import torch
    import transformers
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager",
                                                         dtype=torch.float32)
    for name, p in model.named_parameters():
        if freeze and freeze in name:
            p.requires_grad_(False)
    return model


def param_groups(model, groups):
    """What deepspeed.initialize() takes as model_parameters; "hf": vectors do not decay."""
    trainable = [p for p in model.parameters() if p.requires_grad]
    if groups != "hf":
        return trainable
    return [{"params": [p for p in trainable if p.dim() > 1]},
            {"params": [p for p in trainable if p.dim() <= 1], "weight_decay": 0.0}]


def micro_batch(tokens, row, micro, seq):
    """Rows row .. row+micro-1; row k is tokens [k*seq, k*seq + seq], targets shifted by one."""
    import torch
    rows = torch.stack([tokens[k * seq:k * seq + seq + 1] for k in range(row, row + micro)])
    return rows[:, :-1], rows[:, 1:]


def token_loss(model, inputs, targets):
    import torch
    logits = model(input_ids=inputs, use_cache=False).logits.float()
    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))


class OverflowWatch:
    """How far every step's largest fp16 gradient is from 65504, from an fp32 twin of the weights.

    A run is only worth replaying when no step sits on that edge: another implementation rounds
    differently and would skip another step.
    """
    def __init__(self, folder, freeze):
        self.twin = load_model(folder, freeze)

    def largest_gradient(self, model, batches):
        import torch
        import deepspeed
        with torch.no_grad(), deepspeed.zero.GatheredParameters(list(model.parameters())):
            for mine, theirs in zip(self.twin.parameters(), model.parameters()):
                mine.copy_(theirs.float())
        for p in self.twin.parameters():
            p.grad = None
        for inputs, targets in batches:
            (token_loss(self.twin, inputs, targets) / len(batches)).backward()
        return max(p.grad.abs().max().item() for p in self.twin.parameters() if p.grad is not None)


def loss_scale_of(engine):
    optimizer = engine.optimizer
    for holder in (getattr(optimizer, "loss_scale_config", None), optimizer):
        for name in ("cur_scale", "loss_scale"):
            if getattr(holder, name, None) is not None:
                return float(getattr(holder, name))
    return 1.0


def train(rank, world, config, steps, seq, freeze, groups, model_dir, text, watch_overflow, nudged=0.0):
    """This rank's rows of the curve; for an fp16 run also each step's largest gradient as a part of 65504."""
    import torch
    import deepspeed
    torch.manual_seed(0)
    allow_fp16()
    model = load_model(model_dir, freeze)
    if nudged:
        nudge(model, nudged)
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=param_groups(model, groups), config=config)
    micro = engine.train_micro_batch_size_per_gpu()
    gas = engine.gradient_accumulation_steps()
    nbytes = steps * gas * world * micro * seq + 1
    tokens = torch.tensor(list(pathlib.Path(text).read_bytes()[:nbytes]), dtype=torch.long)
    watch = OverflowWatch(model_dir, freeze) if watch_overflow else None
    rows, loads = [], []
    engine.train()
    for step in range(steps):
        batches = [micro_batch(tokens, ((step * gas + g) * world + rank) * micro, micro, seq) for g in range(gas)]
        if watch:
            loads.append(loss_scale_of(engine) * watch.largest_gradient(engine.module, batches) / FP16_MAX)
        losses = []
        for inputs, targets in batches:
            loss = token_loss(engine, inputs, targets)
            losses.append(loss.item())
            engine.backward(loss)
            engine.step()
        norm = engine.get_global_grad_norm()
        rows.append((sum(losses) / gas, engine.get_lr()[0], math.nan if norm is None else float(norm),
                     loss_scale_of(engine)))
    return rows, loads


def child(pipe, port, rank, world, work, arguments):
    """In the forked child: work in an empty folder, send back the result or the failure."""
    try:
        os.environ.update(MASTER_PORT=str(port), RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
        with tempfile.TemporaryDirectory() as scratch:
            os.chdir(scratch)
            silence = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silence, 1)
            os.dup2(silence, 2)
            pipe.send(("ok", work(rank, world, **arguments)))
    except BaseException as failure:  # the parent reports it
        pipe.send(("failed", f"{type(failure).__name__}: {failure}"))
    finally:
        pipe.close()
        sys.stdout.flush()
        os._exit(0)


def free_port():
    import socket
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def gather(ranks):
    """Rows of the whole world: the loss is the ranks' mean, all else is the same on every rank."""
    rows = []
    for step, each in enumerate(zip(*(rows for rows, _ in ranks)), 1):
        for name, column in zip(COLUMNS[2:], list(zip(*each))[1:]):
            if len({repr(value) for value in column}) > 1:
                print(f"    step {step}: ranks differ in {name}: {column}")
        _, lr, norm, scale = each[0]
        loss = sum(row[0] for row in each) / len(each)
        rows.append([step, f"{loss:.7f}", f"{lr:.10g}", "nan" if math.isnan(norm) else f"{norm:.6f}", f"{scale:.10g}"])
    return rows, [max(loads) for loads in zip(*(loads for _, loads in ranks))]


def run_apart(world, work, **arguments):
    """work(rank, world, **arguments) on every rank, each in a child; their results by rank."""
    fork = multiprocessing.get_context("fork")
    port, ranks = free_port(), []
    for rank in range(world):
        mine, theirs = fork.Pipe()
        process = fork.Process(target=child, args=(theirs, port, rank, world, work, arguments))
        process.start()
        theirs.close()
        ranks.append((process, mine))
    results, failure = [], None
    for _, pipe in ranks:
        try:
            verdict, result = pipe.recv()
        except EOFError:
            verdict, result = "failed", "a training process died"
        if verdict != "ok":
            failure = result
            break
        results.append(result)
    for process, _ in ranks:
        if failure:
            process.terminate()
        process.join()
    if failure:
        raise RuntimeError(failure)
    return results


def train_apart(world, **arguments):
    return gather(run_apart(world, train, **arguments))


def write_curve(path, rows):
    with open(path, "w", newline="") as f:
        out = csv.writer(f, lineterminator="\n")
        out.writerow(COLUMNS)
        out.writerows(rows)


def read_curve(path):
    with open(path, newline="") as f:
        return list(csv.DictReader(f))


def same(a, b, tolerance):
    a, b = float(a), float(b)
    return a == b or (math.isnan(a) and math.isnan(b)) or abs(a - b) <= tolerance


def compare(rows, golden):
    """Worst loss difference, and what does not agree: loss 1e-6, lr and scale 1e-9 relative."""
    if len(rows) != len(golden):
        return math.inf, [f"{len(rows)} steps against {len(golden)}"]
    worst, wrong = 0.0, []
    for row, want in zip(rows, golden):
        got = dict(zip(COLUMNS, row))
        worst = max(worst, abs(float(got["loss"]) - float(want["loss"])))
        limits = {"loss": 1e-6, "grad_norm": 1e-4,
                  "lr_next": 1e-9 * abs(float(want["lr_next"])),
                  "loss_scale": 1e-9 * float(want["loss_scale"])}
        wrong += [f"step {got['step']} {key}: {got[key]} against {want[key]}"
                  for key, limit in limits.items() if not same(got[key], want[key], limit)]
    return worst, wrong


def report_loads(config, rows, loads):
    """What an fp16 run exercises, and whether another implementation must take the same decisions."""
    skipped = [r[0] for r in rows if r[3] == "inf"]
    grown = [after[0] for before, after in zip(rows, rows[1:]) if float(after[4]) > float(before[4])]
    edge = min(loads, key=lambda x: abs(math.log(x)))
    print(f"    skipped steps {skipped}, growth at {grown}, nearest to the fp16 limit: {edge:.3g} of it")
    if 0.9 < edge < 1.1:
        print("    EDGE: another rounding may skip other steps; loads", *(f"{x:.2f}" for x in loads))
    if skipped != [step for step, load in enumerate(loads, 1) if load > 1]:
        print("    ODD: skipped steps are not those whose gradient is too large")
    clip = config.get("gradient_clipping", 1.0)
    bare = [step for step in grown if clip == 0 or float(rows[step - 1][3]) / 2 < clip]
    if bare:
        print(f"    DeepSpeed's halved gradient shows at steps {bare}")


def run_arguments(config, run):
    return dict(world=run["world"], config=config, steps=run["steps"], seq=run["seq"], freeze=run["freeze"],
                groups=run.get("groups", ""), model_dir=str(FIXTURES / "models" / "gpt2-tiny"),
                text=str(FIXTURES / "text" / "fortunes.txt"),
                watch_overflow=bool(config.get("fp16", {}).get("enabled")))


def sensitivity(config, arguments, rows):
    """Worst change of a loss when the initial weights move by half a rounding step.

    Infinite when a step is skipped in one run and not in the other.
    """
    half_step = 2**-9 if config.get("bf16", {}).get("enabled") else 2**-12 if config.get("fp16", {}).get("enabled") \
        else 2**-24
    nudged, _ = train_apart(**{**arguments, "watch_overflow": False}, nudged=half_step)
    if [r[4] for r in rows] != [r[4] for r in nudged]:
        return math.inf
    return max(abs(float(a[1]) - float(b[1])) for a, b in zip(rows, nudged))


def golden_pass(names, write):
    sys.path.insert(0, str(HERE))
    from runs import RUNS
    GOLDEN.mkdir(parents=True, exist_ok=True)
    failed = []
    for run in RUNS:
        name = run["name"]
        if names and name not in names:
            continue
        arguments = run_arguments(run["config"], run)
        try:
            rows, loads = train_apart(**arguments)
        except RuntimeError as failure:
            print(f"{name}: DeepSpeed fails: {failure}")
            failed.append(name)
            continue
        print(f"{name}: loss {rows[0][1]} to {rows[-1][1]}, norm {rows[-1][3]}, scale {rows[-1][4]}")
        if loads:
            report_loads(run["config"], rows, loads)
        if write:
            change = sensitivity(run["config"], arguments, rows)
            print(f"    half a rounding step in the initial weights moves a loss by at most {change:.2g}")
            (GOLDEN / name).mkdir(exist_ok=True)
            write_curve(GOLDEN / name / "curve.csv", rows)
            (GOLDEN / name / "ds_config.json").write_text(json.dumps(run["config"], indent=1) + "\n")
            continue
        worst, wrong = compare(rows, read_curve(GOLDEN / name / "curve.csv"))
        print(f"    worst loss difference {worst:.2g}", *wrong[:3], sep="\n    ")
        if wrong:
            failed.append(name)
    if write:
        with open(GOLDEN / "runs.csv", "w", newline="") as f:
            out = csv.writer(f, lineterminator="\n")
            out.writerow(["name", "world", "steps", "seq", "freeze", "groups"])
            out.writerows([r["name"], r["world"], r["steps"], r["seq"], r["freeze"], r["groups"]] for r in RUNS
                          if (GOLDEN / r["name"]).exists())
    return failed


def replay_pass(names):
    failed = []
    for folder in sorted((FIXTURES / "runs").iterdir()):
        run = json.loads((folder / "run.json").read_text())
        config = json.loads((folder / "ds_config.json").read_text())
        by_another_version = "deepspeed" in run or config["optimizer"]["type"].lower() in ONEBIT
        if by_another_version or (names and folder.name not in names):
            continue
        rows, _ = train_apart(**run_arguments(config, run))
        worst, wrong = compare(rows, read_curve(folder / "curve.csv"))
        print(f"{folder.name}: worst loss difference {worst:.2g}", *wrong[:3], sep="\n    ")
        if wrong:
            failed.append(folder.name)
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["make", "check", "replay"])
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    quiet_peers()
    import torch
    torch.set_num_threads(1)
    import deepspeed  # noqa: F401  imported once here, so that the children start at once
    import transformers  # noqa: F401
    failed = replay_pass(args.names) if args.what == "replay" else golden_pass(args.names, args.what == "make")
    if failed:
        sys.exit("failed: " + " ".join(failed))


if __name__ == "__main__":
    main()
