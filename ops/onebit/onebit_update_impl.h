/* The 1-bit family's arithmetic on one element: the definition, shared by the scalar row and the
 * CUDA twin. */
#ifndef CZ_OPS_ONEBIT_ONEBIT_UPDATE_IMPL_H
#define CZ_OPS_ONEBIT_ONEBIT_UPDATE_IMPL_H

#include "ops/onebit/onebit.h"

#include <math.h>

static CZ_KERNEL_FN float onebit_signed(bool positive, float scale)
{
    return positive ? scale : -scale;
}

/* feed: e' of a gradient, or (has_m) of the momentum that it would lead to. */
static CZ_KERNEL_FN float onebit_fed(const struct step_scalars *s, float coeff, float g, bool has_m,
                                     float m, float e)
{
    float x = g * s->grad_scale;
    if (has_m) x = fmaf(s->beta1, m, (1.0f - s->beta1) * x);
    return x * coeff + e;
}

/* unpack: fresh follows the gradient that led the momentum from `before` to `after`. */
static CZ_KERNEL_FN void onebit_follow(const struct step_scalars *s, float before, float after,
                                       float *fresh)
{
    float g = (after - s->beta1 * before) / (1.0f - s->beta1);
    *fresh = fmaf(s->beta2, *fresh, (1.0f - s->beta2) * (g * g));
}

/* unpack: a gradient joins a momentum. */
static CZ_KERNEL_FN float onebit_blended(const struct step_scalars *s, float x, float value)
{
    return fmaf(s->beta1, x, (1.0f - s->beta1) * value);
}

/* momentum; fresh NULL: none. */
static CZ_KERNEL_FN void onebit_update_momentum(const struct step_scalars *s, bool takes_part,
                                                float g, float *m, float *fresh)
{
    g = takes_part ? g * s->grad_scale : 0;
    *m = takes_part ? fmaf(s->beta1, *m, (1.0f - s->beta1) * g) : 0;
    if (fresh) *fresh = fmaf(s->beta2, *fresh, (1.0f - s->beta2) * (g * g));
}

/* lamb_norms: u0 and u; returns the factor, 0 for an element that takes no part. */
static CZ_KERNEL_FN float onebit_norms_of(const struct onebit_lamb_norms_args *a, bool takes_part,
                                          float m, float v, float fresh, float p, float *u0,
                                          float *u)
{
    float d = sqrtf(v) + a->eps;
    *u0 = m / d;
    *u = a->weight_decay != 0 ? fmaf(a->weight_decay, p, *u0) : *u0;
    float ratio = d / (sqrtf(fresh) + a->eps);
    return takes_part && ratio > 0 ? ratio : 0;
}

/* zero_one_local: returns the parameter to round. */
static CZ_KERNEL_FN float onebit_update_local(const struct zero_one_args *a,
                                              const struct step_scalars *s, bool takes_part,
                                              float g, float v, float p, float *m, float *moved)
{
    *m = fmaf(s->beta1, *m, (1.0f - s->beta1) * (g * s->grad_scale));
    float u = *m / (sqrtf(v) + a->eps);
    if (!takes_part) *m = u = 0;
    if (a->weight_decay != 0) u = fmaf(a->weight_decay, p + *moved, u);
    *moved = fmaf(-s->lr, u, *moved);
    return p + *moved;
}

static CZ_KERNEL_FN float onebit_gathered(float eps, float v, float moved)
{
    return moved * (sqrtf(v) + eps);
}

static CZ_KERNEL_FN void onebit_update_settle(float eps, float step_size, float v, float *m,
                                              float *moved, float *p)
{
    if (step_size != 0) *m = -*moved / step_size;
    *p += *moved / (sqrtf(v) + eps);
    *moved = 0;
}

#endif
