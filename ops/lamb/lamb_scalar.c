/* The definition: one element after another (lamb_update_impl.h). */
#include "ops/lamb/lamb_impl.h"
#include "ops/lamb/lamb_update_impl.h"

static float update_of(const struct lamb_args *a, float p, float m, float v)
{
    return lamb_update_of(a->eps, a->weight_decay, a->eps_inside_sqrt, p, m, v);
}

static void moments(const struct lamb_args *a, size_t begin, size_t end, struct lamb_sums *sums)
{
    const struct step_tensors *t = &a->t;
    float *m = t->states[0], *v = t->states[1];
    for (size_t i = begin; i < end; i++) {
        float p = dtype_get(t->p, i, t->p_dtype);
        lamb_update_moments(a->scalars, dtype_get(t->g, i, t->g_dtype), &m[i], &v[i]);
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
        step_put_param(t, i, lamb_update_applied(step, update_of(a, p, m[i], v[i]), p));
    }
}

const struct lamb_row lamb_scalar = {{"scalar", 0}, moments, apply};
