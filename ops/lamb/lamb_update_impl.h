/* Lamb's arithmetic on one element: the definition, shared by the scalar row and the CUDA twin. */
#ifndef CZ_OPS_LAMB_LAMB_UPDATE_IMPL_H
#define CZ_OPS_LAMB_LAMB_UPDATE_IMPL_H

#include "ops/lamb/lamb.h"

#include <math.h>

/* Pass 0: m and v become m' and v'. */
static CZ_KERNEL_FN void lamb_update_moments(const struct step_scalars *s, float g, float *m,
                                             float *v)
{
    g *= s->grad_scale;
    *m = fmaf(s->beta1, *m, (1.0f - s->beta1) * g);
    *v = fmaf(s->beta2, *v, (1.0f - s->beta2) * (g * g));
}

/* u of an element, from its parameter and new moments. */
static CZ_KERNEL_FN float lamb_update_of(float eps, float wd, bool eps_inside_sqrt, float p,
                                         float m, float v)
{
    float denominator = eps_inside_sqrt ? sqrtf(v + eps) : sqrtf(v) + eps;
    float u = m / denominator;
    return wd != 0 ? fmaf(wd, p, u) : u;
}

/* Pass 1: p', with step = step_size·ratio. */
static CZ_KERNEL_FN float lamb_update_applied(float step, float u, float p)
{
    return fmaf(-step, u, p);
}

#endif
