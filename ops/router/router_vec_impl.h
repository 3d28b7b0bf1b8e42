/* Body of the vector rows. Limit: memory (add: 12 bytes per fp32 element; weigh: 16). Products are
 * not fused into sums in `add`, so that rows agree to the bit there. */
#include "ops/router/router_impl.h"

VEC_FN void add_step(enum cz_dtype dtype, const void *x, vf w, float *sum, size_t c, size_t n)
{
    const vf product = w * vf_get(x, c, dtype, n);
    vf_put(sum, c, DTYPE_F32, vf_get(sum, c, DTYPE_F32, n) + product, n);
}

VEC_FN void add_of(enum cz_dtype dtype, const void *x, float w, float *sum, size_t C)
{
    const vf ws = vf_set1(w);
    size_t c = 0;
    for (; c + VF_N <= C; c += VF_N) add_step(dtype, x, ws, sum, c, VF_N);
    if (c < C) add_step(dtype, x, ws, sum, c, C - c);
}

static void add(enum cz_dtype dtype, const void *x, float w, float *sum, size_t C)
{
    DTYPE_CALL(add_of, dtype, x, w, sum, C);
}

VEC_FN vf weigh_step(enum cz_dtype dtype, void *y, void *dy, vf w, vf sum, size_t c, size_t n)
{
    const vf a = vf_get(y, c, dtype, n), b = vf_get(dy, c, dtype, n);
    vf_put(y, c, dtype, w * a, n);
    vf_put(dy, c, dtype, w * b, n);
    return vf_fma(a, b, sum); /* elements behind the end read as 0 */
}

VEC_FN void weigh_of(enum cz_dtype dtype, void *y, void *dy, float w, size_t C, float *out)
{
    const vf ws = vf_set1(w);
    vf sum = vf_zero();
    size_t c = 0;
    for (; c + VF_N <= C; c += VF_N) sum = weigh_step(dtype, y, dy, ws, sum, c, VF_N);
    if (c < C) sum = weigh_step(dtype, y, dy, ws, sum, c, C - c);
    *out = vf_hsum(sum);
}

static float weigh(enum cz_dtype dtype, void *y, void *dy, float w, size_t C)
{
    float sum;
    DTYPE_CALL(weigh_of, dtype, y, dy, w, C, &sum);
    return sum;
}
