#!/usr/bin/env python3
"""A folder that czero exported, as Hugging Face sees it.

  export_check.py DIR [--czero build/czero] [--prompt TEXT] [--new-tokens N]
  export_check.py --all build/libczero_internal.so --czero build/czero

transformers must load every tensor (none missing, none left over), compute finite logits and,
where it can, generate. With --czero, the two are also held against each other: `czero verify` on a batch whose
logits, loss and gradients PyTorch computed (limit 1e-4), and, for models with a vocabulary of
bytes, each token of `czero generate` (greedy) against PyTorch's logits for the same text.
--all exports, through the library, a model of
every family and head (the test's folders, and presets with another vocabulary or other labels), tied
and not, and checks each in these ways, its labels, and that nothing is stored twice; then folders that
transformers saved with other heads, or none, whose base models must arrive unchanged.
Exit 0 when everything agrees, 1 when not.
"""
import argparse
import ctypes
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from fixtures import FIXTURES  # noqa: E402

REPLACEMENT = "\N{REPLACEMENT CHARACTER}".encode()
CLOSE_ENOUGH = 1e-3  # two logits this near count as a tie


def fail(message):
    sys.exit(f"export_check: {message}")


def auto_class(folder):
    import transformers
    head = json.loads((pathlib.Path(folder) / "config.json").read_text())["architectures"][0]
    for ending, kind in (("ForSequenceClassification", transformers.AutoModelForSequenceClassification),
                         ("ForMaskedLM", transformers.AutoModelForMaskedLM),
                         ("ForPreTraining", transformers.AutoModelForPreTraining)):
        if head.endswith(ending):
            return kind
    return transformers.AutoModelForCausalLM


def load(folder):
    if not (pathlib.Path(folder) / "config.json").is_file():
        fail(f"{folder}: no config.json there")
    import torch
    model, found = auto_class(folder).from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if found[kind]:
            fail(f"{folder}: {kind.replace('_', ' ')}: {sorted(map(str, found[kind]))[:5]}")
    model.eval()
    return model


def some_batch(model):
    import torch
    generator = torch.Generator().manual_seed(7)
    length = min(33, model.config.max_position_embeddings)
    if "Roberta" in type(model).__name__:  # rows of positions up to the padding's hold no token
        length = min(length, model.config.max_position_embeddings - model.config.pad_token_id - 1)
    return torch.randint(model.config.vocab_size, (2, length), generator=generator)


def is_decoder(model):
    return type(model).__name__.endswith(("CausalLM", "LMHeadModel"))


def check_alone(model, new_tokens):
    import torch
    ids = some_batch(model)
    with torch.no_grad():
        if not model(input_ids=ids).logits.isfinite().all():
            fail("the logits are not finite")
    n_params = sum(p.numel() for p in model.parameters())
    print(f"transformers loads it: {type(model).__name__}, {n_params} parameters", end="")
    if is_decoder(model):
        limit = min(new_tokens, model.config.max_position_embeddings - 8)
        with torch.no_grad():
            text = model.generate(ids[:1, :8], max_new_tokens=limit, min_new_tokens=limit,
                                  do_sample=False, pad_token_id=0)
        if text.shape[1] != 8 + limit:
            fail(f"generate() gave {text.shape[1] - 8} tokens, not {limit}")
        print(f"; generates {limit} tokens", end="")
    print()


def some_labels(model, ids):
    import torch
    if type(model).__name__.endswith("ForSequenceClassification"):
        return torch.arange(ids.shape[0]) % model.config.num_labels
    if type(model).__name__.endswith("ForPreTraining"):
        return ids % 2
    labels = ids.clone()
    labels[:, :3] = -100
    return labels


