/* The definition: one draw per element. */
#include "ops/dropout/dropout_impl.h"

static void dropout(const struct dropout_args *a, size_t begin, size_t end)
{
    const float scale = 1.0f / (1.0f - a->p);
    for (size_t i = begin; i < end; i++) {
        bool keep = rng_uniform(&a->rng, a->first_idx + i) >= a->p;
        dtype_put(a->y, i, a->dtype, keep ? dtype_get(a->x, i, a->dtype) * scale : 0.0f);
    }
}

const struct dropout_row dropout_scalar = {{"scalar", 0}, dropout};
