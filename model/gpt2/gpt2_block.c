/* One transformer block of GPT-2. B batch, T positions, N = B·T, C width, H heads, F width of the
 * MLP. Weights are stored (in,out).
 *
 *   h1 = ln_1(x)   qkv = h1·Wqkv + b   att = attention(qkv)   p = dropout(att·Wproj + b)
 *   x2 = x + p     h2 = ln_2(x2)       fc = h2·Wfc + b        out = x2 + dropout(act(fc)·Wout + b)
 *
 * Kept for backward: qkv (3C), att (C), x2 (C), fc (F) per token and a few fp32 statistics. What is
 * cheap to repeat (h1, h2, act(fc): 2C + F) is repeated there, unless all is kept; no matrix
 * product is. */
#include "model/gpt2/gpt2_impl.h"
#include "model/parts/blocks_impl.h"

#include <stdio.h>

enum {
    LN1_W = 0,
    LN1_B,
    QKV_W,
    QKV_B,
    PROJ_W,
    PROJ_B,
    LN2_W,
    LN2_B,
    FC_W,
    FC_B,
    OUT_W,
    OUT_B,
    N_PARAMS
};
enum { SITE_ATTENTION = 0, SITE_PROJ, SITE_OUT };

static struct norm norm_of(const struct gpt2_block_hp *hp)
{
    return (struct norm){.C = hp->C, .eps = hp->eps};
}

/* One product for queries, keys and values, as the weights are stored. */
static struct linear qkv_of(const struct gpt2_block_hp *hp)
{
    return (struct linear){.n_in = hp->C, .n_out = 3 * hp->C, .in_out = true};
}

static struct linear proj_of(const struct gpt2_block_hp *hp)
{
    return (struct linear){.n_in = hp->C, .n_out = hp->C, .in_out = true};
}

static struct linear fc_of(const struct gpt2_block_hp *hp)
{
    return (struct linear){.n_in = hp->C, .n_out = hp->F, .in_out = true};
}

static struct linear out_of(const struct gpt2_block_hp *hp)
{
    return (struct linear){.n_in = hp->F, .n_out = hp->C, .in_out = true};
}

/* ---- declare -------------------------------------------------------------------------------- */

/* The order of the table is that of the enum above. */
static cz_status block_declare(const void *hp_, struct param_list *out)
{
    const struct gpt2_block_hp *hp = hp_;
    const int64_t C = hp->C, F = hp->F;
    const float std = hp->init_std, std_residual = hp->init_std_residual;
    const struct {
        const char *name;
        int64_t shape[2];
        int ndim;
        enum param_init init;
        float std;
    } rows[N_PARAMS] = {
        [LN1_W] = {"ln_1.weight", {C}, 1, PARAM_INIT_ONE, 0},
        [LN1_B] = {"ln_1.bias", {C}, 1, PARAM_INIT_ZERO, 0},
        [QKV_W] = {"attn.c_attn.weight", {C, 3 * C}, 2, PARAM_INIT_NORMAL, std},
        [QKV_B] = {"attn.c_attn.bias", {3 * C}, 1, PARAM_INIT_ZERO, 0},
        [PROJ_W] = {"attn.c_proj.weight", {C, C}, 2, PARAM_INIT_NORMAL, std_residual},
        [PROJ_B] = {"attn.c_proj.bias", {C}, 1, PARAM_INIT_ZERO, 0},
        [LN2_W] = {"ln_2.weight", {C}, 1, PARAM_INIT_ONE, 0},
        [LN2_B] = {"ln_2.bias", {C}, 1, PARAM_INIT_ZERO, 0},
        [FC_W] = {"mlp.c_fc.weight", {C, F}, 2, PARAM_INIT_NORMAL, std},
        [FC_B] = {"mlp.c_fc.bias", {F}, 1, PARAM_INIT_ZERO, 0},
        [OUT_W] = {"mlp.c_proj.weight", {F, C}, 2, PARAM_INIT_NORMAL, std_residual},
        [OUT_B] = {"mlp.c_proj.bias", {C}, 1, PARAM_INIT_ZERO, 0},
    };
    for (int i = 0; i < N_PARAMS; i++) {
        char name[96];
        snprintf(name, sizeof name, "transformer.h.%d.%s", hp->layer_idx, rows[i].name);
        TRY(param_list_add(out, name, rows[i].ndim, rows[i].shape, rows[i].init, rows[i].std));
    }
    return CZ_OK;
}

