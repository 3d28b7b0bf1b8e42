/* The classification head of encoders and decoders.
 *   y = norm(x)   h = y·Wᵀ + b   p = dropout(act(h))   z = p·Uᵀ + c   loss = mean cross-entropy of
 * z (or what hp->loss says) of the rows x that hp->rows names; norm and pool are left out where
 * they have no names. With input_dropout_p, dropout(y) is in the place of y (RoBERTa, ELECTRA). z
 * is fp32 in every dtype. A TRAIN forward differentiates at once, as the language-model head does;
 * `saved` is the gradient of x (n,C), and backward puts it into zeros. */
#include "model/parts/class_head.h"
#include "model/objective.h"
#include "model/parts/blocks_impl.h"
#include "ops/cross_entropy/cross_entropy.h"
#include "ops/elementwise/elementwise.h"
#include "ops/matmul/matmul.h"

#include <math.h>

enum { SITE_DROPOUT = 0, SITE_INPUT };

/* A parameter and its gradient; without values where the head has none such. */
struct head_param {
    const void *p;
    const struct param_grad *g;
};

struct head_params {
    struct head_param norm_w, norm_b, pool_w, pool_b, class_w, class_b;
};

/* The next in the order of declaration, if it has a name. */
static struct head_param next_param(const struct layer_args *a, const char *name, int *idx)
{
    if (!name) return (struct head_param){0};
    const int i = (*idx)++;
    return (struct head_param){a->params[i], a->dparams ? &a->dparams[i] : NULL};
}

static struct head_params params_of(const struct class_head_hp *hp, const struct layer_args *a)
{
    int idx = 0;
    struct head_params p;
    p.norm_w = next_param(a, hp->norm_weight_name, &idx);
    p.norm_b = next_param(a, hp->norm_bias_name, &idx);
    p.pool_w = next_param(a, hp->pool_weight_name, &idx);
    p.pool_b = next_param(a, hp->pool_bias_name, &idx);
    p.class_w = next_param(a, hp->class_weight_name, &idx);
    p.class_b = next_param(a, hp->class_bias_name, &idx);
    return p;
}

/* BERT's pooler, DistilBERT's pre_classifier. */
static struct linear pool_of(const struct class_head_hp *hp)
{
    return (struct linear){.n_in = hp->C, .n_out = hp->C};
}

static struct linear class_of(const struct class_head_hp *hp)
{
    return (struct linear){.n_in = hp->C, .n_out = hp->K};
}

static struct norm norm_of(const struct class_head_hp *hp)
{
    return (struct norm){
        .rms = !hp->norm_bias_name, .C = hp->C, .eps = hp->eps, .offset = hp->norm_offset};
}

static int64_t n_rows_of(const struct class_head_hp *hp, const struct batch *batch)
{
    return hp->rows == HEAD_EACH ? batch->B * batch->T : batch_n_rows(batch);
}

static cz_status declare_vector(struct param_list *out, const char *name, int64_t n,
                                enum param_init init)
{
    return name ? param_list_add(out, name, 1, &n, init, 0.0f) : CZ_OK;
}

static cz_status declare_matrix(const struct class_head_hp *hp, struct param_list *out,
                                const char *name, int64_t n)
{
    const int64_t shape[] = {n, hp->C};
    return name ? param_list_add(out, name, 2, shape, PARAM_INIT_NORMAL, hp->init_std) : CZ_OK;
}

/* The classifier's bias starts at zero, as in transformers. */
static cz_status head_declare(const void *hp_, struct param_list *out)
{
    const struct class_head_hp *hp = hp_;
    TRY(declare_vector(out, hp->norm_weight_name, hp->C,
                       hp->norm_offset == 1 ? PARAM_INIT_ZERO : PARAM_INIT_ONE));
    TRY(declare_vector(out, hp->norm_bias_name, hp->C, PARAM_INIT_ZERO));
    TRY(declare_matrix(hp, out, hp->pool_weight_name, hp->C));
    TRY(declare_vector(out, hp->pool_bias_name, hp->C, PARAM_INIT_ZERO));
    TRY(declare_matrix(hp, out, hp->class_weight_name, hp->K));
    return declare_vector(out, hp->class_bias_name, hp->K, PARAM_INIT_ZERO);
}

