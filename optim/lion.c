/* Lion: one element-wise pass. Defaults are DeepSpeed's (beta2 0.999, not the paper's 0.99), see
 * docs/deepspeed-behaviour.md, "Lion". */
#include "ops/lion/lion.h"
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

static size_t n_states(const struct optim_hyper *hyper)
{
    (void)hyper;
    return 1;
}

/* No eps: the update is a sign. */
static cz_status step(struct ops *ops, struct dev_stream *stream, const struct optim_hyper *hyper,
                      const struct step_scalars *scalars, const struct optim_range *range, int pass)
{
    (void)pass;
    struct lion_args args = {
        .t = range->tensors,
        .scalars = scalars,
        .weight_decay = (float)hyper->weight_decay,
    };
    return ops_lion(ops, stream, &args);
}

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
            .flags = OPTIM_ELEMENTWISE | OPTIM_ZERO_TESTED,
            .n_passes = 1,
            .has_betas = true,
            .state_names = {"exp_avg"},
            .ops = OPTIM_OPS("lion"),
            OPTIM_SAVED(saved),
            .n_states = n_states,
            .step = step,
        },
    .settings = &table,
};
