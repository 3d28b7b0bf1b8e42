/* The masked-language-model head of an encoder.
 *   h = x·Wᵀ + b   s = act(h)   y = norm(s)   z = y·tokenᵀ + c      h, s, y are E wide
 *   loss = mean cross-entropy of z over the positions that have a label
 * Labels are few (15 % of the tokens in BERT's recipe), and rows without one do not reach the loss:
 * they are left out before the first product. What is left is rounded up to a sixteenth of the
 * batch with rows of zeros that have no label, so that products come in few shapes. For logits all
 * rows take part, and on a device for a batch that does not come with a list of the labelled ones.
 *
 * A TRAIN forward differentiates at once (ops ce_head), as the language-model head does; `saved` is
 * the gradient of the rows that took part, which backward puts into zeros. */
#include "model/bert/encoder_impl.h"
#include "model/objective.h"
#include "ops/cross_entropy/cross_entropy.h"
#include "ops/embedding/embedding.h"

#include <string.h>

/* Where each parameter stands. */
struct places {
    size_t dense_w, dense_b, norm_w, norm_b, w, bias;
};

/* BERT declares its bias first, DistilBERT last, ELECTRA the norm in front of the map; files depend
 * on it only by name. ModernBERT may have any of the biases or none. */
static struct places places_of(const struct mlm_head_hp *hp)
{
    const size_t first = hp->bias_first ? 1 : 0;
    const size_t n_dense = hp->dense_bias_name ? 2 : 1, n_norm = hp->norm_bias_name ? 2 : 1;
    const size_t dense = first + (hp->norm_first ? n_norm : 0);
    const size_t norm = first + (hp->norm_first ? 0 : n_dense);
    const size_t decoder = first + n_dense + n_norm;
    return (struct places){.dense_w = dense,
                           .dense_b = dense + 1,
                           .norm_w = norm,
                           .norm_b = norm + 1,
                           .w = decoder,
                           .bias = hp->bias_first ? 0 : decoder + 1};
}

/* Of a bias, NULL where the head has none under `name`. */
static const void *bias_at(const struct layer_args *a, const char *name, size_t place)
{
    return name ? a->params[place] : NULL;
}

static const struct param_grad *bias_grad_at(const struct layer_args *a, const char *name,
                                             size_t place)
{
    return name ? &a->dparams[place] : NULL;
}

static struct linear dense_of(const struct mlm_head_hp *hp)
{
    return (struct linear){.n_in = hp->C, .n_out = hp->E};
}

static struct norm norm_of(const struct mlm_head_hp *hp)
{
    return (struct norm){.C = hp->E, .eps = hp->eps};
}

/* An untied decoder of BERT has two names for one bias. */
static cz_status declare_bias(const struct mlm_head_hp *hp, struct param_list *out)
{
    if (!hp->bias_name) return CZ_OK;
    TRY(param_list_add(out, hp->bias_name, 1, &hp->V, PARAM_INIT_ZERO, 0.0f));
    const size_t idx = out->idx[out->n - 1];
    if (!hp->bias_alias) return CZ_OK;
    return hp->tied_alias ? param_table_alias(out->table, hp->bias_alias, idx)
                          : param_table_alias_stored(out->table, hp->bias_alias, idx);
}

static cz_status declare_norm(const struct mlm_head_hp *hp, struct param_list *out)
{
    TRY(param_list_add(out, hp->norm_weight_name, 1, &hp->E, PARAM_INIT_ONE, 0.0f));
    if (!hp->norm_bias_name) return CZ_OK;
    return param_list_add(out, hp->norm_bias_name, 1, &hp->E, PARAM_INIT_ZERO, 0.0f);
}

static cz_status head_declare(const void *hp_, struct param_list *out)
{
    const struct mlm_head_hp *hp = hp_;
    const int64_t dense[] = {hp->E, hp->C}, decoder[] = {hp->V, hp->E};
    const float std = hp->init_std;
    if (hp->bias_first) TRY(declare_bias(hp, out));
    if (hp->norm_first) TRY(declare_norm(hp, out));
    TRY(param_list_add(out, hp->dense_weight_name, 2, dense, PARAM_INIT_NORMAL, std));
    if (hp->dense_bias_name)
        TRY(param_list_add(out, hp->dense_bias_name, 1, dense, PARAM_INIT_ZERO, 0.0f));
    if (!hp->norm_first) TRY(declare_norm(hp, out));
    TRY(param_list_add(out, hp->weight_name, 2, decoder, PARAM_INIT_NORMAL, std));
    if (hp->tied_alias) TRY(param_table_alias(out->table, hp->tied_alias, out->idx[out->n - 1]));
    return hp->bias_first ? CZ_OK : declare_bias(hp, out);
}

