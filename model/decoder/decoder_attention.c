/* The attention half of a decoder block: o = attention(rope(norm(h·Wq)), rope(norm(h·Wk)),
 * h·Wv)·Wo, without norm or without rope where the block has none. Queries, keys and values are
 * arrays of their own or, made by one map, columns of one array; everything below takes both. */
#include "model/decoder/block_impl.h"
#include "ops/rope/rope.h"

#include <math.h>


/* ---- memory --------------------------------------------------------------------------------- */

/* Elements from token to token of q, and of k and v. */
static int64_t q_stride(const struct decoder_block_hp *hp)
{
    return hp->fused_maps ? (hp->H + 2 * hp->G) * hp->D : hp->H * hp->D;
}

static int64_t kv_stride(const struct decoder_block_hp *hp)
{
    return hp->fused_maps ? (hp->H + 2 * hp->G) * hp->D : hp->G * hp->D;
}

static void take_qkv(const struct decoder_block_hp *hp, int64_t N, size_t elem_nbytes,
                     struct scratch *s, void **q, void **k, void **v)
{
    const int64_t HD = hp->H * hp->D, GD = hp->G * hp->D;
    *q = scratch_take(s, N, q_stride(hp), elem_nbytes);
    if (!hp->fused_maps) {
        *k = scratch_take(s, N, GD, elem_nbytes);
        *v = scratch_take(s, N, GD, elem_nbytes);
    } else if (*q) {
        *k = (unsigned char *)*q + (size_t)HD * elem_nbytes;
        *v = (unsigned char *)*k + (size_t)GD * elem_nbytes;
    }
}

static struct rope_rows take_rope(const struct decoder_block_hp *hp, int64_t N, struct scratch *s)
{
    struct rope_rows r = {0};
    if (hp->no_rope) return r;
    r.cos = scratch_take(s, N, hp->rope.half, sizeof(float));
    r.sin = scratch_take(s, N, hp->rope.half, sizeof(float));
    return r;
}

void attention_take_kept(const struct decoder_block_hp *hp, int64_t N, enum cz_dtype dtype,
                         struct scratch *s, struct attention_kept *k)
{
    const size_t e = dtype_size(dtype);
    take_qkv(hp, N, e, s, &k->q, &k->k, &k->v);
    k->att = scratch_take(s, N, hp->H * hp->D, e);
    k->lse = scratch_take(s, N, hp->H, sizeof(float));
    if (hp->qk_norm == QK_NORM_NONE) return;
    k->rstd_q = scratch_take(s, block_norm_rows(hp, QN_W, N), 1, sizeof(float));
    k->rstd_k = scratch_take(s, block_norm_rows(hp, KN_W, N), 1, sizeof(float));
}

void attention_take_eval(const struct decoder_block_hp *hp, int64_t N, struct scratch *s,
                         const struct attention_kept *k, struct attention_space *space)
{
    space->q = k->q;
    space->k = k->k;
    space->rope = take_rope(hp, N, s);
}

void attention_take_train(const struct decoder_block_hp *hp, int64_t N, enum cz_dtype dtype,
                          struct scratch *s, struct attention_space *space)
{
    const size_t e = dtype_size(dtype);
    space->rope = take_rope(hp, N, s);
    take_qkv(hp, N, e, s, &space->dq, &space->dk, &space->dv);
    if (hp->qk_norm == QK_NORM_NONE) return; /* the kept ones are read */
    space->q = scratch_take(s, N, hp->H * hp->D, e);
    space->k = scratch_take(s, N, hp->G * hp->D, e);
}

static struct attention_args attention_of(const struct decoder_block_hp *hp, int64_t B, int64_t Tq,
                                          int64_t Tk, enum cz_dtype dtype)
{
    const float scale = hp->attention_scale;
    const bool hides = hp->window > 0 && hp->window < Tk; /* else nothing is that far back */
    return (struct attention_args){.B = B,
                                   .Tq = Tq,
                                   .Tk = Tk,
                                   .H = hp->H,
                                   .G = hp->G,
                                   .D = hp->D,
                                   .dtype = dtype,
                                   .scale = scale != 0 ? scale : (float)(1.0 / sqrt((double)hp->D)),
                                   .softcap = hp->softcap,
                                   .causal = !hp->is_bidirectional,
                                   .window = hides ? hp->window : 0,
                                   .q_stride = q_stride(hp),
                                   .k_stride = kv_stride(hp),
                                   .v_stride = kv_stride(hp),
                                   .out_stride = hp->H * hp->D};
}

