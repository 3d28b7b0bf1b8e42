/* One decoder block, of any of the families. B batch, T positions, N = B·T, C width, H query heads
 * and G key heads of width D, F width of the MLP.
 *
 *   h1 = norm(x)     o = attention half(h1)     x2  = x + r·norm(o)
 *   h2 = norm(x2)    m = MLP half(h2)           out = x2 + r·norm(m)
 *
 * Norms stand before the halves (LLaMA), after them (OLMo 2) or around them (Gemma); where there is
 * none its argument passes. r is 1 but for Granite; Phi-3 may drop part of what a half adds. The
 * MLP half may be a mixture of experts (decoder_experts.c). ModernBERT and MegatronBERT, encoders,
 * are the same with layer norms and attention in both directions.
 *
 * Kept for backward: q and k, v, att (2·HD + 2·GD), gate and up (2F) per token; x2 (C), or with
 * norms after o and m (2C); and a few fp32 statistics. What is cheap to repeat (norms, rotation of
 * normed heads, activation, unless all is kept: 2C + F; cosines and sines; x2) is repeated there;
 * no matrix product is. Backward writes the gradients of gate and up over them. */
#include "model/decoder/block_impl.h"
#include "ops/elementwise/elementwise.h"
#include "ops/router/router.h"

/* ---- memory --------------------------------------------------------------------------------- */

static float *take_statistics(struct scratch *s, int64_t N)
{
    return scratch_take(s, N, 1, sizeof(float));
}

/* TRAIN: what is in saved. */
static struct block_kept layout_saved(const struct decoder_block_hp *hp, int64_t N,
                                      enum cz_dtype dtype, bool keeps_all, struct scratch *s)
{
    const size_t e = dtype_size(dtype);
    const bool first = has_first_norm(hp), before = has_norm_before(hp), after = has_norm_after(hp);
    struct block_kept k = {0};
    attention_take_kept(hp, N, dtype, s, &k.att);
    if (!after) k.x2 = scratch_take(s, N, hp->C, e);
    if (after) k.o = scratch_take(s, N, hp->C, e);
    if (has_experts(hp))
        experts_take_kept(hp, N, dtype, true, s, &k.mlp);
    else
        mlp_take_kept(hp, N, dtype, s, &k.mlp);
    if (after) k.m = scratch_take(s, N, hp->C, e);
    if (first) k.rstd1 = take_statistics(s, N);
    if (first && hp->layer_norm) k.mean1 = take_statistics(s, N);
    if (after) k.rstd_post1 = take_statistics(s, N);
    if (before) k.rstd2 = take_statistics(s, N);
    if (before && hp->layer_norm) k.mean2 = take_statistics(s, N);
    if (after) k.rstd_post2 = take_statistics(s, N);
    if (!keeps_all) return k;
    if (first) k.h1 = scratch_take(s, N, hp->C, e); /* else it is x */
    k.h2 = scratch_take(s, N, hp->C, e);
    if (!has_experts(hp)) k.mlp.y = scratch_take(s, N, hp->F, e);
    return k;
}

/* EVAL and decode: what attention needs is dead when gate and up are made, so those take its place;
 * x2, o and m are made in `out` or h. */
static struct block_space layout_eval(const struct decoder_block_hp *hp, int64_t N,
                                      enum cz_dtype dtype, void *out, void *base,
                                      struct block_kept *k)
{
    struct block_space s = {.own = {.base = base}};
    s.h = scratch_take(&s.own, N, hp->C, dtype_size(dtype));
    s.x2 = out;
    *k = (struct block_kept){.x2 = out, .o = out, .m = s.h};
    struct scratch mlp = s.own;
    attention_take_kept(hp, N, dtype, &s.own, &k->att);
    attention_take_eval(hp, N, &s.own, &k->att, &s.att);
    if (has_experts(hp)) {
        experts_take_kept(hp, N, dtype, false, &mlp, &k->mlp);
        experts_take_space(hp, N, dtype, false, &mlp, &s.experts);
    } else {
        mlp_take_kept(hp, N, dtype, &mlp, &k->mlp);
    }
    s.y = hp->fused_maps ? scratch_take(&mlp, N, hp->F, dtype_size(dtype)) : k->mlp.gate;
    size_raise(&s.own.used, mlp.used);
    return s;
}

/* Whether what a half gives is not what it adds. */
static bool changes_branch(const struct decoder_block_hp *hp)
{
    return hp->residual_scale != 0 || hp->resid_dropout_p > 0;
}

