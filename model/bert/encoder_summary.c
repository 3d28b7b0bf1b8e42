/* One vector for a text, in the place of its first position; the others are zeros (ModernBERT). Or
 * the same of each position.
 *   x̄ = x[:,0], or the mean of x over the positions that the mask shows; or x
 *   h = x̄·Wᵀ [+ b]   s = act(h)   y[:,0] = norm(s), or y
 * Kept for backward: x̄ but for x, h and s (3C per text) and the norm's statistics. A mean is a
 * product with the mask, which only the host makes so far: on a GPU it is refused. */
#include "model/bert/encoder_impl.h"
#include "ops/elementwise/elementwise.h"
#include "ops/matmul/matmul.h"

/* Where each parameter stands. */
struct places {
    size_t dense_w, dense_b, norm_w, norm_b;
};

static struct places places_of(const struct encoder_summary_hp *hp)
{
    const size_t norm = hp->dense_bias_name ? 2 : 1;
    return (struct places){.dense_w = 0, .dense_b = 1, .norm_w = norm, .norm_b = norm + 1};
}

static struct linear dense_of(const struct encoder_summary_hp *hp)
{
    return (struct linear){.n_in = hp->C, .n_out = hp->C};
}

static struct norm norm_of(const struct encoder_summary_hp *hp)
{
    return (struct norm){.C = hp->C, .eps = hp->eps};
}

/* How many vectors there are. */
static int64_t n_rows_of(const struct encoder_summary_hp *hp, int64_t B, int64_t T)
{
    return hp->pooling == SUMMARY_EACH ? B * T : B;
}

static cz_status summary_declare(const void *hp_, struct param_list *out)
{
    const struct encoder_summary_hp *hp = hp_;
    const int64_t shape[] = {hp->C, hp->C};
    TRY(param_list_add(out, hp->dense_weight_name, 2, shape, PARAM_INIT_NORMAL, hp->init_std));
    if (hp->dense_bias_name)
        TRY(param_list_add(out, hp->dense_bias_name, 1, shape, PARAM_INIT_ZERO, 0.0f));
    TRY(param_list_add(out, hp->norm_weight_name, 1, shape, PARAM_INIT_ONE, 0.0f));
    if (!hp->norm_bias_name) return CZ_OK;
    return param_list_add(out, hp->norm_bias_name, 1, shape, PARAM_INIT_ZERO, 0.0f);
}

/* ---- memory --------------------------------------------------------------------------------- */

struct summary_kept {
    void *x, *h, *s; /* (n,C); SUMMARY_EACH: x NULL, it is the input */
    float *mean, *rstd;
};

/* EVAL: in the workspace. */
static struct summary_kept layout_kept(const struct encoder_summary_hp *hp, int64_t n,
                                       enum cz_dtype dtype, struct scratch *s)
{
    const size_t e = dtype_size(dtype);
    struct summary_kept k = {0};
    if (hp->pooling != SUMMARY_EACH) k.x = scratch_take(s, n, hp->C, e);
    k.h = scratch_take(s, n, hp->C, e);
    k.s = scratch_take(s, n, hp->C, e);
    k.mean = scratch_take(s, n, 1, sizeof(float));
    k.rstd = scratch_take(s, n, 1, sizeof(float));
    return k;
}

struct summary_space {
    void *y;    /* (n,C), and its gradient */
    void *mask; /* (T) of one text, in the dtype */
    float *sum; /* (C) */
    struct scratch own;
};

static void layout_space(const struct encoder_summary_hp *hp, int64_t n, int64_t T,
                         enum cz_dtype dtype, struct summary_space *s)
{
    s->y = scratch_take(&s->own, n, hp->C, dtype_size(dtype));
    if (hp->pooling != SUMMARY_MEAN) return;
    s->mask = scratch_take(&s->own, T, 1, dtype_size(dtype));
    s->sum = scratch_take(&s->own, 1, hp->C, sizeof(float));
}

/* sum (1,C) = mask (1,T)·x (T,C) */
static struct matmul_args sum_args(const struct encoder_summary_hp *hp, int64_t T,
                                   enum cz_dtype dtype)
{
    return (struct matmul_args){.m = 1, .n = hp->C, .k = T, .dtype = dtype, .c_dtype = DTYPE_F32};
}

/* dx (T,C) = mask (T,1)·d (1,C) */
static struct matmul_args spread_args(const struct encoder_summary_hp *hp, int64_t T,
                                      enum cz_dtype dtype)
{
    return (struct matmul_args){.m = T, .n = hp->C, .k = 1, .dtype = dtype, .c_dtype = dtype};
}

