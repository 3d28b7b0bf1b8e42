#!/usr/bin/env python3
"""Small encoders with varied settings (BERT, MegatronBERT, DistilBERT, RoBERTa, XLM-RoBERTa, ELECTRA, ModernBERT, MPNet, DeBERTa),
and what PyTorch (transformers, fp32, dropout off) computes from them.

  bert_oracles.py make [FOLDER]              the variants of fixtures/models (then tests/fixtures/pack.sh models)
  bert_oracles.py check CZERO [N [FAMILY]]   N random variants (40) of all families or one, each compared by
                                             `czero verify`

Run with a Python that has torch, transformers and safetensors."""
import pathlib
import random
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file, save_file

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from fixtures import FIXTURES

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
ACTIVATIONS = ["gelu", "gelu_new", "relu", "silu", "tanh", "quick_gelu", "gelu_accurate", "sigmoid", "mish", "relu2"]
NO_TOKENS = dict(bos_token_id=None, eos_token_id=None, cls_token_id=None, sep_token_id=None)

# kind, settings of the config, settings of the batch
COMMITTED = {
    # masks, types, positions, an odd MLP, padding by [PAD]; dropout in the config (off in verify)
    "bert-variant-a": ("cls", dict(
        vocab_size=37, hidden_size=24, num_hidden_layers=2, num_attention_heads=3,
        intermediate_size=40, max_position_embeddings=16, type_vocab_size=3, hidden_act="gelu_new",
        initializer_range=0.1, layer_norm_eps=1e-6, num_labels=3), dict(B=3, T=11, positions=True)),
    # the masked-language model: a tied decoder, its bias, few labels
    "bert-variant-b": ("mlm", dict(
        vocab_size=41, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=20, hidden_act="gelu",
        initializer_range=0.1, pad_token_id=None), dict(B=2, T=20, types=False)),
    # norms in front of both halves, none of the embeddings
    "megatron-bert-variant-a": ("megatron-bert", dict(
        vocab_size=23, hidden_size=15, num_hidden_layers=2, num_attention_heads=3, intermediate_size=11,
        max_position_embeddings=16, type_vocab_size=3, hidden_act="gelu_new", initializer_range=0.1, layer_norm_eps=1e-6,
        num_labels=3), dict(B=3, T=11, positions=True)),
    "megatron-bert-variant-b": ("megatron-bert-mlm", dict(
        vocab_size=21, hidden_size=12, num_hidden_layers=1, num_attention_heads=2, intermediate_size=10,
        max_position_embeddings=18, initializer_range=0.1, pad_token_id=None), dict(B=2, T=18, types=False)),
    # sines for positions, relu, names without "distilbert."
    "distilbert-variant-a": ("distil", dict(
        vocab_size=29, dim=16, n_layers=1, n_heads=4, hidden_dim=24, max_position_embeddings=12,
        activation="relu", initializer_range=0.1, sinusoidal_pos_embds=True, num_labels=4),
        dict(B=4, T=9)),
    # positions counted over tokens that are not padding, one token type, an untied decoder
    "roberta-variant-a": ("roberta-mlm", dict(
        vocab_size=31, hidden_size=12, num_hidden_layers=1, num_attention_heads=3,
        intermediate_size=20, max_position_embeddings=17, type_vocab_size=1, hidden_act="relu",
        initializer_range=0.1, layer_norm_eps=1e-5, pad_token_id=2, tie_word_embeddings=False),
        dict(B=3, T=14, types=False, holes=True)),
    # the classifier; the last row of positions
    "xlm-roberta-variant-a": ("xlm-roberta", dict(
        vocab_size=23, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=24, max_position_embeddings=13, type_vocab_size=1, initializer_range=0.1,
        layer_norm_eps=1e-5, num_labels=3), dict(B=3, T=11, types=False)),
    # embeddings narrower than the layers, and wider ones under the generator's head
    "electra-variant-a": ("electra", dict(
        vocab_size=27, embedding_size=10, hidden_size=16, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=20, max_position_embeddings=12, type_vocab_size=3, initializer_range=0.1,
        num_labels=3), dict(B=3, T=9)),
    "electra-variant-b": ("electra-mlm", dict(
        vocab_size=25, embedding_size=20, hidden_size=12, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=12, hidden_act="silu", initializer_range=0.1),
        dict(B=2, T=12, positions=True)),
    # which tokens were replaced; padding does not count
    "electra-variant-c": ("electra-replaced", dict(
        vocab_size=21, embedding_size=6, hidden_size=12, num_hidden_layers=1, num_attention_heads=3,
        intermediate_size=16, max_position_embeddings=12, initializer_range=0.1), dict(B=3, T=10)),
    # windows that hide keys on both sides, the mean of what the mask shows, no biases
    "modernbert-variant-a": ("modernbert", dict(
        vocab_size=29, hidden_size=12, num_hidden_layers=3, num_attention_heads=2, intermediate_size=10,
        max_position_embeddings=24, global_attn_every_n_layers=2, local_attention=6, classifier_pooling="mean",
        initializer_range=0.1, num_labels=3, pad_token_id=0, **NO_TOKENS), dict(B=3, T=19)),
    # all biases, an untied decoder, bases of its own
    "modernbert-variant-b": ("modernbert-mlm", dict(
        vocab_size=31, hidden_size=18, num_hidden_layers=2, num_attention_heads=3, intermediate_size=7,
        max_position_embeddings=24, layer_types=["sliding_attention", "full_attention"], local_attention=8,
        norm_bias=True, attention_bias=True, mlp_bias=True, classifier_bias=True, tie_word_embeddings=False,
        hidden_activation="silu", classifier_activation="relu", initializer_range=0.1, pad_token_id=None, **NO_TOKENS),
        dict(B=2, T=20, positions=True)),
    # a table of distances, of which some share a bucket; an untied decoder
    "mpnet-variant-a": ("mpnet-mlm", dict(
        vocab_size=13, hidden_size=9, num_hidden_layers=2, num_attention_heads=3, intermediate_size=5,
        max_position_embeddings=28, initializer_range=0.2, tie_word_embeddings=False, pad_token_id=1),
        dict(B=2, T=26, types=False)),
    "mpnet-variant-b": ("mpnet", dict(
        vocab_size=19, hidden_size=10, num_hidden_layers=1, num_attention_heads=2, intermediate_size=7,
        max_position_embeddings=15, initializer_range=0.2, num_labels=3, relative_attention_num_buckets=34,
        pad_token_id=1, hidden_act="relu"), dict(B=3, T=13, types=False)),
    # as v3 has it, with distances that share buckets
    "deberta-variant-a": ("deberta", dict(
        vocab_size=15, hidden_size=9, num_hidden_layers=2, num_attention_heads=3, intermediate_size=5,
        max_position_embeddings=20, position_buckets=8, norm_rel_ebd="layer_norm", share_att_key=True,
        pos_att_type="p2c|c2p", relative_attention=True, position_biased_input=False, type_vocab_size=0,
        initializer_range=0.2, layer_norm_eps=1e-7, num_labels=3), dict(B=3, T=19, types=False)),
    # maps of its own for positions, without a norm; narrow embeddings with positions and types; the older head
    "deberta-variant-b": ("deberta-mlm", dict(
        vocab_size=17, hidden_size=8, embedding_size=5, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=9, max_position_embeddings=16, max_relative_positions=5, share_att_key=False,
        pos_att_type=["c2p", "p2c"], relative_attention=True, type_vocab_size=2, initializer_range=0.2,
        hidden_act="relu"), dict(B=2, T=15)),
    # the newer head, one term
    "deberta-variant-c": ("deberta-mlm", dict(
        vocab_size=17, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=9,
        max_position_embeddings=14, position_buckets=6, norm_rel_ebd="layer_norm", share_att_key=True,
        pos_att_type="p2c", relative_attention=True, position_biased_input=False, legacy=False,
        initializer_range=0.2), dict(B=2, T=14, types=False)),
}