/* ---- memory --------------------------------------------------------------------------------- */

/* For up to N rows that take part. y is in `saved` (TRAIN) or in s. */
struct head_space {
    void *x;     /* (N,C) the rows of `in` that take part */
    void *h, *s; /* (N,E) before and behind the activation */
    void *dy;    /* (N,E) */
    float *mean, *rstd;
    int32_t *labels; /* (N) */
    float *weights;  /* (N) */
    float *loss;
    float *logits; /* EVAL: (n_logits_rows,V), on their way out */
    int64_t n_logits_rows;
    struct scratch own;
};

/* For the largest possible number of rows. */
static struct head_space layout_space(const struct mlm_head_hp *hp, const struct ops *ops,
                                      int64_t N, enum cz_dtype dtype, bool training, void *base)
{
    const size_t e = dtype_size(dtype);
    struct head_space s = {.own = {.base = base}};
    s.x = scratch_take(&s.own, N, hp->C, e);
    s.h = scratch_take(&s.own, N, hp->E, e);
    s.labels = scratch_take(&s.own, N, 1, sizeof(int32_t));
    s.weights = scratch_take(&s.own, N, 1, sizeof(float));
    s.loss = scratch_take(&s.own, 1, 1, sizeof(float));
    s.s = s.h;
    if (!training) {
        s.n_logits_rows = logits_block_rows(ops, N, hp->V);
        s.logits = scratch_take(&s.own, s.n_logits_rows, hp->V, sizeof(float));
        return s;
    }
    s.s = scratch_take(&s.own, N, hp->E, e);
    s.dy = scratch_take(&s.own, N, hp->E, e);
    s.mean = scratch_take(&s.own, N, 1, sizeof(float));
    s.rstd = scratch_take(&s.own, N, 1, sizeof(float));
    return s;
}

static struct ce_head_args ce_args(const struct mlm_head_hp *hp, int64_t N, enum cz_dtype dtype,
                                   enum cz_dtype grad_dtype)
{
    return (struct ce_head_args){
        .N = N, .C = hp->E, .V = hp->V, .dtype = dtype, .grad_dtype = grad_dtype};
}

/* ops_ce_head_workspace() looks at which results are wanted, not at where they go. */
static cz_status ce_workspace(const struct mlm_head_hp *hp, const struct batch_shape *s, int64_t N,
                              bool gradients, bool logits, size_t *nbytes_max)
{
    static int32_t label;
    static float number;
    size_t nbytes = 0;
    struct ce_head_args args = ce_args(hp, N, s->dtype, s->grad_dtype);
    if (hp->bias_name) args.bias = &number;
    args.labels = &label;
    args.loss = &number;
    if (logits) args.logits = &number;
    if (gradients) args.dx = args.dw = &number;
    if (gradients && hp->bias_name) args.dbias = &number;
    TRY(ops_ce_head_workspace(s->ops, &args, &nbytes));
    size_raise(nbytes_max, nbytes);
    return CZ_OK;
}

/* Of N rows, block by block where the device takes blocks: a workspace serves fewer rows, too. */
static cz_status logits_workspace(const struct mlm_head_hp *hp, const struct batch_shape *s,
                                  int64_t N, size_t *nbytes_max)
{
    const int64_t block = logits_block_rows(s->ops, N, hp->V);
    return ce_workspace(hp, s, block ? block : N, false, true, nbytes_max);
}

