/* One block of an encoder, with the norm behind each residual (BERT, DistilBERT). F width of the
 * MLP. Weights are stored (out,in).
 *
 *   q = x·Wqᵀ + b   k, v likewise   att = attention(q, k, v) in both directions
 *   s1 = x + dropout(att·Wprojᵀ + b)          x2 = ln_1(s1)
 *   fc = x2·Wfcᵀ + b                           s2 = x2 + dropout(act(fc)·Woutᵀ + b)
 *   out = ln_2(s2)
 *
 * Kept for backward: q, k, v, att, s1, s2 (6C), fc (F) per token and a few fp32 statistics. What is
 * cheap to repeat (x2, act(fc)) is repeated there; no matrix product is.
 *
 * The gradient of the key's bias is zero: the bias adds q·b to all scores of a query, which its
 * softmax does not see (Σ_k ds = 0). It is written as such; adding up dk would give rounding noise,
 * on which Adam would act as on anything else. */
#include "model/encoder_impl.h"

#include <math.h>
#include <stdio.h>

enum { SITE_ATTENTION = 0, SITE_PROJ, SITE_OUT };

static struct norm norm_of(const struct encoder_block_hp *hp)
{
    return (struct norm){.C = hp->C, .eps = hp->eps};
}

/* q, k, v and proj alike */
static struct linear square_of(const struct encoder_block_hp *hp)
{
    return (struct linear){.n_in = hp->C, .n_out = hp->C};
}

static struct linear fc_of(const struct encoder_block_hp *hp)
{
    return (struct linear){.n_in = hp->C, .n_out = hp->F};
}

static struct linear out_of(const struct encoder_block_hp *hp)
{
    return (struct linear){.n_in = hp->F, .n_out = hp->C};
}

/* ---- declare ----------------------------------------------------------------------------------
 */

static bool is_norm_weight(int i)
{
    return i == ENCODER_LN1_W || i == ENCODER_LN2_W;
}

/* Weights stand at even numbers, each with its bias behind it. */
static cz_status declare_one(const struct encoder_block_hp *hp, int i, struct param_list *out)
{
    const bool is_bias = i % 2 == 1, is_norm = is_norm_weight(i - i % 2);
    const int64_t rows = i == ENCODER_FC_W || i == ENCODER_FC_B ? hp->F : hp->C;
    const int64_t shape[] = {rows, i == ENCODER_OUT_W ? hp->F : hp->C};
    char name[128];
    snprintf(name, sizeof name, "%s.%d.%s", hp->prefix, hp->layer_idx, hp->names[i]);
    if (is_bias) return param_list_add(out, name, 1, shape, PARAM_INIT_ZERO, 0.0f);
    if (is_norm) return param_list_add(out, name, 1, shape, PARAM_INIT_ONE, 0.0f);
    return param_list_add(out, name, 2, shape, PARAM_INIT_NORMAL, hp->init_std);
}

static cz_status block_declare(const void *hp, struct param_list *out)
{
    for (int i = 0; i < ENCODER_N_PARAMS; i++) TRY(declare_one(hp, i, out));
    return CZ_OK;
}

/* ---- memory -----------------------------------------------------------------------------------
 */

/* What the two halves hand to each other and to backward. */
struct block_kept {
    void *q, *k, *v; /* (N,C) */
    void *att;       /* (N,C) */
    void *s1, *s2;   /* (N,C) */
    void *fc;        /* (N,F) */
    float *lse;
    float *mean1, *rstd1, *mean2, *rstd2;
};

/* Memory of one call: the tensors above, and what lives no longer than the call. TRAIN, backward:
 * `x2` and `g` lie in the workspace. EVAL: they lie over what is dead, or in out. */
struct block_space {
    struct block_kept kept;
    void *x2;           /* (N,C) */
    void *g;            /* (N,F) act(fc); backward: dfc */
    void *m;            /* (N,C) the MLP's product, in front of its residual */
    void *dq, *dk, *dv; /* (N,C), over g */
    struct scratch own;
};

