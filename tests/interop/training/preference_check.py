#!/usr/bin/env python3
"""Preference training of an adapter: examples/preference.c beside TRL's DPOTrainer.

    $(scripts/peers.sh) tests/interop/training/preference_check.py build [--seed S] [--count N]
        [--make FOLDER]

N random tiny models (LLaMA, Qwen3, GPT-2) with random pairs and adapters that begin as PEFT makes them (TRL's reference is the
adapter as it began, ours the model without it: the same for these); ten steps each, with accumulation and clipping. Losses
have to agree to 1e-5. --make writes the case of the default suite (tests/fixtures/preference)."""

import argparse
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile

os.environ["CUDA_VISIBLE_DEVICES"] = ""

import datasets
import peft
import tokenizers
import torch
import transformers
import trl

ROOT = pathlib.Path(__file__).resolve().parents[3]
STEPS, TOLERANCE = 10, 1e-5


def make_model(rng, folder, tok):
    size = dict(vocab_size=len(tok), hidden_size=32, num_attention_heads=4, num_hidden_layers=rng.choice([1, 2, 3]),
                max_position_embeddings=128, eos_token_id=tok.eos_token_id, pad_token_id=tok.pad_token_id, bos_token_id=None)
    kind = rng.choice(["llama", "qwen3", "gpt2"])
    if kind == "llama":
        config = transformers.LlamaConfig(**size, intermediate_size=48, num_key_value_heads=rng.choice([1, 2, 4]), tie_word_embeddings=rng.random() < 0.5)
    elif kind == "qwen3":
        config = transformers.Qwen3Config(**size, intermediate_size=48, num_key_value_heads=2, head_dim=8, tie_word_embeddings=rng.random() < 0.5)
    else:
        config = transformers.GPT2Config(vocab_size=len(tok), n_embd=32, n_head=4, n_layer=2, n_positions=128, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, eos_token_id=tok.eos_token_id,
                                           bos_token_id=tok.eos_token_id)
    model = transformers.AutoModelForCausalLM.from_config(config)
    for p in model.parameters():
        if p.ndim > 1:
            torch.nn.init.normal_(p, std=0.08)
    model.save_pretrained(folder)
    tok.save_pretrained(folder)
    return kind


def make_adapter(rng, base, folder):
    config = peft.LoraConfig(r=rng.choice([2, 4, 8]), lora_alpha=rng.choice([4, 16]), target_modules="all-linear", task_type="CAUSAL_LM")
    peft.get_peft_model(transformers.AutoModelForCausalLM.from_pretrained(base), config).save_pretrained(folder)


def make_pairs(rng, n):
    def words(least, most):
        return " ".join("".join(rng.choice("abcdeghilmnorstu") for _ in range(rng.randint(1, 6))) for _ in range(rng.randint(least, most)))
    return [{"prompt": words(1, 6) + ":", "chosen": " " + words(1, 6), "rejected": " " + words(1, 6)} for _ in range(n)]


class Trainer(trl.DPOTrainer):
    """In the order of the rows, with every micro-batch's loss kept."""

    def _get_train_sampler(self, *_):
        return torch.utils.data.SequentialSampler(self.train_dataset)

    def compute_loss(self, *args, **kwargs):
        out = super().compute_loss(*args, **kwargs)
        self.kept.append((out[0] if isinstance(out, tuple) else out).item())
        return out


def train_with_trl(base, adapter, pairs, micro, accumulation, lr, clip, work):
    model = peft.PeftModel.from_pretrained(transformers.AutoModelForCausalLM.from_pretrained(base), adapter, is_trainable=True)
    config = trl.DPOConfig(output_dir=str(work), per_device_train_batch_size=micro, gradient_accumulation_steps=accumulation, max_steps=STEPS, learning_rate=lr,
                           lr_scheduler_type="constant", max_grad_norm=clip, weight_decay=0.0, beta=0.1, bf16=False, fp16=False, use_cpu=True, report_to=[],
                           save_strategy="no", gradient_checkpointing=False, disable_tqdm=True, seed=1, log_level="error", logging_strategy="no")
    trainer = Trainer(model=model, args=config, train_dataset=datasets.Dataset.from_list(pairs), processing_class=transformers.AutoTokenizer.from_pretrained(base))
    trainer.kept = []
    trainer.train()
    return [sum(trainer.kept[i * accumulation:(i + 1) * accumulation]) / accumulation for i in range(STEPS)]


