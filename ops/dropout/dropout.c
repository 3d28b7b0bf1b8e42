/* Dropout on the host: threads, choice of row. A draw depends on key and element alone, so backward
 * makes the same mask again instead of storing it. */
#include "ops/dropout/dropout_impl.h"
#include "ops/table_impl.h"

static const struct dropout_row *const rows[] = {
    &dropout_scalar,
    &dropout_avx2,
    &dropout_avx512,
};

const struct dropout_row *const *dropout_rows(size_t *n)
{
    *n = CZ_ARRAY_LEN(rows);
    return rows;
}

#define DROPOUT_GRAIN ((size_t)2048)

static cz_status dropout(struct ops *ops, struct dev_stream *stream, const struct dropout_args *a)
{
    (void)stream;
    TRY(dropout_check(a));
    OPS_IN_PARTS(ops_n_parts(a->numel, DROPOUT_GRAIN), a->numel, OPS_PART_UNIT,
                 ops->dropout_row->dropout(a, begin, end));
    return CZ_OK;
}

cz_status dropout_wire(struct ops *ops, uint32_t features)
{
    ops->dropout_row = rows[ops_row_pick(rows, CZ_ARRAY_LEN(rows), features)];
    ops->dropout = dropout;
    return CZ_OK;
}
