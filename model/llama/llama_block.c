/* One decoder block of LLaMA and Qwen2. B batch, T positions, N = B·T, C width, H query heads and
 * G key heads of width D, F width of the MLP. Weights are stored (out,in), as torch.nn.Linear does.
 *
 *   h1 = norm(x)   q, k, v = rope(h1·Wq), rope(h1·Wk), h1·Wv   att = attention(q, k, v)
 *   x2 = x + att·Wo                                            h2 = norm(x2)
 *   out = x2 + (silu(h2·Wgate)∘(h2·Wup))·Wdown                 biases where the config has them
 *
 * Kept for backward: q and k rotated, v, att (2·HD + 2·GD), x2 (C), gate and up (2F) per token and
 * a few fp32 statistics. What is cheap to repeat (norms and swiglu, unless all is kept: 2C + F;
 * cosines and sines) is repeated there; no matrix product is. Backward writes the gradients of gate
 * and up over them. */
#include "model/llama/llama_impl.h"
#include "model/parts/blocks_impl.h"
#include "ops/rope/rope.h"

#include <math.h>
#include <stdio.h>

/* Parameters by role, in the order of declaration. */
enum role {
    Q_W = 0,
    Q_B,
    K_W,
    K_B,
    V_W,
    V_B,
    O_W,
    O_B,
    GATE_W,
    GATE_B,
    UP_W,
    UP_B,
    DOWN_W,
    DOWN_B,
    LN1_W,
    LN2_W,
    N_ROLES
};
enum { SITE_ATTENTION = 0 };

/* What a role is. A weight names the role of its bias, a bias the role of its weight, so that roles
 * can be added and reordered without any arithmetic on their numbers. */
static const struct role_info {
    const char *name; /* after "model.layers.<i>." */
    enum { MAP_WEIGHT = 0, MAP_BIAS, NORM_WEIGHT } kind;
    enum role pair; /* of a map: its bias or its weight */
    enum { ALWAYS = 0, WITH_QKV_BIAS, WITH_O_BIAS, WITH_MLP_BIAS } present;
} roles[N_ROLES] = {
    /* clang-format off: one line each */
    [Q_W] = {"self_attn.q_proj.weight", MAP_WEIGHT, Q_B, ALWAYS},
    [Q_B] = {"self_attn.q_proj.bias", MAP_BIAS, Q_W, WITH_QKV_BIAS},
    [K_W] = {"self_attn.k_proj.weight", MAP_WEIGHT, K_B, ALWAYS},
    [K_B] = {"self_attn.k_proj.bias", MAP_BIAS, K_W, WITH_QKV_BIAS},
    [V_W] = {"self_attn.v_proj.weight", MAP_WEIGHT, V_B, ALWAYS},
    [V_B] = {"self_attn.v_proj.bias", MAP_BIAS, V_W, WITH_QKV_BIAS},
    [O_W] = {"self_attn.o_proj.weight", MAP_WEIGHT, O_B, ALWAYS},
    [O_B] = {"self_attn.o_proj.bias", MAP_BIAS, O_W, WITH_O_BIAS},
    [GATE_W] = {"mlp.gate_proj.weight", MAP_WEIGHT, GATE_B, ALWAYS},
    [GATE_B] = {"mlp.gate_proj.bias", MAP_BIAS, GATE_W, WITH_MLP_BIAS},
    [UP_W] = {"mlp.up_proj.weight", MAP_WEIGHT, UP_B, ALWAYS},
    [UP_B] = {"mlp.up_proj.bias", MAP_BIAS, UP_W, WITH_MLP_BIAS},
    [DOWN_W] = {"mlp.down_proj.weight", MAP_WEIGHT, DOWN_B, ALWAYS},
    [DOWN_B] = {"mlp.down_proj.bias", MAP_BIAS, DOWN_W, WITH_MLP_BIAS},
    [LN1_W] = {"input_layernorm.weight", NORM_WEIGHT, LN1_W, ALWAYS},
    [LN2_W] = {"post_attention_layernorm.weight", NORM_WEIGHT, LN2_W, ALWAYS},
    /* clang-format on */
};

