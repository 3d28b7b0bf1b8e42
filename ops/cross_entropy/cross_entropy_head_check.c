/* What both entry points of the fused head refuse, and how both cut its rows. */
#include "ops/cross_entropy/cross_entropy_head_impl.h"

#include "ops/ops_impl.h"

#include <math.h>

cz_status ce_head_check_shape(const struct ce_head_args *a)
{
    TRY(ops_check_dtype("ce_head", a->dtype));
    if (a->N < 0 || a->C < 1 || a->V < 1)
        return err_set(CZ_INVALID, 0, "ce_head: %lld rows, %lld channels, vocabulary of %lld",
                       (long long)a->N, (long long)a->C, (long long)a->V);
    if (!(a->softcap >= 0 && a->softcap < INFINITY))
        return err_set(CZ_INVALID, 0, "ce_head: softcap %g is not a positive number, nor 0",
                       (double)a->softcap);
    if (a->dx && a->grad_dtype != a->dtype && a->grad_dtype != DTYPE_F32)
        return err_set(CZ_INVALID, 0, "ce_head: gradients in %s for a %s model",
                       dtype_name(a->grad_dtype), dtype_name(a->dtype));
    return CZ_OK;
}

cz_status ce_head_check(const struct ce_head_args *a)
{
    TRY(ce_head_check_shape(a));
    if (a->N > 0 && (!a->x || !a->w)) return err_set(CZ_INVALID, 0, "ce_head: x and w are needed");
    if (a->labels && !a->loss)
        return err_set(CZ_INVALID, 0, "ce_head: labels without a place for the loss");
    if (!a->labels && (a->dx || !a->logits))
        return err_set(CZ_INVALID, 0, "ce_head: without labels it computes only logits");
    if ((a->dz && !ce_head_has_gradients(a)) || (a->dz_given && !a->dz))
        return err_set(CZ_INVALID, 0, "ce_head: dz belongs to a call that makes gradients");
    return CZ_OK;
}

int64_t ce_head_rows_max(int64_t numel, int64_t row_numel)
{
    int64_t most = numel / row_numel;
    int64_t unit = most >= 256 ? 256 : most >= 16 ? 16 : 1;
    return most > 0 ? most / unit * unit : 1;
}

int64_t ce_head_rows(int64_t N, int64_t most)
{
    if (N <= most) return N;
    int64_t n_blocks = (N + most - 1) / most, even = (N + n_blocks - 1) / n_blocks;
    int64_t rounded = (even + 15) / 16 * 16;
    return rounded <= most ? rounded : even;
}