/* ---- memory --------------------------------------------------------------------------------- */

/* What the two halves hand to each other and to backward. */
struct block_kept {
    void *qkv; /* (N,3C) */
    void *att; /* (N,C) */
    void *x2;  /* (N,C) */
    void *fc;  /* (N,F) */
    float *lse;
    float *mean1, *rstd1, *mean2, *rstd2;
    void *h1, *h2, *g; /* (N,C), (N,C), (N,F): ln_1, ln_2, act(fc); NULL unless all is kept */
};

/* Sizes must be those that block_size() counts: one function measures (base NULL) and places. */
static struct block_kept layout_saved(const struct gpt2_block_hp *hp, int64_t B, int64_t T,
                                      enum cz_dtype dtype, bool keeps_all, struct scratch *s)
{
    const int64_t N = B * T;
    const size_t e = dtype_size(dtype);
    struct block_kept k = {0};
    k.qkv = scratch_take(s, N, 3 * hp->C, e);
    k.att = scratch_take(s, N, hp->C, e);
    k.x2 = scratch_take(s, N, hp->C, e);
    k.fc = scratch_take(s, N, hp->F, e);
    k.lse = scratch_take(s, N, hp->H, sizeof(float));
    k.mean1 = scratch_take(s, N, 1, sizeof(float));
    k.rstd1 = scratch_take(s, N, 1, sizeof(float));
    k.mean2 = scratch_take(s, N, 1, sizeof(float));
    k.rstd2 = scratch_take(s, N, 1, sizeof(float));
    if (!keeps_all) return k;
    k.h1 = scratch_take(s, N, hp->C, e);
    k.h2 = scratch_take(s, N, hp->C, e);
    k.g = scratch_take(s, N, hp->F, e);
    return k;
}

/* EVAL and decode: qkv and att are dead when fc is made, so fc takes their place; x2 is made in
 * `out`. */
static struct block_kept layout_eval(const struct gpt2_block_hp *hp, int64_t N, enum cz_dtype dtype,
                                     void *out, struct scratch *s)
{
    const size_t e = dtype_size(dtype);
    struct scratch mlp = *s;
    struct block_kept k = {.x2 = out};
    k.qkv = scratch_take(s, N, 3 * hp->C, e);
    k.att = scratch_take(s, N, hp->C, e);
    k.lse = scratch_take(s, N, hp->H, sizeof(float));
    k.fc = scratch_take(&mlp, N, hp->F, e);
    if (mlp.used > s->used) s->used = mlp.used;
    return k;
}

/* Backward's own memory: `row` (N,C) and `wide`, (N,F) in the MLP, (N,3C) in the attention. */
struct block_space {
    void *row, *wide;
    struct scratch own;
};

/* The wide buffer serves the MLP, then attention. */
static struct block_space layout_backward(const struct gpt2_block_hp *hp, int64_t N,
                                          enum cz_dtype dtype, void *base)
{
    const int64_t widest = hp->F > 3 * hp->C ? hp->F : 3 * hp->C;
    struct block_space s = {.own = {.base = base}};
    s.row = scratch_take(&s.own, N, hp->C, dtype_size(dtype));
    s.wide = scratch_take(&s.own, N, widest, dtype_size(dtype));
    return s;
}

/* Scores are scaled by the config's factor, not always by 1/√D. */
static struct attention_args attention_of(const struct gpt2_block_hp *hp, int64_t B, int64_t Tq,
                                          int64_t Tk, enum cz_dtype dtype)
{
    return (struct attention_args){.B = B,
                                   .Tq = Tq,
                                   .Tk = Tk,
                                   .H = hp->H,
                                   .G = hp->H,
                                   .D = hp->C / hp->H,
                                   .dtype = dtype,
                                   .scale = hp->attn_scale,
                                   .causal = true,
                                   .q_stride = 3 * hp->C,
                                   .k_stride = 3 * hp->C,
                                   .v_stride = 3 * hp->C,
                                   .out_stride = hp->C};
}

