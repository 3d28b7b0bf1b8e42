/* The optimizers as step_agree.h tests them: one call with the hyper-parameters of a variant. Bit 0
 * of a variant is for the scalars. The same on every device: `stream` NULL, tensors and scalars
 * where the kernels want them. */
#ifndef CZ_TESTS_STEP_OPS_H
#define CZ_TESTS_STEP_OPS_H

#include "ops/adagrad/adagrad.h"
#include "ops/adam/adam.h"
#include "ops/lion/lion.h"
#include "ops/sgd/sgd.h"
#include "tests/support/gpu/step_agree.h"

/* Decay off, decoupled, L2, L2 with negative decay. */
#define STEP_ADAM_VARIANTS 8
static inline cz_status step_adam(struct ops *ops, const struct step_tensors *t,
                                  const struct step_scalars *s, int variant)
{
    static const float decays[] = {0, 0.1f, 0.1f, -0.01f};
    const struct adam_args args = {.t = *t,
                                   .scalars = s,
                                   .eps = 1e-8f,
                                   .weight_decay = decays[variant >> 1],
                                   .decoupled = variant >> 1 == 1};
    return ops_adam(ops, NULL, &args);
}

/* Decay off and on. */
#define STEP_LION_VARIANTS 4
static inline cz_status step_lion(struct ops *ops, const struct step_tensors *t,
                                  const struct step_scalars *s, int variant)
{
    const struct lion_args args = {.t = *t, .scalars = s, .weight_decay = variant & 2 ? 0.1f : 0};
    return ops_lion(ops, NULL, &args);
}

#define STEP_ADAGRAD_VARIANTS 4
static inline cz_status step_adagrad(struct ops *ops, const struct step_tensors *t,
                                     const struct step_scalars *s, int variant)
{
    const struct adagrad_args args = {
        .t = *t, .scalars = s, .eps = 1e-10f, .weight_decay = variant & 2 ? 0.1f : 0};
    return ops_adagrad(ops, NULL, &args);
}

/* Bit 1: decay; then momentum, nesterov, dampening, neither momentum nor state. */
#define STEP_SGD_VARIANTS 16
static inline cz_status step_sgd(struct ops *ops, const struct step_tensors *t,
                                 const struct step_scalars *s, int variant)
{
    const int mode = variant >> 2;
    const struct sgd_args args = {.t = *t,
                                  .scalars = s,
                                  .momentum = mode < 3 ? 0.9f : 0,
                                  .dampening = mode == 2 ? 0.5f : 0,
                                  .weight_decay = variant & 2 ? 0.1f : 0,
                                  .nesterov = mode == 1};
    return ops_sgd(ops, NULL, &args);
}

#endif
