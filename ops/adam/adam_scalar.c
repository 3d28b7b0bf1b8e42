/* The definition: one element after another, in the sequence that adam.h writes down. */
#include "ops/adam/adam_impl.h"

#include <math.h>

static void step(const struct adam_args *a, size_t begin, size_t end)
{
    const struct step_tensors *t = &a->t;
    const struct step_scalars *s = a->scalars;
    float wd = a->weight_decay;
    for (size_t i = begin; i < end; i++) {
        float p = dtype_get(t->p, i, t->p_dtype);
        float m = dtype_get(t->states[0], i, t->state_dtype);
        float v = dtype_get(t->states[1], i, t->state_dtype);
        float g = step_grad(t, s, i);
        if (wd != 0 && !a->decoupled) g = fmaf(wd, p, g);
        m = fmaf(s->beta1, m, (1.0f - s->beta1) * g);
        v = fmaf(s->beta2, v, (1.0f - s->beta2) * (g * g));
        float u = m * s->inv_bias1 / fmaf(sqrtf(v), s->inv_sqrt_bias2, a->eps);
        if (wd != 0 && a->decoupled) u = fmaf(wd, p, u);
        step_put_param(t, i, fmaf(-s->lr, u, p));
        dtype_put(t->states[0], i, t->state_dtype, m);
        dtype_put(t->states[1], i, t->state_dtype, v);
    }
}

const struct adam_row adam_scalar = {{"scalar", 0}, step};
