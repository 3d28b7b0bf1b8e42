/* SGD in one pass, torch's formula. State with momentum ≠ 0: momentum_buffer b.
 *
 *   g  = float(g) · grad_scale
 *   g  = fma(wd, p, g)                         with wd ≠ 0
 *   with momentum ≠ 0:
 *       b' = g on the first step (t = 1), else fma(momentum, b, (1 − dampening)·g)
 *       g  = fma(momentum, b', g) with nesterov, else b'
 *   p' = fma(−lr, g, p)
 *
 * Bytes per element: fp32 with momentum 12 read + 8 written = 20, without 8 + 4. */
#ifndef CZ_OPS_SGD_SGD_H
#define CZ_OPS_SGD_SGD_H

#include "ops/step/step.h"

CZ_EXTERN_C_BEGIN

struct ops;
struct dev_stream;

struct sgd_args {
    struct step_tensors t;              /* 1 state: b, or none when momentum is 0 */
    const struct step_scalars *scalars; /* grad_scale, lr, is_first */
    float momentum, dampening, weight_decay;
    bool nesterov;
};

/* Queue the call on the stream: ops/ops.h says what holds for all calls. */
cz_status ops_sgd(struct ops *ops, struct dev_stream *stream, const struct sgd_args *a);

CZ_EXTERN_C_END
#endif
