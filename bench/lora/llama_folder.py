#!/usr/bin/env python3
"""A folder of a LLaMA model with random bf16 weights, in shards, as large as the real one and quickly made.

    python3 bench/lora/llama_folder.py OUT [--hidden 4096 --layers 32 --heads 32 --kv-heads 8 --mlp 14336 --vocab 128256]

The shape is LLaMA 3 8B's unless said otherwise: 8.0 billion parameters, 15 GiB. Weights repeat a block of normal
numbers with a deviation of 0.02; norms are 1. Needs Python alone.
"""
import argparse
import json
import pathlib
import random
import struct

SHARD_NBYTES = 4 << 30
BLOCK_NUMEL = (1 << 20) + 41  # no multiple of a row: rows differ


def tensors(a):
    head = a.hidden // a.heads
    yield "model.embed_tokens.weight", (a.vocab, a.hidden)
    for i in range(a.layers):
        p = f"model.layers.{i}."
        yield p + "input_layernorm.weight", (a.hidden,)
        yield p + "self_attn.q_proj.weight", (a.hidden, a.hidden)
        yield p + "self_attn.k_proj.weight", (a.kv_heads * head, a.hidden)
        yield p + "self_attn.v_proj.weight", (a.kv_heads * head, a.hidden)
        yield p + "self_attn.o_proj.weight", (a.hidden, a.hidden)
        yield p + "post_attention_layernorm.weight", (a.hidden,)
        yield p + "mlp.gate_proj.weight", (a.mlp, a.hidden)
        yield p + "mlp.up_proj.weight", (a.mlp, a.hidden)
        yield p + "mlp.down_proj.weight", (a.hidden, a.mlp)
    yield "model.norm.weight", (a.hidden,)
    yield "lm_head.weight", (a.vocab, a.hidden)


def numel(shape):
    n = 1
    for s in shape:
        n *= s
    return n


def bf16(values):
    return b"".join(struct.pack("<f", v)[2:] for v in values)


def write_shard(path, shard, block):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in shard:
        end = at + 2 * numel(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for name, shape in shard:
            left = 2 * numel(shape)
            fill = bf16([1.0]) * shape[0] if len(shape) == 1 else block
            while left > 0:
                left -= f.write(fill[:left])


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    p.add_argument("out", type=pathlib.Path)
    for name, value in (("hidden", 4096), ("layers", 32), ("heads", 32), ("kv-heads", 8), ("mlp", 14336), ("vocab", 128256)):
        p.add_argument("--" + name, type=int, default=value)
    a = p.parse_args()
    a.out.mkdir(parents=True)
    shards, size = [[]], 0
    for name, shape in tensors(a):
        if shards[-1] and size + 2 * numel(shape) > SHARD_NBYTES:
            shards.append([])
            size = 0
        shards[-1].append((name, shape))
        size += 2 * numel(shape)
    rng = random.Random(1)
    block = bf16([rng.gauss(0, 0.02) for _ in range(BLOCK_NUMEL)])
    where = {}
    for i, shard in enumerate(shards):
        name = f"model-{i + 1:05}-of-{len(shards):05}.safetensors"
        write_shard(a.out / name, shard, block)
        where.update({tensor: name for tensor, _ in shard})
    total = sum(2 * numel(shape) for shard in shards for _, shape in shard)
    (a.out / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": total}, "weight_map": where}, indent=2))
    (a.out / "config.json").write_text(json.dumps({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": a.vocab, "hidden_size": a.hidden,
        "num_hidden_layers": a.layers, "num_attention_heads": a.heads, "num_key_value_heads": a.kv_heads,
        "intermediate_size": a.mlp, "hidden_act": "silu", "max_position_embeddings": 8192, "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0, "tie_word_embeddings": False, "dtype": "bfloat16"}, indent=2))
    print(f"{a.out}: {total / 2 / 1e9:.2f} billion parameters, {total / 2**30:.1f} GiB in {len(shards)} shards")


if __name__ == "__main__":
    main()
