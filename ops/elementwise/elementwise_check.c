/* What the entry points of add, cast_scale and bias_grad refuse, on the host and on a GPU. */
#include "ops/elementwise/elementwise_impl.h"

cz_status add_check(const struct add_args *a)
{
    TRY(ops_check_dtype("add", a->dtype));
    if (a->numel > 0 && (!a->a || !a->b || !a->y))
        return err_set(CZ_INVALID, 0, "add: a, b and y are needed for %zu elements", a->numel);
    return CZ_OK;
}

cz_status cast_scale_check(const struct cast_scale_args *a)
{
    TRY(ops_check_dtype("cast_scale", a->x_dtype));
    TRY(ops_check_dtype("cast_scale", a->y_dtype));
    if (a->numel > 0 && (!a->x || !a->y))
        return err_set(CZ_INVALID, 0, "cast_scale: x and y are needed for %zu elements", a->numel);
    if (a->x == a->y && dtype_size(a->x_dtype) != dtype_size(a->y_dtype))
        return err_set(CZ_INVALID, 0, "cast_scale: %s to %s cannot run in place",
                       dtype_name(a->x_dtype), dtype_name(a->y_dtype));
    return CZ_OK;
}

size_t bias_grad_nbytes(const struct bias_grad_args *a)
{
    return (size_t)(ops_n_blocks(a->N) * a->C) * sizeof(float);
}

cz_status bias_grad_check(const struct bias_grad_args *a)
{
    TRY(ops_check_dtype("bias_grad", a->dtype));
    TRY(ops_check_dtype("bias_grad", a->grad_dtype));
    if (a->N < 0 || a->C < 0)
        return err_set(CZ_INVALID, 0, "bias_grad: N %lld and C %lld must not be negative",
                       (long long)a->N, (long long)a->C);
    if (a->C > 0 && (!a->db || (a->N > 0 && !a->dy)))
        return err_set(CZ_INVALID, 0, "bias_grad: dy and db are needed for %lld columns",
                       (long long)a->C);
    return ops_check_workspace("bias_grad", a->workspace, a->workspace_nbytes, bias_grad_nbytes(a));
}
