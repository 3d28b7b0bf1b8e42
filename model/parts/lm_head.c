/* The language-model head. B batch, T positions, N = B·T, C channels, V vocabulary.
 *   y = norm(x) [/divisor],  z = y·wᵀ,  loss = mean cross-entropy of z against the labels
 *                                              [+ coef·balance of experts]
 * Parameters: norm weight (C) [, norm bias (C)], w (V,C), in the order of declaration. A TRAIN
 * forward spends each block of logits on the gradients at once (ops ce_head) and continues through
 * the norm, so that `saved` is din. */
#include "model/objective.h"
#include "model/parts/blocks_impl.h"
#include "model/parts/parts.h"
#include "ops/cross_entropy/cross_entropy.h"
#include "ops/elementwise/elementwise.h"
#include "ops/router/router.h"

/* An RMS norm has no bias. */
static bool is_rms(const struct model_lm_head_hp *hp)
{
    return hp->norm_bias_name == NULL;
}

static struct norm norm_of(const struct model_lm_head_hp *hp)
{
    return (struct norm){.rms = is_rms(hp), .C = hp->C, .eps = hp->eps, .offset = hp->norm_offset};
}

/* The parameters by role; bias is NULL with an RMS norm. */
struct head_params {
    const void *norm_w, *norm_b, *w;
    const struct param_grad *g_norm_w, *g_norm_b, *g_w;
};

static struct head_params params_of(const struct model_lm_head_hp *hp, const struct layer_args *a)
{
    const int w = is_rms(hp) ? 1 : 2;
    const struct param_grad *g = a->dparams;
    return (struct head_params){.norm_w = a->params[0],
                                .norm_b = is_rms(hp) ? NULL : a->params[1],
                                .w = a->params[w],
                                .g_norm_w = g ? &g[0] : NULL,
                                .g_norm_b = g && !is_rms(hp) ? &g[1] : NULL,
                                .g_w = g ? &g[w] : NULL};
}

static bool has_norm_grads(const struct head_params *p)
{
    return (p->g_norm_w && p->g_norm_w->dp) || (p->g_norm_b && p->g_norm_b->dp);
}

static cz_status lm_head_declare(const void *hp_, struct param_list *out)
{
    const struct model_lm_head_hp *hp = hp_;
    const int64_t vector[] = {hp->C}, matrix[] = {hp->V, hp->C};
    TRY(param_list_add(out, hp->norm_weight_name, 1, vector,
                       hp->norm_offset == 1 ? PARAM_INIT_ZERO : PARAM_INIT_ONE, 0.0f));
    if (hp->norm_bias_name)
        TRY(param_list_add(out, hp->norm_bias_name, 1, vector, PARAM_INIT_ZERO, 0.0f));
    TRY(param_list_add(out, hp->weight_name, 2, matrix, PARAM_INIT_NORMAL, hp->init_std));
    if (!hp->tied_alias) return CZ_OK;
    return param_table_alias(out->table, hp->tied_alias, out->idx[out->n - 1]);
}

/* Workspace: y when it cannot be in `saved`, and logits on their way out (EVAL), dy and the norm's
 * statistics (TRAIN). */
struct head_space {
    void *y, *dy;
    float *mean, *rstd, *loss;
    float *logits; /* (n_logits_rows,V) */
    int64_t n_logits_rows;
    struct scratch own;
};

/* TRAIN makes y in `saved`; EVAL needs a place of its own. */
static struct head_space layout_space(const struct model_lm_head_hp *hp, const struct ops *ops,
                                      int64_t N, enum cz_dtype dtype, bool training, void *base)
{
    struct head_space s = {.own = {.base = base}};
    void *rows = scratch_take(&s.own, N, hp->C, dtype_size(dtype));
    if (training) {
        s.dy = rows;
        s.mean = scratch_take(&s.own, N, 1, sizeof(float));
        s.rstd = scratch_take(&s.own, N, 1, sizeof(float));
    } else {
        s.y = rows;
        s.n_logits_rows = logits_block_rows(ops, N, hp->V);
        s.logits = scratch_take(&s.own, s.n_logits_rows, hp->V, sizeof(float));
    }
    s.loss = scratch_take(&s.own, 1, 1, sizeof(float));
    return s;
}

