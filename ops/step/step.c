/* Element-wise steps on the host: checks, threads, choice of row. Every element is updated by
 * itself, so rows, threads and ranks agree to the bit. */
#include "ops/step/step_impl.h"
#include "ops/table_impl.h"

static const struct step_row *const rows[] = {&step_scalar, &step_avx2, &step_avx512};

const struct step_row *const *step_rows(size_t *n)
{
    *n = CZ_ARRAY_LEN(rows);
    return rows;
}

static cz_status step(struct ops *ops, struct dev_stream *stream, const struct step_args *given)
{
    struct step_args a;
    (void)stream;
    TRY(step_prepare(given, &a));
    OPS_IN_PARTS(ops_n_parts(a.t.numel, STEP_GRAIN), a.t.numel, OPS_PART_UNIT,
                 ops->step_row->run[a.op](&a, begin, end));
    return CZ_OK;
}

cz_status step_wire(struct ops *ops, uint32_t features)
{
    ops->step_row = rows[ops_row_pick(rows, CZ_ARRAY_LEN(rows), features)];
    ops->step = step;
    return CZ_OK;
}
