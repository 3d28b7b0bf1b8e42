/* Body of the vector rows. Limit: memory (fp32, bytes per element: forward 8, with residual 16;
 * backward 12, accumulating 16). The second and third look at a row find it in L1 or L2, and fetch
 * the next row meanwhile.
 *
 * One row is C columns. A sum over it runs in N_SUMS interleaved vectors, joined in a fixed order.
 */
#include "ops/norm/norm_impl.h"

#include <math.h>
#include <string.h>

#define N_SUMS 4
#define STEP   (2 * VF_N) /* columns per step */

/* One row at work: where its tensors start, its statistics, the sums being taken. */
struct norm_line {
    enum cz_dtype dtype;
    bool centred, want_grads;
    const void *x, *residual, *weight, *bias, *dy, *dx_add;
    void *sum, *y, *dx;
    float *dweight, *dbias;
    vf offset, mean, rstd, mean_g, mean_g_xhat;
    vf sums[N_SUMS], sums_xhat[N_SUMS];
};

/* What is done to the n ≤ STEP columns from c on; its sums go to numbers k and k + 1. */
typedef void (*norm_step)(struct norm_line *l, size_t c, size_t n, size_t k);

VEC_FN void walk(struct norm_line *l, size_t C, norm_step step)
{
    for (size_t k = 0; k < N_SUMS; k++) l->sums[k] = l->sums_xhat[k] = vf_zero();
    size_t c = 0;
    for (; c + 2 * STEP <= C; c += 2 * STEP) {
        step(l, c, STEP, 0);
        step(l, c + STEP, STEP, 2);
    }
    if (c + STEP <= C) {
        step(l, c, STEP, 0);
        c += STEP;
    }
    if (c < C) step(l, c, C - c, 2);
}

