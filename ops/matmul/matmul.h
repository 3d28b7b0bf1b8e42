/* Matrix product: C (m,n) = op(A) (m,k) · op(B) (k,n) [+ bias] [+ residual] [+ C].
 *
 * The three orientations of training, with x (N,I), w as the model stores it and dy (N,O):
 *   forward  y  = x·w            w (I,O): plain;  w (O,I): trans_b
 *   dgrad    dx = dy·wᵀ          w (I,O): trans_b;  w (O,I): plain
 *   wgrad    dw = xᵀ·dy          trans_a (w (I,O));  dw (O,I) = dyᵀ·x: trans_a
 * Sums over k are in fp32 whatever the dtype (of fp32 operands rounded to TF32 where
 * ops->allow_tf32 says so, on a GPU); C is rounded once. Agreement between rows is to a tolerance
 * (the order of summation differs); calls repeat to the bit with as many threads. Any size may be 0
 * (k = 0: C is the bias, or 0, or stays). Dense matrices are fastest: others, and fp16 (bf16 too
 * where the CPU does not gain by it), are copied block by block to the workspace. A workspace for
 * some m serves smaller ones, and with trans_a one for some k smaller ones. Native bf16 products
 * take denormals as 0.
 *
 * Passes over C or an operand that would follow the product may come along with it: an activation,
 * its gradient, a bias' gradient. Where a device's products can, they do so in one pass, C being
 * activated before it is rounded; elsewhere, on the host always, the passes run one after another:
 * the same bits as matmul, activation_forward or activation_backward, and bias_grad called in turn.
 */
#ifndef CZ_OPS_MATMUL_MATMUL_H
#define CZ_OPS_MATMUL_MATMUL_H

#include "base/dtype.h"
#include "base/status.h"
#include "ops/activation/activation.h"

CZ_EXTERN_C_BEGIN

struct ops;
struct dev_stream;

/* With P = op(A)·op(B) [+ bias]. C and aux are dense, of `dtype`, and not one memory; nothing is
 * accumulated. */
enum matmul_epilogue {
    MATMUL_PLAIN = 0, /* C = P [+ C] */
    MATMUL_ACT,       /* C = act(P); aux (m,n) = P, unless NULL */
    MATMUL_ACT_GRAD,  /* C = P·act'(aux), aux (m,n) as MATMUL_ACT left it */
};

/* Which operand of a weight's gradient is dy (k,·), whose column sums are the bias' gradient. */
enum matmul_bias_grad {
    MATMUL_NO_BIAS_GRAD = 0,
    MATMUL_BIAS_GRAD_OF_A, /* bias_grad (m) [+]= Σ over k of A: trans_a, dense */
    MATMUL_BIAS_GRAD_OF_B, /* bias_grad (n) [+]= Σ over k of B: not trans_b, dense */
};

struct matmul_args {
    int64_t m, n, k;
    enum cz_dtype dtype;   /* of A, B and bias: F32, BF16 or F16 */
    enum cz_dtype c_dtype; /* of C: `dtype`, or F32 (fp32 gradients and logits of a 16-bit model) */
    bool trans_a;          /* A is stored (k,m) */
    bool trans_b;          /* B is stored (n,k) */
    bool accumulate;       /* add to C instead of overwriting it; not together with bias */
    bool b_stays;          /* B is what it is from one ops_matmul_keep() to the next */
    int64_t lda, ldb, ldc; /* elements from row to row as stored; 0: dense */
    const void *a, *b;
    const void *bias;     /* (n), or NULL */
    const void *residual; /* (m,n), dense as C, of `dtype` as C; may be C. NULL: none. Only where
                             ops_adds_residual(), without epilogue or accumulation */
    void *c;
    enum matmul_epilogue epilogue;
    enum activation act; /* of the epilogue */
    void *aux;
    enum matmul_bias_grad bias_grad_of;
    void *bias_grad; /* c_dtype: fp32 sums, rounded once */
    bool bias_grad_accumulate;
    void *workspace; /* ops_matmul_workspace() bytes, or NULL when that is 0 */
    size_t workspace_nbytes;
};

/* Queue the call on the stream: ops/ops.h says what holds for all calls. */
cz_status ops_matmul(struct ops *ops, struct dev_stream *stream, const struct matmul_args *a);

/* Whether a product of a new shape takes time and memory of its own. Callers whose number of rows
 * (m, or k with trans_a) differs from call to call then fill them up with zeros to one of few
 * sizes. */
bool ops_matmul_is_by_shape(const struct ops *ops, enum cz_dtype dtype);

/* The size for m rows: m itself up to MATMUL_ROWS_EXACT, else a multiple of 16 or more, at most m/8
 * or 15 larger. */
#define MATMUL_ROWS_EXACT 4
static inline int64_t matmul_rows_filled(int64_t m)
{
    int64_t step = 16;
    if (m <= MATMUL_ROWS_EXACT) return m;
    while (step * 16 <= m) step *= 2;
    return (m + step - 1) / step * step;
}

/* The host's bf16 products read B in an order of their own, which every call makes anew. What has
 * `b_stays` may be kept in that order in `memory` (64-byte aligned), as long as there is space, and
 * later products with the same B find it there: the same bits, sooner. Forgets what was kept
 * before. NULL, 0: nothing is kept, as at first. Without effect where nothing can be. */
#define OPS_MATMUL_KEPT_MAX 64 /* Bs; the others are not kept */
void ops_matmul_keep(struct ops *ops, void *memory, size_t nbytes);

/* Bytes that a B of k rows and n columns takes there; 0: it is not kept. */
size_t ops_matmul_kept_nbytes(const struct ops *ops, enum cz_dtype dtype, int64_t n, int64_t k);

/* Bytes of workspace that a call of these shapes needs: ops/ops.h. */
cz_status ops_matmul_workspace(struct ops *ops, const struct matmul_args *a, size_t *nbytes);

CZ_EXTERN_C_END
#endif
