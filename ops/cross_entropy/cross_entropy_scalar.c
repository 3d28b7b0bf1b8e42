/* The definition, in plain loops. */
#include "ops/cross_entropy/cross_entropy_impl.h"

#include <math.h>

static float log_sum_exp(const float *z, size_t V)
{
    float max = -INFINITY;
    for (size_t v = 0; v < V; v++)
        if (z[v] > max || isnan(z[v])) max = z[v];
    if (max == -INFINITY) return max;
    double sum = 0;
    for (size_t v = 0; v < V; v++) sum += (double)expf(z[v] - max);
    return max + (float)log(sum);
}

static void softmax_grad(const float *z, size_t V, float lse, float scale, float softcap,
                         enum cz_dtype dtype, void *dz)
{
    for (size_t v = 0; v < V; v++) {
        const float part = softcap > 0 ? z[v] / softcap : 0.0f;
        dtype_put(dz, v, dtype, scale * expf(z[v] - lse) * (1.0f - part * part));
    }
}

static void cap(float *z, size_t V, float softcap)
{
    for (size_t v = 0; v < V; v++) z[v] = softcap * tanhf(z[v] / softcap);
}

const struct cross_entropy_row cross_entropy_scalar = {
    {"scalar", 0}, log_sum_exp, softmax_grad, cap};
