"""The runs behind tests/fixtures/curves/dense: which DeepSpeed config, how many steps, what is frozen.

Names say stage, precision, optimizer, then what is special. Together they touch every cell of
{Adam, Adam L2, AdamW, Lion, Adagrad, SGD} x {fp32, bf16, fp16 dynamic, fp16 static} x {stage 0, 1, 2}
x {accumulation 1, 3} pairwise, where DeepSpeed 0.19.8 works. Names that begin with wN train on N ranks
and touch what only matters there: how gradients are reduced and state is divided, at stages 0 to 3.
"""

FP16_STATIC = {"enabled": True, "loss_scale": 1024}
OFFLOAD = {"offload_optimizer": {"device": "cpu", "pin_memory": False}}


def fp16(power, window, **more):
    return {"enabled": True, "initial_scale_power": power, "loss_scale_window": window, **more}


def optimizer(kind, **params):
    return {"type": kind, "params": params}


def scheduler(kind, **params):
    return {"type": kind, "params": params}


RUNS = []


def run(name, opt, steps=20, seq=64, freeze="", groups="", world=1, micro=4, gas=1, stage=None, zero=None, **sections):
    """Add one run; `zero` holds further keys of zero_optimization, `sections` further top-level keys.

    groups "hf": weights in one parameter group, biases and norms without decay in another.
    """
    config = {"train_micro_batch_size_per_gpu": micro, "gradient_accumulation_steps": gas, "optimizer": opt}
    config.update(sections)
    if stage is not None:
        config["zero_optimization"] = {"stage": stage, **(zero or {})}
    if opt["type"] == "SGD" and stage:
        config["zero_allow_untested_optimizer"] = True
    RUNS.append(dict(name=name, world=world, steps=steps, seq=seq, freeze=freeze, groups=groups, config=config))


def run_ranks(name, opt, steps=12, micro=2, **more):
    run(name, opt, steps=steps, micro=micro, world=int(name[1]), stage=int(name[4]), **more)


# ---- fp32 -------------------------------------------------------------------------------------

# No zero_optimization, no gradient_clipping: 0.19 clips at 1.0. "Adam" decouples the decay.
run("s0-fp32-adam-defaults", optimizer("Adam", lr=2e-3, weight_decay=0.05))
run("s0-fp32-adamw-gas3-cosine", optimizer("AdamW", lr=3e-3, betas=[0.9, 0.98], eps=1e-6, weight_decay=0.1,
                                           torch_adam=True),
    gas=3, micro=2, gradient_clipping=0.5,
    scheduler=scheduler("WarmupCosineLR", total_num_steps=18, warmup_num_steps=4, warmup_type="linear",
                        warmup_min_ratio=0.1, cos_min_ratio=0.05))
run("s0-fp32-adam-l2-gas3", optimizer("Adam", lr=2e-3, weight_decay=0.3, adam_w_mode=False, eps=1e-5),
    stage=0, gas=3, micro=1, gradient_clipping=0.0)
run("s0-fp32-sgd-nesterov", optimizer("SGD", lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3),
    gradient_clipping=0.0,
    scheduler=scheduler("WarmupLR", warmup_min_lr=0.005, warmup_num_steps=6))
run("s0-fp32-sgd-dampening-gas3", optimizer("SGD", lr=0.1, momentum=0.8, dampening=0.3),
    gas=3, micro=2, seq=32, gradient_clipping=0.7)
run("s0-fp32-adagrad", optimizer("Adagrad", lr=0.01, lr_decay=0.05, weight_decay=0.01,
                                 initial_accumulator_value=0.1, eps=1e-7), gradient_clipping=2.0)
run("s1-fp32-adam-l2-nobias", optimizer("Adam", lr=5e-4, weight_decay=0.05, adam_w_mode=False,
                                        bias_correction=False, eps=1e-4),
    stage=1, micro=3, seq=48)