/* Evaluation with logits takes all rows. */
static cz_status head_size(const void *hp_, const struct batch_shape *s, struct layer_sizes *out)
{
    const struct mlm_head_hp *hp = hp_;
    const struct linear dense = dense_of(hp);
    const struct norm norm = norm_of(hp);
    *out = (struct layer_sizes){0};
    TRY(batch_shape_check("masked-language-model head", s));
    const int64_t N = s->B * s->T;
    size_t op_nbytes = 0;
    TRY(linear_workspace(s, &dense, N, &op_nbytes));
    norm_workspace(s, &norm, N, &op_nbytes);
    TRY(ce_workspace(hp, s, N, false, false, &op_nbytes));
    TRY(logits_workspace(hp, s, N, &op_nbytes));
    if (s->training) {
        const int64_t width = hp->C > hp->E ? hp->C : hp->E; /* dx, in the place of y */
        out->saved_nbytes = rows_nbytes(N, width, dtype_size(s->dtype));
        TRY(ce_workspace(hp, s, N, true, false, &op_nbytes));
        if (host_reads(s->ops)) out->put_off_nbytes = rows_nbytes(N, hp->V, dtype_size(s->dtype));
    }
    const double n = (double)N, c = (double)hp->C, w = (double)hp->E, v = (double)hp->V;
    out->flops_forward = 2.0 * n * w * (c + v); /* with a label everywhere */
    size_t own_nbytes = layout_space(hp, s->ops, N, s->dtype, false, NULL).own.used;
    if (s->training)
        size_raise(&own_nbytes, layout_space(hp, s->ops, N, s->dtype, true, NULL).own.used);
    return sizes_finish("masked-language-model head", own_nbytes, op_nbytes, out);
}

/* ---- the rows that take part ---------------------------------------------------------------- */

/* x (n,C) with labels and weights (n); `all`: they are those of the batch. */
struct rows {
    bool all;
    int64_t n;
    const void *x;
    const int32_t *labels;
    const float *weights;
};

/* On the host, where labels can be read. */
static int64_t count_labelled(const struct batch *batch, int64_t N)
{
    int64_t n = 0;
    for (int64_t i = 0; i < N; i++) n += batch->labels[i] != CZ_IGNORE_LABEL;
    return n;
}

/* n rounded up to a sixteenth of N, at most N. */
static int64_t round_rows(int64_t n, int64_t N)
{
    const int64_t unit = (N + 15) / 16, blocks = n > 0 ? (n + unit - 1) / unit : 1;
    return blocks * unit < N ? blocks * unit : N;
}

/* Rows that take part, labelled ones in front; all where log-probabilities are wanted, which are a
 * position's. Backward asks again and finds the same. */
static int64_t n_rows_of(const struct layer_args *a)
{
    const int64_t N = a->batch->B * a->batch->T;
    if (a->log_probs) return N;
    if (host_reads(a->ops)) return round_rows(count_labelled(a->batch, N), N);
    return a->batch->labelled ? round_rows(a->batch->labelled->n, N) : N;
}

static struct rows all_rows(const struct layer_args *a)
{
    const struct batch *batch = a->batch;
    return (struct rows){true, batch->B * batch->T, a->in, batch->labels, batch->loss_weights};
}

/* y (n,C) = rows idx of x (N,C). */
static cz_status gather_rows(const struct mlm_head_hp *hp, const struct layer_args *a, int64_t N,
                             const void *x, const int32_t *idx, int64_t n, void *y)
{
    const struct embedding_args args = {
        .N = n, .C = hp->C, .V = N, .dtype = a->dtype, .ids = idx, .table = x, .y = y};
    return n > 0 ? ops_embedding_forward(a->ops, a->stream, &args) : CZ_OK;
}

static cz_status zero_rows(const struct mlm_head_hp *hp, const struct layer_args *a, void *x,
                           int64_t first, int64_t n)
{
    struct device *device = ops_device(a->ops);
    return device->ops->fill_zero(device, a->stream, elem_at(a, x, (size_t)(first * hp->C)),
                                  (size_t)(n * hp->C) * dtype_size(a->dtype));
}

/* By the list that came with the batch. */
static cz_status listed_rows(const struct mlm_head_hp *hp, const struct layer_args *a,
                             const struct head_space *s, struct rows *out)
{
    const struct batch_labelled *l = a->batch->labelled;
    const int64_t N = a->batch->B * a->batch->T, n = n_rows_of(a);
    TRY(gather_rows(hp, a, N, a->in, l->rows, l->n, s->x));
    TRY(zero_rows(hp, a, s->x, l->n, n - l->n));
    *out = (struct rows){false, n, s->x, l->labels, l->loss_weights};
    return CZ_OK;
}

