"""The runs behind tests/fixtures/curves/onebit: which config, how many steps, and the source of the expected values.

by "deepspeed": 0.16.9 itself (the loss divided by the accumulation steps where it forgets to).
by "replay": onebit_replay.py, because 0.16.9 errs there (why: tests/fixtures/curves/onebit/README.md).
groups "hf": biases and norms without decay in a second group; "masked": the positions that no text
reaches are masked manually for DeepSpeed, which czero is to find out by itself.
eps is large because the exchange amplifies rounding where the frozen variance is small.
"""
RUNS = []
STEADY = {"enabled": True, "initial_scale_power": 10, "loss_scale_window": 1000, "hysteresis": 1}


def run(name, kind, params, by="deepspeed", steps=20, micro=2, gas=1, seq=64, groups="", **sections):
    """Add one run; `name` begins with wN: on N ranks. `sections` are further top-level keys."""
    config = {"train_micro_batch_size_per_gpu": micro, "gradient_accumulation_steps": gas, "gradient_clipping": 0.0,
              "optimizer": {"type": kind, "params": {"comm_backend_name": "compressed", "cuda_aware": False,
                                                     **params}}}
    config.update(sections)
    RUNS.append(dict(name=name, world=int(name[1]), steps=steps, seq=seq, freeze="", groups=groups, config=config,
                     by=by))


def warmup(lr, n):
    return {"scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": lr,
                                                         "warmup_num_steps": n, "warmup_type": "linear"}}}


ADAM = {"lr": 1e-3, "eps": 1e-3, "freeze_step": 6}
ZERO_ONE = {"lr": 1e-4, "eps": 1e-4, "var_freeze_step": 12, "var_update_scaler": 2, "local_step_scaler": 4,
            "local_step_clipper": 4}
LAMB = {"lr": 5e-3, "freeze_step": 6, "max_coeff": 0.3, "min_coeff": 0.01}
BF16 = {"bf16": {"enabled": True}}

# ---- fp32 -------------------------------------------------------------------------------------

run("w1-fp32-adam", "OneBitAdam", {**ADAM, "weight_decay": 0.05}, **warmup(1e-3, 4))
run("w1-fp32-zeroone", "ZeroOneAdam", {**ZERO_ONE, "weight_decay": 0.01}, by="replay", **warmup(1e-4, 4))
run("w1-fp32-lamb", "OneBitLamb", {**LAMB, "weight_decay": 0.01}, **warmup(5e-3, 4))

run("w3-fp32-adam-betas", "OneBitAdam", {**ADAM, "betas": [0.8, 0.95], "weight_decay": 0.1})
run("w3-fp32-adam-groups", "OneBitAdam", {**ADAM, "weight_decay": 0.3}, groups="hf", **warmup(1e-3, 4))
run("w2-fp32-adam-masked", "OneBitAdam", ADAM, seq=32, groups="masked", **warmup(1e-3, 4))
run("w3-fp32-adam-gas2", "OneBitAdam", ADAM, gas=2, micro=1, **warmup(1e-3, 4))
run("w4-fp32-adam-clip", "OneBitAdam", ADAM, by="replay", gradient_clipping=0.7, **warmup(1e-3, 4))

run("w3-fp32-zeroone-intervals", "ZeroOneAdam",
    {**ZERO_ONE, "lr": 3e-4, "eps": 1e-3, "betas": [0.85, 0.99], "var_freeze_step": 20, "local_step_scaler": 5,
     "local_step_clipper": 8}, steps=44, micro=1, **warmup(3e-4, 6))
run("w2-fp32-zeroone-groups-gas2", "ZeroOneAdam", {**ZERO_ONE, "weight_decay": 0.3}, steps=28, micro=1, gas=2,
    groups="hf")
run("w3-fp32-zeroone-masked", "ZeroOneAdam", ZERO_ONE, steps=24, seq=32, groups="masked")

run("w3-fp32-lamb", "OneBitLamb", LAMB, **warmup(5e-3, 4))
run("w4-fp32-lamb-decay-gas2", "OneBitLamb", {**LAMB, "weight_decay": 0.2, "coeff_beta": 0.7, "factor_threshold": 0.3,
                                              "betas": [0.85, 0.98]}, gas=2, micro=1, **warmup(5e-3, 4))
run("w2-fp32-lamb-masked", "OneBitLamb", {**LAMB, "weight_decay": 0.01}, seq=32, groups="masked")

# ---- fp16 -------------------------------------------------------------------------------------

run("w2-fp16-adam-masked", "OneBitAdam", {**ADAM, "weight_decay": 0.05}, seq=32, groups="masked", fp16=STEADY,
    **warmup(1e-3, 4))
run("w3-fp16-zeroone-gas2", "ZeroOneAdam", ZERO_ONE, steps=24, micro=1, gas=2, fp16=STEADY)
run("w3-fp16-lamb-decay", "OneBitLamb", {**LAMB, "weight_decay": 0.1}, fp16=STEADY, **warmup(5e-3, 4))
run("w2-fp16-adam-overflow", "OneBitAdam", {**ADAM, "lr": 2e-3, "eps": 5e-3, "weight_decay": 0.05}, steps=24,
    fp16={"enabled": True, "initial_scale_power": 15, "loss_scale_window": 3, "hysteresis": 1}, **warmup(2e-3, 4))
run("w3-fp16-lamb-overflow", "OneBitLamb", {**LAMB, "weight_decay": 0.01}, steps=24,
    fp16={"enabled": True, "initial_scale_power": 15, "loss_scale_window": 3, "hysteresis": 1})

# ---- bf16 -------------------------------------------------------------------------------------

run("w2-bf16-adam-clip", "OneBitAdam", {**ADAM, "weight_decay": 0.05}, by="replay", gradient_clipping=1.0,
    **warmup(1e-3, 4), **BF16)
run("w4-bf16-zeroone-gas2", "ZeroOneAdam", ZERO_ONE, by="replay", steps=24, micro=1, gas=2, **BF16)
run("w3-bf16-lamb-groups", "OneBitLamb", {**LAMB, "weight_decay": 0.1}, by="replay", groups="hf", **BF16)
