/* Simple element-wise passes. Arithmetic in fp32, one rounding; rows agree to the bit. y may be an
 * input itself (a cast: when both dtypes have one size), but may not overlap it otherwise. */
#ifndef CZ_OPS_ELEMENTWISE_ELEMENTWISE_H
#define CZ_OPS_ELEMENTWISE_ELEMENTWISE_H

#include "base/dtype.h"
#include "base/status.h"

CZ_EXTERN_C_BEGIN

struct ops;
struct dev_stream;

/* y = a + b */
struct add_args {
    enum cz_dtype dtype;
    size_t numel;
    const void *a, *b;
    void *y;
};

/* y = cast(alpha·x): cast, scale, or both. alpha 1 is an exact cast (a copy when the
 * dtypes are equal). */
struct cast_scale_args {
    enum cz_dtype x_dtype, y_dtype;
    size_t numel;
    float alpha;
    const void *x;
    void *y;
};

/* db (C) [+]= Σ over N rows of dy (N,C). fp32 sums in row order inside row blocks whose size
 * depends on N alone, then in block order: the same bits for any number of threads. */
struct bias_grad_args {
    int64_t N, C;
    enum cz_dtype dtype;      /* dy */
    enum cz_dtype grad_dtype; /* db */
    const void *dy;
    void *db;
    bool accumulate;
    void *workspace; /* ops_bias_grad_workspace() bytes */
    size_t workspace_nbytes;
};

/* Queue the call on the stream: ops/ops.h says what holds for all calls. */
cz_status ops_add(struct ops *ops, struct dev_stream *stream, const struct add_args *a);
cz_status ops_cast_scale(struct ops *ops, struct dev_stream *stream,
                         const struct cast_scale_args *a);
cz_status ops_bias_grad(struct ops *ops, struct dev_stream *stream, const struct bias_grad_args *a);

/* Bytes of workspace that a call of these shapes needs: ops/ops.h. */
size_t ops_bias_grad_workspace(const struct ops *ops, const struct bias_grad_args *a);

CZ_EXTERN_C_END
#endif
