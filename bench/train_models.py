#!/usr/bin/env python3
"""Training steps of BERT, LLaMA, Qwen3, ModernBERT, DeBERTa-v3 and Gemma 3 on the CPU beside PyTorch eager, as ratios of samples/s.

    scripts/peers.sh && python3 bench/train_models.py [--model bert-base llama-160m] [--precision bf16 fp32]

One process per side holds the model of one config.json, and they take whole steps in turns (forward,
backward, clipping, AdamW) on the same cores, so that a machine which others use too hits all alike;
the two first rounds are not counted. Printed are each side's median and best step, its processor
time, and the ratio round by round. bf16 has two peers: the model and its states all in bf16, which
is PyTorch's fastest form, and autocast over fp32 weights, which keeps what czero keeps; with it peak memory is compared, too. Dropout is
as in the config (BERT 0.1, LLaMA none); --no-dropout turns it off on both sides.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent

BERT = {
    "model_type": "bert", "architectures": ["BertForSequenceClassification"], "vocab_size": 30522,
    "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
    "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 512, "type_vocab_size": 2, "initializer_range": 0.02,
    "layer_norm_eps": 1e-12, "pad_token_id": 0, "num_labels": 2,
}
LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 32000,
    "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "num_key_value_heads": 12,
    "intermediate_size": 3072, "hidden_act": "silu", "max_position_embeddings": 2048,
    "initializer_range": 0.02, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
    "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False,
}
QWEN3 = {
    "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 151936, "hidden_size": 1024,
    "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
    "intermediate_size": 3072, "hidden_act": "silu", "max_position_embeddings": 40960, "initializer_range": 0.02,
    "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": True, "attention_bias": False,
}
MODERNBERT = {
    "model_type": "modernbert", "architectures": ["ModernBertForSequenceClassification"], "vocab_size": 50368,
    "hidden_size": 768, "num_hidden_layers": 22, "num_attention_heads": 12, "intermediate_size": 1152,
    "hidden_activation": "gelu", "max_position_embeddings": 8192, "norm_eps": 1e-5, "norm_bias": False,
    "global_attn_every_n_layers": 3, "local_attention": 128, "global_rope_theta": 160000.0, "local_rope_theta": 10000.0,
    "pad_token_id": 50283, "bos_token_id": 50281, "eos_token_id": 50282, "cls_token_id": 50281, "sep_token_id": 50282,
    "classifier_pooling": "cls", "num_labels": 2,
}
DEBERTA = {
    "model_type": "deberta-v2", "architectures": ["DebertaV2ForSequenceClassification"], "vocab_size": 128100,
    "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
    "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 512, "max_relative_positions": -1, "position_buckets": 256, "norm_rel_ebd": "layer_norm",
    "share_att_key": True, "pos_att_type": "p2c|c2p", "relative_attention": True, "position_biased_input": False,
    "type_vocab_size": 0, "initializer_range": 0.02, "layer_norm_eps": 1e-7, "pad_token_id": 0, "num_labels": 2,
}
GEMMA3 = {
    "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "vocab_size": 262144, "hidden_size": 640,
    "num_hidden_layers": 18, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256,
    "intermediate_size": 2048, "hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0, "sliding_window": 512,
    "query_pre_attn_scalar": 256, "attention_bias": False, "tie_word_embeddings": True,
    "layer_types": ["full_attention" if i % 6 == 5 else "sliding_attention" for i in range(18)],
}
# name -> config, batch, tokens a row, goal in bf16
MODELS = {
    "bert-base": (BERT, 32, 128, 1.5),
    "bert-tiny": ({**BERT, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
                   "intermediate_size": 512}, 32, 128, None),
    "llama-160m": (LLAMA, 4, 256, 2.0),
    "qwen3-0.6b": (QWEN3, 1, 256, 1.5),
    "qwen3-0.6b-4x512": (QWEN3, 4, 512, 1.5),
    "qwen3-0.6b-2x512": (QWEN3, 2, 512, 1.5),
    "modernbert-base": (MODERNBERT, 16, 128, 1.5),
    "deberta-v3-base": (DEBERTA, 16, 128, 1.5),
    "deberta-v3-small": ({**DEBERTA, "num_hidden_layers": 6}, 16, 128, 1.5),
    "deberta-v3-small-512": ({**DEBERTA, "num_hidden_layers": 6}, 4, 512, 1.5),
    "gemma-3-270m": (GEMMA3, 2, 256, 1.5),
    "llama-tiny": ({**LLAMA, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
                    "num_key_value_heads": 2, "intermediate_size": 512}, 4, 256, None),
}
PEERS = {"bf16": ["bf16", "autocast"], "fp32": ["fp32"]}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0],
                                     epilog=__doc__.split("\n\n", 2)[2],
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=["bert-base", "llama-160m"], choices=MODELS)
    parser.add_argument("--precision", nargs="+", default=["bf16"], choices=PEERS)
    parser.add_argument("--peer", nargs="+", choices=["bf16", "autocast", "fp32"],
                        help="only these forms of PyTorch")
    parser.add_argument("--rounds", type=int, default=7, help="counted steps of each side (7)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--no-dropout", action="store_true")
    parser.add_argument("--lora", type=int, default=0, metavar="RANK",
                        help="train an adapter on all linear maps; the peer is PEFT")
    parser.add_argument("--foreach", action="store_true", help="PyTorch's AdamW in its foreach form")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--python", help="the peers' python (default: scripts/peers.sh)")
    return parser.parse_args()


class Side:
    """A process that takes a training step per line."""

    def __init__(self, name, command, env):
        self.name, self.rows = name, []
        self.process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)

    def step(self):
        try:
            self.process.stdin.write("step\n")
            self.process.stdin.flush()
            self.rows.append([float(x) for x in self.process.stdout.readline().split()])
            assert self.rows[-1]
        except (OSError, AssertionError):
            sys.exit(f"train_models: {self.name} stopped")

    def close(self):
        self.process.stdin.close()
        self.process.wait()

    def counted(self, column):
        return [row[column] for row in self.rows[2:]]


def config_of(model, no_dropout):
    config = dict(MODELS[model][0])
    if no_dropout and "hidden_dropout_prob" in config:
        config["hidden_dropout_prob"] = config["attention_probs_dropout_prob"] = 0.0
    return config


def run(args, model, precision, work):
    _, batch, seq_len, goal = MODELS[model]
    folder = pathlib.Path(work) / model
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_of(model, args.no_dropout)))
    env = dict(os.environ, OMP_NUM_THREADS=str(args.threads))
    shapes = [str(batch), str(seq_len)] + ["--lora", str(args.lora)] * (args.lora > 0)
    sides = [Side("czero", [args.build / "bench/bench_train", folder, precision, *shapes], env)]
    for peer in args.peer or PEERS[precision]:
        command = [args.python, ROOT / "bench/peers/torch_models.py", folder, peer, *shapes,
                   "--threads", str(args.threads)] + ["--foreach"] * args.foreach
        sides.append(Side(f"torch {peer}", command, env))
    for _ in range(args.rounds + 2):
        for side in sides:
            side.step()
    for side in sides:
        side.close()
    report(f"{model} {precision}", sides, batch, goal if precision == "bf16" else None)


def report(what, sides, batch, goal):
    for side in sides:
        wall, cpu = side.counted(0), side.counted(1)
        losses = " ".join(f"{row[2]:.3f}" for row in side.rows[:3])
        print(f"{what} {side.name}: {batch / statistics.median(wall):.2f} samples/s median"
              f" ({batch / max(wall):.2f} to {batch / min(wall):.2f}),"
              f" {statistics.median(cpu):.2f} s of processor time a step,"
              f" peak {side.rows[-1][3] / 2**30:.2f} GiB, first losses {losses}")
    ours = sides[0]
    for peer in sides[1:]:
        pairs = [theirs / mine for theirs, mine in zip(peer.counted(0), ours.counted(0))]
        cpu = [theirs / mine for theirs, mine in zip(peer.counted(1), ours.counted(1))]
        best = min(peer.counted(0)) / min(ours.counted(0))
        print(f"{what} czero / {peer.name}: {statistics.median(pairs):.2f}x"
              f" ({min(pairs):.2f} to {max(pairs):.2f}), best steps {best:.2f}x,"
              f" processor time {statistics.median(cpu):.2f}x, memory {ours.rows[-1][3] / peer.rows[-1][3]:.2f}x"
              + (f", goal {goal}x" if goal else ""),
              flush=True)


def main():
    args = arguments()
    if not args.python:
        script = ROOT / "scripts" / "peers.sh"
        args.python = subprocess.run([script], check=True, capture_output=True,
                                     text=True).stdout.strip()
    print(f"{args.threads} threads, {args.rounds} rounds, load {os.getloadavg()[0]:.1f}", flush=True)
    with tempfile.TemporaryDirectory() as work:
        for model in args.model:
            for precision in args.precision:
                run(args, model, precision, work)


if __name__ == "__main__":
    main()
