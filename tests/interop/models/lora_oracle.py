#!/usr/bin/env python3
"""Low-rank adapters (LoRA): PEFT on transformers against czero, over tiny random models of every family.

  lora_oracle.py [--family F[,F…]] [--seed S] [--kind plain,dora] [--build build]
  lora_oracle.py --make DIR                   writes the folders that ship as fixtures (SHIPPED)

For each family and each kind (without and with DoRA) a model and an adapter of it are drawn (rank, alpha, rsLoRA, targets). Then, in fp32 and without dropout:

  verify     PEFT's folder in czero: logits, the loss and the gradients of all A, B and lengths agree within 2e-5 of the largest value
  train      20 steps of AdamW from PEFT's adapter, 2 rows of 16 tokens each: every loss agrees within 1e-5
  export     the adapter that czero then writes, in PEFT: the same tensors as PEFT's own after those steps within 2e-4
             of the largest, and the logits of both agree within 2e-5; PEFT sees no missing and no unexpected key
  fresh      czero's own adapter of all-linear targets: PEFT loads it, its modules are those that PEFT chooses, A is
             within Kaiming's bound and spread as its uniform numbers are, B is zero, lengths are those of PEFT's

Of encoders `verify` alone: classifiers whose head PEFT trains beside the branches, and FAMILY:mlm. Their targets are the maps of the
blocks, or "all-linear", which puts branches on poolers, on the dense map of a head, and on maps behind narrow embeddings. Exit 1 if anything disagreed. Run with a Python that has torch, transformers and peft."""
import argparse
import csv
import itertools
import json
import math
import pathlib
import random
import subprocess
import sys
import tempfile
import warnings

import numpy
import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
STEPS, ROWS, LENGTH, LR = 20, 2, 16, 1e-3
VOCAB = 61


def decoder(**more):
    return dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=56, num_hidden_layers=2, num_attention_heads=4,
                num_key_value_heads=2, head_dim=8, max_position_embeddings=64, initializer_range=0.1, pad_token_id=None,
                bos_token_id=None, eos_token_id=None, **more)


def gpt2():
    return dict(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=64, initializer_range=0.1, resid_pdrop=0.0,
                embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None, eos_token_id=None)


FAMILIES = {
    "llama": ("Llama", decoder(attention_bias=True, mlp_bias=True)),
    "qwen2": ("Qwen2", decoder()),
    "qwen3": ("Qwen3", decoder(tie_word_embeddings=True)),
    "mistral": ("Mistral", decoder(sliding_window=9)),
    "olmo2": ("Olmo2", decoder()),
    "granite": ("Granite", decoder(residual_multiplier=0.7)),
    "phi3": ("Phi3", {k: v for k, v in decoder().items() if k != "head_dim"}),
    "gemma2": ("Gemma2", decoder(hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=8)),
    "gemma3": ("Gemma3", decoder(hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=8)),
    "gpt2": ("GPT2", gpt2()),
}

SETTINGS = ("r", "lora_alpha", "target_modules", "alpha_pattern", "rank_pattern", "layers_to_transform", "exclude_modules", "modules_to_save", "use_rslora", "use_dora")
ENCODER = dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=56, num_hidden_layers=2, num_attention_heads=4,
               max_position_embeddings=64, initializer_range=0.1, pad_token_id=0, num_labels=3, hidden_dropout_prob=0.0,
               attention_probs_dropout_prob=0.0)