VEC_FN float join(const vf sums[N_SUMS])
{
    return vf_hsum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

VEC_FN void add_to_sums(struct norm_line *l, vf2 s, size_t k)
{
    l->sums[k] = l->sums[k] + s.a;
    l->sums[k + 1] = l->sums[k + 1] + s.b;
}

/* s = x + residual, and Σ s where its store does not round it. */
VEC_FN void step_residual(struct norm_line *l, size_t c, size_t n, size_t k)
{
    vf2 s = vf2_add(vf2_get(l->x, c, l->dtype, n), vf2_get(l->residual, c, l->dtype, n));
    vf2_put(l->sum, c, l->dtype, s, n);
    if (l->dtype == DTYPE_F32) add_to_sums(l, s, k);
}

VEC_FN void step_sum(struct norm_line *l, size_t c, size_t n, size_t k)
{
    add_to_sums(l, vf2_get(l->x, c, l->dtype, n), k);
}

VEC_FN vf2 centred_at(const struct norm_line *l, size_t c, size_t n)
{
    vf2 s = vf2_get(l->x, c, l->dtype, n);
    return l->centred ? (vf2){s.a - l->mean, s.b - l->mean} : s;
}

/* (s − mean)², and nothing behind the row's end. */
VEC_FN void step_squares(struct norm_line *l, size_t c, size_t n, size_t k)
{
    vf2 d = centred_at(l, c, n);
    if (l->centred && n < STEP) d = vf2_first(d, n);
    l->sums[k] = vf_fma(d.a, d.a, l->sums[k]);
    l->sums[k + 1] = vf_fma(d.b, d.b, l->sums[k + 1]);
}

VEC_FN vf2 xhat_at(const struct norm_line *l, size_t c, size_t n)
{
    vf2 d = centred_at(l, c, n);
    return (vf2){d.a * l->rstd, d.b * l->rstd};
}

VEC_FN vf2 weight_at(const struct norm_line *l, size_t c, size_t n)
{
    vf2 w = vf2_get(l->weight, c, l->dtype, n);
    return (vf2){w.a + l->offset, w.b + l->offset};
}

VEC_FN void step_scale(struct norm_line *l, size_t c, size_t n, size_t k)
{
    (void)k;
    vf2 xhat = xhat_at(l, c, n), weight = weight_at(l, c, n);
    vf2 y =
        l->bias ? vf2_fma(xhat, weight, vf2_get(l->bias, c, l->dtype, n)) : vf2_mul(xhat, weight);
    vf2_put(l->y, c, l->dtype, y, n);
}

VEC_FN void forward_row(struct norm_line *l, size_t C, float eps, float *mean, float *rstd)
{
    if (l->residual) {
        walk(l, C, step_residual);
        l->x = l->sum;
    }
    if (l->centred) {
        if (!l->residual || l->dtype != DTYPE_F32) walk(l, C, step_sum);
        *mean = join(l->sums) / (float)C;
        l->mean = vf_set1(*mean);
    }
    walk(l, C, step_squares);
    *rstd = 1.0f / sqrtf(join(l->sums) / (float)C + eps);
    l->rstd = vf_set1(*rstd);
    walk(l, C, step_scale);
}

VEC_FN void forward_of(enum cz_dtype dtype, const struct norm_args *a, bool centred, int64_t begin,
                       int64_t end)
{
    const size_t C = (size_t)a->C, row_nbytes = C * (dtype == DTYPE_F32 ? 4 : 2);
    for (int64_t n = begin; n < end; n++) {
        struct norm_line l = {
            .dtype = dtype, .centred = centred, .weight = a->weight, .bias = a->bias};
        float mean = 0, rstd;
        l.offset = vf_set1(a->offset);
        size_t offset = (size_t)n * row_nbytes;
        l.x = (const char *)a->x + offset;
        l.residual = a->residual ? (const char *)a->residual + offset : NULL;
        l.sum = a->sum ? (char *)a->sum + offset : NULL;
        l.y = (char *)a->y + offset;
        forward_row(&l, C, a->eps, &mean, &rstd);
        if (centred && a->mean) a->mean[n] = mean;
        if (a->rstd) a->rstd[n] = rstd;
    }
}

static void forward(const struct norm_args *a, bool centred, int64_t begin, int64_t end)
{
    if (centred)
        DTYPE_CALL(forward_of, a->dtype, a, true, begin, end);
    else
        DTYPE_CALL(forward_of, a->dtype, a, false, begin, end);
}

/* Σ g and Σ g·xhat with g = dy·weight; this row's share of dweight and dbias. */
VEC_FN void step_gradient_sums(struct norm_line *l, size_t c, size_t n, size_t k)
{
    vf2 xhat = xhat_at(l, c, n), dy = vf2_get(l->dy, c, l->dtype, n);
    vf2 g = vf2_mul(dy, weight_at(l, c, n)); /* 0 behind the row's end */
    if (l->centred) {
        l->sums[k] = l->sums[k] + g.a;
        l->sums[k + 1] = l->sums[k + 1] + g.b;
    }
    l->sums_xhat[k] = vf_fma(g.a, xhat.a, l->sums_xhat[k]);
    l->sums_xhat[k + 1] = vf_fma(g.b, xhat.b, l->sums_xhat[k + 1]);
    if (!l->want_grads) return;
    vf2_put(l->dweight, c, DTYPE_F32, vf2_fma(dy, xhat, vf2_get(l->dweight, c, DTYPE_F32, n)), n);
    if (l->centred)
        vf2_put(l->dbias, c, DTYPE_F32, vf2_add(vf2_get(l->dbias, c, DTYPE_F32, n), dy), n);
}

/* rstd·(g − mean(g) − xhat·mean(g·xhat)); without mean(g) when not centred. */
VEC_FN vf dx_of(const struct norm_line *l, vf g, vf xhat)
{
    if (l->centred) g = g - l->mean_g;
    return vf_fnma(xhat, l->mean_g_xhat, g) * l->rstd;
}

VEC_FN void step_dx(struct norm_line *l, size_t c, size_t n, size_t k)
{
    (void)k;
    vf2 xhat = xhat_at(l, c, n);
    vf2 g = vf2_mul(vf2_get(l->dy, c, l->dtype, n), weight_at(l, c, n));
    vf2 dx = {dx_of(l, g.a, xhat.a), dx_of(l, g.b, xhat.b)};
    if (l->dx_add) dx = vf2_add(dx, vf2_get(l->dx_add, c, l->dtype, n));
    vf2_put(l->dx, c, l->dtype, dx, n);
}

VEC_FN void backward_row(struct norm_line *l, size_t C)
{
    walk(l, C, step_gradient_sums);
    l->mean_g = vf_set1(join(l->sums) / (float)C);
    l->mean_g_xhat = vf_set1(join(l->sums_xhat) / (float)C);
    walk(l, C, step_dx);
}

VEC_FN void backward_of(enum cz_dtype dtype, const struct norm_args *a, bool centred,
                        bool want_grads, int64_t begin, int64_t end, float *dweight, float *dbias)
{
    const size_t C = (size_t)a->C, row_nbytes = C * (dtype == DTYPE_F32 ? 4 : 2);
    for (int64_t n = begin; n < end; n++) {
        struct norm_line l = {.dtype = dtype,
                              .centred = centred,
                              .want_grads = want_grads,
                              .weight = a->weight,
                              .dweight = dweight,
                              .dbias = dbias};
        size_t offset = (size_t)n * row_nbytes;
        l.x = (const char *)a->x + offset;
        l.dy = (const char *)a->dy + offset;
        l.dx = (char *)a->dx + offset;
        l.dx_add = a->dx_add ? (const char *)a->dx_add + offset : NULL;
        l.offset = vf_set1(a->offset);
        l.mean = vf_set1(centred ? a->mean[n] : 0);
        l.rstd = vf_set1(a->rstd[n]);
        backward_row(&l, C);
    }
}

static void backward(const struct norm_args *a, bool centred, int64_t begin, int64_t end,
                     float *dweight, float *dbias)
{
    const size_t C = (size_t)a->C;
    if (dweight) memset(dweight, 0, C * sizeof *dweight);
    if (dbias) memset(dbias, 0, C * sizeof *dbias);
    if (centred && dweight)
        DTYPE_CALL(backward_of, a->dtype, a, true, true, begin, end, dweight, dbias);
    else if (centred)
        DTYPE_CALL(backward_of, a->dtype, a, true, false, begin, end, NULL, NULL);
    else if (dweight)
        DTYPE_CALL(backward_of, a->dtype, a, false, true, begin, end, dweight, NULL);
    else
        DTYPE_CALL(backward_of, a->dtype, a, false, false, begin, end, NULL, NULL);
    if (dweight) floats_interleave(dweight, C, a->dtype);
    if (dbias) floats_interleave(dbias, C, a->dtype);
}
