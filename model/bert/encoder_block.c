/* One block of an encoder, with the norm behind each residual (BERT, DistilBERT). F width of the
 * MLP. Weights are stored (out,in).
 *
 *   q = x·Wqᵀ + b   k, v likewise   att = attention(q, k, v) in both directions
 *   s1 = x + dropout(att·Wprojᵀ + b)          x2 = ln_1(s1)
 *   fc = x2·Wfcᵀ + b                           s2 = x2 + dropout(act(fc)·Woutᵀ + b)
 *   out = ln_2(s2)
 *
 * Kept for backward: q, k, v, att, s1, s2 (6C), fc (F) per token and a few fp32 statistics. What is
 * cheap to repeat (x2, act(fc): C + F) is repeated there, unless all is kept; no matrix product is.
 *
 * In front of a classification head (`first_only`) training makes only the first position of each
 * row: its query, and everything behind attention, over B rows instead of N. Other positions of out
 * are zeros, of dout are not read. Evaluation makes them all.
 *
 * The gradient of the key's bias is zero: the bias adds q·b to all scores of a query, which its
 * softmax does not see (Σ_k ds = 0). It is written as such; adding up dk would give rounding noise,
 * on which Adam would act as on anything else. Not so with DeBERTa's p2c, where keys meet
 * positions.
 *
 * Positions that scores depend on are in encoder_positions.c. */
#include "model/bert/encoder_impl.h"

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

/* ---- declare -------------------------------------------------------------------------------- */

/* What each parameter is, which decides its shape and how it begins. */
static const enum {
    MAP_WEIGHT = 0,
    NORM_WEIGHT,
    BIAS
} kinds[ENCODER_N_PARAMS] = {
    [ENCODER_Q_B] = BIAS,          [ENCODER_K_B] = BIAS,   [ENCODER_V_B] = BIAS,
    [ENCODER_PROJ_B] = BIAS,       [ENCODER_FC_B] = BIAS,  [ENCODER_OUT_B] = BIAS,
    [ENCODER_LN1_B] = BIAS,        [ENCODER_LN2_B] = BIAS, [ENCODER_LN1_W] = NORM_WEIGHT,
    [ENCODER_LN2_W] = NORM_WEIGHT,
};

static cz_status declare_one(const struct encoder_block_hp *hp, int i, struct param_list *out)
{
    const int64_t rows = i == ENCODER_FC_W || i == ENCODER_FC_B ? hp->F : hp->C;
    const int64_t shape[] = {rows, i == ENCODER_OUT_W ? hp->F : hp->C};
    char name[128];
    snprintf(name, sizeof name, "%s.%d.%s", hp->prefix, hp->layer_idx, hp->names[i]);
    if (kinds[i] == BIAS) return param_list_add(out, name, 1, shape, PARAM_INIT_ZERO, 0.0f);
    if (kinds[i] == NORM_WEIGHT) return param_list_add(out, name, 1, shape, PARAM_INIT_ONE, 0.0f);
    return param_list_add(out, name, 2, shape, PARAM_INIT_NORMAL, hp->init_std);
}

static cz_status block_declare(const void *hp, struct param_list *out)
{
    for (int i = 0; i < ENCODER_N_PARAMS; i++) TRY(declare_one(hp, i, out));
    return encoder_positions_declare(hp, out);
}

/* ---- memory --------------------------------------------------------------------------------- */

/* Rows of a call: R = N, or one for each text where only first positions are made. */
struct block_rows {
    int64_t B, T, N, R;
    bool first_only;
};

static struct block_rows rows_of(const struct encoder_block_hp *hp, int64_t B, int64_t T,
                                 int64_t n_texts, bool training)
{
    const bool first_only = hp->first_only && training;
    return (struct block_rows){
        .B = B, .T = T, .N = B * T, .R = first_only ? n_texts : B * T, .first_only = first_only};
}