run("s1-fp32-adamw-nodecay-rangetest", optimizer("AdamW", lr=1e-3),
    stage=1, gradient_clipping=0.0,
    scheduler=scheduler("LRRangeTest", lr_range_test_min_lr=2e-4, lr_range_test_step_size=4,
                        lr_range_test_step_rate=2.0, lr_range_test_staircase=True))
run("s1-fp32-adamw-frozen-gas3", optimizer("AdamW", lr=1e-3, weight_decay=0.1, betas=[0.8, 0.95]),
    stage=1, gas=3, micro=2, freeze="wpe")
run("s1-fp32-sgd-onecycle-gas3", optimizer("SGD", lr=0.01, momentum=0.9),
    stage=1, gas=3, micro=2, gradient_clipping=0.0,
    scheduler=scheduler("OneCycle", cycle_min_lr=0.005, cycle_max_lr=0.08, cycle_first_step_size=6,
                        cycle_second_step_size=8, decay_step_size=2, decay_lr_rate=0.5))
run("s1-fp32-lion", optimizer("Lion", lr=3e-4, betas=[0.9, 0.99], weight_decay=0.1), stage=1, zero=OFFLOAD,
    scheduler=scheduler("WarmupLR", warmup_max_lr=3e-4, warmup_num_steps=5, warmup_type="linear"))
run("s2-fp32-adagrad-gas3", optimizer("Adagrad", lr=0.006), stage=2, gas=3, micro=2)
run("s2-fp32-adagrad-cpu", optimizer("Adagrad", lr=0.02, weight_decay=0.02, eps=1e-6), stage=2, zero=OFFLOAD,
    gradient_clipping=0.0)
run("s2-fp32-adam-cpu-decay", optimizer("Adam", lr=2e-3, betas=[0.8, 0.99], weight_decay=0.2),
    stage=2, zero=OFFLOAD,
    scheduler=scheduler("WarmupDecayLR", total_num_steps=16, warmup_num_steps=5, warmup_max_lr=2e-3,
                        warmup_type="linear"))
run("s2-fp32-sgd-nesterov-gas3", optimizer("SGD", lr=0.1, momentum=0.9, nesterov=True),
    stage=2, gas=3, micro=1, gradient_clipping=1.0)
run("s2-fp32-adamw-onecycle", optimizer("AdamW", lr=1e-3, weight_decay=0.01, torch_adam=True),
    stage=2, micro=8,
    scheduler=scheduler("OneCycle", cycle_min_lr=3e-4, cycle_max_lr=3e-3, cycle_first_step_size=6,
                        cycle_first_stair_count=3, cycle_second_step_size=6, cycle_second_stair_count=2,
                        decay_step_size=3, decay_lr_rate=0.2, cycle_min_mom=0.85, cycle_max_mom=0.95))

# ---- bf16 -------------------------------------------------------------------------------------

BF16 = {"enabled": True}
# Stage 0 takes one step with zero gradients when it starts; without decay and bias correction
# (or with SGD, Adagrad) that step changes nothing.
run("s0-bf16-adam-nobias", optimizer("Adam", lr=3e-4, bias_correction=False, eps=1e-6), bf16=BF16, gas=3, micro=2)
run("s0-bf16-sgd-nesterov", optimizer("SGD", lr=0.05, momentum=0.9, nesterov=True), bf16=BF16,
    gradient_clipping=0.0)
run("s0-bf16-adagrad", optimizer("Adagrad", lr=0.004), bf16=BF16,
    scheduler=scheduler("WarmupLR", warmup_num_steps=8))
run("s1-bf16-adamw", optimizer("AdamW", lr=2e-3, weight_decay=0.1), stage=1, bf16=BF16,
    scheduler=scheduler("WarmupDecayLR", total_num_steps=30, warmup_min_lr=1e-4, warmup_max_lr=2e-3,
                        warmup_num_steps=5))
