/* Body of the vector rows. Limit: memory (20 bytes per element with momentum). */
#include "ops/sgd/sgd_impl.h"
#include "ops/step/step_vec_impl.h"

struct sgd_vec {
    vf grad_scale, momentum, one_dampening, wd, minus_lr;
    bool has_momentum, is_first, nesterov, decay;
};

VEC_FN void sgd_lanes(const struct step_tensors *t, const struct sgd_vec *k, size_t i, size_t n)
{
    vf p = step_get(t->p, i, t->p_dtype, n);
    vf g = step_get(t->g, i, t->g_dtype, n) * k->grad_scale;
    if (k->decay) g = vf_fma(k->wd, p, g);
    if (k->has_momentum) {
        vf b = g;
        if (!k->is_first)
            b = vf_fma(k->momentum, step_get(t->states[0], i, t->state_dtype, n),
                       k->one_dampening * g);
        step_put(t->states[0], i, t->state_dtype, b, n);
        g = k->nesterov ? vf_fma(k->momentum, b, g) : b;
    }
    step_put_out(t, i, vf_fma(k->minus_lr, g, p), n);
}

VEC_FN void sgd_loop(const struct step_tensors *t, const struct sgd_vec *k, size_t begin,
                     size_t end)
{
    size_t i = begin;
    for (; i + VF_N <= end; i += VF_N) sgd_lanes(t, k, i, VF_N);
    if (i < end) sgd_lanes(t, k, i, end - i);
}

static void step(const struct sgd_args *a, size_t begin, size_t end)
{
    struct sgd_vec k = {
        .grad_scale = vf_set1(a->scalars->grad_scale),
        .momentum = vf_set1(a->momentum),
        .one_dampening = vf_set1(1.0f - a->dampening),
        .wd = vf_set1(a->weight_decay),
        .minus_lr = vf_set1(-a->scalars->lr),
        .has_momentum = a->momentum != 0,
        .is_first = a->scalars->is_first != 0,
        .nesterov = a->nesterov,
        .decay = a->weight_decay != 0,
    };
    STEP_BY_DTYPES(sgd_loop, &a->t, &k, begin, end);
}
