/* Attention whose scores depend on distances (encoder_impl.h has the formulas).
 *
 * The vectors of positions are few: each block makes its keys and queries of them again, in
 * backward too. Their products with all queries and keys, q_scores and k_scores, are 2·H·R numbers
 * for each token, much more than anything else in a block; so they are made for as many rows of the
 * batch at a time as fit into SCORES_NBYTES, with their gradients. Only the R buckets that
 * distances below T reach take part.
 *
 * Legend of encoder_impl.h; n rows of x, R buckets in use. The gradient of a position key's bias is
 * zero: like a key's it adds the same to all scores of a query. */
#include "base/size.h"
#include "model/bert/encoder_impl.h"
#include "ops/elementwise/elementwise.h"

#include <math.h>
#include <stdio.h>

enum { SITE_POSITIONS = 3 };

#define SCORES_NBYTES ((size_t)32 << 20)

/* Where parameters stand; those that `positions` does not have are not asked for. */
struct places {
    int key_w, key_b, query_w, query_b, table, norm_w, norm_b;
};

static struct places places_of(const struct encoder_positions_hp *p)
{
    const int own = ENCODER_N_PARAMS, keys = p->own_maps && p->c2p ? 2 : 0,
              queries = p->own_maps && p->p2c ? 2 : 0, table = own + keys + queries;
    return (struct places){.key_w = keys ? own : ENCODER_K_W,
                           .key_b = keys ? own + 1 : ENCODER_K_B,
                           .query_w = queries ? own + keys : ENCODER_Q_W,
                           .query_b = queries ? own + keys + 1 : ENCODER_Q_B,
                           .table = table,
                           .norm_w = table + 1,
                           .norm_b = table + 2};
}

static bool has_terms(const struct encoder_positions_hp *p)
{
    return p->c2p || p->p2c;
}

static struct norm norm_of(const struct encoder_block_hp *hp)
{
    return (struct norm){.C = hp->C, .eps = hp->eps};
}

static struct linear map_of(const struct encoder_block_hp *hp)
{
    return (struct linear){.n_in = hp->C, .n_out = hp->C};
}

static int64_t table_width(const struct encoder_block_hp *hp)
{
    return has_terms(&hp->positions) ? hp->C : hp->H;
}

/* ---- declare -------------------------------------------------------------------------------- */

static cz_status declare_map(const struct encoder_block_hp *hp, const char *weight,
                             const char *bias, struct param_list *out)
{
    const int64_t shape[] = {hp->C, hp->C};
    char name[128];
    snprintf(name, sizeof name, "%s.%d.%s", hp->prefix, hp->layer_idx, weight);
    TRY(param_list_add(out, name, 2, shape, PARAM_INIT_NORMAL, hp->init_std));
    snprintf(name, sizeof name, "%s.%d.%s", hp->prefix, hp->layer_idx, bias);
    return param_list_add(out, name, 1, shape, PARAM_INIT_ZERO, 0.0f);
}

cz_status encoder_positions_declare(const struct encoder_block_hp *hp, struct param_list *out)
{
    const struct encoder_positions_hp *p = &hp->positions;
    const int64_t shape[] = {p->n_buckets, table_width(hp)};
    if (p->n_buckets == 0) return CZ_OK;
    if (p->own_maps && p->c2p) TRY(declare_map(hp, p->key_weight_name, p->key_bias_name, out));
    if (p->own_maps && p->p2c) TRY(declare_map(hp, p->query_weight_name, p->query_bias_name, out));
    TRY(param_list_add(out, p->table_name, 2, shape, PARAM_INIT_NORMAL, hp->init_std));
    if (!p->norm_weight_name) return CZ_OK;
    TRY(param_list_add(out, p->norm_weight_name, 1, &hp->C, PARAM_INIT_ONE, 0.0f));
    return param_list_add(out, p->norm_bias_name, 1, &hp->C, PARAM_INIT_ZERO, 0.0f);
}

/* ---- memory --------------------------------------------------------------------------------- */

/* Buckets of distances from Tq queries, the first of T tokens, to these: [first, first + R). */
static void window_of(const struct encoder_block_hp *hp, int64_t Tq, int64_t T,
                      struct encoder_positions_space *s)
{
    const int32_t *buckets = hp->positions.buckets + hp->P - Tq;
    int32_t least = buckets[0], most = buckets[0];
    for (int64_t i = 0; i < Tq + T - 1; i++) {
        if (buckets[i] < least) least = buckets[i];
        if (buckets[i] > most) most = buckets[i];
    }
    s->first_bucket = least;
    s->R = most - least + 1;
}