/* ---- memory --------------------------------------------------------------------------------- */

struct head_space {
    void *x;  /* (n,C) the rows that are read; HEAD_EACH: NULL, they are the input */
    void *y;  /* (n,C) behind the norm, if there is one; the rows themselves are overwritten */
    void *h;  /* (n,C) before the activation, if there is one */
    void *p;  /* (n,C) what the last map reads */
    void *dp; /* (n,C) */
    float *mean, *rstd;
    float *z, *dz;   /* (n,K) */
    void *dz_narrow; /* (n,K) dz in the model's dtype */
    float *loss;
    struct scratch own;
};

/* EVAL makes p over h. */
static struct head_space layout_space(const struct class_head_hp *hp, int64_t n,
                                      enum cz_dtype dtype, bool training, void *base)
{
    const size_t e = dtype_size(dtype);
    struct head_space s = {.own = {.base = base}};
    if (hp->rows != HEAD_EACH) s.x = scratch_take(&s.own, n, hp->C, e);
    if (hp->norm_weight_name) s.y = scratch_take(&s.own, n, hp->C, e);
    if (hp->pool_weight_name) s.h = scratch_take(&s.own, n, hp->C, e);
    s.p = training || !s.h ? scratch_take(&s.own, n, hp->C, e) : s.h;
    s.z = scratch_take(&s.own, n, hp->K, sizeof(float));
    s.loss = scratch_take(&s.own, 1, 1, sizeof(float));
    if (!training) return s;
    s.mean = scratch_take(&s.own, n, 1, sizeof(float));
    s.rstd = scratch_take(&s.own, n, 1, sizeof(float));
    s.dp = scratch_take(&s.own, n, hp->C, e);
    s.dz = scratch_take(&s.own, n, hp->K, sizeof(float));
    s.dz_narrow = dtype == DTYPE_F32 ? (void *)s.dz : scratch_take(&s.own, n, hp->K, e);
    return s;
}

/* fp32 logits whatever the weights: the loss is a difference of close numbers. */
static struct matmul_args logits_args(const struct class_head_hp *hp, int64_t n,
                                      enum cz_dtype dtype)
{
    return (struct matmul_args){
        .m = n, .n = hp->K, .k = hp->C, .dtype = dtype, .c_dtype = DTYPE_F32, .trans_b = true};
}

static cz_status head_size(const void *hp_, const struct batch_shape *s, struct layer_sizes *out)
{
    const struct class_head_hp *hp = hp_;
    const struct linear pool = pool_of(hp), class = class_of(hp);
    const struct norm norm = norm_of(hp);
    *out = (struct layer_sizes){0};
    TRY(batch_shape_check("classification head", s));
    if (hp->loss != HEAD_CROSS_ENTROPY && !host_reads(s->ops))
        return err_set(CZ_UNSUPPORTED, 0, "problem_type \"%s\" is not supported on a GPU so far",
                       hp->loss == HEAD_BINARY ? "multi_label_classification" : "regression");
    const int64_t n = hp->rows == HEAD_EACH ? s->B * s->T : batch_shape_n_rows(s);
    size_t op_nbytes = 0, nbytes = 0;
    if (hp->pool_weight_name) TRY(linear_workspace(s, &pool, n, &op_nbytes));
    TRY(linear_workspace(s, &class, n, &op_nbytes));
    if (hp->norm_weight_name) norm_workspace(s, &norm, n, &op_nbytes);
    const struct matmul_args logits = logits_args(hp, n, s->dtype);
    TRY(ops_matmul_workspace(s->ops, &logits, &nbytes));
    size_raise(&op_nbytes, nbytes);
    if (s->training) out->saved_nbytes = rows_nbytes(n, hp->C, dtype_size(s->dtype));
    const double c = (double)hp->C, k = (double)hp->K;
    out->flops_forward = 2.0 * (double)n * c * (hp->pool_weight_name ? c + k : k);
    size_t own_nbytes = layout_space(hp, n, s->dtype, s->training, NULL).own.used;
    return sizes_finish("classification head", own_nbytes, op_nbytes, out);
}

