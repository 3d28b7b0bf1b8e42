/* The definition. Channels are taken in blocks, so that weights stored (I,O) and gradients are gone
 * over along their rows; a sum has the same order however channels are cut. */
#include "ops/dora/dora_impl.h"

#include <math.h>

enum { BLOCK = 64, LANES = 16 };

static float inverse(float sumsq)
{
    return sumsq > 0.0f ? 1.0f / sqrtf(sumsq) : 0.0f;
}

/* Widened, without a choice of type for each element. */
static void load(enum cz_dtype dtype, const void *x, size_t off, int n, float *out)
{
    if (dtype == DTYPE_F32) {
        for (int i = 0; i < n; i++) out[i] = ((const float *)x)[off + (size_t)i];
    } else if (dtype == DTYPE_BF16) {
        for (int i = 0; i < n; i++) out[i] = bf16_to_f32(((const uint16_t *)x)[off + (size_t)i]);
    } else {
        for (int i = 0; i < n; i++) out[i] = dtype_get(x, off + (size_t)i, dtype);
    }
}

/* Of one row, in LANES sums: element i belongs to lane i % LANES. */
static float row_sumsq(const struct dora_norm_args *a, int64_t o)
{
    float lanes[LANES] = {0}, v[LANES], sum = 0;
    for (int64_t i = 0; i < a->I; i += LANES) {
        const int n = a->I - i < LANES ? (int)(a->I - i) : LANES;
        load(a->dtype, a->v, (size_t)(o * a->I + i), n, v);
        for (int k = 0; k < n; k++) lanes[k] += v[k] * v[k];
    }
    for (int k = 0; k < LANES; k++) sum += lanes[k];
    return sum;
}

static void norm_in_out(const struct dora_norm_args *a, int64_t begin, int64_t end)
{
    for (int64_t o = begin; o < end; o += BLOCK) {
        const int n = end - o < BLOCK ? (int)(end - o) : BLOCK;
        float sums[BLOCK] = {0}, v[BLOCK];
        for (int64_t i = 0; i < a->I; i++) {
            load(a->dtype, a->v, (size_t)(i * a->O + o), n, v);
            for (int k = 0; k < n; k++) sums[k] += v[k] * v[k];
        }
        for (int k = 0; k < n; k++) a->inv_norm[o + k] = inverse(sums[k]);
    }
}

static void norm(const struct dora_norm_args *a, int64_t begin, int64_t end)
{
    if (a->in_out)
        norm_in_out(a, begin, end);
    else
        for (int64_t o = begin; o < end; o++) a->inv_norm[o] = inverse(row_sumsq(a, o));
}

/* Elements [off, off + n), with one factor or one for each. */
static void scale_run(const struct dora_scale_args *a, size_t off, int n, const float *g, int step)
{
    float x[BLOCK], w[BLOCK], y[BLOCK];
    load(a->x_dtype, a->x, off, n, x);
    if (a->w) load(a->dtype, a->w, off, n, w);
    if (a->accumulate) load(a->y_dtype, a->y, off, n, y);
    for (int k = 0; k < n; k++) {
        float value = g[k * step] * x[k];
        if (a->w) value -= w[k];
        dtype_put(a->y, off + (size_t)k, a->y_dtype, a->accumulate ? y[k] + value : value);
    }
}

static void scale(const struct dora_scale_args *a, int64_t begin, int64_t end)
{
    for (int64_t o = begin; o < end; o += BLOCK) {
        const int n = end - o < BLOCK ? (int)(end - o) : BLOCK;
        float g[BLOCK];
        load(a->dtype, a->m, (size_t)o, n, g);
        for (int k = 0; k < n; k++) g[k] *= a->inv_norm[o + k];
        if (a->in_out) {
            for (int64_t i = 0; i < a->I; i++) scale_run(a, (size_t)(i * a->O + o), n, g, 1);
            continue;
        }
        for (int k = 0; k < n; k++)
            for (int64_t i = 0; i < a->I; i += BLOCK)
                scale_run(a, (size_t)((o + k) * a->I + i),
                          a->I - i < BLOCK ? (int)(a->I - i) : BLOCK, &g[k], 0);
    }
}

static void grad(const struct dora_grad_args *a, int64_t begin, int64_t end)
{
    for (int64_t o = begin; o < end; o += BLOCK) {
        const int n = end - o < BLOCK ? (int)(end - o) : BLOCK;
        float sums[BLOCK] = {0}, dy[BLOCK], h[BLOCK];
        for (int64_t row = 0; row < a->N; row++) {
            load(a->dtype, a->dy, (size_t)(row * a->O + o), n, dy);
            load(a->dtype, a->h, (size_t)(row * a->O + o), n, h);
            for (int k = 0; k < n; k++) sums[k] += dy[k] * h[k];
        }
        for (int k = 0; k < n; k++) {
            const float value = sums[k] * a->inv_norm[o + k];
            const size_t at = (size_t)(o + k);
            dtype_put(a->dm, at, a->grad_dtype,
                      a->accumulate ? dtype_get(a->dm, at, a->grad_dtype) + value : value);
        }
    }
}

const struct dora_row dora_scalar = {{"scalar", 0}, norm, scale, grad};