/* Bytes of the position scores of one row of a batch, with gradients or without. */
static size_t row_scores_nbytes(const struct encoder_block_hp *hp, int64_t Tq, int64_t T, int64_t R,
                                enum cz_dtype dtype, bool backward)
{
    const struct encoder_positions_hp *p = &hp->positions;
    const int64_t n = (p->c2p ? Tq : 0) + (p->p2c ? T : 0);
    return rows_nbytes(n * hp->H, R, dtype_size(dtype) + (backward ? sizeof(float) : 0));
}

/* All scores, or as many as are made at a time: what a shorter batch needs is no more. */
static size_t scores_nbytes(int64_t B, size_t row_nbytes)
{
    const size_t some = row_nbytes > SCORES_NBYTES ? row_nbytes : SCORES_NBYTES;
    const size_t all = rows_nbytes(B, 1, row_nbytes);
    return (all < some ? all : some) + 4 * 64;
}

struct encoder_positions_space encoder_positions_take(const struct encoder_block_hp *hp, int64_t B,
                                                      int64_t T, bool first_only,
                                                      enum cz_dtype dtype, bool backward,
                                                      struct scratch *s)
{
    const struct encoder_positions_hp *p = &hp->positions;
    const int64_t Tq = first_only ? 1 : T;
    const size_t e = dtype_size(dtype);
    struct encoder_positions_space o = {.n_rows = B, .R = p->n_buckets};
    if (p->n_buckets == 0 || T > hp->P) return o; /* block_size() refuses such T */
    if (!has_terms(p)) {
        if (backward) o.dtable = scratch_take(s, o.R, hp->H, sizeof(float));
        return o;
    }
    window_of(hp, Tq, T, &o);
    o.p = scratch_take(s, o.R, hp->C, e);
    o.mean = scratch_take(s, o.R, 1, sizeof(float));
    o.rstd = scratch_take(s, o.R, 1, sizeof(float));
    if (p->c2p) o.k_rel = scratch_take(s, o.R, hp->C, e);
    if (p->p2c) o.q_rel = scratch_take(s, o.R, hp->C, e);
    if (p->c2p && backward) o.dk_rel = scratch_take(s, o.R, hp->C, sizeof(float));
    if (p->p2c && backward) o.dq_rel = scratch_take(s, o.R, hp->C, sizeof(float));
    if (backward) o.dp = scratch_take(s, o.R, hp->C, e);

    const size_t row_nbytes = row_scores_nbytes(hp, Tq, T, o.R, dtype, backward);
    struct scratch scores = {.base = scratch_take(s, 1, (int64_t)scores_nbytes(B, row_nbytes), 1)};
    if ((size_t)B > SCORES_NBYTES / row_nbytes) o.n_rows = (int64_t)(SCORES_NBYTES / row_nbytes);
    if (o.n_rows < 1) o.n_rows = 1;
    const int64_t of_q = hp->H * o.n_rows * Tq, of_k = hp->H * o.n_rows * T;
    if (p->c2p) o.q_scores = scratch_take(&scores, of_q, o.R, e);
    if (p->p2c) o.k_scores = scratch_take(&scores, of_k, o.R, e);
    if (p->c2p && backward) o.dq_scores = scratch_take(&scores, of_q, o.R, sizeof(float));
    if (p->p2c && backward) o.dk_scores = scratch_take(&scores, of_k, o.R, sizeof(float));
    return o;
}

/* ---- products with the vectors of positions ------------------------------------------------- */

/* scores (n,R) = x (n,D of C)·relᵀ (R,D of C), of one head. */
static struct matmul_args score_args(const struct encoder_block_hp *hp, int64_t n, int64_t R,
                                     enum cz_dtype dtype)
{
    return (struct matmul_args){.m = n,
                                .n = R,
                                .k = hp->C / hp->H,
                                .dtype = dtype,
                                .c_dtype = dtype,
                                .trans_b = true,
                                .lda = hp->C,
                                .ldb = hp->C};
}