# kind: config, its classifier and its masked language model
CLASSES = {
    "bert": (transformers.BertConfig, transformers.BertForSequenceClassification,
             transformers.BertForMaskedLM),
    "megatron-bert": (transformers.MegatronBertConfig, transformers.MegatronBertForSequenceClassification,
                      transformers.MegatronBertForMaskedLM),
    "distil": (transformers.DistilBertConfig, transformers.DistilBertForSequenceClassification,
               transformers.DistilBertForMaskedLM),
    "roberta": (transformers.RobertaConfig, transformers.RobertaForSequenceClassification,
                transformers.RobertaForMaskedLM),
    "xlm-roberta": (transformers.XLMRobertaConfig, transformers.XLMRobertaForSequenceClassification,
                    transformers.XLMRobertaForMaskedLM),
    "electra": (transformers.ElectraConfig, transformers.ElectraForSequenceClassification,
                transformers.ElectraForMaskedLM),
    "modernbert": (transformers.ModernBertConfig, transformers.ModernBertForSequenceClassification,
                   transformers.ModernBertForMaskedLM),
    "mpnet": (transformers.MPNetConfig, transformers.MPNetForSequenceClassification,
              transformers.MPNetForMaskedLM),
    "deberta": (transformers.DebertaV2Config, transformers.DebertaV2ForSequenceClassification,
                transformers.DebertaV2ForMaskedLM),
}