static bool has_role(const struct llama_block_hp *hp, enum role role)
{
    switch (roles[role].present) {
    case WITH_QKV_BIAS: return hp->qkv_bias;
    case WITH_O_BIAS: return hp->o_bias;
    case WITH_MLP_BIAS: return hp->mlp_bias;
    case ALWAYS: break;
    }
    return true;
}

/* NULL where the block has no such parameter. */
struct block_params {
    const void *w[N_ROLES];
    const struct param_grad *g[N_ROLES]; /* backward */
};

static struct block_params params_of(const struct llama_block_hp *hp, const struct layer_args *a)
{
    struct block_params p = {0};
    size_t idx = 0;
    for (int role = 0; role < N_ROLES; role++) {
        if (!has_role(hp, (enum role)role)) continue;
        p.w[role] = a->params[idx];
        p.g[role] = a->dparams ? &a->dparams[idx] : NULL;
        idx++;
    }
    return p;
}

static bool wanted(const struct block_params *p, enum role role)
{
    return p->g[role] && p->g[role]->dp;
}

/* ---- maps and shapes ------------------------------------------------------------------------ */

static struct norm norm_of(const struct llama_block_hp *hp)
{
    return (struct norm){.rms = true, .C = hp->C, .eps = hp->eps};
}

/* The map whose weight has this role. */
static struct linear map_of(const struct llama_block_hp *hp, enum role weight)
{
    const int64_t C = hp->C, F = hp->F, HD = hp->H * hp->D, GD = hp->G * hp->D;
    switch (weight) {
    case Q_W: return (struct linear){.n_in = C, .n_out = HD};
    case K_W:
    case V_W: return (struct linear){.n_in = C, .n_out = GD};
    case O_W: return (struct linear){.n_in = HD, .n_out = C};
    case DOWN_W: return (struct linear){.n_in = F, .n_out = C};
    default: return (struct linear){.n_in = C, .n_out = F}; /* gate, up */
    }
}

static const enum role maps[] = {Q_W, K_W, V_W, O_W, GATE_W, UP_W, DOWN_W};

static struct attention_args attention_of(const struct llama_block_hp *hp, int64_t B, int64_t Tq,
                                          int64_t Tk, enum cz_dtype dtype)
{
    return (struct attention_args){.B = B,
                                   .Tq = Tq,
                                   .Tk = Tk,
                                   .H = hp->H,
                                   .G = hp->G,
                                   .D = hp->D,
                                   .dtype = dtype,
                                   .scale = (float)(1.0 / sqrt((double)hp->D)),
                                   .causal = true,
                                   .q_stride = hp->H * hp->D,
                                   .k_stride = hp->G * hp->D,
                                   .v_stride = hp->G * hp->D,
                                   .out_stride = hp->H * hp->D};
}

/* ---- declare -------------------------------------------------------------------------------- */

static cz_status declare_role(const struct llama_block_hp *hp, enum role role,
                              struct param_list *out)
{
    const struct role_info *info = &roles[role];
    char name[96];
    snprintf(name, sizeof name, "model.layers.%d.%s", hp->layer_idx, info->name);
    if (info->kind == NORM_WEIGHT)
        return param_list_add(out, name, 1, &hp->C, PARAM_INIT_ONE, 0.0f);
    const bool is_bias = info->kind == MAP_BIAS;
    const struct linear map = map_of(hp, is_bias ? info->pair : role);
    const int64_t shape[] = {map.n_out, map.n_in};
    if (is_bias) return param_list_add(out, name, 1, shape, PARAM_INIT_ZERO, 0.0f);
    return param_list_add(out, name, 2, shape, PARAM_INIT_NORMAL, hp->init_std);
}

static cz_status block_declare(const void *hp_, struct param_list *out)
{
    const struct llama_block_hp *hp = hp_;
    for (int role = 0; role < N_ROLES; role++)
        if (has_role(hp, (enum role)role)) TRY(declare_role(hp, (enum role)role, out));
    return CZ_OK;
}

/* ---- memory --------------------------------------------------------------------------------- */