/* dx (n,D of C) += d (n,R)·rel (R,D of C) */
static struct matmul_args dx_args(const struct encoder_block_hp *hp, int64_t n, int64_t R,
                                  enum cz_dtype dtype)
{
    return (struct matmul_args){.m = n,
                                .n = hp->C / hp->H,
                                .k = R,
                                .dtype = dtype,
                                .c_dtype = dtype,
                                .accumulate = true,
                                .ldb = hp->C,
                                .ldc = hp->C};
}

/* drel (R,D of C) [+]= dᵀ (R,n)·x (n,D of C) */
static struct matmul_args drel_args(const struct encoder_block_hp *hp, int64_t n, int64_t R,
                                    enum cz_dtype dtype, bool add)
{
    return (struct matmul_args){.m = R,
                                .n = hp->C / hp->H,
                                .k = n,
                                .dtype = dtype,
                                .c_dtype = DTYPE_F32,
                                .trans_a = true,
                                .accumulate = add,
                                .ldb = hp->C,
                                .ldc = hp->C};
}

/* scores (H,n,R) of n rows of x; NULL: not wanted. */
static cz_status make_scores(const struct encoder_block_hp *hp, const struct layer_args *a,
                             int64_t n, int64_t R, const void *x, const void *rel, void *scores,
                             struct op_space space)
{
    const size_t D = (size_t)(hp->C / hp->H);
    for (size_t h = 0; scores && h < (size_t)hp->H; h++)
        TRY(matmul_run(a, score_args(hp, n, R, a->dtype), elem_at(a, x, h * D),
                       elem_at(a, rel, h * D), elem_at(a, scores, h * (size_t)(n * R)), space));
    return CZ_OK;
}

/* dx += what scores' gradients d (H,n,R) make of it, drel [+]= likewise; d in the dtype goes to
 * `narrow`. */
static cz_status scores_backward(const struct encoder_block_hp *hp, const struct layer_args *a,
                                 int64_t n, int64_t R, const float *d, void *narrow, const void *x,
                                 void *dx, const void *rel, float *drel, bool add,
                                 struct op_space space)
{
    const size_t D = (size_t)(hp->C / hp->H);
    const struct cast_scale_args cast = {.x_dtype = DTYPE_F32,
                                         .y_dtype = a->dtype,
                                         .numel = (size_t)(hp->H * n * R),
                                         .alpha = 1.0f,
                                         .x = d,
                                         .y = narrow};
    if (!d) return CZ_OK;
    if (a->dtype != DTYPE_F32) TRY(ops_cast_scale(a->ops, a->stream, &cast));
    for (size_t h = 0; h < (size_t)hp->H; h++) {
        const size_t at = h * (size_t)(n * R);
        const void *dh = a->dtype == DTYPE_F32 ? d + at : elem_at(a, narrow, at);
        TRY(matmul_run(a, dx_args(hp, n, R, a->dtype), dh, elem_at(a, rel, h * D),
                       elem_at(a, dx, h * D), space));
        TRY(matmul_run(a, drel_args(hp, n, R, a->dtype, add), dh, elem_at(a, x, h * D),
                       drel + h * D, space));
    }
    return CZ_OK;
}

/* ---- sizes ---------------------------------------------------------------------------------- */

static cz_status raise_by(const struct batch_shape *s, struct matmul_args args, size_t *nbytes_max)
{
    size_t nbytes = 0;
    TRY(ops_matmul_workspace(s->ops, &args, &nbytes));
    size_raise(nbytes_max, nbytes);
    return CZ_OK;
}

cz_status encoder_positions_workspace(const struct encoder_block_hp *hp,
                                      const struct batch_shape *s, size_t *nbytes_max)
{
    const int64_t N = s->B * s->T, width = table_width(hp);
    const struct linear map = map_of(hp);
    const struct norm norm = norm_of(hp);
    struct encoder_positions_space o = {.R = hp->positions.n_buckets};
    if (o.R == 0) return CZ_OK;
    if (has_terms(&hp->positions)) {
        window_of(hp, s->T, s->T, &o);
        TRY(linear_workspace(s, &map, o.R, nbytes_max));
        norm_workspace(s, &norm, o.R, nbytes_max);
        TRY(raise_by(s, score_args(hp, N, o.R, s->dtype), nbytes_max));
    }
    if (!s->training) return CZ_OK;
    const struct bias_grad_args table = {
        .N = 1, .C = o.R * width, .dtype = s->dtype, .grad_dtype = s->grad_dtype};
    size_raise(nbytes_max, ops_bias_grad_workspace(s->ops, &table));
    if (!has_terms(&hp->positions)) return CZ_OK;
    TRY(linear_dx_add_workspace(s, &map, o.R, nbytes_max));
    TRY(raise_by(s, dx_args(hp, N, o.R, s->dtype), nbytes_max));
    TRY(raise_by(s, drel_args(hp, N, o.R, s->dtype, false), nbytes_max));
    return raise_by(s, drel_args(hp, N, o.R, s->dtype, true), nbytes_max);
}

