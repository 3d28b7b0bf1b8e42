/* Matrix product: C (m,n) = op(A) (m,k) · op(B) (k,n) [+ bias] [+ C].
 *
 * The three orientations of training, with x (N,I), w as the model stores it and dy (N,O):
 *   forward  y  = x·w            w (I,O): plain;  w (O,I): trans_b
 *   dgrad    dx = dy·wᵀ          w (I,O): trans_b;  w (O,I): plain
 *   wgrad    dw = xᵀ·dy          trans_a (w (I,O));  dw (O,I) = dyᵀ·x: trans_a
 * Sums over k are in fp32 whatever the dtype; C is rounded once. Agreement between rows is to a
 * tolerance (the order of summation differs); calls repeat to the bit with as many threads.
 * Any size may be 0 (k = 0: C is the bias, or 0, or stays). Dense matrices are fastest: others, and
 * fp16 (bf16 too where the CPU does not gain by it), are copied block by block to the workspace. A
 * workspace for some m serves smaller ones, and with trans_a one for some k smaller ones. Native
 * bf16 products take denormals as 0. */
#ifndef CZ_OPS_MATMUL_MATMUL_H
#define CZ_OPS_MATMUL_MATMUL_H

#include "base/dtype.h"
#include "base/status.h"

CZ_EXTERN_C_BEGIN

struct matmul_args {
    int64_t m, n, k;
    enum dtype dtype;      /* of A, B and bias: F32, BF16 or F16 */
    enum dtype c_dtype;    /* of C: `dtype`, or F32 (fp32 gradients and logits of a 16-bit model) */
    bool trans_a;          /* A is stored (k,m) */
    bool trans_b;          /* B is stored (n,k) */
    bool accumulate;       /* add to C instead of overwriting it; not together with bias */
    int64_t lda, ldb, ldc; /* elements from row to row as stored; 0: dense */
    const void *a, *b;
    const void *bias; /* (n), or NULL */
    void *c;
    void *workspace; /* ops_matmul_workspace() bytes, or NULL when that is 0 */
    size_t workspace_nbytes;
};

CZ_EXTERN_C_END
#endif
