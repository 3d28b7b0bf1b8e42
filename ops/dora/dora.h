/* Weight-decomposed branches (DoRA, arXiv 2402.09353). A map's weight W (O,I) with a branch added,
 * V = W + s·B·A, keeps its directions by rows and gets the lengths m (O), which are trained:
 *
 *   W' = g ⊙ V by rows,   g = m/‖V‖   and, the norm a constant as in PEFT,   dm = (dy·h)/‖V‖,
 *
 * where h = x·Vᵀ. The products are ops_matmul()'s; here is what is done by rows. Sums are in fp32,
 * each by one thread in a fixed order. */
#ifndef CZ_OPS_DORA_DORA_H
#define CZ_OPS_DORA_DORA_H

#include "base/dtype.h"
#include "base/status.h"

CZ_EXTERN_C_BEGIN

struct ops;
struct dev_stream;

/* inv_norm (O) = 1/‖row o of V‖; 0 for a row of zeros. */
struct dora_norm_args {
    int64_t O, I;
    bool in_out; /* v is (I,O) */
    enum cz_dtype dtype;
    const void *v;
    float *inv_norm;
};

/* y (O,I) [+]= m·inv_norm by rows · x [− w]; y may be x. */
struct dora_scale_args {
    int64_t O, I;
    bool in_out;         /* x, w and y are (I,O) */
    enum cz_dtype dtype; /* of m and w */
    enum cz_dtype x_dtype, y_dtype;
    const void *x, *m, *w; /* w NULL: nothing is taken off */
    const float *inv_norm;
    void *y;
    bool accumulate;
};

/* dm (O) [+]= inv_norm · Σ over N rows of dy (N,O) ⊙ h (N,O) */
struct dora_grad_args {
    int64_t N, O;
    enum cz_dtype dtype; /* of dy and h */
    enum cz_dtype grad_dtype;
    const void *dy, *h;
    const float *inv_norm;
    void *dm;
    bool accumulate;
};

/* Queue the call on the stream: ops/ops.h says what holds for all calls. */
cz_status ops_dora_norm(struct ops *ops, struct dev_stream *stream, const struct dora_norm_args *a);
cz_status ops_dora_scale(struct ops *ops, struct dev_stream *stream,
                         const struct dora_scale_args *a);
cz_status ops_dora_grad(struct ops *ops, struct dev_stream *stream, const struct dora_grad_args *a);

CZ_EXTERN_C_END
#endif
