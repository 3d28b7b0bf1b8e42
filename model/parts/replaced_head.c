/* The head of a discriminator, which says of each token whether it was replaced (ELECTRA).
 *   h = x·Wᵀ + b   p = act(h)   z = p·u + c   loss = mean binary cross-entropy of σ(z)
 * over the positions that have a label, 0 or 1. That is the cross-entropy of two classes with the
 * logits 0 and z, so ops ce_head makes it, from a second row of zeros in front of u and c. z is
 * fp32 in every dtype. A TRAIN forward differentiates at once, as the language-model head does;
 * `saved` is the gradient of x. */
#include "model/bert/encoder_impl.h"
#include "model/objective.h"
#include "ops/cross_entropy/cross_entropy.h"
#include "ops/elementwise/elementwise.h"
#include "ops/matmul/matmul.h"

enum { DENSE_W = 0, DENSE_B, OUT_W, OUT_B };

static struct linear dense_of(const struct replaced_head_hp *hp)
{
    return (struct linear){.n_in = hp->C, .n_out = hp->C};
}

static cz_status head_declare(const void *hp_, struct param_list *out)
{
    const struct replaced_head_hp *hp = hp_;
    const int64_t dense[] = {hp->C, hp->C}, last[] = {1, hp->C};
    TRY(param_list_add(out, hp->dense_weight_name, 2, dense, PARAM_INIT_NORMAL, hp->init_std));
    TRY(param_list_add(out, hp->dense_bias_name, 1, dense, PARAM_INIT_ZERO, 0.0f));
    TRY(param_list_add(out, hp->out_weight_name, 2, last, PARAM_INIT_NORMAL, hp->init_std));
    return param_list_add(out, hp->out_bias_name, 1, last, PARAM_INIT_ZERO, 0.0f);
}

/* ---- memory --------------------------------------------------------------------------------- */

/* Both classes of the last map: a row of zeros, then u (or c). */
struct head_space {
    void *h, *p;   /* (N,C) before and behind the activation; EVAL: one */
    void *w, *b;   /* (2,C), (2) */
    void *dw, *db; /* the same in grad_dtype */
    void *dp;      /* (N,C) */
    float *z;      /* (N) */
    float *loss;
    struct scratch own;
};

static struct head_space layout_space(const struct replaced_head_hp *hp, int64_t N,
                                      enum cz_dtype dtype, enum cz_dtype grad_dtype, bool training,
                                      void *base)
{
    const size_t e = dtype_size(dtype);
    struct head_space s = {.own = {.base = base}};
    s.p = scratch_take(&s.own, N, hp->C, e);
    s.h = training ? scratch_take(&s.own, N, hp->C, e) : s.p;
    s.w = scratch_take(&s.own, 2, hp->C, e);
    s.b = scratch_take(&s.own, 2, 1, e);
    s.loss = scratch_take(&s.own, 1, 1, sizeof(float));
    if (!training) {
        s.z = scratch_take(&s.own, N, 1, sizeof(float));
        return s;
    }
    s.dp = scratch_take(&s.own, N, hp->C, e);
    s.dw = scratch_take(&s.own, 2, hp->C, dtype_size(grad_dtype));
    s.db = scratch_take(&s.own, 2, 1, dtype_size(grad_dtype));
    return s;
}

static struct ce_head_args ce_args(const struct replaced_head_hp *hp, int64_t N,
                                   enum cz_dtype dtype, enum cz_dtype grad_dtype)
{
    return (struct ce_head_args){
        .N = N, .C = hp->C, .V = 2, .dtype = dtype, .grad_dtype = grad_dtype};
}

/* One logit of each token: fp32 whatever the weights. */
static struct matmul_args logits_args(const struct replaced_head_hp *hp, int64_t N,
                                      enum cz_dtype dtype)
{
    return (struct matmul_args){
        .m = N, .n = 1, .k = hp->C, .dtype = dtype, .c_dtype = DTYPE_F32, .trans_b = true};
}

