/* What a row of the norms provides. `centred` tells layernorm (true) from rmsnorm. */
#ifndef CZ_OPS_NORM_NORM_IMPL_H
#define CZ_OPS_NORM_NORM_IMPL_H

#include "ops/norm/norm.h"
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

CZ_EXTERN_C_BEGIN

/* Shared by the entry points of the host and of a GPU. workspace_nbytes: what the call needs there.
 */
cz_status norm_forward_check(const struct norm_args *a, const char *op, bool centred);
cz_status norm_backward_check(const struct norm_args *a, const char *op, bool centred,
                              size_t workspace_nbytes);

CZ_EXTERN_C_END

/* The table, slowest first. */
const struct norm_row *const *norm_rows(size_t *n);

#endif
