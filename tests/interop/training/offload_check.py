#!/usr/bin/env python3
"""The presets configs/offload.json and configs/nvme.json under DeepSpeed and under czero: one curve.

  offload_check.py CZERO [--steps N] [--world W] [PRESET...]

Run with the python that scripts/peers.sh prints. gpt2-tiny learns from the fixtures' text, in the fixtures'
order, on W ranks (default 2): DeepSpeed with the preset, its nvme_path moved to a scratch folder (its NVMe
needs its async_io extension; where that cannot be built DeepSpeed is given the host instead, and it is reported);
czero with the preset as it is, and again with optimizer states and parameters on none, cpu and nvme. Losses
agree within 2e-2 and rates exactly; czero's own curves are the same bytes.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
import curves

PRESETS = curves.ROOT / "configs"
MODEL = curves.FIXTURES / "models" / "gpt2-tiny"
TEXT = curves.FIXTURES / "text" / "fortunes.txt"
SEQ = 32
TIERS = [("none", "none"), ("cpu", "none"), ("cpu", "cpu"), ("nvme", "none"), ("nvme", "nvme")]


def moved(preset, scratch, tiers=None):
    """The preset with its swap in the scratch folder and, if given, other tiers."""
    config = json.loads((PRESETS / f"{preset}.json").read_text())
    zero = config["zero_optimization"]
    for section, tier in zip(("offload_optimizer", "offload_param"), tiers or (None, None)):
        if tier:
            zero.setdefault(section, {})["device"] = tier
    for section in ("offload_optimizer", "offload_param"):
        if zero.get(section, {}).get("device") == "nvme":
            zero[section]["nvme_path"] = str(scratch / "swap")
    return config


def deepspeed_curve(preset, scratch, args):
    run = dict(world=args.world, steps=args.steps, seq=SEQ, freeze="", model_dir=str(MODEL), text=str(TEXT), groups="",
               watch_overflow=False)
    config = moved(preset, scratch)
    (scratch / "swap").mkdir(exist_ok=True)
    try:
        return curves.train_apart(config=config, **run)[0]
    except RuntimeError as failure:
        if "nvme" not in json.dumps(config):
            raise
        print(f"{preset}: DeepSpeed's own NVMe fails here ({str(failure).splitlines()[0][:100]}); it gets the host")
        return curves.train_apart(config=moved(preset, scratch, ("cpu", "cpu")), **run)[0]


def czero_curve(binary, config, scratch, args):
    (scratch / "config.json").write_text(json.dumps(config))
    curve = scratch / "curve.csv"
    curve.unlink(missing_ok=True)
    command = [binary, "launch", "-n", args.world, "--", "train", "--config", scratch / "config.json", "--model", MODEL,
               "--data", TEXT, "--tokenizer", "bytes", "--shuffle", "off", "--seq-len", SEQ, "--steps", args.steps,
               "--quiet", "--curve", curve]
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise RuntimeError("czero: " + done.stderr.strip())
    return curve.read_bytes(), curves.read_curve(curve)


def judge(theirs, ours):
    wrong, worst = [], 0.0
    for want, got in zip(theirs, ours):
        want = dict(zip(curves.COLUMNS, want))
        worst = max(worst, abs(float(want["loss"]) - float(got["loss"])))
        wrong += [f"step {got['step']} {key}: {got[key]} against {want[key]}" for key in ("lr_next", "loss_scale")
                  if not curves.same(got[key], want[key], 1e-9 * abs(float(want[key])))]
    if len(theirs) != len(ours) or worst > 2e-2:
        wrong.append(f"{len(ours)} steps against {len(theirs)}, loss differs by {worst:.3g}")
    return worst, wrong


def check_preset(preset, args):
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        theirs = deepspeed_curve(preset, scratch, args)
        first, ours = czero_curve(args.czero, moved(preset, scratch / "czero"), scratch, args)
        worst, wrong = judge(theirs, ours)
        for tiers in TIERS:
            same, _ = czero_curve(args.czero, moved(preset, scratch / "czero", tiers), scratch, args)
            if same != first:
                wrong.append(f"czero's curve with {tiers[0]}, {tiers[1]} is another")
        if (scratch / "czero" / "swap").exists():
            wrong.append("czero leaves something in nvme_path")
    print(f"{preset}: worst loss difference {worst:.2g} over {args.steps} steps", *wrong[:6], sep="\n    ", flush=True)
    return bool(wrong)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("czero", type=lambda p: pathlib.Path(p).absolute())
    parser.add_argument("presets", nargs="*", default=["offload", "nvme"])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--world", type=int, default=2)
    args = parser.parse_args()
    curves.quiet_peers()
    import torch
    torch.set_num_threads(1)
    import deepspeed  # noqa: F401  imported once here, so that the children start at once
    import transformers  # noqa: F401
    failed = [preset for preset in args.presets if check_preset(preset, args)]
    if failed:
        sys.exit("failed: " + " ".join(failed))


if __name__ == "__main__":
    main()