static cz_status mean_workspace(const struct encoder_summary_hp *hp, const struct batch_shape *s,
                                size_t *nbytes_max)
{
    const struct matmul_args sum = sum_args(hp, s->T, s->dtype),
                             spread = spread_args(hp, s->T, s->dtype);
    size_t nbytes = 0;
    if (hp->pooling != SUMMARY_MEAN) return CZ_OK;
    if (!host_reads(s->ops))
        return err_set(CZ_UNSUPPORTED, 0,
                       "classifier_pooling \"mean\" is not supported on a GPU so far");
    TRY(ops_matmul_workspace(s->ops, &sum, &nbytes));
    size_raise(nbytes_max, nbytes);
    TRY(ops_matmul_workspace(s->ops, &spread, &nbytes));
    size_raise(nbytes_max, nbytes);
    return CZ_OK;
}

static cz_status summary_size(const void *hp_, const struct batch_shape *s, struct layer_sizes *out)
{
    const struct encoder_summary_hp *hp = hp_;
    const struct linear dense = dense_of(hp);
    const struct norm norm = norm_of(hp);
    struct scratch kept = {0};
    struct summary_space space = {0};
    size_t op_nbytes = 0;
    *out = (struct layer_sizes){0};
    TRY(batch_shape_check("encoder summary", s));
    const int64_t n = n_rows_of(hp, s->B, s->T);
    out->out_nbytes = rows_nbytes(s->B * s->T, hp->C, dtype_size(s->dtype));
    layout_kept(hp, n, s->dtype, &kept);
    if (s->training) out->saved_nbytes = kept.used;
    space.own = kept; /* EVAL has both in the workspace */
    layout_space(hp, n, s->T, s->dtype, &space);
    TRY(linear_workspace(s, &dense, n, &op_nbytes));
    norm_workspace(s, &norm, n, &op_nbytes);
    TRY(mean_workspace(hp, s, &op_nbytes));
    out->flops_forward = 2.0 * (double)n * (double)hp->C * (double)hp->C;
    return sizes_finish("encoder summary", space.own.used, op_nbytes, out);
}

/* ---- forward -------------------------------------------------------------------------------- */

/* The mask of text b as numbers of the dtype; how many positions it shows, at least 1. */
static int64_t make_mask(const struct layer_args *a, int64_t b, void *mask)
{
    const int64_t T = a->batch->T;
    const uint8_t *shown = a->batch->key_mask;
    int64_t n = 0;
    for (int64_t t = 0; t < T; t++) {
        const bool shows = !shown || shown[b * T + t];
        dtype_put(mask, (size_t)t, a->dtype, shows ? 1.0f : 0.0f);
        n += shows;
    }
    return n > 0 ? n : 1;
}

/* y (C) = alpha·x */
static cz_status scale(const struct encoder_summary_hp *hp, const struct layer_args *a, float alpha,
                       enum cz_dtype x_dtype, const void *x, void *y)
{
    const struct cast_scale_args args = {.x_dtype = x_dtype,
                                         .y_dtype = a->dtype,
                                         .numel = (size_t)hp->C,
                                         .alpha = alpha,
                                         .x = x,
                                         .y = y};
    return ops_cast_scale(a->ops, a->stream, &args);
}

static cz_status mean_of(const struct encoder_summary_hp *hp, const struct layer_args *a,
                         const struct summary_space *s, int64_t b, void *x, struct op_space space)
{
    const size_t T = (size_t)a->batch->T, C = (size_t)hp->C;
    struct matmul_args sum = sum_args(hp, a->batch->T, a->dtype);
    const int64_t n = make_mask(a, b, s->mask);
    sum.a = s->mask;
    sum.b = elem_at(a, a->in, (size_t)b * T * C);
    sum.c = s->sum;
    sum.workspace = space.p;
    sum.workspace_nbytes = space.nbytes;
    TRY(ops_matmul(a->ops, a->stream, &sum));
    return scale(hp, a, 1.0f / (float)n, DTYPE_F32, s->sum, x);
}

static cz_status gather(const struct encoder_summary_hp *hp, const struct layer_args *a,
                        const struct summary_space *s, void *x, struct op_space space)
{
    const size_t T = (size_t)a->batch->T, C = (size_t)hp->C;
    for (int64_t b = 0; b < a->batch->B; b++) {
        void *to = elem_at(a, x, (size_t)b * C);
        TRY(hp->pooling == SUMMARY_MEAN
                ? mean_of(hp, a, s, b, to, space)
                : elements_copy(a, C, elem_at(a, a->in, (size_t)b * T * C), to));
    }
    return CZ_OK;
}

/* y (B,T,C) = zeros, but for its first positions: x (B,C). */
static cz_status put_first(const struct encoder_summary_hp *hp, const struct layer_args *a,
                           const void *x, void *y)
{
    const size_t B = (size_t)a->batch->B, T = (size_t)a->batch->T, C = (size_t)hp->C;
    struct device *device = ops_device(a->ops);
    TRY(device->ops->fill_zero(device, a->stream, y, B * T * C * dtype_size(a->dtype)));
    for (size_t b = 0; b < B; b++)
        TRY(elements_copy(a, C, elem_at(a, x, b * C), elem_at(a, y, b * T * C)));
    return CZ_OK;
}

