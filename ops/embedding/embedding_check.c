/* What the entry points of the embedding refuse, on the host and on a GPU. */
#include "ops/embedding/embedding_impl.h"

static cz_status check(const struct embedding_args *a, const char *op, bool tensors)
{
    TRY(ops_check_dtype(op, a->dtype));
    if (a->N < 0 || a->C < 0 || a->V < 0 || a->N > INT32_MAX)
        return err_set(CZ_INVALID, 0, "%s: N %lld, C %lld, V %lld: none may be negative, N < 2^31",
                       op, (long long)a->N, (long long)a->C, (long long)a->V);
    if (a->N > 0 && (!a->ids || !tensors))
        return err_set(CZ_INVALID, 0, "%s: a tensor is missing for %lld tokens", op,
                       (long long)a->N);
    return CZ_OK;
}

cz_status embedding_forward_check(const struct embedding_args *a)
{
    return check(a, "embedding_forward", a->table && a->y);
}

cz_status embedding_backward_check(const struct embedding_args *a, size_t workspace_nbytes)
{
    TRY(check(a, "embedding_backward", a->dy && a->dtable));
    TRY(ops_check_dtype("embedding_backward", a->grad_dtype));
    if (a->V > 0 && a->C > 0 && !a->dtable)
        return err_set(CZ_INVALID, 0, "embedding_backward: dtable is needed");
    if (a->has_padding && (a->padding_id < 0 || a->padding_id >= a->V))
        return err_set(CZ_INVALID, 0, "embedding_backward: padding id %lld is outside [0, %lld)",
                       (long long)a->padding_id, (long long)a->V);
    return ops_check_workspace("embedding_backward", a->workspace, a->workspace_nbytes,
                               workspace_nbytes);
}
