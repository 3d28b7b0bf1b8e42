/* What a row of the norms provides. `centred` tells layernorm (true) from rmsnorm. */
#ifndef CZ_OPS_NORM_NORM_IMPL_H
#define CZ_OPS_NORM_NORM_IMPL_H

#include "ops/ops_impl.h"

struct norm_row {
    struct ops_row row;
    /* Rows [begin, end). */
    void (*forward)(const struct norm_args *a, bool centred, int64_t begin, int64_t end);
    /* The same; dweight and dbias (C, fp32) receive the sums over these rows, in row order. NULL:
     * not wanted (both, or dbias alone when not centred). */
    void (*backward)(const struct norm_args *a, bool centred, int64_t begin, int64_t end,
                     float *dweight, float *dbias);
};

extern const struct norm_row norm_scalar, norm_avx2, norm_avx512;

/* The table, slowest first. */
const struct norm_row *const *norm_rows(size_t *n);

#endif
