#!/usr/bin/env python3
"""Small LLaMA and Qwen2 models in many variants, what PyTorch (transformers, eager attention, fp32,
dropout off) computes from them, and whether `czero verify` agrees within 2e-5.

  llama_oracles.py make DIR            writes DIR/{llama,qwen2}-variant (build/fixtures/models,
                                       then tests/fixtures/pack.sh models)
  llama_oracles.py check CZERO [SEED]  makes every variant below, and some drawn with SEED, in a
                                       temporary folder and verifies each
  llama_oracles.py one DIR NAME [SEED] writes one of them

Run with a Python that has torch, transformers and safetensors."""
import json
import pathlib
import random
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, logging

logging.set_verbosity_error()
logging.disable_progress_bar()
BOUND = 2e-5
BASE = dict(vocab_size=43, hidden_size=32, intermediate_size=56, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
            initializer_range=0.2)


def rope(kind, **parameters):
    return dict(rope_parameters=dict(rope_type=kind, rope_theta=10000.0, **parameters))


def longrope(half, **parameters):
    return rope("longrope", short_factor=[1.0 + 0.1 * i for i in range(half)],
                long_factor=[2.0 + 0.3 * i for i in range(half)], **parameters)


# name: (family, settings, how it is fed)
VARIANTS = {
    "plain": ("llama", {}, {}),
    "one-layer": ("llama", dict(num_hidden_layers=1), {}),
    "multi-head": ("llama", dict(num_key_value_heads=4), {}),
    "one-key-head": ("llama", dict(num_attention_heads=8, num_key_value_heads=1), {}),
    "wide-heads": ("llama", dict(head_dim=20), {}),
    "narrow-heads": ("llama", dict(head_dim=2), {}),
    "tied": ("llama", dict(tie_word_embeddings=True), {}),
    "all-biases": ("llama", dict(attention_bias=True, mlp_bias=True), {}),
    "attention-bias": ("llama", dict(attention_bias=True, attention_dropout=0.3), {}),
    "mlp-bias": ("llama", dict(mlp_bias=True, rms_norm_eps=1e-3), {}),
    "theta": ("llama", dict(rope_parameters=dict(rope_type="default", rope_theta=500.0)), {}),
    "linear": ("llama", rope("linear", factor=3.0), {}),
    "linear-beyond": ("llama", rope("linear", factor=4.0), dict(T=90)),
    "default-beyond": ("llama", {}, dict(T=80)),
    "dynamic": ("llama", rope("dynamic", factor=2.0), {}),
    "dynamic-beyond": ("llama", rope("dynamic", factor=2.0), dict(T=90)),
    "llama3": ("llama", rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                             original_max_position_embeddings=32), dict(T=50)),
    "llama3-wide": ("llama", dict(head_dim=32, **rope(
        "llama3", factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=16)), dict(T=60)),
    "yarn": ("llama", rope("yarn", factor=4.0, original_max_position_embeddings=16), dict(T=60)),
    "yarn-scaled": ("llama", dict(head_dim=24, **rope(
        "yarn", factor=4.0, original_max_position_embeddings=16, attention_factor=0.7,
        beta_fast=16.0, beta_slow=2.0)), {}),
    "yarn-mscale": ("llama", dict(head_dim=32, **rope(
        "yarn", factor=8.0, original_max_position_embeddings=1024, mscale=0.8,
        mscale_all_dim=0.5, truncate=False)), {}),
    "yarn-ratio": ("llama", rope("yarn", factor=None, original_max_position_embeddings=16), {}),
    "longrope-short": ("llama", longrope(4, factor=4.0, original_max_position_embeddings=32), {}),
    "longrope-long": ("llama", longrope(4, original_max_position_embeddings=16), dict(T=40)),
    "longrope-factor": ("llama", longrope(4, attention_factor=1.3,
                                          original_max_position_embeddings=32), dict(T=40)),
    "proportional": ("llama", rope("proportional", partial_rotary_factor=0.5, factor=2.0), {}),
    "old-theta": ("llama", dict(rope_parameters=dict(rope_type="default", rope_theta=777.0)),
                  dict(old=True)),
    "old-linear": ("llama", rope("linear", factor=2.5), dict(old=True)),
    "old-dynamic": ("llama", rope("dynamic", factor=4.0), dict(old=True, T=70)),
    "old-llama3": ("llama", rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                 original_max_position_embeddings=32), dict(old=True, T=50)),
    "old-yarn": ("qwen2", rope("yarn", factor=4.0, original_max_position_embeddings=16),
                 dict(old=True)),
    "positions": ("llama", {}, dict(positions=True)),
    "positions-masked": ("llama", rope("linear", factor=2.0), dict(positions=True, mask="right")),
    "positions-dynamic": ("llama", rope("dynamic", factor=2.0),
                          dict(positions=True, positions_below=100)),
    "right-padding": ("llama", {}, dict(mask="right")),
    "left-padding": ("llama", {}, dict(mask="left")),
    "holes": ("llama", {}, dict(mask="holes")),
    "pad-token": ("llama", dict(pad_token_id=5), dict(mask="right")),
    "pad-token-tied": ("llama", dict(pad_token_id=42, tie_word_embeddings=True), {}),
    "few-tokens": ("llama", {}, dict(B=3, T=3)),
    "one-key": ("llama", {}, dict(B=3, T=2)),  # gradients of queries and keys are 0
    "odd-sizes": ("llama", dict(hidden_size=30, num_attention_heads=3, num_key_value_heads=1,
                                intermediate_size=37, vocab_size=101, num_hidden_layers=3), {}),
    "qwen2": ("qwen2", {}, {}),
    "qwen2-tied": ("qwen2", dict(tie_word_embeddings=True, num_key_value_heads=4), {}),
    "qwen2-left": ("qwen2", dict(tie_word_embeddings=True), dict(mask="left")),
    "qwen2-window": ("qwen2", dict(use_sliding_window=True, sliding_window=48,
                                   max_window_layers=1), {}),
    "qwen2-window-off": ("qwen2", dict(use_sliding_window=False, sliding_window=4), {}),
    "qwen2-head-dim": ("qwen2", dict(head_dim=16, rope_parameters=dict(
        rope_type="default", rope_theta=1e6)), dict(positions=True)),
    "qwen2-llama3": ("qwen2", rope("llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                   original_max_position_embeddings=24), {}),
}


def build(family, settings):
    config_class, model_class = {"llama": (LlamaConfig, LlamaForCausalLM),
                                 "qwen2": (Qwen2Config, Qwen2ForCausalLM)}[family]
    config = config_class(**{**BASE, **settings}, attn_implementation="eager")
    model = model_class(config).eval()
    std = min(0.2, 2 * config.initializer_range)
    for parameter in model.parameters():  # biases and norms away from 0 and 1
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, mean=parameter.mean().item(), std=std)
    return model


