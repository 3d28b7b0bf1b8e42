/* The embedding layer of an encoder.
 *
 *   s = token[id] + type[t] + position[p]    y = norm(s)    out = dropout(y)
 *
 * Kept for backward: s (C per token) and the norm's statistics. A batch without types has type 0
 * everywhere, without positions 0 … T−1 in each row. */
#include "model/bert/encoder_impl.h"
#include "ops/elementwise/elementwise.h"
#include "ops/embedding/embedding.h"

enum { SITE_DROPOUT = 0 };

/* Where each parameter stands. */
struct places {
    size_t token, position, type, norm_w, norm_b;
};

/* DistilBERT has no types: the norm's parameters move up. */
static struct places places_of(const struct encoder_embedding_hp *hp)
{
    const size_t norm = hp->type_name ? 3 : 2;
    return (struct places){
        .token = 0, .position = 1, .type = 2, .norm_w = norm, .norm_b = norm + 1};
}

static struct norm norm_of(const struct encoder_embedding_hp *hp)
{
    return (struct norm){.C = hp->C, .eps = hp->eps};
}

static cz_status embedding_declare(const void *hp_, struct param_list *out)
{
    const struct encoder_embedding_hp *hp = hp_;
    /* The tables; a padding token's row starts as zeros, as PyTorch's padding_idx does. */
    const int64_t token[] = {hp->V, hp->C}, position[] = {hp->P, hp->C}, type[] = {hp->S, hp->C};
    const enum param_init positions = hp->sinusoidal ? PARAM_INIT_SINUSOID : PARAM_INIT_NORMAL;
    TRY(param_list_add(out, hp->token_name, 2, token, PARAM_INIT_NORMAL, hp->init_std));
    struct param_info *p = &out->table->params[out->idx[out->n - 1]];
    p->has_zero_row = hp->padding_id >= 0;
    p->zero_row = hp->padding_id;
    TRY(param_list_add(out, hp->position_name, 2, position, positions, hp->init_std));
    if (hp->type_name)
        TRY(param_list_add(out, hp->type_name, 2, type, PARAM_INIT_NORMAL, hp->init_std));
    TRY(param_list_add(out, hp->norm_weight_name, 1, &hp->C, PARAM_INIT_ONE, 0.0f));
    return param_list_add(out, hp->norm_bias_name, 1, &hp->C, PARAM_INIT_ZERO, 0.0f);
}

/* ---- memory --------------------------------------------------------------------------------- */

struct embedding_kept {
    void *s; /* (N,C) */
    float *mean, *rstd;
};

static struct embedding_kept layout_saved(const struct encoder_embedding_hp *hp, int64_t N,
                                          enum cz_dtype dtype, struct scratch *s)
{
    struct embedding_kept k;
    k.s = scratch_take(s, N, hp->C, dtype_size(dtype));
    k.mean = scratch_take(s, N, 1, sizeof(float));
    k.rstd = scratch_take(s, N, 1, sizeof(float));
    return k;
}

/* Forward: type ids of a batch that has none. */
static int32_t *layout_forward(const struct encoder_embedding_hp *hp, int64_t N, struct scratch *s)
{
    return hp->type_name ? scratch_take(s, N, 1, sizeof(int32_t)) : NULL;
}

/* Backward: ds (N,C). */
static void *layout_backward(const struct encoder_embedding_hp *hp, int64_t N, enum cz_dtype dtype,
                             struct scratch *s)
{
    return scratch_take(s, N, hp->C, dtype_size(dtype));
}

/* The same arguments size the workspace and run the kernel. */
static struct embedding_args table_args(int64_t N, int64_t C, int64_t n_rows, enum cz_dtype dtype,
                                        enum cz_dtype grad_dtype)
{
    return (struct embedding_args){
        .N = N, .C = C, .V = n_rows, .dtype = dtype, .grad_dtype = grad_dtype};
}

/* A sum over N rows of C columns: all tokens of one type, or each position over the batch. */
static struct bias_grad_args sum_args(int64_t N, int64_t C, enum cz_dtype dtype,
                                      enum cz_dtype grad_dtype)
{
    return (struct bias_grad_args){.N = N, .C = C, .dtype = dtype, .grad_dtype = grad_dtype};
}

static void raise_workspaces(const struct encoder_embedding_hp *hp, const struct batch_shape *s,
                             size_t *nbytes_max)
{
    const int64_t N = s->B * s->T, tables[] = {hp->V, hp->P, hp->S};
    const struct norm norm = norm_of(hp);
    for (size_t i = 0; i < CZ_ARRAY_LEN(tables); i++) {
        const struct embedding_args args = table_args(N, hp->C, tables[i], s->dtype, s->grad_dtype);
        size_raise(nbytes_max, ops_embedding_workspace(s->ops, &args));
    }
    const struct bias_grad_args counted = sum_args(s->B, s->T * hp->C, s->dtype, s->grad_dtype);
    const struct bias_grad_args one_type = sum_args(N, hp->C, s->dtype, s->grad_dtype);
    size_raise(nbytes_max, ops_bias_grad_workspace(s->ops, &counted));
    size_raise(nbytes_max, ops_bias_grad_workspace(s->ops, &one_type));
    norm_workspace(s, &norm, N, nbytes_max);
}

