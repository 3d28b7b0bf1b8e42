/* Adagrad in one pass, torch's formula. State: sum s.
 *
 *   g  = float(g) · grad_scale
 *   g  = fma(wd, p, g)                         with wd ≠ 0
 *   s' = fma(g, g, s)
 *   p' = fma(−step_size, g / (√s' + eps), p)   step_size = lr/(1 + (t−1)·lr_decay)
 *
 * Bytes per element: fp32 12 read + 8 written = 20; bf16 in and out 10 + 10. */
#ifndef CZ_OPS_ADAGRAD_ADAGRAD_H
#define CZ_OPS_ADAGRAD_ADAGRAD_H

#include "ops/step/step.h"

CZ_EXTERN_C_BEGIN

struct ops;
struct dev_stream;

struct adagrad_args {
    struct step_tensors t;              /* 1 state: s */
    const struct step_scalars *scalars; /* grad_scale, step_size */
    float eps, weight_decay;
};

/* Queue the call on the stream: ops/ops.h says what holds for all calls. */
cz_status ops_adagrad(struct ops *ops, struct dev_stream *stream, const struct adagrad_args *a);

CZ_EXTERN_C_END
#endif
