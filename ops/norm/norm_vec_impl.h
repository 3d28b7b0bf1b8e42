/* Body of the vector rows. Limit: memory (fp32, bytes per element: forward 8, with residual 16;
 * backward 12, accumulating 16). The second and third look at a row find it in L1 or L2.
 *
 * One row is C columns. A sum over it runs in N_SUMS interleaved vectors, joined in a fixed order.
 */
#include "ops/norm/norm_impl.h"

#include <math.h>
#include <string.h>

#define N_SUMS 4

/* One row at work: where its tensors start, its statistics, the sums being taken. */
struct norm_line {
    enum dtype dtype;
    bool centred, want_grads, accumulate;
    const void *x, *residual, *weight, *bias, *dy;
    void *sum, *y, *dx;
    float *dweight, *dbias;
    vf mean, rstd, mean_g, mean_g_xhat;
    vf sums[N_SUMS], sums_xhat[N_SUMS];
};

/* What is done to the n ≤ VF_N columns from c on; its sum goes to number k. */
typedef void (*norm_step)(struct norm_line *l, size_t c, size_t n, size_t k);

VEC_FN void walk(struct norm_line *l, size_t C, norm_step step)
{
    for (size_t k = 0; k < N_SUMS; k++) l->sums[k] = l->sums_xhat[k] = vf_zero();
    size_t c = 0;
    for (; c + N_SUMS * VF_N <= C; c += N_SUMS * VF_N)
        for (size_t k = 0; k < N_SUMS; k++) step(l, c + k * VF_N, VF_N, k);
    for (; c + VF_N <= C; c += VF_N) step(l, c, VF_N, 0);
    if (c < C) step(l, c, C - c, 1);
}

