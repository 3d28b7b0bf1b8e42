/* What the entry points of matmul, the host's and the CUDA twin's, share. */
#ifndef CZ_OPS_MATMUL_MATMUL_COMMON_IMPL_H
#define CZ_OPS_MATMUL_MATMUL_COMMON_IMPL_H

#include "ops/matmul/matmul.h"
#include "ops/ops.h"

CZ_EXTERN_C_BEGIN

/* CZ_INVALID with a sentence. The shape alone, as a plan knows it; matmul_check(): all of it. */
cz_status matmul_check_shape(const struct matmul_args *a);
cz_status matmul_check(const struct matmul_args *a);

/* What comes along, as passes of its own behind a product that went to matmul_product_c(). */
void *matmul_product_c(const struct matmul_args *a);
cz_status matmul_act_pass(struct ops *ops, struct dev_stream *stream, const struct matmul_args *a);
cz_status matmul_bias_grad_pass(struct ops *ops, struct dev_stream *stream,
                                const struct matmul_args *a);
size_t matmul_bias_grad_workspace(const struct ops *ops, const struct matmul_args *a);

/* Elements from row to row as stored; the dense width where lda, ldb, ldc say 0. */
static inline int64_t matmul_lda(const struct matmul_args *a)
{
    return a->lda ? a->lda : a->trans_a ? a->m : a->k;
}
static inline int64_t matmul_ldb(const struct matmul_args *a)
{
    return a->ldb ? a->ldb : a->trans_b ? a->k : a->n;
}
static inline int64_t matmul_ldc(const struct matmul_args *a)
{
    return a->ldc ? a->ldc : a->n;
}

/* A matrix of one row has no row distance. */
static inline bool matmul_is_dense(int64_t ld, int64_t width, int64_t n_rows)
{
    return ld == width || n_rows == 1;
}

CZ_EXTERN_C_END
#endif
