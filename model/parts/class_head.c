/* The classification head of an encoder.
 *   h = x[:,0]·Wᵀ + b   p = dropout(act(h))   z = p·Uᵀ + c   loss = mean cross-entropy of z
 * With drops_input, dropout(x[:,0]) is in the place of x[:,0] (RoBERTa, ELECTRA).
 * z is fp32 in every dtype. A TRAIN forward differentiates at once, as the language-model head
 * does; `saved` is the gradient of x[:,0] (B,C), and backward puts it into zeros. */
#include "model/bert/encoder_impl.h"
#include "ops/cross_entropy/cross_entropy.h"
#include "ops/elementwise/elementwise.h"
#include "ops/matmul/matmul.h"

enum { POOL_W = 0, POOL_B, CLASS_W, CLASS_B };
enum { SITE_DROPOUT = 0, SITE_INPUT };

/* BERT's pooler, DistilBERT's pre_classifier. */
static struct linear pool_of(const struct class_head_hp *hp)
{
    return (struct linear){.n_in = hp->C, .n_out = hp->C};
}

static struct linear class_of(const struct class_head_hp *hp)
{
    return (struct linear){.n_in = hp->C, .n_out = hp->K};
}

/* The classifier's bias starts at zero, as in transformers. */
static cz_status head_declare(const void *hp_, struct param_list *out)
{
    const struct class_head_hp *hp = hp_;
    const int64_t pool[] = {hp->C, hp->C}, class[] = {hp->K, hp->C};
    const float std = hp->init_std;
    TRY(param_list_add(out, hp->pool_weight_name, 2, pool, PARAM_INIT_NORMAL, std));
    TRY(param_list_add(out, hp->pool_bias_name, 1, pool, PARAM_INIT_ZERO, 0.0f));
    TRY(param_list_add(out, hp->class_weight_name, 2, class, PARAM_INIT_NORMAL, std));
    return param_list_add(out, hp->class_bias_name, 1, class, PARAM_INIT_ZERO, 0.0f);
}

/* ---- memory --------------------------------------------------------------------------------- */

struct head_space {
    void *x, *h, *p; /* (B,C) first tokens, before and behind the activation */
    void *dp;        /* (B,C) */
    float *z, *dz;   /* (B,K) */
    void *dz_narrow; /* (B,K) dz in the model's dtype */
    float *loss;
    struct scratch own;
};

/* EVAL reuses h for p. */
static struct head_space layout_space(const struct class_head_hp *hp, int64_t B,
                                      enum cz_dtype dtype, bool training, void *base)
{
    const size_t e = dtype_size(dtype);
    struct head_space s = {.own = {.base = base}};
    s.x = scratch_take(&s.own, B, hp->C, e);
    s.h = scratch_take(&s.own, B, hp->C, e);
    s.p = training ? scratch_take(&s.own, B, hp->C, e) : s.h;
    s.z = scratch_take(&s.own, B, hp->K, sizeof(float));
    s.loss = scratch_take(&s.own, 1, 1, sizeof(float));
    if (!training) return s;
    s.dp = scratch_take(&s.own, B, hp->C, e);
    s.dz = scratch_take(&s.own, B, hp->K, sizeof(float));
    s.dz_narrow = dtype == DTYPE_F32 ? (void *)s.dz : scratch_take(&s.own, B, hp->K, e);
    return s;
}

/* fp32 logits whatever the weights: the loss is a difference of close numbers. */
static struct matmul_args logits_args(const struct class_head_hp *hp, int64_t B,
                                      enum cz_dtype dtype)
{
    return (struct matmul_args){
        .m = B, .n = hp->K, .k = hp->C, .dtype = dtype, .c_dtype = DTYPE_F32, .trans_b = true};
}

static cz_status head_size(const void *hp_, const struct batch_shape *s, struct layer_sizes *out)
{
    const struct class_head_hp *hp = hp_;
    const struct linear pool = pool_of(hp), class = class_of(hp);
    *out = (struct layer_sizes){0};
    TRY(batch_shape_check("classification head", s));
    size_t op_nbytes = 0, nbytes = 0;
    TRY(linear_workspace(s, &pool, s->B, &op_nbytes));
    TRY(linear_workspace(s, &class, s->B, &op_nbytes));
    const struct matmul_args logits = logits_args(hp, s->B, s->dtype);
    TRY(ops_matmul_workspace(s->ops, &logits, &nbytes));
    size_raise(&op_nbytes, nbytes);
    if (s->training) out->saved_nbytes = rows_nbytes(s->B, hp->C, dtype_size(s->dtype));
    const double b = (double)s->B, c = (double)hp->C, k = (double)hp->K;
    out->flops_forward = 2.0 * b * c * (c + k);
    size_t own_nbytes = layout_space(hp, s->B, s->dtype, s->training, NULL).own.used;
    return sizes_finish("classification head", own_nbytes, op_nbytes, out);
}

/* ---- forward -------------------------------------------------------------------------------- */

