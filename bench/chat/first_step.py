#!/usr/bin/env python3
"""From exec to the end of step 1 of `czero train --task sft` on many chats, with packing.

    python3 bench/chat/first_step.py [--rows 100000] [--runs 5] [--template FILE] [--keep DIR]

Chats of one to three turns, 270 tokens on average, are put together from examples/data/fortunes.txt, docs/ and the
sources of this Python's standard library; `czero vocab` makes a vocabulary of 50,000 from the same texts, which is
split as Qwen2's; the model is a Qwen3 of two narrow layers. --template: a chat template, such as TRL's
qwen3_training.jinja; without it turns stand between <|im_start|> and <|im_end|>. --keep: leave the files in DIR.
"""
import argparse
import glob
import json
import os
import random
import statistics
import subprocess
import sysconfig
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
TEMPLATE = """{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def texts():
    library = sorted(glob.glob(os.path.join(sysconfig.get_path("stdlib"), "*.py")))
    paths = [os.path.join(ROOT, "examples", "data", "fortunes.txt")]
    paths += sorted(glob.glob(os.path.join(ROOT, "docs", "*.md"))) + library
    return [open(path, encoding="utf-8", errors="replace").read() for path in paths]


def write_model(work, czero, pieces, template):
    model, corpus = os.path.join(work, "model"), os.path.join(work, "corpus.txt")
    with open(corpus, "w", encoding="utf-8") as f:
        f.write("\n".join(pieces))
    subprocess.run([czero, "vocab", "--data", corpus, "--type", "bpe", "--size", "50000", "-o", model], check=True,
                   stdout=subprocess.DEVNULL)
    path = os.path.join(model, "tokenizer.json")
    tokenizer = json.load(open(path, encoding="utf-8"))
    n = len(tokenizer["model"]["vocab"])
    for i, name in enumerate(("<|im_start|>", "<|im_end|>")):
        tokenizer["added_tokens"].append({"id": n + i, "content": name, "single_word": False, "lstrip": False,
                                          "rstrip": False, "normalized": False, "special": True})
    tokenizer["normalizer"] = {"type": "NFC"}
    tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]}
    json.dump(tokenizer, open(path, "w", encoding="utf-8"))
    json.dump({"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
              open(os.path.join(model, "tokenizer_config.json"), "w"))
    with open(os.path.join(model, "chat_template.jinja"), "w") as f:
        f.write(open(template).read() if template else TEMPLATE)
    json.dump({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": (n + 2 + 63) // 64 * 64,
               "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
               "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 4096, "tie_word_embeddings": True},
              open(os.path.join(model, "config.json"), "w"))
    json.dump({"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}},
              open(os.path.join(work, "ds.json"), "w"))


def write_chats(path, pieces, rows):
    draw = random.Random(24)
    with open(path, "w", encoding="utf-8") as f:
        for _ in range(rows):
            messages = []
            for _ in range(draw.choice((1, 1, 1, 2, 2, 3))):
                for role, mean in (("user", 110), ("assistant", 440)):
                    text, n = draw.choices(pieces, weights=map(len, pieces))[0], 1 + int(draw.gammavariate(1.5, mean / 1.5))
                    at = draw.randrange(max(1, len(text) - n))
                    messages.append({"role": role, "content": text[at:at + n].strip() or "yes"})
            f.write(json.dumps({"messages": messages}, ensure_ascii=False) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--czero", default=os.path.join(ROOT, "build", "czero"))
    parser.add_argument("--rows", type=int, default=100000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--template")
    parser.add_argument("--keep")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        work = args.keep or scratch
        os.makedirs(work, exist_ok=True)
        pieces = texts()
        write_model(work, args.czero, pieces, args.template)
        write_chats(os.path.join(work, "chats.jsonl"), pieces, args.rows)
        nbytes, seconds = os.path.getsize(os.path.join(work, "chats.jsonl")), []
        for _ in range(args.runs):
            begin = time.perf_counter()
            run = subprocess.run([args.czero, "train", "--config", os.path.join(work, "ds.json"), "--model",
                                  os.path.join(work, "model"), "--init", "random", "--task", "sft", "--data",
                                  os.path.join(work, "chats.jsonl"), "--seq-len", "1024", "--packing", "--steps", "1"],
                                 check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            seconds.append(time.perf_counter() - begin)
        print(next(line for line in run.stderr.splitlines() if "examples of" in line))
        print(f"{args.rows} rows, {nbytes / 1e6:.0f} MB, one step: best {min(seconds):.2f} s, "
              f"median {statistics.median(seconds):.2f} s, worst {max(seconds):.2f} s")


if __name__ == "__main__":
    main()
