/* The embedding layer of an encoder.
 *
 *   s = token[id] [+ type[t]] [+ position[p]]    y = dropout(norm(s))    out = y, or y·Wᵀ + b
 *   or m = s·Wᵀ, out = dropout(norm(m)) (project_first: DeBERTa)
 *   or out = dropout(s) (no norm: MegatronBERT), where backward needs nothing of the forward
 *
 * Kept for backward: s (E per token), m (C) and the norm's statistics. A batch without types has
 * type 0 everywhere, without positions 0 … T−1 in each row. */
#include "model/bert/encoder_impl.h"
#include "ops/elementwise/elementwise.h"
#include "ops/embedding/embedding.h"

enum { SITE_DROPOUT = 0 };

/* Where each parameter stands. */
struct places {
    size_t token, position, type, norm_w, norm_b, project_w, project_b;
};

/* DistilBERT has no types, ModernBERT neither types nor positions: what follows moves up. */
static struct places places_of(const struct encoder_embedding_hp *hp)
{
    const size_t type = hp->position_name ? 2 : 1, norm = hp->type_name ? type + 1 : type;
    const size_t project = hp->norm_bias_name ? norm + 2 : norm + 1;
    return (struct places){.token = 0,
                           .position = 1,
                           .type = type,
                           .norm_w = norm,
                           .norm_b = norm + 1,
                           .project_w = project,
                           .project_b = project + 1};
}

static bool has_norm(const struct encoder_embedding_hp *hp)
{
    return hp->norm_weight_name != NULL;
}

/* NULL without one. */
static const void *norm_bias(const struct encoder_embedding_hp *hp, const struct layer_args *a)
{
    return hp->norm_bias_name ? a->params[places_of(hp).norm_b] : NULL;
}

static struct linear project_of(const struct encoder_embedding_hp *hp)
{
    return (struct linear){.n_in = hp->E, .n_out = hp->C};
}

static struct norm norm_of(const struct encoder_embedding_hp *hp)
{
    return (struct norm){.C = hp->project_first ? hp->C : hp->E, .eps = hp->eps};
}

/* A table whose row `padding` starts as zeros, as PyTorch's padding_idx does; -1: none. */
static cz_status declare_table(const struct encoder_embedding_hp *hp, const char *name, int64_t n,
                               enum param_init init, int64_t padding, struct param_list *out)
{
    const int64_t shape[] = {n, hp->E};
    TRY(param_list_add(out, name, 2, shape, init, hp->init_std));
    struct param_info *p = &out->table->params[out->idx[out->n - 1]];
    p->has_zero_row = padding >= 0;
    p->zero_row = padding;
    return CZ_OK;
}

static cz_status embedding_declare(const void *hp_, struct param_list *out)
{
    const struct encoder_embedding_hp *hp = hp_;
    const int64_t project[] = {hp->C, hp->E};
    const enum param_init normal = PARAM_INIT_NORMAL,
                          positions = hp->sinusoidal ? PARAM_INIT_SINUSOID : normal;
    TRY(declare_table(hp, hp->token_name, hp->V, normal, hp->padding_id, out));
    if (hp->position_name)
        TRY(declare_table(hp, hp->position_name, hp->P, positions, hp->position_padding_id, out));
    if (hp->type_name) TRY(declare_table(hp, hp->type_name, hp->S, normal, -1, out));
    if (!has_norm(hp)) return CZ_OK;
    const int64_t norm_width = norm_of(hp).C;
    TRY(param_list_add(out, hp->norm_weight_name, 1, &norm_width, PARAM_INIT_ONE, 0.0f));
    if (hp->norm_bias_name)
        TRY(param_list_add(out, hp->norm_bias_name, 1, &norm_width, PARAM_INIT_ZERO, 0.0f));
    if (!hp->project_weight_name) return CZ_OK;
    TRY(param_list_add(out, hp->project_weight_name, 2, project, normal, hp->init_std));
    if (hp->project_first) return CZ_OK;
    return param_list_add(out, hp->project_bias_name, 1, project, PARAM_INIT_ZERO, 0.0f);
}

/* ---- memory --------------------------------------------------------------------------------- */

struct embedding_kept {
    void *s; /* (N,E) */
    void *m; /* (N,C) what the norm reads, where that is not s */
    float *mean, *rstd;
};

static struct embedding_kept layout_saved(const struct encoder_embedding_hp *hp, int64_t N,
                                          enum cz_dtype dtype, struct scratch *s)
{
    struct embedding_kept k = {0};
    if (!has_norm(hp)) return k;
    k.s = scratch_take(s, N, hp->E, dtype_size(dtype));
    if (hp->project_first) k.m = scratch_take(s, N, hp->C, dtype_size(dtype));
    k.mean = scratch_take(s, N, 1, sizeof(float));
    k.rstd = scratch_take(s, N, 1, sizeof(float));
    return k;
}