PROBLEMS = {"-values": "regression", "-sets": "multi_label_classification"}


def build(kind, settings):
    if kind == "electra-replaced":
        return transformers.ElectraForPreTraining(transformers.ElectraConfig(**settings)).eval()
    if kind.endswith("-tokens"):
        config, classifier, _ = CLASSES[kind.removesuffix("-tokens")]
        tagger = getattr(transformers, classifier.__name__.replace("Sequence", "Token"))
        return tagger(config(**settings)).eval()
    for ending, problem in PROBLEMS.items():
        if kind.endswith(ending):
            kind, settings = kind.removesuffix(ending), {**settings, "problem_type": problem}
    family = {"cls": "bert", "mlm": "bert"}.get(kind, kind.removesuffix("-mlm"))
    config, classifier, masked = CLASSES[family]
    return (masked if kind.endswith("mlm") else classifier)(config(**settings)).eval()


def batch(kind, config, B, T, mask=True, types=True, positions=False, share=0.2,
          holes=False):
    """Padding is [PAD] behind the mask, as tokenizers write it; some rows have none. holes: [PAD]
    among the tokens, too, which the mask does not hide."""
    lowest = 1 if config.pad_token_id == 0 and not holes else 0
    x = {"input_ids": torch.randint(lowest, config.vocab_size, (B, T))}
    if config.pad_token_id and not holes:
        x["input_ids"][x["input_ids"] == config.pad_token_id] = 0
    if mask:
        x["attention_mask"] = torch.ones(B, T, dtype=torch.int64)
        # Padding whose window is all padding sees no key: transformers gives it the mean of all values, czero 0.
        reach = getattr(config, "sliding_window", T)
        for b in range(1, B):
            n = random.randint(max(1, T - reach), T)
            x["attention_mask"][b, n:] = 0
            x["input_ids"][b, n:] = (config.pad_token_id or 0) % config.vocab_size
    if types and not kind.startswith(("distil", "modernbert", "mpnet")) and config.type_vocab_size:
        x["token_type_ids"] = torch.randint(0, config.type_vocab_size, (B, T))
    if positions:
        x["position_ids"] = torch.randint(0, config.max_position_embeddings, (B, T))
    if kind.endswith("mlm"):
        x["labels"] = x["input_ids"].clone()
        x["labels"][torch.rand(B, T) > share] = -100
        x["labels"][0, 0] = x["input_ids"][0, 0]
        if kind.startswith("deberta") and mask:  # its padding sees all keys alike, czero's what the mask shows
            x["labels"][x["attention_mask"] == 0] = -100
    elif kind.endswith("replaced"):
        x["labels"] = torch.randint(0, 2, (B, T))
    elif kind.endswith("values"):
        x["labels"] = torch.randn(B) if config.num_labels == 1 else torch.randn(B, config.num_labels)
    elif kind.endswith("sets"):
        x["labels"] = torch.randint(0, 2, (B, config.num_labels)).float()
    elif kind.endswith("tokens"):
        x["labels"] = torch.randint(0, config.num_labels, (B, T))
        x["labels"][torch.rand(B, T) > share] = -100
        x["labels"][x.get("attention_mask", torch.ones(B, T)) == 0] = -100
        x["labels"][0, 0] = 0
    else:
        x["labels"] = torch.randint(0, config.num_labels, (B,))
    return x


def settle_key_biases(model):
    """A key's bias adds the same to all scores of a query: its gradient is zero in exact
    arithmetic, and rounding noise here, which grows with the other gradients."""
    for key, parameter in model.named_parameters():
        if key.endswith((".key.bias", ".k_lin.bias", ".attn.k.bias")):
            weight = model.get_parameter(key.removesuffix("bias") + "weight")
            largest = weight.grad.abs().max().item()
            assert parameter.grad.abs().max().item() <= 1e-5 * largest + 1e-9, key
            parameter.grad.zero_()


