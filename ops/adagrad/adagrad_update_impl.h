/* Adagrad's arithmetic on one element: the definition, shared by the scalar row and the CUDA twin.
 */
#ifndef CZ_OPS_ADAGRAD_ADAGRAD_UPDATE_IMPL_H
#define CZ_OPS_ADAGRAD_ADAGRAD_UPDATE_IMPL_H

#include "ops/adagrad/adagrad.h"

#include <math.h>

/* The sequence that adagrad.h writes down: p and sum become p' and s'. */
static CZ_KERNEL_FN void adagrad_update(const struct step_scalars *s, float eps, float wd, float g,
                                        float *p, float *sum)
{
    g *= s->grad_scale;
    if (wd != 0) g = fmaf(wd, *p, g);
    *sum = fmaf(g, g, *sum);
    *p = fmaf(-s->step_size, g / (sqrtf(*sum) + eps), *p);
}

#endif