double encoder_positions_flops(const struct encoder_block_hp *hp, int64_t B, int64_t Tq, int64_t T)
{
    const struct encoder_positions_hp *p = &hp->positions;
    struct encoder_positions_space o = {0};
    if (p->n_buckets == 0 || !has_terms(p) || T > hp->P) return 0;
    window_of(hp, Tq, T, &o);
    const double of_q = p->c2p ? (double)(B * Tq + hp->C) : 0;
    const double of_k = p->p2c ? (double)(B * T + hp->C) : 0;
    return 2.0 * (double)o.R * (double)hp->C * (of_q + of_k);
}

void encoder_positions_mark(const struct encoder_block_hp *hp, struct attention_args *args,
                            bool backward)
{
    static float wanted;
    const struct encoder_positions_hp *p = &hp->positions;
    if (p->n_buckets == 0) return;
    args->positions.n_buckets = p->n_buckets;
    args->positions.buckets = p->buckets + hp->P - args->Tq;
    if (!has_terms(p) && backward) args->positions.dtable = &wanted;
}

/* ---- forward -------------------------------------------------------------------------------- */

/* What vectors are made from: p = dropout(norm(table)), of the buckets in use. */
static cz_status make_vectors(const struct encoder_block_hp *hp, const struct layer_args *a,
                              const struct encoder_positions_space *o)
{
    const struct encoder_positions_hp *p = &hp->positions;
    const struct places at = places_of(p);
    const struct norm norm = norm_of(hp);
    const size_t numel = (size_t)(o->R * hp->C);
    const void *rows = elem_at(a, a->params[at.table], (size_t)(o->first_bucket * hp->C));
    const struct norm_io io = {.x = rows, .y = o->p, .mean = o->mean, .rstd = o->rstd};
    if (p->norm_weight_name)
        TRY(norm_forward(a, &norm, o->R, &io, a->params[at.norm_w], a->params[at.norm_b]));
    else
        TRY(elements_copy(a, numel, rows, o->p));
    if (!dropout_acts(a, hp->out_dropout_p)) return CZ_OK;
    return dropout_apply(a, hp->out_dropout_p, SITE_POSITIONS, numel, o->p, o->p);
}

/* Their keys and queries. */
static cz_status make_rel(const struct encoder_block_hp *hp, const struct layer_args *a,
                          const struct encoder_positions_space *o, struct op_space space)
{
    const struct places at = places_of(&hp->positions);
    const struct linear map = map_of(hp);
    const void *const *w = a->params;
    TRY(make_vectors(hp, a, o));
    if (o->k_rel)
        TRY(linear_forward(a, &map, o->R, o->p, w[at.key_w], w[at.key_b], o->k_rel, space));
    if (!o->q_rel) return CZ_OK;
    return linear_forward(a, &map, o->R, o->p, w[at.query_w], w[at.query_b], o->q_rel, space);
}

/* Attention of n rows of the batch from row b on, of which `args` is all. */
static struct attention_args rows_of(const struct layer_args *a, const struct attention_args *args,
                                     int64_t b, int64_t n)
{
    struct attention_args r = *args;
    const size_t q_at = (size_t)(b * r.Tq * r.q_stride), k_at = (size_t)(b * r.Tk * r.k_stride),
                 v_at = (size_t)(b * r.Tk * r.v_stride), out_at = (size_t)(b * r.Tq * r.out_stride);
    r.B = n;
    r.first_b = b;
    r.q = elem_at(a, r.q, q_at), r.k = elem_at(a, r.k, k_at), r.v = elem_at(a, r.v, v_at);
    r.out = elem_at(a, r.out, out_at);
    r.lse += b * r.H * r.Tq;
    if (r.key_mask) r.key_mask += b * r.Tk;
    if (r.documents) r.documents += b * r.Tk;
    if (!r.dout) return r;
    r.dout = elem_at(a, r.dout, out_at);
    r.dq = elem_at(a, r.dq, q_at), r.dk = elem_at(a, r.dk, k_at), r.dv = elem_at(a, r.dv, v_at);
    return r;
}

