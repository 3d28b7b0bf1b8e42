/* The scan on the host: checks, threads, choice of row. Its sum of squares is exact, so that it is
 * the same for any order and any cut over threads and ranks: the norm of gradients decides about
 * clipping, and ranks must agree to the bit. */
#include "ops/reduce/reduce_impl.h"
#include "ops/table_impl.h"

static const struct reduce_row *const rows[] = {
    &reduce_scalar,
    &reduce_avx2,
    &reduce_avx512,
};

const struct reduce_row *const *reduce_rows(size_t *n)
{
    *n = CZ_ARRAY_LEN(rows);
    return rows;
}

enum { N_PARTS_MAX = 512 };

static int n_parts_of(size_t numel)
{
    int n_parts = ops_n_parts(numel, 2 * OPS_GRAIN);
    return n_parts < N_PARTS_MAX ? n_parts : N_PARTS_MAX;
}

static void scan_part(const struct reduce_row *row, const struct scan_args *a, size_t begin,
                      size_t end, struct scan_result *found)
{
    struct squares_sum sum = {0};
    *found = (struct scan_result){.finite = true};
    if (!a->squares) {
        row->scan(a, begin, end, found);
        return;
    }
    row->squares(a, begin, end, found, &sum);
#pragma omp critical(scan_squares)
    squares_carry(a->squares, &sum);
}

static cz_status scan(struct ops *ops, struct dev_stream *stream, const struct scan_args *a)
{
    (void)stream;
    TRY(reduce_check_scan(a));
    struct scan_result found[N_PARTS_MAX];
    int n_parts = n_parts_of(a->numel);
#pragma omp parallel for schedule(static, 1) if (n_parts > 1)
    for (int part = 0; part < n_parts; part++) {
        size_t begin, end;
        threads_split(a->numel, OPS_PART_UNIT, n_parts, part, &begin, &end);
        scan_part(ops->reduce_row, a, begin, end, &found[part]);
    }
    for (int part = 1; part < n_parts; part++) {
        /* Pieces are joined in order, so the first non-finite element is the first of all. */
        if (found[part].max_abs > found[0].max_abs) found[0].max_abs = found[part].max_abs;
        if (found[0].finite && !found[part].finite)
            found[0].first_nonfinite = found[part].first_nonfinite;
        found[0].finite = found[0].finite && found[part].finite;
    }
    *a->result = found[0];
    return CZ_OK;
}

cz_status reduce_wire(struct ops *ops, uint32_t features)
{
    ops->reduce_row = rows[ops_row_pick(rows, CZ_ARRAY_LEN(rows), features)];
    ops->scan = scan;
    return CZ_OK;
}
