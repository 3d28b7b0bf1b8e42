#!/usr/bin/env python3
"""Random tiny models of every family, made by transformers, against czero.

  model_oracle.py --random N [--family F[,F…]] [--seed S] [--build build]
  model_oracle.py --make DIR [--family F]     writes the folders that ship as fixtures (SHIPPED)
  model_oracle.py --twins DIR                 writes those that ship as fixtures/twins (TWINS)

Each model is drawn with odd shapes: head counts, grouped queries, head widths other than
width / heads, vocabularies that are no multiple of 8, odd lengths, windows shorter than the batch. For each,
transformers (eager attention, fp32, dropout off) computes logits, the loss and all gradients; then

  verify     `czero verify` agrees within 2e-5, relative to the largest value of each tensor, or within 4 times what
             transformers itself differs by from fp64, where that is more (gradients that cancel: those of the norms of
             queries and keys, of routers, of a key bias that no rotation follows)
  export     czero exports the folder, transformers loads that with no key missing, unexpected or of another shape,
             has equal weights and computes equal logits
  generate   64 greedy tokens of czero (decoding with its cache where it has one) are those of transformers' generate(), in half of the models with a
             repetition penalty

The table at the end has a line per family: models that agreed, that disagreed, and that czero refused
(with its sentence). Exit 1 if any disagreed or was refused. A family is an entry of FAMILIES: names of transformers' classes and a
function that draws settings; FAMILY:HEAD is the same with another head, an entry of HEADS; encoders, their heads and their batches are
those of bert_oracles.py. Run with a Python that has torch, transformers and safetensors."""
import argparse
import collections
import contextlib
import copy
import ctypes
import json
import pathlib
import random
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors.torch import save_file

sys.path.append(str(pathlib.Path(__file__).resolve().parent))
import bert_oracles  # noqa: E402
from export_check import Library  # noqa: E402

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
BOUND = 2e-5
TIE = 2e-5  # logits as near as this, relative to the largest, may be chosen either way
NEW_TOKENS = 64

# ---- settings ------------------------------------------------------------------------------------


def rope(rng, kinds, half, original):
    """Parameters of one of the kinds, `half` frequencies."""
    kind = rng.choice(kinds)
    parameters = dict(rope_type=kind, rope_theta=rng.choice([100.0, 1e4, 5e5, 1e6]))
    if kind in ("linear", "dynamic"):
        parameters.update(factor=rng.uniform(1, 5))
    if kind == "llama3":
        parameters.update(factor=rng.uniform(2, 16), low_freq_factor=1.0, high_freq_factor=4.0,
                          original_max_position_embeddings=original)
    if kind == "yarn":
        parameters.update(factor=rng.uniform(1.5, 8), original_max_position_embeddings=original)
    if kind == "longrope":
        parameters.update(short_factor=[rng.uniform(1, 2) for _ in range(half)],
                          long_factor=[rng.uniform(2, 5) for _ in range(half)],
                          original_max_position_embeddings=original)
    return parameters


ALL_ROPES = ["default", "default", "linear", "dynamic", "llama3", "yarn", "longrope"]