/* The largest of all operations: they run one after the other. */
static cz_status op_workspace(const struct gpt2_block_hp *hp, const struct batch_shape *s,
                              size_t *nbytes_max)
{
    const int64_t N = s->B * s->T;
    const struct linear maps[] = {qkv_of(hp), proj_of(hp), fc_of(hp), out_of(hp)};
    const struct norm norm = norm_of(hp);
    for (size_t i = 0; i < CZ_ARRAY_LEN(maps); i++)
        TRY(linear_workspace(s, &maps[i], N, nbytes_max));
    norm_workspace(s, &norm, N, nbytes_max);
    struct attention_args attention = attention_of(hp, s->B, s->T, s->T, s->dtype);
    attention.dropout_p = s->training ? hp->attn_dropout_p : 0.0f;
    size_raise(nbytes_max, ops_attention_workspace(s->ops, &attention, false));
    if (s->training) {
        size_raise(nbytes_max, ops_attention_workspace(s->ops, &attention, true));
        return CZ_OK;
    }
    for (size_t i = 0; i < CZ_ARRAY_LEN(maps); i++) /* one token per sequence */
        TRY(linear_workspace(s, &maps[i], s->B, nbytes_max));
    TRY(linear_columns_workspace(s, &maps[0], hp->C, N, hp->C, nbytes_max));
    TRY(linear_columns_workspace(s, &maps[0], hp->C, s->T, hp->C, nbytes_max));
    TRY(linear_columns_workspace(s, &maps[0], hp->C, s->B, hp->C, nbytes_max));
    TRY(linear_columns_workspace(s, &maps[0], hp->C, s->B, s->T * hp->C, nbytes_max));
    attention = attention_of(hp, s->B, 1, s->T, s->dtype);
    size_raise(nbytes_max, ops_attention_workspace(s->ops, &attention, false));
    return CZ_OK;
}

/* Measured with the layouts that forward and backward use. */
static cz_status block_size(const void *hp_, const struct batch_shape *s, struct layer_sizes *out)
{
    const struct gpt2_block_hp *hp = hp_;
    TRY(batch_shape_check("GPT-2 block", s));
    const int64_t N = s->B * s->T;
    *out = (struct layer_sizes){0};
    out->out_nbytes = rows_nbytes(N, hp->C, dtype_size(s->dtype));

    struct scratch eval = {0};
    scratch_take(&eval, N, hp->C, dtype_size(s->dtype)); /* h */
    layout_eval(hp, N, s->dtype, NULL, &eval);
    size_t own_nbytes = eval.used;
    if (s->training) {
        struct scratch saved = {0};
        layout_saved(hp, s->B, s->T, s->dtype, s->keeps_all, &saved);
        out->saved_nbytes = saved.used;
        size_raise(&own_nbytes, layout_backward(hp, N, s->dtype, NULL).own.used);
    } else {
        out->cache_nbytes = rows_nbytes(2 * N, hp->C, dtype_size(s->dtype));
    }
    size_t op_nbytes = 0;
    TRY(op_workspace(hp, s, &op_nbytes));

    const double n = (double)N, c = (double)hp->C, f = (double)hp->F;
    out->flops_attention = 4.0 * n * (double)batch_shape_row_length(s) * c;
    out->flops_forward = 2.0 * n * (4.0 * c * c + 2.0 * c * f) + out->flops_attention;
    return sizes_finish("GPT-2 block", own_nbytes, op_nbytes, out);
}

/* ---- forward -------------------------------------------------------------------------------- */

/* Attention over the packed qkv of this batch, as forward and backward both need it. */
static struct attention_args attention_over(const struct gpt2_block_hp *hp,
                                            const struct layer_args *a, const struct block_kept *k,
                                            struct op_space space)
{
    const int64_t B = a->batch->B, T = a->batch->T;
    struct attention_args args = attention_of(hp, B, T, T, a->dtype);
    args.q = k->qkv;
    args.k = elem_at(a, k->qkv, (size_t)hp->C);
    args.v = elem_at(a, k->qkv, (size_t)(2 * hp->C));
    args.out = k->att;
    args.lse = k->lse;
    attention_complete(&args, a, hp->attn_dropout_p, SITE_ATTENTION, space);
    return args;
}

/* The same arguments as in backward, so that both see the same scores. */
static cz_status attend(const struct gpt2_block_hp *hp, const struct layer_args *a,
                        const struct block_kept *k, struct op_space space)
{
    const struct attention_args args = attention_over(hp, a, k, space);
    return ops_attention_forward(a->ops, a->stream, &args);
}

