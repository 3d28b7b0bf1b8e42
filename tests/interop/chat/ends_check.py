#!/usr/bin/env python3
"""Answers of exports beside transformers: both stop at the end of the turn that was trained.

    $(scripts/peers.sh) tests/interop/chat/ends_check.py build/czero [FAMILY...]

Tiny models whose own end token is <|endoftext|> are trained on chats whose turns end with <|im_end|>, whole and as adapters that are merged. transformers
loads each export, and generate() with its files alone has to write what czero generate --chat writes, and stop."""

import json
import pathlib
import subprocess
import sys
import tempfile

import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parents[3]
FAMILIES = ["qwen2-tiny", "llama-tiny", "gemma3-tiny", "phi3-tiny", "gpt2-tiny"]
TEMPLATE = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


def czero(*args):
    done = subprocess.run([sys.argv[1], *map(str, args)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"czero {' '.join(map(str, args))}: {done.stderr}")
    return done.stdout


def main():
    transformers.logging.set_verbosity_error()
    bad = 0
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        tok = work / "tok"
        tok.mkdir()
        for path in (ROOT / "build/fixtures/tokenizers/qwen2").iterdir():
            (tok / path.name).write_bytes(path.read_bytes())
        config = json.loads((tok / "tokenizer_config.json").read_text())
        (tok / "tokenizer_config.json").write_text(json.dumps(dict(config, tokenizer_class="PreTrainedTokenizerFast", eos_token="<|endoftext|>", chat_template=TEMPLATE)))
        (work / "chats.jsonl").write_text("".join(json.dumps({"messages": [{"role": "user", "content": f"hello {c}"}, {"role": "assistant", "content": "good day"}]}) + "\n" for c in "abcdefgh"))
        (work / "ds.json").write_text(json.dumps({"train_micro_batch_size_per_gpu": 8, "optimizer": {"type": "AdamW", "params": {"lr": 5e-3}}}))
        train = ["train", "--config", work / "ds.json", "--task", "sft", "--data", work / "chats.jsonl", "--seq-len", 48, "--quiet"]
        for family in sys.argv[2:] or FAMILIES:
            whole, start, adapter, merged = (work / f"{family}-{name}" for name in ("whole", "start", "adapter", "merged"))
            czero(*train, "--model", family, "--tokenizer", tok, "--steps", 80, "--export", whole)
            czero(*train, "--model", family, "--tokenizer", tok, "--steps", 40, "--loss-on", "all", "--export", start)
            czero(*train, "--model", start, "--steps", 40, "--lora", "rank=16,alpha=64", "--export", adapter)
            czero("export", adapter, merged, "--merge", "--model", start)
            for folder in (whole, merged):
                ours = czero("generate", "--model", folder, "--chat", "hello a", "--max-new-tokens", 24).rstrip("\n")
                tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
                model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
                ids = tokenizer.apply_chat_template([{"role": "user", "content": "hello a"}], add_generation_prompt=True, return_tensors="pt", return_dict=True)
                out = model.generate(**ids, max_new_tokens=24, do_sample=False)[0][ids["input_ids"].shape[1]:]
                theirs = tokenizer.decode(out, skip_special_tokens=True)
                stops = len(out) < 24 and int(out[-1]) == tokenizer.convert_tokens_to_ids("<|im_end|>")
                equal = stops and theirs == ours
                bad += not equal
                print(f"{folder.name}: {'equal' if equal else 'DIFFERS'}: {ours!r}, transformers {theirs!r}, config {model.config.eos_token_id}, "
                      f"generation_config {model.generation_config.eos_token_id}")
    sys.exit(1 if bad else 0)


main()