run("s1-bf16-adamw-accum32-gas3", optimizer("AdamW", lr=1e-3, betas=[0.9, 0.95], weight_decay=0.1),
    stage=1, gas=3, micro=2, bf16=BF16, data_types={"grad_accum_dtype": "fp32"}, gradient_clipping=0.5)
run("s1-bf16-lion-gas3", optimizer("Lion", lr=2e-4, weight_decay=0.05), stage=1, zero=OFFLOAD, gas=3, micro=2,
    bf16=BF16)
run("s1-bf16-adam-l2-frozen", optimizer("Adam", lr=2e-3, adam_w_mode=False, weight_decay=0.01),
    stage=1, bf16=BF16, freeze="h.0.", gradient_clipping=0.0)
run("s2-bf16-adamw-gas3", optimizer("AdamW", lr=1e-3, weight_decay=0.01), stage=2, gas=3, micro=2, bf16=BF16)
run("s2-bf16-adam-l2-accum32-gas3", optimizer("Adam", lr=1e-3, adam_w_mode=False, weight_decay=0.1, eps=1e-7),
    stage=2, gas=3, micro=2, bf16=BF16, data_types={"grad_accum_dtype": "fp32"},
    scheduler=scheduler("WarmupLR", warmup_min_lr=1e-5, warmup_num_steps=10))
run("s2-bf16-adamw-cpu", optimizer("AdamW", lr=2e-3, weight_decay=0.05), stage=2, zero=OFFLOAD, bf16=BF16,
    scheduler=scheduler("WarmupCosineLR", total_num_steps=20, warmup_num_steps=5))
run("s2-bf16-sgd-gas3", optimizer("SGD", lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3),
    stage=2, gas=3, micro=2, bf16=BF16)
run("s2-bf16-adagrad", optimizer("Adagrad", lr=0.003, weight_decay=0.01), stage=2, bf16=BF16,
    gradient_clipping=0.0)

# ---- fp16 -------------------------------------------------------------------------------------

# 0.19.8 forgets to multiply the loss by the scale at stage 0: a scale of 1 is the one that works.
run("s0-fp16-adam-nobias-scale1", optimizer("Adam", lr=3e-4, bias_correction=False, eps=1e-6),
    fp16={"enabled": True, "loss_scale": 1})
run("s1-fp16-adam-static", optimizer("Adam", lr=1e-3, weight_decay=0.1, torch_adam=True), stage=1,
    fp16=FP16_STATIC)
run("s1-fp16-sgd-static", optimizer("SGD", lr=0.05, momentum=0.9, nesterov=True), stage=1,
    fp16=FP16_STATIC, gradient_clipping=0.0)
run("s2-fp16-adam-l2-static-gas3", optimizer("Adam", lr=1e-3, adam_w_mode=False, weight_decay=0.1),
    stage=2, gas=3, micro=2, fp16={"enabled": True, "loss_scale": 256.0})
run("s2-fp16-lion-static", optimizer("Lion", lr=2e-4), stage=2, zero=OFFLOAD, fp16=FP16_STATIC)
run("s1-fp16-adagrad-static-gas3", optimizer("Adagrad", lr=0.004), stage=1, gas=3, micro=2, fp16=FP16_STATIC)
# DeepSpeed unscales the step on which the scale grows with the new scale: half the gradient. Where
# clipping is active all the same, the two halves cancel; so all that grow clip hard.
run("s1-fp16-adamw-growth", optimizer("AdamW", lr=2e-3, weight_decay=0.1), stage=1, fp16=fp16(8, 3),
    gradient_clipping=0.2)
run("s2-fp16-sgd-growth-gas3", optimizer("SGD", lr=0.1, momentum=0.9, nesterov=True), stage=2, gas=3, micro=2,
    fp16=fp16(10, 4), gradient_clipping=0.2)
run("s1-fp16-adamw-overflow", optimizer("AdamW", lr=2e-3, weight_decay=0.01), stage=1,
    fp16=fp16(21, 4, hysteresis=2), gradient_clipping=0.2)
