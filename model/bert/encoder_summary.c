/* One vector for a text, in the place of its first position; the others are zeros (ModernBERT). Or
 * the same of each position.
 *   x̄ = x[:,0], or the mean of x over the positions that the mask shows; or x
 *   h = x̄·Wᵀ [+ b]   s = act(h)   y[:,0] = norm(s), or y
 * Kept for backward: x̄ but for x, h and s (3C per text) and the norm's statistics. The sum of
 * a text's positions is the gradient of a look-up that maps positions to texts, so that op makes
 * it. Only the host writes such a map so far: on a GPU means are refused. */
#include "model/bert/encoder_impl.h"
#include "ops/elementwise/elementwise.h"
#include "ops/embedding/embedding.h"

#include <string.h>

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
static int64_t n_rows_of(const struct encoder_summary_hp *hp, const struct batch *batch)
{
    return hp->pooling == SUMMARY_EACH ? batch->B * batch->T : batch_n_rows(batch);
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
    void *y;      /* (n,C), and its gradient */
    int32_t *ids; /* (N) the text of each position, n where the mask hides it */
    float *sum;   /* (n+1,C) */
    void *table;  /* (n+1,C) gradients of the positions of each text */
    struct scratch own;
};

static void layout_space(const struct encoder_summary_hp *hp, int64_t n, int64_t N,
                         enum cz_dtype dtype, struct summary_space *s)
{
    s->y = scratch_take(&s->own, n, hp->C, dtype_size(dtype));
    if (hp->pooling != SUMMARY_MEAN) return;
    s->ids = scratch_take(&s->own, N, 1, sizeof *s->ids);
    s->sum = scratch_take(&s->own, n + 1, hp->C, sizeof *s->sum);
    s->table = scratch_take(&s->own, n + 1, hp->C, dtype_size(dtype));
}

/* Texts by position; the hidden ones add nothing. */
static struct embedding_args look_up(const struct encoder_summary_hp *hp, int64_t n, int64_t N,
                                     enum cz_dtype dtype)
{
    return (struct embedding_args){.N = N,
                                   .C = hp->C,
                                   .V = n + 1,
                                   .dtype = dtype,
                                   .has_padding = true,
                                   .padding_id = n,
                                   .grad_dtype = DTYPE_F32};
}

static cz_status mean_workspace(const struct encoder_summary_hp *hp, const struct batch_shape *s,
                                int64_t n, size_t *nbytes_max)
{
    const struct embedding_args args = look_up(hp, n, s->B * s->T, s->dtype);
    if (hp->pooling != SUMMARY_MEAN) return CZ_OK;
    if (!host_reads(s->ops))
        return err_set(CZ_UNSUPPORTED, 0,
                       "classifier_pooling \"mean\" is not supported on a GPU so far");
    size_raise(nbytes_max, ops_embedding_workspace(s->ops, &args));
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
    const int64_t n = hp->pooling == SUMMARY_EACH ? s->B * s->T : batch_shape_n_rows(s);
    out->out_nbytes = rows_nbytes(s->B * s->T, hp->C, dtype_size(s->dtype));
    layout_kept(hp, n, s->dtype, &kept);
    if (s->training) out->saved_nbytes = kept.used;
    space.own = kept; /* EVAL has both in the workspace */
    layout_space(hp, n, s->B * s->T, s->dtype, &space);
    TRY(linear_workspace(s, &dense, n, &op_nbytes));
    norm_workspace(s, &norm, n, &op_nbytes);
    TRY(mean_workspace(hp, s, n, &op_nbytes));
    out->flops_forward = 2.0 * (double)n * (double)hp->C * (double)hp->C;
    return sizes_finish("encoder summary", space.own.used, op_nbytes, out);
}

/* ---- forward -------------------------------------------------------------------------------- */

/* ids (N): the text of each position, n where the mask hides it and of the fillers behind the last
 * text. */
static void mark_texts(const struct layer_args *a, int32_t *ids)
{
    const struct batch *b = a->batch;
    const int64_t n = batch_n_rows(b);
    int64_t t = 0;
    for (int64_t i = 0; i < n; i++)
        for (const int64_t end = batch_row_start(b, i) + batch_row_length(b, i); t < end; t++)
            ids[t] = (int32_t)(!b->key_mask || b->key_mask[t] ? i : n);
    for (; t < b->B * b->T; t++) ids[t] = (int32_t)n;
}