/* What the two halves hand to each other and to backward. */
struct block_kept {
    void *q, *k, *v; /* (R,C) (N,C) (N,C) */
    void *att;       /* (R,C) */
    void *s1, *s2;   /* (R,C) */
    void *fc;        /* (R,F) */
    float *lse;
    float *mean1, *rstd1, *mean2, *rstd2;
    void *x2, *g; /* (R,C), (R,F): ln_1, act(fc); NULL unless all is kept */
};

/* Memory of one call: the tensors above, and temporaries of the call. TRAIN, backward:
 * `x2` and `g` are in the workspace, unless all is kept: forward then makes them in saved. EVAL:
 * they overlay unused tensors, or are in out. */
struct block_space {
    struct block_kept kept;
    void *x;            /* (R,C) the first positions of in, where only they are made */
    void *y;            /* (R,C) and of out; backward: dout, then din */
    void *x2;           /* (R,C) */
    void *g;            /* (R,F) act(fc); backward: dfc */
    void *m;            /* (R,C) the MLP's product, in front of its residual */
    void *dq, *dk, *dv; /* as q, k, v; over g */
    struct encoder_positions_space positions;
    struct scratch own;
};

/* In front of a head the query has R rows, keys and values all N. */
static void take_qkv(const struct encoder_block_hp *hp, const struct block_rows *rows, size_t e,
                     struct scratch *s, void **q, void **k, void **v)
{
    *q = scratch_take(s, rows->R, hp->C, e);
    *k = scratch_take(s, rows->N, hp->C, e);
    *v = scratch_take(s, rows->N, hp->C, e);
}

/* The order is free; sizes must be those that block_size() counts, hence one function for both
 * (base NULL measures). */
static struct block_kept layout_saved(const struct encoder_block_hp *hp,
                                      const struct block_rows *rows, enum cz_dtype dtype,
                                      bool keeps_all, struct scratch *s)
{
    const size_t e = dtype_size(dtype);
    const int64_t R = rows->R;
    struct block_kept k = {0};
    take_qkv(hp, rows, e, s, &k.q, &k.k, &k.v);
    k.att = scratch_take(s, R, hp->C, e);
    k.s1 = scratch_take(s, R, hp->C, e);
    k.s2 = scratch_take(s, R, hp->C, e);
    k.fc = scratch_take(s, R, hp->F, e);
    k.lse = scratch_take(s, R, hp->H, sizeof(float));
    k.mean1 = scratch_take(s, R, 1, sizeof(float));
    k.rstd1 = scratch_take(s, R, 1, sizeof(float));
    k.mean2 = scratch_take(s, R, 1, sizeof(float));
    k.rstd2 = scratch_take(s, R, 1, sizeof(float));
    if (!keeps_all) return k;
    k.x2 = scratch_take(s, R, hp->C, e);
    k.g = scratch_take(s, R, hp->F, e);
    return k;
}

/* Forward and backward call it with the same arguments and find the same places. */
static struct block_space layout_train(const struct encoder_block_hp *hp,
                                       const struct block_rows *rows, enum cz_dtype dtype,
                                       bool keeps_all, void *saved, void *workspace)
{
    const size_t e = dtype_size(dtype);
    struct scratch keep = {.base = saved};
    struct block_space s = {.own = {.base = workspace}};
    s.kept = layout_saved(hp, rows, dtype, keeps_all, &keep);
    s.m = s.kept.s2;
    if (rows->first_only) {
        s.x = scratch_take(&s.own, rows->R, hp->C, e);
        s.y = scratch_take(&s.own, rows->R, hp->C, e);
    }
    s.x2 = scratch_take(&s.own, rows->R, hp->C, e);
    struct scratch attention = s.own;
    s.g = scratch_take(&s.own, rows->R, hp->F, e);
    take_qkv(hp, rows, e, &attention, &s.dq, &s.dk, &s.dv);
    size_raise(&s.own.used, attention.used);
    s.positions =
        encoder_positions_take(hp, rows->B, rows->T, rows->first_only, dtype, true, &s.own);
    return s;
}

