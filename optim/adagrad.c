/* Adagrad: one element-wise pass, torch's formula in both dialects (docs/deepspeed-behaviour.md,
 * "Adagrad"). The sum of squares may start above zero, so its first value is a setting. */
#include "optim/optim_impl.h"

static const struct setting settings[] = {
    OPTIM_NUMBER("lr", lr, 1e-2, 0, "learning rate"),
    OPTIM_NUMBER("lr_decay", lr_decay, 0, OPTIM_IN_FUSED, "lr/(1 + (t − 1)·lr_decay)"),
    OPTIM_NUMBER("weight_decay", weight_decay, 0, 0, "added to the gradient (L2)"),
    OPTIM_NUMBER("initial_accumulator_value", initial_accumulator_value, 0, OPTIM_IN_FUSED,
                 "first value of the sum of squares"),
    OPTIM_NUMBER("eps", eps, 1e-10, 0, "added to the root of the sum"),
    OPTIM_BOOL("amsgrad", amsgrad, 0, OPTIM_IN_OFFLOAD, "not supported"),
    OPTIM_BOOL("fp32_optimizer_states", fp32_optimizer_states, 1, OPTIM_IN_OFFLOAD,
               "state in fp32; false: in the masters' type"),
    OPTIM_TORCH_SWITCHES(OPTIM_IN_FUSED),
};

static const struct setting_table table = {settings, CZ_ARRAY_LEN(settings)};

/* Adagrad's state is the only one that may start above zero. */
static double state_init(const struct optim_hyper *hyper, size_t state_idx)
{
    (void)state_idx;
    return hyper->initial_accumulator_value;
}

static cz_status check(const struct optim_hyper *hyper)
{
    TRY(optim_check_not_negative("lr_decay", hyper->lr_decay));
    return optim_check_not_negative("initial_accumulator_value", hyper->initial_accumulator_value);
}

static const struct optim_saved saved[] = {
    {.name = "DeepSpeedCPUAdagrad",
     .dialects = OPTIM_IN_OFFLOAD,
     .first_state = "exp_avg_sq",
     .settings = {"lr", "eps", "weight_decay", "amsgrad"}},
    {.name = "torch's Adagrad",
     .step = OPTIM_STEP_TENSOR,
     .settings = {"lr", "lr_decay", "eps", "weight_decay", "initial_accumulator_value", "foreach",
                  "maximize", "differentiable", "fused"}},
};

const struct optim_class_entry optim_adagrad = {
    .cls =
        {
            .name = "Adagrad",
            .flags = OPTIM_ZERO_TESTED,
            .state_names = {"sum"},
            .ops = OPTIM_OPS("step"),
            OPTIM_SAVED(saved),
            .state_init = state_init,
            .elements = STEP_ADAGRAD,
            OPTIM_STAGES(optim_elements),
        },
    .settings = &table,
    .check = check,
};
