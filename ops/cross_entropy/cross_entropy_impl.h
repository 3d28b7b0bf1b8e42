/* What a row of the cross-entropy provides: softmax over one row of logits.
 *
 * cross_entropy.c        the plain form, rows, what both forms share
 * cross_entropy_head.c   the form that is fused with the projection */
#ifndef CZ_OPS_CROSS_ENTROPY_CROSS_ENTROPY_IMPL_H
#define CZ_OPS_CROSS_ENTROPY_CROSS_ENTROPY_IMPL_H

#include "base/batch.h"
#include "ops/cross_entropy/cross_entropy.h"
#include "ops/ops_impl.h"

struct cross_entropy_row {
    struct ops_row row;
    /* log Σ exp(z[v]) over V ≥ 1 logits. NaN or +infinity among them gives NaN. */
    float (*log_sum_exp)(const float *z, size_t V);
    /* dz[v] = scale·exp(z[v] − lse)·(1 − (z[v]/softcap)²) for v < V, rounded to dtype; without the
     * last factor where softcap is 0. dz may start where z does, also for a narrower dtype: element
     * v is read before it is overwritten. */
    void (*softmax_grad)(const float *z, size_t V, float lse, float scale, float softcap,
                         enum cz_dtype dtype, void *dz);
    /* z[v] = softcap·tanh(z[v]/softcap) for v < V; softcap > 0. */
    void (*cap)(float *z, size_t V, float softcap);
};

extern const struct cross_entropy_row cross_entropy_scalar, cross_entropy_avx2,
    cross_entropy_avx512;

/* The table, slowest first. */
const struct cross_entropy_row *const *cross_entropy_rows(size_t *n);

/* What the sum of losses is divided by: `divisor`, or Σω in row order over rows that count when
 * that is 0; 0 when no row counts, or signed weights add up to 0. */
double cross_entropy_divisor(const int32_t *labels, const float *weights, int64_t N, float divisor);

CZ_EXTERN_C_BEGIN

/* Shared by the entry points of the host and of a GPU; labels are not read. */
cz_status cross_entropy_check(const struct cross_entropy_args *a);

CZ_EXTERN_C_END

/* CZ_INVALID when a label is neither in [0, V) nor CZ_IGNORE_LABEL. */
cz_status cross_entropy_check_labels(const char *op, const int32_t *labels, int64_t N, int64_t V);

/* The slots ce_head and ce_head_workspace. */
cz_status cross_entropy_head(struct ops *ops, struct dev_stream *stream,
                             const struct ce_head_args *a);
cz_status cross_entropy_head_workspace(struct ops *ops, const struct ce_head_args *a,
                                       size_t *nbytes);

#endif
