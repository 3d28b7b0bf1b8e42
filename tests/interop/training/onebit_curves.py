#!/usr/bin/env python3
"""Training curves of the 1-bit family: gpt2-tiny under DeepSpeed 0.16.9 and under our own replay.

  onebit_curves.py fixtures [NAME...]   repeat the recorded runs with DeepSpeed and with the replay
  onebit_curves.py make     [NAME...]   train the runs of onebit_runs.py, write curves/onebit/ of the fixtures
  onebit_curves.py check    [NAME...]   train them again both ways and compare with the files there
  onebit_curves.py bf16                 what DeepSpeed does with a 1-bit optimizer in bf16

Run with the python that `scripts/peers.sh --onebit` prints.
"""
import argparse
import csv
import json
import math
import pathlib
import sys

import curves

HERE = pathlib.Path(__file__).resolve().parent
GOLDEN = curves.FIXTURES / "curves" / "onebit"
RECORDED = ("s0-onebitadam", "s0-onebitadam-dp4", "s0-zerooneadam", "s0-onebitlamb", "s0-lamb-warmup-only")
# Losses may differ by this much before the variance is frozen, and after it.
TOLERANCES = {"fp32": (5e-4, 5e-3), "bf16": (2e-2, 2e-2), "fp16": (2e-2, 2e-2)}


class Packbits:
    """What DeepSpeed's "compressed" back end wants of an op that its CPU accelerator lacks.

    Signs as bytes: the bit of a value >= 0 is 1, the first value in the most significant bit.
    """
    def load(self):
        return self

    @staticmethod
    def packbits(values, numel, rank):
        import numpy
        import torch
        return torch.from_numpy(numpy.packbits(values.numpy()[:numel] >= 0))

    @staticmethod
    def unpackbits(signs, nbytes, rank):
        import numpy
        import torch
        bits = numpy.unpackbits(signs.numpy()[:nbytes]).astype(numpy.float32)
        return torch.from_numpy(2 * bits - 1)


def shaped(all_gather):
    """all_gather for scalars into tensors of one element, which gloo no longer takes."""
    def gather(parts, part, **more):
        return all_gather(parts, part.reshape(parts[0].shape), **more)
    return gather


def prepare():
    """Import the peers once, so that the children start at once, and give DeepSpeed what it lacks."""
    curves.quiet_peers()
    import torch
    torch.set_num_threads(1)
    import deepspeed.ops.op_builder
    if not deepspeed.__version__.startswith("0.16."):
        sys.exit("needs the python of scripts/peers.sh --onebit: later versions have no 1-bit optimizers")
    deepspeed.ops.op_builder.PackbitsBuilder = Packbits
    deepspeed.comm.all_gather = shaped(deepspeed.comm.all_gather)
    from deepspeed.runtime.fp16 import fused_optimizer, unfused_optimizer
    grow_later(fused_optimizer.FP16_Optimizer)
    grow_later(unfused_optimizer.FP16_UnfusedOptimizer)
    import transformers  # noqa: F401


# ---- DeepSpeed -----------------------------------------------------------------------------------


def grow_later(wrapper):
    """Let an fp16 wrapper double its scale after the step: it would unscale with the new one."""
    update, take = wrapper._update_scale, wrapper.step

    def update_scale(self, skip):
        self.czero_clean = not skip
        if skip:
            update(self, True)

    def step(self, closure=None):
        self.czero_clean = False
        result = take(self, closure)
        if self.czero_clean:
            update(self, False)
        return result

    wrapper._update_scale, wrapper.step = update_scale, step


def norm_of(engine, scale):
    """This rank's gradient norm without the loss scale, which the wrapper of Lamb leaves in."""
    norm = engine.get_global_grad_norm()
    if norm is None:
        return math.nan
    return float(norm) / (scale if type(engine.optimizer).__name__ == "FP16_UnfusedOptimizer" else 1.0)


def train(rank, world, config, steps, seq, freeze, groups, nudged=0.0, divide=True):
    """This rank's rows of the curve under DeepSpeed.

    divide: where DeepSpeed forgets to divide the loss by the accumulation steps (as soon as it no
    longer reduces gradients in backward), do it here.
    """
    import torch
    import deepspeed
    torch.manual_seed(0)
    curves.allow_fp16()
    model = curves.load_model(str(curves.FIXTURES / "models" / "gpt2-tiny"), freeze)
    if nudged:
        curves.nudge(model, nudged)
    flat = groups == "masked" and precision(config) != "fp32" and config["optimizer"]["type"] != "OneBitLamb"
    trained = parameters(model, "" if flat else groups, seq)
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=trained, config=config)
    if flat:
        mask_flat(engine, seq)
    micro, gas = engine.train_micro_batch_size_per_gpu(), engine.gradient_accumulation_steps()
    tokens = text_tokens(steps * gas * world * micro * seq + 1)
    rows = []
    engine.train()
    for step in range(steps):
        losses, scale = [], curves.loss_scale_of(engine)
        for g in range(gas):
            inputs, targets = curves.micro_batch(tokens, ((step * gas + g) * world + rank) * micro, micro, seq)
            loss = curves.token_loss(engine, inputs, targets)
            losses.append(loss.item())
            forgets = divide and not engine.enable_backward_allreduce
            engine.backward(loss / gas if forgets else loss)
            engine.step()
        norm = math.inf if getattr(engine.optimizer, "overflow", False) else norm_of(engine, scale)
        rows.append((sum(losses) / gas, engine.get_lr()[0], norm, curves.loss_scale_of(engine)))
    return rows


