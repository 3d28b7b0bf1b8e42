/* The definition: one element after another, in the sequence that lamb.h writes down. */
#include "ops/lamb/lamb_impl.h"

#include <math.h>

static float update_of(const struct lamb_args *a, float p, float m, float v)
{
    float denominator = a->eps_inside_sqrt ? sqrtf(v + a->eps) : sqrtf(v) + a->eps;
    float u = m / denominator;
    return a->weight_decay != 0 ? fmaf(a->weight_decay, p, u) : u;
}

static void moments(const struct lamb_args *a, size_t begin, size_t end, struct lamb_sums *sums)
{
    const struct step_tensors *t = &a->t;
    const struct step_scalars *s = a->scalars;
    float *m = t->states[0], *v = t->states[1];
    for (size_t i = begin; i < end; i++) {
        float p = dtype_get(t->p, i, t->p_dtype);
        float g = step_grad(t, s, i);
        m[i] = fmaf(s->beta1, m[i], (1.0f - s->beta1) * g);
        v[i] = fmaf(s->beta2, v[i], (1.0f - s->beta2) * (g * g));
        lamb_square_add(sums->p, p);
        lamb_square_add(sums->u, update_of(a, p, m[i], v[i]));
    }
}

static void apply(const struct lamb_args *a, float step, size_t begin, size_t end)
{
    const struct step_tensors *t = &a->t;
    const float *m = t->states[0], *v = t->states[1];
    for (size_t i = begin; i < end; i++) {
        float p = dtype_get(t->p, i, t->p_dtype);
        step_put_param(t, i, fmaf(-step, update_of(a, p, m[i], v[i]), p));
    }
}

const struct lamb_row lamb_scalar = {{"scalar", 0}, moments, apply};
