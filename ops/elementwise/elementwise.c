/* Front door of add, cast_scale and bias_grad: checks, threads, choice of row. */
#include "ops/elementwise/elementwise_impl.h"

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
    TRY(ops_check_dtype("add", a->dtype));
    if (a->numel == 0) return CZ_OK;
    if (!a->a || !a->b || !a->y)
        return err_set(CZ_INVALID, 0, "add: a, b and y are needed for %zu elements", a->numel);
    int n_parts = ops_n_parts(a->numel, OPS_GRAIN);
#pragma omp parallel for schedule(static, 1) if (n_parts > 1)
    for (int part = 0; part < n_parts; part++) {
        size_t begin, end;
        threads_split(a->numel, OPS_PART_UNIT, n_parts, part, &begin, &end);
        ops->elementwise_row->add(a, begin, end);
    }
    return CZ_OK;
}

static cz_status check_cast_scale(const struct cast_scale_args *a)
{
    TRY(ops_check_dtype("cast_scale", a->x_dtype));
    TRY(ops_check_dtype("cast_scale", a->y_dtype));
    if (a->numel > 0 && (!a->x || !a->y))
        return err_set(CZ_INVALID, 0, "cast_scale: x and y are needed for %zu elements", a->numel);
    if (a->x == a->y && dtype_size(a->x_dtype) != dtype_size(a->y_dtype))
        return err_set(CZ_INVALID, 0, "cast_scale: %s to %s cannot run in place",
                       dtype_name(a->x_dtype), dtype_name(a->y_dtype));
    return CZ_OK;
}

static void copy_piece(const struct cast_scale_args *a, size_t begin, size_t end)
{
    size_t unit = dtype_size(a->x_dtype);
    memcpy((char *)a->y + begin * unit, (const char *)a->x + begin * unit, (end - begin) * unit);
}

static cz_status cast_scale(struct ops *ops, struct dev_stream *stream,
                            const struct cast_scale_args *a)
{
    (void)stream;
    TRY(check_cast_scale(a));
    bool is_copy = a->alpha == 1.0f && a->x_dtype == a->y_dtype;
    if (a->numel == 0 || (is_copy && a->x == a->y)) return CZ_OK;
    int n_parts = ops_n_parts(a->numel, OPS_GRAIN);
#pragma omp parallel for schedule(static, 1) if (n_parts > 1)
    for (int part = 0; part < n_parts; part++) {
        size_t begin, end;
        threads_split(a->numel, OPS_PART_UNIT, n_parts, part, &begin, &end);
        if (is_copy)
            copy_piece(a, begin, end);
        else
            ops->elementwise_row->cast_scale(a, begin, end);
    }
    return CZ_OK;
}

static size_t host_bias_grad_workspace(const struct ops *ops, const struct bias_grad_args *a)
{
    (void)ops;
    return (size_t)(ops_n_blocks(a->N) * a->C) * sizeof(float);
}

static cz_status check_bias_grad(const struct bias_grad_args *a)
{
    TRY(ops_check_dtype("bias_grad", a->dtype));
    TRY(ops_check_dtype("bias_grad", a->grad_dtype));
    if (a->N < 0 || a->C < 0)
        return err_set(CZ_INVALID, 0, "bias_grad: N %lld and C %lld must not be negative",
                       (long long)a->N, (long long)a->C);
    if (a->C > 0 && (!a->db || (a->N > 0 && !a->dy)))
        return err_set(CZ_INVALID, 0, "bias_grad: dy and db are needed for %lld columns",
                       (long long)a->C);
    return ops_check_workspace("bias_grad", a->workspace, a->workspace_nbytes,
                               host_bias_grad_workspace(NULL, a));
}

/* A task is one block of rows by one part of the columns (columns are cut when blocks are few). */
static cz_status bias_grad(struct ops *ops, struct dev_stream *stream,
                           const struct bias_grad_args *a)
{
    (void)stream;
    TRY(check_bias_grad(a));
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

cz_status elementwise_wire(struct ops *ops, uint32_t features)
{
    ops->elementwise_row = rows[ops_row_pick(rows, CZ_ARRAY_LEN(rows), features)];
    ops->add = add;
    ops->cast_scale = cast_scale;
    ops->bias_grad = bias_grad;
    ops->bias_grad_workspace = host_bias_grad_workspace;
    return CZ_OK;
}