/* ---- the rows that are read ----------------------------------------------------------------- */

/* The last token of row b that is no padding, as transformers finds it by its id; the first when
 * all are. The mask hides padding, too: of a model that names no padding token, or another one. */
static int64_t last_token(const struct class_head_hp *hp, const struct batch *host, int64_t b)
{
    const int64_t first = batch_row_start(host, b);
    for (int64_t t = first + batch_row_length(host, b) - 1; t > first; t--)
        if (host->ids[t] != hp->padding_id && (!host->key_mask || host->key_mask[t])) return t;
    return first;
}

/* The element of the input where what the head reads of row b begins. */
static size_t row_at(const struct class_head_hp *hp, const struct batch *host, int64_t b)
{
    const int64_t t = hp->rows == HEAD_LAST ? last_token(hp, host, b) : batch_row_start(host, b);
    return (size_t)t * (size_t)hp->C;
}

static cz_status gather_rows(const struct class_head_hp *hp, const struct layer_args *a, void *x)
{
    const size_t C = (size_t)hp->C;
    const struct batch *host = batch_on_host(a->batch);
    for (int64_t b = 0; b < batch_n_rows(host); b++)
        TRY(elements_copy(a, C, elem_at(a, a->in, row_at(hp, host, b)),
                          elem_at(a, x, (size_t)b * C)));
    return CZ_OK;
}

/* What the norm reads. */
static const void *rows_of(const struct layer_args *a, const struct head_space *s)
{
    return s->x ? s->x : a->in;
}

/* What the first map reads. */
static const void *inputs_of(const struct layer_args *a, const struct head_space *s)
{
    return s->y ? s->y : rows_of(a, s);
}

/* ---- forward -------------------------------------------------------------------------------- */

/* *p: what the last map reads, from y. */
static cz_status make_features(const struct class_head_hp *hp, const struct layer_args *a,
                               const struct head_space *s, int64_t n, struct op_space space,
                               const void **p)
{
    const struct head_params w = params_of(hp, a);
    const struct linear pool = pool_of(hp);
    const size_t numel = (size_t)(n * hp->C);
    const void *y = inputs_of(a, s);
    const bool drops = dropout_acts(a, hp->dropout_p);
    *p = s->h || drops ? s->p : y;
    if (s->h && dropout_acts(a, hp->input_dropout_p)) {
        void *own = s->y ? s->y : s->x;
        TRY(dropout_apply(a, hp->input_dropout_p, SITE_INPUT, numel, y, own));
    }
    if (s->h)
        TRY(linear_act_forward(a, &pool, hp->act, n, y, w.pool_w.p, w.pool_b.p, s->h, s->p, space));
    return drops ? dropout_apply(a, hp->dropout_p, SITE_DROPOUT, numel, s->h ? s->p : y, s->p)
                 : CZ_OK;
}

/* From the input to z; *p as in make_features(). */
static cz_status make_logits(const struct class_head_hp *hp, const struct layer_args *a,
                             const struct head_space *s, struct op_space space, const void **p)
{
    const int64_t n = n_rows_of(hp, a->batch);
    const struct head_params w = params_of(hp, a);
    const struct norm norm = norm_of(hp);
    if (s->x) TRY(gather_rows(hp, a, s->x));
    if (s->y) {
        const struct norm_io io = {.x = rows_of(a, s), .y = s->y, .mean = s->mean, .rstd = s->rstd};
        TRY(norm_forward(a, &norm, n, &io, w.norm_w.p, w.norm_b.p));
    }
    TRY(make_features(hp, a, s, n, space, p));
    struct matmul_args logits = logits_args(hp, n, a->dtype);
    logits.a = *p;
    logits.b = w.class_w.p;
    logits.bias = w.class_b.p;
    logits.c = s->z;
    logits.workspace = space.p;
    logits.workspace_nbytes = space.nbytes;
    TRY(ops_matmul(a->ops, a->stream, &logits));
    return a->logits && s->z != a->logits ? logits_copy_out(a, s->z, 0, n, hp->K) : CZ_OK;
}

