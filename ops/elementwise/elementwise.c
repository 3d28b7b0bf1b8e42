/* Entry point of add, cast_scale and bias_grad: threads, choice of row. */
#include "ops/elementwise/elementwise_impl.h"
#include "ops/table_impl.h"

#include <string.h>

static const struct elementwise_row *const rows[] = {
    &elementwise_scalar,
    &elementwise_avx2,
    &elementwise_avx512,
};

const struct elementwise_row *const *elementwise_rows(size_t *n)
{
    *n = CZ_ARRAY_LEN(rows);
    return rows;
}

static cz_status add(struct ops *ops, struct dev_stream *stream, const struct add_args *a)
{
    (void)stream;
    TRY(add_check(a));
    if (a->numel == 0) return CZ_OK;
    OPS_IN_PARTS(ops_n_parts(a->numel, OPS_GRAIN), a->numel, OPS_PART_UNIT,
                 ops->elementwise_row->add(a, begin, end));
    return CZ_OK;
}

static cz_status cast_scale(struct ops *ops, struct dev_stream *stream,
                            const struct cast_scale_args *a)
{
    (void)stream;
    TRY(cast_scale_check(a));
    const bool is_copy = cast_scale_is_copy(a);
    if (a->numel == 0 || (is_copy && a->x == a->y)) return CZ_OK;
    int n_parts = ops_n_parts(a->numel, OPS_GRAIN);
#pragma omp parallel for schedule(static, 1) if (n_parts > 1)
    for (int part = 0; part < n_parts; part++) {
        size_t begin, end;
        threads_split(a->numel, OPS_PART_UNIT, n_parts, part, &begin, &end);
        if (is_copy) {
            size_t unit = dtype_size(a->x_dtype);
            memcpy((char *)a->y + begin * unit, (const char *)a->x + begin * unit,
                   (end - begin) * unit);
        } else
            ops->elementwise_row->cast_scale(a, begin, end);
    }
    return CZ_OK;
}

static size_t host_bias_grad_workspace(const struct ops *ops, const struct bias_grad_args *a)
{
    (void)ops;
    return bias_grad_nbytes(a);
}

/* A task is one block of rows by one part of the columns (columns are cut when blocks are few).
 * Blocks of rows depend on N alone, so sums do not depend on threads. */
static cz_status bias_grad(struct ops *ops, struct dev_stream *stream,
                           const struct bias_grad_args *a)
{
    (void)stream;
    TRY(bias_grad_check(a));
    int64_t n_blocks = ops_n_blocks(a->N), block_rows = ops_block_rows(a->N);
    int n_parts = ops_n_parts((size_t)(a->N * a->C), OPS_GRAIN);
    int n_cuts =
        n_blocks > 0 && n_blocks < n_parts ? (n_parts + (int)n_blocks - 1) / (int)n_blocks : 1;
    float *partial = a->workspace;
#pragma omp parallel for schedule(static) if (n_parts > 1)
    for (int64_t task = 0; task < n_blocks * n_cuts; task++) {
        int64_t block = task / n_cuts, first = block * block_rows;
        int64_t last = first + block_rows < a->N ? first + block_rows : a->N;
        size_t begin, end;
        threads_split((size_t)a->C, OPS_PART_UNIT, n_cuts, (int)(task % n_cuts), &begin, &end);
        ops->elementwise_row->column_sums(a, first, last, partial + block * a->C, begin, end);
    }
    ops_combine_blocks(partial, n_blocks, a->C, a->C, a->grad_dtype, a->accumulate, a->db);
    return CZ_OK;
}

size_t ops_bias_grad_workspace(const struct ops *ops, const struct bias_grad_args *a)
{
    return ops->bias_grad_workspace ? ops->bias_grad_workspace(ops, a) : 0;
}

cz_status elementwise_wire(struct ops *ops, uint32_t features)
{
    ops->elementwise_row = rows[ops_row_pick(rows, CZ_ARRAY_LEN(rows), features)];
    ops->add = add;
    ops->cast_scale = cast_scale;
    ops->bias_grad = bias_grad;
    ops->bias_grad_workspace = host_bias_grad_workspace;
    return CZ_OK;
}