/* Forward: type ids of a batch that has none; y where it is not `out`. project_first: s of EVAL, or
 * an out that is not wanted. */
struct forward_space {
    int32_t *types; /* (N) */
    void *y;        /* (N,E), or the wider of E and C */
    struct scratch own;
};

static struct forward_space layout_forward(const struct encoder_embedding_hp *hp, int64_t N,
                                           enum cz_dtype dtype, void *base)
{
    struct forward_space f = {.own = {.base = base}};
    if (hp->type_name) f.types = scratch_take(&f.own, N, 1, sizeof(int32_t));
    const int64_t width = hp->project_first && hp->C > hp->E ? hp->C : hp->E;
    if (hp->project_weight_name) f.y = scratch_take(&f.own, N, width, dtype_size(dtype));
    return f;
}

/* Backward: y again, where a map reads it; project_first: the gradient of m. */
struct backward_space {
    void *ds, *y; /* (N,E) */
    void *dm;     /* (N,C) */
    struct scratch own;
};

static struct backward_space layout_backward(const struct encoder_embedding_hp *hp, int64_t N,
                                             enum cz_dtype dtype, void *base)
{
    struct backward_space b = {.own = {.base = base}};
    b.ds = scratch_take(&b.own, N, hp->E, dtype_size(dtype));
    if (hp->project_first)
        b.dm = scratch_take(&b.own, N, hp->C, dtype_size(dtype));
    else if (hp->project_weight_name)
        b.y = scratch_take(&b.own, N, hp->E, dtype_size(dtype));
    return b;
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

static cz_status raise_workspaces(const struct encoder_embedding_hp *hp,
                                  const struct batch_shape *s, size_t *nbytes_max)
{
    const int64_t N = s->B * s->T, tables[] = {hp->V, hp->P, hp->S};
    const struct norm norm = norm_of(hp);
    const struct linear project = project_of(hp);
    if (hp->project_weight_name) TRY(linear_workspace(s, &project, N, nbytes_max));
    if (!s->training) return CZ_OK;
    for (size_t i = 0; i < CZ_ARRAY_LEN(tables); i++) {
        const struct embedding_args args = table_args(N, hp->E, tables[i], s->dtype, s->grad_dtype);
        size_raise(nbytes_max, ops_embedding_workspace(s->ops, &args));
    }
    const struct bias_grad_args counted =
        sum_args(batch_shape_n_rows(s), batch_shape_row_length(s) * hp->E, s->dtype, s->grad_dtype);
    const struct bias_grad_args one_type = sum_args(N, hp->E, s->dtype, s->grad_dtype);
    size_raise(nbytes_max, ops_bias_grad_workspace(s->ops, &counted));
    size_raise(nbytes_max, ops_bias_grad_workspace(s->ops, &one_type));
    if (has_norm(hp)) norm_workspace(s, &norm, N, nbytes_max);
    return CZ_OK;
}

/* Positions are bounded here, before a kernel could read beyond the table. */
static cz_status embedding_size(const void *hp_, const struct batch_shape *s,
                                struct layer_sizes *out)
{
    const struct encoder_embedding_hp *hp = hp_;
    *out = (struct layer_sizes){0};
    TRY(batch_shape_check("encoder embedding", s));
    const int64_t T = batch_shape_row_length(s);
    if (hp->position_name && T > hp->P)
        return err_set(CZ_INVALID, 0, "a sequence of %lld is beyond the %lld positions of %s",
                       (long long)T, (long long)hp->P, hp->position_name);
    const int64_t N = s->B * s->T;
    out->out_nbytes = rows_nbytes(N, hp->C, dtype_size(s->dtype));
    size_t own_nbytes = layout_forward(hp, N, s->dtype, NULL).own.used, op_nbytes = 0;
    if (s->training) {
        struct scratch saved = {0};
        layout_saved(hp, N, s->dtype, &saved);
        out->saved_nbytes = saved.used;
        size_raise(&own_nbytes, layout_backward(hp, N, s->dtype, NULL).own.used);
    }
    TRY(raise_workspaces(hp, s, &op_nbytes));
    if (hp->project_weight_name)
        out->flops_forward = 2.0 * (double)N * (double)hp->E * (double)hp->C;
    return sizes_finish("encoder embedding", own_nbytes, op_nbytes, out);
}

/* ---- forward -------------------------------------------------------------------------------- */

/* add: onto what is there, so that three tables need no third buffer. */
static cz_status look_up(const struct encoder_embedding_hp *hp, const struct layer_args *a,
                         const int32_t *ids, size_t param, int64_t n_rows, bool add, void *s)
{
    struct embedding_args args =
        table_args(a->batch->B * a->batch->T, hp->E, n_rows, a->dtype, a->grad_dtype);
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
        struct device *device = ops_device(a->ops);
        int32_t *zeros = layout_forward(hp, N, a->dtype, a->workspace).types;
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
    if (!hp->position_name) return CZ_OK;
    const size_t param = places_of(hp).position, row_numel = (size_t)(batch->T * hp->E);
    if (batch->positions) return look_up(hp, a, batch->positions, param, hp->P, true, s);
    for (int64_t b = 0; b < batch->B; b++) { /* the first T rows of the table */
        void *rows = elem_at(a, s, (size_t)b * row_numel);
        TRY(residual_add(a, row_numel, rows, a->params[param], rows));
    }
    return CZ_OK;
}

/* y = dropout(norm(s)), of rows that are as wide as the norm; without one y is s. */
static cz_status make_y(const struct encoder_embedding_hp *hp, const struct layer_args *a,
                        const struct norm_io *io)
{
    const struct places at = places_of(hp);
    const struct norm norm = norm_of(hp);
    const int64_t N = a->batch->B * a->batch->T;
    if (has_norm(hp)) TRY(norm_forward(a, &norm, N, io, a->params[at.norm_w], norm_bias(hp, a)));
    if (!dropout_acts(a, hp->dropout_p)) return CZ_OK;
    return dropout_apply(a, hp->dropout_p, SITE_DROPOUT, (size_t)(N * norm.C), io->y, io->y);
}

/* s: what the tables say. */
static cz_status make_s(const struct encoder_embedding_hp *hp, const struct layer_args *a, void *s)
{
    TRY(look_up(hp, a, a->batch->ids, places_of(hp).token, hp->V, false, s));
    if (hp->type_name) TRY(types_add(hp, a, s));
    return positions_add(hp, a, s);
}

/* m and its norm; EVAL: s is in `f`, m and y share out. */
static cz_status project_first(const struct encoder_embedding_hp *hp, const struct layer_args *a,
                               const struct forward_space *f, struct embedding_kept k)
{
    const struct linear project = project_of(hp);
    const int64_t N = a->batch->B * a->batch->T;
    if (a->mode == LAYER_EVAL) k.s = f->y, k.m = a->out;
    TRY(make_s(hp, a, k.s));
    TRY(linear_forward(a, &project, N, k.s, a->params[places_of(hp).project_w], NULL, k.m,
                       scratch_rest(&f->own, a)));
    const struct norm_io io = {
        .x = k.m, .y = a->out ? a->out : f->y, .mean = k.mean, .rstd = k.rstd};
    return make_y(hp, a, &io);
}

/* EVAL: s and y share out, or what is in front of the map. */
static cz_status embedding_forward(const void *hp_, const struct layer_args *a)
{
    const struct encoder_embedding_hp *hp = hp_;
    const struct places at = places_of(hp);
    const int64_t N = a->batch->B * a->batch->T;
    const struct forward_space f = layout_forward(hp, N, a->dtype, a->workspace);
    if (!has_norm(hp) && !a->out) return CZ_OK;
    /* Without `out` only the statistics are wanted. */
    void *y = f.y ? f.y : a->out ? a->out : a->workspace;
    struct embedding_kept k = {.s = y};
    if (a->mode != LAYER_EVAL) {
        struct scratch saved = {.base = a->saved};
        k = layout_saved(hp, N, a->dtype, &saved);
        if (!has_norm(hp)) k.s = y;
    }
    if (hp->project_first) return project_first(hp, a, &f, k);
    TRY(make_s(hp, a, k.s));
    const struct norm_io io = {.x = k.s, .y = y, .mean = k.mean, .rstd = k.rstd};
    TRY(make_y(hp, a, &io));
    if (!f.y || !a->out) return CZ_OK;
    const struct linear project = project_of(hp);
    return linear_forward(a, &project, N, y, a->params[at.project_w], a->params[at.project_b],
                          a->out, scratch_rest(&f.own, a));
}

/* ---- backward ------------------------------------------------------------------------------- */

/* padding_id: PyTorch gives that row no gradient. */
static cz_status table_backward(const struct encoder_embedding_hp *hp, const struct layer_args *a,
                                const int32_t *ids, size_t param, int64_t n_rows,
                                int64_t padding_id, const void *ds, struct op_space space)
{
    struct embedding_args args =
        table_args(a->batch->B * a->batch->T, hp->E, n_rows, a->dtype, a->grad_dtype);
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
    if (!hp->position_name || !a->dparams[param].dp) return CZ_OK;
    if (batch->positions)
        return table_backward(hp, a, batch->positions, param, hp->P, hp->position_padding_id, ds,
                              space);
    return rows_backward(a, param, (size_t)(hp->P * hp->E), batch->B, batch->T * hp->E, ds, space);
}

/* One row gets everything when the batch has no types. */
static cz_status types_backward(const struct encoder_embedding_hp *hp, const struct layer_args *a,
                                const void *ds, struct op_space space)
{
    const struct batch *batch = a->batch;
    const size_t param = places_of(hp).type;
    if (!hp->type_name || !a->dparams[param].dp) return CZ_OK;
    if (batch->types) return table_backward(hp, a, batch->types, param, hp->S, -1, ds, space);
    return rows_backward(a, param, (size_t)(hp->S * hp->E), batch->B * batch->T, hp->E, ds, space);
}

/* ds = gradient of y through the map, and the map's own. */
static cz_status project_backward(const struct encoder_embedding_hp *hp, const struct layer_args *a,
                                  const struct embedding_kept *k, const struct backward_space *b,
                                  struct op_space space)
{
    const struct places at = places_of(hp);
    const struct linear project = project_of(hp);
    const struct norm_io io = {.x = k->s, .y = b->y};
    const void *w = a->params[at.project_w];
    if (linear_wants_input(a, w, &a->dparams[at.project_w])) TRY(make_y(hp, a, &io));
    return linear_backward(a, &project, a->batch->B * a->batch->T, b->y, a->dout, w,
                           &a->dparams[at.project_w], &a->dparams[at.project_b], b->ds, space);
}

/* From the gradient of s, which is that of each table's row. */
static cz_status tables_backward(const struct encoder_embedding_hp *hp, const struct layer_args *a,
                                 const void *ds, struct op_space space)
{
    const size_t token = places_of(hp).token;
    TRY(types_backward(hp, a, ds, space));
    TRY(positions_backward(hp, a, ds, space));
    if (!a->dparams[token].dp) return CZ_OK;
    return table_backward(hp, a, a->batch->ids, token, hp->V, hp->padding_id, ds, space);
}

/* First the norm, because the tables' gradient is that of s. */
static cz_status embedding_backward(const void *hp_, const struct layer_args *a)
{
    const struct encoder_embedding_hp *hp = hp_;
    const struct places at = places_of(hp);
    const struct norm norm = norm_of(hp);
    const int64_t N = a->batch->B * a->batch->T;
    struct scratch saved = {.base = a->saved};
    const struct embedding_kept k = layout_saved(hp, N, a->dtype, &saved);
    const struct backward_space b = layout_backward(hp, N, a->dtype, a->workspace);
    const struct op_space space = scratch_rest(&b.own, a);
    const void *dy = a->dout, *x = hp->project_first ? k.m : k.s;
    void *dx = hp->project_first ? b.dm : b.ds;
    if (hp->project_weight_name && !hp->project_first) {
        TRY(project_backward(hp, a, &k, &b, space));
        dy = b.ds;
    }
    if (dropout_acts(a, hp->dropout_p)) {
        TRY(dropout_apply(a, hp->dropout_p, SITE_DROPOUT, (size_t)(N * norm.C), dy, dx));
        dy = dx;
    }
    if (!has_norm(hp)) return tables_backward(hp, a, dy, space);
    const struct norm_grad_io io = {.x = x, .dy = dy, .mean = k.mean, .rstd = k.rstd, .dx = dx};
    TRY(norm_backward(a, &norm, N, &io, a->params[at.norm_w], &a->dparams[at.norm_w],
                      hp->norm_bias_name ? &a->dparams[at.norm_b] : NULL, space));
    if (hp->project_first) {
        const struct linear project = project_of(hp);
        TRY(linear_backward(a, &project, N, k.s, dx, a->params[at.project_w],
                            &a->dparams[at.project_w], NULL, b.ds, space));
    }
    return tables_backward(hp, a, b.ds, space);
}

static const char *encoder_embedding_map_name(const void *hp)
{
    return ((const struct encoder_embedding_hp *)hp)->project_weight_name;
}

const struct layer_class encoder_embedding_class = {
    .name = "encoder_embedding",
    .declare = embedding_declare,
    .size = embedding_size,
    .forward = embedding_forward,
    .backward = embedding_backward,
    .map_name = encoder_embedding_map_name,
};
