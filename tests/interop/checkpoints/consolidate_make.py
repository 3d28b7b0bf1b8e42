"""Odd checkpoints by DeepSpeed itself, for consolidate_check.py: tied and frozen weights, buffers of several
dtypes, sizes that divide by nothing, two groups, sub-groups, dealt parameters.

    python tests/interop/checkpoints/consolidate_make.py DIR      then    consolidate_check.py DIR/*
"""
import itertools
import os
import socket
import sys

os.environ.setdefault("DS_ACCELERATOR", "cpu")


def build():
    import torch

    class Norm(torch.nn.Module):
        """What a BatchNorm saves, without its arithmetic."""

        def __init__(self, n):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(n))
            self.bias = torch.nn.Parameter(torch.zeros(n))
            self.register_buffer("running_mean", torch.linspace(0, 1, n))
            self.register_buffer("num_batches_tracked", torch.tensor(1 << 40))

        def forward(self, x):
            self.num_batches_tracked += 1
            return x * self.weight + self.bias

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = torch.nn.Embedding(7, 5)
            self.l1 = torch.nn.Linear(5, 9)
            self.frozen = torch.nn.Linear(9, 9)
            self.norm = Norm(9)
            self.l2 = torch.nn.Linear(9, 5, bias=False)
            self.head = torch.nn.Linear(5, 7, bias=False)
            self.head.weight = self.emb.weight
            self.register_buffer("mask", torch.arange(12).reshape(3, 4).t() % 3 == 0)
            self.register_buffer("positions", torch.arange(6).expand((1, -1)))
            self.register_buffer("scale", torch.tensor(0.625))
            self.register_buffer("scratch", torch.zeros(3), persistent=False)
            for p in self.frozen.parameters():
                p.requires_grad = False

        def forward(self, ids):
            x = self.norm(self.frozen(self.l1(self.emb(ids))))
            return self.head(self.l2(x)).float().pow(2).mean() * self.scale.float()

    return Model()


def cases(world):
    for stage, precision in itertools.product((0, 1, 2, 3), ("fp32", "bf16")):
        zero = {"stage": stage}
        if stage == 2 and world == 3:
            zero["round_robin_gradients"] = True
        if stage == 3:
            zero.update(sub_group_size=20, stage3_param_persistence_threshold=0)
        config = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": zero,
                  "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}}}
        if precision == "bf16":
            config["bf16"] = {"enabled": True}
        yield f"s{stage}-{precision}-w{world}", stage, config


def rank_main(rank, world, port, folder):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), LOCAL_SIZE=str(world),
                      MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    import deepspeed
    import torch
    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo")
    for name, stage, config in cases(world):
        torch.manual_seed(7)
        model = build()
        trained = [p for p in model.parameters() if p.requires_grad]
        groups = [{"params": [p for p in trained if p.ndim > 1]},
                  {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0}]
        engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=groups, config=config)
        for step in range(2):
            ids = torch.tensor([(step + rank + i) % 7 for i in range(4)])
            engine.backward(engine(ids))
            engine.step()
        engine.save_checkpoint(os.path.join(folder, name))
        engine.destroy()
        del engine, model
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def main():
    import torch.multiprocessing
    folder = sys.argv[1]
    for world in (1, 3):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        torch.multiprocessing.spawn(rank_main, args=(world, port, folder), nprocs=world)


if __name__ == "__main__":
    main()
