/* DoRA's ops on the host: checks, and threads over the output channels, so that every sum is one
 * thread's. */
#include "ops/dora/dora_impl.h"
#include "ops/table_impl.h"

static const struct dora_row *const rows[] = {&dora_scalar};

const struct dora_row *const *dora_rows(size_t *n)
{
    *n = CZ_ARRAY_LEN(rows);
    return rows;
}

/* A part of the channels is worth a thread when it has work for one. */
static int parts_of(int64_t O, int64_t each)
{
    return ops_n_parts((size_t)(O * each), OPS_GRAIN);
}

static cz_status check_dtypes(enum cz_dtype dtype, enum cz_dtype x_dtype, enum cz_dtype y_dtype)
{
    TRY(ops_check_dtype("dora", dtype));
    TRY(ops_check_dtype("dora", x_dtype));
    return ops_check_dtype("dora", y_dtype);
}

static cz_status norm(struct ops *ops, struct dev_stream *stream, const struct dora_norm_args *a)
{
    (void)stream;
    TRY(ops_check_dtype("dora", a->dtype));
    OPS_IN_PARTS(parts_of(a->O, a->I), (size_t)a->O, OPS_PART_UNIT,
                 ops->dora_row->norm(a, (int64_t)begin, (int64_t)end));
    return CZ_OK;
}

static cz_status scale(struct ops *ops, struct dev_stream *stream, const struct dora_scale_args *a)
{
    (void)stream;
    TRY(check_dtypes(a->dtype, a->x_dtype, a->y_dtype));
    OPS_IN_PARTS(parts_of(a->O, a->I), (size_t)a->O, OPS_PART_UNIT,
                 ops->dora_row->scale(a, (int64_t)begin, (int64_t)end));
    return CZ_OK;
}

static cz_status grad(struct ops *ops, struct dev_stream *stream, const struct dora_grad_args *a)
{
    (void)stream;
    TRY(check_dtypes(a->dtype, a->dtype, a->grad_dtype));
    OPS_IN_PARTS(parts_of(a->O, a->N), (size_t)a->O, OPS_PART_UNIT,
                 ops->dora_row->grad(a, (int64_t)begin, (int64_t)end));
    return CZ_OK;
}

cz_status dora_wire(struct ops *ops, uint32_t features)
{
    ops->dora_row = rows[ops_row_pick(rows, CZ_ARRAY_LEN(rows), features)];
    ops->dora_norm = norm;
    ops->dora_scale = scale;
    ops->dora_grad = grad;
    return CZ_OK;
}