/* Rows without a label count nothing; the divisor is the batch's (docs/design.md, decision 14). */
static cz_status make_loss(const struct class_head_hp *hp, const struct layer_args *a,
                           const struct head_space *s)
{
    static const struct objective *const of_targets[] = {
        [HEAD_SQUARED_ERROR] = &objective_squared_error, [HEAD_BINARY] = &objective_binary};
    const struct objective *objective = a->objective ? a->objective : of_targets[hp->loss];
    float *loss = a->loss ? a->loss : s->loss;
    if (objective)
        return objective_ask(objective, a, n_rows_of(hp, a->batch), hp->K, s->z, s->dz, loss);
    const struct cross_entropy_args args = {.N = n_rows_of(hp, a->batch),
                                            .V = hp->K,
                                            .logits = s->z,
                                            .labels = a->batch->labels,
                                            .loss_weights = a->batch->loss_weights,
                                            .divisor = a->batch->loss_divisor,
                                            .loss = loss,
                                            .dloss = a->dloss,
                                            .dlogits = s->dz};
    return ops_cross_entropy(a->ops, a->stream, &args);
}

/* ---- gradients ------------------------------------------------------------------------------ */

/* d: from the gradient of p (in d) to that of y, through the pool. */
static cz_status through_pool(const struct class_head_hp *hp, const struct layer_args *a,
                              const struct head_space *s, int64_t n, void *dy,
                              struct op_space space)
{
    const struct head_params w = params_of(hp, a);
    const struct linear pool = pool_of(hp);
    const size_t numel = (size_t)(n * hp->C);
    TRY(activation_grad(a, hp->act, numel, s->h, s->dp, s->dp));
    TRY(linear_backward(a, &pool, n, inputs_of(a, s), s->dp, w.pool_w.p, w.pool_w.g, w.pool_b.g, dy,
                        space));
    if (!dropout_acts(a, hp->input_dropout_p)) return CZ_OK;
    return dropout_apply(a, hp->input_dropout_p, SITE_INPUT, numel, dy, dy);
}

/* saved (n,C) = gradient of the rows that were read, from dz. */
static cz_status differentiate(const struct class_head_hp *hp, const struct layer_args *a,
                               const struct head_space *s, const void *p, struct op_space space)
{
    const int64_t n = n_rows_of(hp, a->batch);
    const size_t numel = (size_t)(n * hp->C);
    const struct linear class = class_of(hp);
    const struct norm norm = norm_of(hp);
    const struct head_params w = params_of(hp, a);
    void *dp = s->h || s->y ? s->dp : a->saved, *dy = dp;
    const struct cast_scale_args cast = {.x_dtype = DTYPE_F32,
                                         .y_dtype = a->dtype,
                                         .numel = (size_t)(n * hp->K),
                                         .alpha = 1.0f,
                                         .x = s->dz,
                                         .y = s->dz_narrow};
    TRY(ops_cast_scale(a->ops, a->stream, &cast));
    TRY(linear_backward(a, &class, n, p, s->dz_narrow, w.class_w.p, w.class_w.g, w.class_b.g, dp,
                        space));
    if (dropout_acts(a, hp->dropout_p))
        TRY(dropout_apply(a, hp->dropout_p, SITE_DROPOUT, numel, dp, dp));
    if (s->h) {
        dy = s->y ? s->y : a->saved; /* y is used up */
        TRY(through_pool(hp, a, s, n, dy, space));
    }
    if (!s->y) return CZ_OK;
    const struct norm_grad_io grad = {
        .x = rows_of(a, s), .dy = dy, .mean = s->mean, .rstd = s->rstd, .dx = a->saved};
    return norm_backward(a, &norm, n, &grad, w.norm_w.p, w.norm_w.g, w.norm_b.g, space);
}