/* Copies them, and pads with zeros up to the rounded number. */
static struct rows packed_rows(const struct mlm_head_hp *hp, const struct layer_args *a,
                               const struct head_space *s)
{
    const struct batch *batch = a->batch;
    const int64_t N = batch->B * batch->T, n = n_rows_of(a);
    const size_t row_nbytes = (size_t)hp->C * dtype_size(a->dtype);
    const unsigned char *in = a->in;
    unsigned char *x = s->x;
    int64_t at = 0;
    for (int64_t i = 0; i < N; i++) {
        if (batch->labels[i] == CZ_IGNORE_LABEL) continue;
        memcpy(x + (size_t)at * row_nbytes, in + (size_t)i * row_nbytes, row_nbytes);
        s->labels[at] = batch->labels[i];
        if (batch->loss_weights) s->weights[at] = batch->loss_weights[i];
        at++;
    }
    memset(x + (size_t)at * row_nbytes, 0, (size_t)(n - at) * row_nbytes);
    for (; at < n; at++) {
        s->labels[at] = CZ_IGNORE_LABEL;
        s->weights[at] = 0.0f;
    }
    return (struct rows){false, n, x, s->labels, batch->loss_weights ? s->weights : NULL};
}

/* All rows where nothing can be left out. */
static cz_status labelled_rows(const struct mlm_head_hp *hp, const struct layer_args *a,
                               const struct head_space *s, struct rows *out)
{
    *out = all_rows(a);
    if (n_rows_of(a) == out->n) return CZ_OK;
    if (!host_reads(a->ops)) return listed_rows(hp, a, s, out);
    *out = packed_rows(hp, a, s);
    return CZ_OK;
}

/* ---- forward -------------------------------------------------------------------------------- */

/* h and s are kept for backward, which runs in the same call. */
static cz_status make_y(const struct mlm_head_hp *hp, const struct layer_args *a,
                        const struct head_space *s, const struct rows *r, void *y,
                        struct op_space space)
{
    const struct places at = places_of(hp);
    const struct linear dense = dense_of(hp);
    const struct norm norm = norm_of(hp);
    const void *const *w = a->params;
    TRY(linear_act_forward(a, &dense, hp->act, r->n, r->x, w[at.dense_w],
                           bias_at(a, hp->dense_bias_name, at.dense_b), s->h, s->s, space));
    const struct norm_io io = {.x = s->s, .y = y, .mean = s->mean, .rstd = s->rstd};
    return norm_forward(a, &norm, r->n, &io, w[at.norm_w],
                        bias_at(a, hp->norm_bias_name, at.norm_b));
}

/* A bias per token of the vocabulary. */
static struct ce_head_args ce_over(const struct mlm_head_hp *hp, const struct layer_args *a,
                                   const struct head_space *s, const struct rows *r, const void *y,
                                   struct op_space space)
{
    const struct places at = places_of(hp);
    struct ce_head_args ce = ce_args(hp, r->n, a->dtype, a->grad_dtype);
    ce.x = y;
    ce.w = a->params[at.w];
    ce.bias = bias_at(a, hp->bias_name, at.bias);
    ce.labels = r->labels;
    ce.loss_weights = r->weights;
    ce.divisor = a->batch->loss_divisor;
    ce.loss = a->loss ? a->loss : s->loss;
    ce.workspace = space.p;
    ce.workspace_nbytes = space.nbytes;
    return ce;
}

/* Rows that take part are gathered, differentiated at once, and their gradients kept for
 * backward. */
static cz_status head_train(const struct mlm_head_hp *hp, const struct layer_args *a)
{
    const struct places at = places_of(hp);
    const struct linear dense = dense_of(hp);
    const struct norm norm = norm_of(hp);
    const struct param_grad *g = a->dparams;
    const struct head_space s =
        layout_space(hp, a->ops, a->batch->B * a->batch->T, a->dtype, true, a->workspace);
    const struct op_space space = scratch_rest(&s.own, a);
    if (!a->batch->labels)
        return err_set(CZ_INVALID, 0, "the batch has no labels: training needs them");
    struct rows r;
    TRY(labelled_rows(hp, a, &s, &r));
    void *y = a->saved; /* until the last product overwrites it with dx */
    TRY(make_y(hp, a, &s, &r, y, space));
    struct ce_head_args ce = ce_over(hp, a, &s, &r, y, space);
    ce.dloss = a->dloss;
    ce.dx = s.dy;
    ce.dw = g[at.w].dp;
    ce.dw_accumulate = g[at.w].accumulate;
    if (hp->bias_name) {
        ce.dbias = g[at.bias].dp;
        ce.dbias_accumulate = g[at.bias].accumulate;
    }
    ce.dz = a->put_off;
    ce.dz_given = a->put_off && a->no_din;
    TRY(objective_ce_head(a, &ce));
    if (ce.dz_given) return CZ_OK;
    const struct norm_grad_io io = {
        .x = s.s, .dy = s.dy, .mean = s.mean, .rstd = s.rstd, .dx = s.dy};
    TRY(norm_backward(a, &norm, r.n, &io, a->params[at.norm_w], &g[at.norm_w],
                      bias_grad_at(a, hp->norm_bias_name, at.norm_b), space));
    TRY(activation_grad(a, hp->act, (size_t)(r.n * hp->E), s.h, s.dy, s.dy));
    return linear_backward(a, &dense, r.n, r.x, s.dy, a->params[at.dense_w], &g[at.dense_w],
                           bias_grad_at(a, hp->dense_bias_name, at.dense_b), a->saved, space);
}