VEC_FN float join(const vf sums[N_SUMS])
{
    return vf_hsum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

/* s = x + residual, rounded as it is stored. */
VEC_FN void step_residual(struct norm_line *l, size_t c, size_t n, size_t k)
{
    (void)k;
    vf s = vf_get(l->x, c, l->dtype, n) + vf_get(l->residual, c, l->dtype, n);
    vf_put(l->sum, c, l->dtype, s, n);
}

VEC_FN void step_sum(struct norm_line *l, size_t c, size_t n, size_t k)
{
    l->sums[k] = l->sums[k] + vf_get(l->x, c, l->dtype, n);
}

/* (s − mean)², and nothing behind the row's end. */
VEC_FN void step_squares(struct norm_line *l, size_t c, size_t n, size_t k)
{
    vf d = vf_get(l->x, c, l->dtype, n);
    if (l->centred) d = d - l->mean;
    if (l->centred && n < VF_N) d = vf_first(d, n);
    l->sums[k] = vf_fma(d, d, l->sums[k]);
}

VEC_FN vf xhat_at(const struct norm_line *l, size_t c, size_t n)
{
    vf s = vf_get(l->x, c, l->dtype, n);
    if (l->centred) s = s - l->mean;
    return s * l->rstd;
}

VEC_FN void step_scale(struct norm_line *l, size_t c, size_t n, size_t k)
{
    (void)k;
    vf xhat = xhat_at(l, c, n), weight = vf_get(l->weight, c, l->dtype, n);
    vf y = xhat * weight;
    if (l->bias) y = vf_fma(xhat, weight, vf_get(l->bias, c, l->dtype, n));
    vf_put(l->y, c, l->dtype, y, n);
}

VEC_FN void forward_row(struct norm_line *l, size_t C, float eps, float *mean, float *rstd)
{
    if (l->residual) {
        walk(l, C, step_residual);
        l->x = l->sum;
    }
    if (l->centred) {
        walk(l, C, step_sum);
        *mean = join(l->sums) / (float)C;
        l->mean = vf_set1(*mean);
    }
    walk(l, C, step_squares);
    *rstd = 1.0f / sqrtf(join(l->sums) / (float)C + eps);
    l->rstd = vf_set1(*rstd);
    walk(l, C, step_scale);
}

VEC_FN void forward_of(enum dtype dtype, const struct norm_args *a, bool centred, int64_t begin,
                       int64_t end)
{
    const size_t C = (size_t)a->C;
    for (int64_t n = begin; n < end; n++) {
        struct norm_line l = {
            .dtype = dtype, .centred = centred, .weight = a->weight, .bias = a->bias};
        float mean = 0, rstd;
        size_t offset = (size_t)n * C * (dtype == DTYPE_F32 ? 4 : 2);
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
        OPS_BY_DTYPE(forward_of, a->dtype, a, true, begin, end);
    else
        OPS_BY_DTYPE(forward_of, a->dtype, a, false, begin, end);
}

/* Σ g and Σ g·xhat with g = dy·weight; this row's share of dweight and dbias. */
VEC_FN void step_gradient_sums(struct norm_line *l, size_t c, size_t n, size_t k)
{
    vf xhat = xhat_at(l, c, n), dy = vf_get(l->dy, c, l->dtype, n);
    vf g = dy * vf_get(l->weight, c, l->dtype, n); /* 0 behind the row's end */
    if (l->centred) l->sums[k] = l->sums[k] + g;
    l->sums_xhat[k] = vf_fma(g, xhat, l->sums_xhat[k]);
    if (!l->want_grads) return;
    vf_put(l->dweight, c, DTYPE_F32, vf_fma(dy, xhat, vf_get(l->dweight, c, DTYPE_F32, n)), n);
    if (l->centred) vf_put(l->dbias, c, DTYPE_F32, dy + vf_get(l->dbias, c, DTYPE_F32, n), n);
}

/* dx [+]= rstd·(g − mean(g) − xhat·mean(g·xhat)); without mean(g) when not centred. */
VEC_FN void step_dx(struct norm_line *l, size_t c, size_t n, size_t k)
{
    (void)k;
    vf xhat = xhat_at(l, c, n);
    vf g = vf_get(l->dy, c, l->dtype, n) * vf_get(l->weight, c, l->dtype, n);
    if (l->centred) g = g - l->mean_g;
    vf dx = vf_fnma(xhat, l->mean_g_xhat, g) * l->rstd;
    if (l->accumulate) dx = dx + vf_get(l->dx, c, l->dtype, n);
    vf_put(l->dx, c, l->dtype, dx, n);
}

VEC_FN void backward_row(struct norm_line *l, size_t C)
{
    walk(l, C, step_gradient_sums);
    l->mean_g = vf_set1(join(l->sums) / (float)C);
    l->mean_g_xhat = vf_set1(join(l->sums_xhat) / (float)C);
    walk(l, C, step_dx);
}

VEC_FN void backward_of(enum dtype dtype, const struct norm_args *a, bool centred, bool want_grads,
                        int64_t begin, int64_t end, float *dweight, float *dbias)
{
    const size_t C = (size_t)a->C;
    for (int64_t n = begin; n < end; n++) {
        struct norm_line l = {.dtype = dtype,
                              .centred = centred,
                              .want_grads = want_grads,
                              .accumulate = a->dx_accumulate,
                              .weight = a->weight,
                              .dweight = dweight,
                              .dbias = dbias};
        size_t offset = (size_t)n * C * (dtype == DTYPE_F32 ? 4 : 2);
        l.x = (const char *)a->x + offset;
        l.dy = (const char *)a->dy + offset;
        l.dx = (char *)a->dx + offset;
        l.mean = vf_set1(centred ? a->mean[n] : 0);
        l.rstd = vf_set1(a->rstd[n]);
        backward_row(&l, C);
    }
}

static void backward(const struct norm_args *a, bool centred, int64_t begin, int64_t end,
                     float *dweight, float *dbias)
{
    if (dweight) memset(dweight, 0, (size_t)a->C * sizeof *dweight);
    if (dbias) memset(dbias, 0, (size_t)a->C * sizeof *dbias);
    if (centred && dweight)
        OPS_BY_DTYPE(backward_of, a->dtype, a, true, true, begin, end, dweight, dbias);
    else if (centred)
        OPS_BY_DTYPE(backward_of, a->dtype, a, true, false, begin, end, NULL, NULL);
    else if (dweight)
        OPS_BY_DTYPE(backward_of, a->dtype, a, false, true, begin, end, dweight, NULL);
    else
        OPS_BY_DTYPE(backward_of, a->dtype, a, false, false, begin, end, NULL, NULL);
}