def decoder(rng, own_width=True, ropes=ALL_ROPES):
    """What all decoders have. Wide weights saturate softmaxes, where PyTorch itself is off by 2e-5."""
    kv_heads, groups = rng.randint(1, 4), rng.randint(1, 4)
    heads, head_dim = kv_heads * groups, 2 * rng.randint(2, 16)
    hidden = heads * rng.randint(3, 12) if own_width else heads * head_dim
    settings = dict(
        vocab_size=rng.randint(3, 300), hidden_size=hidden, intermediate_size=rng.randint(1, 130),
        num_hidden_layers=rng.randint(1, 4), num_attention_heads=heads, num_key_value_heads=kv_heads,
        max_position_embeddings=128, initializer_range=rng.choice([0.02, 0.1]),
        tie_word_embeddings=rng.random() < 0.5, rms_norm_eps=rng.choice([1e-6, 1e-5]), pad_token_id=None,
        bos_token_id=None, eos_token_id=None, attention_dropout=rng.choice([0.0, 0.1]))
    if own_width:
        settings["head_dim"] = head_dim
    if rng.random() < 0.3:
        settings["pad_token_id"] = rng.randrange(settings["vocab_size"])
    if rng.random() < 0.5:
        settings["hidden_act"] = rng.choice(bert_oracles.ACTIVATIONS)
    settings["rope_parameters"] = rope(rng, ropes, head_dim // 2, rng.choice([16, 40]))
    return settings


def biases(rng, *names):
    return {name: rng.random() < 0.5 for name in names}


def switched_window(rng, layers):
    """use_sliding_window and layers of both kinds."""
    settings = dict(use_sliding_window=rng.random() < 0.7, sliding_window=draw_window(rng))
    if rng.random() < 0.5:
        settings["max_window_layers"] = rng.randint(0, layers)
    elif settings["use_sliding_window"]:
        settings["layer_types"] = [rng.choice(["sliding_attention", "full_attention"]) for _ in range(layers)]
    return settings


def draw_window(rng):
    """At least 2: with 1, transformers' cache keeps everything."""
    return rng.choice([2, 3, 5, 16, 33, 200])


def draw_llama(rng):
    return {**decoder(rng), **biases(rng, "attention_bias", "mlp_bias")}


def draw_qwen2(rng):
    settings = decoder(rng)
    return {**settings, **switched_window(rng, settings["num_hidden_layers"])}


def draw_qwen3(rng):
    return {**draw_qwen2(rng), **biases(rng, "attention_bias")}


def draw_qwen3_moe(rng):
    """Experts in all layers, every n-th, or but in some; more than one batch has tokens for, too."""
    settings = {**decoder(rng), **biases(rng, "attention_bias", "norm_topk_prob")}
    layers, experts = settings["num_hidden_layers"], rng.choice([1, 2, 3, 5, 8, 16, 40, 130])
    settings.update(num_experts=experts, num_experts_per_tok=rng.randint(1, min(experts, 9)),
                    moe_intermediate_size=rng.randint(1, 70), use_sliding_window=rng.random() < 0.3,
                    sliding_window=draw_window(rng), output_router_logits=rng.random() < 0.6,
                    router_aux_loss_coef=rng.choice([0.001, 0.5, 3.0]))
    if rng.random() < 0.3:
        settings["decoder_sparse_step"] = rng.randint(1, 3)
    if rng.random() < 0.3:
        settings["mlp_only_layers"] = [i for i in range(layers) if rng.random() < 0.5]
    if not any((i + 1) % settings.get("decoder_sparse_step", 1) == 0 and i not in settings.get("mlp_only_layers", [])
               for i in range(layers)):
        settings["output_router_logits"] = False  # transformers has no balance of no routers
    return settings


def draw_olmo2(rng):
    return {**decoder(rng), **biases(rng, "attention_bias")}


def draw_granite(rng):
    return {**decoder(rng), **biases(rng, "attention_bias", "mlp_bias"),
            "embedding_multiplier": rng.choice([1.0, 12.0, 0.7]), "logits_scaling": rng.choice([1.0, 8.0, 3.3]),
            "residual_multiplier": rng.choice([1.0, 0.22, 1.5]), "attention_multiplier": rng.choice([1.0, 0.1, 0.015625])}


def draw_smollm3(rng):
    settings = decoder(rng)
    layers = settings["num_hidden_layers"]
    settings.update(biases(rng, "attention_bias", "mlp_bias"), use_sliding_window=rng.random() < 0.3,
                    sliding_window=draw_window(rng))
    if rng.random() < 0.5:  # the list may be longer than there are layers
        settings["no_rope_layers"] = [rng.randint(0, 1) for _ in range(layers + rng.choice([0, 0, 1, 3]))]
    else:
        settings["no_rope_layer_interval"] = rng.randint(1, 4)
    if rng.random() < 0.4:  # counts whatever use_sliding_window says
        settings["layer_types"] = [rng.choice(["sliding_attention", "full_attention"]) for _ in range(layers)]
    return settings


def draw_phi3(rng):
    """Maps in one, heads that share the width; longrope counts what is rotated of a head."""
    settings = decoder(rng, own_width=False, ropes=["default"])
    head_dim = settings["hidden_size"] // settings["num_attention_heads"]
    part = rng.choice([1.0, 1.0, 0.5, 0.75])
    if int(head_dim * part) % 2 or int(head_dim * part) == 0:
        part = 1.0
    settings["original_max_position_embeddings"] = original = rng.choice([16, 40])
    settings["rope_parameters"] = rope(rng, ["default", "longrope"], int(head_dim * part) // 2, original)
    settings["rope_parameters"]["partial_rotary_factor"] = part
    return {**settings, "sliding_window": rng.choice([None, draw_window(rng)])}


def draw_mistral(rng):
    return {**decoder(rng), "sliding_window": rng.choice([None, draw_window(rng), draw_window(rng)])}


def draw_ministral(rng):
    settings = {**decoder(rng), "sliding_window": draw_window(rng)}
    if rng.random() < 0.7:
        settings["layer_types"] = [rng.choice(["sliding_attention", "full_attention"])
                                   for _ in range(settings["num_hidden_layers"])]
    return settings


def draw_gemma(rng):
    settings = decoder(rng)
    settings["hidden_size"] = settings["num_attention_heads"] * rng.randint(3, 12)
    settings.update(biases(rng, "attention_bias"), query_pre_attn_scalar=rng.choice([16, 7, 256]),
                    hidden_activation=rng.choice(["gelu_pytorch_tanh", rng.choice(bert_oracles.ACTIVATIONS)]),
                    sliding_window=draw_window(rng), pad_token_id=rng.choice([None, 0]))
    if rng.random() < 0.4:
        settings["layer_types"] = [rng.choice(["sliding_attention", "full_attention"])
                                   for _ in range(settings["num_hidden_layers"])]
    return settings


def draw_gemma2(rng):
    return {**draw_gemma(rng), "attn_logit_softcapping": rng.choice([None, 50.0, 0.5]),
            "final_logit_softcapping": rng.choice([None, 30.0, 0.5])}


def draw_gemma3(rng):
    """Its own parameters for both kinds of layers."""
    settings = draw_gemma(rng)
    half = settings["head_dim"] // 2
    settings["rope_parameters"] = {kind: rope(rng, ["default", "default", "linear", "llama3"], half, 40)
                                   for kind in ("full_attention", "sliding_attention")}
    if "layer_types" not in settings:
        settings["sliding_window_pattern"] = rng.randint(1, 4)
    if rng.random() < 0.2:
        settings["attn_logit_softcapping"] = 0.5  # transformers stores it, and caps nothing
    return settings


def draw_gpt2(rng):
    heads = rng.randint(1, 4)
    return dict(vocab_size=rng.randint(3, 300), n_embd=heads * rng.randint(2, 16), n_layer=rng.randint(1, 4), n_head=heads,
                n_inner=rng.randint(1, 130), n_positions=128, initializer_range=rng.choice([0.02, 0.1]), bos_token_id=None,
                eos_token_id=None, activation_function=rng.choice(["gelu_new", rng.choice(bert_oracles.ACTIVATIONS)]))


Family = collections.namedtuple("Family", "config model draw")
FAMILIES = {
    "gpt2": Family("GPT2Config", "GPT2LMHeadModel", draw_gpt2),
    "llama": Family("LlamaConfig", "LlamaForCausalLM", draw_llama),
    "qwen2": Family("Qwen2Config", "Qwen2ForCausalLM", draw_qwen2),
    "qwen3": Family("Qwen3Config", "Qwen3ForCausalLM", draw_qwen3),
    "qwen3_moe": Family("Qwen3MoeConfig", "Qwen3MoeForCausalLM", draw_qwen3_moe),
    "olmo2": Family("Olmo2Config", "Olmo2ForCausalLM", draw_olmo2),
    "granite": Family("GraniteConfig", "GraniteForCausalLM", draw_granite),
    "smollm3": Family("SmolLM3Config", "SmolLM3ForCausalLM", draw_smollm3),
    "phi3": Family("Phi3Config", "Phi3ForCausalLM", draw_phi3),
    "mistral": Family("MistralConfig", "MistralForCausalLM", draw_mistral),
    "ministral": Family("MinistralConfig", "MinistralForCausalLM", draw_ministral),
    "gemma2": Family("Gemma2Config", "Gemma2ForCausalLM", draw_gemma2),
    "gemma3_text": Family("Gemma3TextConfig", "Gemma3ForCausalLM", draw_gemma3),
}

# Endings of transformers' classes, and what labels of B rows of T tokens are like.
Head = collections.namedtuple("Head", "ending labels lacking")  # lacking: families without it


def tags(config, B, T):
    """A class of most tokens."""
    labels = torch.randint(0, config.num_labels, (B, T))
    labels[torch.rand(B, T) < 0.3] = -100
    labels[:, T // 2] = 0
    return labels


HEADS = {  # transformers has no classifier of granite's
    "classes": Head("ForSequenceClassification", lambda c, B, T: torch.randint(0, c.num_labels, (B,)),
                    ("granite",)),
    "values": Head("ForSequenceClassification",
                   lambda c, B, T: torch.randn(B) if c.num_labels == 1 else torch.randn(B, c.num_labels),
                   ("granite",)),
    "sets": Head("ForSequenceClassification", lambda c, B, T: torch.randint(0, 2, (B, c.num_labels)).float(),
                 ("granite",)),
    "tokens": Head("ForTokenClassification", tags, ("granite", "olmo2", "gemma3_text")),
}
PROBLEMS = {"values": "regression", "sets": "multi_label_classification"}
HEADED = [f"{family}:{head}" for head in HEADS for family in FAMILIES if family not in HEADS[head].lacking]


def class_of(family, head):
    """Gemma 3's classifiers of texts alone have a name of their own."""
    stem = FAMILIES[family].model.removesuffix("ForCausalLM").removesuffix("LMHeadModel")
    return getattr(transformers, {"Gemma3": "Gemma3Text"}.get(stem, stem) + HEADS[head].ending)


ENCODERS = {"distilbert" if name == "distil" else name: name for name in bert_oracles.CLASSES}

# ---- one model -----------------------------------------------------------------------------------


def build(family, settings, head=None):
    config = getattr(transformers, FAMILIES[family].config)(**settings, attn_implementation="eager")
    model = (class_of(family, head) if head else getattr(transformers, FAMILIES[family].model))(config).eval()
    for parameter in model.parameters():  # biases and norms away from 0 and 1
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, mean=parameter.mean().item(), std=0.2)
    for name, parameter in model.named_parameters():  # routers whose choices rounding does not change
        if name.endswith(".mlp.gate.weight"):
            torch.nn.init.normal_(parameter, std=0.5)
            if config.pad_token_id is not None:  # a row of zeros makes all experts equally likely
                torch.nn.init.normal_(model.get_input_embeddings().weight.data[config.pad_token_id])
    return one_by_one(model)


def one_by_one(model):
    """Experts by plain products: PyTorch's grouped ones want widths that are multiples of 16 bytes."""
    if hasattr(model.config, "num_experts_per_tok"):
        model.set_experts_implementation("eager")
    return model


def is_causal(model):
    return type(model).__name__.endswith(("CausalLM", "LMHeadModel"))


def draw_feed(rng):
    return dict(B=rng.randint(1, 3), T=rng.randint(5, 75), mask=rng.choice([None, None, "left", "right", "holes"]),
                positions=rng.random() < 0.2)


def add_head_labels(model, inputs, head):
    """Padding has its own token, where it has one, as tokenizers write it; else the last column is a token's."""
    config, ids = model.config, inputs["input_ids"]
    mask = inputs.get("attention_mask")
    if config.pad_token_id is not None and config.pad_token_id >= 0 and mask is not None:
        ids[mask == 0] = config.pad_token_id
    elif mask is not None:
        mask[:, -1] = 1
    inputs["labels"] = HEADS[head].labels(config, *ids.shape)
    if mask is not None and head == "tokens":
        inputs["labels"][mask == 0] = -100
    return inputs


def make_inputs(model, rng, feed):
    B, T = feed["B"], feed["T"]
    if feed["mask"] and getattr(model.config, "sliding_window", None):
        # A masked position whose window is masked has no key that it sees: transformers gives it the
        # mean of all values, czero 0, and `czero verify` passes over it only at the beginning.
        feed = {**feed, "mask": "left"}
    ids = torch.randint(0, model.config.vocab_size, (B, T))
    inputs, labels, mask = {"input_ids": ids}, ids.clone(), torch.ones(B, T, dtype=torch.int64)
    labels[:, T // 2] = -100
    if feed["mask"] == "right":
        mask[0, T - T // 4:] = 0
    elif feed["mask"] == "left":
        mask[0, :T // 4] = 0
    elif feed["mask"] == "holes":
        mask[:, 1:] = torch.tensor([[rng.randint(0, 1) for _ in range(T - 1)] for _ in range(B)])
    if feed["mask"]:
        inputs["attention_mask"] = mask
        labels[mask == 0] = -100
    if is_causal(model) and feed["mask"]:
        # A position that sees nothing, masked itself or with all of its window masked, may not
        # predict: eager attention gives it the mean of all values, later ones too, ours is 0.
        window = getattr(model.config, "sliding_window", None) or T
        seen = torch.stack([mask[:, max(0, t - window + 1):t + 1].sum(-1) for t in range(T)], -1)
        labels[:, 1:][seen[:, :-1] == 0] = -100
    if feed["positions"]:
        inputs["position_ids"] = torch.randint(0, 60, (B, T))
    inputs["labels"] = labels
    return inputs


def as_in_files(name, value):
    """transformers joins the experts of a layer in memory; files have them one by one."""
    stem, _, kind = name.rpartition(".mlp.experts.")
    for expert, part in enumerate(value if stem else []):
        maps = zip(("gate_proj", "up_proj"), part.chunk(2)) if kind == "gate_up_proj" else [("down_proj", part)]
        for map_name, piece in maps:
            yield f"{stem}.mlp.experts.{expert}.{map_name}.weight", piece
    if not stem:
        yield name, value


def results(model, inputs):
    model.zero_grad()
    out = model(**inputs)
    out.loss.backward()
    grads = {f"grad.{file_name}": grad for name, p in model.named_parameters() if p.grad is not None
             for file_name, grad in as_in_files(name, p.grad)}
    return {"out.logits": out.logits.detach(), "out.loss": out.loss.detach().reshape(1)} | grads


def clamp_mask(module, args, kwargs):
    """What hides keys in fp64 is infinite to a softmax in fp32, and NaN where it hides all."""
    if torch.is_tensor(kwargs.get("attention_mask")):
        kwargs["attention_mask"] = kwargs["attention_mask"].clamp(min=torch.finfo(torch.float32).min)
    return args, kwargs


@contextlib.contextmanager
def all_in_fp64():
    """Norms, softmax and rotations, too, which transformers computes in fp32 whatever the model's dtype is."""
    to, as_float, softmax = torch.Tensor.to, torch.Tensor.float, torch.nn.functional.softmax

    def is_double(x):
        return x.dtype == torch.float64

    def double_to(x, *args, **options):
        if is_double(x):
            args = tuple(torch.float64 if a is torch.float32 else a for a in args)
            options = {k: torch.float64 if v is torch.float32 else v for k, v in options.items()}
        return to(x, *args, **options)

    torch.Tensor.to = double_to
    torch.Tensor.float = lambda x, *args, **options: x if is_double(x) else as_float(x, *args, **options)
    torch.nn.functional.softmax = lambda x, dim=None, dtype=None, **options: softmax(
        x, dim, dtype=None if is_double(x) else dtype, **options)
    try:
        yield
    finally:
        torch.Tensor.to, torch.Tensor.float, torch.nn.functional.softmax = to, as_float, softmax


def own_errors(model, inputs, found):
    """How far each result is from that in fp64, as `czero verify` measures it."""
    model = copy.deepcopy(model).double()
    for module in model.modules():
        if type(module).__name__.endswith("Attention"):
            module.register_forward_pre_hook(clamp_mask, with_kwargs=True)
    with all_in_fp64():
        finer = results(model, inputs)
    return {name: ((finer[name] - value).abs().max() / max(value.abs().max().item(), 1e-6)).item()
            for name, value in found.items()}


def write(model, inputs, folder):
    """config.json, the weights and oracle.safetensors; the results' own errors."""
    found = results(model, inputs)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    oracle = {f"in.{name}": value for name, value in inputs.items()} | found
    save_file({name: value.contiguous() for name, value in oracle.items()}, folder / "oracle.safetensors")
    return own_errors(model, inputs, found)


def make_encoder(name, rng):
    random.seed(rng.getrandbits(32))
    kind, settings, shape = bert_oracles.random_variant(name)
    model = bert_oracles.build(kind, settings)
    model.set_attn_implementation("eager")
    bert_oracles.move_vectors(model, settings)
    return model, bert_oracles.batch(kind, model.config, **shape), {"kind": kind, **settings, **shape}


def make(family, seed, settings=None, feed=None):
    rng = random.Random(f"{family} {seed}")
    torch.manual_seed(rng.getrandbits(32))
    if family in ENCODERS:
        return make_encoder(ENCODERS[family], rng)
    family, _, head = family.partition(":")
    settings, feed = settings or FAMILIES[family].draw(rng), feed or draw_feed(rng)
    if not head:
        model = build(family, settings)
        return model, make_inputs(model, rng, feed), settings
    settings = {"num_labels": rng.randint(2, 9), **settings}
    if head == "values":
        settings["num_labels"] = rng.choice([1, 1, 3])
    if head in PROBLEMS:
        settings["problem_type"] = PROBLEMS[head]
    if settings.get("pad_token_id") is None:
        feed = {**feed, "B": 1}  # transformers takes no more
    model = build(family, settings, head)
    return model, add_head_labels(model, make_inputs(model, rng, feed), head), settings


# ---- czero ---------------------------------------------------------------------------------------


class Refused(Exception):
    pass


class Disagreed(Exception):
    pass


class GenerateOptions(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("max_new_tokens", ctypes.c_int64), ("temperature", ctypes.c_float),
                ("top_k", ctypes.c_int64), ("seed", ctypes.c_uint64), ("end_id", ctypes.c_int64),
                ("end_ids", ctypes.c_void_p), ("n_end_ids", ctypes.c_size_t), ("n_vocab", ctypes.c_int64),
                ("dtype", ctypes.c_int), ("no_cache", ctypes.c_bool), ("device", ctypes.c_char_p),
                ("top_p", ctypes.c_float), ("repetition_penalty", ctypes.c_float)]


EMIT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int32)


class Czero:
    def __init__(self, build_folder):
        self.program = build_folder / "czero"
        self.library = Library(str(build_folder / "libczero_internal.so"))
        self.library.lib.cz_model_open.restype = ctypes.c_void_p
        self.library.lib.cz_generate.argtypes = [ctypes.c_void_p, ctypes.POINTER(GenerateOptions), ctypes.c_void_p,
                                                 ctypes.c_size_t, EMIT, ctypes.c_void_p]

    def verify(self, folder, own):
        """The largest error of any tensor whose own error leaves it at 2e-5."""
        done = subprocess.run([self.program, "verify", folder], capture_output=True, text=True)
        if done.returncode not in (0, 1):
            raise Refused(done.stderr.strip())
        errors = [line.split()[:2] for line in done.stdout.splitlines() if line.startswith(("grad.", "out."))]
        if not errors:
            raise Refused(done.stderr.strip() or done.stdout.strip())
        worst = 0.0
        for name, error in errors:
            if not float(error) <= max(BOUND, 4 * own[name]):
                raise Disagreed(f"verify: {name} by {error}, transformers itself by {own[name]:.1e}")
            if 4 * own[name] <= BOUND:
                worst = max(worst, float(error))
        return worst

    def generate(self, folder, prompt, n, penalty):
        lib, tokens = self.library.lib, []
        model = lib.cz_model_open(str(folder).encode())
        options = GenerateOptions(ctypes.sizeof(GenerateOptions), n, 0.0, 0, 0, -1, None, 0, 0, 0, False, None,
                                  0.0, penalty)
        array = (ctypes.c_int32 * len(prompt))(*prompt)
        emit = EMIT(lambda user, token: tokens.append(token) or 0)
        status = lib.cz_generate(model, ctypes.byref(options), array, len(prompt), emit, None)
        lib.cz_model_destroy(model)
        if status:
            raise Disagreed(f"generate: {lib.cz_last_error().decode()}")
        return tokens


def check_export(czero, model, inputs, folder, exported):
    czero.library.export(folder, exported)
    back, found = type(model).from_pretrained(exported, attn_implementation="eager", output_loading_info=True)
    wrong = {kind: sorted(map(str, keys)) for kind, keys in found.items() if keys}
    if wrong:
        raise Disagreed(f"export: {wrong}")
    theirs = dict(model.named_parameters())
    for name, parameter in back.named_parameters():  # but for a bias that nothing reads
        if theirs[name].grad is not None and not torch.equal(parameter, theirs[name]):
            raise Disagreed(f"export: {name} is another")
    with torch.no_grad():  # PyTorch's sums may depend on where tensors begin
        ours, want = one_by_one(back).eval()(**inputs).logits, model(**inputs).logits
        if (ours - want).abs().max() > 1e-6 * max(want.abs().max().item(), 1e-6):
            raise Disagreed("export: other logits")


def check_generate(czero, model, inputs, folder):
    """A step at which two tokens are equally likely ends the comparison, which is not a difference."""
    prompt = inputs["input_ids"][:1, :7]
    penalty = 1.3 if prompt.sum() % 2 else 1.0
    # Frequencies that depend on the length: what transformers has in its cache was made with others.
    changes = (getattr(model.config, "rope_parameters", None) or {}).get("rope_type") in ("longrope", "dynamic")
    with torch.no_grad():
        out = model.generate(prompt, use_cache=not changes, attention_mask=torch.ones_like(prompt), max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, do_sample=False, repetition_penalty=penalty,
                             return_dict_in_generate=True, output_scores=True, pad_token_id=0)
    theirs = out.sequences[0, prompt.shape[1]:].tolist()
    ours = czero.generate(folder, prompt[0].tolist(), NEW_TOKENS, penalty)
    for idx, (a, b) in enumerate(zip(ours, theirs)):
        logits = out.scores[idx][0]
        if a != b and (logits[b] - logits[a]).item() <= TIE * max(logits.abs().max().item(), 1e-6):
            return
        if a != b:
            raise Disagreed(f"generate: token {idx} is {a}, {b} in transformers")
    if len(ours) != len(theirs):
        raise Disagreed(f"generate: {len(ours)} tokens, {len(theirs)} in transformers")


def check(czero, family, seed):
    model, inputs, settings = make(family, seed)
    with tempfile.TemporaryDirectory() as work:
        folder = pathlib.Path(work) / "model"
        try:
            worst = czero.verify(folder, write(model, inputs, folder))
            check_export(czero, model, inputs, folder, pathlib.Path(work) / "exported")
            if is_causal(model):
                check_generate(czero, model, inputs, folder)
            return worst
        except (Refused, Disagreed) as e:
            print(f"{family} {seed}: {type(e).__name__.lower()}: {str(e).replace(work, '')}\n    {settings}", flush=True)
            raise


def run(czero, families, n, first):
    table = {family: collections.Counter() for family in families}
    worst = collections.defaultdict(float)
    for family in families:
        for seed in range(first, first + n):
            try:
                worst[family] = max(worst[family], check(czero, family, seed))
                table[family]["agreed"] += 1
            except (Refused, Disagreed) as e:
                table[family][type(e).__name__.lower()] += 1
    print(f"{'family':20}{'agreed':>8}{'disagreed':>11}{'refused':>9}  largest error")
    for family, counts in table.items():
        print(f"{family:20}{counts['agreed']:8}{counts['disagreed']:11}{counts['refused']:9}  {worst[family]:.1e}")
    return any(counts["disagreed"] + counts["refused"] for counts in table.values())


# ---- fixtures ------------------------------------------------------------------------------------

TINY = dict(vocab_size=29, hidden_size=12, intermediate_size=14, num_hidden_layers=2, num_attention_heads=3,
            num_key_value_heads=1, head_dim=6, max_position_embeddings=64, initializer_range=0.1, bos_token_id=None,
            eos_token_id=None, pad_token_id=None)
SHIPPED = {
    "qwen3-variant-a": ("qwen3", {}, dict(B=2, T=17, mask=None, positions=False)),
    "qwen3-variant-b": ("qwen3", dict(attention_bias=True, tie_word_embeddings=True, num_attention_heads=4,
                                      num_key_value_heads=2, hidden_size=16),
                        dict(B=2, T=13, mask="left", positions=True)),
    "qwen3-moe-variant-a": ("qwen3_moe", dict(num_experts=5, num_experts_per_tok=2, moe_intermediate_size=9,
                                              norm_topk_prob=True, output_router_logits=True, router_aux_loss_coef=0.5),
                            dict(B=2, T=17, mask=None, positions=False)),
    "qwen3-moe-variant-b": ("qwen3_moe", dict(num_experts=40, num_experts_per_tok=3, moe_intermediate_size=7,
                                              mlp_only_layers=[1], num_hidden_layers=3, attention_bias=True,
                                              output_router_logits=True, router_aux_loss_coef=3.0,
                                              tie_word_embeddings=True, num_attention_heads=4,
                                              num_key_value_heads=2, hidden_size=16),
                            dict(B=2, T=13, mask="left", positions=True)),
    "olmo2-variant-a": ("olmo2", {}, dict(B=2, T=17, mask=None, positions=False)),
    "olmo2-variant-b": ("olmo2", dict(attention_bias=True, tie_word_embeddings=True, pad_token_id=3,
                                      num_attention_heads=4, num_key_value_heads=2, hidden_size=16),
                        dict(B=2, T=13, mask="right", positions=False)),
    "granite-variant-a": ("granite", dict(embedding_multiplier=12.0, logits_scaling=8.0, residual_multiplier=0.22,
                                          attention_multiplier=0.1), dict(B=2, T=17, mask=None, positions=False)),
    "granite-variant-b": ("granite", dict(attention_bias=True, mlp_bias=True, tie_word_embeddings=True,
                                          logits_scaling=3.3, residual_multiplier=1.5),
                          dict(B=2, T=13, mask="holes", positions=False)),
    "smollm3-variant-a": ("smollm3", dict(num_hidden_layers=3, no_rope_layer_interval=2),
                          dict(B=2, T=17, mask=None, positions=False)),
    "smollm3-variant-b": ("smollm3", dict(mlp_bias=True, no_rope_layers=[0, 1], tie_word_embeddings=False),
                          dict(B=2, T=13, mask="left", positions=True)),
    "phi3-variant-a": ("phi3", dict(hidden_size=18, head_dim=6, original_max_position_embeddings=16, rope_parameters=dict(
        rope_type="longrope", rope_theta=1e4, partial_rotary_factor=0.67, short_factor=[1.0, 1.5],
        long_factor=[2.0, 3.0])), dict(B=2, T=17, mask=None, positions=False)),
    "phi3-variant-b": ("phi3", dict(num_attention_heads=4, num_key_value_heads=2, hidden_size=16, head_dim=4,
                                    tie_word_embeddings=True, pad_token_id=3), dict(B=2, T=13, mask="right", positions=False)),
    "mistral-variant-a": ("mistral", dict(sliding_window=None), dict(B=2, T=17, mask=None, positions=False)),
    "mistral-variant-b": ("mistral", dict(num_attention_heads=4, num_key_value_heads=2, hidden_size=16, sliding_window=5,
                                          tie_word_embeddings=True), dict(B=2, T=13, mask="left", positions=True)),
    "ministral-variant-a": ("ministral", dict(sliding_window=6, layer_types=["full_attention", "sliding_attention"]),
                            dict(B=2, T=17, mask=None, positions=False)),
    "ministral-variant-b": ("ministral", dict(num_attention_heads=4, num_key_value_heads=2, hidden_size=16,
                                              sliding_window=3), dict(B=2, T=13, mask="left", positions=False)),
    "gemma2-variant-a": ("gemma2", dict(sliding_window=6, attn_logit_softcapping=0.5, final_logit_softcapping=0.7,
                                        query_pre_attn_scalar=7), dict(B=2, T=17, mask=None, positions=False)),
    "gemma2-variant-b": ("gemma2", dict(num_attention_heads=4, num_key_value_heads=2, hidden_size=16, sliding_window=3,
                                        pad_token_id=0, attention_bias=True, attn_logit_softcapping=None,
                                        final_logit_softcapping=None, tie_word_embeddings=False),
                         dict(B=2, T=13, mask="left", positions=True)),
    "gemma3-variant-a": ("gemma3_text", dict(sliding_window=6, layer_types=["sliding_attention", "full_attention"],
                                             rope_parameters=dict(
        full_attention=dict(rope_type="linear", rope_theta=1e6, factor=8.0),
        sliding_attention=dict(rope_type="default", rope_theta=1e4))), dict(B=2, T=17, mask=None, positions=False)),
    "gemma3-variant-b": ("gemma3_text", dict(num_attention_heads=4, num_key_value_heads=2, hidden_size=16,
                                             sliding_window=3, pad_token_id=0),
                         dict(B=2, T=13, mask="left", positions=True)),
}
# Rarer settings, which tests/fixtures/twins records.
TWIN = {**TINY, "hidden_size": 8, "num_attention_heads": 2, "head_dim": 4, "intermediate_size": 10}
TWINS = {
    "smollm3-long-list": ("smollm3", dict(no_rope_layers=[1, 0, 1, 1, 0]), dict(B=2, T=9, mask=None, positions=False)),
    "smollm3-layer-types": ("smollm3", dict(use_sliding_window=False, sliding_window=3, no_rope_layers=[0, 1],
                                            layer_types=["full_attention", "sliding_attention"]),
                            dict(B=2, T=9, mask="left", positions=False)),
    "gemma3-scores": ("gemma3_text", dict(attn_logit_softcapping=0.3, query_pre_attn_scalar=1, sliding_window=4),
                      dict(B=2, T=9, mask=None, positions=False)),
}
DEBERTA = dict(vocab_size=17, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=12, embedding_size=4,
               max_position_embeddings=12, type_vocab_size=0, pos_att_type="p2c|c2p", relative_attention=True, position_buckets=4,
               position_biased_input=False, legacy=False, initializer_range=0.2, num_labels=3)
DEBERTAS = {"deberta-tokens-legacy": "deberta-tokens", "deberta-texts-legacy": "deberta"}


def make_twins(folder):
    for name, (family, settings, feed) in TWINS.items():
        model, inputs, _ = make(family, 7, {**TWIN, **settings}, feed)
        write(model, inputs, folder / name)
    for name, kind in DEBERTAS.items():
        bert_oracles.make(name, kind, DEBERTA, dict(B=2, T=9, types=False), folder / name)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--random", type=int, metavar="N", help="models of each family")
    parser.add_argument("--make", metavar="DIR", type=pathlib.Path, help="write the folders that ship")
    parser.add_argument("--twins", metavar="DIR", type=pathlib.Path, help="write the folders of fixtures/twins")
    parser.add_argument("--family", help="names, with commas between them; all if absent")
    parser.add_argument("--seed", type=int, default=1, help="the first (default: 1)")
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build"))
    args = parser.parse_args()
    families = args.family.split(",") if args.family else list(FAMILIES) + list(ENCODERS) + HEADED
    torch.set_num_threads(1)
    if args.make:
        for name, (family, settings, feed) in SHIPPED.items():
            if family in families:
                model, inputs, _ = make(family, 7, {**TINY, **settings}, feed)
                write(model, inputs, args.make / name)
    if args.twins:
        make_twins(args.twins)
    if args.random:
        sys.exit(run(Czero(args.build.resolve()), families, args.random, args.seed))


if __name__ == "__main__":
    main()
