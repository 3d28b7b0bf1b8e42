/* Adam's arithmetic on one element: the definition, shared by the scalar row and the CUDA twin. */
#ifndef CZ_OPS_ADAM_ADAM_UPDATE_IMPL_H
#define CZ_OPS_ADAM_ADAM_UPDATE_IMPL_H

#include "ops/adam/adam.h"

#include <math.h>

/* The sequence that adam.h writes down: p, m and v become p', m' and v'. */
static CZ_KERNEL_FN void adam_update(const struct step_scalars *s, float eps, float wd,
                                     bool decoupled, float g, float *p, float *m, float *v)
{
    g *= s->grad_scale;
    if (wd != 0 && !decoupled) g = fmaf(wd, *p, g);
    *m = fmaf(s->beta1, *m, (1.0f - s->beta1) * g);
    *v = fmaf(s->beta2, *v, (1.0f - s->beta2) * (g * g));
    float u = *m * s->inv_bias1 / fmaf(sqrtf(*v), s->inv_sqrt_bias2, eps);
    if (wd != 0 && decoupled) u = fmaf(wd, *p, u);
    *p = fmaf(-s->lr, u, *p);
}

#endif
