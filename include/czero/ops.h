/* Ops: the numeric kernels that layers call, on whatever device the layer runs.
 *
 * The engine passes a struct cz_ops to every function of a layer (czero/layer.h): the kernels of
 * the layer's device, bound to the stream of the current pass.
 *
 * Arguments: every struct begins with `size`; set it to sizeof the struct, zero the rest, fill in
 * what you need. Sizes are in elements unless a name says nbytes. Matrices are row-major, (N,C)
 * means N rows of C elements. dtype is CZ_DTYPE_F32, BF16 or F16; arithmetic is in fp32, and each
 * result is rounded once. "[+]=" overwrites, or adds where the accumulate member says so.
 *
 * Memory: pointers are into memory of the layer's device, unless a comment says host. They need no
 * more alignment than their elements. Inputs and outputs must not overlap unless a comment allows
 * it. Nothing is allocated after the first call with a shape.
 *
 * Order: calls run in the order in which they are made. On a GPU a call returns before its work is
 * done; on the host it is done when the call returns.
 *
 * Workspace: a cz_…_workspace() function says how many bytes of scratch memory a call with these
 * sizes needs. Its args are those of the call; of pointers it matters only whether they are NULL,
 * and only where a comment says so. Call it in the layer's `sizes` function, for each call that the
 * layer will make, and request the maximum: successive calls may share one workspace.
 *
 * Errors: CZ_INVALID (the sentence names the argument), CZ_UNSUPPORTED (the device lacks the op, or
 * a member that this version does not know is set), CZ_NOMEM, CZ_CUDA. Layers pass them on.
 *
 * Threads: the thread that the engine called the layer in. Kernels use the engine's threads. */
#ifndef CZERO_OPS_H
#define CZERO_OPS_H

#include <czero/status.h>

CZ_EXTERN_C_BEGIN

struct cz_ops; /* opaque; valid until the layer's function returns */

/* True when the layer's device is the CPU, so that plain C code may read and write all memory. */
CZ_API bool cz_ops_on_host(const struct cz_ops *ops);

/* ---- random numbers -------------------------------------------------------------------------- */

#define CZ_RNG_SITES_PER_LAYER 16u

/* What a random number depends on, besides the index of its element: a pass that is repeated draws
 * the same numbers. The engine fills the key that a layer gets; a layer that draws more than once
 * adds another number from 0 to CZ_RNG_SITES_PER_LAYER - 1 to `site` for each draw. */
struct cz_rng_key {
    uint64_t seed;   /* the run's */
    uint32_t site;   /* the layer's first */
    uint32_t step;   /* the optimizer step */
    uint64_t sample; /* global index of the batch's first row */
};

/* Element idx of the draw: uniform in [0,1), a multiple of 2^-24. On the host, any thread. */
CZ_API float cz_rng_uniform(const struct cz_rng_key *key, uint64_t idx);

/* ---- memory ---------------------------------------------------------------------------------- */

/* Set nbytes bytes to zero. Errors: CZ_INVALID (dst is NULL), CZ_CUDA. */
CZ_API cz_status cz_fill_zero(const struct cz_ops *ops, void *dst, size_t nbytes);

/* Copy nbytes bytes; dst and src must not overlap. One of them may be in host memory, which must
 * stay valid, and a source unchanged, until the engine's call returns. Errors: CZ_INVALID (a
 * pointer is NULL), CZ_CUDA. */
CZ_API cz_status cz_copy(const struct cz_ops *ops, void *dst, const void *src, size_t nbytes);

/* ---- matrix product -------------------------------------------------------------------------- */

