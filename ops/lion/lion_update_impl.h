/* Lion's arithmetic on one element: the definition, shared by the scalar row and the CUDA twin. */
#ifndef CZ_OPS_LION_LION_UPDATE_IMPL_H
#define CZ_OPS_LION_LION_UPDATE_IMPL_H

#include "ops/lion/lion.h"

#include <math.h>

static CZ_KERNEL_FN float lion_sign_of(float c)
{
    if (c > 0) return 1;
    if (c < 0) return -1;
    return c; /* ±0 stays, NaN stays */
}

/* The sequence that lion.h writes down: p and m become p' and m'. */
static CZ_KERNEL_FN void lion_update(const struct step_scalars *s, float wd, float g, float *p,
                                     float *m)
{
    g *= s->grad_scale;
    float u = lion_sign_of(fmaf(s->beta1, *m, (1.0f - s->beta1) * g));
    if (wd != 0) u = fmaf(wd, *p, u);
    *p = fmaf(-s->lr, u, *p);
    *m = fmaf(s->beta2, *m, (1.0f - s->beta2) * g);
}

#endif