/* From att to out. `h` (N,C) is scratch for ln_2; act(fc) goes to `g`, which may be fc itself.
 * `out` NULL: only what is kept is wanted. */
static cz_status after_attention(const struct gpt2_block_hp *hp, const struct layer_args *a,
                                 const struct block_kept *k, void *h, void *g, void *out,
                                 struct op_space space)
{
    const int64_t N = a->batch->B * a->batch->T;
    const size_t numel = (size_t)(N * hp->C);
    const struct norm norm = norm_of(hp);
    const struct linear proj = proj_of(hp), fc = fc_of(hp), down = out_of(hp);
    const void *const *w = a->params;

    TRY(linear_forward(a, &proj, N, k->att, w[PROJ_W], w[PROJ_B], k->x2, space));
    if (dropout_acts(a, hp->resid_dropout_p))
        TRY(dropout_apply(a, hp->resid_dropout_p, SITE_PROJ, numel, k->x2, k->x2));
    const struct norm_io ln2 = {
        .x = a->in, .residual = k->x2, .sum = k->x2, .y = h, .mean = k->mean2, .rstd = k->rstd2};
    TRY(norm_forward(a, &norm, N, &ln2, w[LN2_W], w[LN2_B]));
    if (!out && !k->g) return linear_forward(a, &fc, N, h, w[FC_W], w[FC_B], k->fc, space);
    TRY(linear_act_forward(a, &fc, hp->act, N, h, w[FC_W], w[FC_B], k->fc, g, space));
    if (!out) return CZ_OK;
    void *m = out == k->x2 ? h : out;
    if (!dropout_acts(a, hp->resid_dropout_p))
        return linear_forward_add(a, &down, N, g, w[OUT_W], w[OUT_B], k->x2, m, out, space);
    TRY(linear_forward(a, &down, N, g, w[OUT_W], w[OUT_B], m, space));
    TRY(dropout_apply(a, hp->resid_dropout_p, SITE_OUT, numel, m, m));
    return residual_add(a, numel, k->x2, m, out);
}

/* From in to qkv. */
static cz_status before_attention(const struct gpt2_block_hp *hp, const struct layer_args *a,
                                  const struct block_kept *k, void *h, struct op_space space)
{
    const int64_t N = a->batch->B * a->batch->T;
    const struct norm norm = norm_of(hp);
    const struct linear qkv = qkv_of(hp);
    const struct norm_io ln1 = {.x = a->in, .y = h, .mean = k->mean1, .rstd = k->rstd1};
    TRY(norm_forward(a, &norm, N, &ln1, a->params[LN1_W], a->params[LN1_B]));
    return linear_forward(a, &qkv, N, h, a->params[QKV_W], a->params[QKV_B], k->qkv, space);
}

/* EVAL reuses what is dead; TRAIN keeps what backward needs. */
static cz_status block_forward(const void *hp_, const struct layer_args *a)
{
    const struct gpt2_block_hp *hp = hp_;
    const int64_t B = a->batch->B, T = a->batch->T;
    struct block_kept k;
    void *h, *g;
    struct op_space space;
    if (a->mode == LAYER_EVAL) {
        struct scratch own = {.base = a->workspace};
        h = scratch_take(&own, B * T, hp->C, dtype_size(a->dtype));
        k = layout_eval(hp, B * T, a->dtype, a->out, &own);
        g = k.fc;
        space = scratch_rest(&own, a);
    } else {
        struct scratch saved = {.base = a->saved};
        struct block_space s = layout_backward(hp, B * T, a->dtype, a->workspace);
        k = layout_saved(hp, B, T, a->dtype, a->keeps_all, &saved);
        h = a->out ? a->out : s.row;
        g = s.wide;
        space = scratch_rest(&s.own, a);
    }
    TRY(before_attention(hp, a, &k, k.h1 ? k.h1 : h, space));
    TRY(attend(hp, a, &k, space));
    return after_attention(hp, a, &k, k.h2 ? k.h2 : h, k.g ? k.g : g, a->out, space);
}

/* ---- backward ------------------------------------------------------------------------------- */

