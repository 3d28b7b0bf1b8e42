#!/usr/bin/env python3
"""Tokenizing on one core: czero beside Hugging Face's tokenizers, in turns, same documents, same ids.

    python3 bench/tokenizer.py FOLDER FILE [FOLDER FILE …] [--rounds R] [--nbytes N]

FOLDER holds a tokenizer.json, or a vocab.txt (WordPiece); FILE is UTF-8 text, cut into documents of about N
bytes (4096) at line ends. Figures are the best of R rounds in MB/s of processor time. Hugging Face runs on one
thread and gets the documents in one batch, which is its fastest way.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
ROOT = pathlib.Path(__file__).resolve().parent.parent
PEERS = pathlib.Path(os.environ.get("CZERO_PEERS", pathlib.Path.home() / ".cache/czero-peers/venv"))


def reenter_with_peers():
    python = PEERS / "bin/python"
    if pathlib.Path(sys.prefix).resolve() == PEERS.resolve():
        return
    if not python.exists():
        sys.exit(f"tokenizer: no peers in {PEERS}; run scripts/peers.sh first")
    os.execv(python, [str(python), *sys.argv])


def open_theirs(folder):
    from tokenizers import BertWordPieceTokenizer, Tokenizer

    if (folder / "tokenizer.json").exists():
        tok = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tok.no_truncation()
        tok.no_padding()
        return tok
    config = folder / "tokenizer_config.json"
    lower = json.loads(config.read_text()).get("do_lower_case", True) if config.exists() else True
    return BertWordPieceTokenizer(str(folder / "vocab.txt"), lowercase=lower)


def documents(path, nbytes):
    data, at = path.read_bytes(), 0
    while at < len(data):
        end = data.find(b"\n", at + nbytes) + 1 or len(data)
        yield data[at:end].decode("utf-8", errors="replace")
        at = end


def theirs(tok, docs, nbytes):
    start = time.process_time()
    n = sum(len(e.ids) for e in tok.encode_batch(docs, add_special_tokens=False))
    return nbytes / 1e6 / (time.process_time() - start), n


def ours(folder, path, nbytes):
    program = ROOT / "build" / "bench" / "bench_tokenizer"
    words = subprocess.run([program, folder, path, "--rounds", "1", "--nbytes", str(nbytes)], check=True,
                           capture_output=True, text=True).stdout.split()
    return float(words[0]), int(words[2])  # 110.3 MB/s, 256330 ids of …


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("words", nargs="+", type=pathlib.Path, metavar="FOLDER FILE")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--nbytes", type=int, default=4096)
    args = parser.parse_args()
    if len(args.words) % 2:
        parser.error("folders and files come in pairs")
    reenter_with_peers()
    print(f"{'folder':24} {'file':20} czero MB/s  tokenizers MB/s   ratio  ids")
    for folder, path in zip(args.words[::2], args.words[1::2]):
        tok, docs = open_theirs(folder), list(documents(path, args.nbytes))
        mine, peer = (0, 0), (0, 0)
        for _ in range(args.rounds):
            mine = max(mine, ours(folder, path, args.nbytes))
            peer = max(peer, theirs(tok, docs, path.stat().st_size))
        same = f"{mine[1]}" if mine[1] == peer[1] else f"{mine[1]}, but theirs {peer[1]}"
        print(f"{folder.name:24} {path.name:20} {mine[0]:10.1f} {peer[0]:16.2f} {mine[0] / peer[0]:6.1f}x  {same}")


if __name__ == "__main__":
    main()
