#!/usr/bin/env python3
"""Adapters that PEFT trained under DeepSpeed's ZeRO, out of its shards: `czero export --adapter` against what PEFT saves.

  lora_shards.py [--build build] [--case STAGE:DTYPE:EXCLUDE]

For ZeRO stages 1, 2 and 3, fp32 and bf16, with and without exclude_frozen_parameters, a tiny LLaMA with PEFT's LoRA (one with a
classifier's head in modules_to_save, one with DoRA) takes three steps on two ranks (gloo) under DeepSpeed and saves a checkpoint. The parameters are
then gathered and saved by PEFT itself. czero's adapter_model.safetensors, made from the shards alone, must have the same bytes, and
PEFT must load the folder. In fp32 czero also resumes the checkpoint (`czero train --resume --adapter`): it writes the same tensors
without a step, and the losses of five more steps are within 1e-5 of those of DeepSpeed, which trains on uninterrupted: on one
rank, and on two at the same stage. Exit 1 if anything differs. Run with a Python that has torch, transformers, peft and deepspeed."""
import argparse
import csv
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import warnings

sys.dont_write_bytecode = True
SAVED, STEPS, MICRO, LENGTH, VOCAB = 3, 8, 2, 9, 61
warnings.filterwarnings("ignore")


def tokens():
    """A stream; row k of a run is its tokens [k LENGTH, (k+1) LENGTH), each trained to predict the next one."""
    draw = random.Random(11)
    return [draw.randrange(1, VOCAB) for _ in range(STEPS * 2 * MICRO * LENGTH + 1)]


def ds_config(stage, dtype):
    return {"train_micro_batch_size_per_gpu": MICRO, "zero_optimization": {"stage": stage}, "bf16": {"enabled": dtype == "bf16"},
            "optimizer": {"type": "AdamW", "params": {"lr": 0.02, "torch_adam": True}}, "zero_allow_untested_optimizer": True}


def child(folder, stage, dtype, exclude, kind):
    os.environ.update(DS_ACCELERATOR="cpu", OMP_NUM_THREADS="1")
    import deepspeed
    import peft
    import torch
    import transformers
    transformers.logging.set_verbosity_error()
    rank = int(os.environ["RANK"])
    folder = pathlib.Path(folder)
    torch.manual_seed(3)
    config = transformers.LlamaConfig(vocab_size=VOCAB, hidden_size=32, intermediate_size=56, num_hidden_layers=2,
                                      num_attention_heads=4, num_key_value_heads=2, pad_token_id=0, num_labels=3)
    classifies = kind == "classifier"
    base = (transformers.LlamaForSequenceClassification if classifies else transformers.LlamaForCausalLM)(config)
    if rank == 0:
        base.save_pretrained(folder / "base")
    model = peft.get_peft_model(base, peft.LoraConfig(r=3, lora_alpha=7, target_modules="all-linear", use_dora=kind == "dora",
                                                      task_type="SEQ_CLS" if classifies else "CAUSAL_LM"))
    engine, _, _, _ = deepspeed.initialize(model=model, config=ds_config(stage, dtype), dist_init_required=True,
                                           model_parameters=[p for p in model.parameters() if p.requires_grad])
    stream, losses = torch.tensor(tokens()), []

    def train(steps):
        for step in steps:
            at = [((2 * step + rank) * MICRO + i) * LENGTH for i in range(MICRO)]
            ids = torch.stack([stream[k:k + LENGTH] for k in at])
            if classifies:
                loss = engine(input_ids=ids, labels=ids.sum(1) % 3).loss
            else:
                logits = engine(input_ids=ids).logits.float().flatten(0, 1)
                loss = torch.nn.functional.cross_entropy(logits, torch.cat([stream[k + 1:k + LENGTH + 1] for k in at]))
            engine.backward(loss)
            engine.step()
            mean = loss.detach().float().clone()
            torch.distributed.all_reduce(mean)
            losses.append(mean.item() / 2)

    train(range(SAVED))
    engine.save_checkpoint(str(folder / "ckpt"), exclude_frozen_parameters=exclude)
    trained = [p for p in engine.module.parameters() if p.requires_grad]
    with deepspeed.zero.GatheredParameters(trained, modifier_rank=None, enabled=stage == 3):
        if rank == 0:
            state = {n: p.detach().clone() for n, p in engine.module.named_parameters() if p.requires_grad}
            engine.module.save_pretrained(folder / "peft", state_dict=state)
    torch.distributed.barrier()
    train(range(SAVED, STEPS))
    if rank == 0:
        (folder / "losses.json").write_text(json.dumps(losses[SAVED:]))


