/* Adagrad on the host: checks, threads, choice of row. Every element is updated by itself. */
#include "ops/adagrad/adagrad_impl.h"
#include "ops/table_impl.h"

static const struct adagrad_row *const rows[] = {&adagrad_scalar, &adagrad_avx2, &adagrad_avx512};

const struct adagrad_row *const *adagrad_rows(size_t *n)
{
    *n = CZ_ARRAY_LEN(rows);
    return rows;
}

static cz_status adagrad(struct ops *ops, struct dev_stream *stream, const struct adagrad_args *a)
{
    (void)stream;
    TRY(step_check("adagrad", &a->t, 1, a->scalars));
    int n_parts = ops_n_parts(a->t.numel, STEP_GRAIN);
#pragma omp parallel for schedule(static, 1) if (n_parts > 1)
    for (int part = 0; part < n_parts; part++) {
        size_t begin, end;
        threads_split(a->t.numel, OPS_PART_UNIT, n_parts, part, &begin, &end);
        ops->adagrad_row->step(a, begin, end);
    }
    return CZ_OK;
}

cz_status ops_adagrad(struct ops *ops, struct dev_stream *stream, const struct adagrad_args *a)
{
    return ops->adagrad ? ops->adagrad(ops, stream, a) : ops_missing(ops, "adagrad");
}

cz_status adagrad_wire(struct ops *ops, uint32_t features)
{
    ops->adagrad_row = rows[ops_row_pick(rows, CZ_ARRAY_LEN(rows), features)];
    ops->adagrad = adagrad;
    return CZ_OK;
}