/* What the two halves hand to each other and to backward. */
struct block_kept {
    void *q, *att;   /* (N,HD) */
    void *k, *v;     /* (N,GD) */
    void *x2;        /* (N,C) */
    void *gate, *up; /* (N,F) */
    float *lse;      /* (B,H,T) */
    float *rstd1, *rstd2;
    void *h1, *h2; /* (N,C) both norms, and … */
    void *y;       /* (N,F) … swiglu, which backward makes again unless all is kept (else NULL) */
};

/* Cosines and sines, (N, D/2) each; token n takes row n mod n_rows. */
struct rope_rows {
    float *cos, *sin;
    int64_t n_rows;
};

static void take_attention(const struct llama_block_hp *hp, int64_t N, enum cz_dtype dtype,
                           struct scratch *s, struct block_kept *k)
{
    const size_t e = dtype_size(dtype);
    k->q = scratch_take(s, N, hp->H * hp->D, e);
    k->k = scratch_take(s, N, hp->G * hp->D, e);
    k->v = scratch_take(s, N, hp->G * hp->D, e);
    k->att = scratch_take(s, N, hp->H * hp->D, e);
    k->lse = scratch_take(s, N, hp->H, sizeof(float));
}

static struct rope_rows take_rope(const struct llama_block_hp *hp, int64_t N, struct scratch *s)
{
    struct rope_rows r = {0};
    r.cos = scratch_take(s, N, hp->rope.half, sizeof(float));
    r.sin = scratch_take(s, N, hp->rope.half, sizeof(float));
    return r;
}

static void take_mlp(const struct llama_block_hp *hp, int64_t N, enum cz_dtype dtype,
                     struct scratch *s, struct block_kept *k)
{
    k->gate = scratch_take(s, N, hp->F, dtype_size(dtype));
    k->up = scratch_take(s, N, hp->F, dtype_size(dtype));
}

/* TRAIN: `kept` is in saved. */
static struct block_kept layout_saved(const struct llama_block_hp *hp, int64_t N,
                                      enum cz_dtype dtype, bool keeps_all, struct scratch *s)
{
    struct block_kept k = {0};
    take_attention(hp, N, dtype, s, &k);
    k.x2 = scratch_take(s, N, hp->C, dtype_size(dtype));
    take_mlp(hp, N, dtype, s, &k);
    k.rstd1 = scratch_take(s, N, 1, sizeof(float));
    k.rstd2 = scratch_take(s, N, 1, sizeof(float));
    if (!keeps_all) return k;
    k.h1 = scratch_take(s, N, hp->C, dtype_size(dtype));
    k.h2 = scratch_take(s, N, hp->C, dtype_size(dtype));
    k.y = scratch_take(s, N, hp->F, dtype_size(dtype));
    return k;
}

/* Everything else that a call needs. */
struct block_space {
    void *h;               /* (N,C) in forward, (N, C or HD) in backward */
    void *y;               /* (N,F) swiglu and its gradient; where gate is in EVAL */
    void *dq, *dk, *dv;    /* backward */
    struct rope_rows rope; /* dead before y is made, and made again after it */
    struct scratch own;
};

/* EVAL and decode: q, k, v, att and the rope's rows are dead when gate and up are made, so those
 * take their place; x2 is made in `out`. */
static struct block_space layout_eval(const struct llama_block_hp *hp, int64_t N,
                                      enum cz_dtype dtype, void *out, void *base,
                                      struct block_kept *k)
{
    struct block_space s = {.own = {.base = base}};
    s.h = scratch_take(&s.own, N, hp->C, dtype_size(dtype));
    *k = (struct block_kept){.x2 = out};
    struct scratch mlp = s.own;
    take_attention(hp, N, dtype, &s.own, k);
    s.rope = take_rope(hp, N, &s.own);
    take_mlp(hp, N, dtype, &mlp, k);
    s.y = k->gate;
    size_raise(&s.own.used, mlp.used);
    return s;
}

/* TRAIN, RECOMPUTE and backward. */
static struct block_space layout_train(const struct llama_block_hp *hp, int64_t N,
                                       enum cz_dtype dtype, void *base)
{
    const int64_t HD = hp->H * hp->D, GD = hp->G * hp->D;
    const size_t e = dtype_size(dtype);
    struct block_space s = {.own = {.base = base}};
    s.h = scratch_take(&s.own, N, hp->C > HD ? hp->C : HD, e);
    struct scratch mlp = s.own;
    s.rope = take_rope(hp, N, &s.own);
    s.dq = scratch_take(&s.own, N, HD, e);
    s.dk = scratch_take(&s.own, N, GD, e);
    s.dv = scratch_take(&s.own, N, GD, e);
    s.y = scratch_take(&mlp, N, hp->F, e);
    size_raise(&s.own.used, mlp.used);
    return s;
}