/* Keys and values from a cache have rows of their own. */
static struct attention_args attention_on_cache(const struct decoder_block_hp *hp, int64_t B,
                                                int64_t Tq, int64_t Tk, enum cz_dtype dtype)
{
    struct attention_args args = attention_of(hp, B, Tq, Tk, dtype);
    args.k_stride = args.v_stride = hp->G * hp->D;
    return args;
}

/* The map that makes keys or values, and the first of its columns that does. */
static enum role kv_map(const struct decoder_block_hp *hp, enum role part, int64_t *first)
{
    const int64_t HD = hp->H * hp->D, GD = hp->G * hp->D;
    *first = !hp->fused_maps ? 0 : part == K_W ? HD : HD + GD;
    return hp->fused_maps ? QKV_W : part;
}

/* Shorter batches may have no window. */
static void raise_both(const struct ops *ops, struct attention_args args, bool backward,
                       size_t *nbytes_max)
{
    size_raise(nbytes_max, ops_attention_workspace(ops, &args, backward));
    args.window = 0;
    size_raise(nbytes_max, ops_attention_workspace(ops, &args, backward));
}

static cz_status decode_workspace(const struct decoder_block_hp *hp, const struct batch_shape *s,
                                  size_t *nbytes_max)
{
    int64_t first;
    const struct linear key = block_map(hp, kv_map(hp, K_W, &first));
    const int64_t GD = hp->G * hp->D, HD = hp->H * hp->D;
    TRY(linear_columns_workspace(s, &key, GD, s->T, GD, nbytes_max));
    TRY(linear_columns_workspace(s, &key, GD, s->B, s->T * GD, nbytes_max));
    if (hp->fused_maps) { /* queries alone */
        TRY(linear_columns_workspace(s, &key, HD, s->B * s->T, q_stride(hp), nbytes_max));
        TRY(linear_columns_workspace(s, &key, HD, s->B, q_stride(hp), nbytes_max));
    }
    const struct attention_args args = attention_on_cache(hp, s->B, 1, s->T, s->dtype);
    raise_both(s->ops, args, false, nbytes_max);
    return CZ_OK;
}

