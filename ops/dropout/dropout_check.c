/* Arguments that dropout refuses, on the host and on a GPU. */
#include "ops/dropout/dropout_impl.h"

cz_status dropout_check(const struct dropout_args *a)
{
    TRY(ops_check_dtype("dropout", a->dtype));
    if (!(a->p >= 0.0f && a->p < 1.0f))
        return err_set(CZ_INVALID, 0, "dropout: p is %g, but must be in [0, 1)", (double)a->p);
    if (a->numel > 0 && (!a->x || !a->y))
        return err_set(CZ_INVALID, 0, "dropout: x and y are needed for %zu elements", a->numel);
    return CZ_OK;
}