def train_with_czero(build, base, adapter, pairs, config):
    done = subprocess.run([build / "examples/preference", base, pairs, config, str(STEPS), pairs.parent / "out", adapter], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"preference: {done.stderr}")
    return [float(line.split()[-1]) for line in done.stdout.splitlines() if line.startswith("step ")]


def one(seed, build, work, tok):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    micro, accumulation, lr, clip = rng.choice([1, 2, 3]), rng.choice([1, 2]), rng.choice([1e-3, 1e-2]), rng.choice([0.0, 0.5])
    kind = make_model(rng, work / "model", tok)
    make_adapter(rng, work / "model", work / "adapter")
    pairs = make_pairs(rng, STEPS * micro * accumulation)
    _, worst = compare(build, work, pairs, micro, accumulation, lr, clip, f"seed {seed}: {kind}")
    return worst


def compare(build, work, pairs, micro, accumulation, lr, clip, name):
    (work / "pairs.tsv").write_text("".join("\t".join((p["prompt"], p["chosen"], p["rejected"])) + "\n" for p in pairs))
    (work / "ds.json").write_text(json.dumps({"train_micro_batch_size_per_gpu": 2 * micro, "gradient_accumulation_steps": accumulation, "gradient_clipping": clip,
                                              "optimizer": {"type": "AdamW", "params": {"lr": lr, "weight_decay": 0}}}))
    want = train_with_trl(work / "model", work / "adapter", pairs, micro, accumulation, lr, clip, work / "trl")
    have = train_with_czero(build, work / "model", work / "adapter", work / "pairs.tsv", work / "ds.json")
    worst = max(abs(a - b) for a, b in zip(want, have, strict=True))
    print(f"{name}, {micro} pairs x {accumulation}, lr {lr:g}, clip {clip:g}: losses {want[0]:.6f} to {want[-1]:.6f}, largest difference {worst:.1e}", flush=True)
    return want, worst


def make(build, out, seed):
    """fixtures/models/llama, a tokenizer of 90 pieces, the adapter that the example begins with."""
    out.mkdir()
    tok = tokenizers.Tokenizer(tokenizers.models.BPE())
    tok.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = tokenizers.decoders.ByteLevel()
    pairs = make_pairs(random.Random(seed), STEPS * 4)
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=90, special_tokens=["<|end|>"])
    tok.train_from_iterator([p[k] for p in pairs for k in p], trainer)
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        shutil.copytree(ROOT / "build/fixtures/models/llama", work / "model")
        transformers.PreTrainedTokenizerFast(tokenizer_object=tok, eos_token="<|end|>", pad_token="<|end|>").save_pretrained(work / "model")
        (work / "pairs.tsv").write_text("a\tb\tc\n")
        (work / "ds.json").write_text(json.dumps({"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 1}}}))
        subprocess.run([build / "examples/preference", work / "model", work / "pairs.tsv", work / "ds.json", "0", work / "adapter"], check=True)
        want, worst = compare(build, work, pairs, 2, 2, 5e-3, 0.5, f"seed {seed}: the recorded one")
        for name in ("model/tokenizer.json", "model/tokenizer_config.json", "pairs.tsv", "ds.json"):
            shutil.copy(work / name, out)
    (out / "losses").write_text("".join(f"{x:.7f}\n" for x in want))
    return worst


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--count", type=int, default=5)
    parser.add_argument("--make", type=pathlib.Path)
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    datasets.disable_progress_bars()
    tok = transformers.AutoTokenizer.from_pretrained(ROOT / "build/fixtures/tokenizers/qwen2")
    if tok.pad_token is None:
        tok.pad_token = tok.eos_token
    if args.make:
        return make(args.build.resolve(), args.make, args.seed) > TOLERANCE
    bad = 0
    for seed in range(args.seed, args.seed + args.count):
        with tempfile.TemporaryDirectory() as work:
            bad += one(seed, args.build.resolve(), pathlib.Path(work), tok) > TOLERANCE
    print(f"{args.count - bad} of {args.count} agree to {TOLERANCE:g}")
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
