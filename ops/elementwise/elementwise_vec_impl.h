/* Body of the vector rows. Limit: memory (12, 8 and 4 bytes per fp32 element: two reads and a
 * write, a read and a write, a read). */
#include "ops/elementwise/elementwise_impl.h"

VEC_FN void add_loop(enum dtype dtype, const void *a, const void *b, void *y, size_t begin,
                     size_t end)
{
    size_t i = begin;
    for (; i + VF_N <= end; i += VF_N)
        vf_store(y, i, dtype, vf_load(a, i, dtype) + vf_load(b, i, dtype));
    size_t n = end - i;
    if (n > 0) vf_store_n(y, i, dtype, vf_load_n(a, i, dtype, n) + vf_load_n(b, i, dtype, n), n);
}

static void add(const struct add_args *a, size_t begin, size_t end)
{
    OPS_BY_DTYPE(add_loop, a->dtype, a->a, a->b, a->y, begin, end);
}

VEC_FN void cast_loop(enum dtype x_dtype, enum dtype y_dtype, bool scale, float alpha,
                      const void *x, void *y, size_t begin, size_t end)
{
    vf factor = vf_set1(alpha);
    size_t i = begin;
    for (; i + VF_N <= end; i += VF_N) {
        vf v = vf_load(x, i, x_dtype);
        if (scale) v = factor * v;
        vf_store(y, i, y_dtype, v);
    }
    size_t n = end - i;
    if (n == 0) return;
    vf v = vf_load_n(x, i, x_dtype, n);
    if (scale) v = factor * v;
    vf_store_n(y, i, y_dtype, v, n);
}

VEC_FN void cast_to(enum dtype y_dtype, const struct cast_scale_args *a, size_t begin, size_t end)
{
    if (a->alpha == 1.0f)
        OPS_BY_DTYPE(cast_loop, a->x_dtype, y_dtype, false, 1.0f, a->x, a->y, begin, end);
    else
        OPS_BY_DTYPE(cast_loop, a->x_dtype, y_dtype, true, a->alpha, a->x, a->y, begin, end);
}

static void cast_scale(const struct cast_scale_args *a, size_t begin, size_t end)
{
    OPS_BY_DTYPE(cast_to, a->y_dtype, a, begin, end);
}

/* sums[c] over `n_rows` rows from dy on, added in row order to what is there (or to 0: `first`). */
VEC_FN void sum_rows(enum dtype dtype, const void *dy, size_t C, int n_rows, bool first,
                     float *sums, size_t begin, size_t end)
{
    size_t c = begin;
    for (; c + VF_N <= end; c += VF_N) {
        vf sum = first ? vf_zero() : vf_load(sums, c, DTYPE_F32);
        for (int r = 0; r < n_rows; r++) sum = sum + vf_load(dy, (size_t)r * C + c, dtype);
        vf_store(sums, c, DTYPE_F32, sum);
    }
    size_t n = end - c;
    if (n == 0) return;
    vf sum = first ? vf_zero() : vf_load_n(sums, c, DTYPE_F32, n);
    for (int r = 0; r < n_rows; r++) sum = sum + vf_load_n(dy, (size_t)r * C + c, dtype, n);
    vf_store_n(sums, c, DTYPE_F32, sum, n);
}

/* Four rows at a time: dy streams, and sums are loaded and stored once per four additions. */
VEC_FN void column_sums_of(enum dtype dtype, const struct bias_grad_args *a, int64_t row_begin,
                           int64_t row_end, float *sums, size_t begin, size_t end)
{
    size_t C = (size_t)a->C, row_nbytes = C * dtype_size(dtype);
    for (int64_t n = row_begin; n < row_end;) {
        const void *dy = (const char *)a->dy + (size_t)n * row_nbytes;
        int n_rows = row_end - n >= 4 ? 4 : 1;
        if (n_rows == 4)
            sum_rows(dtype, dy, C, 4, n == row_begin, sums, begin, end);
        else
            sum_rows(dtype, dy, C, 1, n == row_begin, sums, begin, end);
        n += n_rows;
    }
}

static void column_sums(const struct bias_grad_args *a, int64_t row_begin, int64_t row_end,
                        float *sums, size_t begin, size_t end)
{
    OPS_BY_DTYPE(column_sums_of, a->dtype, a, row_begin, row_end, sums, begin, end);
}
