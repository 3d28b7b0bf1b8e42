"""zero_to_fp32 beside DeepSpeed's own script, over every checkpoint at hand: names, order, shards, index, values.

    python tests/interop/checkpoints/consolidate_check.py [--zero-to-fp32 build/zero_to_fp32] [DIR...]

DIR: folders of checkpoints (default: those of fixtures/runs; conformance.py calls check() on random ones). For
each, and for several shard sizes and dtypes, torch.load and safetensors read what both wrote. Where the
script cannot do it, ours is compared with something else: tied weights in safetensors with the script's
.bin; frozen weights at stage 1, and all of stage 0, with the model file's `module`.
"""
import argparse
import pathlib
import contextlib
import glob
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import safetensors
import torch
from deepspeed.utils import zero_to_fp32 as script

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from fixtures import FIXTURES, ROOT

TOOL = None
HAS_DTYPE = hasattr(script, "convert_zero_checkpoint_to_state_dict")
problems = []


def complain(text):
    problems.append(text)
    print("PROBLEM", text)


def ours(ckpt, out, *options):
    shutil.rmtree(out, ignore_errors=True)
    done = subprocess.run([TOOL, ckpt, out, *options], capture_output=True, text=True)
    if done.returncode != 0:
        complain(f"{ckpt} {options}: exit {done.returncode}: {done.stderr.strip()}")
    return done.returncode == 0


def theirs(ckpt, out, **options):
    shutil.rmtree(out, ignore_errors=True)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        if HAS_DTYPE:
            script.convert_zero_checkpoint_to_state_dict(ckpt, out, **options)
        else:  # DeepSpeed 0.16
            options.pop("dtype")
            script.convert_zero_checkpoint_to_fp32_state_dict(ckpt, out, **options)


def same_bits(a, b):
    """a: ours. 0.16 leaves frozen weights in the model's type and makes every buffer fp32."""
    a = a if HAS_DTYPE else a.to(b.dtype)
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(
        a.contiguous().flatten().view(torch.uint8), b.contiguous().flatten().view(torch.uint8))


def load_bin(folder):
    """File name -> dict."""
    return {os.path.basename(p): torch.load(p, weights_only=True) for p in sorted(glob.glob(f"{folder}/*.bin"))}


def load_index(folder, name):
    path = os.path.join(folder, name)
    return open(path).read() if os.path.exists(path) else None


def compare_bin(label, a, b):
    files_a, files_b = load_bin(a), load_bin(b)
    if list(files_a) != list(files_b):
        return complain(f"{label}: files {list(files_a)} instead of {list(files_b)}")
    for file in files_b:
        if list(files_a[file]) != list(files_b[file]):
            complain(f"{label}: {file} holds {list(files_a[file])}, not {list(files_b[file])}")
        for name, want in files_b[file].items():
            got = files_a[file].get(name)
            if got is None or not same_bits(got, want):
                complain(f"{label}: {file}: {name} differs")
            elif got.untyped_storage().nbytes() != got.numel() * got.element_size():
                complain(f"{label}: {file}: {name} drags a storage of {got.untyped_storage().nbytes()} bytes")
            elif got.requires_grad:
                complain(f"{label}: {file}: {name} requires grad")
    if load_index(a, "pytorch_model.bin.index.json") != load_index(b, "pytorch_model.bin.index.json"):
        complain(f"{label}: the index differs")


def ties(state):
    """Alias -> kept name, by storage."""
    first, found = {}, {}
    for name, tensor in state.items():
        kept = first.setdefault(tensor.data_ptr(), name) if tensor.numel() else name
        if kept != name:
            found[name] = kept
    return found


def compare_safetensors(label, folder, want):
    """want: one dict, from the script's .bin."""
    found = {}
    alias = ties(want)
    for path in sorted(glob.glob(f"{folder}/*.safetensors")):
        with safetensors.safe_open(path, "pt") as f:
            for name in f.keys():
                found[name] = f.get_tensor(name)
            if f.metadata() != {"format": "pt", **alias}:
                complain(f"{label}: metadata {f.metadata()}")
    if set(found) != set(want) - set(alias):
        complain(f"{label}: tensors {sorted(set(found) ^ (set(want) - set(alias)))}")
    for name in set(found) & set(want):
        if not same_bits(found[name], want[name]):
            complain(f"{label}: {name} differs")
    index = load_index(folder, "model.safetensors.index.json")
    if index and set(json.loads(index)["weight_map"]) != set(found):
        complain(f"{label}: the index names other tensors")