/* C (m,n) = op(A) (m,k) * op(B) (k,n) [+ bias] or, accumulating, [+ C], op being the identity or
 * the transpose. With x (N,I), dy (N,O) and a weight w the products of a linear map are
 *
 *                        w (I,O)                         w (O,I), as torch.nn.Linear stores it
 *   forward  y  = x*w    a = x, b = w                    a = x, b = w, trans_b
 *   dx = dy*w^T          a = dy, b = w, trans_b          a = dy, b = w
 *   dw                   a = x, b = dy, trans_a          a = dy, b = x, trans_a
 *
 * Sums over k are in fp32 (for fp32 operands on a GPU in TF32 where CZERO_TF32=1 is set); C is
 * rounded once. Any size may be 0: with k = 0, C is the bias, zero, or unchanged. The same call
 * with the same number of threads gives the same bits. */
struct cz_matmul_args {
    size_t size; /* sizeof(struct cz_matmul_args) */
    int64_t m, n, k;
    enum cz_dtype dtype;   /* of A, B and bias */
    enum cz_dtype c_dtype; /* of C: dtype, or F32 */
    bool trans_a;          /* A is stored as (k,m) */
    bool trans_b;          /* B is stored as (n,k) */
    bool accumulate;       /* C += …; not together with bias */
    int64_t lda, ldb, ldc; /* elements between rows as stored; 0: no gap */
    const void *a, *b;
    const void *bias; /* (n), or NULL */
    void *c;
    void *workspace; /* cz_matmul_workspace() bytes, or NULL when that is 0 */
    size_t workspace_nbytes;
};

CZ_API cz_status cz_matmul(const struct cz_ops *ops, const struct cz_matmul_args *args);

/* Also prepares the product, so that the first call allocates nothing. A workspace for some m
 * serves smaller ones, and with trans_a one for some k smaller ones. */
CZ_API cz_status cz_matmul_workspace(const struct cz_ops *ops, const struct cz_matmul_args *args,
                                     size_t *nbytes);

/* ---- normalization --------------------------------------------------------------------------- */

/* Over the last dimension of N rows of C columns, with an optional residual added first:
 *   s = x [+ residual]
 *   layer norm: mean = sum(s)/C, rstd = 1/sqrt(sum((s - mean)^2)/C + eps),
 *               y = (s - mean)*rstd*weight + bias        Ba et al., arXiv 1607.06450
 *   RMS norm:   rstd = 1/sqrt(sum(s^2)/C + eps),
 *               y = s*rstd*weight                        Zhang and Sennrich, arXiv 1910.07467
 * A 16-bit s is rounded before it is normalized, so that backward reads what forward used. No
 * result depends on the number of threads. */
struct cz_norm_args {
    size_t size; /* sizeof(struct cz_norm_args) */
    int64_t N, C;
    enum cz_dtype dtype; /* of x, residual, sum, weight, bias, y, dy, dx and dx_add */
    float eps;
    const void *x;        /* (N,C); backward: s */
    const void *residual; /* (N,C), or NULL */
    void *sum;            /* (N,C) receives s; needed with residual; may be x or residual */
    const void *weight;   /* (C) */
    const void *bias;     /* (C), or NULL; NULL for the RMS norm */
    void *y;              /* (N,C); may be x or sum */
    float *mean, *rstd; /* (N) fp32; written by forward unless NULL, read by backward; the RMS norm
                           has no mean */
    /* Backward: */
    const void *dy;           /* (N,C) */
    void *dx;                 /* (N,C) the gradient of s; may be dy or x */
    const void *dx_add;       /* (N,C) added to dx, or NULL; may be dx */
    enum cz_dtype grad_dtype; /* of dweight and dbias */
    void *dweight, *dbias;    /* (C) [+]=; NULL: not wanted */
    bool dweight_accumulate, dbias_accumulate;
    void *workspace; /* cz_norm_workspace() bytes; backward only */
    size_t workspace_nbytes;
};

CZ_API cz_status cz_layernorm_forward(const struct cz_ops *ops, const struct cz_norm_args *args);
CZ_API cz_status cz_layernorm_backward(const struct cz_ops *ops, const struct cz_norm_args *args);
CZ_API cz_status cz_rmsnorm_forward(const struct cz_ops *ops, const struct cz_norm_args *args);
CZ_API cz_status cz_rmsnorm_backward(const struct cz_ops *ops, const struct cz_norm_args *args);