/* TRAIN, RECOMPUTE and backward. */
static struct block_space layout_train(const struct decoder_block_hp *hp, int64_t N,
                                       enum cz_dtype dtype, void *base)
{
    const int64_t HD = hp->H * hp->D;
    const size_t e = dtype_size(dtype);
    struct block_space s = {.own = {.base = base}};
    s.h = scratch_take(&s.own, N, hp->C > HD ? hp->C : HD, e);
    if (has_norm_after(hp) || changes_branch(hp)) s.branch = scratch_take(&s.own, N, hp->C, e);
    struct scratch mlp = s.own;
    attention_take_train(hp, N, dtype, &s.own, &s.att);
    if (has_norm_after(hp)) s.x2 = scratch_take(&mlp, N, hp->C, e);
    s.y = scratch_take(&mlp, has_experts(hp) ? experts_rows(N) : N, hp->F, e);
    if (has_experts(hp)) experts_take_space(hp, N, dtype, true, &mlp, &s.experts);
    size_raise(&s.own.used, mlp.used);
    return s;
}

/* With an MLP that runs alone, or those that a token goes to. */
static double map_flops(const struct decoder_block_hp *hp, double n)
{
    const double c = (double)hp->C, f = (double)hp->F;
    const double hd = (double)(hp->H * hp->D), gd = (double)(hp->G * hp->D);
    const double mlps = has_experts(hp) ? (double)hp->top_k : 1.0, e = (double)hp->n_experts;
    const double maps = hp->plain_mlp ? 2.0 : 3.0;
    return 2.0 * n * (2.0 * c * hd + 2.0 * c * gd + maps * c * f * mlps + c * e);
}

static cz_status block_size(const void *hp_, const struct batch_shape *s, struct layer_sizes *out)
{
    const struct decoder_block_hp *hp = hp_;
    TRY(batch_shape_check("decoder block", s));
    const int64_t N = s->B * s->T;
    *out = (struct layer_sizes){0};
    out->out_nbytes = rows_nbytes(N, hp->C, dtype_size(s->dtype));

    struct block_kept kept;
    size_t own_nbytes = layout_eval(hp, N, s->dtype, NULL, NULL, &kept).own.used;
    if (s->training) {
        struct scratch saved = {0};
        layout_saved(hp, N, s->dtype, s->keeps_all, &saved);
        out->saved_nbytes = saved.used;
        size_raise(&own_nbytes, layout_train(hp, N, s->dtype, NULL).own.used);
    } else if (!hp->is_bidirectional) {
        out->cache_nbytes = rows_nbytes(2 * N, hp->G * hp->D, dtype_size(s->dtype));
    }
    size_t op_nbytes = 0;
    TRY(block_maps_workspace(hp, s, N, &op_nbytes));
    if (!s->training) TRY(block_maps_workspace(hp, s, s->B, &op_nbytes)); /* a token each */
    block_norms_workspace(hp, s, N, &op_nbytes);
    TRY(attention_workspace(hp, s, &op_nbytes));
    if (hp->balances_experts)
        out->shared_nbytes = router_balance_numel(hp->n_experts) * sizeof(float);
    const double t = (double)batch_shape_row_length(s);
    out->flops_attention = 4.0 * (double)N * t * (double)(hp->H * hp->D);
    out->flops_forward = map_flops(hp, (double)N) + out->flops_attention;
    return sizes_finish("decoder block", own_nbytes, op_nbytes, out);
}

/* ---- forward -------------------------------------------------------------------------------- */

static struct block_run run_begin(const struct decoder_block_hp *hp, const struct layer_args *a)
{
    const int64_t B = a->batch->B, T = a->batch->T;
    struct block_run r = {.hp = hp, .a = a, .B = B, .T = T, .N = B * T};
    r.p = block_params_of(hp, a);
    return r;
}

static void run_on_eval(struct block_run *r)
{
    r->s = layout_eval(r->hp, r->N, r->a->dtype, r->a->out, r->a->workspace, &r->k);
    r->space = scratch_rest(&r->s.own, r->a);
}

/* Queries and keys that are not normed are read where they are kept. */
static void run_on_saved(struct block_run *r)
{
    struct scratch saved = {.base = r->a->saved};
    r->k = layout_saved(r->hp, r->N, r->a->dtype, r->a->keeps_all, &saved);
    r->s = layout_train(r->hp, r->N, r->a->dtype, r->a->workspace);
    if (!r->s.att.q) r->s.att.q = r->k.att.q;
    if (!r->s.att.k) r->s.att.k = r->k.att.k;
    r->space = scratch_rest(&r->s.own, r->a);
}

static size_t numel_of(const struct block_run *r)
{
    return (size_t)(r->N * r->hp->C);
}

static cz_status scale(const struct block_run *r, const void *x, void *y)
{
    const struct cast_scale_args args = {.x_dtype = r->a->dtype,
                                         .y_dtype = r->a->dtype,
                                         .numel = numel_of(r),
                                         .alpha = r->hp->residual_scale,
                                         .x = x,
                                         .y = y};
    return ops_cast_scale(r->a->ops, r->a->stream, &args);
}