/* din becomes dx2: dout and the gradient through out = x2 + dropout(act(fc)·Wout + b). */
static cz_status mlp_backward(const struct gpt2_block_hp *hp, const struct layer_args *a,
                              const struct block_kept *k, const struct block_space *s,
                              struct op_space space)
{
    const int64_t N = a->batch->B * a->batch->T;
    const struct norm norm = norm_of(hp);
    const struct linear fc = fc_of(hp), down = out_of(hp);
    const void *const *w = a->params;
    const struct param_grad *g = a->dparams;

    const void *dm = a->dout;
    if (dropout_acts(a, hp->resid_dropout_p)) {
        TRY(dropout_apply(a, hp->resid_dropout_p, SITE_OUT, (size_t)(N * hp->C), dm, s->row));
        dm = s->row;
    }
    const void *act = k->g ? k->g : s->wide, *h2 = k->h2 ? k->h2 : s->row;
    if (!k->g && linear_wants_input(a, w[OUT_W], &g[OUT_W]))
        TRY(activation_apply(a, hp->act, (size_t)(N * hp->F), k->fc, s->wide));
    TRY(linear_act_backward(a, &down, hp->act, N, act, k->fc, dm, w[OUT_W], &g[OUT_W], &g[OUT_B],
                            s->wide, space));
    if (!k->h2 && linear_wants_input(a, w[FC_W], &g[FC_W])) {
        const struct norm_io ln2 = {.x = k->x2, .y = s->row};
        TRY(norm_forward(a, &norm, N, &ln2, w[LN2_W], w[LN2_B]));
    }
    TRY(linear_backward(a, &fc, N, h2, s->wide, w[FC_W], &g[FC_W], &g[FC_B], s->row, space));
    const struct norm_grad_io grad = {.x = k->x2,
                                      .dy = s->row,
                                      .mean = k->mean2,
                                      .rstd = k->rstd2,
                                      .dx = a->din,
                                      .dx_add = a->dout};
    return norm_backward(a, &norm, N, &grad, w[LN2_W], &g[LN2_W], &g[LN2_B], space);
}

/* dqkv (into s->wide) from datt (in s->row). */
static cz_status attend_backward(const struct gpt2_block_hp *hp, const struct layer_args *a,
                                 const struct block_kept *k, const struct block_space *s,
                                 struct op_space space)
{
    struct attention_args args = attention_over(hp, a, k, space);
    args.dout = s->row;
    args.dq = s->wide;
    args.dk = elem_at(a, s->wide, (size_t)hp->C);
    args.dv = elem_at(a, s->wide, (size_t)(2 * hp->C));
    return ops_attention_backward(a->ops, a->stream, &args);
}

/* din (dx2 on entry) += gradient through x2 = x + dropout(att·Wproj + b). */
static cz_status attention_half_backward(const struct gpt2_block_hp *hp, const struct layer_args *a,
                                         const struct block_kept *k, const struct block_space *s,
                                         struct op_space space)
{
    const int64_t N = a->batch->B * a->batch->T;
    const struct norm norm = norm_of(hp);
    const struct linear qkv = qkv_of(hp), proj = proj_of(hp);
    const void *const *w = a->params;
    const struct param_grad *g = a->dparams;

    const void *dp = a->din;
    if (dropout_acts(a, hp->resid_dropout_p)) { /* into the memory where dqkv comes later */
        TRY(dropout_apply(a, hp->resid_dropout_p, SITE_PROJ, (size_t)(N * hp->C), dp, s->wide));
        dp = s->wide;
    }
    TRY(linear_backward(a, &proj, N, k->att, dp, w[PROJ_W], &g[PROJ_W], &g[PROJ_B], s->row, space));
    TRY(attend_backward(hp, a, k, s, space));
    const void *h1 = k->h1 ? k->h1 : s->row;
    if (!k->h1 && linear_wants_input(a, w[QKV_W], &g[QKV_W])) {
        const struct norm_io ln1 = {.x = a->in, .y = s->row};
        TRY(norm_forward(a, &norm, N, &ln1, w[LN1_W], w[LN1_B]));
    }
    TRY(linear_backward(a, &qkv, N, h1, s->wide, w[QKV_W], &g[QKV_W], &g[QKV_B], s->row, space));
    const struct norm_grad_io grad = {.x = a->in,
                                      .dy = s->row,
                                      .mean = k->mean1,
                                      .rstd = k->rstd1,
                                      .dx = a->din,
                                      .dx_add = a->din};
    return norm_backward(a, &norm, N, &grad, w[LN1_W], &g[LN1_W], &g[LN1_B], space);
}

