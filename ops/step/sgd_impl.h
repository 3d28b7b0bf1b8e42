/* SGD in one pass, torch's formula. State with momentum ≠ 0: momentum_buffer b.
 *
 *   g  = float(g) · grad_scale
 *   g  = fma(wd, p, g)                         with wd ≠ 0
 *   with momentum ≠ 0:
 *       b' = g on the first step (t = 1), else fma(momentum, b, (1 − dampening)·g)
 *       g  = fma(momentum, b', g) with nesterov, else b'
 *   p' = fma(−lr, g, p)
 *
 * Bytes per element: fp32 with momentum 12 read + 8 written = 20, without 8 + 4. */
#ifndef CZ_OPS_STEP_SGD_IMPL_H
#define CZ_OPS_STEP_SGD_IMPL_H

VEC_FN void sgd_update(const struct step_args *a, const struct step_scalars *s, vf g, vf *p,
                       vf *states)
{
    const vf momentum = vf_set1(a->momentum);
    vf *b = &states[0];
    if (a->weight_decay != 0) g = vf_fma(vf_set1(a->weight_decay), *p, g);
    if (a->momentum != 0) {
        *b = s->is_first ? g : vf_fma(momentum, *b, vf_set1(1.0f - a->dampening) * g);
        g = a->nesterov ? vf_fma(momentum, *b, g) : *b;
    }
    *p = vf_fma(vf_set1(-s->lr), g, *p);
}

#endif
