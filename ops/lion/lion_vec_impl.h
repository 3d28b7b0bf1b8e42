/* Body of the vector rows. Limit: memory (20 bytes per element). */
#include "ops/lion/lion_impl.h"
#include "ops/step/step_vec_impl.h"

struct lion_vec {
    vf grad_scale, beta1, one_beta1, beta2, one_beta2, wd, minus_lr;
    bool decay;
};

VEC_FN vf lion_sign(vf c)
{
    vf positive = vf_select(vf_lt(vf_zero(), c), vf_set1(1), c);
    return vf_select(vf_lt(c, vf_zero()), vf_set1(-1), positive);
}

VEC_FN void lion_lanes(const struct step_tensors *t, const struct lion_vec *k, size_t i, size_t n)
{
    vf p = step_get(t->p, i, t->p_dtype, n);
    vf m = step_get(t->states[0], i, t->state_dtype, n);
    vf g = step_get(t->g, i, t->g_dtype, n) * k->grad_scale;
    vf u = lion_sign(vf_fma(k->beta1, m, k->one_beta1 * g));
    if (k->decay) u = vf_fma(k->wd, p, u);
    step_put_out(t, i, vf_fma(k->minus_lr, u, p), n);
    step_put(t->states[0], i, t->state_dtype, vf_fma(k->beta2, m, k->one_beta2 * g), n);
}

VEC_FN void lion_loop(const struct step_tensors *t, const struct lion_vec *k, size_t begin,
                      size_t end)
{
    size_t i = begin;
    for (; i + VF_N <= end; i += VF_N) lion_lanes(t, k, i, VF_N);
    if (i < end) lion_lanes(t, k, i, end - i);
}

static void step(const struct lion_args *a, size_t begin, size_t end)
{
    const struct step_scalars *s = a->scalars;
    struct lion_vec k = {
        .grad_scale = vf_set1(s->grad_scale),
        .beta1 = vf_set1(s->beta1),
        .one_beta1 = vf_set1(1.0f - s->beta1),
        .beta2 = vf_set1(s->beta2),
        .one_beta2 = vf_set1(1.0f - s->beta2),
        .wd = vf_set1(a->weight_decay),
        .minus_lr = vf_set1(-s->lr),
        .decay = a->weight_decay != 0,
    };
    STEP_BY_DTYPES(lion_loop, &a->t, &k, begin, end);
}
