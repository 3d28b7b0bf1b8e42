#!/usr/bin/env python3
"""Makes fixtures/models/gpt2-variant-*: small GPT-2 models with unusual settings, and what
PyTorch (transformers' GPT2LMHeadModel, eager attention, fp32, dropout off) computes from them.
Run with a Python that has torch, transformers and safetensors; then tests/fixtures/pack.sh models."""
import pathlib
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from fixtures import FIXTURES

BASE = dict(vocab_size=31, n_positions=12, n_embd=16, n_layer=2, n_head=2, initializer_range=0.3)
VARIANTS = {
    # exact gelu, odd MLP width, scores divided by the layer's number, untied head, padding,
    # dropout in the config (off in the oracle)
    "a": dict(activation_function="gelu", n_inner=40, scale_attn_by_inverse_layer_idx=True,
              tie_word_embeddings=False),
    # relu, unscaled scores, explicit positions, names without "transformer."
    "b": dict(activation_function="relu", scale_attn_weights=False, reorder_and_upcast_attn=True,
              resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0),
}


def make(name, settings, root):
    torch.manual_seed(ord(name))
    model = GPT2LMHeadModel(GPT2Config(**BASE, **settings, attn_implementation="eager")).eval()
    for parameter in model.parameters():  # biases and norms away from 0 and 1
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, mean=parameter.mean().item(), std=0.2)
    B, T = 3, 9
    inputs = {"input_ids": torch.randint(0, 31, (B, T))}
    inputs["labels"] = inputs["input_ids"].clone()
    inputs["labels"][:, 4] = -100
    if name == "a":
        inputs["attention_mask"] = torch.ones(B, T, dtype=torch.int64)
        inputs["attention_mask"][1, 6:] = 0
        inputs["labels"][1, 6:] = -100
    else:
        inputs["position_ids"] = torch.randint(0, 12, (B, T))
    out = model(**inputs)
    out.loss.backward()
    folder = root / f"gpt2-variant-{name}"
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    if name == "b":
        weights = load_file(folder / "model.safetensors")
        bare = {k.removeprefix("transformer."): v for k, v in weights.items()}
        save_file(bare, folder / "model.safetensors", metadata={"format": "pt"})
    oracle = {f"in.{k}": v for k, v in inputs.items()}
    oracle["out.logits"] = out.logits.detach()
    oracle["out.loss"] = out.loss.detach().reshape(1)
    for key, parameter in model.named_parameters():
        oracle[f"grad.{key}"] = parameter.grad
    save_file({k: v.contiguous() for k, v in oracle.items()}, folder / "oracle.safetensors")


if __name__ == "__main__":
    default = FIXTURES / "models"
    for variant, chosen in VARIANTS.items():
        make(variant, chosen, pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default)
