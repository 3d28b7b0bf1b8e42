#!/usr/bin/env python3
"""A folder that czero exported, as Hugging Face sees it.

  export_check.py DIR [--czero build/czero] [--prompt TEXT] [--new-tokens N]

transformers must load every tensor (none missing, none left over), compute finite logits and
generate. With --czero, the two are also held against each other: `czero verify` on a batch whose
logits, loss and gradients PyTorch computed (limit 1e-4), and, for models with a vocabulary of
bytes, each token of `czero generate` (greedy) against PyTorch's logits for the same text.
Exit 0 when everything agrees, 1 when not.
"""
import argparse
import pathlib
import subprocess
import sys
import tempfile

REPLACEMENT = "\N{REPLACEMENT CHARACTER}".encode()
CLOSE_ENOUGH = 1e-3  # two logits this near count as a tie


def fail(message):
    sys.exit(f"export_check: {message}")


def load(folder):
    if not (pathlib.Path(folder) / "config.json").is_file():
        fail(f"{folder}: no config.json there")
    import torch
    import transformers
    model, found = transformers.AutoModelForCausalLM.from_pretrained(
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
    return torch.randint(model.config.vocab_size, (2, length), generator=generator)


def check_alone(model, new_tokens):
    import torch
    ids = some_batch(model)
    with torch.no_grad():
        if not model(input_ids=ids).logits.isfinite().all():
            fail("the logits are not finite")
        room = min(new_tokens, model.config.max_position_embeddings - 8)
        text = model.generate(ids[:1, :8], max_new_tokens=room, min_new_tokens=room, do_sample=False,
                              pad_token_id=0)
    if text.shape[1] != 8 + room:
        fail(f"generate() gave {text.shape[1] - 8} tokens, not {room}")
    n_params = sum(p.numel() for p in model.parameters())
    print(f"transformers loads it: {type(model).__name__}, {n_params} parameters; generates {room} tokens")


def write_oracle(model, path):
    """One batch and what PyTorch makes of it, under the names `czero verify` reads."""
    import torch
    from safetensors.torch import save_file
    ids = some_batch(model)
    labels = ids.clone()
    labels[:, :3] = -100
    model.zero_grad()
    out = model(input_ids=ids, labels=labels)
    out.loss.backward()
    tensors = {"in.input_ids": ids, "in.labels": labels, "out.logits": out.logits.detach(),
               "out.loss": out.loss.detach().reshape(1)}
    tensors |= {f"grad.{name}": p.grad for name, p in model.named_parameters() if p.grad is not None}
    save_file({name: t.contiguous() for name, t in tensors.items()}, path)


def check_verify(model, folder, czero):
    with tempfile.TemporaryDirectory() as scratch:
        for file in pathlib.Path(folder).resolve().iterdir():
            if file.name != "oracle.safetensors":
                (pathlib.Path(scratch) / file.name).symlink_to(file)
        write_oracle(model, f"{scratch}/oracle.safetensors")
        done = subprocess.run([czero, "verify", scratch], capture_output=True, text=True)
    if done.returncode:
        fail(f"czero verify exits {done.returncode}:\n{done.stdout}{done.stderr}")
    print(f"czero verify: {done.stdout.strip().splitlines()[-1]}")


def check_greedy(model, folder, czero, prompt, new_tokens):
    """Feed PyTorch what czero wrote: each of its tokens must be PyTorch's likeliest, ties aside."""
    import torch
    start = list(prompt.encode())
    room = min(new_tokens, model.config.max_position_embeddings - len(start))
    done = subprocess.run([czero, "generate", "--model", folder, "--prompt", prompt, "--no-echo",
                           "--temperature", "0", "--max-new-tokens", str(room)], capture_output=True)
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


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--czero", help="the binary to hold against PyTorch")
    parser.add_argument("--prompt", default="The ")
    parser.add_argument("--new-tokens", type=int, default=48)
    args = parser.parse_args()
    model = load(args.folder)
    check_alone(model, args.new_tokens)
    if args.czero:
        check_verify(model, args.folder, args.czero)
        if model.config.vocab_size == 256:
            check_greedy(model, args.folder, args.czero, args.prompt, args.new_tokens)


if __name__ == "__main__":
    main()