/* Of both backward functions. */
CZ_API cz_status cz_norm_workspace(const struct cz_ops *ops, const struct cz_norm_args *args,
                                   size_t *nbytes);

/* ---- activations ----------------------------------------------------------------------------- */

enum cz_activation {
    CZ_ACTIVATION_GELU_TANH = 0, /* x/2*(1 + tanh(sqrt(2/pi)*(x + 0.044715 x^3))): "gelu_new" */
    CZ_ACTIVATION_GELU_ERF,      /* x/2*(1 + erf(x/sqrt(2))): "gelu"; Hendrycks and Gimpel,
                                    arXiv 1606.08415 */
    CZ_ACTIVATION_SILU,          /* x/(1 + exp(-x)) */
    CZ_ACTIVATION_RELU,
    CZ_ACTIVATION_TANH,
    CZ_ACTIVATION_QUICK_GELU, /* x/(1 + exp(-1.702 x)) */
    CZ_ACTIVATION_SIGMOID,
    CZ_ACTIVATION_MISH, /* x*tanh(ln(1 + exp(x))): Misra, arXiv 1908.08681 */
    CZ_ACTIVATION_RELU2 /* max(x, 0)^2: So et al., arXiv 2109.08668 */
};

/* forward: y = f(x); backward: dx = dy*f'(x). Element by element: a tensor may be cut anywhere. */
struct cz_activation_args {
    size_t size; /* sizeof(struct cz_activation_args) */
    enum cz_activation kind;
    enum cz_dtype dtype;
    size_t numel;
    const void *x;
    void *y; /* forward; may be x */
    const void *dy;
    void *dx; /* backward; may be dy or x */
};

CZ_API cz_status cz_activation_forward(const struct cz_ops *ops,
                                       const struct cz_activation_args *args);
CZ_API cz_status cz_activation_backward(const struct cz_ops *ops,
                                        const struct cz_activation_args *args);

/* SwiGLU, Shazeer, arXiv 2002.05202: y = silu(gate)*up, element by element over N rows of C. gate
 * and up may be columns of one matrix (N,stride). */
struct cz_swiglu_args {
    size_t size; /* sizeof(struct cz_swiglu_args) */
    enum cz_dtype dtype;
    int64_t N, C;
    int64_t stride; /* elements between rows of gate, up, dgate and dup; 0: C. y and dy: C */
    const void *gate, *up;
    void *y; /* (N,C) forward; may be gate or up when stride is C */
    const void *dy;
    void *dgate, *dup; /* backward, overwritten; may be gate and up */
};

CZ_API cz_status cz_swiglu_forward(const struct cz_ops *ops, const struct cz_swiglu_args *args);
CZ_API cz_status cz_swiglu_backward(const struct cz_ops *ops, const struct cz_swiglu_args *args);

/* ---- attention ------------------------------------------------------------------------------- */

/* Scaled dot-product attention that never stores the Tq*Tk scores:
 *   s = scale*q*k^T (masked), p = softmax(s), out = dropout(p)*v, lse = log(sum(exp(s)))
 * Backward computes p again from q, k and lse:
 *   dv = p^T*dout, dp = dout*v^T, ds = p∘(dp - delta), dq = scale*ds*k, dk = scale*ds^T*q
 * delta is rowsum(dout∘out) on a GPU, and rowsum(p∘dp)/rowsum(p), the same but for rounding, on the
 * CPU.
 * Source: Dao, "FlashAttention-2", arXiv 2307.08691, algorithms 1 and 2.
 *
 * B rows of the batch, Tq query positions, Tk key positions, H query heads, G key and value heads
 * (G divides H; query head h uses head h*G/H), D elements per head. A query that may use no key has
 * out = 0. Memory of masked keys is not used and may hold NaN. No result depends on the number of
 * threads. */
