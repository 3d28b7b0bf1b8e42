/* Adam and AdamW in one pass. States: exp_avg m, exp_avg_sq v.
 *
 *   g  = float(g) · grad_scale
 *   g  = fma(wd, p, g)                         L2 mode with wd ≠ 0
 *   m' = fma(beta1, m, (1 − beta1)·g)
 *   v' = fma(beta2, v, (1 − beta2)·(g·g))
 *   u  = (m'·inv_bias1) / fma(√v', inv_sqrt_bias2, eps)
 *   u  = fma(wd, p, u)                         decoupled mode with wd ≠ 0
 *   p' = fma(−lr, u, p)
 *
 * DeepSpeed's fused form: eps is outside the root and is not scaled by the bias correction; the
 * decay joins the update before the learning rate multiplies both, so a small lr·wd is not lost.
 *
 * Bytes per element: fp32 gradient and fp32 model 16 read + 12 written = 28; bf16 gradient and bf16
 * parameter 14 read + 14 written = 28. */
#ifndef CZ_OPS_ADAM_ADAM_H
#define CZ_OPS_ADAM_ADAM_H

#include "ops/step/step.h"

CZ_EXTERN_C_BEGIN

struct ops;
struct dev_stream;

struct adam_args {
    struct step_tensors t; /* 2 states: m, v */
    const struct step_scalars
        *scalars; /* grad_scale, lr, beta1, beta2, inv_bias1, inv_sqrt_bias2 */
    float eps, weight_decay;
    bool decoupled; /* AdamW's decay; false: the decay is added to the gradient (L2) */
};

/* Queue the call on the stream: ops/ops.h says what holds for all calls. */
cz_status ops_adam(struct ops *ops, struct dev_stream *stream, const struct adam_args *a);

CZ_EXTERN_C_END
#endif