static int64_t n_rows_here(const struct encoder_positions_space *o, int64_t B, int64_t b)
{
    return B - b < o->n_rows ? B - b : o->n_rows;
}

/* The table as it is, or the scores of these rows. */
static cz_status put_positions(const struct encoder_block_hp *hp, const struct layer_args *a,
                               struct attention_args *r, const struct encoder_positions_space *o,
                               struct op_space space)
{
    const struct encoder_positions_hp *p = &hp->positions;
    const int64_t nq = r->B * r->Tq, nk = r->B * r->Tk;
    r->positions = (struct attention_positions){.n_buckets = o->R,
                                                .buckets = p->buckets + hp->P - r->Tq,
                                                .first_bucket = (int32_t)o->first_bucket,
                                                .scale = has_terms(p) ? r->scale : 1.0f};
    if (!has_terms(p)) {
        r->positions.table = a->params[places_of(p).table];
        return CZ_OK;
    }
    TRY(make_scores(hp, a, nq, o->R, r->q, o->k_rel, o->q_scores, space));
    TRY(make_scores(hp, a, nk, o->R, r->k, o->q_rel, o->k_scores, space));
    r->positions.q_scores = o->q_scores;
    r->positions.k_scores = o->k_scores;
    return CZ_OK;
}

cz_status encoder_attention_forward(const struct encoder_block_hp *hp, const struct layer_args *a,
                                    const struct attention_args *args,
                                    struct encoder_positions_space *o, struct op_space space)
{
    if (hp->positions.n_buckets == 0) return ops_attention_forward(a->ops, a->stream, args);
    if (has_terms(&hp->positions)) TRY(make_rel(hp, a, o, space));
    for (int64_t b = 0; b < args->B; b += o->n_rows) {
        struct attention_args r = rows_of(a, args, b, n_rows_here(o, args->B, b));
        TRY(put_positions(hp, a, &r, o, space));
        TRY(ops_attention_forward(a->ops, a->stream, &r));
    }
    return CZ_OK;
}

/* ---- backward ------------------------------------------------------------------------------- */

cz_status encoder_attention_backward(const struct encoder_block_hp *hp, const struct layer_args *a,
                                     const struct attention_args *args,
                                     struct encoder_positions_space *o, struct op_space space)
{
    if (hp->positions.n_buckets == 0) return ops_attention_backward(a->ops, a->stream, args);
    if (has_terms(&hp->positions)) TRY(make_rel(hp, a, o, space));
    for (int64_t b = 0; b < args->B; b += o->n_rows) {
        struct attention_args r = rows_of(a, args, b, n_rows_here(o, args->B, b));
        const int64_t nq = r.B * r.Tq, nk = r.B * r.Tk;
        TRY(put_positions(hp, a, &r, o, space));
        r.positions.dtable = o->dtable;
        r.positions.dq_scores = o->dq_scores;
        r.positions.dk_scores = o->dk_scores;
        TRY(ops_attention_backward(a->ops, a->stream, &r));
        TRY(scores_backward(hp, a, nq, o->R, o->dq_scores, o->q_scores, r.q, r.dq, o->k_rel,
                            o->dk_rel, b > 0, space));
        TRY(scores_backward(hp, a, nk, o->R, o->dk_scores, o->k_scores, r.k, r.dk, o->q_rel,
                            o->dq_rel, b > 0, space));
    }
    return CZ_OK;
}

/* The rows of the table in use get d (numel) from `first` on, the others nothing. */
static cz_status table_backward(const struct encoder_block_hp *hp, const struct layer_args *a,
                                int64_t first, int64_t numel, enum cz_dtype dtype, const void *d,
                                struct op_space space)
{
    const struct param_grad *g = &a->dparams[places_of(&hp->positions).table];
    struct device *device = ops_device(a->ops);
    const size_t e = dtype_size(a->grad_dtype);
    const size_t n_all = (size_t)(hp->positions.n_buckets * table_width(hp));
    if (!g->dp) return CZ_OK;
    if (!g->accumulate) TRY(device->ops->fill_zero(device, a->stream, g->dp, n_all * e));
    const struct bias_grad_args args = {.N = 1,
                                        .C = numel,
                                        .dtype = dtype,
                                        .grad_dtype = a->grad_dtype,
                                        .dy = d,
                                        .db = (unsigned char *)g->dp + (size_t)first * e,
                                        .accumulate = g->accumulate,
                                        .workspace = space.p,
                                        .workspace_nbytes = space.nbytes};
    return ops_bias_grad(a->ops, a->stream, &args);
}