struct cz_attention_args {
    size_t size; /* sizeof(struct cz_attention_args) */
    int64_t B, Tq, Tk, H, G, D;
    enum cz_dtype dtype;     /* of q, k, v, out and their gradients */
    float scale;             /* usually 1/sqrt(D) */
    bool causal;             /* query t uses keys up to t + (Tk - Tq) */
    const uint8_t *key_mask; /* (B,Tk) 1 = used; NULL: all */
    const void *q, *k, *v;   /* element (b,t,h,d) is at b*batch + t*stride + h*D + d */
    int64_t q_stride, k_stride,
        v_stride;              /* 0: H*D, G*D, G*D; 3*C for q, k, v packed into (T,3*C) */
    void *out;                 /* (B,Tq,H,D); written by forward, read by backward */
    int64_t out_stride;        /* between positions of out and dout; 0: H*D */
    int64_t q_batch, kv_batch; /* elements between rows of the batch in q, and in k and v; 0:
                                  T*stride. A cache of keys and values has more than Tk positions */
    float *lse;                /* (B,H,Tq) fp32; written by forward unless NULL, read by backward */
    float dropout_p; /* in [0,1), applied to p; its element is ((b*H + h)*Tq + tq)*Tk + tk */
    struct cz_rng_key rng;
    const void *dout;   /* backward */
    void *dq, *dk, *dv; /* backward, overwritten; strides as q, k and v */
    void *workspace;    /* cz_attention_…_workspace() bytes */
    size_t workspace_nbytes;
};

CZ_API cz_status cz_attention_forward(const struct cz_ops *ops,
                                      const struct cz_attention_args *args);
CZ_API cz_status cz_attention_backward(const struct cz_ops *ops,
                                       const struct cz_attention_args *args);

/* A workspace for some B, Tq and Tk serves smaller ones. */
CZ_API cz_status cz_attention_forward_workspace(const struct cz_ops *ops,
                                                const struct cz_attention_args *args,
                                                size_t *nbytes);
CZ_API cz_status cz_attention_backward_workspace(const struct cz_ops *ops,
                                                 const struct cz_attention_args *args,
                                                 size_t *nbytes);

/* ---- embedding ------------------------------------------------------------------------------- */

/* forward: y[n] [+]= table[ids[n]]; backward: dtable[v] [+]= sum of the rows dy[n] with ids[n] = v,
 * in the order of n. N ids, V rows of C columns. No result depends on the number of threads. An id
 * outside [0,V) is CZ_INVALID on the host; on a GPU its row of y is NaN and gives no gradient. */
struct cz_embedding_args {
    size_t size;         /* sizeof(struct cz_embedding_args) */
    int64_t N, C, V;     /* N < 2^31 */
    enum cz_dtype dtype; /* of table, y and dy */
    const int32_t *ids;  /* (N) */
    bool has_padding;    /* backward: ids equal to padding_id give no gradient, as */
    int64_t padding_id;  /* padding_idx of torch.nn.Embedding; in [0,V) */
    const void *table;   /* (V,C) */
    void *y;             /* (N,C) */
    bool accumulate;     /* forward: add to y */
    const void *dy;      /* (N,C) */
    enum cz_dtype grad_dtype;
    void *dtable;           /* (V,C) of grad_dtype */
    bool dtable_accumulate; /* false: rows that no id names become zero */
    void *workspace;        /* cz_embedding_workspace() bytes; backward only */
    size_t workspace_nbytes;
};

CZ_API cz_status cz_embedding_forward(const struct cz_ops *ops,
                                      const struct cz_embedding_args *args);
CZ_API cz_status cz_embedding_backward(const struct cz_ops *ops,
                                       const struct cz_embedding_args *args);
