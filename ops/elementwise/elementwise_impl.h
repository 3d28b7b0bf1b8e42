/* What a row of the element-wise ops provides. */
#ifndef CZ_OPS_ELEMENTWISE_ELEMENTWISE_IMPL_H
#define CZ_OPS_ELEMENTWISE_ELEMENTWISE_IMPL_H

#include "ops/elementwise/elementwise.h"
#include "ops/ops_impl.h"

struct elementwise_row {
    struct ops_row row;
    void (*add)(const struct add_args *a, size_t begin, size_t end);
    void (*cast_scale)(const struct cast_scale_args *a, size_t begin, size_t end);
    /* sums[c] = Σ dy[n][c] over rows [row_begin, row_end) in order, for columns [begin, end) */
    void (*column_sums)(const struct bias_grad_args *a, int64_t row_begin, int64_t row_end,
                        float *sums, size_t begin, size_t end);
};

extern const struct elementwise_row elementwise_scalar, elementwise_avx2, elementwise_avx512;

CZ_EXTERN_C_BEGIN

/* Shared by the entry points of the host and of a GPU. */
cz_status add_check(const struct add_args *a);
cz_status cast_scale_check(const struct cast_scale_args *a);
cz_status bias_grad_check(const struct bias_grad_args *a);
size_t bias_grad_nbytes(const struct bias_grad_args *a); /* of workspace */

static inline bool cast_scale_is_copy(const struct cast_scale_args *a)
{
    return a->alpha == 1.0f && a->x_dtype == a->y_dtype;
}

CZ_EXTERN_C_END

/* The table, slowest first. */
const struct elementwise_row *const *elementwise_rows(size_t *n);

#endif
