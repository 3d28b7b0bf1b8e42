#!/usr/bin/env python3
"""Adapters that PEFT trained under DeepSpeed's ZeRO, out of its shards: `czero export --adapter` against what PEFT saves.

  lora_shards.py [--build build] [--case STAGE:DTYPE:EXCLUDE]

For ZeRO stages 1, 2 and 3, fp32 and bf16, with and without exclude_frozen_parameters, a tiny LLaMA with PEFT's LoRA (one with a
classifier's head in modules_to_save, one with DoRA) takes three steps on two ranks (gloo) under DeepSpeed and saves a checkpoint. The parameters are
then gathered and saved by PEFT itself. czero's adapter_model.safetensors, made from the shards alone, must have the same bytes, and
PEFT must load the folder. In fp32 czero also resumes the checkpoint (`czero train --resume --adapter`) and writes the same tensors
without a step. Exit 1 if anything differs. Run with a Python that has torch, transformers, peft and deepspeed."""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import warnings

sys.dont_write_bytecode = True
warnings.filterwarnings("ignore")


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
    config = transformers.LlamaConfig(vocab_size=61, hidden_size=32, intermediate_size=56, num_hidden_layers=2,
                                      num_attention_heads=4, num_key_value_heads=2, pad_token_id=0, num_labels=3)
    classifies = kind == "classifier"
    base = (transformers.LlamaForSequenceClassification if classifies else transformers.LlamaForCausalLM)(config)
    if rank == 0:
        base.save_pretrained(folder / "base")
    model = peft.get_peft_model(base, peft.LoraConfig(r=3, lora_alpha=7, target_modules="all-linear", use_dora=kind == "dora",
                                                      task_type="SEQ_CLS" if classifies else "CAUSAL_LM"))
    ds = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": stage}, "bf16": {"enabled": dtype == "bf16"},
          "optimizer": {"type": "AdamW", "params": {"lr": 0.02, "torch_adam": True}}, "zero_allow_untested_optimizer": True}
    engine, _, _, _ = deepspeed.initialize(model=model, config=ds, dist_init_required=True,
                                           model_parameters=[p for p in model.parameters() if p.requires_grad])
    torch.manual_seed(10 + rank)
    for _ in range(3):
        ids = torch.randint(1, 61, (2, 9))
        labels = torch.randint(0, 3, (2,)) if classifies else ids
        engine.backward(engine(input_ids=ids, labels=labels).loss)
        engine.step()
    engine.save_checkpoint(str(folder / "ckpt"), exclude_frozen_parameters=exclude)
    trained = [p for p in engine.module.parameters() if p.requires_grad]
    with deepspeed.zero.GatheredParameters(trained, modifier_rank=None, enabled=stage == 3):
        if rank == 0:
            state = {n: p.detach().clone() for n, p in engine.module.named_parameters() if p.requires_grad}
            engine.module.save_pretrained(folder / "peft", state_dict=state)
    torch.distributed.barrier()


def compare(czero, folder, dtype, kind):
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
        (folder / "ds.json").write_text(json.dumps({"train_micro_batch_size_per_gpu": 2, "optimizer": {
            "type": "AdamW", "params": {"lr": 0.02}}}))
        (folder / "rows.bin").write_bytes(bytes([7, 0]) * 400)
        done = subprocess.run([czero, "train", "--config", folder / "ds.json", "--model", folder / "base", "--adapter",
                               folder / "ours", "--resume", folder / "ckpt", "--data", f"u16:{folder}/rows.bin", "--seq-len",
                               "8", "--steps", "3", "--export", folder / "resumed", "--quiet"],
                              capture_output=True, text=True)
        if done.returncode != 0:
            complaints.append(f"resume: {done.stderr.strip()[-400:]}")
        elif (folder / "resumed" / "adapter_model.safetensors").read_bytes() != theirs:
            complaints.append("the resumed run has other tensors")
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
            complaints = complaints or compare(czero, pathlib.Path(folder), case[1], case[3])
        failed += bool(complaints)
        print(f"stage {case[0]}, {case[1]}, exclude_frozen {case[2]}, {case[3]}: {'; '.join(complaints) or 'same bytes'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
