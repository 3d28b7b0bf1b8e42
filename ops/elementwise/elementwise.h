/* Simple element-wise passes. All may run in place. Arithmetic in fp32, one rounding. */
#ifndef CZ_OPS_ELEMENTWISE_ELEMENTWISE_H
#define CZ_OPS_ELEMENTWISE_ELEMENTWISE_H

#include "base/dtype.h"
#include "base/status.h"

CZ_EXTERN_C_BEGIN

/* y = a + b */
struct add_args {
    enum dtype dtype;
    size_t numel;
    const void *a, *b;
    void *y;
};

/* y = cast(alpha·x): cast, scale, or both. alpha 1 is an exact cast. */
struct cast_scale_args {
    enum dtype x_dtype, y_dtype;
    size_t numel;
    float alpha;
    const void *x;
    void *y;
};

/* db (C) [+]= Σ over N rows of dy (N,C); fp32 sum in row order inside fixed row blocks. */
struct bias_grad_args {
    int64_t N, C;
    enum dtype dtype;      /* dy */
    enum dtype grad_dtype; /* db */
    const void *dy;
    void *db;
    bool accumulate;
    void *workspace; /* ops_bias_grad_workspace() bytes */
    size_t workspace_nbytes;
};

CZ_EXTERN_C_END
#endif