static void take_qkv(const struct encoder_block_hp *hp, int64_t N, size_t e, struct scratch *s,
                     void **q, void **k, void **v)
{
    *q = scratch_take(s, N, hp->C, e);
    *k = scratch_take(s, N, hp->C, e);
    *v = scratch_take(s, N, hp->C, e);
}

/* TRAIN: `kept` lies in saved. */
static struct block_kept layout_saved(const struct encoder_block_hp *hp, int64_t N,
                                      enum dtype dtype, struct scratch *s)
{
    const size_t e = dtype_size(dtype);
    struct block_kept k;
    take_qkv(hp, N, e, s, &k.q, &k.k, &k.v);
    k.att = scratch_take(s, N, hp->C, e);
    k.s1 = scratch_take(s, N, hp->C, e);
    k.s2 = scratch_take(s, N, hp->C, e);
    k.fc = scratch_take(s, N, hp->F, e);
    k.lse = scratch_take(s, N, hp->H, sizeof(float));
    k.mean1 = scratch_take(s, N, 1, sizeof(float));
    k.rstd1 = scratch_take(s, N, 1, sizeof(float));
    k.mean2 = scratch_take(s, N, 1, sizeof(float));
    k.rstd2 = scratch_take(s, N, 1, sizeof(float));
    return k;
}

/* The workspace of TRAIN and of backward. */
static struct block_space layout_train(const struct encoder_block_hp *hp, int64_t N,
                                       enum dtype dtype, void *saved, void *workspace)
{
    const size_t e = dtype_size(dtype);
    struct scratch keep = {.base = saved};
    struct block_space s = {.own = {.base = workspace}};
    s.kept = layout_saved(hp, N, dtype, &keep);
    s.m = s.kept.s2;
    s.x2 = scratch_take(&s.own, N, hp->C, e);
    struct scratch attention = s.own;
    s.g = scratch_take(&s.own, N, hp->F, e);
    take_qkv(hp, N, e, &attention, &s.dq, &s.dk, &s.dv);
    size_raise(&s.own.used, attention.used);
    return s;
}

/* The workspace of EVAL: q, k, v and att are dead when fc is made, so fc takes their place; x2 and
 * s2 are made in `out`. */
static struct block_space layout_eval(const struct encoder_block_hp *hp, int64_t N,
                                      enum dtype dtype, void *out, void *workspace)
{
    const size_t e = dtype_size(dtype);
    struct block_space s = {.own = {.base = workspace}, .x2 = out};
    struct block_kept *k = &s.kept;
    k->s1 = s.m = scratch_take(&s.own, N, hp->C, e);
    k->s2 = out;
    struct scratch mlp = s.own;
    take_qkv(hp, N, e, &s.own, &k->q, &k->k, &k->v);
    k->att = scratch_take(&s.own, N, hp->C, e);
    k->lse = scratch_take(&s.own, N, hp->H, sizeof(float));
    k->fc = s.g = scratch_take(&mlp, N, hp->F, e);
    size_raise(&s.own.used, mlp.used);
    return s;
}

static struct attention_args attention_of(const struct encoder_block_hp *hp, int64_t B, int64_t T,
                                          enum dtype dtype)
{
    const int64_t D = hp->C / hp->H;
    return (struct attention_args){.B = B,
                                   .Tq = T,
                                   .Tk = T,
                                   .H = hp->H,
                                   .G = hp->H,
                                   .D = D,
                                   .dtype = dtype,
                                   .scale = (float)(1.0 / sqrt((double)D)),
                                   .q_stride = hp->C,
                                   .k_stride = hp->C,
                                   .v_stride = hp->C,
                                   .out_stride = hp->C};
}

