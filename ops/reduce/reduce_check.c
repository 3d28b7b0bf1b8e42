/* Argument checks of the reductions, and sumsq's roundings, for all devices. */
#include "ops/reduce/reduce_impl.h"

#include <math.h>

cz_status reduce_check_scan(const struct scan_args *a)
{
    TRY(ops_check_dtype("scan", a->dtype));
    if (!a->result || (a->numel > 0 && !a->x))
        return err_set(CZ_INVALID, 0, "scan: x and result are needed for %zu elements", a->numel);
    return CZ_OK;
}

cz_status reduce_check_sumsq(const struct sumsq_args *a)
{
    TRY(ops_check_dtype("sumsq", a->dtype));
    if (!a->parts || (a->numel > 0 && !a->x))
        return err_set(CZ_INVALID, 0, "sumsq: x and parts are needed for %zu elements", a->numel);
    if (!(a->max_abs >= 0 && isfinite(a->max_abs)))
        return err_set(CZ_INVALID, 0, "sumsq: max_abs is %g, but must be a finite bound of |x|",
                       (double)a->max_abs);
    return CZ_OK;
}

int reduce_square_exponent(float max_abs)
{
    int exponent;
    frexpf(max_abs, &exponent);
    return 2 * exponent;
}

struct sumsq_grid reduce_grid(float max_abs)
{
    double fine = ldexp(1.0, reduce_square_exponent(max_abs) - 81);
    return (struct sumsq_grid){ldexp(fine, SUMSQ_COARSE_BITS), fine};
}
