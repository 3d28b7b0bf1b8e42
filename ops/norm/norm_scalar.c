/* The definition, with sums in double so that it can be the yardstick. C columns, row n. */
#include "ops/norm/norm_impl.h"

#include <math.h>
#include <string.h>

static double mean_of(const void *s, size_t first, size_t C, enum cz_dtype dtype)
{
    double sum = 0;
    for (size_t c = 0; c < C; c++) sum += dtype_get(s, first + c, dtype);
    return sum / (double)C;
}

static double mean_square_of(const void *s, size_t first, size_t C, enum cz_dtype dtype,
                             double mean)
{
    double sum = 0;
    for (size_t c = 0; c < C; c++) {
        double centred = dtype_get(s, first + c, dtype) - mean;
        sum += centred * centred;
    }
    return sum / (double)C;
}

static double weight_of(const struct norm_args *a, size_t c)
{
    return (double)dtype_get(a->weight, c, a->dtype) + a->offset;
}

/* The residual's sum is rounded to the dtype first and normalized as stored, because backward reads
 * it back. */
static void forward(const struct norm_args *a, bool centred, int64_t begin, int64_t end)
{
    const size_t C = (size_t)a->C;
    const enum cz_dtype dtype = a->dtype;
    for (int64_t n = begin; n < end; n++) {
        size_t first = (size_t)n * C;
        const void *s = a->x;
        if (a->residual) {
            for (size_t i = first; i < first + C; i++)
                dtype_put(a->sum, i, dtype,
                          dtype_get(a->x, i, dtype) + dtype_get(a->residual, i, dtype));
            s = a->sum;
        }
        double mean = centred ? mean_of(s, first, C, dtype) : 0;
        double rstd = 1.0 / sqrt(mean_square_of(s, first, C, dtype, mean) + a->eps);
        for (size_t c = 0; c < C; c++) {
            double y = (dtype_get(s, first + c, dtype) - mean) * rstd * weight_of(a, c);
            if (a->bias) y += dtype_get(a->bias, c, dtype);
            dtype_put(a->y, first + c, dtype, (float)y);
        }
        if (a->mean && centred) a->mean[n] = (float)mean;
        if (a->rstd) a->rstd[n] = (float)rstd;
    }
}

/* dx of one row: rstd·(g − mean(g) − xhat·mean(g·xhat)), g = dy·weight; the middle term is
 * layernorm's. */
static void backward_row(const struct norm_args *a, bool centred, size_t first, double mean,
                         double rstd)
{
    const size_t C = (size_t)a->C;
    const enum cz_dtype dtype = a->dtype;
    double sum_g = 0, sum_g_xhat = 0;
    for (size_t c = 0; c < C; c++) {
        double xhat = (dtype_get(a->x, first + c, dtype) - mean) * rstd;
        double g = dtype_get(a->dy, first + c, dtype) * weight_of(a, c);
        sum_g += g;
        sum_g_xhat += g * xhat;
    }
    for (size_t c = 0; c < C; c++) {
        double xhat = (dtype_get(a->x, first + c, dtype) - mean) * rstd;
        double g = dtype_get(a->dy, first + c, dtype) * weight_of(a, c);
        double dx = g - xhat * sum_g_xhat / (double)C;
        if (centred) dx -= sum_g / (double)C;
        dx *= rstd;
        if (a->dx_add) dx += dtype_get(a->dx_add, first + c, dtype);
        dtype_put(a->dx, first + c, dtype, (float)dx);
    }
}

static void backward(const struct norm_args *a, bool centred, int64_t begin, int64_t end,
                     float *dweight, float *dbias)
{
    const size_t C = (size_t)a->C;
    for (size_t c = 0; c < C && dweight; c++) {
        double sum_w = 0, sum_b = 0;
        for (int64_t n = begin; n < end; n++) {
            size_t i = (size_t)n * C + c;
            double dy = dtype_get(a->dy, i, a->dtype), mean = centred ? a->mean[n] : 0;
            sum_w += dy * (dtype_get(a->x, i, a->dtype) - mean) * a->rstd[n];
            sum_b += dy;
        }
        dweight[c] = (float)sum_w;
        if (dbias) dbias[c] = (float)sum_b;
    }
    for (int64_t n = begin; n < end; n++) /* last: dx may overlap x or dy */
        backward_row(a, centred, (size_t)n * C, centred ? a->mean[n] : 0, a->rstd[n]);
}

const struct norm_row norm_scalar = {{"scalar", 0}, forward, backward};