run("s2-fp16-adam-overflow-hysteresis1", optimizer("Adam", lr=2e-3), stage=2, micro=6,
    fp16=fp16(20, 3, hysteresis=1), gradient_clipping=0.2,
    scheduler=scheduler("WarmupLR", warmup_max_lr=2e-3, warmup_num_steps=4, warmup_type="linear"))
run("s2-fp16-adamw-overflow-consecutive-gas3", optimizer("AdamW", lr=2e-3, weight_decay=0.01), stage=2,
    gas=3, micro=2, fp16=fp16(19, 2, hysteresis=3, consecutive_hysteresis=True), gradient_clipping=0.2)
run("s1-fp16-sgd-overflow", optimizer("SGD", lr=0.05, momentum=0.9), stage=1,
    fp16=fp16(20, 2, hysteresis=2), gradient_clipping=0.2)
run("s2-fp16-adamw-cpu-overflow", optimizer("AdamW", lr=1e-3, weight_decay=0.1), stage=2, zero=OFFLOAD, micro=3,
    fp16=fp16(20, 3, hysteresis=2), gradient_clipping=0.2)
run("s1-fp16-lion-growth", optimizer("Lion", lr=2e-4, weight_decay=0.1), stage=1, zero=OFFLOAD,
    fp16=fp16(12, 4), gradient_clipping=0.2)
run("s2-fp16-adagrad-overflow-gas3", optimizer("Adagrad", lr=0.0025), stage=2, gas=3, micro=2,
    fp16=fp16(20, 4, hysteresis=2), gradient_clipping=0.2)
run("s1-fp16-adam-l2-defaults-gas3", optimizer("Adam", lr=1e-3, adam_w_mode=False, weight_decay=0.02),
    stage=1, gas=3, micro=2, fp16={"enabled": True},
    scheduler=scheduler("WarmupDecayLR", total_num_steps=20, warmup_num_steps=4))

# ---- masters, gradients and states of 16 bits ---------------------------------------------------

