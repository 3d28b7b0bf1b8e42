"""Peer of bench/train_zero.py: one rank of GPT-2 training by DeepSpeed on the CPU; rank 0 prints a JSON line.
With --save it makes the checkpoints of bench/consolidate.py.

Same work as `czero launch -- train` in that benchmark: the same config file, shapes and tokens, no dropout.
RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT describe this rank, as with torchrun.
"""
import argparse
import json
import os
import resource
import time

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("LOCAL_RANK", os.environ["RANK"])

import deepspeed
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from torch_gpt2 import SIZES


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", required=True)
    parser.add_argument("--model", default="gpt2", choices=sorted(SIZES))
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--save", help="folder for a checkpoint after the last step")
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    sizes = GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **SIZES[args.model])
    model = GPT2LMHeadModel(sizes)
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=list(model.parameters()),
                                           config=args.config)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    micro = engine.train_micro_batch_size_per_gpu()
    tokens = torch.frombuffer(bytearray(open(args.data, "rb").read()), dtype=torch.uint8).long()
    seconds, losses = [], []
    for step in range(args.steps):
        first = (step * world + rank) * micro
        rows = [(first + i) * args.seq_len for i in range(micro)]
        ids = torch.stack([tokens[r : r + args.seq_len] for r in rows])
        labels = torch.stack([tokens[r + 1 : r + args.seq_len + 1] for r in rows])
        begin = time.perf_counter()
        logits = engine(ids).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - begin)
    if args.save:
        engine.save_checkpoint(args.save)
    if rank == 0:
        print(json.dumps({
            "seconds": seconds,
            "losses": losses,
            "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "deepspeed": deepspeed.__version__,
        }))


if __name__ == "__main__":
    main()
