"""Peer of bench/gpu/seed_gpu.py: GPT-2 training steps by DeepSpeed on one GPU; prints one JSON line.

The same config file, shapes and tokens as `czero train` there; --checkpoint recomputes every layer's
activations in backward, as czero.activation_checkpointing.every = 1 does.
"""
import argparse
import json
import os
import resource
import time

parser = argparse.ArgumentParser()
parser.add_argument("--config", required=True)
parser.add_argument("--model", required=True)
parser.add_argument("--data", required=True)
parser.add_argument("--seq-len", type=int, required=True)
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--checkpoint", action="store_true")
parser.add_argument("--device", default="cuda")
args = parser.parse_args()
# DeepSpeed looks at these while it is imported.
os.environ["DS_ACCELERATOR"] = args.device
for name, value in [("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1"),
                    ("MASTER_PORT", "29613")]:
    os.environ.setdefault(name, value)

import deepspeed
import torch
from transformers import GPT2LMHeadModel

from torch_gpu import gpt2_config, rows_of


def main():
    deepspeed.init_distributed(dist_backend="nccl" if args.device == "cuda" else "gloo")
    torch.manual_seed(0)
    with deepspeed.zero.Init(config_dict_or_path=args.config, dtype=torch.bfloat16):
        model = GPT2LMHeadModel(gpt2_config(args.model))
    if args.checkpoint:
        model.gradient_checkpointing_enable()
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=list(model.parameters()), config=args.config)
    batch = engine.train_micro_batch_size_per_gpu()
    n = batch * args.seq_len
    tokens = rows_of(args.data, n * args.steps + 1, args.device)
    seconds, losses = [], []
    for step in range(args.steps):
        ids = tokens[step * n:(step + 1) * n].view(batch, args.seq_len)
        labels = tokens[step * n + 1:(step + 1) * n + 1]
        begin = time.perf_counter()
        logits = engine(ids, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
        if args.device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    print(json.dumps({"seconds": seconds, "losses": losses, "deepspeed": deepspeed.__version__,
                      "peak_gpu": torch.cuda.max_memory_reserved() if args.device == "cuda" else None,
                      "peak_rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))


if __name__ == "__main__":
    main()
