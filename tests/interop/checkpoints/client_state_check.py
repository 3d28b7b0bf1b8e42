"""Client states both ways with DeepSpeed: what czero's Python module saves, DeepSpeed loads as equal values, and back.

    $(scripts/peers.sh) tests/interop/checkpoints/client_state_check.py BUILD
"""

import argparse
import os
import pickle
import random
import sys
import tempfile
from pathlib import Path

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("build", type=Path)
ARGS = parser.parse_args()
ROOT = Path(__file__).resolve().parents[3]
os.environ["CZERO_LIBRARY"] = str(ARGS.build.resolve() / "libczero.so")
os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29531")
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests/python")]
sys.argv[1:] = ["--fixtures", str(ARGS.build / "fixtures")]

import deepspeed  # noqa: E402
import numpy  # noqa: E402
import torch  # noqa: E402
from transformers import GPT2Config, GPT2LMHeadModel  # noqa: E402

for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
    os.environ.pop(name)
import czero  # noqa: E402
import check_module  # noqa: E402

CONFIG = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 1},
          "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": True}}}
VALUES = {**check_module.ClientState.VALUES, "rng": random.Random(7).getstate(),
          "torch": torch.get_rng_state(), "size": torch.Size([2, 3]), "dtype": torch.bfloat16}
TENSORS = {"bf16": torch.arange(4.0).to(torch.bfloat16), "t": torch.arange(6.0).reshape(2, 3).T, "n": torch.tensor(5)}


def compare(given, back, reader):
    """The names whose values differ."""
    bad = [name for name, value in given.items() if name not in back or not (
        torch.equal(value, back[name]) and value.dtype == back[name].dtype if isinstance(value, torch.Tensor)
        else check_module.same(value, back[name]))]
    print(f"{reader}: {len(given) - len(bad)} of {len(given)} values are equal")
    for name in bad:
        print("  given", given[name], "\n  back ", back.get(name))
    return len(bad)


def main():
    folder = Path(tempfile.mkdtemp(prefix="czero-client-"))
    shape = GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=32, n_positions=16)
    shape._attn_implementation = "eager"
    model = GPT2LMHeadModel(shape)
    model.save_pretrained(folder / "model")
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
    theirs = deepspeed.initialize(model=model, config=CONFIG, model_parameters=model.parameters())[0]
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        os.environ.pop(name)
    ours = czero.initialize(model=folder / "model", seq_len=16, config=CONFIG)[0]
    state = {**VALUES, **TENSORS}
    n_bad = 0
    ours.save_checkpoint(folder / "ours", tag=3, client_state=state)
    native = {**state, "arrays": pickle.loads(pickle.dumps(state["arrays"]))}  # numpy drops byte orders
    n_bad += compare(native, theirs.load_checkpoint(folder / "ours", tag="3")[1], "DeepSpeed reads czero's")
    theirs.save_checkpoint(folder / "theirs", tag=4, client_state={**state, "own": check_module.Own()})
    where, back = ours.load_checkpoint(folder / "theirs", tag=4)
    unknown = back.pop("own")
    assert isinstance(unknown, czero.UnknownObject) and unknown.name.endswith("Own"), unknown
    n_bad += compare(state, back, "czero reads DeepSpeed's")
    sys.exit(n_bad > 0)


main()
