/* The definition: one element after another, in the sequence that adagrad.h writes down. */
#include "ops/adagrad/adagrad_impl.h"

#include <math.h>

static void step(const struct adagrad_args *a, size_t begin, size_t end)
{
    const struct step_tensors *t = &a->t;
    const struct step_scalars *s = a->scalars;
    for (size_t i = begin; i < end; i++) {
        float p = dtype_get(t->p, i, t->p_dtype);
        float sum = dtype_get(t->states[0], i, t->state_dtype);
        float g = step_grad(t, s, i);
        if (a->weight_decay != 0) g = fmaf(a->weight_decay, p, g);
        sum = fmaf(g, g, sum);
        step_put_param(t, i, fmaf(-s->step_size, g / (sqrtf(sum) + a->eps), p));
        dtype_put(t->states[0], i, t->state_dtype, sum);
    }
}

const struct adagrad_row adagrad_scalar = {{"scalar", 0}, step};