/* The workspace of EVAL: q, k, v and att are dead when fc is made, so fc takes their place; x2 and
 * s2 are made in `out`. */
static struct block_space layout_eval(const struct encoder_block_hp *hp,
                                      const struct block_rows *rows, enum cz_dtype dtype, void *out,
                                      void *workspace)
{
    const size_t e = dtype_size(dtype);
    const int64_t N = rows->N;
    struct block_space s = {.own = {.base = workspace}, .x2 = out};
    struct block_kept *k = &s.kept;
    k->s1 = s.m = scratch_take(&s.own, N, hp->C, e);
    k->s2 = out;
    struct scratch mlp = s.own;
    take_qkv(hp, rows, e, &s.own, &k->q, &k->k, &k->v);
    k->att = scratch_take(&s.own, N, hp->C, e);
    k->lse = scratch_take(&s.own, N, hp->H, sizeof(float));
    k->fc = s.g = scratch_take(&mlp, N, hp->F, e);
    size_raise(&s.own.used, mlp.used);
    s.positions = encoder_positions_take(hp, rows->B, rows->T, false, dtype, false, &s.own);
    return s;
}

/* Every position attends, or the first of each row alone: Tq is T or 1; or the number of texts in
 * one row. */
static struct attention_args attention_of(const struct encoder_block_hp *hp, int64_t B, int64_t Tq,
                                          int64_t T, enum cz_dtype dtype)
{
    const int64_t D = hp->C / hp->H, n_terms = 1 + hp->positions.c2p + hp->positions.p2c;
    return (struct attention_args){.B = B,
                                   .Tq = Tq,
                                   .Tk = T,
                                   .H = hp->H,
                                   .G = hp->H,
                                   .D = D,
                                   .dtype = dtype,
                                   .scale = (float)(1.0 / sqrt((double)(D * n_terms))),
                                   .q_stride = hp->C,
                                   .k_stride = hp->C,
                                   .v_stride = hp->C,
                                   .out_stride = hp->C};
}

/* Evaluation attends from every position, training perhaps only from the first. */
static cz_status attention_workspace(const struct encoder_block_hp *hp, const struct batch_shape *s,
                                     bool first_only, size_t *nbytes_max)
{
    const int64_t n_first = batch_shape_n_rows(s) / s->B;
    struct attention_args attention =
        attention_of(hp, s->B, first_only ? n_first : s->T, s->T, s->dtype);
    attention.dropout_p = s->training ? hp->attn_dropout_p : 0.0f;
    encoder_positions_mark(hp, &attention, s->training);
    size_raise(nbytes_max, ops_attention_workspace(s->ops, &attention, false));
    if (s->training) size_raise(nbytes_max, ops_attention_workspace(s->ops, &attention, true));
    return CZ_OK;
}

/* The largest of all operations: they run one after the other. */
static cz_status op_workspace(const struct encoder_block_hp *hp, const struct batch_shape *s,
                              size_t *nbytes_max)
{
    const int64_t N = s->B * s->T;
    const struct linear square = square_of(hp), fc = fc_of(hp), out = out_of(hp);
    const struct norm norm = norm_of(hp);
    TRY(linear_workspace(s, &square, N, nbytes_max));
    TRY(linear_workspace(s, &fc, N, nbytes_max));
    TRY(linear_workspace(s, &out, N, nbytes_max));
    norm_workspace(s, &norm, N, nbytes_max);
    TRY(attention_workspace(hp, s, false, nbytes_max));
    TRY(encoder_positions_workspace(hp, s, nbytes_max));
    if (!s->training) return CZ_OK;
    if (hp->first_only) TRY(attention_workspace(hp, s, true, nbytes_max));
    TRY(linear_dx_add_workspace(s, &square, N, nbytes_max));
    return linear_dx_add_workspace(s, &fc, N, nbytes_max);
}