def model_file(ckpt, tag):
    return torch.load(sorted(glob.glob(os.path.join(ckpt, tag, "*_model_states.pt")))[0], weights_only=False)


def compare_module(label, state, saved, names):
    """These of our tensors against `module`, which may hold 16 bits: rounded alike they are equal."""
    if set(state) != set(saved["module"]):
        complain(f"{label}: names {sorted(set(state) ^ set(saved['module']))}")
    for name in names & set(state):
        want = saved["module"][name]
        got = state[name]
        if want.is_floating_point() and got.dtype != torch.float32:
            complain(f"{label}: {name} is {got.dtype}")
        if not torch.equal(got.to(want.dtype), want):
            complain(f"{label}: {name} differs from `module`")


def check(ckpt, tmp):
    """What is wrong: a list."""
    before = len(problems)
    compare_all(ckpt, tmp)
    return problems[before:]


def compare_all(ckpt, tmp):
    a, b = os.path.join(tmp, "ours"), os.path.join(tmp, "theirs")
    tag = open(os.path.join(ckpt, "latest")).read().strip()
    saved = model_file(ckpt, tag)
    trained = {name for group in saved["param_shapes"] or [] for name in group}
    frozen = set(saved["module"]) - trained - set(saved["buffer_names"]) - set(saved["shared_params"] or {})
    if not glob.glob(os.path.join(ckpt, tag, "*_optim_states.pt")):
        if ours(ckpt, a):
            state = load_bin(a)["pytorch_model.bin"]
            compare_module(f"{ckpt}, stage 0", state, saved, set(state))
            if ours(ckpt, b, "--safe_serialization"):
                compare_safetensors(f"{ckpt}, stage 0", b, state)
        print("checked", ckpt, flush=True)
        return
    dropped = bool(frozen) and saved["frozen_param_shapes"] is None  # stage 1: the script loses them
    if dropped and ours(ckpt, a):
        compare_module(f"{ckpt}, frozen", load_bin(a)["pytorch_model.bin"], saved, frozen)
    variants = [("5GB", "float32", False), ("200KB", "float32", False), ("60KB", "bfloat16", False),
                ("1KB", "float16", False), ("100KB", "float32", True)]
    if not HAS_DTYPE:  # other sizes make other shards
        variants = [("5GB", "float32", False), ("5GB", "float32", True)]
    elif sum(os.path.getsize(p) for p in glob.glob(os.path.join(ckpt, tag, "*"))) > 1e8:
        variants = [("5GB", "float32", False), ("100MB", "bfloat16", False)]
    for size, dtype, exclude in variants:
        exclude = exclude or dropped
        label = f"{ckpt}, {size}, {dtype}" + (", without frozen" if exclude else "")
        options = ["--max_shard_size", size, "--dtype", dtype] + ["--exclude_frozen_parameters"] * exclude
        theirs(ckpt, b, dtype=dtype, max_shard_size=size, exclude_frozen_parameters=exclude)
        if ours(ckpt, a, *options):
            compare_bin(label, a, b)
        want = {}
        for state in load_bin(b).values():
            want.update(state)
        if ours(ckpt, a, "--safe_serialization", "--verify", *options):
            compare_safetensors(label, a, want)
    print("checked", ckpt, flush=True)


def main():
    global TOOL
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--zero-to-fp32", default=os.path.join(ROOT, "build", "zero_to_fp32"))
    parser.add_argument("dirs", nargs="*")
    args = parser.parse_args()
    TOOL = args.zero_to_fp32
    dirs = args.dirs or sorted(glob.glob(os.path.join(FIXTURES, "runs", "*", "ckpt")))
    if not dirs:
        sys.exit("no checkpoints found")
    with tempfile.TemporaryDirectory() as tmp:
        for ckpt in dirs:
            check(ckpt, tmp)
    print(f"{len(dirs)} checkpoints, {len(problems)} problems")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