/* x·wᵀ with fp32 sums. */
static struct ce_head_args ce_args(const struct model_lm_head_hp *hp, int64_t N,
                                   enum cz_dtype dtype, enum cz_dtype grad_dtype)
{
    return (struct ce_head_args){.N = N,
                                 .C = hp->C,
                                 .V = hp->V,
                                 .softcap = hp->softcap,
                                 .dtype = dtype,
                                 .grad_dtype = grad_dtype};
}

/* ops_ce_head_workspace() looks at which results are wanted, not at where they go. */
static cz_status ce_workspace(const struct model_lm_head_hp *hp, const struct batch_shape *s,
                              int64_t N, bool gradients, bool logits, size_t *nbytes_max)
{
    static int32_t label;
    static float number;
    size_t nbytes = 0;
    struct ce_head_args args = ce_args(hp, N, s->dtype, s->grad_dtype);
    args.labels = &label;
    args.loss = &number;
    if (logits) args.logits = &number;
    if (!gradients) args.hits = &number;
    if (gradients) args.dx = args.dw = &number;
    TRY(ops_ce_head_workspace(s->ops, &args, &nbytes));
    size_raise(nbytes_max, nbytes);
    return CZ_OK;
}

/* Of N rows, block by block where the device takes blocks: a workspace serves fewer rows, too. */
static cz_status logits_workspace(const struct model_lm_head_hp *hp, const struct batch_shape *s,
                                  int64_t N, size_t *nbytes_max)
{
    const int64_t block = logits_block_rows(s->ops, N, hp->V);
    return ce_workspace(hp, s, block ? block : N, false, true, nbytes_max);
}

/* Evaluation with logits may need more than training: the larger counts. */
static cz_status lm_head_size(const void *hp_, const struct batch_shape *s, struct layer_sizes *out)
{
    const struct model_lm_head_hp *hp = hp_;
    *out = (struct layer_sizes){0};
    if (hp->balance_coef != 0)
        out->shared_nbytes = router_balance_numel(hp->n_experts) * sizeof(float);
    TRY(batch_shape_check("language-model head", s));
    const int64_t N = s->B * s->T;
    size_t op_nbytes = 0;
    if (s->training) {
        out->saved_nbytes = rows_nbytes(N, hp->C, dtype_size(s->dtype));
        const struct norm norm = norm_of(hp);
        norm_workspace(s, &norm, N, &op_nbytes);
        TRY(ce_workspace(hp, s, N, true, false, &op_nbytes));
        if (host_reads(s->ops)) out->put_off_nbytes = rows_nbytes(N, hp->V, dtype_size(s->dtype));
    } else {
        TRY(logits_workspace(hp, s, s->B, &op_nbytes)); /* decode */
    }
    TRY(ce_workspace(hp, s, N, false, false, &op_nbytes));
    TRY(logits_workspace(hp, s, N, &op_nbytes));
    out->flops_forward = 2.0 * (double)N * (double)hp->C * (double)hp->V;
    size_t own_nbytes = layout_space(hp, s->ops, N, s->dtype, false, NULL).own.used;
    if (s->training)
        size_raise(&own_nbytes, layout_space(hp, s->ops, N, s->dtype, true, NULL).own.used);
    return sizes_finish("language-model head", own_nbytes, op_nbytes, out);
}

/* y = y/divisor in N rows, which divides the logits and, of dy, the gradient likewise. */
static cz_status divide(const struct model_lm_head_hp *hp, const struct layer_args *a, int64_t N,
                        void *y)
{
    const struct cast_scale_args args = {.x_dtype = a->dtype,
                                         .y_dtype = a->dtype,
                                         .numel = (size_t)(N * hp->C),
                                         .alpha = 1.0f / hp->divisor,
                                         .x = y,
                                         .y = y};
    return hp->divisor != 0 ? ops_cast_scale(a->ops, a->stream, &args) : CZ_OK;
}