/* Multiply-accumulates count two: 4 N C² for k and v, 2 R (2C² + 2CF) for the rest. */
static double map_flops(const struct encoder_block_hp *hp, const struct block_rows *rows, int64_t T)
{
    const double n = (double)rows->N, r = (double)rows->R;
    const double c = (double)hp->C, f = (double)hp->F;
    return 4.0 * n * c * c + 2.0 * r * (2.0 * c * c + 2.0 * c * f) +
           encoder_positions_flops(hp, rows->B, rows->R / rows->B, T);
}

/* Saved and workspace by measuring the layouts that forward will use. */
static cz_status block_size(const void *hp_, const struct batch_shape *s, struct layer_sizes *out)
{
    const struct encoder_block_hp *hp = hp_;
    *out = (struct layer_sizes){0};
    TRY(batch_shape_check("encoder block", s));
    if (hp->positions.n_buckets > 0 && s->T > hp->P)
        return err_set(CZ_INVALID, 0, "a sequence of %lld is beyond the %lld positions of %s",
                       (long long)s->T, (long long)hp->P, hp->positions.table_name);
    const int64_t n_texts = batch_shape_n_rows(s);
    const struct block_rows rows = rows_of(hp, s->B, s->T, n_texts, s->training),
                            all = rows_of(hp, s->B, s->T, n_texts, false);
    out->out_nbytes = rows_nbytes(rows.N, hp->C, dtype_size(s->dtype));
    size_t own_nbytes = layout_eval(hp, &all, s->dtype, NULL, NULL).own.used, op_nbytes = 0;
    if (s->training) {
        struct scratch saved = {0};
        layout_saved(hp, &rows, s->dtype, s->keeps_all, &saved);
        out->saved_nbytes = saved.used;
        size_raise(&own_nbytes,
                   layout_train(hp, &rows, s->dtype, s->keeps_all, NULL, NULL).own.used);
    }
    TRY(op_workspace(hp, s, &op_nbytes));
    const int64_t T = batch_shape_row_length(s);
    out->flops_attention = 4.0 * (double)rows.R * (double)T * (double)hp->C;
    out->flops_forward = map_flops(hp, &rows, T) + out->flops_attention;
    return sizes_finish("encoder block", own_nbytes, op_nbytes, out);
}

/* ---- forward -------------------------------------------------------------------------------- */

/* Attention of this batch, as forward and backward both need it. */
static struct attention_args attention_over(const struct encoder_block_hp *hp,
                                            const struct layer_args *a, const struct block_kept *k,
                                            bool first_only, struct op_space space)
{
    const struct batch *batch = a->batch;
    const int64_t n_first = batch_n_rows(batch) / batch->B;
    struct attention_args args =
        attention_of(hp, batch->B, first_only ? n_first : batch->T, batch->T, a->dtype);
    args.q = k->q;
    args.k = k->k;
    args.v = k->v;
    args.out = k->att;
    args.lse = k->lse;
    attention_complete(&args, a, hp->attn_dropout_p, SITE_ATTENTION, space);
    if (first_only && batch->texts) args.query_documents = batch->texts->numbers;
    return args;
}

/* RECOMPUTE is training, too. */
static struct block_rows rows_here(const struct encoder_block_hp *hp, const struct layer_args *a)
{
    return rows_of(hp, a->batch->B, a->batch->T, batch_n_rows(a->batch), a->mode != LAYER_EVAL);
}