/* How many positions of text i are shown, at least 1. */
static float n_shown(const struct layer_args *a, int64_t i, const int32_t *ids)
{
    const int64_t begin = batch_row_start(a->batch, i);
    int64_t n = 0;
    for (int64_t t = begin; t < begin + batch_row_length(a->batch, i); t++) n += ids[t] == i;
    return (float)(n > 0 ? n : 1);
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

/* x (n,C) = means */
static cz_status means_of(const struct encoder_summary_hp *hp, const struct layer_args *a,
                          const struct summary_space *s, void *x, struct op_space space)
{
    const int64_t n = batch_n_rows(a->batch);
    struct embedding_args args = look_up(hp, n, a->batch->B * a->batch->T, a->dtype);
    args.ids = s->ids;
    args.dy = a->in;
    args.dtable = s->sum;
    args.workspace = space.p;
    args.workspace_nbytes = space.nbytes;
    mark_texts(a, s->ids);
    TRY(ops_embedding_backward(a->ops, a->stream, &args));
    for (int64_t i = 0; i < n; i++) {
        const size_t at = (size_t)(i * hp->C);
        TRY(scale(hp, a, 1.0f / n_shown(a, i, s->ids), DTYPE_F32, s->sum + at, elem_at(a, x, at)));
    }
    return CZ_OK;
}

static cz_status gather(const struct encoder_summary_hp *hp, const struct layer_args *a,
                        const struct summary_space *s, void *x, struct op_space space)
{
    return hp->pooling == SUMMARY_MEAN ? means_of(hp, a, s, x, space)
                                       : first_positions_take(a, hp->C, a->in, x);
}

static cz_status summary_forward(const void *hp_, const struct layer_args *a)
{
    const struct encoder_summary_hp *hp = hp_;
    const struct places at = places_of(hp);
    const struct linear dense = dense_of(hp);
    const struct norm norm = norm_of(hp);
    const bool each = hp->pooling == SUMMARY_EACH, keeps = a->mode != LAYER_EVAL;
    const int64_t n = n_rows_of(hp, a->batch);
    struct summary_space s = {.own = {.base = a->workspace}};
    struct scratch saved = {.base = a->saved};
    const struct summary_kept k = layout_kept(hp, n, a->dtype, keeps ? &saved : &s.own);
    layout_space(hp, n, a->batch->B * a->batch->T, a->dtype, &s);
    const struct op_space space = scratch_rest(&s.own, a);
    if (!each) TRY(gather(hp, a, &s, k.x, space));
    TRY(linear_act_forward(a, &dense, hp->act, n, each ? a->in : k.x, a->params[at.dense_w],
                           hp->dense_bias_name ? a->params[at.dense_b] : NULL, k.h, k.s, space));
    const struct norm_io io = {
        .x = k.s, .y = each && a->out ? a->out : s.y, .mean = k.mean, .rstd = k.rstd};
    TRY(norm_forward(a, &norm, n, &io, a->params[at.norm_w],
                     hp->norm_bias_name ? a->params[at.norm_b] : NULL));
    return a->out && !each ? first_positions_put(a, hp->C, s.y, a->out) : CZ_OK;
}

/* ---- backward ------------------------------------------------------------------------------- */

/* din from d (n,C), the gradient of x̄. */
static cz_status scatter(const struct encoder_summary_hp *hp, const struct layer_args *a,
                         const struct summary_space *s, const void *d)
{
    const int64_t n = batch_n_rows(a->batch);
    struct embedding_args args = look_up(hp, n, a->batch->B * a->batch->T, a->dtype);
    if (hp->pooling == SUMMARY_FIRST) return first_positions_put(a, hp->C, d, a->din);
    mark_texts(a, s->ids);
    for (int64_t i = 0; i < n; i++) {
        const size_t at = (size_t)(i * hp->C);
        TRY(scale(hp, a, 1.0f / n_shown(a, i, s->ids), a->dtype, elem_at(a, d, at),
                  elem_at(a, s->table, at)));
    }
    memset(elem_at(a, s->table, (size_t)(n * hp->C)), 0, (size_t)hp->C * dtype_size(a->dtype));
    args.ids = s->ids;
    args.table = s->table;
    args.y = a->din;
    return ops_embedding_forward(a->ops, a->stream, &args);
}

static cz_status summary_backward(const void *hp_, const struct layer_args *a)
{
    const struct encoder_summary_hp *hp = hp_;
    const struct places at = places_of(hp);
    const struct linear dense = dense_of(hp);
    const struct norm norm = norm_of(hp);
    const bool each = hp->pooling == SUMMARY_EACH;
    const int64_t n = n_rows_of(hp, a->batch);
    const size_t C = (size_t)hp->C;
    const struct param_grad *g = a->dparams;
    struct summary_space s = {.own = {.base = a->workspace}};
    struct scratch saved = {.base = a->saved};
    const struct summary_kept k = layout_kept(hp, n, a->dtype, &saved);
    layout_space(hp, n, a->batch->B * a->batch->T, a->dtype, &s);
    const struct op_space space = scratch_rest(&s.own, a);
    if (!each) TRY(first_positions_take(a, hp->C, a->dout, s.y));
    const struct norm_grad_io io = {
        .x = k.s, .dy = each ? a->dout : s.y, .mean = k.mean, .rstd = k.rstd, .dx = s.y};
    TRY(norm_backward(a, &norm, n, &io, a->params[at.norm_w], &g[at.norm_w],
                      hp->norm_bias_name ? &g[at.norm_b] : NULL, space));
    TRY(activation_grad(a, hp->act, (size_t)n * C, k.h, s.y, s.y));
    /* the gradient of x̄ goes where act(h) was, which nothing reads any more */
    TRY(linear_backward(a, &dense, n, each ? a->in : k.x, s.y, a->params[at.dense_w],
                        &g[at.dense_w], hp->dense_bias_name ? &g[at.dense_b] : NULL,
                        each ? a->din : k.s, space));
    return each ? CZ_OK : scatter(hp, a, &s, k.s);
}

static const char *encoder_summary_map_name(const void *hp)
{
    return ((const struct encoder_summary_hp *)hp)->dense_weight_name;
}

const struct layer_class encoder_summary_class = {
    .name = "encoder_summary",
    .flags = LAYER_HEAD,
    .declare = summary_declare,
    .size = summary_size,
    .forward = summary_forward,
    .backward = summary_backward,
    .map_name = encoder_summary_map_name,
};
