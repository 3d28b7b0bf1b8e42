/* The definition: pairs (d, d + half) turned by their angle. */
#include "ops/rope/rope_impl.h"

static void rotate(enum cz_dtype dtype, void *x, const float *cos, const float *sin, size_t half,
                   bool inverse)
{
    for (size_t d = 0; d < half; d++) {
        float s = inverse ? -sin[d] : sin[d];
        float a = dtype_get(x, d, dtype), b = dtype_get(x, d + half, dtype);
        dtype_put(x, d, dtype, a * cos[d] - b * s);
        dtype_put(x, d + half, dtype, b * cos[d] + a * s);
    }
}

const struct rope_row rope_scalar = {{"scalar", 0}, rotate};