/* From in to x2. */
static cz_status attention_half(const struct encoder_block_hp *hp, const struct layer_args *a,
                                struct block_space *s, struct op_space space)
{
    const struct block_rows rows = rows_here(hp, a);
    const int64_t N = rows.N, R = rows.R;
    const void *x = rows.first_only ? s->x : a->in;
    const struct linear square = square_of(hp);
    const struct norm norm = norm_of(hp);
    const struct block_kept *k = &s->kept;
    const void *const *w = a->params;
    if (rows.first_only) TRY(first_positions_take(a, hp->C, a->in, s->x));
    TRY(linear_forward(a, &square, R, x, w[ENCODER_Q_W], w[ENCODER_Q_B], k->q, space));
    TRY(linear_forward(a, &square, N, a->in, w[ENCODER_K_W], w[ENCODER_K_B], k->k, space));
    TRY(linear_forward(a, &square, N, a->in, w[ENCODER_V_W], w[ENCODER_V_B], k->v, space));
    const struct attention_args attention = attention_over(hp, a, k, rows.first_only, space);
    TRY(encoder_attention_forward(hp, a, &attention, &s->positions, space));
    TRY(linear_forward(a, &square, R, k->att, w[ENCODER_PROJ_W], w[ENCODER_PROJ_B], k->s1, space));
    if (dropout_acts(a, hp->proj_dropout_p))
        TRY(dropout_apply(a, hp->proj_dropout_p, SITE_PROJ, (size_t)(R * hp->C), k->s1, k->s1));
    const struct norm_io ln1 = {
        .x = k->s1, .residual = x, .sum = k->s1, .y = s->x2, .mean = k->mean1, .rstd = k->rstd1};
    return norm_forward(a, &norm, R, &ln1, w[ENCODER_LN1_W], w[ENCODER_LN1_B]);
}

/* y may be out or, in front of a head, a small buffer. */
static cz_status mlp_half(const struct encoder_block_hp *hp, const struct layer_args *a,
                          const struct block_space *s, void *y, struct op_space space)
{
    const int64_t N = rows_here(hp, a).R;
    const struct linear fc = fc_of(hp), down = out_of(hp);
    const struct norm norm = norm_of(hp);
    const struct block_kept *k = &s->kept;
    const void *const *w = a->params;
    TRY(linear_act_forward(a, &fc, hp->act, N, s->x2, w[ENCODER_FC_W], w[ENCODER_FC_B], k->fc, s->g,
                           space));
    TRY(linear_forward(a, &down, N, s->g, w[ENCODER_OUT_W], w[ENCODER_OUT_B], s->m, space));
    if (dropout_acts(a, hp->out_dropout_p))
        TRY(dropout_apply(a, hp->out_dropout_p, SITE_OUT, (size_t)(N * hp->C), s->m, s->m));
    const struct norm_io ln2 = {
        .x = s->m, .residual = s->x2, .sum = k->s2, .y = y, .mean = k->mean2, .rstd = k->rstd2};
    return norm_forward(a, &norm, N, &ln2, w[ENCODER_LN2_W], w[ENCODER_LN2_B]);
}

/* EVAL writes straight into out; TRAIN keeps what backward needs. */
static cz_status block_forward(const void *hp_, const struct layer_args *a)
{
    const struct encoder_block_hp *hp = hp_;
    const struct block_rows rows = rows_here(hp, a);
    struct block_space s =
        a->mode == LAYER_EVAL
            ? layout_eval(hp, &rows, a->dtype, a->out, a->workspace)
            : layout_train(hp, &rows, a->dtype, a->keeps_all, a->saved, a->workspace);
    const struct op_space space = scratch_rest(&s.own, a);
    if (s.kept.x2) s.x2 = s.kept.x2;
    if (s.kept.g) s.g = s.kept.g;
    TRY(attention_half(hp, a, &s, space));
    /* Without `out` only s2 and its statistics are wanted: dq is as wide as they are. */
    if (!rows.first_only) return mlp_half(hp, a, &s, a->out ? a->out : s.dq, space);
    TRY(mlp_half(hp, a, &s, s.y, space));
    return a->out ? first_positions_put(a, hp->C, s.y, a->out) : CZ_OK;
}

/* ---- backward ------------------------------------------------------------------------------- */

/* din = gradient of x2 through out = ln_2(x2 + dropout(act(fc)·Woutᵀ + b)). */
static cz_status mlp_backward(const struct encoder_block_hp *hp, const struct layer_args *a,
                              const struct block_space *s, const void *dout, void *din,
                              struct op_space space)
{
    const int64_t N = rows_here(hp, a).R;
    const struct linear fc = fc_of(hp), down = out_of(hp);
    const struct norm norm = norm_of(hp);
    const struct block_kept *k = &s->kept;
    const void *const *w = a->params;
    const struct param_grad *g = a->dparams;