def make_inputs(vocab_size, feed):
    B, T = feed.get("B", 3), feed.get("T", 19)
    inputs = {"input_ids": torch.randint(0, vocab_size, (B, T))}
    labels = inputs["input_ids"].clone()
    if T > 4:
        labels[:, 3] = -100
    mask = torch.ones(B, T, dtype=torch.int64)
    if feed.get("mask") == "right":
        mask[0, T - 6:] = 0
        mask[-1, T - 1:] = 0
    elif feed.get("mask") == "left":
        mask[0, :6] = 0
        mask[-1, :1] = 0
    elif feed.get("mask") == "holes":
        mask[:, 1:] = torch.randint(0, 2, (B, T - 1))
    if "mask" in feed:
        inputs["attention_mask"] = mask
        labels[mask == 0] = -100
        # Nor may one position predict that sees nothing: eager attention gives it the mean of all
        # values, later ones too, fused attention and ours 0.
        labels[:, 1:][mask.cumsum(-1)[:, :-1] == 0] = -100
    if feed.get("positions"):
        inputs["position_ids"] = torch.randint(0, feed.get("positions_below", 60), (B, T))
    elif feed.get("mask") == "left":
        inputs["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)
    inputs["labels"] = labels
    return inputs


def spell_as_before(folder):
    """config.json as transformers 4 wrote it."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    parameters = config.pop("rope_parameters")
    config["rope_theta"] = parameters.pop("rope_theta")
    kind = parameters.pop("rope_type")
    config["rope_scaling"] = None if kind == "default" else {"type": kind, **parameters}
    path.write_text(json.dumps(config, indent=2))


def make(folder, seed, family, settings, feed):
    torch.manual_seed(seed)
    model = build(family, settings)
    inputs = make_inputs(model.config.vocab_size, feed)
    out = model(**inputs)
    out.loss.backward()
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    if feed.get("old"):
        spell_as_before(folder)
    oracle = {f"in.{k}": v for k, v in inputs.items()}
    oracle["out.logits"] = out.logits.detach()
    oracle["out.loss"] = out.loss.detach().reshape(1)
    for key, parameter in model.named_parameters():
        oracle[f"grad.{key}"] = parameter.grad
    save_file({k: v.contiguous() for k, v in oracle.items()}, folder / "oracle.safetensors")


def draw(rng):
    """A variant at random."""
    family = rng.choice(["llama", "qwen2"])
    head_dim = 2 * rng.randint(2, 20)
    groups = rng.randint(1, 4)
    kv_heads = rng.randint(1, 4)
    heads = groups * kv_heads
    settings = dict(num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim,
                    hidden_size=heads * rng.randint(3, 12), intermediate_size=rng.randint(1, 130),
                    vocab_size=rng.randint(2, 300), num_hidden_layers=rng.randint(1, 4),
                    # wider weights saturate softmaxes: PyTorch is then off by 2e-5 itself
                    initializer_range=rng.choice([0.02, 0.1]),
                    tie_word_embeddings=rng.random() < 0.5, rms_norm_eps=rng.choice([1e-6, 1e-5]))
    if family == "llama":
        settings.update(attention_bias=rng.random() < 0.5, mlp_bias=rng.random() < 0.5)
    original = rng.choice([16, 40])
    parameters = rng.choice([
        {}, {}, rope("linear", factor=rng.uniform(1, 5)), rope("dynamic", factor=rng.uniform(1, 5)),
        rope("llama3", factor=rng.uniform(2, 16), low_freq_factor=1.0, high_freq_factor=4.0,
             original_max_position_embeddings=original),
        rope("yarn", factor=rng.uniform(1.5, 8), original_max_position_embeddings=original),
        longrope(head_dim // 2, original_max_position_embeddings=original)])
    if parameters:
        parameters["rope_parameters"]["rope_theta"] = rng.choice([100.0, 1e4, 5e5, 1e6])
    settings.update(parameters)
    feed = dict(B=rng.randint(1, 4), T=rng.randint(8, 100), positions=rng.random() < 0.3,
                old=rng.random() < 0.5)
    if rng.random() < 0.6:
        feed["mask"] = rng.choice(["left", "right", "holes"])
    return family, settings, feed


def verify(czero, folder):
    done = subprocess.run([czero, "verify", str(folder)], capture_output=True, text=True)
    worst, where = 0.0, ""
    for line in done.stdout.splitlines():
        if line.startswith(("grad.", "out.")):
            name, error = line.split()[:2]
            if not float(error) <= worst:
                worst, where = float(error), name
    return (worst, where) if done.returncode == 0 else (float("inf"), done.stderr or where)


def check(czero, seed):
    rng = random.Random(seed)
    cases = dict(VARIANTS)
    cases.update({f"drawn-{seed}-{i}": draw(rng) for i in range(60)})
    failed = 0
    with tempfile.TemporaryDirectory() as work:
        for idx, (name, variant) in enumerate(cases.items()):
            folder = pathlib.Path(work) / name
            make(folder, seed * 1000 + idx, *variant)
            worst, where = verify(czero, folder)
            failed += worst > BOUND
            print(f"{name:20} {worst:.2e} {where}{' FAILED' if worst > BOUND else ''}")
            if worst > BOUND and name.startswith("drawn"):
                print("   ", variant)
    print(f"{len(cases)} models, {failed} beyond {BOUND}")
    return failed


SHIPPED = {
    "llama-variant": ("llama", dict(attention_bias=True, mlp_bias=True, head_dim=12, hidden_size=36,
                                    num_attention_heads=6, **rope(
                                        "llama3", factor=8.0, low_freq_factor=1.0,
                                        high_freq_factor=4.0,
                                        original_max_position_embeddings=32)),
                      dict(T=21, mask="left", old=True)),
    "qwen2-variant": ("qwen2", dict(tie_word_embeddings=True, pad_token_id=3,
                                    max_position_embeddings=32, **rope(
        "yarn", factor=4.0, original_max_position_embeddings=16)),
                      dict(T=17, positions=True, mask="right")),
}

if __name__ == "__main__":
    command, rest = sys.argv[1], sys.argv[2:]
    if command == "check":
        sys.exit(1 if check(rest[0], int(rest[1]) if len(rest) > 1 else 1) else 0)
    if command == "one":
        make(pathlib.Path(rest[0]), int(rest[2]) if len(rest) > 2 else 1, *VARIANTS[rest[1]])
    if command == "make":
        for shipped, variant in SHIPPED.items():
            make(pathlib.Path(rest[0]) / shipped, 7, *variant)