def write_oracle(model, path):
    """One batch and what PyTorch makes of it, under the names `czero verify` reads."""
    import torch
    from safetensors.torch import save_file
    ids = some_batch(model)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids),
              "labels": some_labels(model, ids)}
    if not is_decoder(model):
        inputs["attention_mask"][1, ids.shape[1] // 2:] = 0
    model.zero_grad()
    out = model(**inputs)
    out.loss.backward()
    tensors = {f"in.{name}": t for name, t in inputs.items()}
    tensors |= {"out.logits": out.logits.detach(), "out.loss": out.loss.detach().reshape(1)}
    tensors |= {f"grad.{name}": p.grad for name, p in model.named_parameters() if p.grad is not None}
    for name in tensors:  # zero in exact arithmetic (a shift of all scores of a query): PyTorch's rounding
        if name.startswith("grad.") and name.endswith(("key.bias", "k_lin.bias")):
            tensors[name].zero_()
    save_file({name: t.contiguous() for name, t in tensors.items()}, path)


def check_verify(model, folder, czero):
    with tempfile.TemporaryDirectory() as scratch:
        for file in pathlib.Path(folder).resolve().iterdir():
            if file.name != "oracle.safetensors":
                shutil.copy(file, pathlib.Path(scratch) / file.name)  # no links: czero follows none out of a folder
        write_oracle(model, f"{scratch}/oracle.safetensors")
        done = subprocess.run([czero, "verify", scratch], capture_output=True, text=True)
    if done.returncode:
        fail(f"czero verify exits {done.returncode}:\n{done.stdout}{done.stderr}")
    print(f"czero verify: {done.stdout.strip().splitlines()[-1]}")


def check_greedy(model, folder, czero, prompt, new_tokens):
    """Feed PyTorch what czero wrote: each of its tokens must be PyTorch's likeliest, ties aside."""
    import torch
    start = list(prompt.encode())
    limit = min(new_tokens, model.config.max_position_embeddings - len(start))
    done = subprocess.run([czero, "generate", "--model", folder, "--prompt", prompt, "--no-echo",
                           "--temperature", "0", "--max-new-tokens", str(limit)], capture_output=True)
    if done.returncode:
        fail(f"czero generate exits {done.returncode}: {done.stderr.decode(errors='replace')}")
    text = done.stdout[:-1]
    written = list(text.split(REPLACEMENT)[0])  # bytes that are no UTF-8 cannot be told apart after it
    if not written:
        fail(f"czero generate wrote nothing to compare: {done.stdout!r}")
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([start + written])).logits[0, len(start) - 1:-1]
    for idx, (token, row) in enumerate(zip(written, logits)):
        if row.max() - row[token] > CLOSE_ENOUGH:
            fail(f"new token {idx}: czero chose {token}, PyTorch {row.argmax().item()} "
                 f"({(row.max() - row[token]).item():.3g} above)")
    print(f"czero generate: {len(written)} greedy tokens are PyTorch's: {bytes(written)!r}")


# ---- every family and head -------------------------------------------------------------------

DATA = FIXTURES / "models"
CAUSAL, MASKED, CLASSES, REPLACED = 1, 2, 3, 4
NAMES = ["no", "yes", 'so "so"', "\N{GRINNING FACE} \u60b2\u3057\u3044", "back\\slash", ""]
SMALL = {"bert": dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48),
         "distilbert": dict(dim=32, n_layers=2, n_heads=2, hidden_dim=48),
         "xlm-roberta": dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48,
                             max_position_embeddings=40, type_vocab_size=1),
         "roberta": dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48,
                         max_position_embeddings=40, type_vocab_size=1),
         "electra": dict(embedding_size=24, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                         intermediate_size=48),
         "gpt2": dict(n_embd=32, n_layer=2, n_head=2, n_positions=64),
         "llama": dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
                       num_key_value_heads=2),
         "qwen2": dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
                       num_key_value_heads=2)}


class Options(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("task", ctypes.c_int), ("labels", ctypes.POINTER(ctypes.c_char_p)),
                ("n_labels", ctypes.c_size_t), ("vocab_size", ctypes.c_int64),
                ("config_only", ctypes.c_bool)]


FETCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t,
                         ctypes.c_size_t, ctypes.c_void_p)


class Library:
    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        self.lib.cz_model_open_ex.restype = ctypes.c_void_p
        self.lib.cz_last_error.restype = ctypes.c_char_p
        self.lib.model_read_weights.argtypes = [ctypes.c_void_p] + [ctypes.c_size_t] * 3 + [ctypes.c_void_p]
        self.lib.model_export_hf.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, FETCH,
                                             ctypes.c_void_p]
        self.lib.cz_model_destroy.argtypes = [ctypes.c_void_p]

    def export(self, source, folder, task=0, labels=(), vocab_size=0):
        array = (ctypes.c_char_p * len(labels))(*[name.encode() for name in labels])
        options = Options(ctypes.sizeof(Options), task, array, len(labels), vocab_size)
        model = self.lib.cz_model_open_ex(str(source).encode(), ctypes.byref(options))
        if not model:
            fail(f"{source}: {self.lib.cz_last_error().decode()}")
        fetch = FETCH(lambda user, *piece: self.lib.model_read_weights(user, *piece))
        if self.lib.model_export_hf(model, str(folder).encode(), 0, fetch, model):
            fail(f"{source}: {self.lib.cz_last_error().decode()}")
        self.lib.cz_model_destroy(model)


def config_only(scratch, model_type, more):
    """A small config without weights: they start from the init rules."""
    folder = pathlib.Path(scratch) / f"source-{model_type}-{len(list(pathlib.Path(scratch).iterdir()))}"
    folder.mkdir()
    (folder / "config.json").write_text(
        json.dumps({"model_type": model_type, "vocab_size": 61} | SMALL[model_type] | more))
    return folder


def cases(scratch):
    for folder in sorted(DATA.iterdir()):
        yield folder.name, folder, {}
    for family in SMALL:
        for tied in True, False:
            small = config_only(scratch, family, {"tie_word_embeddings": tied})
            if "bert" not in family and family != "electra":
                yield f"{family}, tied {tied}", small, dict(task=CAUSAL)
                continue
            yield f"{family} classes, tied {tied}", small, dict(task=CLASSES, labels=NAMES)
            if family == "electra":
                yield f"{family} replaced, tied {tied}", small, dict(task=REPLACED)
            if family != "distilbert":
                yield f"{family} masked, tied {tied}", small, dict(task=MASKED)
    for preset in "bert-tiny", "distilbert-base", "electra-small", "roberta-base":
        yield preset, preset, dict(task=CLASSES, labels=NAMES, vocab_size=200)
    yield "bert-tiny masked", "bert-tiny", dict(task=MASKED, vocab_size=200)
    for preset in "gpt2-tiny", "gpt2", "llama-tiny", "qwen2-tiny":
        yield preset, preset, dict(task=CAUSAL, vocab_size=200)


def check_labels(model, wanted):
    if not wanted:
        return
    if [model.config.id2label[k] for k in range(len(wanted))] != wanted:
        fail(f"labels: {model.config.id2label}")
    if model.config.label2id != {name: k for k, name in enumerate(wanted)}:
        fail(f"label2id: {model.config.label2id}")


def check_stored_once(model, folder):
    from safetensors import safe_open
    with safe_open(f"{folder}/model.safetensors", "pt") as file:
        stored = sum(file.get_slice(name).get_shape() != [] and
                     file.get_tensor(name).numel() for name in file.keys())
    unique = sum(p.numel() for p in model.parameters())
    if stored != unique:
        fail(f"{stored} elements are stored, the model has {unique}")


# ---- other heads' folders ---------------------------------------------------------------------

