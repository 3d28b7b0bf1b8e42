/* The optimizers as step_agree.h tests them: one call with the hyper-parameters of a variant. Bit 0
 * of a variant is for the scalars. The same on every device: `stream` NULL, tensors and scalars
 * where the kernels want them. */
#ifndef CZ_TESTS_STEP_OPS_H
#define CZ_TESTS_STEP_OPS_H

#include "tests/support/gpu/step_agree.h"

/* Decay off, decoupled, L2, L2 with negative decay. */
#define STEP_ADAM_VARIANTS 8
static inline cz_status step_adam(struct ops *ops, const struct step_tensors *t,
                                  const struct step_scalars *s, int variant)
{
    static const float decays[] = {0, 0.1f, 0.1f, -0.01f};
    const struct step_args args = {.op = STEP_ADAM,
                                   .t = *t,
                                   .scalars = s,
                                   .eps = 1e-8f,
                                   .weight_decay = decays[variant >> 1],
                                   .decoupled = variant >> 1 == 1};
    return ops_step(ops, NULL, &args);
}

/* Decay off and on. */
#define STEP_LION_VARIANTS 4
static inline cz_status step_lion(struct ops *ops, const struct step_tensors *t,
                                  const struct step_scalars *s, int variant)
{
    const struct step_args args = {
        .op = STEP_LION, .t = *t, .scalars = s, .weight_decay = variant & 2 ? 0.1f : 0};
    return ops_step(ops, NULL, &args);
}

#define STEP_ADAGRAD_VARIANTS 4
static inline cz_status step_adagrad(struct ops *ops, const struct step_tensors *t,
                                     const struct step_scalars *s, int variant)
{
    const struct step_args args = {.op = STEP_ADAGRAD,
                                   .t = *t,
                                   .scalars = s,
                                   .eps = 1e-10f,
                                   .weight_decay = variant & 2 ? 0.1f : 0};
    return ops_step(ops, NULL, &args);
}

/* Bit 1: decay; then momentum, nesterov, dampening, neither momentum nor state. */
#define STEP_SGD_VARIANTS 16
static inline cz_status step_sgd(struct ops *ops, const struct step_tensors *t,
                                 const struct step_scalars *s, int variant)
{
    const int mode = variant >> 2;
    const struct step_args args = {.op = STEP_SGD,
                                   .t = *t,
                                   .scalars = s,
                                   .momentum = mode < 3 ? 0.9f : 0,
                                   .dampening = mode == 2 ? 0.5f : 0,
                                   .weight_decay = variant & 2 ? 0.1f : 0,
                                   .nesterov = mode == 1};
    return ops_step(ops, NULL, &args);
}

static const struct ops_row *step_row_at(size_t idx)
{
    size_t n;
    const struct step_row *const *rows = step_rows(&n);
    return idx < n ? &rows[idx]->row : NULL;
}

#define STEP_TESTED(name, NAME, states)                                                            \
    {#name, states, STEP_##NAME##_VARIANTS, step_wire, step_row_at, step_##name},
static const struct step_test step_tests[STEP_N_OPS] = {STEP_OPS(STEP_TESTED)};

#endif
