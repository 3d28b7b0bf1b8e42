/* SGD's arithmetic on one element: the definition, shared by the scalar row and the CUDA twin. */
#ifndef CZ_OPS_SGD_SGD_UPDATE_IMPL_H
#define CZ_OPS_SGD_SGD_UPDATE_IMPL_H

#include "ops/sgd/sgd.h"

#include <math.h>

/* The sequence that sgd.h writes down: p becomes p', and with momentum ≠ 0 b becomes b'. */
static CZ_KERNEL_FN void sgd_update(const struct step_scalars *s, const struct sgd_args *a, float g,
                                    float *p, float *b)
{
    g *= s->grad_scale;
    if (a->weight_decay != 0) g = fmaf(a->weight_decay, *p, g);
    if (a->momentum != 0) {
        *b = s->is_first ? g : fmaf(a->momentum, *b, (1.0f - a->dampening) * g);
        g = a->nesterov ? fmaf(a->momentum, *b, g) : *b;
    }
    *p = fmaf(-s->lr, g, *p);
}

#endif
