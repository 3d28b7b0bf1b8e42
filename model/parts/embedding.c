/* The embedding layer. B batch, T positions, N = B·T tokens, C channels, V vocabulary, P learned
 * positions. Parameters: token (V,C), position (P,C). */
#include "ops/embedding/embedding.h"
#include "base/size.h"
#include "model/parts/blocks_impl.h"
#include "model/parts/parts.h"
#include "ops/elementwise/elementwise.h"

enum { TOKEN = 0, POSITION };
enum { SITE_DROPOUT = 0 };

/* Without learned positions (rotary models) there is one table. */
static cz_status embedding_declare(const void *hp_, struct param_list *out)
{
    const struct model_embedding_hp *hp = hp_;
    const int64_t token[] = {hp->V, hp->C}, position[] = {hp->P, hp->C};
    TRY(param_list_add(out, hp->token_name, 2, token, PARAM_INIT_NORMAL, hp->init_std));
    if (!hp->position_name) return CZ_OK;
    return param_list_add(out, hp->position_name, 2, position, PARAM_INIT_NORMAL, hp->init_std);
}

/* The same arguments size the workspace and run the kernel. */
static struct embedding_args token_args(const struct model_embedding_hp *hp, int64_t N,
                                        enum cz_dtype dtype, enum cz_dtype grad_dtype)
{
    return (struct embedding_args){
        .N = N, .C = hp->C, .V = hp->V, .dtype = dtype, .grad_dtype = grad_dtype};
}

static struct embedding_args position_args(const struct model_embedding_hp *hp, int64_t N,
                                           enum cz_dtype dtype, enum cz_dtype grad_dtype)
{
    return (struct embedding_args){
        .N = N, .C = hp->C, .V = hp->P, .dtype = dtype, .grad_dtype = grad_dtype};
}

/* Positions 0 … T−1 are rows of the table in order: their gradient is a sum over the batch. */
static struct bias_grad_args counted_args(const struct model_embedding_hp *hp, int64_t B, int64_t T,
                                          enum cz_dtype dtype, enum cz_dtype grad_dtype)
{
    return (struct bias_grad_args){
        .N = B, .C = T * hp->C, .dtype = dtype, .grad_dtype = grad_dtype};
}

/* Positions are bounded here, before a kernel could read beyond the table. */
static cz_status embedding_size(const void *hp_, const struct batch_shape *s,
                                struct layer_sizes *out)
{
    const struct model_embedding_hp *hp = hp_;
    *out = (struct layer_sizes){0};
    TRY(batch_shape_check("embedding", s));
    const int64_t T = batch_shape_row_length(s);
    if (hp->position_name && T > hp->P)
        return err_set(CZ_INVALID, 0, "a sequence of %lld is beyond the %lld positions of %s",
                       (long long)T, (long long)hp->P, hp->position_name);
    const int64_t N = s->B * s->T;
    out->out_nbytes = rows_nbytes(N, hp->C, dtype_size(s->dtype));

    struct scratch own = {0};
    size_t op_nbytes = 0;
    if (s->training) {
        if (hp->dropout_p > 0.0f || hp->scale != 0)
            scratch_take(&own, N, hp->C, dtype_size(s->dtype));
        struct embedding_args token = token_args(hp, N, s->dtype, s->grad_dtype);
        size_raise(&op_nbytes, ops_embedding_workspace(s->ops, &token));
        if (hp->position_name) {
            struct embedding_args position = position_args(hp, N, s->dtype, s->grad_dtype);
            struct bias_grad_args counted =
                counted_args(hp, batch_shape_n_rows(s), T, s->dtype, s->grad_dtype);
            size_raise(&op_nbytes, ops_embedding_workspace(s->ops, &position));
            size_raise(&op_nbytes, ops_bias_grad_workspace(s->ops, &counted));
        }
    }
    return sizes_finish("embedding", own.used, op_nbytes, out);
}

/* out += position rows; `first` is the position of the first token of each sequence. */
static cz_status positions_add(const struct model_embedding_hp *hp, const struct layer_args *a,
                               int64_t first)
{
    const struct batch *batch = a->batch;
    const int64_t B = batch->B, T = batch->T;
    if (batch->positions) {
        struct embedding_args args = position_args(hp, B * T, a->dtype, a->grad_dtype);
        args.ids = batch->positions;
        args.table = a->params[POSITION];
        args.y = a->out;
        args.accumulate = true;
        return ops_embedding_forward(a->ops, a->stream, &args);
    }
    const size_t row_numel = (size_t)(T * hp->C);
    const void *rows = elem_at(a, a->params[POSITION], (size_t)(first * hp->C));
    for (int64_t b = 0; b < B; b++) {
        void *y = elem_at(a, a->out, (size_t)b * row_numel);
        TRY(residual_add(a, row_numel, y, rows, y));
    }
    return CZ_OK;
}

/* y = scale·x, for the embedding and for its gradient. */
static cz_status scaled(const struct model_embedding_hp *hp, const struct layer_args *a,
                        const void *x, void *y)
{
    float factor = hp->scale;
    if (hp->rounds_scale) {
        dtype_put(&factor, 0, a->dtype, hp->scale);
        factor = dtype_get(&factor, 0, a->dtype);
    }
    const struct cast_scale_args args = {.x_dtype = a->dtype,
                                         .y_dtype = a->dtype,
                                         .numel = (size_t)(a->batch->B * a->batch->T * hp->C),
                                         .alpha = factor,
                                         .x = x,
                                         .y = y};
    return ops_cast_scale(a->ops, a->stream, &args);
}

