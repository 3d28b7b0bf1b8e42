"""Peer of bench/gpu/train_gpu.py and same_weights_gpu.py: GPT-2 training steps by PyTorch on the GPU; prints one JSON line.

The model is transformers', its attention torch's with is_causal and without a mask, so that flash or cuDNN's kernels
take it (--attention flash or cudnn: that one; else torch chooses, and the line names which): transformers makes a
mask where a compiler looks on and torch is older than 2.14. Modes:
  eager, compiled       bf16 by autocast over fp32 weights: the numerics of czero (fp32 masters)
  bf16, bf16-compiled   weights and optimizer states in bf16 alone: PyTorch's fastest forms, without masters
  fp32-like, bf16-like  eager, in fp32 without TF32 or as "eager": for comparing numbers, not times
Compiled are model and loss together, so that the loss never writes fp32 logits. --draw: only write random weights into
the folder --model; --weights: begin with those.
"""
import argparse
import contextlib
import json
import time

import torch
import torch.nn.attention
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


def attention(name):
    """While it lasts, torch's attention is the one of this name, or what it chooses."""
    known = torch.nn.attention.SDPBackend
    only = {"flash": known.FLASH_ATTENTION, "cudnn": known.CUDNN_ATTENTION}
    return torch.nn.attention.sdpa_kernel(only[name]) if name in only else contextlib.nullcontext()


def attention_taken(args, config):
    """The kernels that torch chooses for these shapes, by name."""
    if args.attention != "any":
        return args.attention
    heads, dtype = config.n_head, torch.float32 if args.mode == "fp32-like" else torch.bfloat16
    q = torch.zeros(1, heads, args.seq_len, config.n_embd // heads, device=args.device, dtype=dtype, requires_grad=True)
    chosen = torch._fused_sdp_choice(q, q, q, is_causal=True)
    return next((name.lower() for name, value in vars(torch.nn.attention.SDPBackend).items()
                 if isinstance(value, torch.nn.attention.SDPBackend) and value.value == chosen), str(chosen))


def rows_of(path, n_tokens, device):
    with open(path, "rb") as f:
        f.seek(1024)
        return torch.frombuffer(bytearray(f.read(2 * n_tokens)), dtype=torch.uint16).to(torch.int32).to(device).long()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--draw", action="store_true")
    parser.add_argument("--weights", action="store_true")
    parser.add_argument("--data")
    parser.add_argument("--mode", choices=["eager", "compiled", "bf16", "bf16-compiled", "fp32-like", "bf16-like"], default="eager")
    parser.add_argument("--attention", choices=["any", "flash", "cudnn"], default="any")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--seq-len", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()

    torch.manual_seed(0)
    if args.draw:
        GPT2LMHeadModel(gpt2_config(args.model)).save_pretrained(args.model)
        return print("{}")
    torch.set_float32_matmul_precision("highest" if args.mode == "fp32-like" else "high")
    config = gpt2_config(args.model)
    model = GPT2LMHeadModel(config) if not args.weights else GPT2LMHeadModel.from_pretrained(
        args.model, dtype=torch.float32, attn_implementation="causal")
    model = model.to(args.device).train()
    is_bf16, is_compiled = args.mode in ("bf16", "bf16-compiled"), args.mode.endswith("compiled")
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
    seconds, losses, norms = [], [], []
    for step in range(args.steps):
        ids = tokens[step * n:(step + 1) * n].view(args.batch, args.seq_len)
        labels = tokens[step * n + 1:(step + 1) * n + 1]
        wait()
        begin = time.perf_counter()
        with attention(args.attention):
            with torch.autocast(args.device, torch.bfloat16, enabled=not is_bf16 and args.mode != "fp32-like"):
                loss = loss_of(ids, labels)
            loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        seconds.append(time.perf_counter() - begin)
        norms.append(norm.item())
    print(json.dumps({"seconds": seconds, "losses": losses, "norms": norms, "torch": torch.__version__,
                      "attention": attention_taken(args, config),
                      "peak_gpu": torch.cuda.max_memory_reserved() if args.device == "cuda" else None}))


if __name__ == "__main__":
    main()
