/* Body of the vector rows. Limit: memory for the first pass over a row (4 bytes a logit); the other
 * two find the row (200 KB at V 50257) in the second-level cache and are bound by exp. */
#include "ops/cross_entropy/cross_entropy_impl.h"
#include "ops/vecmath_impl.h"

#include <math.h>

/* The maximum of a row of finite values; NAN when anything in it is not finite: x − x is 0 for
 * finite x alone. */
static float row_max_finite(const float *z, size_t V)
{
    vf max0 = vf_set1(-INFINITY), max1 = max0, poison = vf_zero();
    size_t v = 0;
    for (; v + 2 * VF_N <= V; v += 2 * VF_N) {
        vf a = vf_load(z, v, DTYPE_F32), b = vf_load(z, v + VF_N, DTYPE_F32);
        poison = poison + (a - a) + (b - b);
        max0 = vf_max(a, max0);
        max1 = vf_max(b, max1);
    }
    float max = vf_hmax(vf_max(max0, max1));
    float poisoned = vf_hsum(poison);
    for (; v < V; v++) {
        poisoned += z[v] - z[v];
        if (z[v] > max) max = z[v];
    }
    return poisoned == 0 ? max : NAN;
}

/* The exact maximum of a row that holds something not finite: rare, so plain. */
static float row_max_special(const float *z, size_t V)
{
    float max = -INFINITY;
    for (size_t v = 0; v < V; v++) {
        if (isnan(z[v])) return NAN;
        if (z[v] > max) max = z[v];
    }
    return max;
}

static float log_sum_exp(const float *z, size_t V)
{
    float max = row_max_finite(z, V);
    if (isnan(max)) max = row_max_special(z, V);
    if (max == -INFINITY || isnan(max)) return max;
    const vf shift = vf_set1(max);
    /* Two sums of at most V/2/VF_N terms each lane: their rounding stays below 1e-6 for V ≤ 10^6.
     */
    vf sum0 = vf_zero(), sum1 = vf_zero();
    size_t v = 0;
    for (; v + 2 * VF_N <= V; v += 2 * VF_N) {
        sum0 = sum0 + vf_exp(vf_load(z, v, DTYPE_F32) - shift);
        sum1 = sum1 + vf_exp(vf_load(z, v + VF_N, DTYPE_F32) - shift);
    }
    for (; v < V; v += VF_N) {
        size_t n = V - v < VF_N ? V - v : VF_N;
        sum0 = sum0 + vf_first(vf_exp(vf_load_n(z, v, DTYPE_F32, n) - shift), n);
    }
    return max + logf(vf_hsum(sum0 + sum1));
}

VEC_FN vf grad_of(bool capped, vf z, vf shift, vf factor, vf inverse)
{
    vf grad = factor * vf_exp(z - shift), part = z * inverse;
    if (capped) grad = grad * (vf_set1(1.0f) - part * part);
    return grad;
}

VEC_FN void grad_by(bool capped, enum cz_dtype dtype, const float *z, size_t V, vf shift, vf factor,
                    vf inverse, void *dz)
{
    size_t v = 0;
    for (; v + VF_N <= V; v += VF_N)
        vf_store(dz, v, dtype, grad_of(capped, vf_load(z, v, DTYPE_F32), shift, factor, inverse));
    size_t n = V - v;
    if (n > 0)
        vf_store_n(dz, v, dtype,
                   grad_of(capped, vf_load_n(z, v, DTYPE_F32, n), shift, factor, inverse), n);
}

VEC_FN void grad_loop(enum cz_dtype dtype, const float *z, size_t V, float lse, float scale,
                      float softcap, void *dz)
{
    const vf shift = vf_set1(lse), factor = vf_set1(scale);
    if (softcap > 0)
        grad_by(true, dtype, z, V, shift, factor, vf_set1(1.0f / softcap), dz);
    else
        grad_by(false, dtype, z, V, shift, factor, shift, dz);
}

static void softmax_grad(const float *z, size_t V, float lse, float scale, float softcap,
                         enum cz_dtype dtype, void *dz)
{
    DTYPE_CALL(grad_loop, dtype, z, V, lse, scale, softcap, dz);
}

static void cap(float *z, size_t V, float softcap)
{
    const vf most = vf_set1(softcap), inverse = vf_set1(1.0f / softcap);
    size_t v = 0;
    for (; v + VF_N <= V; v += VF_N)
        vf_store(z, v, DTYPE_F32, most * vf_tanh(vf_load(z, v, DTYPE_F32) * inverse));
    size_t n = V - v;
    if (n > 0)
        vf_store_n(z, v, DTYPE_F32, most * vf_tanh(vf_load_n(z, v, DTYPE_F32, n) * inverse), n);
}
