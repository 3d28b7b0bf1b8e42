/* Lion in one pass. State: exp_avg m.
 *
 *   g  = float(g) · grad_scale
 *   c  = fma(beta1, m, (1 − beta1)·g)
 *   s  = 1 if c > 0, −1 if c < 0, else c       sign(0) = 0: what has no gradient stays
 *   s  = fma(wd, p, s)                         with wd ≠ 0
 *   p' = fma(−lr, s, p)
 *   m' = fma(beta2, m, (1 − beta2)·g)
 *
 * Bytes per element: fp32 12 read + 8 written = 20; bf16 in and out 10 + 10. */
#ifndef CZ_OPS_LION_LION_H
#define CZ_OPS_LION_LION_H

#include "ops/step/step.h"

CZ_EXTERN_C_BEGIN

struct ops;
struct dev_stream;

struct lion_args {
    struct step_tensors t;              /* 1 state: m */
    const struct step_scalars *scalars; /* grad_scale, lr, beta1, beta2 */
    float weight_decay;
};

/* Queue the call on the stream: ops/ops.h says what holds for all calls. */
cz_status ops_lion(struct ops *ops, struct dev_stream *stream, const struct lion_args *a);

CZ_EXTERN_C_END
#endif
