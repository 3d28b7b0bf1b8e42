"""Peer of bench/train_gpt2.py: trains GPT-2 with PyTorch eager and prints one JSON line.

Same work as `czero train` in that benchmark: same shapes, tokens (bytes of a text), AdamW, clipping
at norm 1, no dropout. bf16 is the fastest form PyTorch has: weights and optimizer states in bf16.
"""
import argparse
import json
import resource
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel

SIZES = {
    "gpt2-tiny": dict(n_layer=2, n_embd=64, n_head=4, vocab_size=256, n_positions=64),
    "gpt2": dict(n_layer=12, n_embd=768, n_head=12),
    "gpt2-medium": dict(n_layer=24, n_embd=1024, n_head=16),
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="gpt2", choices=sorted(SIZES))
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16", "autocast"])
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--data", required=True)
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    config = GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **SIZES[args.model])
    model = GPT2LMHeadModel(config)
    if args.precision == "bf16":
        model = model.to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens = torch.frombuffer(bytearray(open(args.data, "rb").read()), dtype=torch.uint8).long()
    seconds, losses = [], []
    for step in range(args.steps):
        rows = [(step * args.batch + i) * args.seq_len for i in range(args.batch)]
        ids = torch.stack([tokens[r : r + args.seq_len] for r in rows])
        labels = torch.stack([tokens[r + 1 : r + args.seq_len + 1] for r in rows])
        begin = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=args.precision == "autocast"):
            logits = model(ids).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - begin)
    print(json.dumps({
        "seconds": seconds,
        "losses": losses,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "torch": torch.__version__,
    }))


if __name__ == "__main__":
    main()
