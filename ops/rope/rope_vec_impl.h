/* Body of the vector rows. Limit: memory (8 bytes per fp32 element; the tables stay in L1). */
#include "ops/rope/rope_impl.h"

VEC_FN void rotate_step(enum cz_dtype dtype, void *x, const float *cos, const float *sin,
                        size_t half, vf sign, size_t d, size_t n)
{
    vf c = vf_get(cos, d, DTYPE_F32, n), s = sign * vf_get(sin, d, DTYPE_F32, n);
    vf a = vf_get(x, d, dtype, n), b = vf_get(x, d + half, dtype, n);
    vf_put(x, d, dtype, a * c - b * s, n);
    vf_put(x, d + half, dtype, b * c + a * s, n);
}

VEC_FN void rotate_of(enum cz_dtype dtype, void *x, const float *cos, const float *sin, size_t half,
                      bool inverse)
{
    const vf sign = vf_set1(inverse ? -1.0f : 1.0f);
    size_t d = 0;
    for (; d + VF_N <= half; d += VF_N) rotate_step(dtype, x, cos, sin, half, sign, d, VF_N);
    if (d < half) rotate_step(dtype, x, cos, sin, half, sign, d, half - d);
}

static void rotate(enum cz_dtype dtype, void *x, const float *cos, const float *sin, size_t half,
                   bool inverse)
{
    DTYPE_CALL(rotate_of, dtype, x, cos, sin, half, inverse);
}
