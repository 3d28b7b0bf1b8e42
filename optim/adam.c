/* Adam and AdamW: one element-wise pass. One class for both: DeepSpeed's "Adam" decouples the decay
 * by default as well, and adam_w_mode chooses the formula (docs/deepspeed-behaviour.md, "Adam"). */
#include "optim/optim_impl.h"

static const struct setting settings[] = {
    OPTIM_NUMBER("lr", lr, 1e-3, 0, "learning rate"),
    OPTIM_BETAS,
    OPTIM_NUMBER("eps", eps, 1e-8, 0, "added to the root of the second moment"),
    OPTIM_NUMBER("weight_decay", weight_decay, 0, 0, "weight decay; 0.01 for torch's AdamW"),
    OPTIM_BOOL("bias_correction", bias_correction, 1, OPTIM_IN_FUSED | OPTIM_IN_OFFLOAD,
               "divide the moments by 1 − beta^t"),
    OPTIM_BOOL("adam_w_mode", adam_w_mode, 1, 0, "decoupled decay, also for type Adam"),
    OPTIM_BOOL("torch_adam", torch_adam, 0, 0, "torch's class: its names and defaults"),
    OPTIM_BOOL("amsgrad", amsgrad, 0, 0, "not supported"),
    OPTIM_BOOL("set_grad_none", no_effect, 1, OPTIM_IN_FUSED, "no effect here"),
    OPTIM_BOOL("fp32_optimizer_states", fp32_optimizer_states, 1, 0,
               "under offload: states in fp32; false: in the masters' type"),
    OPTIM_BOOL("capturable", no_effect, 0, OPTIM_IN_TORCH, "no effect here"),
    OPTIM_TORCH_SWITCHES(OPTIM_IN_TORCH),
};

static const struct setting_table table = {settings, CZ_ARRAY_LEN(settings)};

static const struct optim_saved saved[] = {
    {.name = "torch's Adam, AdamW",
     .dialects = OPTIM_IN_TORCH,
     .step = OPTIM_STEP_TENSOR,
     .settings = {"lr", "betas", "eps", "weight_decay", "amsgrad", "maximize", "foreach",
                  "capturable", "differentiable", "fused", "decoupled_weight_decay"}},
    {.name = "FusedAdam",
     .dialects = OPTIM_IN_FUSED,
     .flat_masters = true,
     .settings = {"lr", "bias_correction", "betas", "eps", "weight_decay", "step"}},
    {.name = "DeepSpeedCPUAdam",
     .dialects = OPTIM_IN_OFFLOAD,
     .settings = {"lr", "betas", "eps", "weight_decay", "bias_correction", "amsgrad"}},
};

const struct optim_class_entry optim_adam = {
    .cls =
        {
            .name = "Adam",
            .flags = OPTIM_ZERO_TESTED | OPTIM_16BIT_MASTERS,
            .has_betas = true,
            .state_names = {"exp_avg", "exp_avg_sq"},
            .ops = OPTIM_OPS("step"),
            OPTIM_SAVED(saved),
            .elements = STEP_ADAM,
            OPTIM_STAGES(optim_elements),
        },
    .settings = &table,
};
