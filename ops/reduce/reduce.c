/* Scan and sum of squares on the host: checks, threads, choice of row, and the number that comes
 * out. The sum of squares is exact in fixed point on a grid that the largest element decides, so
 * that it is the same for any order and any cut over threads and ranks: the norm of gradients
 * decides about clipping, and ranks must agree to the bit. */
#include "ops/reduce/reduce_impl.h"
#include "ops/table_impl.h"

#include <math.h>

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
        found[part] = (struct scan_result){.finite = true};
        ops->reduce_row->scan(a, begin, end, &found[part]);
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

static cz_status sumsq(struct ops *ops, struct dev_stream *stream, const struct sumsq_args *a)
{
    (void)stream;
    TRY(reduce_check_sumsq(a));
    if (a->max_abs == 0 || a->numel == 0) return CZ_OK; /* nothing but zeros */
    const struct sumsq_grid grid = reduce_grid(a->max_abs);
    __int128 found[N_PARTS_MAX];
    int n_parts = n_parts_of(a->numel);
#pragma omp parallel for schedule(static, 1) if (n_parts > 1)
    for (int part = 0; part < n_parts; part++) {
        size_t begin, end;
        threads_split(a->numel, OPS_PART_UNIT, n_parts, part, &begin, &end);
        found[part] = ops->reduce_row->sumsq(a, &grid, begin, end);
    }
    unsigned __int128 total = 0;
    for (int part = 0; part < n_parts; part++) total += (unsigned __int128)found[part];
    for (int i = 0; i < SUMSQ_PARTS; i++) a->parts[i] += (double)(uint32_t)(total >> (32 * i));
    return CZ_OK;
}

double ops_sumsq_value(const double parts[SUMSQ_PARTS], float max_abs)
{
    if (max_abs == 0) return 0;
    /* Carry first: the limbs of a sum are unique, however it was put together. */
    uint64_t limbs[SUMSQ_PARTS + 1], carry = 0;
    for (int i = 0; i < SUMSQ_PARTS; i++) {
        uint64_t limb = (uint64_t)parts[i] + carry;
        limbs[i] = limb & 0xffffffffu;
        carry = limb >> 32;
    }
    limbs[SUMSQ_PARTS] = carry;
    double value = 0;
    for (int i = 0; i <= SUMSQ_PARTS; i++) /* smallest first */
        value += ldexp((double)limbs[i], 32 * i);
    return ldexp(value, reduce_square_exponent(max_abs) - 81);
}

cz_status ops_scan(struct ops *ops, struct dev_stream *stream, const struct scan_args *a)
{
    return ops->scan ? ops->scan(ops, stream, a) : ops_missing(ops, "scan");
}

cz_status ops_sumsq(struct ops *ops, struct dev_stream *stream, const struct sumsq_args *a)
{
    return ops->sumsq ? ops->sumsq(ops, stream, a) : ops_missing(ops, "sumsq");
}

cz_status reduce_wire(struct ops *ops, uint32_t features)
{
    ops->reduce_row = rows[ops_row_pick(rows, CZ_ARRAY_LEN(rows), features)];
    ops->scan = scan;
    ops->sumsq = sumsq;
    return CZ_OK;
}
