/* Body of the vector rows. Limit: memory (12, 8 and 4 bytes per fp32 element: two reads and a
 * write, a read and a write, a read). */
#include "ops/elementwise/elementwise_impl.h"

VEC_FN void add_step(enum cz_dtype dtype, const void *a, const void *b, void *y, size_t i, size_t n)
{
    vf2_put(y, i, dtype, vf2_add(vf2_get(a, i, dtype, n), vf2_get(b, i, dtype, n)), n);
}

VEC_FN void add_loop(enum cz_dtype dtype, const void *a, const void *b, void *y, size_t begin,
                     size_t end)
{
    size_t i = begin;
    for (; i + 2 * VF_N <= end; i += 2 * VF_N) add_step(dtype, a, b, y, i, 2 * VF_N);
    if (i < end) add_step(dtype, a, b, y, i, end - i);
}

static void add(const struct add_args *a, size_t begin, size_t end)
{
    DTYPE_CALL(add_loop, a->dtype, a->a, a->b, a->y, begin, end);
}

/* Pairs only serve equal dtypes: they come apart in the order of theirs. */
VEC_FN void cast_step(enum cz_dtype x_dtype, enum cz_dtype y_dtype, bool scale, vf alpha,
                      const void *x, void *y, size_t i, size_t n)
{
    if (x_dtype == y_dtype) {
        vf2 v = vf2_get(x, i, x_dtype, n);
        vf2_put(y, i, y_dtype, (vf2){alpha * v.a, alpha * v.b}, n);
        return;
    }
    for (size_t j = 0; j < n; j += VF_N) {
        size_t m = n - j < VF_N ? n - j : VF_N;
        vf v = vf_get(x, i + j, x_dtype, m);
        if (scale) v = alpha * v;
        vf_put(y, i + j, y_dtype, v, m);
    }
}

/* Equal dtypes always scale: the copy is done in front. */
VEC_FN void cast_loop(enum cz_dtype x_dtype, enum cz_dtype y_dtype, bool scale, float alpha,
                      const void *x, void *y, size_t begin, size_t end)
{
    const vf factor = vf_set1(alpha);
    size_t i = begin;
    for (; i + 2 * VF_N <= end; i += 2 * VF_N)
        cast_step(x_dtype, y_dtype, scale, factor, x, y, i, 2 * VF_N);
    if (i < end) cast_step(x_dtype, y_dtype, scale, factor, x, y, i, end - i);
}

VEC_FN void cast_to(enum cz_dtype y_dtype, const struct cast_scale_args *a, size_t begin,
                    size_t end)
{
    if (a->alpha == 1.0f)
        DTYPE_CALL(cast_loop, a->x_dtype, y_dtype, false, 1.0f, a->x, a->y, begin, end);
    else
        DTYPE_CALL(cast_loop, a->x_dtype, y_dtype, true, a->alpha, a->x, a->y, begin, end);
}

static void cast_scale(const struct cast_scale_args *a, size_t begin, size_t end)
{
    DTYPE_CALL(cast_to, a->y_dtype, a, begin, end);
}

VEC_FN void sum_step(enum cz_dtype dtype, const void *row, bool first, float *sums, size_t c,
                     size_t n)
{
    vf2 x = vf2_get(row, c, dtype, n), zero = {vf_zero(), vf_zero()};
    vf2_put(sums, c, DTYPE_F32, vf2_add(first ? zero : vf2_get(sums, c, DTYPE_F32, n), x), n);
}

/* Row after row, so that dy streams; the sums stay in L1. */
VEC_FN void column_sums_of(enum cz_dtype dtype, const struct bias_grad_args *a, int64_t row_begin,
                           int64_t row_end, float *sums, size_t begin, size_t end)
{
    const size_t row_nbytes = (size_t)a->C * dtype_size(dtype), numel = end - begin;
    sums += begin;
    for (int64_t n = row_begin; n < row_end; n++) {
        const char *row = (const char *)a->dy + (size_t)n * row_nbytes + begin * dtype_size(dtype);
        bool first = n == row_begin;
        size_t c = 0;
        for (; c + 2 * VF_N <= numel; c += 2 * VF_N) sum_step(dtype, row, first, sums, c, 2 * VF_N);
        if (c < numel) sum_step(dtype, row, first, sums, c, numel - c);
    }
    floats_interleave(sums, numel, dtype);
}

static void column_sums(const struct bias_grad_args *a, int64_t row_begin, int64_t row_end,
                        float *sums, size_t begin, size_t end)
{
    DTYPE_CALL(column_sums_of, a->dtype, a, row_begin, row_end, sums, begin, end);
}
