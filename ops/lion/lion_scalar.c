/* The definition: one element after another, in the sequence that lion.h writes down. */
#include "ops/lion/lion_impl.h"

#include <math.h>

static float sign(float c)
{
    if (c > 0) return 1;
    if (c < 0) return -1;
    return c; /* ±0 stays, NaN stays */
}

static void step(const struct lion_args *a, size_t begin, size_t end)
{
    const struct step_tensors *t = &a->t;
    const struct step_scalars *s = a->scalars;
    for (size_t i = begin; i < end; i++) {
        float p = dtype_get(t->p, i, t->p_dtype);
        float m = dtype_get(t->states[0], i, t->state_dtype);
        float g = step_grad(t, s, i);
        float u = sign(fmaf(s->beta1, m, (1.0f - s->beta1) * g));
        if (a->weight_decay != 0) u = fmaf(a->weight_decay, p, u);
        step_put_param(t, i, fmaf(-s->lr, u, p));
        dtype_put(t->states[0], i, t->state_dtype, fmaf(s->beta2, m, (1.0f - s->beta2) * g));
    }
}

const struct lion_row lion_scalar = {{"scalar", 0}, step};