CZ_API cz_status cz_embedding_workspace(const struct cz_ops *ops,
                                        const struct cz_embedding_args *args, size_t *nbytes);

/* ---- rotary positions ------------------------------------------------------------------------ */

/* Rotary position embedding, in place: for d < D/2 and angle a = position*freq[d],
 *   y[d] = x[d]*cos(a) - x[d + D/2]*sin(a), y[d + D/2] = x[d + D/2]*cos(a) + x[d]*sin(a)
 * Source: Su et al., arXiv 2104.09864; d is paired with d + D/2 as in Hugging Face's models. A
 * negative position is CZ_INVALID on the host; on a GPU its token does not change. */
struct cz_rope_args {
    size_t size;     /* sizeof(struct cz_rope_args) */
    int64_t N, H, D; /* tokens, heads, elements per head (even) */
    enum cz_dtype dtype;
    int64_t stride;           /* elements between tokens of x; 0: H*D */
    const int32_t *positions; /* (N), or NULL: token n has position n mod T */
    int64_t T;
    const float *cos_table, *sin_table; /* (largest position + 1, D/2) of cz_rope_table() */
    void *x;                            /* (N,H,D), changed in place */
    bool inverse;                       /* rotate back: the gradient */
};

CZ_API cz_status cz_rope(const struct cz_ops *ops, const struct cz_rope_args *args);

/* Rows of the tables: cos and sin of position*freq[d], times `scale`. */
struct cz_rope_table_args {
    size_t size;              /* sizeof(struct cz_rope_table_args) */
    int64_t N, half;          /* rows; D/2 */
    const int32_t *positions; /* (N), or NULL: row n has position first + n */
    int64_t first;
    const float *freq;            /* (half) radians per position, in host memory */
    float scale;                  /* usually 1 */
    float *cos_table, *sin_table; /* (N,half) */
};

CZ_API cz_status cz_rope_table(const struct cz_ops *ops, const struct cz_rope_table_args *args);

/* ---- dropout and element-wise ops ------------------------------------------------------------ */

/* y[i] = x[i]/(1 - p) where cz_rng_uniform(rng, first_idx + i) >= p, else 0. The gradient is the
 * same call with dy as x. Source: Srivastava et al., JMLR 15 (2014). */
struct cz_dropout_args {
    size_t size; /* sizeof(struct cz_dropout_args) */
    enum cz_dtype dtype;
    size_t numel;
    float p; /* in [0,1) */
    struct cz_rng_key rng;
    uint64_t first_idx; /* the index of x[0] in the draw */
    const void *x;
    void *y; /* may be x */
};

CZ_API cz_status cz_dropout(const struct cz_ops *ops, const struct cz_dropout_args *args);

/* y = a + b */
struct cz_add_args {
    size_t size; /* sizeof(struct cz_add_args) */
    enum cz_dtype dtype;
    size_t numel;
    const void *a, *b;
    void *y; /* may be a or b */
};

CZ_API cz_status cz_add(const struct cz_ops *ops, const struct cz_add_args *args);

/* y = alpha*x, in another dtype or the same. alpha must be set: 1 only casts. */
struct cz_cast_scale_args {
    size_t size; /* sizeof(struct cz_cast_scale_args) */
    enum cz_dtype x_dtype, y_dtype;
    size_t numel;
    float alpha;
    const void *x;
    void *y; /* may be x when both dtypes have the same size */
};

CZ_API cz_status cz_cast_scale(const struct cz_ops *ops, const struct cz_cast_scale_args *args);

/* db[c] [+]= sum of dy[n][c] over the N rows. No result depends on the number of threads. */
struct cz_bias_grad_args {
    size_t size; /* sizeof(struct cz_bias_grad_args) */
    int64_t N, C;
    enum cz_dtype dtype;      /* of dy */
    enum cz_dtype grad_dtype; /* of db */
    const void *dy;           /* (N,C) */
    void *db;                 /* (C) */
    bool accumulate;
    void *workspace; /* cz_bias_grad_workspace() bytes */
    size_t workspace_nbytes;
};

