/* Lamb's exact sums, for vector rows. Include after ops/vec_*_impl.h. */
#ifndef CZ_OPS_LAMB_LAMB_SUMS_VEC_IMPL_H
#define CZ_OPS_LAMB_LAMB_SUMS_VEC_IMPL_H

#include "ops/lamb/lamb_impl.h"

#define LAMB_LANES 8
typedef float lamb_f8 __attribute__((vector_size(LAMB_LANES * sizeof(float)), aligned(4)));
typedef double lamb_d8 __attribute__((vector_size(LAMB_LANES * sizeof(double))));

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

/* Lanes of squares side by side, added up at the end: exact, so the order does not show. */
static void lamb_block_sum_finite(const float *x, size_t n, int top, double grids[LAMB_GRIDS])
{
    lamb_d8 sums[LAMB_TOP] = {{0}}, c[LAMB_TOP];
    for (int k = 0; k < LAMB_TOP; k++) c[k] = (lamb_d8){0} + 0x1.8p52 * lamb_unit(top - k);
    for (size_t i = 0; i < n; i += LAMB_LANES) {
        lamb_d8 wide = __builtin_convertvector(*(const lamb_f8 *)(x + i), lamb_d8);
        lamb_d8 square = wide * wide;
        for (int k = 0; k < LAMB_TOP; k++) {
            lamb_d8 whole = square + c[k] - c[k];
            sums[k] += whole;
            square -= whole;
        }
    }
    for (int k = 0; k < LAMB_TOP && k <= top; k++)
        for (int l = 0; l < LAMB_LANES; l++) grids[top - k] += sums[k][l];
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
