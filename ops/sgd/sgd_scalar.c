/* The definition: one element after another, in the sequence that sgd.h writes down. */
#include "ops/sgd/sgd_impl.h"

#include <math.h>

/* The buffer's new value is stored; returns what the parameter moves along. */
static float momentum(const struct sgd_args *a, size_t i, float g)
{
    const struct step_tensors *t = &a->t;
    float b = g;
    if (!a->scalars->is_first)
        b = fmaf(a->momentum, dtype_get(t->states[0], i, t->state_dtype),
                 (1.0f - a->dampening) * g);
    dtype_put(t->states[0], i, t->state_dtype, b);
    return a->nesterov ? fmaf(a->momentum, b, g) : b;
}

static void step(const struct sgd_args *a, size_t begin, size_t end)
{
    const struct step_tensors *t = &a->t;
    for (size_t i = begin; i < end; i++) {
        float p = dtype_get(t->p, i, t->p_dtype);
        float g = step_grad(t, a->scalars, i);
        if (a->weight_decay != 0) g = fmaf(a->weight_decay, p, g);
        if (a->momentum != 0) g = momentum(a, i, g);
        step_put_param(t, i, fmaf(-a->scalars->lr, g, p));
    }
}

const struct sgd_row sgd_scalar = {{"scalar", 0}, step};