static cz_status op_workspace(const struct encoder_block_hp *hp, const struct batch_shape *s,
                              size_t *nbytes_max)
{
    const int64_t N = s->B * s->T;
    const struct linear square = square_of(hp), fc = fc_of(hp), out = out_of(hp);
    const struct norm norm = norm_of(hp);
    struct attention_args attention = attention_of(hp, s->B, s->T, s->dtype);
    attention.dropout_p = s->training ? hp->attn_dropout_p : 0.0f;
    TRY(linear_workspace(s, &square, N, nbytes_max));
    TRY(linear_workspace(s, &fc, N, nbytes_max));
    TRY(linear_workspace(s, &out, N, nbytes_max));
    norm_workspace(s, &norm, N, nbytes_max);
    size_raise(nbytes_max, ops_attention_workspace(s->ops, &attention, false));
    if (!s->training) return CZ_OK;
    size_raise(nbytes_max, ops_attention_workspace(s->ops, &attention, true));
    TRY(linear_dx_add_workspace(s, &square, N, nbytes_max));
    return linear_dx_add_workspace(s, &fc, N, nbytes_max);
}

static cz_status block_size(const void *hp_, const struct batch_shape *s, struct layer_sizes *out)
{
    const struct encoder_block_hp *hp = hp_;
    *out = (struct layer_sizes){0};
    TRY(batch_shape_check("encoder block", s));
    const int64_t N = s->B * s->T;
    out->out_nbytes = rows_nbytes(N, hp->C, dtype_size(s->dtype));
    size_t own_nbytes = layout_eval(hp, N, s->dtype, NULL, NULL).own.used, op_nbytes = 0;
    if (s->training) {
        struct scratch saved = {0};
        layout_saved(hp, N, s->dtype, &saved);
        out->saved_nbytes = saved.used;
        size_raise(&own_nbytes, layout_train(hp, N, s->dtype, NULL, NULL).own.used);
    }
    TRY(op_workspace(hp, s, &op_nbytes));
    const double n = (double)N, c = (double)hp->C, f = (double)hp->F, t = (double)s->T;
    out->flops_forward = 2.0 * n * (4.0 * c * c + 2.0 * c * f) + 4.0 * n * t * c;
    return sizes_finish("encoder block", own_nbytes, op_nbytes, out);
}

/* ---- forward ----------------------------------------------------------------------------------
 */

/* Attention of this batch, as forward and backward both need it. */
static struct attention_args attention_over(const struct encoder_block_hp *hp,
                                            const struct layer_args *a, const struct block_kept *k,
                                            struct op_space space)
{
    struct attention_args args = attention_of(hp, a->batch->B, a->batch->T, a->dtype);
    args.key_mask = a->batch->key_mask;
    args.q = k->q;
    args.k = k->k;
    args.v = k->v;
    args.out = k->att;
    args.lse = k->lse;
    if (dropout_acts(a, hp->attn_dropout_p)) {
        args.dropout_p = hp->attn_dropout_p;
        args.rng = a->rng;
        args.rng.site += SITE_ATTENTION;
    }
    args.workspace = space.p;
    args.workspace_nbytes = space.nbytes;
    return args;
}

/* From in to x2. */
static cz_status attention_half(const struct encoder_block_hp *hp, const struct layer_args *a,
                                const struct block_space *s, struct op_space space)
{
    const int64_t N = a->batch->B * a->batch->T;
    const struct linear square = square_of(hp);
    const struct norm norm = norm_of(hp);
    const struct block_kept *k = &s->kept;
    const void *const *w = a->params;
    TRY(linear_forward(a, &square, N, a->in, w[ENCODER_Q_W], w[ENCODER_Q_B], k->q, space));
    TRY(linear_forward(a, &square, N, a->in, w[ENCODER_K_W], w[ENCODER_K_B], k->k, space));
    TRY(linear_forward(a, &square, N, a->in, w[ENCODER_V_W], w[ENCODER_V_B], k->v, space));
    const struct attention_args attention = attention_over(hp, a, k, space);
    TRY(a->ops->attention_forward(a->ops, a->stream, &attention));
    TRY(linear_forward(a, &square, N, k->att, w[ENCODER_PROJ_W], w[ENCODER_PROJ_B], k->s1, space));
    if (dropout_acts(a, hp->proj_dropout_p))
        TRY(dropout_apply(a, hp->proj_dropout_p, SITE_PROJ, (size_t)(N * hp->C), k->s1, k->s1));
    const struct norm_io ln1 = {.x = k->s1,
                                .residual = a->in,
                                .sum = k->s1,
                                .y = s->x2,
                                .mean = k->mean1,
                                .rstd = k->rstd1};
    return norm_forward(a, &norm, N, &ln1, w[ENCODER_LN1_W], w[ENCODER_LN1_B]);
}