/* Positions are bounded here, before a kernel could read beyond the table. */
static cz_status embedding_size(const void *hp_, const struct batch_shape *s,
                                struct layer_sizes *out)
{
    const struct encoder_embedding_hp *hp = hp_;
    *out = (struct layer_sizes){0};
    TRY(batch_shape_check("encoder embedding", s));
    if (s->T > hp->P)
        return err_set(CZ_INVALID, 0, "a sequence of %lld is beyond the %lld positions of %s",
                       (long long)s->T, (long long)hp->P, hp->position_name);
    const int64_t N = s->B * s->T;
    out->out_nbytes = rows_nbytes(N, hp->C, dtype_size(s->dtype));
    struct scratch forward = {0}, backward = {0}, saved = {0};
    layout_forward(hp, N, &forward);
    size_t own_nbytes = forward.used, op_nbytes = 0;
    if (s->training) {
        layout_saved(hp, N, s->dtype, &saved);
        out->saved_nbytes = saved.used;
        layout_backward(hp, N, s->dtype, &backward);
        size_raise(&own_nbytes, backward.used);
        raise_workspaces(hp, s, &op_nbytes);
    }
    return sizes_finish("encoder embedding", own_nbytes, op_nbytes, out);
}

/* ---- forward -------------------------------------------------------------------------------- */

/* add: onto what is there, so that three tables need no third buffer. */
static cz_status look_up(const struct encoder_embedding_hp *hp, const struct layer_args *a,
                         const int32_t *ids, size_t param, int64_t n_rows, bool add, void *s)
{
    struct embedding_args args =
        table_args(a->batch->B * a->batch->T, hp->C, n_rows, a->dtype, a->grad_dtype);
    args.ids = ids;
    args.table = a->params[param];
    args.y = s;
    args.accumulate = add;
    return ops_embedding_forward(a->ops, a->stream, &args);
}

/* A batch without types has type 0 everywhere; the ids are made in the workspace because kernels
 * take ids only. */
static cz_status types_add(const struct encoder_embedding_hp *hp, const struct layer_args *a,
                           void *s)
{
    const int64_t N = a->batch->B * a->batch->T;
    const int32_t *types = a->batch->types;
    if (!types) {
        struct scratch own = {.base = a->workspace};
        struct device *device = ops_device(a->ops);
        int32_t *zeros = layout_forward(hp, N, &own);
        TRY(device->ops->fill_zero(device, a->stream, zeros, (size_t)N * sizeof *zeros));
        types = zeros;
    }
    if (look_up(hp, a, types, places_of(hp).type, hp->S, true, s) != CZ_OK)
        return err_prefix("token types (there are %lld)", (long long)hp->S);
    return CZ_OK;
}

/* Without positions the rows are 0 … T−1: a plain addition, no look-up. */
static cz_status positions_add(const struct encoder_embedding_hp *hp, const struct layer_args *a,
                               void *s)
{
    const struct batch *batch = a->batch;
    const size_t param = places_of(hp).position, row_numel = (size_t)(batch->T * hp->C);
    if (batch->positions) return look_up(hp, a, batch->positions, param, hp->P, true, s);
    for (int64_t b = 0; b < batch->B; b++) { /* the first T rows of the table */
        void *rows = elem_at(a, s, (size_t)b * row_numel);
        TRY(residual_add(a, row_numel, rows, a->params[param], rows));
    }
    return CZ_OK;
}

/* EVAL: s and y share out. */
static cz_status embedding_forward(const void *hp_, const struct layer_args *a)
{
    const struct encoder_embedding_hp *hp = hp_;
    const struct places at = places_of(hp);
    const struct norm norm = norm_of(hp);
    const int64_t N = a->batch->B * a->batch->T;
    struct embedding_kept k = {.s = a->out};
    if (a->mode != LAYER_EVAL) {
        struct scratch saved = {.base = a->saved};
        k = layout_saved(hp, N, a->dtype, &saved);
    }
    TRY(look_up(hp, a, a->batch->ids, at.token, hp->V, false, k.s));
    if (hp->type_name) TRY(types_add(hp, a, k.s));
    TRY(positions_add(hp, a, k.s));
    void *y = a->out ? a->out : a->workspace; /* only the statistics are wanted */
    const struct norm_io io = {.x = k.s, .y = y, .mean = k.mean, .rstd = k.rstd};
    TRY(norm_forward(a, &norm, N, &io, a->params[at.norm_w], a->params[at.norm_b]));
    if (!a->out || !dropout_acts(a, hp->dropout_p)) return CZ_OK;
    return dropout_apply(a, hp->dropout_p, SITE_DROPOUT, (size_t)(N * hp->C), a->out, a->out);
}

