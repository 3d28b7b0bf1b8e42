/* What a row of the cross-entropy provides: softmax over one row of logits. */
#ifndef CZ_OPS_CROSS_ENTROPY_CROSS_ENTROPY_IMPL_H
#define CZ_OPS_CROSS_ENTROPY_CROSS_ENTROPY_IMPL_H

#include "ops/ops_impl.h"

struct cross_entropy_row {
    struct ops_row row;
    /* log Σ exp(z[v]) over V ≥ 1 logits. NaN or +infinity among them gives NaN. */
    float (*log_sum_exp)(const float *z, size_t V);
    /* dz[v] = scale·exp(z[v] − lse) for v < V, rounded to dtype. dz may start where z does, also
     * for a narrower dtype: element v is read before it is overwritten. */
    void (*softmax_grad)(const float *z, size_t V, float lse, float scale, enum dtype dtype,
                         void *dz);
};

extern const struct cross_entropy_row cross_entropy_scalar, cross_entropy_avx2,
    cross_entropy_avx512;

/* The table, slowest first. */
const struct cross_entropy_row *const *cross_entropy_rows(size_t *n);

#endif