def resume(czero, folder, config, n_ranks, steps):
    """czero's run from the checkpoint to the end of `steps`, and what it says if it fails."""
    (folder / "ds.json").write_text(json.dumps(config))
    launch = ["launch", "-n", str(n_ranks)] if n_ranks > 1 else []
    done = subprocess.run([czero, *launch, "train", "--config", folder / "ds.json", "--model", folder / "base", "--adapter",
                           folder / "ours", "--resume", folder / "ckpt", "--data", f"u16:{folder}/rows.bin", "--seq-len",
                           str(LENGTH), "--shuffle", "off", "--steps", str(steps), "--curve", folder / "curve.csv", "--export",
                           folder / "resumed", "--force", "--quiet"], capture_output=True, text=True)
    return done.stderr.strip()[-400:] if done.returncode != 0 else ""


def compare_losses(czero, folder, stage):
    """One rank with accumulation, then two at DeepSpeed's stage."""
    want, complaints, farthest = json.loads((folder / "losses.json").read_text()), [], 0.0
    for n_ranks in (1, 2):
        config = ds_config(stage if n_ranks > 1 else 0, "fp32") | {"gradient_accumulation_steps": 2 // n_ranks}
        failure = resume(czero, folder, config, n_ranks, STEPS)
        have = [] if failure else [float(row["loss"]) for row in csv.DictReader((folder / "curve.csv").open())]
        if failure or len(have) != len(want):
            complaints.append(f"resume on {n_ranks}: {failure or have}")
            continue
        far = max(abs(a - b) for a, b in zip(have, want))
        farthest = max(farthest, far)
        if far > 1e-5:
            complaints.append(f"{n_ranks} ranks: losses {have}, DeepSpeed's {want}")
    return complaints, farthest


def compare(czero, folder, stage, dtype, kind):
    import peft
    import transformers
    complaints = []
    shutil.copy(folder / "peft" / "adapter_config.json", folder / "ckpt" / "adapter_config.json")
    done = subprocess.run([czero, "export", "--adapter", folder / "ckpt", folder / "ours", "--quiet"], capture_output=True,
                          text=True)
    if done.returncode != 0:
        return [done.stderr.strip()]
    ours, theirs = [(folder / d / "adapter_model.safetensors").read_bytes() for d in ("ours", "peft")]
    if ours != theirs:
        from safetensors.torch import load
        a, b = load(ours), load(theirs)
        complaints.append(f"{len(ours)} and {len(theirs)} bytes differ; names {sorted(a.keys() ^ b.keys())[:3]}, tensors "
                          f"{[n for n in a if n in b and (a[n].dtype != b[n].dtype or not a[n].equal(b[n]))][:3]}")
    head = transformers.AutoModelForSequenceClassification if kind == "classifier" else transformers.AutoModelForCausalLM
    peft.PeftModel.from_pretrained(head.from_pretrained(folder / "base"), folder / "ours")
    if dtype == "fp32" and kind != "classifier":
        (folder / "rows.bin").write_bytes(b"".join(t.to_bytes(2, "little") for t in tokens()))
        failure = resume(czero, folder, ds_config(0, dtype), 1, SAVED)
        if failure:
            complaints.append(f"resume: {failure}")
        elif (folder / "resumed" / "adapter_model.safetensors").read_bytes() != theirs:
            complaints.append("the resumed run has other tensors")
        more, farthest = compare_losses(czero, folder, stage)
        print(f"  {STEPS - SAVED} more steps: losses within {farthest:.1e}", flush=True)
        complaints += more
    return complaints


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build")
    parser.add_argument("--case")
    parser.add_argument("--child", nargs=5)
    options = parser.parse_args()
    if options.child:
        folder, stage, dtype, exclude, kind = options.child
        child(folder, int(stage), dtype, exclude == "yes", kind)
        return 0
    czero = pathlib.Path(options.build).resolve() / "czero"
    cases = [(s, d, e, "lm") for s in "123" for d in ("fp32", "bf16") for e in ("no", "yes")]
    cases += [(s, "bf16", "yes", "classifier") for s in "23"]
    cases += [(s, "fp32", "yes", "dora") for s in "123"]
    if options.case:
        cases = [tuple(options.case.split(":"))]
    failed = 0
    for number, case in enumerate(cases):
        with tempfile.TemporaryDirectory() as folder:
            ranks = [subprocess.Popen([sys.executable, __file__, "--child", folder, *case], stdout=subprocess.DEVNULL,
                                      stderr=subprocess.PIPE, text=True,
                                      env={**os.environ, "RANK": str(r), "LOCAL_RANK": str(r), "WORLD_SIZE": "2",
                                           "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(29610 + number)}) for r in range(2)]
            errors = [r.communicate()[1] for r in ranks]
            complaints = [e[-800:] for r, e in zip(ranks, errors) if r.returncode != 0]
            complaints = complaints or compare(czero, pathlib.Path(folder), int(case[0]), case[1], case[3])
        failed += bool(complaints)
        print(f"stage {case[0]}, {case[1]}, exclude_frozen {case[2]}, {case[3]}: {'; '.join(complaints) or 'same bytes'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