# 16 steps: a rare row at step 19 makes losses jump with the last bit of a bf16 master.
run("s1-bf16-masters16", optimizer("AdamW", lr=2e-3, weight_decay=0.1), stage=1, steps=16,
    bf16={"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True})
run("s2-bf16-masters16-states32", optimizer("AdamW", lr=2e-3, weight_decay=0.1), stage=2, zero=OFFLOAD, steps=16,
    gas=2, micro=2, bf16={"enabled": True, "bf16_master_weights_and_grads": True})
run("s1-fp16-masters16-static", optimizer("AdamW", lr=2e-3, eps=1e-6, weight_decay=0.1), stage=1, zero=OFFLOAD,
    fp16={"enabled": True, "loss_scale": 256, "fp16_master_weights_and_grads": True})
# The CPU class keeps its states in the masters' type. In fp16 most second moments are 0: eps decides.
run("s2-bf16-masters16-states16-cpu", optimizer("AdamW", lr=2e-3, weight_decay=0.1, fp32_optimizer_states=False),
    stage=2, zero=OFFLOAD, steps=16, gas=2, micro=2, bf16={"enabled": True, "bf16_master_weights_and_grads": True})
run("s1-fp16-masters16-states16-static", optimizer("AdamW", lr=2e-3, eps=1e-3, fp32_optimizer_states=False), stage=1,
    zero=OFFLOAD, fp16={"enabled": True, "loss_scale": 256, "fp16_master_weights_and_grads": True})
# With fp32 masters the switch changes nothing.
run("s1-bf16-states32-cpu", optimizer("AdamW", lr=2e-3, fp32_optimizer_states=False), stage=1, zero=OFFLOAD, steps=16,
    bf16={"enabled": True})

# ---- several ranks ----------------------------------------------------------------------------

SMALL_BUCKETS = {"reduce_bucket_size": 5000, "allgather_bucket_size": 2000}
ACCUM32 = {"grad_accum_dtype": "fp32"}

# Stage 0 reports no norm in fp32; without clipping SGD shows how gradients are scaled.
run_ranks("w2-s0-fp32-predivide-sgd-gas3", optimizer("SGD", lr=0.05, momentum=0.9), micro=1, gas=3,
          gradient_predivide_factor=4.0, gradient_clipping=0.0)
run_ranks("w3-s0-fp32-prescale-sgd", optimizer("SGD", lr=0.05, momentum=0.9), prescale_gradients=True,
          gradient_clipping=0.0)
run_ranks("w4-s0-fp32-sum-sgd", optimizer("SGD", lr=0.02, momentum=0.9, nesterov=True), micro=1,
          gradient_allreduce_op="sum", gradient_clipping=0.0)
run_ranks("w3-s1-fp32-roundrobin-buckets-gas3", optimizer("AdamW", lr=1e-3, weight_decay=0.1), micro=1, gas=3,
          zero={"round_robin_gradients": True, "overlap_comm": True, **SMALL_BUCKETS})
run_ranks("w2-s1-fp32-predivide-l2", optimizer("Adam", lr=1e-3, adam_w_mode=False, weight_decay=0.05), micro=3,
          zero={"reduce_scatter": False}, gradient_predivide_factor=3.0)
run_ranks("w4-s1-fp32-prescale-sgd", optimizer("SGD", lr=0.05, momentum=0.9, nesterov=True), micro=1,
          zero={"reduce_scatter": False, "reduce_bucket_size": 5000}, prescale_gradients=True, gradient_clipping=0.7)
run_ranks("w2-s1-fp32-groups-gas2", optimizer("AdamW", lr=2e-3, weight_decay=0.3), gas=2, groups="hf",
          zero={"round_robin_gradients": True},
          scheduler=scheduler("WarmupDecayLR", total_num_steps=14, warmup_num_steps=4, warmup_max_lr=2e-3))
run_ranks("w3-s2-fp32-frozen-buckets-gas3", optimizer("AdamW", lr=1e-3, betas=[0.8, 0.95], weight_decay=0.05),
          micro=1, gas=3, freeze="h.1.", zero={"overlap_comm": True, **SMALL_BUCKETS})
run_ranks("w4-s2-fp32-adagrad", optimizer("Adagrad", lr=0.005), micro=1,
          zero={"contiguous_gradients": False, "overlap_comm": False}, gradient_clipping=0.3)
run_ranks("w2-s2-fp32-sum", optimizer("AdamW", lr=1e-3, eps=1e-6), micro=1, gradient_allreduce_op="sum",
          zero={"reduce_scatter": False})
run_ranks("w2-s3-fp32-subgroups-gas3", optimizer("AdamW", lr=2e-3, weight_decay=0.1), micro=1, gas=3,
          zero={"sub_group_size": 7000, "stage3_param_persistence_threshold": 0,
                "stage3_prefetch_bucket_size": 5000, "stage3_max_live_parameters": 50000,
                "stage3_max_reuse_distance": 20000, "reduce_bucket_size": 5000})
run_ranks("w3-s3-fp32-predivide-persistent", optimizer("Adam", lr=1e-3, adam_w_mode=False, weight_decay=0.05),
          zero={"reduce_scatter": False, "stage3_param_persistence_threshold": 100000},
          gradient_predivide_factor=2.0, gradient_clipping=0.0)
run_ranks("w4-s3-fp32-groups-sgd", optimizer("SGD", lr=0.05, momentum=0.9, weight_decay=0.01), micro=1, groups="hf",
          zero={"overlap_comm": False, "sub_group_size": 7000, "stage3_param_persistence_threshold": 200})
run_ranks("w4-s3-fp32-lion-cpu-frozen-gas2", optimizer("Lion", lr=2e-4, weight_decay=0.1), micro=1, gas=2, freeze="ln_",
          zero={**OFFLOAD, "stage3_param_persistence_threshold": 0})

run_ranks("w3-s0-bf16-adagrad-gas3", optimizer("Adagrad", lr=0.004), bf16=BF16, micro=1, gas=3)
run_ranks("w2-s0-bf16-comm32-sgd", optimizer("SGD", lr=0.05, momentum=0.9, nesterov=True), bf16=BF16,
          communication_data_type="fp32", gradient_clipping=0.5)
run_ranks("w4-s1-bf16-roundrobin-buckets-gas3", optimizer("AdamW", lr=1e-3, weight_decay=0.1), bf16=BF16, micro=1,
          gas=3, zero={"round_robin_gradients": True, **SMALL_BUCKETS})
run_ranks("w2-s1-bf16-accum32-gas3", optimizer("AdamW", lr=1e-3, betas=[0.9, 0.95], weight_decay=0.1), bf16=BF16,
          gas=3, data_types=ACCUM32, gradient_clipping=0.5)
run_ranks("w3-s2-bf16-accum32-comm32-gas3", optimizer("Adam", lr=1e-3, weight_decay=0.1), bf16=BF16, micro=1, gas=3,
          data_types=ACCUM32, communication_data_type="fp32", gradient_clipping=0.5)
run_ranks("w4-s2-bf16-frozen-sgd", optimizer("SGD", lr=0.05, momentum=0.9), bf16=BF16, micro=1, freeze="wpe",
          zero={"overlap_comm": True, "round_robin_gradients": True})
run_ranks("w2-s3-bf16-accum32-gas3", optimizer("AdamW", lr=1e-3, weight_decay=0.1), bf16=BF16, micro=3, gas=3,
          data_types=ACCUM32, zero={"sub_group_size": 7000, "stage3_param_persistence_threshold": 0})
run_ranks("w4-s3-bf16-allreduce-persistent", optimizer("AdamW", lr=2e-3, weight_decay=0.05), bf16=BF16, micro=1,
          zero={"reduce_scatter": False, "overlap_comm": True, "reduce_bucket_size": 20000,
                "stage3_param_persistence_threshold": 100000})
run_ranks("w3-s3-bf16-cpu-gas2", optimizer("AdamW", lr=1e-3, weight_decay=0.1), bf16=BF16, micro=1, gas=2,
          zero={**OFFLOAD, "sub_group_size": 7000}, communication_data_type="fp32")

run_ranks("w2-s0-fp16-adam-nobias-scale1", optimizer("Adam", lr=3e-4, bias_correction=False, eps=1e-6),
          fp16={"enabled": True, "loss_scale": 1})
run_ranks("w3-s1-fp16-adagrad-static-gas3", optimizer("Adagrad", lr=0.004), fp16={"enabled": True, "loss_scale": 256},
          micro=1, gas=3)
run_ranks("w4-s2-fp16-roundrobin-static", optimizer("Adam", lr=1e-3, adam_w_mode=False, weight_decay=0.05), micro=1,
          fp16={"enabled": True, "loss_scale": 512}, zero={"round_robin_gradients": True, **SMALL_BUCKETS})
run_ranks("w2-s2-fp16-overflow-gas2", optimizer("AdamW", lr=1e-3, weight_decay=0.1), gas=2,
          fp16=fp16(20, 4, hysteresis=2), gradient_clipping=0.2)
run_ranks("w3-s3-fp16-groups-static-gas2", optimizer("AdamW", lr=1e-3, weight_decay=0.2), micro=1, gas=2, groups="hf",
          fp16={"enabled": True, "loss_scale": 512}, zero={"stage3_param_persistence_threshold": 0})
# No growth: stage 3 reports the norm of such a step with the new scale.
run_ranks("w4-s3-fp16-overflow", optimizer("AdamW", lr=1e-3, weight_decay=0.1), micro=3,
          fp16=fp16(20, 1000, hysteresis=1), gradient_clipping=0.2, zero={"sub_group_size": 7000})