/* Logits of all rows of y, a block at a time where they have to be copied out. */
static cz_status logits_out(const struct mlm_head_hp *hp, const struct layer_args *a,
                            const struct head_space *s, struct op_space space)
{
    const int64_t N = a->batch->B * a->batch->T;
    for (int64_t first = 0, n; first < N; first += n) {
        n = N - first < s->n_logits_rows ? N - first : s->n_logits_rows;
        const struct rows r = {.n = n};
        struct ce_head_args ce =
            ce_over(hp, a, s, &r, elem_at(a, s->s, (size_t)(first * hp->E)), space);
        ce.loss = s->loss;
        ce.logits = s->logits;
        TRY(ops_ce_head(a->ops, a->stream, &ce));
        TRY(logits_copy_out(a, s->logits, first, n, hp->V));
    }
    return CZ_OK;
}

static cz_status head_eval(const struct mlm_head_hp *hp, const struct layer_args *a)
{
    const struct head_space s =
        layout_space(hp, a->ops, a->batch->B * a->batch->T, a->dtype, false, a->workspace);
    const struct op_space space = scratch_rest(&s.own, a);
    const bool wants_loss = a->loss && a->batch->labels, direct = s.n_logits_rows == 0;
    if (!a->logits && !wants_loss) return CZ_OK; /* nothing requested */
    struct rows r = all_rows(a);
    if (!a->logits) TRY(labelled_rows(hp, a, &s, &r));
    TRY(make_y(hp, a, &s, &r, s.s, space));
    if (a->logits && !direct) TRY(logits_out(hp, a, &s, space));
    if (!wants_loss && !direct) return CZ_OK;
    struct ce_head_args ce = ce_over(hp, a, &s, &r, s.s, space);
    if (direct) ce.logits = a->logits;
    if (!wants_loss) ce.labels = NULL;
    return objective_ce_head(a, &ce);
}

static cz_status head_forward(const void *hp, const struct layer_args *a)
{
    return a->mode == LAYER_EVAL ? head_eval(hp, a) : head_train(hp, a);
}

/* ---- backward ------------------------------------------------------------------------------- */

/* The last of the N rows is free where some have no label: the zeros that those get. */
static cz_status scatter_listed(const struct mlm_head_hp *hp, const struct layer_args *a)
{
    const int64_t N = a->batch->B * a->batch->T;
    TRY(zero_rows(hp, a, a->saved, N - 1, 1));
    return gather_rows(hp, a, N, a->saved, a->batch->labelled->places, N, a->din);
}

/* Rows that did not take part get zeros. */
static cz_status head_backward(const void *hp_, const struct layer_args *a)
{
    const struct mlm_head_hp *hp = hp_;
    const int64_t N = a->batch->B * a->batch->T;
    const size_t row_nbytes = (size_t)hp->C * dtype_size(a->dtype);
    const unsigned char *dx = a->saved;
    unsigned char *din = a->din;
    if (!din) return CZ_OK;
    if (n_rows_of(a) == N) return elements_copy(a, (size_t)(N * hp->C), dx, din);
    if (!host_reads(a->ops)) return scatter_listed(hp, a);
    for (int64_t i = 0; i < N; i++, din += row_nbytes) {
        if (a->batch->labels[i] == CZ_IGNORE_LABEL) {
            memset(din, 0, row_nbytes);
            continue;
        }
        memcpy(din, dx, row_nbytes);
        dx += row_nbytes;
    }
    return CZ_OK;
}

static const char *mlm_head_map_name(const void *hp)
{
    return ((const struct mlm_head_hp *)hp)->dense_weight_name;
}

const struct layer_class mlm_head_class = {
    .name = "mlm_head",
    .flags = LAYER_LOSS | LAYER_OBJECTIVE,
    .declare = head_declare,
    .size = head_size,
    .forward = head_forward,
    .backward = head_backward,
    .map_name = mlm_head_map_name,
};
