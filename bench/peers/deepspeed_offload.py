"""Peer of bench/offload/offload.py: DeepSpeed on one CPU rank. Each line on standard input is answered with one step (all its micro-batches):
seconds, CPU seconds, loss, peak of resident bytes, bytes read and bytes written since the start, as the kernel counts them.

    deepspeed_offload.py CONFIG MODEL SEQ_LEN THREADS
"""
import os
import resource
import sys
import time

os.environ.update(DS_ACCELERATOR="cpu", LOCAL_RANK="0", RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1")
os.environ.setdefault("MASTER_PORT", "29761")
answers = os.dup(1)
os.dup2(2, 1)  # DeepSpeed logs on standard output

import deepspeed
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from torch_gpt2 import SIZES


def moved():
    rows = dict(line.split(": ") for line in open("/proc/self/io").read().splitlines())
    return int(rows["read_bytes"]), int(rows["write_bytes"])


def main():
    config, model, seq_len, threads = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    sizes = GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **SIZES[model])
    with deepspeed.zero.Init(config_dict_or_path=config):
        net = GPT2LMHeadModel(sizes)
    engine, _, _, _ = deepspeed.initialize(model=net, model_parameters=list(net.parameters()), config=config)
    micro, n_micro = engine.train_micro_batch_size_per_gpu(), engine.gradient_accumulation_steps()
    for _ in sys.stdin:
        before, begin, cpu = moved(), time.perf_counter(), time.process_time()
        total = 0.0
        for _ in range(n_micro):
            ids = torch.randint(0, 256, (micro, seq_len + 1))
            logits = engine(ids[:, :-1]).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())
            engine.backward(loss)
            engine.step()
            total += loss.item() / n_micro
        read, written = (now - then for now, then in zip(moved(), before))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        line = f"{time.perf_counter() - begin:.4f} {time.process_time() - cpu:.4f} {total:.6f} {peak} {read} {written} 0\n"
        os.write(answers, line.encode())


main()
