/* The definition, in plain loops. */
#include "ops/embedding/embedding_impl.h"

static void add(enum cz_dtype dtype, void *y, const void *table, size_t numel)
{
    for (size_t i = 0; i < numel; i++)
        dtype_put(y, i, dtype, dtype_get(y, i, dtype) + dtype_get(table, i, dtype));
}

static void sum_tokens(const struct embedding_args *a, const uint64_t *keys, size_t n_tokens,
                       size_t id, size_t begin, size_t end)
{
    const size_t C = (size_t)a->C;
    for (size_t c = begin; c < end; c++) {
        float sum = 0;
        for (size_t i = 0; i < n_tokens; i++)
            sum += dtype_get(a->dy, (uint32_t)keys[i] * C + c, a->dtype);
        float old = a->dtable_accumulate ? dtype_get(a->dtable, id * C + c, a->grad_dtype) : 0.0f;
        dtype_put(a->dtable, id * C + c, a->grad_dtype, a->dtable_accumulate ? old + sum : sum);
    }
}

const struct embedding_row embedding_scalar = {{"scalar", 0}, add, sum_tokens};