static cz_status decode_workspace(const struct llama_block_hp *hp, const struct batch_shape *s,
                                  size_t *nbytes_max)
{
    const struct linear key = map_of(hp, K_W);
    const int64_t GD = key.n_out;
    for (size_t i = 0; i < CZ_ARRAY_LEN(maps); i++) { /* one token per sequence */
        const struct linear map = map_of(hp, maps[i]);
        TRY(linear_workspace(s, &map, s->B, nbytes_max));
    }
    TRY(linear_columns_workspace(s, &key, GD, s->T, GD, nbytes_max));
    TRY(linear_columns_workspace(s, &key, GD, s->B, s->T * GD, nbytes_max));
    const struct attention_args attention = attention_of(hp, s->B, 1, s->T, s->dtype);
    size_raise(nbytes_max, ops_attention_workspace(s->ops, &attention, false));
    return CZ_OK;
}

static cz_status op_workspace(const struct llama_block_hp *hp, const struct batch_shape *s,
                              size_t *nbytes_max)
{
    const int64_t N = s->B * s->T;
    const struct norm norm = norm_of(hp);
    for (size_t i = 0; i < CZ_ARRAY_LEN(maps); i++) {
        const struct linear map = map_of(hp, maps[i]);
        TRY(linear_workspace(s, &map, N, nbytes_max));
        if (s->training && (maps[i] == K_W || maps[i] == V_W || maps[i] == UP_W))
            TRY(linear_dx_add_workspace(s, &map, N, nbytes_max));
    }
    norm_workspace(s, &norm, N, nbytes_max);
    struct attention_args attention = attention_of(hp, s->B, s->T, s->T, s->dtype);
    attention.dropout_p = s->training ? hp->attn_dropout_p : 0.0f;
    size_raise(nbytes_max, ops_attention_workspace(s->ops, &attention, false));
    if (!s->training) return decode_workspace(hp, s, nbytes_max);
    size_raise(nbytes_max, ops_attention_workspace(s->ops, &attention, true));
    return CZ_OK;
}

static cz_status block_size(const void *hp_, const struct batch_shape *s, struct layer_sizes *out)
{
    const struct llama_block_hp *hp = hp_;
    TRY(batch_shape_check("LLaMA block", s));
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
    } else {
        out->cache_nbytes = rows_nbytes(2 * N, hp->G * hp->D, dtype_size(s->dtype));
    }
    size_t op_nbytes = 0;
    TRY(op_workspace(hp, s, &op_nbytes));

    const double n = (double)N, t = (double)s->T, c = (double)hp->C, f = (double)hp->F;
    const double hd = (double)(hp->H * hp->D), gd = (double)(hp->G * hp->D);
    out->flops_forward = 2.0 * n * (2.0 * c * hd + 2.0 * c * gd + 3.0 * c * f) + 4.0 * n * t * hd;
    return sizes_finish("LLaMA block", own_nbytes, op_nbytes, out);
}

/* ---- rope ----------------------------------------------------------------------------------- */

/* The length that frequencies may depend on: one past the batch's last position. */
static int64_t batch_reach(const struct batch *batch, int64_t first)
{
    const int32_t *positions = batch_on_host(batch)->positions;
    int64_t reach = first + batch->T;
    if (!positions) return reach;
    reach = 0;
    for (int64_t n = 0; n < batch->B * batch->T; n++)
        if (positions[n] >= reach) reach = positions[n] + 1;
    return reach;
}