    const struct norm_grad_io ln2 = {
        .x = k->s2, .dy = dout, .mean = k->mean2, .rstd = k->rstd2, .dx = din};
    TRY(norm_backward(a, &norm, N, &ln2, w[ENCODER_LN2_W], &g[ENCODER_LN2_W], &g[ENCODER_LN2_B],
                      space));
    const void *dm = din;
    if (dropout_acts(a, hp->out_dropout_p)) {
        TRY(dropout_apply(a, hp->out_dropout_p, SITE_OUT, (size_t)(N * hp->C), dm, s->x2));
        dm = s->x2;
    }
    const void *act = k->g ? k->g : s->g, *x2 = k->x2 ? k->x2 : s->x2;
    if (!k->g && linear_wants_input(a, w[ENCODER_OUT_W], &g[ENCODER_OUT_W]))
        TRY(activation_apply(a, hp->act, (size_t)(N * hp->F), k->fc, s->g));
    TRY(linear_act_backward(a, &down, hp->act, N, act, k->fc, dm, w[ENCODER_OUT_W],
                            &g[ENCODER_OUT_W], &g[ENCODER_OUT_B], s->g, space));
    if (!k->x2 && linear_wants_input(a, w[ENCODER_FC_W], &g[ENCODER_FC_W])) {
        const struct norm_io ln1 = {.x = k->s1, .y = s->x2};
        TRY(norm_forward(a, &norm, N, &ln1, w[ENCODER_LN1_W], w[ENCODER_LN1_B]));
    }
    TRY(linear_backward(a, &fc, N, x2, s->g, w[ENCODER_FC_W], &g[ENCODER_FC_W], &g[ENCODER_FC_B],
                        NULL, space));
    return linear_dx_add(a, &fc, N, s->g, w[ENCODER_FC_W], din, space);
}

/* Gradients of one of q, k, v, made from N rows of x: its parameters', and what it adds to dx. */
static cz_status input_backward(const struct encoder_block_hp *hp, const struct layer_args *a,
                                int64_t N, const void *x, const void *dy, int weight,
                                const struct param_grad *bias, void *dx, struct op_space space)
{
    const struct linear square = square_of(hp);
    TRY(linear_backward(a, &square, N, x, dy, a->params[weight], &a->dparams[weight], bias, NULL,
                        space));
    return linear_dx_add(a, &square, N, dy, a->params[weight], dx, space);
}

/* From d (R,C), the gradient of x2 = ln_1(x + dropout(att·Wprojᵀ + b)), to that of x on the way
 * past attention, in its place; dq, dk and dv. */
static cz_status attention_backward(const struct encoder_block_hp *hp, const struct layer_args *a,
                                    struct block_space *s, void *d, struct op_space space)
{
    const struct block_rows rows = rows_here(hp, a);
    const struct linear square = square_of(hp);
    const struct norm norm = norm_of(hp);
    const struct block_kept *k = &s->kept;
    const void *const *w = a->params;
    const struct param_grad *g = a->dparams;

    const struct norm_grad_io ln1 = {
        .x = k->s1, .dy = d, .mean = k->mean1, .rstd = k->rstd1, .dx = d};
    TRY(norm_backward(a, &norm, rows.R, &ln1, w[ENCODER_LN1_W], &g[ENCODER_LN1_W],
                      &g[ENCODER_LN1_B], space));
    const void *dp = d;
    if (dropout_acts(a, hp->proj_dropout_p)) { /* into the memory where dq comes later */
        TRY(dropout_apply(a, hp->proj_dropout_p, SITE_PROJ, (size_t)(rows.R * hp->C), dp, s->dq));
        dp = s->dq;
    }
    TRY(linear_backward(a, &square, rows.R, k->att, dp, w[ENCODER_PROJ_W], &g[ENCODER_PROJ_W],
                        &g[ENCODER_PROJ_B], s->x2, space));
    struct attention_args attention = attention_over(hp, a, k, rows.first_only, space);
    attention.dout = s->x2;
    attention.dq = s->dq;
    attention.dk = s->dk;
    attention.dv = s->dv;
    return encoder_attention_backward(hp, a, &attention, &s->positions, space);
}