# Classifiers: the model, its settings, and an expression for the maps of its blocks.
ENCODERS = {
    "bert": ("Bert", ENCODER, r".*layer\.\d+\..*(query|key|value|dense)"),
    "megatron-bert": ("MegatronBert", ENCODER, r".*layer\.\d+\..*(query|key|value|dense)"),
    "distilbert": ("DistilBert", dict(vocab_size=VOCAB, dim=32, hidden_dim=56, n_layers=2, n_heads=4, pad_token_id=0,
                                      max_position_embeddings=64, dropout=0.0, attention_dropout=0.0, initializer_range=0.1,
                                      seq_classif_dropout=0.0, num_labels=3), r".*layer\.\d+\..*lin[12]?"),
    "roberta": ("Roberta", ENCODER, r".*layer\.\d+\..*(query|value|dense)"),
    "electra": ("Electra", dict(ENCODER, embedding_size=16), r".*layer\.\d+\..*(query|key|value|dense)"),
    "mpnet": ("MPNet", dict(ENCODER, max_position_embeddings=66, pad_token_id=1), r".*layer\.\d+\..*(attn\.[qkvo]|dense)"),
    "deberta": ("DebertaV2", dict(ENCODER, embedding_size=16, relative_attention=True, pos_att_type="p2c|c2p", share_att_key=True, position_buckets=16,
                                  norm_rel_ebd="layer_norm", position_biased_input=False),
                r".*layer\.\d+\..*(query_proj|key_proj|value_proj|dense)"),
    "modernbert": ("ModernBert", dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=56, num_hidden_layers=3,
                                      num_attention_heads=4, max_position_embeddings=64, pad_token_id=0, num_labels=3,
                                      initializer_range=0.1, local_attention=8, bos_token_id=None, eos_token_id=None,
                                      cls_token_id=None, sep_token_id=None), r".*layers\.\d+\..*(Wqkv|Wo|Wi)"),
}


# Folders for the tests: the family, and what its small model has otherwise.
TINY = dict(hidden_size=8, intermediate_size=12, num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=20)
SHIPPED = {
    "lora-bert": ("bert", TINY),
    "lora-bert-mlm": ("bert:mlm", TINY),
    "lora-deberta": ("deberta", dict(TINY, embedding_size=4)),
    "lora-electra": ("electra", dict(TINY, embedding_size=4)),
    "lora-modernbert": ("modernbert", TINY),
}


def encoder_of(family):
    """(its entry, is it a masked language model), or None"""
    name, _, head = family.partition(":")
    return (ENCODERS[name], head == "mlm") if name in ENCODERS else None


def classes_of(family, **more):
    if encoder_of(family):
        (name, settings, _), is_mlm = encoder_of(family)
        head = "MaskedLM" if is_mlm else "SequenceClassification"
        return getattr(transformers, f"{name}Config")(**{**settings, **more}), getattr(transformers, f"{name}For{head}")
    name, settings = FAMILIES[family]
    text = "Text" if name == "Gemma3" else ""
    config = getattr(transformers, f"{name}{text}Config")
    model = getattr(transformers, f"{name}LMHeadModel" if name == "GPT2" else f"{name}ForCausalLM")
    return config(**settings), model


def draw_adapter(rng, family, dora):
    targets = "all-linear"
    if family not in ("gpt2", "phi3") and rng.random() < 0.3:
        targets = rng.sample(["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
                             rng.randint(1, 4))
    rank = rng.choice([1, 2, 3, 4, 8, 16])
    if encoder_of(family):
        (_, _, blocks), is_mlm = encoder_of(family)
        if family != "distilbert" and (is_mlm or rng.random() < 0.7):  # there PEFT takes the head's two maps for one
            blocks = "all-linear"
        return peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=blocks, task_type=None if is_mlm else "SEQ_CLS",
                               use_dora=dora)
    more = {} if family in ("gpt2", "phi3") else draw_settings(rng, targets, FAMILIES[family][1])
    return peft.LoraConfig(r=rank, lora_alpha=rng.choice([1, rank, 2 * rank, 6.5, -3]), **{"target_modules": targets, **more},
                           lora_dropout=0.0, use_dora=dora, use_rslora=rng.random() < 0.3, fan_in_fan_out=family == "gpt2",
                           task_type="CAUSAL_LM")


