/* The definition, in plain loops. */
#include "ops/reduce/reduce_impl.h"

#include <math.h>

static void scan(const struct scan_args *a, size_t begin, size_t end, struct scan_result *out)
{
    for (size_t i = begin; i < end; i++) {
        float x = fabsf(dtype_get(a->x, i, a->dtype));
        if (!isfinite(x)) {
            if (out->finite) out->first_nonfinite = i;
            out->finite = false;
        } else if (x > out->max_abs) {
            out->max_abs = x;
        }
    }
}

static __int128 sumsq(const struct sumsq_args *a, const struct sumsq_grid *grid, size_t begin,
                      size_t end)
{
    __int128 sum = 0;
    for (size_t i = begin; i < end; i++) {
        double x = dtype_get(a->x, i, a->dtype), square = x * x; /* 48 bits: exact */
        double n_coarse = rint(square / grid->coarse);           /* ties to even */
        double rest = square - n_coarse * grid->coarse;          /* exact */
        double n_fine = rint(rest / grid->fine);
        sum += ((__int128)n_coarse << SUMSQ_COARSE_BITS) + (__int128)n_fine;
    }
    return sum;
}

const struct reduce_row reduce_scalar = {{"scalar", 0}, scan, sumsq};
