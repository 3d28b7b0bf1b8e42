#!/usr/bin/env python3
"""Makes fixtures/models/bert-old: a tiny BertForPreTraining as it was saved in 2019 and trained on
several devices: pytorch_model.bin in two shards, bf16, "module." in front, LayerNorm.gamma and .beta,
a second head, a buffer of positions, the decoder under the tied name, one matrix stored transposed.
The oracle is what transformers' BertForMaskedLM (eager attention, fp32) makes of the same values.

    $(scripts/peers.sh) tests/interop/models/bert_old_golden.py && tests/fixtures/pack.sh models"""
import json
import pathlib
import sys

import torch
from safetensors.torch import save_file
from transformers import BertConfig, BertForMaskedLM

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from fixtures import FIXTURES

CONFIG = dict(vocab_size=29, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
              intermediate_size=24, max_position_embeddings=12, type_vocab_size=2,
              initializer_range=0.3)
DROPPED = "cls.predictions.decoder.bias"  # files of that time have the one bias
TIED = "bert.embeddings.word_embeddings.weight"


def make(folder):
    torch.manual_seed(5)
    model = BertForMaskedLM(BertConfig(**CONFIG, attn_implementation="eager")).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                torch.nn.init.normal_(parameter, mean=parameter.mean().item(), std=0.2)
            parameter.copy_(parameter.bfloat16().float())
    state = {}
    for name, tensor in model.state_dict().items():
        if name in (DROPPED, TIED):
            continue  # the decoder's name stands for the embedding's
        if "LayerNorm" in name:
            name = name.replace(".weight", ".gamma").replace(".bias", ".beta")
        tensor = tensor.bfloat16()
        if name.endswith("layer.1.intermediate.dense.weight"):
            tensor = tensor.t().contiguous().t()
        state["module." + name] = tensor
    state["module.bert.embeddings.position_ids"] = torch.arange(12).unsqueeze(0)
    state["module.cls.seq_relationship.weight"] = torch.ones(2, 16)
    state["module.cls.seq_relationship.bias"] = torch.zeros(2)
    folder.mkdir(parents=True, exist_ok=True)
    names, places = list(state), {}
    for shard in 0, 1:
        file = f"pytorch_model-{shard + 1:05}-of-00002.bin"
        part = {name: state[name] for name in names[shard::2]}
        torch.save(part, folder / file)
        places |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": sum(t.nbytes for t in state.values())}, "weight_map": places}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index, indent=2) + "\n")
    config = {"architectures": ["BertForPreTraining"], "model_type": "bert"} | CONFIG
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")

    batch = {"input_ids": torch.randint(0, 29, (3, 9)),
             "attention_mask": torch.ones(3, 9, dtype=torch.int64),
             "token_type_ids": torch.randint(0, 2, (3, 9)),
             "position_ids": torch.arange(9).flip(0).unsqueeze(0)}
    batch["attention_mask"][1, 6:] = 0
    labels = torch.full((3, 9), -100)
    labels[0, 2], labels[1, 0], labels[2, 8] = 4, 28, 11
    out = model(**batch, labels=labels, output_hidden_states=True)
    out.loss.backward()
    oracle = {f"in.{k}": v for k, v in batch.items()} | {
        "in.labels": labels, "out.logits": out.logits.detach(),
        "out.loss": out.loss.detach().reshape(1),
        "out.last_hidden_state": out.hidden_states[-1].detach()}
    for name in ("bert.embeddings.word_embeddings.weight", "cls.predictions.bias",
                 "bert.encoder.layer.1.intermediate.dense.weight",
                 "cls.predictions.transform.LayerNorm.weight"):
        oracle[f"grad.{name}"] = model.get_parameter(name).grad
    save_file({k: v.contiguous() for k, v in oracle.items()}, folder / "oracle.safetensors")


if __name__ == "__main__":
    default = FIXTURES / "models"
    make((pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default) / "bert-old")