/* Rows for the batch's positions, which begin at `first` where it does not say. */
static cz_status rope_rows_make(const struct llama_block_hp *hp, const struct layer_args *a,
                                int64_t first, struct rope_rows *r)
{
    const struct batch *batch = a->batch;
    float buf[ROPE_HALF_MAX];
    r->n_rows = batch->positions ? batch->B * batch->T : batch->T;
    const struct rope_table_args args = {
        .N = r->n_rows,
        .half = hp->rope.half,
        .positions = batch->positions,
        .first = first,
        .freq = rope_frequencies(&hp->rope, batch_reach(batch, first), buf),
        .scale = hp->rope.scale,
        .cos = r->cos,
        .sin = r->sin};
    return ops_rope_table(a->ops, a->stream, &args);
}

/* Rotate n_heads heads of N tokens, `stride` elements apart, in place. */
static cz_status rotate(const struct llama_block_hp *hp, const struct layer_args *a,
                        const struct rope_rows *r, int64_t N, int64_t n_heads, int64_t stride,
                        void *x, bool inverse)
{
    const struct rope_args args = {.N = N,
                                   .H = n_heads,
                                   .D = hp->D,
                                   .dtype = a->dtype,
                                   .stride = stride,
                                   .T = r->n_rows,
                                   .cos = r->cos,
                                   .sin = r->sin,
                                   .x = x,
                                   .inverse = inverse};
    return ops_rope(a->ops, a->stream, &args);
}

static cz_status rotate_both(const struct llama_block_hp *hp, const struct layer_args *a,
                             const struct rope_rows *r, void *q, void *k, bool inverse)
{
    const int64_t N = a->batch->B * a->batch->T;
    TRY(rotate(hp, a, r, N, hp->H, hp->H * hp->D, q, inverse));
    return rotate(hp, a, r, N, hp->G, hp->G * hp->D, k, inverse);
}

/* ---- forward -------------------------------------------------------------------------------- */

/* y = x·w + b of the map whose weight has this role. */
static cz_status map_forward(const struct llama_block_hp *hp, const struct layer_args *a,
                             enum role weight, int64_t N, const void *x, void *y,
                             struct op_space space)
{
    const struct block_params p = params_of(hp, a);
    const struct linear map = map_of(hp, weight);
    return linear_forward(a, &map, N, x, p.w[weight], p.w[roles[weight].pair], y, space);
}

/* Attention over this batch, as forward and backward both need it. */
static struct attention_args attention_over(const struct llama_block_hp *hp,
                                            const struct layer_args *a, const struct block_kept *k,
                                            struct op_space space)
{
    const int64_t B = a->batch->B, T = a->batch->T;
    struct attention_args args = attention_of(hp, B, T, T, a->dtype);
    args.q = k->q;
    args.k = k->k;
    args.v = k->v;
    args.out = k->att;
    args.lse = k->lse;
    attention_complete(&args, a, hp->attn_dropout_p, SITE_ATTENTION, space);
    return args;
}

/* From x to att. */
static cz_status attend(const struct llama_block_hp *hp, const struct layer_args *a,
                        const struct block_kept *k, void *h, struct rope_rows *rope,
                        struct op_space space)
{
    const int64_t N = a->batch->B * a->batch->T;
    const struct norm norm = norm_of(hp);
    const struct block_params p = params_of(hp, a);
    const struct norm_io ln1 = {.x = a->in, .y = h, .rstd = k->rstd1};
    TRY(norm_forward(a, &norm, N, &ln1, p.w[LN1_W], NULL));
    TRY(map_forward(hp, a, Q_W, N, h, k->q, space));
    TRY(map_forward(hp, a, K_W, N, h, k->k, space));
    TRY(map_forward(hp, a, V_W, N, h, k->v, space));
    TRY(rope_rows_make(hp, a, 0, rope));
    TRY(rotate_both(hp, a, rope, k->q, k->k, false));
    const struct attention_args args = attention_over(hp, a, k, space);
    return ops_attention_forward(a->ops, a->stream, &args);
}

static struct swiglu_args swiglu_over(const struct llama_block_hp *hp, const struct layer_args *a,
                                      const struct block_kept *k)
{
    return (struct swiglu_args){.dtype = a->dtype,
                                .N = a->batch->B * a->batch->T,
                                .C = hp->F,
                                .stride = hp->F,
                                .gate = k->gate,
                                .up = k->up};
}