def text_tokens(n):
    import torch
    return torch.tensor(list((curves.FIXTURES / "text" / "fortunes.txt").read_bytes()[:n]), dtype=torch.long)


def position_mask(p, seq):
    import torch
    mask = torch.zeros_like(p, dtype=torch.float32)
    mask[:seq] = 1
    return mask


def parameters(model, groups, seq):
    """deepspeed.initialize()'s model_parameters. "masked": a group per parameter, because a mask is a group's."""
    if groups != "masked":
        return curves.param_groups(model, groups)
    return [{"params": [p], **({"exp_avg_mask": position_mask(p, seq)} if name.endswith("wpe.weight") else {})}
            for name, p in model.named_parameters()]


def mask_flat(engine, seq):
    """The same mask for the fused wrapper, whose groups are one flat parameter each."""
    import torch
    flat = [position_mask(p, seq if name.endswith("wpe.weight") else len(p)).flatten()
            for name, p in engine.module.named_parameters()]
    engine.optimizer.optimizer.param_groups[0]["exp_avg_mask"] = torch.cat(flat)


def join(ranks):
    """Rows of the world: the mean loss, and the root mean square of norms that the ranks have each."""
    rows = []
    for step, each in enumerate(zip(*ranks), 1):
        loss = sum(row[0] for row in each) / len(each)
        norm = math.sqrt(sum(row[2]**2 for row in each) / len(each))
        rows.append(curve_row(step, loss, each[0][1], norm, each[0][3]))
    return rows


def curve_row(step, loss, lr, norm, scale):
    return [step, f"{loss:.7f}", f"{lr:.10g}", "nan" if math.isnan(norm) else f"{norm:.6f}", f"{scale:.10g}"]


def by_deepspeed(run, **more):
    return join(curves.run_apart(run["world"], train, config=run["config"], steps=run["steps"], seq=run["seq"],
                                 freeze=run["freeze"], groups=run["groups"], **more))


def by_replay(run, **more):
    from onebit_replay import replay
    rows = curves.run_apart(1, lambda rank, world: replay(run, **more))[0]
    return [curve_row(step, *row) for step, row in enumerate(rows, 1)]


MAKERS = {"deepspeed": by_deepspeed, "replay": by_replay}


# ---- comparing -----------------------------------------------------------------------------------


def precision(config):
    return next((name for name in ("bf16", "fp16") if config.get(name, {}).get("enabled")), "fp32")


def freeze_update(run):
    """How many steps of the run are taken before the variance is frozen."""
    params = run["config"]["optimizer"]["params"]
    frozen_at = params.get("freeze_step", params.get("var_freeze_step", 100000 - 1) + 1)
    return frozen_at - (precision(run["config"]) != "fp32")


def difference(run, rows, want):
    """Largest differences in the loss before and after the freeze, and what is out of tolerance."""
    freeze, worst, wrong = freeze_update(run), [0.0, 0.0], []
    limits = TOLERANCES[precision(run["config"])]
    if len(rows) != len(want):
        return worst, [f"{len(rows)} steps against {len(want)}"]
    for have, row in zip(rows, want):
        frozen = have[0] > freeze
        d = abs(float(have[1]) - float(row[1]))
        worst[frozen] = max(worst[frozen], d)
        if not d <= limits[frozen]:
            wrong.append(f"step {have[0]}: loss {have[1]} against {row[1]}")
        wrong += [f"step {have[0]}: {name} {have[i]} against {row[i]}" for i, name in ((2, "lr"), (4, "scale"))
                  if not math.isclose(float(have[i]), float(row[i]), rel_tol=1e-9)]
    return worst, wrong


def read_curve(path):
    return [list(row.values()) for row in curves.read_curve(path)]


def report(run, maker, rows, want, failed):
    worst, wrong = difference(run, rows, want)
    print(f"  {maker:10} loss differs by {worst[0]:.2g} before the freeze, {worst[1]:.2g} after it",
          *wrong[:3], sep="\n    ", flush=True)
    if wrong:
        failed.append(f"{run['name']} ({maker})")


