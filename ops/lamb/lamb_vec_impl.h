/* Body of the vector rows. Limit: pass 0 arithmetic (the exact sums), pass 1 memory. */
#include "ops/lamb/lamb_sums_vec_impl.h"
#include "ops/step/step_vec_impl.h"

struct lamb_vec {
    vf grad_scale, beta1, one_beta1, beta2, one_beta2, eps, wd, minus_step;
    bool eps_inside_sqrt, decay;
};

VEC_FN struct lamb_vec lamb_vec_make(const struct lamb_args *a, float step)
{
    const struct step_scalars *s = a->scalars;
    return (struct lamb_vec){
        .grad_scale = vf_set1(s->grad_scale),
        .beta1 = vf_set1(s->beta1),
        .one_beta1 = vf_set1(1.0f - s->beta1),
        .beta2 = vf_set1(s->beta2),
        .one_beta2 = vf_set1(1.0f - s->beta2),
        .eps = vf_set1(a->eps),
        .wd = vf_set1(a->weight_decay),
        .minus_step = vf_set1(-step),
        .eps_inside_sqrt = a->eps_inside_sqrt,
        .decay = a->weight_decay != 0,
    };
}

VEC_FN vf lamb_update(const struct lamb_vec *k, vf p, vf m, vf v)
{
    vf root = k->eps_inside_sqrt ? vf_sqrt(v + k->eps) : vf_sqrt(v);
    vf u = m / (k->eps_inside_sqrt ? root : (vf)(root + k->eps));
    return k->decay ? vf_fma(k->wd, p, u) : u;
}

/* ---- passes ---------------------------------------------------------------------------------- */

/* Moments of n elements from i on; p and u (VF_N values, 0 behind n) for the sums. */
VEC_FN void moments_lanes(const struct step_tensors *t, const struct lamb_vec *k, size_t i,
                          size_t n, float *p_out, float *u_out)
{
    vf p = step_get(t->p, i, t->p_dtype, n);
    vf m = step_get(t->states[0], i, DTYPE_F32, n);
    vf v = step_get(t->states[1], i, DTYPE_F32, n);
    vf g = step_get(t->g, i, t->g_dtype, n) * k->grad_scale;
    m = vf_fma(k->beta1, m, k->one_beta1 * g);
    v = vf_fma(k->beta2, v, k->one_beta2 * (g * g));
    step_put(t->states[0], i, DTYPE_F32, m, n);
    step_put(t->states[1], i, DTYPE_F32, v, n);
    vf_store(p_out, 0, DTYPE_F32, p);
    vf_store(u_out, 0, DTYPE_F32, vf_first(lamb_update(k, p, m, v), n));
}

static void moments(const struct lamb_args *a, size_t begin, size_t end, struct lamb_sums *sums)
{
    struct lamb_vec k = lamb_vec_make(a, 0);
    float p[LAMB_BLOCK], u[LAMB_BLOCK];
    for (size_t at = begin; at < end; at += LAMB_BLOCK) {
        size_t numel = end - at < LAMB_BLOCK ? end - at : LAMB_BLOCK;
        size_t n = 0;
        for (; n + VF_N <= numel; n += VF_N) moments_lanes(&a->t, &k, at + n, VF_N, p + n, u + n);
        if (n < numel) {
            moments_lanes(&a->t, &k, at + n, numel - n, p + n, u + n);
            n += VF_N;
        }
        lamb_block_sum(p, n, sums->p);
        lamb_block_sum(u, n, sums->u);
    }
}

VEC_FN void apply_lanes(const struct step_tensors *t, const struct lamb_vec *k, size_t i, size_t n)
{
    vf p = step_get(t->p, i, t->p_dtype, n);
    vf m = step_get(t->states[0], i, DTYPE_F32, n);
    vf v = step_get(t->states[1], i, DTYPE_F32, n);
    step_put_out(t, i, vf_fma(k->minus_step, lamb_update(k, p, m, v), p), n);
}

static void apply(const struct lamb_args *a, float step, size_t begin, size_t end)
{
    struct lamb_vec k = lamb_vec_make(a, step);
    size_t i = begin;
    for (; i + VF_N <= end; i += VF_N) apply_lanes(&a->t, &k, i, VF_N);
    if (i < end) apply_lanes(&a->t, &k, i, end - i);
}