static cz_status swiglu(const struct llama_block_hp *hp, const struct layer_args *a,
                        const struct block_kept *k, void *y)
{
    struct swiglu_args args = swiglu_over(hp, a, k);
    args.y = y;
    return ops_swiglu_forward(a->ops, a->stream, &args);
}

/* From att to out. `h` (N,C) is scratch and may be `out`; swiglu goes to `y`, which may be gate.
 * `out` NULL: only what is kept is wanted. */
static cz_status after_attention(const struct llama_block_hp *hp, const struct layer_args *a,
                                 const struct block_kept *k, void *h, void *y, void *out,
                                 struct op_space space)
{
    const int64_t N = a->batch->B * a->batch->T;
    const struct norm norm = norm_of(hp);
    const struct block_params p = params_of(hp, a);
    TRY(map_forward(hp, a, O_W, N, k->att, k->x2, space));
    const struct norm_io ln2 = {
        .x = a->in, .residual = k->x2, .sum = k->x2, .y = h, .rstd = k->rstd2};
    TRY(norm_forward(a, &norm, N, &ln2, p.w[LN2_W], NULL));
    TRY(map_forward(hp, a, GATE_W, N, h, k->gate, space));
    TRY(map_forward(hp, a, UP_W, N, h, k->up, space));
    if (!out && !k->y) return CZ_OK;
    TRY(swiglu(hp, a, k, y));
    if (!out) return CZ_OK;
    void *m = out == k->x2 ? h : out;
    TRY(map_forward(hp, a, DOWN_W, N, y, m, space));
    return residual_add(a, (size_t)(N * hp->C), k->x2, m, out);
}

static cz_status block_forward(const void *hp_, const struct layer_args *a)
{
    const struct llama_block_hp *hp = hp_;
    const int64_t N = a->batch->B * a->batch->T;
    struct block_kept k;
    struct block_space s;
    if (a->mode == LAYER_EVAL) {
        s = layout_eval(hp, N, a->dtype, a->out, a->workspace, &k);
    } else {
        struct scratch saved = {.base = a->saved};
        k = layout_saved(hp, N, a->dtype, a->keeps_all, &saved);
        s = layout_train(hp, N, a->dtype, a->workspace);
        if (a->out) s.h = a->out;
    }
    const struct op_space space = scratch_rest(&s.own, a);
    TRY(attend(hp, a, &k, k.h1 ? k.h1 : s.h, &s.rope, space));
    return after_attention(hp, a, &k, k.h2 ? k.h2 : s.h, k.y ? k.y : s.y, a->out, space);
}

/* ---- backward ------------------------------------------------------------------------------- */

/* Gradients of weight and bias alone. */
static cz_status map_param_grads(const struct llama_block_hp *hp, const struct layer_args *a,
                                 enum role weight, const void *x, const void *dy,
                                 struct op_space space)
{
    const int64_t N = a->batch->B * a->batch->T;
    const struct block_params p = params_of(hp, a);
    const struct linear map = map_of(hp, weight);
    return linear_backward(a, &map, N, x, dy, p.w[weight], p.g[weight], p.g[roles[weight].pair],
                           NULL, space);
}

/* dx [+]= dy·w */
static cz_status map_input_grad(const struct llama_block_hp *hp, const struct layer_args *a,
                                enum role weight, const void *dy, void *dx, bool accumulate,
                                struct op_space space)
{
    const struct block_params p = params_of(hp, a);
    const struct linear map = map_of(hp, weight);
    const int64_t N = a->batch->B * a->batch->T;
    return accumulate ? linear_dx_add(a, &map, N, dy, p.w[weight], dx, space)
                      : linear_backward(a, &map, N, NULL, dy, p.w[weight], NULL, NULL, dx, space);
}

/* din = `add` + gradient through y = norm(x) from dy. */
static cz_status through_norm(const struct llama_block_hp *hp, const struct layer_args *a,
                              enum role weight, const void *x, const float *rstd, const void *dy,
                              const void *add, struct op_space space)
{
    const struct norm norm = norm_of(hp);
    const struct block_params p = params_of(hp, a);
    const struct norm_grad_io grad = {.x = x, .dy = dy, .rstd = rstd, .dx = a->din, .dx_add = add};
    return norm_backward(a, &norm, a->batch->B * a->batch->T, &grad, p.w[weight], p.g[weight], NULL,
                         space);
}

