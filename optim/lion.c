/* Lion: one element-wise pass. Defaults are DeepSpeed's (beta2 0.999, not the paper's 0.99), see
 * docs/deepspeed-behaviour.md, "Lion". */
#include "optim/optim_impl.h"

static const struct setting settings[] = {
    OPTIM_NUMBER("lr", lr, 1e-3, 0, "learning rate"),
    OPTIM_BETAS,
    OPTIM_NUMBER("weight_decay", weight_decay, 0, 0, "decoupled weight decay"),
    OPTIM_BOOL("set_grad_none", no_effect, 1, OPTIM_IN_FUSED, "no effect here"),
    OPTIM_BOOL("fp32_optimizer_states", fp32_optimizer_states, 1, OPTIM_IN_OFFLOAD,
               "state in fp32; false: in the masters' type"),
};

static const struct setting_table table = {settings, CZ_ARRAY_LEN(settings)};

static const struct optim_saved saved[] = {
    {.name = "FusedLion",
     .dialects = OPTIM_IN_FUSED,
     .settings = {"lr", "betas", "weight_decay", "step"}},
    {.name = "DeepSpeedCPULion", .settings = {"lr", "betas", "weight_decay"}},
};

const struct optim_class_entry optim_lion = {
    .cls =
        {
            .name = "Lion",
            .flags = OPTIM_ZERO_TESTED,
            .has_betas = true,
            .state_names = {"exp_avg"},
            .ops = OPTIM_OPS("step"),
            OPTIM_SAVED(saved),
            .elements = STEP_LION,
            OPTIM_STAGES(optim_elements),
        },
    .settings = &table,
};
