/* Lamb's exact sums, for vector rows. Include after ops/vec_*_impl.h. */
#ifndef CZ_OPS_LAMB_LAMB_SUMS_VEC_IMPL_H
#define CZ_OPS_LAMB_LAMB_SUMS_VEC_IMPL_H

#include "ops/lamb/lamb_impl.h"

/* Largest |x| of n elements, n a multiple of VF_N; infinity when one is not finite. */
static float lamb_block_max(const float *x, size_t n)
{
    vf max = vf_zero(), bad = vf_zero();
    for (size_t i = 0; i < n; i += VF_N) {
        vf v = vf_load(x, i, DTYPE_F32);
        max = vf_max(vf_abs(v), max);
        bad = bad + v * vf_zero(); /* NaN for infinity and NaN */
    }
    return vf_hsum(bad) == 0 ? vf_hmax(max) : INFINITY;
}

/* A vector of squares spread over the grids, as lamb_deposit() does with one. */
VEC_FN void lamb_spread(vd x, const vd c[LAMB_TOP], vd sums[LAMB_TOP])
{
    vd square = x * x;
    for (int k = 0; k < LAMB_TOP; k++) {
        vd whole = square + c[k] - c[k];
        sums[k] = sums[k] + whole;
        square = square - whole;
    }
}

/* Lanes of squares side by side, added up at the end: exact, so the order does not show. */
static void lamb_block_sum_finite(const float *x, size_t n, int top, double grids[LAMB_GRIDS])
{
    vd sums[LAMB_TOP], c[LAMB_TOP];
    for (int k = 0; k < LAMB_TOP; k++) {
        c[k] = vd_set1(0x1.8p52 * lamb_unit(top - k));
        sums[k] = vd_set1(0);
    }
    for (size_t i = 0; i < n; i += VF_N) {
        vf v = vf_load(x, i, DTYPE_F32);
        lamb_spread(vd_low(v), c, sums);
        lamb_spread(vd_high(v), c, sums);
    }
    for (int k = 0; k < LAMB_TOP && k <= top; k++)
        for (size_t l = 0; l < VF_N / 2; l++) grids[top - k] += sums[k][l];
}

/* Adds the squares of n elements to their grids. n is a multiple of VF_N; zeros behind the data
 * add nothing. */
static void lamb_block_sum(const float *x, size_t n, double grids[LAMB_GRIDS])
{
    double max = (double)lamb_block_max(x, n);
    if (isfinite(max)) {
        lamb_block_sum_finite(x, n, lamb_top_grid(max * max), grids);
        return;
    }
    for (size_t i = 0; i < n; i++) /* the norm is infinite or NaN */
        if (!isfinite(x[i])) grids[LAMB_GRIDS - 1] += (double)x[i] * (double)x[i];
}

#endif