/* From x2 to y. */
static cz_status mlp_half(const struct encoder_block_hp *hp, const struct layer_args *a,
                          const struct block_space *s, void *y, struct op_space space)
{
    const int64_t N = a->batch->B * a->batch->T;
    const struct linear fc = fc_of(hp), down = out_of(hp);
    const struct norm norm = norm_of(hp);
    const struct block_kept *k = &s->kept;
    const void *const *w = a->params;
    TRY(linear_forward(a, &fc, N, s->x2, w[ENCODER_FC_W], w[ENCODER_FC_B], k->fc, space));
    TRY(activation_apply(a, hp->act, (size_t)(N * hp->F), k->fc, s->g));
    TRY(linear_forward(a, &down, N, s->g, w[ENCODER_OUT_W], w[ENCODER_OUT_B], s->m, space));
    if (dropout_acts(a, hp->out_dropout_p))
        TRY(dropout_apply(a, hp->out_dropout_p, SITE_OUT, (size_t)(N * hp->C), s->m, s->m));
    const struct norm_io ln2 = {
        .x = s->m, .residual = s->x2, .sum = k->s2, .y = y, .mean = k->mean2, .rstd = k->rstd2};
    return norm_forward(a, &norm, N, &ln2, w[ENCODER_LN2_W], w[ENCODER_LN2_B]);
}

static cz_status block_forward(const void *hp_, const struct layer_args *a)
{
    const struct encoder_block_hp *hp = hp_;
    const int64_t N = a->batch->B * a->batch->T;
    const struct block_space s = a->mode == LAYER_EVAL
                                     ? layout_eval(hp, N, a->dtype, a->out, a->workspace)
                                     : layout_train(hp, N, a->dtype, a->saved, a->workspace);
    const struct op_space space = scratch_rest(&s.own, a);
    TRY(attention_half(hp, a, &s, space));
    /* Without `out` only s2 and its statistics are wanted: dq is as wide as they are. */
    return mlp_half(hp, a, &s, a->out ? a->out : s.dq, space);
}

/* ---- backward ---------------------------------------------------------------------------------
 */

/* din = gradient of x2 through out = ln_2(x2 + dropout(act(fc)·Woutᵀ + b)). */
static cz_status mlp_backward(const struct encoder_block_hp *hp, const struct layer_args *a,
                              const struct block_space *s, struct op_space space)
{
    const int64_t N = a->batch->B * a->batch->T;
    const size_t numel_f = (size_t)(N * hp->F);
    const struct linear fc = fc_of(hp), down = out_of(hp);
    const struct norm norm = norm_of(hp);
    const struct block_kept *k = &s->kept;
    const void *const *w = a->params;
    const struct param_grad *g = a->dparams;

    const struct norm_grad_io ln2 = {
        .x = k->s2, .dy = a->dout, .mean = k->mean2, .rstd = k->rstd2, .dx = a->din};
    TRY(norm_backward(a, &norm, N, &ln2, w[ENCODER_LN2_W], &g[ENCODER_LN2_W], &g[ENCODER_LN2_B],
                      space));
    const void *dm = a->din;
    if (dropout_acts(a, hp->out_dropout_p)) {
        TRY(dropout_apply(a, hp->out_dropout_p, SITE_OUT, (size_t)(N * hp->C), dm, s->x2));
        dm = s->x2;
    }
    if (g[ENCODER_OUT_W].dp) TRY(activation_apply(a, hp->act, numel_f, k->fc, s->g));
    TRY(linear_backward(a, &down, N, s->g, dm, w[ENCODER_OUT_W], &g[ENCODER_OUT_W],
                        &g[ENCODER_OUT_B], s->g, space));
    TRY(activation_grad(a, hp->act, numel_f, k->fc, s->g, s->g));
    if (g[ENCODER_FC_W].dp) {
        const struct norm_io ln1 = {.x = k->s1, .y = s->x2};
        TRY(norm_forward(a, &norm, N, &ln1, w[ENCODER_LN1_W], w[ENCODER_LN1_B]));
    }
    TRY(linear_backward(a, &fc, N, s->x2, s->g, w[ENCODER_FC_W], &g[ENCODER_FC_W], &g[ENCODER_FC_B],
                        NULL, space));
    return linear_dx_add(a, &fc, N, s->g, w[ENCODER_FC_W], a->din, space);
}