def draw_settings(rng, targets, config):
    """What PEFT has beside rank, alpha and names of targets."""
    more = {}
    if rng.random() < 0.2:
        more["target_modules"] = r".*layers\.\d+\.(self_attn\.[qv]|mlp\.up)_proj"
    if rng.random() < 0.3:  # overlapping: the first expression that a name ends in counts, and PEFT stores them sorted
        more["alpha_pattern"] = {"layers.1.*": rng.choice([5.0, 0.5]), "self_attn.*": -2.0}
    if rng.random() < 0.3:
        more["rank_pattern"] = {r"layers.0..*": rng.choice([1, 5]), "self_attn.*": 3}
    if rng.random() < 0.2 and targets == "all-linear":
        more["layers_to_transform"] = [rng.randint(0, config["num_hidden_layers"] - 1)]
        more["target_modules"] = ["q_proj", "v_proj", "down_proj"]
    if rng.random() < 0.2 and targets == "all-linear":
        more["exclude_modules"] = ["k_proj"]
    if rng.random() < 0.3:
        heads = [] if config.get("tie_word_embeddings") or "logit" in str(config) else ["lm_head"]
        more["modules_to_save"] = rng.sample(["norm", "input_layernorm", *heads], 1)
    return more


def relative(ours, theirs):
    return float((ours.float() - theirs.float()).abs().max() / max(float(theirs.abs().max()), 1e-6))


