"""Peer of bench/gpu/train_gpu.py: GPT-2 training steps by PyTorch on the GPU; prints one JSON line.

The model is transformers', its attention torch's with is_causal and without a mask, so that the flash kernels
take it: transformers makes a mask where a compiler looks on and torch is older than 2.14. Modes:
  eager, compiled       bf16 by autocast over fp32 weights: the numerics of czero (fp32 masters)
  bf16, bf16-compiled   weights and optimizer states in bf16 alone: PyTorch's fastest forms, without masters
Compiled are model and loss together, so that the loss never writes fp32 logits.
"""
import argparse
import json
import time

import torch
from transformers import AttentionInterface, GPT2Config, GPT2LMHeadModel


def causal_attention(module, query, key, value, attention_mask, **_):
    """As transformers calls one: heads (B,H,T,D) → (B,T,H,D), and no weights."""
    out = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    return out.transpose(1, 2).contiguous(), None


def gpt2_config(folder):
    AttentionInterface.register("causal", causal_attention)
    config = GPT2Config.from_pretrained(folder)
    config._attn_implementation = "causal"
    return config


def rows_of(path, n_tokens, device):
    with open(path, "rb") as f:
        f.seek(1024)
        return torch.frombuffer(bytearray(f.read(2 * n_tokens)), dtype=torch.uint16).to(torch.int32).to(device).long()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--mode", choices=["eager", "compiled", "bf16", "bf16-compiled"], required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--seq-len", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    model = GPT2LMHeadModel(gpt2_config(args.model)).to(args.device)
    is_bf16, is_compiled = args.mode.startswith("bf16"), args.mode.endswith("compiled")
    if is_bf16:
        model = model.to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)

    def loss_of(ids, labels):
        logits = model(ids, use_cache=False).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels)

    if is_compiled:
        loss_of = torch.compile(loss_of)
    n = args.batch * args.seq_len
    tokens = rows_of(args.data, n * args.steps + 1, args.device)
    wait = torch.cuda.synchronize if args.device == "cuda" else lambda: None
    seconds, losses = [], []
    for step in range(args.steps):
        ids = tokens[step * n:(step + 1) * n].view(args.batch, args.seq_len)
        labels = tokens[step * n + 1:(step + 1) * n + 1]
        wait()
        begin = time.perf_counter()
        with torch.autocast(args.device, torch.bfloat16, enabled=not is_bf16):
            loss = loss_of(ids, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        seconds.append(time.perf_counter() - begin)
    print(json.dumps({"seconds": seconds, "losses": losses, "torch": torch.__version__,
                      "peak_gpu": torch.cuda.max_memory_reserved() if args.device == "cuda" else None}))


if __name__ == "__main__":
    main()