static bool has_labels(const struct class_head_hp *hp, const struct batch *batch)
{
    return hp->loss == HEAD_CROSS_ENTROPY ? batch->labels != NULL : batch->targets != NULL;
}

/* Gradients now: logits need not be kept until backward. */
static cz_status head_train(const struct class_head_hp *hp, const struct layer_args *a)
{
    const int64_t n = n_rows_of(hp, a->batch);
    struct head_space s = layout_space(hp, n, a->dtype, true, a->workspace);
    const struct op_space space = scratch_rest(&s.own, a);
    const void *p = NULL;
    if (!a->objective && !has_labels(hp, a->batch))
        return err_set(CZ_INVALID, 0, "the batch has no labels: training needs them");
    if (a->logits && host_reads(a->ops)) s.z = a->logits;
    TRY(make_logits(hp, a, &s, space, &p));
    TRY(make_loss(hp, a, &s));
    return differentiate(hp, a, &s, p, space);
}

/* Only requested values are computed. */
static cz_status head_eval(const struct class_head_hp *hp, const struct layer_args *a)
{
    const int64_t n = n_rows_of(hp, a->batch);
    struct head_space s = layout_space(hp, n, a->dtype, false, a->workspace);
    const struct op_space space = scratch_rest(&s.own, a);
    const bool wants_loss = a->loss && has_labels(hp, a->batch);
    const void *p = NULL;
    if (!a->logits && !wants_loss) return CZ_OK; /* nothing requested */
    if (a->logits && host_reads(a->ops)) s.z = a->logits;
    TRY(make_logits(hp, a, &s, space, &p));
    return wants_loss ? make_loss(hp, a, &s) : CZ_OK;
}

static cz_status head_forward(const void *hp, const struct layer_args *a)
{
    return a->mode == LAYER_EVAL ? head_eval(hp, a) : head_train(hp, a);
}

/* Only the positions that were read have a gradient. */
static cz_status head_backward(const void *hp_, const struct layer_args *a)
{
    const struct class_head_hp *hp = hp_;
    const size_t C = (size_t)hp->C, numel = (size_t)(a->batch->B * a->batch->T) * C;
    const struct batch *host = batch_on_host(a->batch);
    struct device *device = ops_device(a->ops);
    if (!a->din) return CZ_OK;
    if (hp->rows == HEAD_EACH) return elements_copy(a, numel, a->saved, a->din);
    TRY(device->ops->fill_zero(device, a->stream, a->din, numel * dtype_size(a->dtype)));
    for (int64_t b = 0; b < batch_n_rows(host); b++)
        TRY(elements_copy(a, C, elem_at(a, a->saved, (size_t)b * C),
                          elem_at(a, a->din, row_at(hp, host, b))));
    return CZ_OK;
}

static cz_status class_head_hidden(const void *hp_, const struct layer_args *a, bool *normed)
{
    const struct class_head_hp *hp = hp_;
    const struct head_params p = params_of(hp, a);
    const struct norm norm = norm_of(hp);
    const struct norm_io io = {.x = a->in, .y = a->out};
    *normed = hp->norm_weight_name != NULL;
    if (!*normed) return CZ_OK;
    return norm_forward(a, &norm, a->batch->B * a->batch->T, &io, p.norm_w.p, p.norm_b.p);
}

static const char *class_head_map_name(const void *hp)
{
    return ((const struct class_head_hp *)hp)->pool_weight_name;
}

const struct layer_class class_head_class = {
    .name = "class_head",
    .flags = LAYER_LOSS | LAYER_OBJECTIVE,
    .declare = head_declare,
    .size = head_size,
    .forward = head_forward,
    .backward = head_backward,
    .hidden = class_head_hidden,
    .map_name = class_head_map_name,
};
