/* What the entry points of layernorm and rmsnorm refuse, on the host and on a GPU. */
#include "ops/norm/norm_impl.h"

static cz_status check_shape(const struct norm_args *a, const char *op, bool centred)
{
    TRY(ops_check_dtype(op, a->dtype));
    if (a->N < 0 || a->C < 1)
        return err_set(CZ_INVALID, 0, "%s: N %lld must not be negative, C %lld must be positive",
                       op, (long long)a->N, (long long)a->C);
    if (!(a->eps >= 0))
        return err_set(CZ_INVALID, 0, "%s: eps is %g, but must not be negative", op,
                       (double)a->eps);
    if (!centred && (a->bias || a->dbias))
        return err_set(CZ_INVALID, 0, "%s: there is no bias in an rmsnorm", op);
    return CZ_OK;
}

cz_status norm_forward_check(const struct norm_args *a, const char *op, bool centred)
{
    TRY(check_shape(a, op, centred));
    if (a->N > 0 && (!a->x || !a->weight || !a->y))
        return err_set(CZ_INVALID, 0, "%s: x, weight and y are needed", op);
    if (a->N > 0 && a->residual && !a->sum)
        return err_set(CZ_INVALID, 0, "%s: with a residual, sum is needed: backward reads it", op);
    return CZ_OK;
}

cz_status norm_backward_check(const struct norm_args *a, const char *op, bool centred,
                              size_t workspace_nbytes)
{
    TRY(check_shape(a, op, centred));
    if (a->N > 0 && (!a->x || !a->weight || !a->dy || !a->dx || !a->rstd || (centred && !a->mean)))
        return err_set(CZ_INVALID, 0, "%s: x, weight, dy, dx and the saved statistics are needed",
                       op);
    if (!a->dweight && !a->dbias) return CZ_OK;
    TRY(ops_check_dtype(op, a->grad_dtype));
    return ops_check_workspace(op, a->workspace, a->workspace_nbytes, workspace_nbytes);
}
