/* The definition: plain loops over elements. */
#include "ops/elementwise/elementwise_impl.h"

static void add(const struct add_args *a, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++)
        dtype_put(a->y, i, a->dtype, dtype_get(a->a, i, a->dtype) + dtype_get(a->b, i, a->dtype));
}

static void cast_scale(const struct cast_scale_args *a, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++) {
        float x = dtype_get(a->x, i, a->x_dtype);
        dtype_put(a->y, i, a->y_dtype, a->alpha == 1.0f ? x : a->alpha * x);
    }
}

static void column_sums(const struct bias_grad_args *a, int64_t row_begin, int64_t row_end,
                        float *sums, size_t begin, size_t end)
{
    for (size_t c = begin; c < end; c++) {
        float sum = 0;
        for (int64_t n = row_begin; n < row_end; n++)
            sum += dtype_get(a->dy, (size_t)(n * a->C) + c, a->dtype);
        sums[c] = sum;
    }
}

const struct elementwise_row elementwise_scalar = {{"scalar", 0}, add, cast_scale, column_sums};
