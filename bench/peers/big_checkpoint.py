"""Peer of bench/consolidate.py: a big stage-2 checkpoint of two ranks in DeepSpeed's layout, masters only.

    python big_checkpoint.py FOLDER GIGABYTES
"""
import collections
import os
import sys

import torch
from deepspeed.runtime.fp16.loss_scaler import LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum

WORLD, WIDTH = 2, 4096


def main():
    folder, nbytes = sys.argv[1], int(float(sys.argv[2]) * 1e9)
    shapes = collections.OrderedDict()
    numel = 0
    while numel * 4 < nbytes:
        k = len(shapes) // 2
        shapes[f"layers.{k}.weight"] = torch.Size((WIDTH, 4 * WIDTH))
        shapes[f"layers.{k}.bias"] = torch.Size((4 * WIDTH,))
        numel += 4 * WIDTH * (WIDTH + 1)
    tag = os.path.join(folder, "global_step1")
    os.makedirs(tag, exist_ok=True)
    padded = -(-numel // (2 * WORLD)) * 2 * WORLD
    part = padded // WORLD
    whole = torch.zeros(1, dtype=torch.bfloat16)
    torch.save({
        "module": collections.OrderedDict((n, whole.expand(s)) for n, s in shapes.items()),
        "buffer_names": [], "optimizer": None, "param_shapes": [shapes],
        "frozen_param_shapes": collections.OrderedDict(), "shared_params": {},
        "frozen_param_fragments": collections.OrderedDict(), "lr_scheduler": None, "skipped_steps": 0,
        "global_steps": 1, "global_samples": 2, "dp_world_size": WORLD, "mp_world_size": 1, "ds_config": {},
        "ds_version": "0.19.8",
    }, os.path.join(tag, "mp_rank_00_model_states.pt"))
    for rank in range(WORLD):
        pad = padded - numel if rank == WORLD - 1 else 0
        flat = torch.arange(part, dtype=torch.float32).mul_(1e-6).add_(rank)
        torch.save({
            "optimizer_state_dict": {
                "loss_scaler": LossScaler(1.0), "dynamic_loss_scale": False, "overflow": False, "clip_grad": 0.0,
                "base_optimizer_state": {"state": {}, "param_groups": [{"lr": 1e-4, "params": [0]}]},
                "single_partition_of_fp32_groups": [flat[:part - pad]],
                "zero_stage": ZeroStageEnum(2), "group_paddings": [pad], "partition_count": [WORLD],
                "ds_version": "0.19.8", "param_slice_mappings": [collections.OrderedDict()],
            }, "ds_config": {}, "ds_version": "0.19.8",
        }, os.path.join(tag, f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"))
        del flat
    with open(os.path.join(folder, "latest"), "w") as f:
        f.write("global_step1")


if __name__ == "__main__":
    main()