/* From the first positions to z. */
static cz_status make_logits(const struct class_head_hp *hp, const struct layer_args *a,
                             const struct head_space *s, struct op_space space)
{
    const int64_t B = a->batch->B;
    const size_t numel = (size_t)(B * hp->C);
    const struct linear pool = pool_of(hp);
    /* The first position stands for the sample, as BERT's pooler takes it. */
    const size_t C = (size_t)hp->C, T = (size_t)a->batch->T;
    for (size_t b = 0; b < (size_t)a->batch->B; b++)
        TRY(elements_copy(a, C, elem_at(a, a->in, b * T * C), elem_at(a, s->x, b * C)));
    if (hp->drops_input && dropout_acts(a, hp->dropout_p))
        TRY(dropout_apply(a, hp->dropout_p, SITE_INPUT, numel, s->x, s->x));
    TRY(linear_act_forward(a, &pool, hp->act, B, s->x, a->params[POOL_W], a->params[POOL_B], s->h,
                           s->p, space));
    if (dropout_acts(a, hp->dropout_p))
        TRY(dropout_apply(a, hp->dropout_p, SITE_DROPOUT, numel, s->p, s->p));
    struct matmul_args logits = logits_args(hp, B, a->dtype);
    logits.a = s->p;
    logits.b = a->params[CLASS_W];
    logits.bias = a->params[CLASS_B];
    logits.c = s->z;
    logits.workspace = space.p;
    logits.workspace_nbytes = space.nbytes;
    TRY(ops_matmul(a->ops, a->stream, &logits));
    return a->logits && s->z != a->logits ? logits_copy_out(a, s->z, 0, B, hp->K) : CZ_OK;
}

/* Rows without a label count nothing; the divisor is the batch's (docs/design.md, decision 14). */
static cz_status make_loss(const struct class_head_hp *hp, const struct layer_args *a,
                           const struct head_space *s)
{
    const struct cross_entropy_args args = {.N = a->batch->B,
                                            .V = hp->K,
                                            .logits = s->z,
                                            .labels = a->batch->labels,
                                            .loss_weights = a->batch->loss_weights,
                                            .divisor = a->batch->loss_divisor,
                                            .loss = a->loss ? a->loss : s->loss,
                                            .dloss = a->dloss,
                                            .dlogits = s->dz};
    return ops_cross_entropy(a->ops, a->stream, &args);
}

/* saved (B,C) = gradient of the first tokens, from dz. */
static cz_status differentiate(const struct class_head_hp *hp, const struct layer_args *a,
                               const struct head_space *s, struct op_space space)
{
    const int64_t B = a->batch->B;
    const size_t numel = (size_t)(B * hp->C);
    const struct linear pool = pool_of(hp), class = class_of(hp);
    const void *const *w = a->params;
    const struct param_grad *g = a->dparams;
    const struct cast_scale_args cast = {.x_dtype = DTYPE_F32,
                                         .y_dtype = a->dtype,
                                         .numel = (size_t)(B * hp->K),
                                         .alpha = 1.0f,
                                         .x = s->dz,
                                         .y = s->dz_narrow};
    TRY(ops_cast_scale(a->ops, a->stream, &cast));
    TRY(linear_backward(a, &class, B, s->p, s->dz_narrow, w[CLASS_W], &g[CLASS_W], &g[CLASS_B],
                        s->dp, space));
    if (dropout_acts(a, hp->dropout_p))
        TRY(dropout_apply(a, hp->dropout_p, SITE_DROPOUT, numel, s->dp, s->dp));
    TRY(activation_grad(a, hp->act, numel, s->h, s->dp, s->dp));
    TRY(linear_backward(a, &pool, B, s->x, s->dp, w[POOL_W], &g[POOL_W], &g[POOL_B], a->saved,
                        space));
    if (!hp->drops_input || !dropout_acts(a, hp->dropout_p)) return CZ_OK;
    return dropout_apply(a, hp->dropout_p, SITE_INPUT, numel, a->saved, a->saved);
}

/* Gradients now: logits need not be kept until backward. */
static cz_status head_train(const struct class_head_hp *hp, const struct layer_args *a)
{
    struct head_space s = layout_space(hp, a->batch->B, a->dtype, true, a->workspace);
    const struct op_space space = scratch_rest(&s.own, a);
    if (!a->batch->labels)
        return err_set(CZ_INVALID, 0, "the batch has no labels: training needs them");
    if (a->logits && host_reads(a->ops)) s.z = a->logits;
    TRY(make_logits(hp, a, &s, space));
    TRY(make_loss(hp, a, &s));
    return differentiate(hp, a, &s, space);
}

/* Only requested values are computed. */
static cz_status head_eval(const struct class_head_hp *hp, const struct layer_args *a)
{
    struct head_space s = layout_space(hp, a->batch->B, a->dtype, false, a->workspace);
    const struct op_space space = scratch_rest(&s.own, a);
    const bool wants_loss = a->loss && a->batch->labels;
    if (!a->logits && !wants_loss) return CZ_OK; /* nothing requested */
    if (a->logits && host_reads(a->ops)) s.z = a->logits;
    TRY(make_logits(hp, a, &s, space));
    return wants_loss ? make_loss(hp, a, &s) : CZ_OK;
}

static cz_status head_forward(const void *hp, const struct layer_args *a)
{
    return a->mode == LAYER_EVAL ? head_eval(hp, a) : head_train(hp, a);
}

/* Only first positions have a gradient. */
static cz_status head_backward(const void *hp_, const struct layer_args *a)
{
    const struct class_head_hp *hp = hp_;
    const size_t B = (size_t)a->batch->B, T = (size_t)a->batch->T, C = (size_t)hp->C;
    struct device *device = ops_device(a->ops);
    if (!a->din) return CZ_OK;
    TRY(device->ops->fill_zero(device, a->stream, a->din, B * T * C * dtype_size(a->dtype)));
    for (size_t b = 0; b < B; b++)
        TRY(elements_copy(a, C, elem_at(a, a->saved, b * C), elem_at(a, a->din, b * T * C)));
    return CZ_OK;
}

const struct layer_class class_head_class = {
    .name = "class_head",
    .flags = LAYER_LOSS,
    .declare = head_declare,
    .size = head_size,
    .forward = head_forward,
    .backward = head_backward,
};
