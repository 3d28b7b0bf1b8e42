/* The definition: one element after another, in the sequence that onebit.h writes down. */
#include "ops/onebit/onebit_impl.h"

#include <math.h>

/* ---- compression ---------------------------------------------------------------------------- */

static float with_sign(bool positive, float scale)
{
    return positive ? scale : -scale;
}

/* Adds squares of e[begin …, end) up, for one block. */
static double block_squares(const float *e, size_t begin, size_t end)
{
    double lanes[ONEBIT_LANES] = {0};
    for (size_t i = begin; i < end; i++)
        lanes[(i - begin) % ONEBIT_LANES] += (double)e[i] * (double)e[i];
    return onebit_lanes_sum(lanes);
}

static void squares(const float *e, double *partials, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i += ONEBIT_BLOCK)
        partials[i / ONEBIT_BLOCK] = block_squares(e, i, onebit_block_end(i, end));
}

static float fed(const struct onebit_feed_args *a, size_t i)
{
    const struct step_scalars *s = a->scalars;
    float x = dtype_get(a->g, i, a->g_dtype) * s->grad_scale;
    if (a->m) x = fmaf(s->beta1, a->m[i], (1.0f - s->beta1) * x);
    return x;
}

static void feed(const struct onebit_feed_args *a, size_t begin, size_t end)
{
    for (size_t i = begin; i < end && a->g; i++) a->e[i] = fed(a, i) * a->coeff + a->e[i];
    squares(a->e, a->partials, begin, end);
}

static void pack(const struct onebit_pack_args *a, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++) {
        size_t chunk = i / a->chunk_numel, at = i % a->chunk_numel;
        uint8_t *byte = a->bits + chunk * a->chunk_stride + at / 8;
        bool positive = a->e[i] >= 0;
        if (at % 8 == 0) *byte = 0;
        *byte |= (uint8_t)(positive << (7 - at % 8));
        a->e[i] -= with_sign(positive, *a->scale);
    }
}

static void serve(const struct onebit_serve_args *a, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++) {
        float y = 0;
        for (size_t q = 0; q < (size_t)a->n_ranks; q++)
            y += with_sign(onebit_bit(a->bits + q * a->rank_stride, i),
                           a->scales[q * a->scale_stride]);
        a->e[i] = fmaf(y, a->inv_ranks, a->e[i]);
    }
    squares(a->e, a->partials, begin, end);
}

static float unpacked(const struct onebit_unpack_args *a, size_t i)
{
    size_t chunk = i / a->chunk_numel, at = i % a->chunk_numel;
    if (!onebit_takes_part(&a->mask, i - a->begin)) return 0;
    bool positive = onebit_bit(a->bits + chunk * a->chunk_stride, at);
    return with_sign(positive, a->scales[chunk * a->scale_stride] / a->coeff);
}

/* fresh follows the gradient that led the momentum from `before` to `after`. */
static void follow(float *fresh, const struct step_scalars *s, float before, float after)
{
    float g = (after - s->beta1 * before) / (1.0f - s->beta1);
    *fresh = fmaf(s->beta2, *fresh, (1.0f - s->beta2) * (g * g));
}

static void unpack(const struct onebit_unpack_args *a, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++) {
        float *x = a->x + (i - a->begin), value = unpacked(a, i);
        if (a->fresh) follow(a->fresh + (i - a->begin), a->scalars, *x, value);
        if (a->blend) value = fmaf(a->blend->beta1, *x, (1.0f - a->blend->beta1) * value);
        *x = value;
    }
}

/* ---- around it ------------------------------------------------------------------------------ */

static void momentum(const struct onebit_momentum_args *a, size_t begin, size_t end)
{
    const struct step_scalars *s = a->scalars;
    for (size_t i = begin; i < end; i++) {
        bool takes_part = onebit_takes_part(&a->mask, i);
        float g = takes_part ? dtype_get(a->g, i, a->g_dtype) * s->grad_scale : 0;
        a->m[i] = takes_part ? fmaf(s->beta1, a->m[i], (1.0f - s->beta1) * g) : 0;
        if (a->fresh) a->fresh[i] = fmaf(s->beta2, a->fresh[i], (1.0f - s->beta2) * (g * g));
    }
}

static void lamb_norms(const struct onebit_lamb_norms_args *a, size_t begin, size_t end,
                       struct lamb_sums *sums, float *factor)
{
    for (size_t i = begin; i < end; i++) {
        float d = sqrtf(a->v[i]) + a->eps, u0 = a->m[i] / d;
        float u = a->weight_decay != 0 ? fmaf(a->weight_decay, a->p[i], u0) : u0;
        lamb_square_add(sums->p, u0);
        lamb_square_add(sums->u, u);
        float ratio = d / (sqrtf(a->fresh[i]) + a->eps);
        if (onebit_takes_part(&a->mask, i) && ratio > *factor) *factor = ratio;
    }
}

static void local(const struct zero_one_args *a, size_t begin, size_t end)
{
    const struct step_scalars *s = a->scalars;
    for (size_t i = begin; i < end; i++) {
        bool takes_part = onebit_takes_part(&a->mask, i);
        float g = dtype_get(a->g, i, a->g_dtype) * s->grad_scale;
        float m = fmaf(s->beta1, a->m[i], (1.0f - s->beta1) * g);
        float u = m / (sqrtf(a->v[i]) + a->eps);
        if (!takes_part) m = u = 0;
        if (a->weight_decay != 0) u = fmaf(a->weight_decay, a->p[i] + a->moved[i], u);
        a->m[i] = m;
        a->moved[i] = fmaf(-s->lr, u, a->moved[i]);
        dtype_put(a->out, i, a->out_dtype, a->p[i] + a->moved[i]);
    }
}

static void gather(const struct zero_one_args *a, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++) a->moved[i] *= sqrtf(a->v[i]) + a->eps;
}

static void settle(const struct zero_one_args *a, size_t begin, size_t end)
{
    float step_size = a->scalars->step_size;
    for (size_t i = begin; i < end; i++) {
        if (step_size != 0) a->m[i] = -a->moved[i] / step_size;
        a->p[i] += a->moved[i] / (sqrtf(a->v[i]) + a->eps);
        a->moved[i] = 0;
        dtype_put(a->out, i, a->out_dtype, a->p[i]);
    }
}

const struct onebit_row onebit_scalar = {{"scalar", 0}, feed,       pack,  serve,  unpack,
                                         momentum,      lamb_norms, local, gather, settle};
