/* The definition: one element after another. */
#include "ops/step/step_updates_impl.h"

/* Element i: read, updated, written. */
#define STEP_RUN(name, NAME, n_states)                                                             \
    static void run_##name(const struct step_args *a, size_t begin, size_t end)                    \
    {                                                                                              \
        const struct step_tensors *t = &a->t;                                                      \
        for (size_t i = begin; i < end; i++) {                                                     \
            float p = dtype_get(t->p, i, t->p_dtype), states[n_states] = {0};                      \
            float g = dtype_get(t->g, i, t->g_dtype) * a->scalars->grad_scale;                     \
            for (int k = 0; k < n_states; k++)                                                     \
                if (t->states[k]) states[k] = dtype_get(t->states[k], i, t->state_dtype);          \
            name##_update(a, a->scalars, g, &p, states);                                           \
            step_put_param(t, i, p);                                                               \
            for (int k = 0; k < n_states; k++)                                                     \
                if (t->states[k]) dtype_put(t->states[k], i, t->state_dtype, states[k]);           \
        }                                                                                          \
    }
STEP_OPS(STEP_RUN)

#define STEP_ENTRY(name, NAME, n_states) [STEP_##NAME] = run_##name,
const struct step_row step_scalar = {{"scalar", 0}, {STEP_OPS(STEP_ENTRY)}};