/* ops_ce_head_workspace() looks at which results are wanted, not at where they go. */
static cz_status ce_workspace(const struct replaced_head_hp *hp, const struct batch_shape *s,
                              size_t *nbytes_max)
{
    static int32_t label;
    static float number;
    size_t nbytes = 0;
    struct ce_head_args args = ce_args(hp, s->B * s->T, s->dtype, s->grad_dtype);
    args.bias = &number;
    args.labels = &label;
    args.loss = &number;
    TRY(ops_ce_head_workspace(s->ops, &args, &nbytes));
    size_raise(nbytes_max, nbytes);
    if (!s->training) return CZ_OK;
    args.dx = args.dw = args.dbias = &number;
    TRY(ops_ce_head_workspace(s->ops, &args, &nbytes));
    size_raise(nbytes_max, nbytes);
    return CZ_OK;
}

static cz_status head_size(const void *hp_, const struct batch_shape *s, struct layer_sizes *out)
{
    const struct replaced_head_hp *hp = hp_;
    const struct linear dense = dense_of(hp);
    *out = (struct layer_sizes){0};
    TRY(batch_shape_check("replaced-token head", s));
    const int64_t N = s->B * s->T;
    size_t op_nbytes = 0, nbytes = 0;
    TRY(linear_workspace(s, &dense, N, &op_nbytes));
    const struct matmul_args logits = logits_args(hp, N, s->dtype);
    TRY(ops_matmul_workspace(s->ops, &logits, &nbytes));
    size_raise(&op_nbytes, nbytes);
    TRY(ce_workspace(hp, s, &op_nbytes));
    if (s->training) out->saved_nbytes = rows_nbytes(N, hp->C, dtype_size(s->dtype));
    const double n = (double)N, c = (double)hp->C;
    out->flops_forward = 2.0 * n * c * (c + 1.0);
    size_t own_nbytes = layout_space(hp, N, s->dtype, s->grad_dtype, false, NULL).own.used;
    if (s->training)
        size_raise(&own_nbytes, layout_space(hp, N, s->dtype, s->grad_dtype, true, NULL).own.used);
    return sizes_finish("replaced-token head", own_nbytes, op_nbytes, out);
}

/* ---- forward -------------------------------------------------------------------------------- */

/* p, and both classes of the last map. */
static cz_status prepare(const struct replaced_head_hp *hp, const struct layer_args *a,
                         const struct head_space *s, struct op_space space)
{
    const struct linear dense = dense_of(hp);
    const size_t C = (size_t)hp->C, e = dtype_size(a->dtype);
    struct device *device = ops_device(a->ops);
    TRY(linear_act_forward(a, &dense, hp->act, a->batch->B * a->batch->T, a->in, a->params[DENSE_W],
                           a->params[DENSE_B], s->h, s->p, space));
    TRY(device->ops->fill_zero(device, a->stream, s->w, 2 * C * e));
    TRY(device->ops->fill_zero(device, a->stream, s->b, 2 * e));
    TRY(elements_copy(a, C, a->params[OUT_W], elem_at(a, s->w, C)));
    return elements_copy(a, 1, a->params[OUT_B], elem_at(a, s->b, 1));
}

static struct ce_head_args ce_over(const struct replaced_head_hp *hp, const struct layer_args *a,
                                   const struct head_space *s, struct op_space space)
{
    struct ce_head_args ce = ce_args(hp, a->batch->B * a->batch->T, a->dtype, a->grad_dtype);
    ce.x = s->p;
    ce.w = s->w;
    ce.bias = s->b;
    ce.labels = a->batch->labels;
    ce.loss_weights = a->batch->loss_weights;
    ce.divisor = a->batch->loss_divisor;
    ce.loss = a->loss ? a->loss : s->loss;
    ce.workspace = space.p;
    ce.workspace_nbytes = space.nbytes;
    return ce;
}