cz_status attention_workspace(const struct decoder_block_hp *hp, const struct batch_shape *s,
                              size_t *nbytes_max)
{
    struct attention_args args = attention_of(hp, s->B, s->T, s->T, s->dtype);
    args.dropout_p = s->training ? hp->attn_dropout_p : 0.0f;
    raise_both(s->ops, args, false, nbytes_max);
    if (!s->training) return decode_workspace(hp, s, nbytes_max);
    raise_both(s->ops, args, true, nbytes_max);
    return CZ_OK;
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
static cz_status rope_rows_make(struct block_run *r, int64_t first)
{
    const struct batch *batch = r->a->batch;
    struct rope_rows *rows = &r->s.att.rope;
    float buf[ROPE_HALF_MAX];
    if (r->hp->no_rope) return CZ_OK;
    rows->n_rows = batch->positions ? batch->B * batch->T : batch->T;
    const struct rope_table_args args = {
        .N = rows->n_rows,
        .half = r->hp->rope.half,
        .positions = batch->positions,
        .first = first,
        .freq = rope_frequencies(&r->hp->rope, batch_reach(batch, first), buf),
        .scale = r->hp->rope.scale,
        .cos = rows->cos,
        .sin = rows->sin,
    };
    return ops_rope_table(r->a->ops, r->a->stream, &args);
}

/* n_heads heads of N tokens that are `stride` elements apart. */
static cz_status rotate(const struct block_run *r, const struct rope_rows *rows, int64_t N,
                        int64_t n_heads, int64_t stride, void *x, bool inverse)
{
    const struct rope_args args = {.N = N,
                                   .H = n_heads,
                                   .D = r->hp->D,
                                   .rotary = 2 * r->hp->rope.half,
                                   .dtype = r->a->dtype,
                                   .stride = stride,
                                   .T = rows->n_rows,
                                   .cos = rows->cos,
                                   .sin = rows->sin,
                                   .x = x,
                                   .inverse = inverse};
    return r->hp->no_rope ? CZ_OK : ops_rope(r->a->ops, r->a->stream, &args);
}

static cz_status rotate_both(const struct block_run *r, void *q, void *k, bool inverse)
{
    const struct rope_rows *rows = &r->s.att.rope;
    TRY(rotate(r, rows, r->N, r->hp->H, q_stride(r->hp), q, inverse));
    return rotate(r, rows, r->N, r->hp->G, kv_stride(r->hp), k, inverse);
}

/* ---- forward -------------------------------------------------------------------------------- */

/* Queries and keys as attention reads them, from what the maps made. `keeps`: the norms' statistics
 * go to what is kept. */
static cz_status norm_and_rotate(struct block_run *r, bool keeps)
{
    const struct attention_kept *k = &r->k.att;
    const struct attention_space *s = &r->s.att;
    if (r->hp->qk_norm != QK_NORM_NONE) {
        const struct norm_io q_norm = {.x = k->q, .y = s->q, .rstd = keeps ? k->rstd_q : NULL};
        const struct norm_io k_norm = {.x = k->k, .y = s->k, .rstd = keeps ? k->rstd_k : NULL};
        TRY(block_norm(r, QN_W, r->N, &q_norm));
        TRY(block_norm(r, KN_W, r->N, &k_norm));
    }
    TRY(rope_rows_make(r, 0));
    return rotate_both(r, s->q, s->k, false);
}

/* Attention over this batch, as forward and backward both need it. */
static struct attention_args attention_over(const struct block_run *r)
{
    struct attention_args args = attention_of(r->hp, r->B, r->T, r->T, r->a->dtype);
    args.q = r->s.att.q;
    args.k = r->s.att.k;
    args.v = r->k.att.v;
    args.out = r->k.att.att;
    args.lse = r->k.att.lse;
    attention_complete(&args, r->a, r->hp->attn_dropout_p, SITE_ATTENTION, r->space);
    return args;
}

cz_status attention_forward(struct block_run *r, const void *h, void *o)
{
    const struct attention_kept *k = &r->k.att;
    if (r->hp->fused_maps) {
        TRY(block_map_forward(r, QKV_W, h, k->q));
    } else {
        TRY(block_map_forward(r, Q_W, h, k->q));
        TRY(block_map_forward(r, K_W, h, k->k));
        TRY(block_map_forward(r, V_W, h, k->v));
    }
    TRY(norm_and_rotate(r, r->a->mode != LAYER_EVAL));
    const struct attention_args args = attention_over(r);
    TRY(ops_attention_forward(r->a->ops, r->a->stream, &args));
    return block_map_forward(r, O_W, k->att, o);
}

/* ---- backward ------------------------------------------------------------------------------- */

/* Back through the norms of queries and keys, in place. */
static cz_status unnorm(const struct block_run *r)
{
    const struct attention_kept *k = &r->k.att;
    const struct attention_space *s = &r->s.att;
    const struct norm_grad_io q_norm = {.x = k->q, .dy = s->dq, .rstd = k->rstd_q, .dx = s->dq};
    const struct norm_grad_io k_norm = {.x = k->k, .dy = s->dk, .rstd = k->rstd_k, .dx = s->dk};
    if (r->hp->qk_norm == QK_NORM_NONE) return CZ_OK;
    TRY(block_norm_grad(r, QN_W, &q_norm));
    return block_norm_grad(r, KN_W, &k_norm);
}

cz_status attention_backward(struct block_run *r, const void *dout, void *datt)
{
    struct attention_space *s = &r->s.att;
    TRY(block_map_grads(r, O_W, r->k.att.att, dout));
    TRY(block_map_input_grad(r, O_W, dout, datt, false));
    if (r->hp->qk_norm != QK_NORM_NONE) TRY(norm_and_rotate(r, false));
    struct attention_args args = attention_over(r);
    args.dout = datt;
    args.dq = s->dq;
    args.dk = s->dk;
    args.dv = s->dv;
    TRY(ops_attention_backward(r->a->ops, r->a->stream, &args));
    TRY(rope_rows_make(r, 0));
    TRY(rotate_both(r, s->dq, s->dk, true));
    return unnorm(r);
}

bool attention_wants_input(const struct block_run *r)
{
    static const enum role maps[] = {Q_W, K_W, V_W, QKV_W, N_ROLES};
    return block_wants(r, maps);
}

cz_status attention_input_backward(const struct block_run *r, const void *h, void *dh)
{
    const struct attention_space *s = &r->s.att;
    if (r->hp->fused_maps) {
        TRY(block_map_grads(r, QKV_W, h, s->dq));
        return block_map_input_grad(r, QKV_W, s->dq, dh, false);
    }
    TRY(block_map_grads(r, Q_W, h, s->dq));
    TRY(block_map_grads(r, K_W, h, s->dk));
    TRY(block_map_grads(r, V_W, h, s->dv));
    TRY(block_map_input_grad(r, Q_W, s->dq, dh, false));
    TRY(block_map_input_grad(r, K_W, s->dk, dh, true));
    return block_map_input_grad(r, V_W, s->dv, dh, true);
}

/* ---- decode --------------------------------------------------------------------------------- */

/* New keys where they are in the cache: rows of one sequence are dense. */
static cz_status norm_keys(const struct block_run *r, void *cache)
{
    const struct layer_args *a = r->a;
    const int64_t GD = r->hp->G * r->hp->D;
    for (int64_t b = 0; b < r->B; b++) {
        void *keys = elem_at(a, cache, (size_t)((b * a->cache_T + a->position) * GD));
        const struct norm_io io = {.x = keys, .y = keys};
        TRY(block_norm(r, KN_W, r->T, &io));
    }
    return CZ_OK;
}

/* New keys or values to their rows of a cache (B,cache_T,GD). Rows of one call are evenly spaced: a
 * token of every sequence, or the tokens of one. */
static cz_status cache_append(const struct block_run *r, enum role part, const void *h, void *cache)
{
    const struct layer_args *a = r->a;
    int64_t first;
    const enum role map = kv_map(r->hp, part, &first);
    const int64_t GD = r->hp->G * r->hp->D, B = r->B, T = r->T;
    const int64_t n_calls = T == 1 ? 1 : B, n_rows = T == 1 ? B : T;
    const int64_t stride = T == 1 ? a->cache_T * GD : GD;
    for (int64_t i = 0; i < n_calls; i++) {
        const void *x = elem_at(a, h, (size_t)(i * T * r->hp->C));
        void *y = elem_at(a, cache, (size_t)((i * a->cache_T + a->position) * GD));
        TRY(block_map_columns(r, map, first, GD, n_rows, x, y, stride));
    }
    if (part != K_W) return CZ_OK;
    if (r->hp->qk_norm != QK_NORM_NONE) TRY(norm_keys(r, cache));
    if (r->hp->no_rope) return CZ_OK;
    for (int64_t i = 0; i < n_calls; i++) {
        void *y = elem_at(a, cache, (size_t)((i * a->cache_T + a->position) * GD));
        struct rope_rows rows = r->s.att.rope;
        if (a->batch->positions) { /* of this call's rows */
            rows.cos += i * T * r->hp->rope.half;
            rows.sin += i * T * r->hp->rope.half;
            rows.n_rows = n_rows;
        }
        TRY(rotate(r, &rows, n_rows, r->hp->G, stride, y, false));
    }
    return CZ_OK;
}

cz_status attention_decode(struct block_run *r, const void *h, void *o)
{
    const struct layer_args *a = r->a;
    const struct attention_kept *k = &r->k.att;
    const int64_t GD = r->hp->G * r->hp->D, HD = r->hp->H * r->hp->D;
    void *keys = a->cache, *values = elem_at(a, a->cache, (size_t)(r->B * a->cache_T * GD));

    TRY(rope_rows_make(r, a->position));
    if (r->hp->fused_maps)
        TRY(block_map_columns(r, QKV_W, 0, HD, r->N, h, k->q, q_stride(r->hp)));
    else
        TRY(block_map_forward(r, Q_W, h, k->q));
    if (r->hp->qk_norm != QK_NORM_NONE) {
        const struct norm_io io = {.x = k->q, .y = k->q};
        TRY(block_norm(r, QN_W, r->N, &io));
    }
    TRY(rotate(r, &r->s.att.rope, r->N, r->hp->H, q_stride(r->hp), k->q, false));
    TRY(cache_append(r, K_W, h, keys));
    TRY(cache_append(r, V_W, h, values));

    struct attention_args args =
        attention_on_cache(r->hp, r->B, r->T, a->position + r->T, a->dtype);
    args.q = k->q;
    args.k = keys;
    args.v = values;
    args.kv_batch = a->cache_T * GD;
    args.out = k->att;
    args.lse = k->lse;
    args.workspace = r->space.p;
    args.workspace_nbytes = r->space.nbytes;
    TRY(ops_attention_forward(a->ops, a->stream, &args));
    return block_map_forward(r, O_W, k->att, o);
}
