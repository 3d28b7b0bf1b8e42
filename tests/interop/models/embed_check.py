"""czero embed beside transformers: last hidden states, and their poolings, of small random models with tokenizers.

    $(scripts/peers.sh) tests/interop/models/embed_check.py build/czero [--make FOLDER]

--make writes the model, the texts and the vectors that tests/cli/heads/test_embed.sh reads.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy
import torch
import transformers as tf
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("czero")
parser.add_argument("--make", type=Path)
ARGS = parser.parse_args()

TEXTS = ["a good day", "the rain in spain stays mainly in the plain, they say", "no", "what a day this was today",
         "Übung macht den Meister", "one two three four five six seven eight nine ten"]
PAIRS = ["was it?", "yes", "and why not", "", "good", "a b c"]
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
         "max_position_embeddings": 64}


def tokenizer(folder, special):
    """A byte-level or WordPiece tokenizer trained on the texts."""
    if special:
        tok = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tok.normalizer = normalizers.BertNormalizer()
        tok.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
        tok.train_from_iterator(TEXTS + PAIRS, trainer)
        tok.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
        fast = tf.BertTokenizerFast(tokenizer_object=tok, pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]",
                                    unk_token="[UNK]", mask_token="[MASK]", model_max_length=64)
    else:
        tok = Tokenizer(models.BPE())
        tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<|endoftext|>"],
                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
        tok.train_from_iterator(TEXTS + PAIRS, trainer)
        fast = tf.PreTrainedTokenizerFast(tokenizer_object=tok, eos_token="<|endoftext|>",
                                          pad_token="<|endoftext|>")
    fast.save_pretrained(folder)
    return fast


def cases():
    """Name, configuration, class, whether the tokenizer has [CLS]."""
    yield "bert", tf.BertConfig(vocab_size=200, **SMALL), tf.BertModel, True
    yield "bert-mlm", tf.BertConfig(vocab_size=200, **SMALL), tf.BertForMaskedLM, True
    yield "bert-cls", tf.BertConfig(vocab_size=200, num_labels=3, **SMALL), tf.BertForSequenceClassification, True
    yield "roberta", tf.RobertaConfig(vocab_size=200, type_vocab_size=1, pad_token_id=0, **SMALL), tf.RobertaModel, True
    yield "mpnet", tf.MPNetConfig(vocab_size=200, pad_token_id=0, **SMALL), tf.MPNetModel, True
    yield "modernbert", tf.ModernBertConfig(vocab_size=200, pad_token_id=0, cls_token_id=2, sep_token_id=3,
                                            **SMALL), tf.ModernBertModel, True
    yield "modernbert-cls", tf.ModernBertConfig(vocab_size=200, pad_token_id=0, num_labels=3, **SMALL), \
        tf.ModernBertForSequenceClassification, True
    yield "distilbert", tf.DistilBertConfig(vocab_size=200, dim=32, n_layers=2, n_heads=4, hidden_dim=48,
                                            max_position_embeddings=64), tf.DistilBertModel, True
    yield "gpt2", tf.GPT2Config(vocab_size=300, n_embd=32, n_layer=2, n_head=4, n_positions=64), tf.GPT2LMHeadModel, False
    yield "gpt2-base", tf.GPT2Config(vocab_size=300, n_embd=32, n_layer=2, n_head=4, n_positions=64), tf.GPT2Model, False
    yield "llama", tf.LlamaConfig(vocab_size=300, num_key_value_heads=2, **SMALL), tf.LlamaForCausalLM, False
    yield "llama-cls", tf.LlamaConfig(vocab_size=300, num_key_value_heads=2, num_labels=3, pad_token_id=0,
                                      **SMALL), tf.LlamaForSequenceClassification, False
    yield "qwen3", tf.Qwen3Config(vocab_size=300, num_key_value_heads=2, head_dim=8, tie_word_embeddings=True,
                                  **SMALL), tf.Qwen3ForCausalLM, False
    yield "gemma3", tf.Gemma3TextConfig(vocab_size=300, num_key_value_heads=2, head_dim=8, **SMALL), \
        tf.Gemma3ForCausalLM, False


def expected(model, tok, texts, pairs):
    """Hidden states, mask, of all texts in one padded batch."""
    batch = tok(texts, pairs, padding=True, truncation=True, max_length=64, return_tensors="pt")
    batch = {k: v for k, v in batch.items() if k in ("input_ids", "attention_mask") or k == "token_type_ids" and hasattr(
        model.config, "type_vocab_size") and model.config.type_vocab_size > 1}
    base = getattr(model, model.base_model_prefix, model)
    with torch.no_grad():
        states = base(**batch).last_hidden_state.double().numpy()
    return states, batch["attention_mask"].numpy().astype(bool)


def pooled(states, mask, pool, normalize):
    rows = numpy.arange(len(states))
    if pool == "none":
        out = states * mask[:, :, None]
    elif pool == "mean":
        out = (states * mask[:, :, None]).sum(1) / mask.sum(1)[:, None]
    else:
        out = states[rows, 0 if pool == "cls" else mask.sum(1) - 1]
    return out / numpy.maximum(numpy.linalg.norm(out, axis=-1, keepdims=True), 1e-12) if normalize else out


def embed(folder, out, *options):
    done = subprocess.run([ARGS.czero, "embed", "--model", folder, "-o", out, *options], capture_output=True, text=True,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode or done.stderr:
        print("   ", done.returncode, done.stderr.strip())
    return numpy.load(out) if out.exists() else numpy.zeros(1)


def check(name, config, cls, special, root):
    folder = root / name
    torch.manual_seed(len(name))
    model = cls(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    model.save_pretrained(folder)
    tok = tokenizer(folder, special)
    data = root / "texts.jsonl"
    data.write_text("".join(json.dumps({"text": a, "pair": b}) + "\n" for a, b in zip(TEXTS, PAIRS)))
    worst = 0
    for pairs in ([None, PAIRS] if special and name != "roberta" else [None]):
        states, mask = expected(model, tok, TEXTS, pairs)
        for pool in ("cls", "mean", "last", "none"):
            for normalize in (False, True):
                want = pooled(states, mask, pool, normalize)
                out = root / "x.npy"
                out.unlink(missing_ok=True)
                source = root / "one.jsonl"
                source.write_text("".join(json.dumps({"text": t} | ({"pair": p} if pairs else {})) + "\n"
                                          for t, p in zip(TEXTS, PAIRS)))
                got = embed(folder, out, "--data", source, "--pool", pool, "--batch", "4",
                            *(["--normalize"] if normalize else []))
                if got.shape != want.shape:
                    print(f"{name} {pool}: shape {got.shape}, not {want.shape}")
                    return 1
                worst = max(worst, abs(got - want).max() / abs(want).max())
                if pool == "none":
                    assert (numpy.load(root / "x.lengths.npy") == mask.sum(1)).all()
    print(f"{name}: largest difference {worst:.1e}")
    return worst > 1e-5


def sentence_transformers(root):
    """The folder's own recipe is obeyed."""
    folder = root / "bert"
    model, tok = tf.BertModel.from_pretrained(folder).eval(), tf.AutoTokenizer.from_pretrained(folder)
    states, mask = expected(model, tok, TEXTS, None)
    (folder / "1_Pooling").mkdir()
    n_bad = 0
    for pool, key in (("cls", "cls_token"), ("mean", "mean_tokens"), ("last", "lasttoken")):
        for normalize in (False, True):
            modules = ["Transformer", "Pooling"] + ["Normalize"] * normalize
            (folder / "modules.json").write_text(json.dumps([
                {"idx": i, "name": str(i), "path": f"{i}_{m}" if i else "", "type": f"sentence_transformers.models.{m}"}
                for i, m in enumerate(modules)]))
            (folder / "1_Pooling/config.json").write_text(json.dumps({
                "word_embedding_dimension": 32, **{f"pooling_mode_{k}": k == key for k in (
                    "cls_token", "mean_tokens", "max_tokens", "lasttoken")}}))
            (root / "t.txt").write_text("\n".join(TEXTS) + "\n")
            got = embed(folder, root / "x.npy", "--data", root / "t.txt")
            n_bad += abs(got - pooled(states, mask, pool, normalize)).max() > 1e-5
    print("sentence-transformers:", n_bad, "of 6 differ")
    return n_bad > 0


def make(folder):
    """What the default tests compare with."""
    config = tf.BertConfig(vocab_size=200, **{**SMALL, "hidden_size": 16})
    torch.manual_seed(5)
    model = tf.BertModel(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    model.save_pretrained(folder)
    tok = tokenizer(folder, True)
    lines = []
    for pairs in (None, PAIRS):
        states, mask = expected(model, tok, TEXTS, pairs)
        for pool in ("cls", "mean", "last"):
            for row in pooled(states, mask, pool, False):
                lines.append(" ".join([pool, "pair" if pairs else "text", *(f"{x:.6f}" for x in row)]))
    (folder / "expected.txt").write_text("\n".join(lines) + "\n")
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": a, "pair": b}, ensure_ascii=False) + "\n"
                                                for a, b in zip(TEXTS, PAIRS)))


def main():
    if ARGS.make:
        make(ARGS.make)
        return
    root = Path(tempfile.mkdtemp(prefix="czero-embed-"))
    n_bad = sum(check(*case, root) for case in cases()) + sentence_transformers(root)
    sys.exit(n_bad > 0)


main()
