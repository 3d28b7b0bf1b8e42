/* Body of the vector rows. Limit: memory (28 bytes per element). */
#include "ops/adam/adam_impl.h"
#include "ops/step/step_vec_impl.h"

struct adam_vec {
    vf grad_scale, beta1, one_beta1, beta2, one_beta2, inv_bias1, inv_sqrt_bias2, eps, wd, minus_lr;
    bool l2, decoupled;
};

VEC_FN struct adam_vec adam_vec_make(const struct adam_args *a)
{
    const struct step_scalars *s = a->scalars;
    return (struct adam_vec){
        .grad_scale = vf_set1(s->grad_scale),
        .beta1 = vf_set1(s->beta1),
        .one_beta1 = vf_set1(1.0f - s->beta1),
        .beta2 = vf_set1(s->beta2),
        .one_beta2 = vf_set1(1.0f - s->beta2),
        .inv_bias1 = vf_set1(s->inv_bias1),
        .inv_sqrt_bias2 = vf_set1(s->inv_sqrt_bias2),
        .eps = vf_set1(a->eps),
        .wd = vf_set1(a->weight_decay),
        .minus_lr = vf_set1(-s->lr),
        .l2 = a->weight_decay != 0 && !a->decoupled,
        .decoupled = a->weight_decay != 0 && a->decoupled,
    };
}

VEC_FN void adam_lanes(const struct step_tensors *t, const struct adam_vec *k, size_t i, size_t n)
{
    vf p = step_get(t->p, i, t->p_dtype, n);
    vf m = step_get(t->states[0], i, t->state_dtype, n);
    vf v = step_get(t->states[1], i, t->state_dtype, n);
    vf g = step_get(t->g, i, t->g_dtype, n) * k->grad_scale;
    if (k->l2) g = vf_fma(k->wd, p, g);
    m = vf_fma(k->beta1, m, k->one_beta1 * g);
    v = vf_fma(k->beta2, v, k->one_beta2 * (g * g));
    vf u = m * k->inv_bias1 / vf_fma(vf_sqrt(v), k->inv_sqrt_bias2, k->eps);
    if (k->decoupled) u = vf_fma(k->wd, p, u);
    step_put_out(t, i, vf_fma(k->minus_lr, u, p), n);
    step_put(t->states[0], i, t->state_dtype, m, n);
    step_put(t->states[1], i, t->state_dtype, v, n);
}

VEC_FN void adam_loop(const struct step_tensors *t, const struct adam_vec *k, size_t begin,
                      size_t end)
{
    size_t i = begin;
    for (; i + VF_N <= end; i += VF_N) adam_lanes(t, k, i, VF_N);
    if (i < end) adam_lanes(t, k, i, end - i);
}

static void step(const struct adam_args *a, size_t begin, size_t end)
{
    struct adam_vec k = adam_vec_make(a);
    STEP_BY_DTYPES(adam_loop, &a->t, &k, begin, end);
}