CZ_API cz_status cz_bias_grad(const struct cz_ops *ops, const struct cz_bias_grad_args *args);
CZ_API cz_status cz_bias_grad_workspace(const struct cz_ops *ops,
                                        const struct cz_bias_grad_args *args, size_t *nbytes);

/* ---- cross-entropy --------------------------------------------------------------------------- */

/* The mean cross-entropy of the logits of a vocabulary projection, and all gradients, in one call:
 *   z = x*w^T [+ bias] (N,V),  loss = sum(omega[n]*(lse(z[n]) - z[n][label[n]]))/D
 * over the rows whose label is not CZ_IGNORE_LABEL; omega are the loss weights, 1 by default; D is
 * `divisor`, or the sum of the omega that take part when that is 0. Without such a row the loss is
 * 0. With gradients, dz = dloss*omega/D*(softmax(z) - onehot),  dx = dz*w,  dw [+]= dz^T*x,  dbias
 * [+]= column sums The rows are processed in blocks, so that no more than about 64 MiB of logits
 * exist at a time. dz is rounded to `dtype`; dw and dbias are rounded once per block. A logit that
 * is NaN or +infinity makes the loss NaN. N rows, C channels, V entries of the vocabulary. */
struct cz_head_cross_entropy_args {
    size_t size; /* sizeof(struct cz_head_cross_entropy_args) */
    int64_t N, C, V;
    enum cz_dtype dtype;       /* of x, w, bias and dx */
    const void *x;             /* (N,C) */
    const void *w;             /* (V,C) */
    const void *bias;          /* (V), or NULL */
    const int32_t *labels;     /* (N) in [0,V) or CZ_IGNORE_LABEL; NULL: only logits are computed */
    const float *loss_weights; /* (N), or NULL */
    float divisor;
    float *loss;              /* (1) fp32; needed with labels */
    float *logits;            /* (N,V) fp32, or NULL: not wanted */
    float dloss;              /* the gradient of the loss, of cz_layer_args */
    void *dx;                 /* (N,C); NULL: no gradients at all */
    enum cz_dtype grad_dtype; /* of dw and dbias: dtype, or F32 */
    void *dw;                 /* (V,C), or NULL: not wanted */
    void *dbias;              /* (V), or NULL */
    bool dw_accumulate, dbias_accumulate;
    void *workspace; /* cz_head_cross_entropy_workspace() bytes */
    size_t workspace_nbytes;
};

CZ_API cz_status cz_head_cross_entropy(const struct cz_ops *ops,
                                       const struct cz_head_cross_entropy_args *args);

/* Depends on which of labels, logits, dx, dw and dbias are NULL: before the memory exists, pass any
 * other pointer for those that will not be. */
CZ_API cz_status cz_head_cross_entropy_workspace(const struct cz_ops *ops,
                                                 const struct cz_head_cross_entropy_args *args,
                                                 size_t *nbytes);

/* The same loss of given logits: for classification. A label outside [0,V) is CZ_INVALID on the
 * host; on a GPU it makes the loss and its row of dlogits NaN. */
struct cz_cross_entropy_args {
    size_t size; /* sizeof(struct cz_cross_entropy_args) */
    int64_t N, V;
    const float *logits;       /* (N,V) fp32 */
    const int32_t *labels;     /* (N) in [0,V) or CZ_IGNORE_LABEL */
    const float *loss_weights; /* (N), or NULL */
    float divisor;             /* as above */
    float *loss;               /* (1) */
    float dloss;
    float *dlogits; /* (N,V) fp32; may be logits; NULL: no gradient */
};

CZ_API cz_status cz_cross_entropy(const struct cz_ops *ops,
                                  const struct cz_cross_entropy_args *args);

CZ_EXTERN_C_END
#endif
