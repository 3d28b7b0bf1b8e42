/* Adam on the host: checks, threads, choice of row. Every element is updated by itself, so rows,
 * threads and ranks agree to the bit. */
#include "ops/adam/adam_impl.h"
#include "ops/table_impl.h"

static const struct adam_row *const rows[] = {&adam_scalar, &adam_avx2, &adam_avx512};

const struct adam_row *const *adam_rows(size_t *n)
{
    *n = CZ_ARRAY_LEN(rows);
    return rows;
}

static cz_status adam(struct ops *ops, struct dev_stream *stream, const struct adam_args *a)
{
    (void)stream;
    TRY(step_check("adam", &a->t, 2, a->scalars));
    int n_parts = ops_n_parts(a->t.numel, STEP_GRAIN);
#pragma omp parallel for schedule(static, 1) if (n_parts > 1)
    for (int part = 0; part < n_parts; part++) {
        size_t begin, end;
        threads_split(a->t.numel, OPS_PART_UNIT, n_parts, part, &begin, &end);
        ops->adam_row->step(a, begin, end);
    }
    return CZ_OK;
}

cz_status ops_adam(struct ops *ops, struct dev_stream *stream, const struct adam_args *a)
{
    return ops->adam ? ops->adam(ops, stream, a) : ops_missing(ops, "adam");
}

cz_status adam_wire(struct ops *ops, uint32_t features)
{
    ops->adam_row = rows[ops_row_pick(rows, CZ_ARRAY_LEN(rows), features)];
    ops->adam = adam;
    return CZ_OK;
}