/* din (N,C) [+]= what k and v add. */
static cz_status keys_backward(const struct encoder_block_hp *hp, const struct layer_args *a,
                               const struct block_space *s, bool add, struct op_space space)
{
    const int64_t N = a->batch->B * a->batch->T;
    const struct linear square = square_of(hp);
    const struct param_grad *g = a->dparams;
    const struct param_grad *bias = hp->positions.p2c ? &g[ENCODER_K_B] : NULL;
    TRY(linear_backward(a, &square, N, a->in, s->dk, a->params[ENCODER_K_W], &g[ENCODER_K_W], bias,
                        add ? NULL : a->din, space));
    if (add) TRY(linear_dx_add(a, &square, N, s->dk, a->params[ENCODER_K_W], a->din, space));
    /* See the head of this file: written as zero rather than computed. */
    if (!bias) TRY(param_grad_zero(a, &g[ENCODER_K_B], hp->C));
    return input_backward(hp, a, N, a->in, s->dv, ENCODER_V_W, &g[ENCODER_V_B], a->din, space);
}

/* din holds the gradient of x2, then that of the block's input: each step adds to it in place. */
static cz_status whole_backward(const struct encoder_block_hp *hp, const struct layer_args *a,
                                struct block_space *s, struct op_space space)
{
    const int64_t N = a->batch->B * a->batch->T;
    TRY(mlp_backward(hp, a, s, a->dout, a->din, space));
    TRY(attention_backward(hp, a, s, a->din, space));
    TRY(input_backward(hp, a, N, a->in, s->dq, ENCODER_Q_W, &a->dparams[ENCODER_Q_B], a->din,
                       space));
    return keys_backward(hp, a, s, true, space);
}

/* The gradient of first positions goes from y to y, and joins what k and v make of all. */
static cz_status first_backward(const struct encoder_block_hp *hp, const struct layer_args *a,
                                struct block_space *s, struct op_space space)
{
    const struct batch *host = batch_on_host(a->batch);
    const int64_t R = batch_n_rows(host);
    const size_t C = (size_t)hp->C;
    TRY(first_positions_take(a, hp->C, a->in, s->x));
    TRY(first_positions_take(a, hp->C, a->dout, s->y));
    TRY(mlp_backward(hp, a, s, s->y, s->y, space));
    TRY(attention_backward(hp, a, s, s->y, space));
    TRY(input_backward(hp, a, R, s->x, s->dq, ENCODER_Q_W, &a->dparams[ENCODER_Q_B], s->y, space));
    TRY(keys_backward(hp, a, s, false, space));
    for (int64_t i = 0; i < R; i++) {
        void *dx = elem_at(a, a->din, (size_t)batch_row_start(host, i) * C);
        TRY(residual_add(a, C, dx, elem_at(a, s->y, (size_t)i * C), dx));
    }
    return CZ_OK;
}

static cz_status block_backward(const void *hp_, const struct layer_args *a)
{
    const struct encoder_block_hp *hp = hp_;
    const struct block_rows rows = rows_here(hp, a);
    struct block_space s = layout_train(hp, &rows, a->dtype, a->keeps_all, a->saved, a->workspace);
    const struct op_space space = scratch_rest(&s.own, a);
    TRY(rows.first_only ? first_backward(hp, a, &s, space) : whole_backward(hp, a, &s, space));
    return encoder_positions_finish(hp, a, &s.positions, space);
}

const struct layer_class encoder_block_class = {
    .name = "encoder_block",
    .flags = LAYER_MAPS | LAYER_INDEXED,
    .declare = block_declare,
    .size = block_size,
    .forward = block_forward,
    .backward = block_backward,
};