def recorded_run(name):
    folder = curves.FIXTURES / "runs" / name
    run = json.loads((folder / "run.json").read_text())
    return dict(name=name, world=run["world"], steps=run["steps"], seq=run["seq"], freeze=run["freeze"], groups="",
                config=json.loads((folder / "ds_config.json").read_text()), by="deepspeed"), \
        read_curve(folder / "curve.csv")


def fixtures_pass(names):
    failed = []
    for name in RECORDED:
        if names and name not in names:
            continue
        run, want = recorded_run(name)
        print(name, flush=True)
        for maker, make in MAKERS.items():
            report(run, maker, make(run), want, failed)
    return failed


# ---- golden curves -------------------------------------------------------------------------------


def golden_runs(names):
    from onebit_runs import RUNS
    return [run for run in RUNS if not names or run["name"] in names]


def half_step(config):
    return {"bf16": 2**-9, "fp16": 2**-12, "fp32": 2**-24}[precision(config)]


def make_pass(names):
    GOLDEN.mkdir(parents=True, exist_ok=True)
    failed = []
    for run in golden_runs(names):
        name, make = run["name"], MAKERS[run["by"]]
        rows = make(run)
        print(f"{name}: by {run['by']}, loss {rows[0][1]} to {rows[-1][1]}, norm {rows[-1][3]}, scale {rows[-1][4]}",
              flush=True)
        report(run, "nudged", make(run, nudged=half_step(run["config"])), rows, failed)
        (GOLDEN / name).mkdir(exist_ok=True)
        curves.write_curve(GOLDEN / name / "curve.csv", rows)
        (GOLDEN / name / "ds_config.json").write_text(json.dumps(run["config"], indent=1) + "\n")
    write_list()
    return failed


def write_list():
    with open(GOLDEN / "runs.csv", "w", newline="") as f:
        out = csv.writer(f, lineterminator="\n")
        out.writerow(["name", "world", "steps", "seq", "freeze", "groups", "frozen_after", "by"])
        out.writerows([r["name"], r["world"], r["steps"], r["seq"], r["freeze"],
                       "hf" if r["groups"] == "hf" else "", freeze_update(r), r["by"]]
                      for r in golden_runs([]) if (GOLDEN / r["name"]).exists())


def check_pass(names):
    failed = []
    for run in golden_runs(names):
        print(run["name"], flush=True)
        want = read_curve(GOLDEN / run["name"] / "curve.csv")
        for maker, make in MAKERS.items():
            excused = [] if maker == "deepspeed" and run["by"] == "replay" else failed
            try:
                report(run, maker, make(run), want, excused)
            except RuntimeError as failure:
                print(f"  {maker} fails: {failure}")
                excused.append(run["name"])
    return failed


# ---- bf16 ----------------------------------------------------------------------------------------


def bf16_train(rank, world, config, seq):
    """Whose elements a rank's optimizer holds, and how far the ranks' momenta differ once exchanged."""
    import torch
    import deepspeed
    torch.manual_seed(0)
    model = curves.load_model(str(curves.FIXTURES / "models" / "gpt2-tiny"), "")
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=list(model.parameters()), config=config)
    numel = sum(p.numel() for p in engine.module.parameters())
    held = sum(p.numel() for group in engine.optimizer.optimizer.param_groups for p in group["params"])
    tokens = text_tokens(64 * world * seq + 1)
    rows = []
    for step in range(8):
        inputs, targets = curves.micro_batch(tokens, step * world + rank, 1, seq)
        loss = curves.token_loss(engine, inputs, targets)
        rows.append(loss.item())
        engine.backward(loss)
        engine.step()
    momenta = [state["exp_avg"].abs().sum().item() for state in engine.optimizer.optimizer.state.values()]
    return type(engine.optimizer).__name__, numel, held, rows, momenta


def bf16_pass(_):
    config = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "gradient_clipping": 0.0,
              "optimizer": {"type": "OneBitAdam", "params": {"lr": 1e-3, "eps": 1e-3, "freeze_step": 4,
                                                             "comm_backend_name": "compressed"}}}
    for more in ({}, {"data_types": {"grad_accum_dtype": "bf16"}}):
        try:
            for rank, result in enumerate(curves.run_apart(2, bf16_train, config={**config, **more}, seq=32)):
                print(f"rank {rank}: {result[0]}, {result[1]} parameters of which the optimizer holds {result[2]}; "
                      f"losses {[round(x, 4) for x in result[3]]}, sum |momentum| {result[4]}")
        except RuntimeError as failure:
            print(f"{more}: DeepSpeed fails: {failure}")
    return []


def main():
    passes = {"fixtures": fixtures_pass, "make": make_pass, "check": check_pass, "bf16": bf16_pass}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=passes)
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    prepare()
    failed = passes[args.what](args.names)
    if failed:
        sys.exit("failed: " + " ".join(failed))


if __name__ == "__main__":
    main()