/* loss += what unbalanced experts cost, whose gradient the blocks find in `shared`. */
static cz_status add_balance(const struct model_lm_head_hp *hp, const struct layer_args *a,
                             float *loss)
{
    const struct router_balance_loss_args args = {.E = hp->n_experts,
                                                  .coef = hp->balance_coef,
                                                  .dloss = a->mode == LAYER_EVAL ? 0 : a->dloss,
                                                  .balance = a->shared,
                                                  .loss = loss};
    if (hp->balance_coef == 0 || !a->shared) return CZ_OK;
    return ops_router_balance_loss(a->ops, a->stream, &args);
}

/* y is in `saved` until the norm's backward overwrites it with din. */
static cz_status head_train(const struct model_lm_head_hp *hp, const struct layer_args *a)
{
    const int64_t N = a->batch->B * a->batch->T;
    const struct head_params p = params_of(hp, a);
    const struct norm norm = norm_of(hp);
    struct head_space s = layout_space(hp, a->ops, N, a->dtype, true, a->workspace);
    const struct op_space space = scratch_rest(&s.own, a);
    void *y = a->saved; /* until the norm's backward overwrites it with din */
    if (!a->batch->labels)
        return err_set(CZ_INVALID, 0, "the batch has no labels: training needs them");

    const struct norm_io io = {.x = a->in, .y = y, .mean = s.mean, .rstd = s.rstd};
    TRY(norm_forward(a, &norm, N, &io, p.norm_w, p.norm_b));
    TRY(divide(hp, a, N, y));
    struct ce_head_args ce = ce_args(hp, N, a->dtype, a->grad_dtype);
    ce.x = y;
    ce.w = p.w;
    ce.labels = a->batch->labels;
    ce.loss_weights = a->batch->loss_weights;
    ce.divisor = a->batch->loss_divisor;
    ce.loss = a->loss ? a->loss : s.loss;
    ce.dloss = a->dloss;
    ce.dx = s.dy;
    ce.dx_unwanted = a->no_din && !has_norm_grads(&p);
    ce.dw = p.g_w ? p.g_w->dp : NULL;
    ce.dw_accumulate = p.g_w && p.g_w->accumulate;
    ce.dz = a->put_off;
    ce.dz_given = a->put_off && a->no_din;
    ce.workspace = space.p;
    ce.workspace_nbytes = space.nbytes;
    TRY(objective_ce_head(a, &ce));
    if (ce.dz_given) return CZ_OK;
    TRY(add_balance(hp, a, ce.loss));
    if (ce.dx_unwanted) return CZ_OK;
    TRY(divide(hp, a, N, s.dy));
    const struct norm_grad_io grad = {
        .x = a->in, .dy = s.dy, .mean = s.mean, .rstd = s.rstd, .dx = a->saved};
    return norm_backward(a, &norm, N, &grad, p.norm_w, p.g_norm_w, p.g_norm_b, space);
}

/* Over rows [first, first + n) of y. */
static struct ce_head_args ce_eval(const struct model_lm_head_hp *hp, const struct layer_args *a,
                                   const struct head_space *s, int64_t first, int64_t n,
                                   struct op_space space)
{
    struct ce_head_args ce = ce_args(hp, n, a->dtype, a->grad_dtype);
    ce.x = elem_at(a, s->y, (size_t)(first * hp->C));
    ce.w = params_of(hp, a).w;
    ce.loss = s->loss;
    ce.workspace = space.p;
    ce.workspace_nbytes = space.nbytes;
    return ce;
}

/* Logits of N rows of y, a block at a time where they have to be copied out. */
static cz_status logits_out(const struct model_lm_head_hp *hp, const struct layer_args *a,
                            const struct head_space *s, int64_t N, struct op_space space)
{
    for (int64_t first = 0, n; first < N; first += n) {
        n = N - first < s->n_logits_rows ? N - first : s->n_logits_rows;
        struct ce_head_args ce = ce_eval(hp, a, s, first, n, space);
        ce.logits = s->logits;
        TRY(ops_ce_head(a->ops, a->stream, &ce));
        TRY(logits_copy_out(a, s->logits, first, n, hp->V));
    }
    return CZ_OK;
}

