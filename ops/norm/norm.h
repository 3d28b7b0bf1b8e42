/* Layer norm and RMS norm over the last dimension, with the residual add in front fused in.
 *
 *   s = x [+ residual]
 *   layernorm: mean = Σs/C, rstd = 1/sqrt(Σ(s−mean)²/C + eps), y = (s−mean)·rstd·weight + bias
 *   rmsnorm:   rstd = 1/sqrt(Σs²/C + eps),                     y = s·rstd·(weight + offset)
 * N rows, C columns. Sums in fp32, in an order fixed by C; the gradients of weight and bias are
 * sums over row blocks fixed by N: no result depends on threads. Statistics are fp32 (N). A 16-bit
 * s is rounded before it is normalised, so that backward sees what forward used. */
#ifndef CZ_OPS_NORM_NORM_H
#define CZ_OPS_NORM_NORM_H

#include "base/dtype.h"
#include "base/status.h"

CZ_EXTERN_C_BEGIN

struct ops;
struct dev_stream;

struct norm_args {
    int64_t N, C;
    enum cz_dtype dtype; /* x, residual, sum, weight, bias, y and dx, dy */
    float eps;
    const void *x;
    const void *residual; /* (N,C) or NULL */
    void *sum;            /* (N,C) receives s, needed with residual; may alias x or residual */
    const void *weight;   /* (C) */
    float offset;         /* added to the weight, in fp32; 0, or 1 for Gemma's rmsnorm */
    const void *bias;     /* (C), or NULL; never for rmsnorm */
    void *y;              /* (N,C); may alias x or sum when those are not kept */
    float *mean, *rstd;   /* (N) saved by forward, read by backward; mean unused by rmsnorm;
                             NULL in forward: not kept */
    /* Backward: `x` is s as saved by forward. */
    const void *dy;
    void *dx;           /* (N,C) gradient of s; may alias dy or x */
    const void *dx_add; /* (N,C) added to it: the residual branch's gradient; may be dx; or NULL */
    enum cz_dtype grad_dtype; /* of dweight, dbias */
    void *dweight, *dbias;    /* (C); NULL: not wanted (frozen) */
    bool dweight_accumulate, dbias_accumulate;
    void *workspace; /* ops_norm_workspace() bytes, backward only */
    size_t workspace_nbytes;
};

/* Queue the call on the stream: ops/ops.h says what holds for all calls. */
cz_status ops_layernorm_forward(struct ops *ops, struct dev_stream *stream,
                                const struct norm_args *a);
cz_status ops_layernorm_backward(struct ops *ops, struct dev_stream *stream,
                                 const struct norm_args *a);
cz_status ops_rmsnorm_forward(struct ops *ops, struct dev_stream *stream,
                              const struct norm_args *a);
cz_status ops_rmsnorm_backward(struct ops *ops, struct dev_stream *stream,
                               const struct norm_args *a);

/* Bytes of workspace that a call of these shapes needs: ops/ops.h. */
size_t ops_norm_workspace(const struct ops *ops, const struct norm_args *a);

CZ_EXTERN_C_END
#endif
