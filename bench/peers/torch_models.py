"""Peer of bench/train_models.py: PyTorch eager takes one training step per line on standard input.

Same work as bench_train: the model of a config.json, random tokens of the same shapes, padding for an
encoder, clipping at norm 1, AdamW. --precision bf16: weights, gradients and states in bf16;
autocast: fp32 weights and states. Answers: seconds, processor time, loss, peak of resident bytes.
"""
import argparse
import resource
import sys
import time

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", help="a folder with config.json")
    parser.add_argument("precision", choices=["fp32", "bf16", "autocast"])
    parser.add_argument("batch", type=int)
    parser.add_argument("seq_len", type=int)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--lora", type=int, default=0, help="PEFT's adapter of this rank on all linear maps")
    parser.add_argument("--foreach", action="store_true", help="AdamW's foreach form, not the fused one")
    return parser.parse_args()


def adapted(model, rank):
    import peft
    return peft.get_peft_model(model, peft.LoraConfig(r=rank, target_modules="all-linear", task_type="CAUSAL_LM"))


def make_batch(config, encoder, batch, seq_len):
    ids = torch.randint(0, config.vocab_size, (batch, seq_len))
    if not encoder:
        return {"input_ids": ids, "labels": ids}
    lengths = torch.randint(seq_len // 2, seq_len + 1, (batch, 1))
    mask = (torch.arange(seq_len)[None, :] < lengths).long()
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.randint(0, 2, (batch,))}


def main():
    args = arguments()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(args.config)
    encoder = "bert" in config.model_type
    kind = AutoModelForSequenceClassification if encoder else AutoModelForCausalLM
    model = kind.from_config(config)
    if args.precision == "bf16":
        model = model.to(torch.bfloat16)
    if args.lora:
        model = adapted(model, args.lora)
    model.train()
    how = {"foreach": True} if args.foreach else {"fused": True}
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4, weight_decay=0.01, **how)
    for _ in sys.stdin:
        inputs = make_batch(config, encoder, args.batch, args.seq_len)
        begin, cpu = time.perf_counter(), time.process_time()
        with torch.autocast("cpu", torch.bfloat16, enabled=args.precision == "autocast"):
            loss = model(**inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        value = loss.item()
        print(time.perf_counter() - begin, time.process_time() - cpu, value,
              resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, flush=True)


if __name__ == "__main__":
    main()