/* first > 0 while decoding: the position of the first new token. */
static cz_status embed(const struct model_embedding_hp *hp, const struct layer_args *a,
                       int64_t first)
{
    struct embedding_args args = token_args(hp, a->batch->B * a->batch->T, a->dtype, a->grad_dtype);
    args.ids = a->batch->ids;
    args.table = a->params[TOKEN];
    args.y = a->out;
    TRY(ops_embedding_forward(a->ops, a->stream, &args));
    if (hp->scale != 0) TRY(scaled(hp, a, a->out, a->out));
    return hp->position_name ? positions_add(hp, a, first) : CZ_OK;
}

static cz_status embedding_forward(const void *hp_, const struct layer_args *a)
{
    const struct model_embedding_hp *hp = hp_;
    if (!a->out) return CZ_OK; /* RECOMPUTE: nothing is saved */
    TRY(embed(hp, a, 0));
    if (!dropout_acts(a, hp->dropout_p)) return CZ_OK;
    const size_t numel = (size_t)(a->batch->B * a->batch->T * hp->C);
    return dropout_apply(a, hp->dropout_p, SITE_DROPOUT, numel, a->out, a->out);
}

static cz_status embedding_decode(const void *hp, const struct layer_args *a)
{
    return embed(hp, a, a->position);
}

/* Rows T … P−1 of the position table have no token. */
static cz_status zero_unused_rows(const struct model_embedding_hp *hp, const struct layer_args *a,
                                  void *dtable)
{
    const int64_t T = a->batch->T;
    const size_t row_nbytes = (size_t)hp->C * dtype_size(a->grad_dtype);
    struct device *device = ops_device(a->ops);
    if (T == hp->P) return CZ_OK;
    return device->ops->fill_zero(device, a->stream,
                                  (unsigned char *)dtable + (size_t)T * row_nbytes,
                                  (size_t)(hp->P - T) * row_nbytes);
}

/* Counted positions are a sum over the batch; given ones are scattered. */
static cz_status positions_backward(const struct model_embedding_hp *hp, const struct layer_args *a,
                                    const void *dy, struct op_space space)
{
    const struct batch *batch = a->batch;
    const struct param_grad *g = &a->dparams[POSITION];
    if (!g->dp) return CZ_OK;
    if (batch->positions) {
        struct embedding_args args =
            position_args(hp, batch->B * batch->T, a->dtype, a->grad_dtype);
        args.ids = batch->positions;
        args.dy = dy;
        args.dtable = g->dp;
        args.dtable_accumulate = g->accumulate;
        args.workspace = space.p;
        args.workspace_nbytes = space.nbytes;
        return ops_embedding_backward(a->ops, a->stream, &args);
    }
    struct bias_grad_args args = counted_args(hp, batch->B, batch->T, a->dtype, a->grad_dtype);
    args.dy = dy;
    args.db = g->dp;
    args.accumulate = g->accumulate;
    args.workspace = space.p;
    args.workspace_nbytes = space.nbytes;
    TRY(ops_bias_grad(a->ops, a->stream, &args));
    return g->accumulate ? CZ_OK : zero_unused_rows(hp, a, g->dp);
}

/* Token rows that no token of the batch names get zeros, unless the gradient accumulates. */
static cz_status embedding_backward(const void *hp_, const struct layer_args *a)
{
    const struct model_embedding_hp *hp = hp_;
    const int64_t N = a->batch->B * a->batch->T;
    struct scratch own = {.base = a->workspace};
    const void *dy = a->dout;
    void *own_dy = NULL;
    if (dropout_acts(a, hp->dropout_p) || hp->scale != 0)
        own_dy = scratch_take(&own, N, hp->C, dtype_size(a->dtype));
    if (dropout_acts(a, hp->dropout_p)) {
        TRY(dropout_apply(a, hp->dropout_p, SITE_DROPOUT, (size_t)(N * hp->C), dy, own_dy));
        dy = own_dy;
    }
    if (hp->scale != 0) {
        TRY(scaled(hp, a, dy, own_dy));
        dy = own_dy;
    }
    const struct op_space space = scratch_rest(&own, a);
    if (hp->position_name) TRY(positions_backward(hp, a, dy, space));
    const struct param_grad *g = &a->dparams[TOKEN];
    if (!g->dp) return CZ_OK;
    struct embedding_args args = token_args(hp, N, a->dtype, a->grad_dtype);
    args.ids = a->batch->ids;
    args.dy = dy;
    args.has_padding = hp->has_padding;
    args.padding_id = hp->padding_id;
    args.dtable = g->dp;
    args.dtable_accumulate = g->accumulate;
    args.workspace = space.p;
    args.workspace_nbytes = space.nbytes;
    return ops_embedding_backward(a->ops, a->stream, &args);
}

const struct layer_class model_embedding_class = {
    .name = "embedding",
    .declare = embedding_declare,
    .size = embedding_size,
    .forward = embedding_forward,
    .backward = embedding_backward,
    .decode = embedding_decode,
};