static cz_status zero_key_bias(const struct encoder_block_hp *hp, const struct layer_args *a)
{
    const struct param_grad *g = &a->dparams[ENCODER_K_B];
    struct device *device = a->ops->device;
    if (!g->dp || g->accumulate) return CZ_OK;
    return device->ops->fill_zero(device, a->stream, g->dp,
                                  (size_t)hp->C * dtype_size(a->grad_dtype));
}

/* Gradients of one of q, k, v: its parameters', and what it adds to din. */
static cz_status input_backward(const struct encoder_block_hp *hp, const struct layer_args *a,
                                const void *dy, int weight, const struct param_grad *bias,
                                struct op_space space)
{
    const int64_t N = a->batch->B * a->batch->T;
    const struct linear square = square_of(hp);
    TRY(linear_backward(a, &square, N, a->in, dy, a->params[weight], &a->dparams[weight], bias,
                        NULL, space));
    return linear_dx_add(a, &square, N, dy, a->params[weight], a->din, space);
}

/* din (dx2 on entry) = gradient of x through x2 = ln_1(x + dropout(att·Wprojᵀ + b)). */
static cz_status attention_half_backward(const struct encoder_block_hp *hp,
                                         const struct layer_args *a, const struct block_space *s,
                                         struct op_space space)
{
    const int64_t N = a->batch->B * a->batch->T;
    const struct linear square = square_of(hp);
    const struct norm norm = norm_of(hp);
    const struct block_kept *k = &s->kept;
    const void *const *w = a->params;
    const struct param_grad *g = a->dparams;

    const struct norm_grad_io ln1 = {
        .x = k->s1, .dy = a->din, .mean = k->mean1, .rstd = k->rstd1, .dx = a->din};
    TRY(norm_backward(a, &norm, N, &ln1, w[ENCODER_LN1_W], &g[ENCODER_LN1_W], &g[ENCODER_LN1_B],
                      space));
    const void *dp = a->din;
    if (dropout_acts(a, hp->proj_dropout_p)) { /* into the memory where dq comes later */
        TRY(dropout_apply(a, hp->proj_dropout_p, SITE_PROJ, (size_t)(N * hp->C), dp, s->dq));
        dp = s->dq;
    }
    TRY(linear_backward(a, &square, N, k->att, dp, w[ENCODER_PROJ_W], &g[ENCODER_PROJ_W],
                        &g[ENCODER_PROJ_B], s->x2, space));
    struct attention_args attention = attention_over(hp, a, k, space);
    attention.dout = s->x2;
    attention.dq = s->dq;
    attention.dk = s->dk;
    attention.dv = s->dv;
    TRY(a->ops->attention_backward(a->ops, a->stream, &attention));
    TRY(input_backward(hp, a, s->dq, ENCODER_Q_W, &g[ENCODER_Q_B], space));
    TRY(input_backward(hp, a, s->dk, ENCODER_K_W, NULL, space));
    TRY(zero_key_bias(hp, a));
    return input_backward(hp, a, s->dv, ENCODER_V_W, &g[ENCODER_V_B], space);
}

static cz_status block_backward(const void *hp_, const struct layer_args *a)
{
    const struct encoder_block_hp *hp = hp_;
    const int64_t N = a->batch->B * a->batch->T;
    const struct block_space s = layout_train(hp, N, a->dtype, a->saved, a->workspace);
    const struct op_space space = scratch_rest(&s.own, a);
    TRY(mlp_backward(hp, a, &s, space));
    return attention_half_backward(hp, a, &s, space);
}

const struct layer_class encoder_block_class = {
    .name = "encoder_block",
    .declare = block_declare,
    .size = block_size,
    .forward = block_forward,
    .backward = block_backward,
};
