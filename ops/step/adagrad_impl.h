/* Adagrad in one pass, torch's formula. State: sum s.
 *
 *   g  = float(g) · grad_scale
 *   g  = fma(wd, p, g)                         with wd ≠ 0
 *   s' = fma(g, g, s)
 *   p' = fma(−step_size, g / (√s' + eps), p)   step_size = lr/(1 + (t−1)·lr_decay)
 *
 * Bytes per element: fp32 12 read + 8 written = 20; bf16 in and out 10 + 10. */
#ifndef CZ_OPS_STEP_ADAGRAD_IMPL_H
#define CZ_OPS_STEP_ADAGRAD_IMPL_H

VEC_FN void adagrad_update(const struct step_args *a, const struct step_scalars *s, vf g, vf *p,
                           vf *states)
{
    vf *sum = &states[0];
    if (a->weight_decay != 0) g = vf_fma(vf_set1(a->weight_decay), *p, g);
    *sum = vf_fma(g, g, *sum);
    *p = vf_fma(vf_set1(-s->step_size), g / (vf_sqrt(*sum) + vf_set1(a->eps)), *p);
}

#endif
