/* Lion in one pass. State: exp_avg m.
 *
 *   g  = float(g) · grad_scale
 *   c  = fma(beta1, m, (1 − beta1)·g)
 *   s  = 1 if c > 0, −1 if c < 0, else c       sign(0) = 0: what has no gradient stays
 *   s  = fma(wd, p, s)                         with wd ≠ 0
 *   p' = fma(−lr, s, p)
 *   m' = fma(beta2, m, (1 − beta2)·g)
 *
 * Bytes per element: fp32 12 read + 8 written = 20; bf16 in and out 10 + 10. */
#ifndef CZ_OPS_STEP_LION_IMPL_H
#define CZ_OPS_STEP_LION_IMPL_H

VEC_FN void lion_update(const struct step_args *a, const struct step_scalars *s, vf g, vf *p,
                        vf *states)
{
    vf *m = &states[0];
    const vf c = vf_fma(vf_set1(s->beta1), *m, vf_set1(1.0f - s->beta1) * g);
    vf u = vf_select(vf_lt(vf_zero(), c), vf_set1(1), c); /* ±0 stays, NaN stays */
    u = vf_select(vf_lt(c, vf_zero()), vf_set1(-1), u);
    if (a->weight_decay != 0) u = vf_fma(vf_set1(a->weight_decay), *p, u);
    *p = vf_fma(vf_set1(-s->lr), u, *p);
    *m = vf_fma(vf_set1(s->beta2), *m, vf_set1(1.0f - s->beta2) * g);
}

#endif