/* y = dropout(r·x), y may be x: what a half adds, or its gradient. */
static cz_status change_branch(const struct block_run *r, uint32_t site, const void *x, void *y)
{
    const float p = r->hp->resid_dropout_p;
    if (r->hp->residual_scale != 0) {
        TRY(scale(r, x, y));
        x = y;
    }
    if (dropout_acts(r->a, p)) return dropout_apply(r->a, p, site, numel_of(r), x, y);
    return x == y ? CZ_OK : elements_copy(r->a, numel_of(r), x, y);
}

/* x2 from o (in x2 itself where no norm is between), and *h2, what the MLP half reads. */
static cz_status join_attention(const struct block_run *r, void *x2, void *room, const void **h2)
{
    const struct layer_args *a = r->a;
    if (has_norm_after(r->hp)) {
        const struct norm_io post = {.x = r->k.o, .y = x2, .rstd = r->k.rstd_post1};
        TRY(block_norm(r, POST1_W, r->N, &post));
    } else if (changes_branch(r->hp)) {
        TRY(change_branch(r, SITE_ATTENTION_OUT, x2, x2));
    }
    *h2 = x2;
    if (!has_norm_before(r->hp)) return residual_add(a, numel_of(r), a->in, x2, x2);
    const struct norm_io ln2 = {
        .x = a->in, .residual = x2, .sum = x2, .y = room, .mean = r->k.mean2, .rstd = r->k.rstd2};
    *h2 = room;
    return block_norm(r, LN2_W, r->N, &ln2);
}

/* out = x2 + r·norm(m), where m is in r->k.m if it is normed. */
static cz_status join_mlp(const struct block_run *r, const void *x2, void *m, void *out)
{
    if (has_norm_after(r->hp)) {
        const struct norm_io post = {.x = m, .y = r->s.h, .rstd = r->k.rstd_post2};
        TRY(block_norm(r, POST2_W, r->N, &post));
        m = r->s.h;
    } else if (changes_branch(r->hp)) {
        TRY(change_branch(r, SITE_MLP_OUT, m, m));
    }
    return out ? residual_add(r->a, numel_of(r), x2, m, out) : CZ_OK;
}

/* From o (in k.x2 or k.o) to out. `out` NULL: only what is kept is wanted. */
static cz_status after_attention(struct block_run *r)
{
    const bool after = has_norm_after(r->hp);
    void *out = r->a->out, *h = r->s.h, *y = r->k.mlp.y ? r->k.mlp.y : r->s.y;
    void *x2 = r->k.x2, *m = out == x2 ? h : out;
    const void *h2 = NULL;
    if (after) {
        x2 = r->k.h2 && !has_norm_before(r->hp) ? r->k.h2 : r->s.x2;
        m = r->k.m;
    }
    TRY(join_attention(r, x2, r->k.h2 ? r->k.h2 : h, &h2));
    if (has_experts(r->hp)) {
        TRY(experts_forward(r, h2, out || after ? m : NULL));
        return out || after ? join_mlp(r, x2, m, out) : CZ_OK;
    }
    TRY(mlp_widen(r, h2));
    if (!out && !r->k.mlp.y && !after) return CZ_OK;
    TRY(mlp_activate(r, y));
    if (!out && !after) return CZ_OK;
    if (out && !after && !changes_branch(r->hp))
        return block_map_forward_add(r, DOWN_W, y, x2, m, out);
    TRY(block_map_forward(r, DOWN_W, y, m));
    return join_mlp(r, x2, m, out);
}

/* h1: what the attention half reads. */
static cz_status before_attention(const struct block_run *r, const void **h1)
{
    void *y = r->k.h1 ? r->k.h1 : r->s.h;
    const struct norm_io ln1 = {.x = r->a->in, .y = y, .mean = r->k.mean1, .rstd = r->k.rstd1};
    *h1 = r->a->in;
    if (!has_first_norm(r->hp)) return CZ_OK;
    *h1 = y;
    return block_norm(r, LN1_W, r->N, &ln1);
}

static cz_status block_forward(const void *hp, const struct layer_args *a)
{
    struct block_run r = run_begin(hp, a);
    const void *h1 = NULL;
    if (a->mode == LAYER_EVAL)
        run_on_eval(&r);
    else
        run_on_saved(&r);
    /* `out` is free until the end, unless x2 is to be there. */
    if (a->mode != LAYER_EVAL && a->out && !has_norm_after(r.hp)) r.s.h = a->out;
    TRY(before_attention(&r, &h1));
    TRY(attention_forward(&r, h1, has_norm_after(r.hp) ? r.k.o : r.k.x2));
    return after_attention(&r);
}