/* ---- backward ------------------------------------------------------------------------------- */

/* padding_id: PyTorch gives that row no gradient. */
static cz_status table_backward(const struct encoder_embedding_hp *hp, const struct layer_args *a,
                                const int32_t *ids, size_t param, int64_t n_rows,
                                int64_t padding_id, const void *ds, struct op_space space)
{
    struct embedding_args args =
        table_args(a->batch->B * a->batch->T, hp->C, n_rows, a->dtype, a->grad_dtype);
    args.ids = ids;
    args.dy = ds;
    args.dtable = a->dparams[param].dp;
    args.dtable_accumulate = a->dparams[param].accumulate;
    args.has_padding = padding_id >= 0;
    args.padding_id = padding_id;
    args.workspace = space.p;
    args.workspace_nbytes = space.nbytes;
    return ops_embedding_backward(a->ops, a->stream, &args);
}

/* The first `numel` elements of the table are a sum of n_rows rows of ds, the others have no token.
 */
static cz_status rows_backward(const struct layer_args *a, size_t param, size_t table_numel,
                               int64_t n_rows, int64_t numel, const void *ds, struct op_space space)
{
    const struct param_grad *g = &a->dparams[param];
    struct device *device = ops_device(a->ops);
    const size_t e = dtype_size(a->grad_dtype), n_rest = table_numel - (size_t)numel;
    struct bias_grad_args args = sum_args(n_rows, numel, a->dtype, a->grad_dtype);
    args.dy = ds;
    args.db = g->dp;
    args.accumulate = g->accumulate;
    args.workspace = space.p;
    args.workspace_nbytes = space.nbytes;
    TRY(ops_bias_grad(a->ops, a->stream, &args));
    if (g->accumulate || n_rest == 0) return CZ_OK;
    return device->ops->fill_zero(device, a->stream, (unsigned char *)g->dp + (size_t)numel * e,
                                  n_rest * e);
}

/* Counted positions are a sum over the batch, which costs less than a scatter. */
static cz_status positions_backward(const struct encoder_embedding_hp *hp,
                                    const struct layer_args *a, const void *ds,
                                    struct op_space space)
{
    const struct batch *batch = a->batch;
    const size_t param = places_of(hp).position;
    if (!a->dparams[param].dp) return CZ_OK;
    if (batch->positions)
        return table_backward(hp, a, batch->positions, param, hp->P, -1, ds, space);
    return rows_backward(a, param, (size_t)(hp->P * hp->C), batch->B, batch->T * hp->C, ds, space);
}

/* One row gets everything when the batch has no types. */
static cz_status types_backward(const struct encoder_embedding_hp *hp, const struct layer_args *a,
                                const void *ds, struct op_space space)
{
    const struct batch *batch = a->batch;
    const size_t param = places_of(hp).type;
    if (!hp->type_name || !a->dparams[param].dp) return CZ_OK;
    if (batch->types) return table_backward(hp, a, batch->types, param, hp->S, -1, ds, space);
    return rows_backward(a, param, (size_t)(hp->S * hp->C), batch->B * batch->T, hp->C, ds, space);
}

/* First the norm, because the tables' gradient is that of s. */
static cz_status embedding_backward(const void *hp_, const struct layer_args *a)
{
    const struct encoder_embedding_hp *hp = hp_;
    const struct places at = places_of(hp);
    const struct norm norm = norm_of(hp);
    const int64_t N = a->batch->B * a->batch->T;
    struct scratch saved = {.base = a->saved}, own = {.base = a->workspace};
    const struct embedding_kept k = layout_saved(hp, N, a->dtype, &saved);
    void *ds = layout_backward(hp, N, a->dtype, &own);
    const struct op_space space = scratch_rest(&own, a);
    const void *dy = a->dout;
    if (dropout_acts(a, hp->dropout_p)) {
        TRY(dropout_apply(a, hp->dropout_p, SITE_DROPOUT, (size_t)(N * hp->C), dy, ds));
        dy = ds;
    }
    const struct norm_grad_io io = {.x = k.s, .dy = dy, .mean = k.mean, .rstd = k.rstd, .dx = ds};
    TRY(norm_backward(a, &norm, N, &io, a->params[at.norm_w], &a->dparams[at.norm_w],
                      &a->dparams[at.norm_b], space));
    TRY(types_backward(hp, a, ds, space));
    TRY(positions_backward(hp, a, ds, space));
    if (!a->dparams[at.token].dp) return CZ_OK;
    return table_backward(hp, a, a->batch->ids, at.token, hp->V, hp->padding_id, ds, space);
}

const struct layer_class encoder_embedding_class = {
    .name = "encoder_embedding",
    .declare = embedding_declare,
    .size = embedding_size,
    .forward = embedding_forward,
    .backward = embedding_backward,
};
