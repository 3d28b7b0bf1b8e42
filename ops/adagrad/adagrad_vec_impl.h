/* Body of the vector rows. Limit: memory (20 bytes per element). */
#include "ops/adagrad/adagrad_impl.h"
#include "ops/step/step_vec_impl.h"

struct adagrad_vec {
    vf grad_scale, eps, wd, minus_step;
    bool decay;
};

VEC_FN void adagrad_lanes(const struct step_tensors *t, const struct adagrad_vec *k, size_t i,
                          size_t n)
{
    vf p = step_get(t->p, i, t->p_dtype, n);
    vf sum = step_get(t->states[0], i, t->state_dtype, n);
    vf g = step_get(t->g, i, t->g_dtype, n) * k->grad_scale;
    if (k->decay) g = vf_fma(k->wd, p, g);
    sum = vf_fma(g, g, sum);
    step_put_out(t, i, vf_fma(k->minus_step, g / (vf_sqrt(sum) + k->eps), p), n);
    step_put(t->states[0], i, t->state_dtype, sum, n);
}

VEC_FN void adagrad_loop(const struct step_tensors *t, const struct adagrad_vec *k, size_t begin,
                         size_t end)
{
    size_t i = begin;
    for (; i + VF_N <= end; i += VF_N) adagrad_lanes(t, k, i, VF_N);
    if (i < end) adagrad_lanes(t, k, i, end - i);
}

static void step(const struct adagrad_args *a, size_t begin, size_t end)
{
    struct adagrad_vec k = {
        .grad_scale = vf_set1(a->scalars->grad_scale),
        .eps = vf_set1(a->eps),
        .wd = vf_set1(a->weight_decay),
        .minus_step = vf_set1(-a->scalars->step_size),
        .decay = a->weight_decay != 0,
    };
    STEP_BY_DTYPES(adagrad_loop, &a->t, &k, begin, end);
}
