/* SGD as torch's: momentum, dampening, Nesterov, decay added to the gradient. One pass. DeepSpeed
 * hands "SGD" to torch, so its formula and its checks are torch's. */
#include "optim/optim_impl.h"

static const struct setting settings[] = {
    OPTIM_NUMBER("lr", lr, 1e-3, 0, "learning rate"),
    OPTIM_NUMBER("momentum", momentum, 0, 0, "decay of the momentum buffer; 0: none is kept"),
    OPTIM_NUMBER("dampening", dampening, 0, 0, "1 − weight of the gradient in the buffer"),
    OPTIM_NUMBER("weight_decay", weight_decay, 0, 0, "added to the gradient (L2)"),
    OPTIM_BOOL("nesterov", nesterov, 0, 0, "look ahead along the momentum"),
    OPTIM_TORCH_SWITCHES(0),
};

static const struct setting_table table = {settings, CZ_ARRAY_LEN(settings)};

/* Without momentum there is no buffer to keep, save or offload. */
static size_t n_states(const struct optim_hyper *hyper)
{
    return hyper->momentum != 0 ? 1 : 0;
}

/* torch raises the same condition. */
static cz_status check(const struct optim_hyper *hyper)
{
    TRY(optim_check_not_negative("momentum", hyper->momentum));
    if (hyper->nesterov && (hyper->momentum == 0 || hyper->dampening != 0))
        return err_set(CZ_INVALID, 0, "nesterov: needs a momentum above 0 and a dampening of 0");
    return CZ_OK;
}

static const struct optim_saved saved[] = {
    {.name = "torch's SGD",
     .step = OPTIM_STEP_NONE,
     .settings = {"lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize", "foreach",
                  "differentiable", "fused"}},
};

const struct optim_class_entry optim_sgd = {
    .cls =
        {
            .name = "SGD",
            .state_names = {"momentum_buffer"},
            .ops = OPTIM_OPS("step"),
            OPTIM_SAVED(saved),
            .n_states = n_states,
            .elements = STEP_SGD,
            OPTIM_STAGES(optim_elements),
        },
    .settings = &table,
    .check = check,
};
