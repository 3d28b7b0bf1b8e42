/* The definition: one element after another (onebit_update_impl.h). */
#include "ops/onebit/onebit_impl.h"
#include "ops/onebit/onebit_update_impl.h"

/* ---- compression ----------------------------------------------------------------------------- */

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

static void feed(const struct onebit_feed_args *a, size_t begin, size_t end)
{
    for (size_t i = begin; i < end && a->g; i++)
        a->e[i] = onebit_fed(a->scalars, a->coeff, dtype_get(a->g, i, a->g_dtype), a->m != NULL,
                             a->m ? a->m[i] : 0, a->e[i]);
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
        a->e[i] -= onebit_signed(positive, *a->scale);
    }
}

static void serve(const struct onebit_serve_args *a, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++) {
        float y = 0;
        for (size_t q = 0; q < (size_t)a->n_ranks; q++)
            y += onebit_signed(onebit_bit(a->bits + q * a->rank_stride, i),
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
    return onebit_signed(positive, a->scales[chunk * a->scale_stride] / a->coeff);
}

static void unpack(const struct onebit_unpack_args *a, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++) {
        float *x = a->x + (i - a->begin), value = unpacked(a, i);
        if (a->fresh) onebit_follow(a->scalars, *x, value, a->fresh + (i - a->begin));
        *x = a->blend ? onebit_blended(a->blend, *x, value) : value;
    }
}

/* ---- around it ------------------------------------------------------------------------------- */

static void momentum(const struct onebit_momentum_args *a, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++)
        onebit_update_momentum(a->scalars, onebit_takes_part(&a->mask, i),
                               dtype_get(a->g, i, a->g_dtype), &a->m[i],
                               a->fresh ? &a->fresh[i] : NULL);
}

static void lamb_norms(const struct onebit_lamb_norms_args *a, size_t begin, size_t end,
                       struct lamb_sums *sums, float *factor)
{
    for (size_t i = begin; i < end; i++) {
        float u0, u;
        float ratio = onebit_norms_of(a, onebit_takes_part(&a->mask, i), a->m[i], a->v[i],
                                      a->fresh[i], a->p[i], &u0, &u);
        lamb_square_add(sums->p, u0);
        lamb_square_add(sums->u, u);
        if (ratio > *factor) *factor = ratio;
    }
}

static void local(const struct zero_one_args *a, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++) {
        float p = onebit_update_local(a, a->scalars, onebit_takes_part(&a->mask, i),
                                      dtype_get(a->g, i, a->g_dtype), a->v[i], a->p[i], &a->m[i],
                                      &a->moved[i]);
        dtype_put(a->out, i, a->out_dtype, p);
    }
}

static void gather(const struct zero_one_args *a, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++)
        a->moved[i] = onebit_gathered(a->eps, a->v[i], a->moved[i]);
}

static void settle(const struct zero_one_args *a, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++) {
        onebit_update_settle(a->eps, a->scalars->step_size, a->v[i], &a->m[i], &a->moved[i],
                             &a->p[i]);
        dtype_put(a->out, i, a->out_dtype, a->p[i]);
    }
}

const struct onebit_row onebit_scalar = {{"scalar", 0}, feed,       pack,  serve,  unpack,
                                         momentum,      lamb_norms, local, gather, settle};
