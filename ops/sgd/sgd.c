/* SGD on the host: checks, threads, choice of row. Every element is updated by itself. */
#include "ops/sgd/sgd_impl.h"
#include "ops/table_impl.h"

static const struct sgd_row *const rows[] = {&sgd_scalar, &sgd_avx2, &sgd_avx512};

const struct sgd_row *const *sgd_rows(size_t *n)
{
    *n = CZ_ARRAY_LEN(rows);
    return rows;
}

static cz_status sgd(struct ops *ops, struct dev_stream *stream, const struct sgd_args *a)
{
    (void)stream;
    TRY(step_check("sgd", &a->t, a->momentum != 0, a->scalars));
    int n_parts = ops_n_parts(a->t.numel, STEP_GRAIN);
#pragma omp parallel for schedule(static, 1) if (n_parts > 1)
    for (int part = 0; part < n_parts; part++) {
        size_t begin, end;
        threads_split(a->t.numel, OPS_PART_UNIT, n_parts, part, &begin, &end);
        ops->sgd_row->step(a, begin, end);
    }
    return CZ_OK;
}

cz_status ops_sgd(struct ops *ops, struct dev_stream *stream, const struct sgd_args *a)
{
    return ops->sgd ? ops->sgd(ops, stream, a) : ops_missing(ops, "sgd");
}

cz_status sgd_wire(struct ops *ops, uint32_t features)
{
    ops->sgd_row = rows[ops_row_pick(rows, CZ_ARRAY_LEN(rows), features)];
    ops->sgd = sgd;
    return CZ_OK;
}
