/* What the entry points of the activations and of swiglu refuse, on the host and on a GPU. */
#include "ops/activation/activation_impl.h"

cz_status activation_check(const struct activation_args *a, const char *op, bool tensors)
{
    TRY(ops_check_dtype(op, a->dtype));
    if ((unsigned)a->kind >= ACTIVATIONS)
        return err_set(CZ_INVALID, 0, "%s: there is no activation %d", op, (int)a->kind);
    if (a->numel > 0 && (!a->x || !tensors))
        return err_set(CZ_INVALID, 0, "%s: a tensor is missing for %zu elements", op, a->numel);
    return CZ_OK;
}

cz_status swiglu_check(const struct swiglu_args *a, const char *op, bool tensors)
{
    TRY(ops_check_dtype(op, a->dtype));
    if ((unsigned)a->act >= ACTIVATIONS)
        return err_set(CZ_INVALID, 0, "%s: there is no activation %d", op, (int)a->act);
    if (a->N < 0 || a->C < 0 || (a->N > 1 && a->stride < a->C))
        return err_set(CZ_INVALID, 0, "%s: N %lld, C %lld, stride %lld do not describe a matrix",
                       op, (long long)a->N, (long long)a->C, (long long)a->stride);
    if (a->N > 0 && a->C > 0 && (!a->gate || !a->up || !tensors))
        return err_set(CZ_INVALID, 0, "%s: a tensor is missing for %lld rows of %lld", op,
                       (long long)a->N, (long long)a->C);
    return CZ_OK;
}