/* MLP first, then attention: the way back. */
static cz_status block_backward(const void *hp_, const struct layer_args *a)
{
    const struct gpt2_block_hp *hp = hp_;
    const int64_t B = a->batch->B, T = a->batch->T;
    struct scratch saved = {.base = a->saved};
    const struct block_kept k = layout_saved(hp, B, T, a->dtype, a->keeps_all, &saved);
    const struct block_space s = layout_backward(hp, B * T, a->dtype, a->workspace);
    const struct op_space space = scratch_rest(&s.own, a);
    TRY(mlp_backward(hp, a, &k, &s, space));
    return attention_half_backward(hp, a, &k, &s, space);
}

/* ---- decode --------------------------------------------------------------------------------- */

/* Keys, then values, each (B,cache_T,C). */
struct block_cache {
    void *k, *v;
};

/* New keys or values (column group `part` of qkv) to their rows of the cache. */
static cz_status cache_append(const struct gpt2_block_hp *hp, const struct layer_args *a,
                              const void *h, int part, void *rows, struct op_space space)
{
    const struct linear qkv = qkv_of(hp);
    const int64_t C = hp->C, B = a->batch->B, T = a->batch->T;
    const int64_t n_calls = T == 1 ? 1 : B, n_rows = T == 1 ? B : T;
    for (int64_t i = 0; i < n_calls; i++) { /* rows of one call are evenly spaced */
        const void *x = elem_at(a, h, (size_t)(i * T * C));
        void *y = elem_at(a, rows, (size_t)((i * a->cache_T + a->position) * C));
        TRY(linear_columns(a, &qkv, part * C, C, n_rows, x, a->params[QKV_W], a->params[QKV_B], y,
                           T == 1 ? a->cache_T * C : C, space));
    }
    return CZ_OK;
}

/* Only new tokens pass the maps; attention reads all keys and values from the cache. */
static cz_status block_decode(const void *hp_, const struct layer_args *a)
{
    const struct gpt2_block_hp *hp = hp_;
    const int64_t C = hp->C, B = a->batch->B, T = a->batch->T, N = B * T;
    const struct norm norm = norm_of(hp);
    const struct linear qkv = qkv_of(hp);
    const struct block_cache cache = (struct block_cache){
        a->cache, elem_at(a, a->cache, (size_t)(a->batch->B * a->cache_T * hp->C))};
    struct scratch own = {.base = a->workspace};
    void *h = scratch_take(&own, N, C, dtype_size(a->dtype));
    struct block_kept k = layout_eval(hp, N, a->dtype, a->out, &own); /* qkv holds q alone */
    const struct op_space space = scratch_rest(&own, a);

    const struct norm_io ln1 = {.x = a->in, .y = h};
    TRY(norm_forward(a, &norm, N, &ln1, a->params[LN1_W], a->params[LN1_B]));
    TRY(linear_columns(a, &qkv, 0, C, N, h, a->params[QKV_W], a->params[QKV_B], k.qkv, C, space));
    TRY(cache_append(hp, a, h, 1, cache.k, space));
    TRY(cache_append(hp, a, h, 2, cache.v, space));

    struct attention_args args = attention_of(hp, B, T, a->position + T, a->dtype);
    args.q = k.qkv;
    args.k = cache.k;
    args.v = cache.v;
    args.q_stride = args.k_stride = args.v_stride = C;
    args.kv_batch = a->cache_T * C;
    args.out = k.att;
    args.lse = k.lse;
    args.workspace = space.p;
    args.workspace_nbytes = space.nbytes;
    TRY(ops_attention_forward(a->ops, a->stream, &args));
    return after_attention(hp, a, &k, h, k.fc, a->out, space);
}

const struct layer_class gpt2_block_class = {
    .name = "gpt2_block",
    .flags = LAYER_MAPS | LAYER_MAPS_IN_OUT | LAYER_INDEXED,
    .declare = block_declare,
    .size = block_size,
    .forward = block_forward,
    .backward = block_backward,
    .decode = block_decode,
};