/* y = norm(x) again, for the weight gradients of the maps behind it. */
static cz_status norm_again(const struct llama_block_hp *hp, const struct layer_args *a,
                            enum role weight, const void *x, void *y)
{
    const struct norm norm = norm_of(hp);
    const struct norm_io io = {.x = x, .y = y};
    return norm_forward(a, &norm, a->batch->B * a->batch->T, &io, params_of(hp, a).w[weight], NULL);
}

/* din becomes dx2: dout and the gradient through out = x2 + swiglu·Wdown. */
static cz_status mlp_backward(const struct llama_block_hp *hp, const struct layer_args *a,
                              const struct block_kept *k, const struct block_space *s,
                              struct op_space space)
{
    const struct block_params p = params_of(hp, a);
    const void *y = k->y ? k->y : s->y, *h2 = k->h2 ? k->h2 : s->h;
    if (wanted(&p, DOWN_W) && !k->y) TRY(swiglu(hp, a, k, s->y));
    TRY(map_param_grads(hp, a, DOWN_W, y, a->dout, space));
    TRY(map_input_grad(hp, a, DOWN_W, a->dout, s->y, false, space));
    struct swiglu_args args = swiglu_over(hp, a, k);
    args.dy = s->y;
    args.dgate = k->gate;
    args.dup = k->up;
    TRY(ops_swiglu_backward(a->ops, a->stream, &args));

    if ((wanted(&p, GATE_W) || wanted(&p, UP_W)) && !k->h2)
        TRY(norm_again(hp, a, LN2_W, k->x2, s->h));
    TRY(map_param_grads(hp, a, GATE_W, h2, k->gate, space));
    TRY(map_param_grads(hp, a, UP_W, h2, k->up, space));
    TRY(map_input_grad(hp, a, GATE_W, k->gate, s->h, false, space));
    TRY(map_input_grad(hp, a, UP_W, k->up, s->h, true, space));
    return through_norm(hp, a, LN2_W, k->x2, k->rstd2, s->h, a->dout, space);
}

/* dq, dk, dv from datt (in s->h), back through the rotation. */
static cz_status attend_backward(const struct llama_block_hp *hp, const struct layer_args *a,
                                 const struct block_kept *k, struct block_space *s,
                                 struct op_space space)
{
    struct attention_args args = attention_over(hp, a, k, space);
    args.dout = s->h;
    args.dq = s->dq;
    args.dk = s->dk;
    args.dv = s->dv;
    TRY(ops_attention_backward(a->ops, a->stream, &args));
    TRY(rope_rows_make(hp, a, 0, &s->rope));
    return rotate_both(hp, a, &s->rope, s->dq, s->dk, true);
}

/* din (dx2 on entry) += gradient through x2 = x + att·Wo. */
static cz_status attention_half_backward(const struct llama_block_hp *hp,
                                         const struct layer_args *a, const struct block_kept *k,
                                         struct block_space *s, struct op_space space)
{
    const struct block_params p = params_of(hp, a);
    TRY(map_param_grads(hp, a, O_W, k->att, a->din, space));
    TRY(map_input_grad(hp, a, O_W, a->din, s->h, false, space));
    TRY(attend_backward(hp, a, k, s, space));

    const void *h1 = k->h1 ? k->h1 : s->h;
    if ((wanted(&p, Q_W) || wanted(&p, K_W) || wanted(&p, V_W)) && !k->h1)
        TRY(norm_again(hp, a, LN1_W, a->in, s->h));
    TRY(map_param_grads(hp, a, Q_W, h1, s->dq, space));
    TRY(map_param_grads(hp, a, K_W, h1, s->dk, space));
    TRY(map_param_grads(hp, a, V_W, h1, s->dv, space));
    TRY(map_input_grad(hp, a, Q_W, s->dq, s->h, false, space));
    TRY(map_input_grad(hp, a, K_W, s->dk, s->h, true, space));
    TRY(map_input_grad(hp, a, V_W, s->dv, s->h, true, space));
    return through_norm(hp, a, LN1_W, a->in, k->rstd1, s->h, a->din, space);
}