static cz_status summary_forward(const void *hp_, const struct layer_args *a)
{
    const struct encoder_summary_hp *hp = hp_;
    const struct places at = places_of(hp);
    const struct linear dense = dense_of(hp);
    const struct norm norm = norm_of(hp);
    const bool each = hp->pooling == SUMMARY_EACH, keeps = a->mode != LAYER_EVAL;
    const int64_t n = n_rows_of(hp, a->batch->B, a->batch->T);
    struct summary_space s = {.own = {.base = a->workspace}};
    struct scratch saved = {.base = a->saved};
    const struct summary_kept k = layout_kept(hp, n, a->dtype, keeps ? &saved : &s.own);
    layout_space(hp, n, a->batch->T, a->dtype, &s);
    const struct op_space space = scratch_rest(&s.own, a);
    if (!each) TRY(gather(hp, a, &s, k.x, space));
    TRY(linear_act_forward(a, &dense, hp->act, n, each ? a->in : k.x, a->params[at.dense_w],
                           hp->dense_bias_name ? a->params[at.dense_b] : NULL, k.h, k.s, space));
    const struct norm_io io = {
        .x = k.s, .y = each && a->out ? a->out : s.y, .mean = k.mean, .rstd = k.rstd};
    TRY(norm_forward(a, &norm, n, &io, a->params[at.norm_w],
                     hp->norm_bias_name ? a->params[at.norm_b] : NULL));
    return a->out && !each ? put_first(hp, a, s.y, a->out) : CZ_OK;
}

/* ---- backward ------------------------------------------------------------------------------- */

/* din from d (B,C), the gradient of x̄. */
static cz_status scatter(const struct encoder_summary_hp *hp, const struct layer_args *a,
                         const struct summary_space *s, void *d, struct op_space space)
{
    const size_t T = (size_t)a->batch->T, C = (size_t)hp->C;
    if (hp->pooling == SUMMARY_FIRST) return put_first(hp, a, d, a->din);
    struct matmul_args spread = spread_args(hp, a->batch->T, a->dtype);
    spread.workspace = space.p;
    spread.workspace_nbytes = space.nbytes;
    for (int64_t b = 0; b < a->batch->B; b++) {
        void *own = elem_at(a, d, (size_t)b * C);
        const int64_t n = make_mask(a, b, s->mask);
        TRY(scale(hp, a, 1.0f / (float)n, a->dtype, own, own));
        spread.a = s->mask;
        spread.b = own;
        spread.c = elem_at(a, a->din, (size_t)b * T * C);
        TRY(ops_matmul(a->ops, a->stream, &spread));
    }
    return CZ_OK;
}

static cz_status summary_backward(const void *hp_, const struct layer_args *a)
{
    const struct encoder_summary_hp *hp = hp_;
    const struct places at = places_of(hp);
    const struct linear dense = dense_of(hp);
    const struct norm norm = norm_of(hp);
    const bool each = hp->pooling == SUMMARY_EACH;
    const int64_t n = n_rows_of(hp, a->batch->B, a->batch->T);
    const size_t B = (size_t)a->batch->B, T = (size_t)a->batch->T, C = (size_t)hp->C;
    const struct param_grad *g = a->dparams;
    struct summary_space s = {.own = {.base = a->workspace}};
    struct scratch saved = {.base = a->saved};
    const struct summary_kept k = layout_kept(hp, n, a->dtype, &saved);
    layout_space(hp, n, a->batch->T, a->dtype, &s);
    const struct op_space space = scratch_rest(&s.own, a);
    for (size_t b = 0; b < B && !each; b++)
        TRY(elements_copy(a, C, elem_at(a, a->dout, b * T * C), elem_at(a, s.y, b * C)));
    const struct norm_grad_io io = {
        .x = k.s, .dy = each ? a->dout : s.y, .mean = k.mean, .rstd = k.rstd, .dx = s.y};
    TRY(norm_backward(a, &norm, n, &io, a->params[at.norm_w], &g[at.norm_w],
                      hp->norm_bias_name ? &g[at.norm_b] : NULL, space));
    TRY(activation_grad(a, hp->act, (size_t)n * C, k.h, s.y, s.y));
    /* the gradient of x̄ goes where act(h) was, which nothing reads any more */
    TRY(linear_backward(a, &dense, n, each ? a->in : k.x, s.y, a->params[at.dense_w],
                        &g[at.dense_w], hp->dense_bias_name ? &g[at.dense_b] : NULL,
                        each ? a->din : k.s, space));
    return each ? CZ_OK : scatter(hp, a, &s, k.s, space);
}

const struct layer_class encoder_summary_class = {
    .name = "encoder_summary",
    .declare = summary_declare,
    .size = summary_size,
    .forward = summary_forward,
    .backward = summary_backward,
};