OTHER_HEADS = [("BertModel", 0), ("BertModel", CLASSES), ("BertModel", MASKED), ("BertForPreTraining", 0),
               ("BertForPreTraining", CLASSES), ("BertForMaskedLM", CLASSES),
               ("BertForTokenClassification", CLASSES), ("BertForQuestionAnswering", CLASSES),
               ("BertForNextSentencePrediction", MASKED), ("BertForSequenceClassification", MASKED),
               ("DistilBertModel", 0), ("DistilBertForMaskedLM", CLASSES),
               ("DistilBertForTokenClassification", CLASSES), ("RobertaModel", 0), ("RobertaModel", MASKED),
               ("RobertaForMaskedLM", CLASSES), ("RobertaForTokenClassification", MASKED),
               ("XLMRobertaModel", CLASSES), ("XLMRobertaForQuestionAnswering", CLASSES),
               ("ElectraModel", 0), ("ElectraForPreTraining", CLASSES), ("ElectraForPreTraining", 0), ("ElectraForMaskedLM", CLASSES),
               ("ElectraForTokenClassification", MASKED), ("GPT2Model", 0),
               ("GPT2ForSequenceClassification", CAUSAL), ("LlamaModel", 0),
               ("LlamaForSequenceClassification", CAUSAL), ("Qwen2Model", CAUSAL),
               ("Qwen2ForTokenClassification", CAUSAL)]


def make_other(scratch, name):
    import torch
    import transformers
    family = next(f for f in ("distilbert", "bert", "gpt2", "llama", "qwen2", "roberta", "xlm-roberta", "electra")
                  if name.lower().startswith(f.replace("-", "")))
    config = transformers.AutoConfig.for_model(family, vocab_size=61, num_labels=5, bos_token_id=1,
                                               eos_token_id=2, pad_token_id=0, **SMALL[family])
    torch.manual_seed(1)
    model = getattr(transformers, name)(config)
    folder = pathlib.Path(scratch) / f"from-{name}-{len(list(pathlib.Path(scratch).iterdir()))}"
    model.save_pretrained(folder)
    return model, folder


def check_trunk(theirs, folder):
    """Every tensor of the base model that both have is the same; only a pooler may be new."""
    ours = load(folder).base_model.state_dict()
    for name, tensor in theirs.base_model.state_dict().items():
        if name in ours and not ours[name].equal(tensor):
            fail(f"{folder}: {name} is another")
    missing = [name for name in ours if name not in theirs.base_model.state_dict() and "pooler" not in name]
    if missing:
        fail(f"{folder}: {missing} came from nowhere")
    print(f"the {len(ours)} tensors of the base model are as transformers saved them")


def check_others(library):
    with tempfile.TemporaryDirectory() as scratch:
        for idx, (name, task) in enumerate(OTHER_HEADS):
            model, source = make_other(scratch, name)
            folder = pathlib.Path(scratch) / f"out-{idx}"
            library.export(source, folder, task=task)
            print(f"-- {name} -> {auto_class(folder).__name__}: ", end="")
            check_trunk(model, folder)


def check_all(library, czero):
    with tempfile.TemporaryDirectory() as scratch:
        for idx, (what, source, options) in enumerate(cases(scratch)):
            folder = pathlib.Path(scratch) / f"out-{idx}"
            library.export(source, folder, **options)
            print(f"-- {what}: ", end="")
            model = load(folder)
            check_alone(model, 8)
            check_labels(model, list(options.get("labels", ())))
            check_stored_once(model, folder)
            if czero:
                check_verify(model, folder, czero)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--all", metavar="LIBRARY", help="export and check every family and head")
    parser.add_argument("--czero", help="the binary to hold against PyTorch")
    parser.add_argument("--prompt", default="The ")
    parser.add_argument("--new-tokens", type=int, default=48)
    args = parser.parse_args()
    if args.all:
        check_all(Library(args.all), args.czero)
        return check_others(Library(args.all))
    if not args.folder:
        parser.error("a folder, or --all")
    model = load(args.folder)
    check_alone(model, args.new_tokens)
    if args.czero:
        check_verify(model, args.folder, args.czero)
        if model.config.vocab_size == 256:
            check_greedy(model, args.folder, args.czero, args.prompt, args.new_tokens)


if __name__ == "__main__":
    main()
