/* The optimizers, listed once: which values optimizer.type may have, and which class each is. What
 * a class is (states, parameters, forms in checkpoints, limits) stands in its own file. A new
 * optimizer is that file, a line in optim_impl.h, and a row here. */
#include "optim/optim_impl.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

static const struct optim_type types[] = {
    {.name = "Adam",
     .cls = &optim_adam.cls,
     .same_as = "AdamW",
     .text = "Adam; the weight decay is decoupled unless `adam_w_mode` is false"},
    {.name = "AdamW",
     .cls = &optim_adam.cls,
     .decoupled = true,
     .is_default = true,
     .text = "Adam with decoupled weight decay"},
    {.name = "Lamb",
     .cls = &optim_lamb.cls,
     .text = "Adam with a trust ratio per tensor, for large batches"},
    {.name = "Lion", .cls = &optim_lion.cls, .text = "moves by the sign of a momentum"},
    {.name = "Adagrad",
     .cls = &optim_adagrad.cls,
     .text = "divides by the root of the sum of squared gradients"},
    {.name = "SGD",
     .cls = &optim_sgd.cls,
     .origin = OPTIM_OF_TORCH,
     .text = "gradient descent; keeps a state with `momentum` above 0 only"},
    {.name = "OneBitAdam",
     .cls = &optim_onebit_adam.cls,
     .origin = OPTIM_OF_DEEPSPEED_0_16,
     .text = "Adam whose ranks exchange one bit per element once the variance is frozen"},
    {.name = "ZeroOneAdam",
     .cls = &optim_zero_one_adam.cls,
     .origin = OPTIM_OF_DEEPSPEED_0_16,
     .text = "the same, with steps between which ranks exchange nothing"},
    {.name = "OneBitLamb",
     .cls = &optim_onebit_lamb.cls,
     .origin = OPTIM_OF_DEEPSPEED_0_16,
     .text = "OneBitAdam with Lamb's trust ratios"},
    {.name = "Muon"},
    {.name = "MuAdam"},
    {.name = "MuAdamW"},
    {.name = "MuSGD"},
};

const struct optim_type *optim_types(size_t *n)
{
    *n = CZ_ARRAY_LEN(types);
    return types;
}

const struct optim_type *optim_type_find(const char *text)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(types); i++)
        if ((types[i].origin == OPTIM_OF_TORCH ? strcmp : strcasecmp)(types[i].name, text) == 0)
            return &types[i];
    return NULL;
}

const struct optim_type *optim_type_default(void)
{
    size_t i = 0;
    while (i + 1 < CZ_ARRAY_LEN(types) && !types[i].is_default) i++;
    return &types[i];
}

const char *optim_type_names(char *buf, size_t nbytes)
{
    size_t used = 0;
    for (size_t i = 0; i < CZ_ARRAY_LEN(types); i++)
        if (types[i].cls && used < nbytes)
            used += (size_t)snprintf(buf + used, nbytes - used, "%s%s", used ? ", " : "",
                                     types[i].name);
    return buf;
}

cz_status optim_type_unknown(const char *text)
{
    char known[256];
    for (size_t i = 0; i < CZ_ARRAY_LEN(types); i++) /* torch's, in another case */
        if (strcasecmp(types[i].name, text) == 0)
            return err_set(CZ_INVALID, 0, "optimizer.type: \"%s\" must be written \"%s\"", text,
                           types[i].name);
    return err_set(CZ_INVALID, 0,
                   "optimizer.type: \"%s\" is not an optimizer that czero has; use %s", text,
                   optim_type_names(known, sizeof known));
}

const struct optim_saved *optim_saved_as(const struct optim_hyper *hyper)
{
    for (size_t i = 0; i < hyper->cls->n_saved; i++) {
        const struct optim_saved *saved = &hyper->cls->saved[i];
        if (saved->dialects == 0 || saved->dialects >> hyper->dialect & 1) return saved;
    }
    return NULL;
}

const struct optim_limit *optim_limit_next(const struct optim_class *cls,
                                           const struct optim_use *use, size_t *from)
{
    while (*from < cls->n_limits) {
        const struct optim_limit *limit = &cls->limits[(*from)++];
        if (limit->applies(use)) return limit;
    }
    return NULL;
}