def move_vectors(model, settings):
    """Biases and norms away from 0 and 1."""
    std = settings.get("initializer_range", 0.02)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, mean=parameter.mean().item(), std=std)


def make(name, kind, settings, shape, folder, bare=False):
    torch.manual_seed(sum(map(ord, name)))
    random.seed(name)
    model = build(kind, settings)
    move_vectors(model, settings)
    x = batch(kind, model.config, **shape)
    out = model(**x)
    out.loss.backward()
    settle_key_biases(model)
    model.save_pretrained(folder)
    if bare:
        weights = load_file(folder / "model.safetensors")
        prefix = model.base_model_prefix + "."
        weights = {k.removeprefix(prefix): v for k, v in weights.items()}
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    oracle = {f"in.{k}": v for k, v in x.items()}
    oracle["out.logits"] = out.logits.detach()
    oracle["out.loss"] = out.loss.detach().reshape(1)
    for key, parameter in model.named_parameters():
        if parameter.grad is not None:
            oracle[f"grad.{key}"] = parameter.grad
    save_file({k: v.contiguous() for k, v in oracle.items()}, folder / "oracle.safetensors")


def random_modernbert(masked):
    """Windows from one that hides all but the neighbours to one that hides nothing."""
    heads, layers, positions = random.choice([1, 2, 3, 4]), random.randint(1, 4), random.randint(2, 80)
    settings = dict(
        vocab_size=random.randint(3, 300), max_position_embeddings=positions, num_hidden_layers=layers,
        hidden_size=heads * random.choice([4, 6, 8, 16, 24, 40, 72]), num_attention_heads=heads,
        intermediate_size=random.randint(1, 200), local_attention=random.choice([1, 2, 5, 16, 128]),
        initializer_range=random.choice([0.02, 0.02, 0.05]), pad_token_id=random.choice([0, 0, None, 1]),
        hidden_activation=random.choice(ACTIVATIONS),
        classifier_activation=random.choice(ACTIVATIONS), norm_eps=random.choice([1e-12, 1e-5]), **NO_TOKENS)
    for flag in ("norm_bias", "attention_bias", "mlp_bias", "classifier_bias", "decoder_bias"):
        settings[flag] = random.random() < 0.5
    if random.random() < 0.5:
        settings["layer_types"] = [random.choice(["sliding_attention", "full_attention"]) for _ in range(layers)]
    else:
        settings["global_attn_every_n_layers"] = random.randint(1, 4)
    if random.random() < 0.5:
        settings["rope_parameters"] = {kind: dict(rope_type="default", rope_theta=random.choice([100.0, 1e4, 1.6e5]))
                                       for kind in ("full_attention", "sliding_attention")}
    if masked:
        settings["tie_word_embeddings"] = random.random() < 0.7
    else:
        settings.update(num_labels=random.randint(2, 9), classifier_pooling=random.choice(["cls", "mean"]))
    shape = dict(B=random.randint(1, 6), T=random.randint(2, positions), mask=random.random() < 0.7,
                 positions=random.random() < 0.3, share=random.choice([0.0, 0.15, 1.0]), holes=random.random() < 0.3)
    return "modernbert-mlm" if masked else one_of_classes("modernbert"), settings, shape