/* Loss and logits are separate passes, since logits need all rows at full width. */
static cz_status head_eval(const struct model_lm_head_hp *hp, const struct layer_args *a)
{
    const int64_t N = a->batch->B * a->batch->T;
    const struct head_params p = params_of(hp, a);
    const struct norm norm = norm_of(hp);
    struct head_space s = layout_space(hp, a->ops, N, a->dtype, false, a->workspace);
    const struct op_space space = scratch_rest(&s.own, a);
    const bool wants_loss = a->loss && a->batch->labels;
    if (!a->logits && !wants_loss) return CZ_OK; /* nothing requested */

    const struct norm_io io = {.x = a->in, .y = s.y};
    TRY(norm_forward(a, &norm, N, &io, p.norm_w, p.norm_b));
    TRY(divide(hp, a, N, s.y));
    const bool direct = s.n_logits_rows == 0;
    if (a->logits && !direct) TRY(logits_out(hp, a, &s, N, space));
    if (!wants_loss && !direct) return CZ_OK;
    struct ce_head_args ce = ce_eval(hp, a, &s, 0, N, space);
    if (a->loss) {
        ce.labels = a->batch->labels;
        ce.loss = a->loss;
        ce.hits = a->hits;
    }
    ce.loss_weights = a->batch->loss_weights;
    ce.divisor = a->batch->loss_divisor;
    if (direct) ce.logits = a->logits;
    TRY(objective_ce_head(a, &ce));
    return wants_loss ? add_balance(hp, a, ce.loss) : CZ_OK;
}

static cz_status lm_head_forward(const void *hp, const struct layer_args *a)
{
    return a->mode == LAYER_EVAL ? head_eval(hp, a) : head_train(hp, a);
}

/* Forward has done the work; see the head of this file. */
static cz_status lm_head_backward(const void *hp_, const struct layer_args *a)
{
    const struct model_lm_head_hp *hp = hp_;
    const size_t numel = (size_t)(a->batch->B * a->batch->T * hp->C);
    return a->din ? elements_copy(a, numel, a->saved, a->din) : CZ_OK;
}

/* Logits (B,V) of the last new position of each sequence. */
static cz_status lm_head_decode(const void *hp_, const struct layer_args *a)
{
    const struct model_lm_head_hp *hp = hp_;
    if (!a->logits) return CZ_OK;
    const int64_t B = a->batch->B, T = a->batch->T;
    const struct head_params p = params_of(hp, a);
    const struct norm norm = norm_of(hp);
    struct head_space s = layout_space(hp, a->ops, B, a->dtype, false, a->workspace);
    const struct op_space space = scratch_rest(&s.own, a);
    for (int64_t b = 0; b < B; b++) {
        const struct norm_io io = {.x = elem_at(a, a->in, (size_t)((b * T + T - 1) * hp->C)),
                                   .y = elem_at(a, s.y, (size_t)(b * hp->C))};
        TRY(norm_forward(a, &norm, 1, &io, p.norm_w, p.norm_b));
    }
    TRY(divide(hp, a, B, s.y));
    if (s.n_logits_rows > 0) return logits_out(hp, a, &s, B, space);
    struct ce_head_args ce = ce_eval(hp, a, &s, 0, B, space);
    ce.logits = a->logits;
    return ops_ce_head(a->ops, a->stream, &ce);
}

static cz_status lm_head_hidden(const void *hp_, const struct layer_args *a, bool *normed)
{
    const struct model_lm_head_hp *hp = hp_;
    const struct head_params p = params_of(hp, a);
    const struct norm norm = norm_of(hp);
    const struct norm_io io = {.x = a->in, .y = a->out};
    *normed = true;
    return norm_forward(a, &norm, a->batch->B * a->batch->T, &io, p.norm_w, p.norm_b);
}

const struct layer_class model_lm_head_class = {
    .name = "lm_head",
    .flags = LAYER_LOSS | LAYER_OBJECTIVE,
    .declare = lm_head_declare,
    .size = lm_head_size,
    .forward = lm_head_forward,
    .backward = lm_head_backward,
    .decode = lm_head_decode,
    .hidden = lm_head_hidden,
};
