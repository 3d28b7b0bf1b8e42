/* Layernorm and RMSnorm on the host: threads, choice of row. Gradients of weight and bias are sums
 * over rows: they are made per block of rows and combined in order, and blocks depend on N alone,
 * so the sums do not depend on threads. */
#include "ops/norm/norm_impl.h"
#include "ops/table_impl.h"

static const struct norm_row *const rows[] = {
    &norm_scalar,
    &norm_avx2,
    &norm_avx512,
};

const struct norm_row *const *norm_rows(size_t *n)
{
    *n = CZ_ARRAY_LEN(rows);
    return rows;
}

static cz_status forward(struct ops *ops, const struct norm_args *a, const char *op, bool centred)
{
    TRY(norm_forward_check(a, op, centred));
    OPS_IN_PARTS(ops_n_parts((size_t)(a->N * a->C), OPS_GRAIN), (size_t)a->N, 1,
                 ops->norm_row->forward(a, centred, (int64_t)begin, (int64_t)end));
    return CZ_OK;
}

static cz_status layernorm_forward(struct ops *ops, struct dev_stream *stream,
                                   const struct norm_args *a)
{
    (void)stream;
    TRY(forward(ops, a, "layernorm_forward", true));
    return CZ_OK;
}

static cz_status rmsnorm_forward(struct ops *ops, struct dev_stream *stream,
                                 const struct norm_args *a)
{
    (void)stream;
    TRY(forward(ops, a, "rmsnorm_forward", false));
    return CZ_OK;
}

/* Per block of rows, C sums for the weight and C for the bias. Whole lines and an odd number of
 * them, so that the two are not a multiple of 4 KiB apart: a load would wait for the other's store.
 */
static int64_t sums_stride(int64_t C)
{
    return (C + 15) / 16 * 16 | 16;
}

static size_t host_norm_workspace(const struct ops *ops, const struct norm_args *a)
{
    (void)ops;
    return (size_t)(2 * ops_n_blocks(a->N) * sums_stride(a->C)) * sizeof(float);
}

static cz_status backward(struct ops *ops, const struct norm_args *a, const char *op, bool centred)
{
    TRY(norm_backward_check(a, op, centred, host_norm_workspace(NULL, a)));
    const bool want_grads = a->dweight || a->dbias;
    const int64_t n_blocks = ops_n_blocks(a->N), block_rows = ops_block_rows(a->N);
    const int64_t C = a->C, stride = sums_stride(C);
    float *partial = a->workspace;
    int n_parts = ops_n_parts((size_t)(a->N * C), OPS_GRAIN);
#pragma omp parallel for schedule(static) if (n_parts > 1)
    for (int64_t block = 0; block < n_blocks; block++) {
        int64_t begin = block * block_rows;
        int64_t end = begin + block_rows < a->N ? begin + block_rows : a->N;
        float *dweight = want_grads ? partial + 2 * block * stride : NULL;
        float *dbias = want_grads && centred ? dweight + stride : NULL;
        ops->norm_row->backward(a, centred, begin, end, dweight, dbias);
    }
    if (a->dweight)
        ops_combine_blocks(partial, n_blocks, 2 * stride, C, a->grad_dtype, a->dweight_accumulate,
                           a->dweight);
    if (a->dbias)
        ops_combine_blocks(partial + stride, n_blocks, 2 * stride, C, a->grad_dtype,
                           a->dbias_accumulate, a->dbias);
    return CZ_OK;
}

static cz_status layernorm_backward(struct ops *ops, struct dev_stream *stream,
                                    const struct norm_args *a)
{
    (void)stream;
    TRY(backward(ops, a, "layernorm_backward", true));
    return CZ_OK;
}

static cz_status rmsnorm_backward(struct ops *ops, struct dev_stream *stream,
                                  const struct norm_args *a)
{
    (void)stream;
    TRY(backward(ops, a, "rmsnorm_backward", false));
    return CZ_OK;
}

size_t ops_norm_workspace(const struct ops *ops, const struct norm_args *a)
{
    return ops->norm_workspace ? ops->norm_workspace(ops, a) : 0;
}

cz_status norm_wire(struct ops *ops, uint32_t features)
{
    ops->norm_row = rows[ops_row_pick(rows, CZ_ARRAY_LEN(rows), features)];
    ops->layernorm_forward = layernorm_forward;
    ops->layernorm_backward = layernorm_backward;
    ops->rmsnorm_forward = rmsnorm_forward;
    ops->rmsnorm_backward = rmsnorm_backward;
    ops->norm_workspace = host_norm_workspace;
    return CZ_OK;
}