/* The gradient of the vectors' keys or queries, in fp32, to the map's parameters and to dp, the
 * gradient of the vectors. `narrow` (R,C) takes d in the dtype. */
static cz_status rel_backward(const struct encoder_block_hp *hp, const struct layer_args *a,
                              const struct encoder_positions_space *o, const float *d, void *narrow,
                              int weight, int bias, void *dp, bool add, struct op_space space)
{
    const struct linear map = map_of(hp);
    const struct cast_scale_args cast = {.x_dtype = DTYPE_F32,
                                         .y_dtype = a->dtype,
                                         .numel = (size_t)(o->R * hp->C),
                                         .alpha = 1.0f,
                                         .x = d,
                                         .y = narrow};
    TRY(ops_cast_scale(a->ops, a->stream, &cast));
    TRY(linear_backward(a, &map, o->R, o->p, narrow, a->params[weight], &a->dparams[weight],
                        bias < 0 ? NULL : &a->dparams[bias], add ? NULL : dp, space));
    return add ? linear_dx_add(a, &map, o->R, narrow, a->params[weight], dp, space) : CZ_OK;
}

/* The vectors' keys and queries, then the vectors, then the table. `a` adds to the gradients of
 * maps that are the block's own, `first` of the others. */
static cz_status vectors_backward(const struct encoder_block_hp *hp, const struct layer_args *a,
                                  const struct layer_args *first,
                                  const struct encoder_positions_space *o, struct op_space space)
{
    const struct encoder_positions_hp *p = &hp->positions;
    const struct places at = places_of(p);
    const struct layer_args *maps = p->own_maps ? first : a;
    const struct norm norm = norm_of(hp);
    const size_t numel = (size_t)(o->R * hp->C);
    void *dp = o->dp;
    if (o->dk_rel) {
        TRY(rel_backward(hp, maps, o, o->dk_rel, o->k_rel, at.key_w, -1, dp, false, space));
        if (p->own_maps) TRY(param_grad_zero(first, &first->dparams[at.key_b], hp->C));
    }
    if (o->dq_rel)
        TRY(rel_backward(hp, maps, o, o->dq_rel, o->q_rel, at.query_w, at.query_b, dp,
                         o->dk_rel != NULL, space));
    if (dropout_acts(a, hp->out_dropout_p))
        TRY(dropout_apply(a, hp->out_dropout_p, SITE_POSITIONS, numel, dp, dp));
    if (p->norm_weight_name) {
        const void *rows = elem_at(a, a->params[at.table], (size_t)(o->first_bucket * hp->C));
        const struct norm_grad_io io = {
            .x = rows, .dy = dp, .mean = o->mean, .rstd = o->rstd, .dx = dp};
        TRY(norm_backward(first, &norm, o->R, &io, a->params[at.norm_w], &first->dparams[at.norm_w],
                          &first->dparams[at.norm_b], space));
    }
    return table_backward(hp, first, o->first_bucket * hp->C, o->R * hp->C, a->dtype, dp, space);
}

cz_status encoder_positions_finish(const struct encoder_block_hp *hp, const struct layer_args *a,
                                   struct encoder_positions_space *o, struct op_space space)
{
    enum { PARAMS_MAX = ENCODER_N_PARAMS + 7 + 3 * LAYER_BRANCHES_MAX };
    const struct encoder_positions_hp *p = &hp->positions;
    struct param_grad grads[PARAMS_MAX];
    struct layer_args again = *a;
    if (p->n_buckets == 0) return CZ_OK;
    if (!has_terms(p))
        return table_backward(hp, a, 0, p->n_buckets * hp->H, DTYPE_F32, o->dtable, space);
    size_t n = (size_t)places_of(p).table + (p->norm_weight_name ? 3 : 1);
    for (size_t i = 0; i < a->n_branches; i++) n += a->branches[i].is_dora ? 3 : 2;
    for (size_t i = 0; i < n; i++) {
        grads[i] = a->dparams[i];
        grads[i].accumulate = true;
    }
    again.dparams = grads;
    return vectors_backward(hp, &again, a, o, space);
}