/* The second row of a gradient of both classes, to where it is wanted. */
static cz_status take_grad(const struct layer_args *a, const void *both, size_t numel,
                           const struct param_grad *g)
{
    const size_t nbytes = numel * dtype_size(a->grad_dtype);
    const void *row = (const unsigned char *)both + nbytes;
    struct device *device = ops_device(a->ops);
    if (!g->dp) return CZ_OK;
    if (!g->accumulate) return device->ops->copy(device, a->stream, g->dp, row, nbytes);
    const struct add_args args = {
        .dtype = a->grad_dtype, .numel = numel, .a = g->dp, .b = row, .y = g->dp};
    return ops_add(a->ops, a->stream, &args);
}

static cz_status head_train(const struct replaced_head_hp *hp, const struct layer_args *a)
{
    const int64_t N = a->batch->B * a->batch->T;
    const struct linear dense = dense_of(hp);
    const struct head_space s = layout_space(hp, N, a->dtype, a->grad_dtype, true, a->workspace);
    const struct op_space space = scratch_rest(&s.own, a);
    const struct param_grad *g = a->dparams;
    if (!a->batch->labels)
        return err_set(CZ_INVALID, 0, "the batch has no labels: training needs them");
    TRY(prepare(hp, a, &s, space));
    struct ce_head_args ce = ce_over(hp, a, &s, space);
    ce.dloss = a->dloss;
    ce.dx = s.dp;
    ce.dw = s.dw;
    ce.dbias = s.db;
    TRY(objective_ce_head(a, &ce));
    TRY(take_grad(a, s.dw, (size_t)hp->C, &g[OUT_W]));
    TRY(take_grad(a, s.db, 1, &g[OUT_B]));
    TRY(activation_grad(a, hp->act, (size_t)(N * hp->C), s.h, s.dp, s.dp));
    return linear_backward(a, &dense, N, a->in, s.dp, a->params[DENSE_W], &g[DENSE_W], &g[DENSE_B],
                           a->saved, space);
}

/* Only requested values are computed. */
static cz_status head_eval(const struct replaced_head_hp *hp, const struct layer_args *a)
{
    const int64_t N = a->batch->B * a->batch->T;
    const struct head_space s = layout_space(hp, N, a->dtype, a->grad_dtype, false, a->workspace);
    const struct op_space space = scratch_rest(&s.own, a);
    const bool wants_loss = a->loss && a->batch->labels, direct = host_reads(a->ops);
    if (!a->logits && !wants_loss) return CZ_OK; /* nothing requested */
    TRY(prepare(hp, a, &s, space));
    if (a->logits) {
        struct matmul_args logits = logits_args(hp, N, a->dtype);
        logits.a = s.p;
        logits.b = a->params[OUT_W];
        logits.bias = a->params[OUT_B];
        logits.c = direct ? a->logits : s.z;
        logits.workspace = space.p;
        logits.workspace_nbytes = space.nbytes;
        TRY(ops_matmul(a->ops, a->stream, &logits));
        if (!direct) TRY(logits_copy_out(a, s.z, 0, N, 1));
    }
    if (!wants_loss) return CZ_OK;
    struct ce_head_args ce = ce_over(hp, a, &s, space);
    return objective_ce_head(a, &ce);
}

static cz_status head_forward(const void *hp, const struct layer_args *a)
{
    return a->mode == LAYER_EVAL ? head_eval(hp, a) : head_train(hp, a);
}

static cz_status head_backward(const void *hp_, const struct layer_args *a)
{
    const struct replaced_head_hp *hp = hp_;
    if (!a->din) return CZ_OK;
    return elements_copy(a, (size_t)(a->batch->B * a->batch->T * hp->C), a->saved, a->din);
}

static const char *replaced_head_map_name(const void *hp)
{
    return ((const struct replaced_head_hp *)hp)->dense_weight_name;
}

const struct layer_class replaced_head_class = {
    .name = "replaced_head",
    .flags = LAYER_LOSS | LAYER_OBJECTIVE,
    .declare = head_declare,
    .size = head_size,
    .forward = head_forward,
    .backward = head_backward,
    .map_name = replaced_head_map_name,
};