class Case:
    def __init__(self, family, dora, rng, czero, folder, **more):
        self.dora, self.more = dora, more
        self.family, self.rng, self.czero, self.folder = family, rng, czero, pathlib.Path(folder)
        self.complaints, self.notes = [], []

    def run(self, *args):
        done = subprocess.run([self.czero, *map(str, args)], capture_output=True, text=True)
        if done.returncode != 0:
            self.complaints.append(f"czero {args[0]}: {done.stderr.strip()[-300:]}{done.stdout.strip()[-300:]}")
        return done

    def expect(self, what, value, bound):
        self.notes.append(f"{what} {value:.1e}")
        if not value <= bound:
            self.complaints.append(f"{what}: {value:.2e} is beyond {bound:.0e}")

    def make(self, targets=None):
        """The model's folder, an adapter with B that is not zero, PEFT's folder of it."""
        torch.manual_seed(self.rng.randrange(1 << 30))
        config, self.model_class = classes_of(self.family, **self.more)
        config._attn_implementation = "eager"
        self.model_class(config).save_pretrained(self.folder / "base")
        self.adapter_config = draw_adapter(self.rng, self.family, self.dora)
        self.settings = {k: v for k, v in self.adapter_config.to_dict().items() if k in SETTINGS and v}
        if targets:
            self.adapter_config.target_modules, self.adapter_config.r = targets, 2
        self.peft = peft.get_peft_model(self.base(), self.adapter_config)
        with torch.no_grad():
            for name, p in self.peft.named_parameters():
                if "lora_B" in name:
                    p.normal_(std=0.1)
                if "lora_magnitude" in name:
                    p.mul_(1 + 0.2 * torch.randn_like(p))
        self.peft.save_pretrained(self.folder / "adapter")
        self.tokens = torch.randint(1, VOCAB, (STEPS * ROWS, LENGTH))

    def base(self):
        return self.model_class.from_pretrained(self.folder / "base", attn_implementation="eager", dtype=torch.float32)

    def verify(self):
        """czero verify reads one folder: base, adapter and the oracle."""
        for path in [*(self.folder / "base").iterdir(), *(self.folder / "adapter").iterdir()]:
            target = self.folder / "oracle" / path.name
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(path.read_bytes())
        ids = self.tokens[:ROWS]
        self.peft.zero_grad()
        encoder = encoder_of(self.family)
        labels = torch.tensor([2, 0][:ROWS]) if encoder and not encoder[1] else ids
        self.peft.eval()  # none of them drops anything
        out = self.peft(input_ids=ids, labels=labels)
        out.loss.backward()
        tensors = {"in.input_ids": ids.to(torch.int32), "in.labels": labels.to(torch.int32), "out.logits": out.logits.detach(),
                   "out.loss": out.loss.detach().reshape(1)}
        for name, p in self.peft.named_parameters():
            if p.requires_grad:
                short = name.removeprefix("base_model.model.")
                short = short.replace(".modules_to_save.default.", ".").replace(".default.", ".")
                tensors["grad." + short] = p.grad.clone()
        save_file({k: v.contiguous() for k, v in tensors.items()}, self.folder / "oracle" / "oracle.safetensors")
        done = self.run("verify", self.folder / "oracle", "--json")
        if done.stdout.startswith("{"):
            result = json.loads(done.stdout)
            self.expect(f"verify {len(result['tensors'])} tensors", result["worst_error"], 2e-5)

    def train(self):
        """The same rows in the same order; AdamW without decay, the norm clipped to 1."""
        stream = torch.cat([self.tokens.flatten(), torch.randint(0, VOCAB, (1,))])
        numpy.asarray(stream, dtype=numpy.uint16).tofile(self.folder / "rows.bin")
        config = {"train_micro_batch_size_per_gpu": ROWS, "gradient_clipping": 1.0,
                  "optimizer": {"type": "AdamW", "params": {"lr": LR, "weight_decay": 0.0}}}
        (self.folder / "ds.json").write_text(json.dumps(config))
        self.run("train", "--config", self.folder / "ds.json", "--model", self.folder / "base", "--adapter",
                 self.folder / "adapter", "--data", f"u16:{self.folder}/rows.bin", "--seq-len", LENGTH, "--steps", STEPS,
                 "--shuffle", "off", "--curve", self.folder / "curve.csv", "--export", self.folder / "trained", "--quiet")
        params = [p for p in self.peft.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(params, lr=LR, weight_decay=0.0)
        losses = []
        for step in range(STEPS):
            ids = self.tokens[step * ROWS:(step + 1) * ROWS]
            optimizer.zero_grad()
            # czero's row k is tokens [k*T, k*T+T]: the last one of a row has the next row's first as its label.
            first = step * ROWS * LENGTH + 1
            labels = stream[first:first + ROWS * LENGTH]
            loss = torch.nn.functional.cross_entropy(self.peft(input_ids=ids).logits.flatten(0, 1), labels)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(params, 1.0)
            optimizer.step()
            losses.append(loss.item())
        if self.complaints:
            return
        ours = [float(row["loss"]) for row in csv.DictReader(open(self.folder / "curve.csv"))]
        self.expect("losses", max(abs(a - b) for a, b in zip(ours, losses, strict=True)), 1e-5)

    def export(self):
        """What czero wrote, loaded by PEFT onto a fresh base."""
        self.peft.save_pretrained(self.folder / "theirs")
        ours = load_file(self.folder / "trained" / "adapter_model.safetensors")
        theirs = load_file(self.folder / "theirs" / "adapter_model.safetensors")
        if ours.keys() != theirs.keys():
            self.complaints.append(f"keys differ: {sorted(ours.keys() ^ theirs.keys())[:4]}")
            return
        self.expect("tensors", max(relative(ours[k], theirs[k]) for k in ours), 2e-4)
        loaded = self.base()
        loaded = peft.PeftModel.from_pretrained(loaded, self.folder / "trained")
        left = peft.set_peft_model_state_dict(loaded, ours)
        if left.unexpected_keys or any("lora_" in k for k in left.missing_keys):
            self.complaints.append(f"PEFT: {left}")
        ids = self.tokens[:ROWS]
        with torch.no_grad():
            logits = loaded(input_ids=ids).logits
        theirs_now = peft.PeftModel.from_pretrained(self.base(), self.folder / "trained")
        with torch.no_grad():
            self.expect("logits", relative(logits, theirs_now(input_ids=ids).logits), 2e-5)
        # Our own logits of our own adapter are checked by verify: its folder with the new adapter.
        for path in (self.folder / "trained").glob("adapter*"):
            (self.folder / "oracle" / path.name).write_bytes(path.read_bytes())
        save_file({"in.input_ids": ids.to(torch.int32), "out.logits": logits.contiguous()},
                  self.folder / "oracle" / "oracle.safetensors")
        done = self.run("verify", self.folder / "oracle", "--json")
        if done.stdout.startswith("{"):
            self.expect("own logits", json.loads(done.stdout)["worst_error"], 2e-5)

    def fresh(self):
        """One step at rate 0 leaves A and B as they start."""
        config = {"train_micro_batch_size_per_gpu": ROWS, "optimizer": {"type": "AdamW", "params": {"lr": 0.0}}}
        (self.folder / "zero.json").write_text(json.dumps(config))
        self.run("train", "--config", self.folder / "zero.json", "--model", self.folder / "base", "--lora",
                 "rank=16,alpha=8" + ",dora=true" * self.dora,
                 "--data", f"u16:{self.folder}/rows.bin", "--seq-len", LENGTH, "--steps", 1, "--export", self.folder / "fresh",
                 "--quiet")
        if self.complaints:
            return
        model = peft.PeftModel.from_pretrained(self.base(), self.folder / "fresh")
        chosen = peft.get_peft_model(self.base(), peft.LoraConfig(r=16, target_modules="all-linear", use_dora=self.dora,
                                                                  fan_in_fan_out=self.family == "gpt2"))
        names = [{n for n, p in m.named_parameters() if "lora_" in n} for m in (model, chosen)]
        if names[0] != names[1]:
            self.complaints.append(f"targets differ: {sorted(names[0] ^ names[1])[:4]}")
        spread = []
        for name, p in model.named_parameters():
            if "lora_B" in name and p.abs().max() != 0:
                self.complaints.append(f"{name} does not start as zeros")
            if "lora_A" in name:
                bound = 1 / math.sqrt(p.shape[1])
                spread.append(float(p.std()) * math.sqrt(3) / bound)
                if p.abs().max() > bound or p.abs().max() < 0.95 * bound:
                    self.complaints.append(f"{name}: not within ±{bound:.3f}, or not up to it")
        lengths = [{n: p for n, p in m.named_parameters() if "lora_magnitude" in n} for m in (model, chosen)]
        for name in lengths[1]:
            if relative(lengths[0][name], lengths[1][name]) > 1e-6:
                self.complaints.append(f"{name}: other lengths than PEFT's")
        self.expect("spread", max(abs(s - 1) for s in spread), 0.1)

    def check(self):
        parts = [self.make, self.verify, self.train, self.export, self.fresh]
        for part in parts[:2] if encoder_of(self.family) else parts:
            part()
            if self.complaints:
                break
        return self


def make(folder, czero):
    """With DoRA every second one: its lengths, too, are those of maps outside the blocks."""
    failed = 0
    for i, (name, (family, more)) in enumerate(SHIPPED.items()):
        with tempfile.TemporaryDirectory() as work:
            case = Case(family, i % 2 == 1, random.Random(family), czero, work, **more)
            case.make(targets="all-linear")
            case.verify()
            (folder / name).mkdir(parents=True, exist_ok=True)
            for path in (pathlib.Path(work) / "oracle").iterdir():
                if path.suffix in (".json", ".safetensors"):
                    (folder / name / path.name).write_bytes(path.read_bytes())
        print(name, case.notes, case.complaints)
        failed += bool(case.complaints)
    return failed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--family", default=",".join([*FAMILIES, *ENCODERS, *(f"{e}:mlm" for e in ENCODERS)]))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", default="plain,dora")
    parser.add_argument("--build", default="build")
    parser.add_argument("--make", type=pathlib.Path)
    options = parser.parse_args()
    czero = pathlib.Path(options.build).resolve() / "czero"
    torch.set_num_threads(2)
    failed = 0
    if options.make:
        return 1 if make(options.make, czero) else 0
    for family, kind in itertools.product(options.family.split(","), options.kind.split(",")):
        rng = random.Random(f"{options.seed} {family}")
        with tempfile.TemporaryDirectory() as folder:
            case = Case(family, kind == "dora", rng, czero, folder).check()
        failed += bool(case.complaints)
        print(f"{family:10} {kind:5} {', '.join(case.notes)}", flush=True)
        for complaint in case.complaints:
            print(f"{'':10} DISAGREES: {complaint}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
