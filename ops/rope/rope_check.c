/* What the entry points of rope refuse, on the host and on a GPU. */
#include "ops/rope/rope_impl.h"

cz_status rope_check(const struct rope_args *a)
{
    TRY(ops_check_dtype("rope", a->dtype));
    const int64_t width = rope_width(a);
    if (a->N < 0 || a->H < 0 || a->D < 0 || width < 0 || width > a->D || width % 2 != 0)
        return err_set(CZ_INVALID, 0,
                       "rope: N %lld, H %lld, D %lld, %lld of them rotated: these must be even and "
                       "no more than D, none negative",
                       (long long)a->N, (long long)a->H, (long long)a->D, (long long)width);
    if (a->N == 0 || a->H == 0 || a->D == 0) return CZ_OK;
    if (a->N > 1 && a->stride < a->H * a->D)
        return err_set(CZ_INVALID, 0, "rope: stride %lld is less than H·D = %lld",
                       (long long)a->stride, (long long)(a->H * a->D));
    if (!a->x || !a->cos || !a->sin)
        return err_set(CZ_INVALID, 0, "rope: x, cos and sin are needed");
    if (!a->positions && a->T < 1)
        return err_set(CZ_INVALID, 0, "rope: T is %lld, but must be positive without positions",
                       (long long)a->T);
    return CZ_OK;
}

cz_status rope_table_check(const struct rope_table_args *a)
{
    if (a->N < 0 || a->half < 0 || a->first < 0)
        return err_set(CZ_INVALID, 0, "rope_table: N %lld, half %lld, first %lld: none negative",
                       (long long)a->N, (long long)a->half, (long long)a->first);
    if (a->N > 0 && a->half > 0 && (!a->freq || !a->cos || !a->sin))
        return err_set(CZ_INVALID, 0, "rope_table: freq, cos and sin are needed");
    return CZ_OK;
}
