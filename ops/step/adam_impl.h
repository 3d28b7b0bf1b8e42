/* Adam and AdamW in one pass. States: exp_avg m, exp_avg_sq v.
 *
 *   g  = float(g) · grad_scale
 *   g  = fma(wd, p, g)                         L2 mode with wd ≠ 0
 *   m' = fma(beta1, m, (1 − beta1)·g)
 *   v' = fma(beta2, v, (1 − beta2)·(g·g))
 *   u  = (m'·inv_bias1) / fma(√v', inv_sqrt_bias2, eps)
 *   u  = fma(wd, p, u)                         decoupled mode with wd ≠ 0
 *   p' = fma(−lr, u, p)
 *
 * DeepSpeed's fused form: eps is outside the root and is not scaled by the bias correction; the
 * decay joins the update before the learning rate multiplies both, so a small lr·wd is not lost.
 *
 * Bytes per element: fp32 gradient and fp32 model 16 read + 12 written = 28; bf16 gradient and bf16
 * parameter 14 read + 14 written = 28. */
#ifndef CZ_OPS_STEP_ADAM_IMPL_H
#define CZ_OPS_STEP_ADAM_IMPL_H

VEC_FN void adam_update(const struct step_args *a, const struct step_scalars *s, vf g, vf *p,
                        vf *states)
{
    const vf wd = vf_set1(a->weight_decay);
    vf *m = &states[0], *v = &states[1];
    if (a->weight_decay != 0 && !a->decoupled) g = vf_fma(wd, *p, g);
    *m = vf_fma(vf_set1(s->beta1), *m, vf_set1(1.0f - s->beta1) * g);
    *v = vf_fma(vf_set1(s->beta2), *v, vf_set1(1.0f - s->beta2) * (g * g));
    const vf root = vf_fma(vf_sqrt(*v), vf_set1(s->inv_sqrt_bias2), vf_set1(a->eps));
    vf u = *m * vf_set1(s->inv_bias1) / root;
    if (a->weight_decay != 0 && a->decoupled) u = vf_fma(wd, *p, u);
    *p = vf_fma(vf_set1(-s->lr), u, *p);
}

#endif
