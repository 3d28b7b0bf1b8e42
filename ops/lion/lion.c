/* Lion on the host: checks, threads, choice of row. Every element is updated by itself. */
#include "ops/lion/lion_impl.h"
#include "ops/table_impl.h"

static const struct lion_row *const rows[] = {&lion_scalar, &lion_avx2, &lion_avx512};

const struct lion_row *const *lion_rows(size_t *n)
{
    *n = CZ_ARRAY_LEN(rows);
    return rows;
}

static cz_status lion(struct ops *ops, struct dev_stream *stream, const struct lion_args *a)
{
    (void)stream;
    TRY(step_check("lion", &a->t, 1, a->scalars));
    int n_parts = ops_n_parts(a->t.numel, STEP_GRAIN);
#pragma omp parallel for schedule(static, 1) if (n_parts > 1)
    for (int part = 0; part < n_parts; part++) {
        size_t begin, end;
        threads_split(a->t.numel, OPS_PART_UNIT, n_parts, part, &begin, &end);
        ops->lion_row->step(a, begin, end);
    }
    return CZ_OK;
}

cz_status ops_lion(struct ops *ops, struct dev_stream *stream, const struct lion_args *a)
{
    return ops->lion ? ops->lion(ops, stream, a) : ops_missing(ops, "lion");
}

cz_status lion_wire(struct ops *ops, uint32_t features)
{
    ops->lion_row = rows[ops_row_pick(rows, CZ_ARRAY_LEN(rows), features)];
    ops->lion = lion;
    return CZ_OK;
}
