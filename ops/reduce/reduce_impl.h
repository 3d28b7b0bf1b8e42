/* What a row of the reductions provides. */
#ifndef CZ_OPS_REDUCE_REDUCE_IMPL_H
#define CZ_OPS_REDUCE_REDUCE_IMPL_H

#include "ops/ops_impl.h"
#include "ops/reduce/reduce.h"

/* The two roundings of a square: to a multiple of `coarse` = 2⁴¹u, the rest to a multiple of u.
 * Both counts fit in 40 bits and a sign, so 2²² of them add up in an int64. */
struct sumsq_grid {
    double coarse, fine;
};
#define SUMSQ_COARSE_BITS 41

CZ_EXTERN_C_BEGIN

cz_status reduce_check_scan(const struct scan_args *a);
cz_status reduce_check_sumsq(const struct sumsq_args *a);

/* log2 of P: the power of four above max_abs², for max_abs > 0; and the grid that follows. */
int reduce_square_exponent(float max_abs);
struct sumsq_grid reduce_grid(float max_abs);

CZ_EXTERN_C_END

struct reduce_row {
    struct ops_row row;
    /* Over [begin, end); first_nonfinite is an index into x. */
    void (*scan)(const struct scan_args *a, size_t begin, size_t end, struct scan_result *out);
    /* Σ over [begin, end) of the squares in units of grid->fine */
    __int128 (*sumsq)(const struct sumsq_args *a, const struct sumsq_grid *grid, size_t begin,
                      size_t end);
};

extern const struct reduce_row reduce_scalar, reduce_avx2, reduce_avx512;

/* The table, slowest first. */
const struct reduce_row *const *reduce_rows(size_t *n);

#endif