def add_distances(kind, settings, positions, width, masked):
    """What MPNet and DeBERTa have of their own."""
    settings.pop("type_vocab_size")
    if kind == "mpnet":  # rows of positions up to the padding's, which is 1, hold no token
        settings.update(max_position_embeddings=positions + 2, relative_attention_num_buckets=random.choice([32, 32, 40]))
        return
    settings.update(
        relative_attention=True, position_biased_input=random.random() < 0.4, share_att_key=random.random() < 0.6,
        type_vocab_size=random.choice([0, 0, 1, 3]), norm_rel_ebd=random.choice(["layer_norm", "none"]),
        pos_att_type=random.choice(["p2c|c2p", ["c2p"], ["p2c"], ["c2p", "p2c"]]), layer_norm_eps=1e-7,
        max_relative_positions=random.choice([-1, positions, random.randint(1, 90)]),
        pooler_hidden_act=random.choice(ACTIVATIONS), legacy=random.random() < 0.6)
    most = settings["max_relative_positions"] if settings["max_relative_positions"] > 0 else positions
    if random.random() < 0.7:
        buckets = random.choice([2, 3, 4, 7, 16, 33, 256])
        if positions - 1 <= buckets // 2 or most - 1 > buckets // 2:  # else transformers takes logarithms of 0 and less
            settings["position_buckets"] = buckets
    if (settings["legacy"] or not masked) and random.random() < 0.3:  # else transformers' head needs equal widths
        settings["embedding_size"] = random.choice([width // 2 + 1, width + 3, 24])


def one_of_classes(kind):
    """Classes of texts, one or several, values, or classes of tokens."""
    return kind + random.choice(["", "-tokens", "-values", "-sets"])


def random_variant(family=None):
    kind = family or random.choice(list(CLASSES))
    masked = random.random() < 0.5
    if kind == "modernbert":
        return random_modernbert(masked)
    heads = random.choice([1, 2, 3, 4])
    width = heads * random.choice([4, 5, 8, 16, 24, 40, 72])
    positions = random.randint(2, 80)
    settings = dict(vocab_size=random.randint(3, 300), max_position_embeddings=positions,
                    initializer_range=random.choice([0.02, 0.02, 0.05]),
                    pad_token_id=random.choice([0, 0, 0, None, 1, -1]))
    length = positions
    if kind == "distil":
        settings.update(dim=width, n_heads=heads, n_layers=random.randint(1, 4),
                        hidden_dim=random.randint(1, 200), activation=random.choice(ACTIVATIONS),
                        sinusoidal_pos_embds=random.random() < 0.3)
    else:
        settings.update(hidden_size=width, num_attention_heads=heads,
                        num_hidden_layers=random.randint(1, 4),
                        intermediate_size=random.randint(1, 200),
                        hidden_act=random.choice(ACTIVATIONS),
                        type_vocab_size=random.randint(1, 4),
                        layer_norm_eps=random.choice([1e-12, 1e-5]))
    if kind.endswith("roberta"):  # position rows up to the padding's hold no token
        padding = random.choice([0, 1, 1, 1, 2])
        settings.update(pad_token_id=padding, max_position_embeddings=positions + padding + 1)
    if kind in ("mpnet", "deberta"):
        add_distances(kind, settings, positions, width, masked)
    if kind == "electra" and random.random() < 0.7:
        settings["embedding_size"] = random.choice([width // 2 + 1, width, width + 3, 24])
    if masked:
        settings["tie_word_embeddings"] = random.random() < 0.7
    else:
        settings["num_labels"] = random.randint(2, 9)
    if kind == "mpnet":
        settings["pad_token_id"] = 1
    shape = dict(B=random.randint(1, 6), T=random.randint(2, length),
                 mask=random.random() < 0.7, types=random.random() < 0.6,
                 positions=random.random() < 0.3, share=random.choice([0.0, 0.15, 1.0]),
                 holes=random.random() < 0.3)
    if kind == "electra" and random.random() < 0.3:
        return "electra-replaced", settings, shape
    return kind + "-mlm" if masked else one_of_classes(kind), settings, shape


def check(czero, n, family=None):
    failed = 0
    for i in range(n):
        random.seed(i)
        kind, settings, shape = random_variant(family)
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            make(f"random {i}", kind, settings, shape, folder, bare=i % 5 == 0)
            run = subprocess.run([czero, "verify", str(folder)], capture_output=True, text=True)
        rows = [line.split() for line in run.stdout.splitlines()
                if line.startswith(("out.", "grad."))]
        worst = max(((float(r[1]), r[0]) for r in rows), default=(float("inf"), "nothing"))
        if run.returncode or worst[0] > 2e-5:
            failed += 1
            print(f"variant {i}: {kind} {settings} {shape}\n  {worst}\n{run.stderr}", end="")
        else:
            print(f"variant {i}: {kind}, {len(rows)} tensors, worst {worst[0]:.1e} of {worst[1]}")
    print(f"{n - failed} of {n} agree")
    return failed > 0


if __name__ == "__main__":
    if len(sys.argv) > 2 and sys.argv[1] == "check":
        sys.exit(check(sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 40, *sys.argv[4:5]))
    if len(sys.argv) < 2 or sys.argv[1] != "make":
        sys.exit(__doc__)
    root = FIXTURES / "models"
    root = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else root
    for variant, (kind, settings, shape) in COMMITTED.items():
        make(variant, kind, settings, shape, root / variant, bare=variant.startswith("distil"))