static cz_status block_backward(const void *hp_, const struct layer_args *a)
{
    const struct llama_block_hp *hp = hp_;
    const int64_t N = a->batch->B * a->batch->T;
    struct scratch saved = {.base = a->saved};
    const struct block_kept k = layout_saved(hp, N, a->dtype, a->keeps_all, &saved);
    struct block_space s = layout_train(hp, N, a->dtype, a->workspace);
    const struct op_space space = scratch_rest(&s.own, a);
    TRY(mlp_backward(hp, a, &k, &s, space));
    return attention_half_backward(hp, a, &k, &s, space);
}

/* ---- decode --------------------------------------------------------------------------------- */

/* New keys or values to their rows of a cache (B,cache_T,GD); keys are rotated there. */
static cz_status cache_append(const struct llama_block_hp *hp, const struct layer_args *a,
                              enum role weight, const void *h, void *cache,
                              const struct rope_rows *rope, struct op_space space)
{
    const struct block_params p = params_of(hp, a);
    const struct linear map = map_of(hp, weight);
    const int64_t GD = map.n_out, B = a->batch->B, T = a->batch->T;
    const int64_t n_calls = T == 1 ? 1 : B, n_rows = T == 1 ? B : T;
    const int64_t stride = T == 1 ? a->cache_T * GD : GD;
    for (int64_t i = 0; i < n_calls; i++) { /* rows of one call are evenly spaced */
        const void *x = elem_at(a, h, (size_t)(i * T * hp->C));
        void *y = elem_at(a, cache, (size_t)((i * a->cache_T + a->position) * GD));
        struct rope_rows r = *rope;
        if (a->batch->positions) { /* of this call's rows */
            r.cos += i * T * hp->rope.half;
            r.sin += i * T * hp->rope.half;
            r.n_rows = n_rows;
        }
        TRY(linear_columns(a, &map, 0, GD, n_rows, x, p.w[weight], p.w[roles[weight].pair], y,
                           stride, space));
        if (weight == K_W) TRY(rotate(hp, a, &r, n_rows, hp->G, stride, y, false));
    }
    return CZ_OK;
}

static cz_status block_decode(const void *hp_, const struct layer_args *a)
{
    const struct llama_block_hp *hp = hp_;
    const int64_t B = a->batch->B, T = a->batch->T, N = B * T, GD = hp->G * hp->D;
    const struct norm norm = norm_of(hp);
    struct block_kept k;
    struct block_space s = layout_eval(hp, N, a->dtype, a->out, a->workspace, &k);
    const struct op_space space = scratch_rest(&s.own, a);
    void *keys = a->cache, *values = elem_at(a, a->cache, (size_t)(B * a->cache_T * GD));

    const struct norm_io ln1 = {.x = a->in, .y = s.h};
    TRY(norm_forward(a, &norm, N, &ln1, params_of(hp, a).w[LN1_W], NULL));
    TRY(rope_rows_make(hp, a, a->position, &s.rope));
    TRY(map_forward(hp, a, Q_W, N, s.h, k.q, space));
    TRY(rotate(hp, a, &s.rope, N, hp->H, hp->H * hp->D, k.q, false));
    TRY(cache_append(hp, a, K_W, s.h, keys, &s.rope, space));
    TRY(cache_append(hp, a, V_W, s.h, values, &s.rope, space));

    struct attention_args args = attention_of(hp, B, T, a->position + T, a->dtype);
    args.q = k.q;
    args.k = keys;
    args.v = values;
    args.kv_batch = a->cache_T * GD;
    args.out = k.att;
    args.lse = k.lse;
    args.workspace = space.p;
    args.workspace_nbytes = space.nbytes;
    TRY(ops_attention_forward(a->ops, a->stream, &args));
    return after_attention(hp, a, &k, s.h, s.y, a->out, space);
}

const struct layer_class llama_block_class = {
    .name = "llama_block",
    .declare = block_declare,
    .size = block_size,
    .forward = block_forward,
    .backward = block_backward,
    .decode = block_decode,
};

const struct layer_class llama_block_uncached_class = {
    .name = "llama_block",
    .declare = block_declare,
    .size = block_size,
    .forward = block_forward,
    .backward = block_backward,
};