static cz_status block_decode(const void *hp, const struct layer_args *a)
{
    struct block_run r = run_begin(hp, a);
    const void *h1 = NULL;
    run_on_eval(&r);
    TRY(before_attention(&r, &h1));
    TRY(attention_decode(&r, h1, has_norm_after(r.hp) ? r.k.o : r.k.x2));
    return after_attention(&r);
}

/* ---- backward ------------------------------------------------------------------------------- */

/* y = norm(x) again, for the weight gradients of the maps behind it. */
static cz_status norm_again(const struct block_run *r, enum role weight, const void *x, void *y)
{
    const struct norm_io io = {.x = x, .y = y};
    return block_norm(r, weight, r->N, &io);
}

/* din = `add` + gradient through the norm in front of a half, if there is one, from dy. */
static cz_status through_norm(const struct block_run *r, enum role weight, const void *x,
                              const float *mean, const float *rstd, const void *dy, const void *add)
{
    const struct norm_grad_io grad = {
        .x = x, .dy = dy, .mean = mean, .rstd = rstd, .dx = r->a->din, .dx_add = add};
    return r->p.w[weight] ? block_norm_grad(r, weight, &grad)
                          : residual_add(r->a, numel_of(r), add, dy, r->a->din);
}

/* *dbranch: the gradient of what a half gave, from that of its sum with the residual. */
static cz_status into_branch(const struct block_run *r, enum role weight, const void *x,
                             const float *rstd, const void *dsum, const void **dbranch)
{
    const struct norm_grad_io grad = {.x = x, .dy = dsum, .rstd = rstd, .dx = r->s.branch};
    *dbranch = r->s.branch ? r->s.branch : dsum;
    if (has_norm_after(r->hp)) return block_norm_grad(r, weight, &grad);
    const uint32_t site = weight == POST1_W ? SITE_ATTENTION_OUT : SITE_MLP_OUT;
    return r->s.branch ? change_branch(r, site, dsum, r->s.branch) : CZ_OK;
}

/* x2 where it was not kept. */
static cz_status x2_again(const struct block_run *r)
{
    if (!has_norm_after(r->hp)) return CZ_OK;
    TRY(norm_again(r, POST1_W, r->k.o, r->s.x2));
    return residual_add(r->a, numel_of(r), r->a->in, r->s.x2, r->s.x2);
}

/* din becomes dx2: dout and the gradient through the MLP half. */
static cz_status mlp_half_backward(struct block_run *r)
{
    const void *dm, *h2 = r->k.h2, *x2 = r->k.x2 ? r->k.x2 : r->s.x2;
    const bool before = has_norm_before(r->hp), wants_h2 = mlp_wants_input(r) && !h2;
    TRY(into_branch(r, POST2_W, r->k.m, r->k.rstd_post2, r->a->dout, &dm));
    if (before || wants_h2) TRY(x2_again(r));
    if (!h2) h2 = before ? r->s.h : x2;
    if (wants_h2 && before) TRY(norm_again(r, LN2_W, x2, r->s.h));
    TRY(has_experts(r->hp) ? experts_backward(r, h2, dm, r->s.h) : mlp_backward(r, h2, dm, r->s.h));
    return through_norm(r, LN2_W, x2, r->k.mean2, r->k.rstd2, r->s.h, r->a->dout);
}

/* din (dx2 on entry) += gradient through the attention half. */
static cz_status attention_half_backward(struct block_run *r)
{
    const void *d_o, *h1 = r->k.h1, *x = r->a->in;
    const bool before = has_first_norm(r->hp);
    TRY(into_branch(r, POST1_W, r->k.o, r->k.rstd_post1, r->a->din, &d_o));
    TRY(attention_backward(r, d_o, r->s.h));
    if (!h1) h1 = before ? r->s.h : x;
    if (before && !r->k.h1 && attention_wants_input(r)) TRY(norm_again(r, LN1_W, x, r->s.h));
    TRY(attention_input_backward(r, h1, r->s.h));
    return through_norm(r, LN1_W, x, r->k.mean1, r->k.rstd1, r->s.h, r->a->din);
}

static cz_status block_backward(const void *hp, const struct layer_args *a)
{
    struct block_run r = run_begin(hp, a);
    run_on_saved(&r);
    TRY(mlp_half_backward(&r));
    return attention_half_backward(&r);
}

const struct layer_class decoder_block_class = {
    .name = "decoder_block",
    .flags = LAYER_MAPS | LAYER_INDEXED,
    .declare = block_declare,
    .size = block_size,
    .forward = block_forward,
    .backward = block_backward,
    .decode = block_decode,
};

const struct layer_class decoder_block_uncached_class = {
    .name = "decoder_block",
    .flags = LAYER_MAPS | LAYER_INDEXED,
    .declare = block_declare,
    .size = block_size,
    .forward = block_forward,
    .backward = block_backward,
};
