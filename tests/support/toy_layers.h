/* Three small layer classes in plain loops, for tests of what is built on layers: rows (a look-up),
 * scale (y = keep·w∘x + v∘x²) and dot (a loss layer). fp32 only, C channels, V rows. */
#ifndef CZ_TESTS_TOY_LAYERS_H
#define CZ_TESTS_TOY_LAYERS_H

#include "model/model.h"
#include "tests/support/check_main.h"

#include <math.h>
#include <string.h>

enum { C = 4, V = 8 };

/* A scale layer's number gives the name of its own w; v is shared by all. */
struct scale_hp {
    int number;
};

/* Set by a test: the scale layer with this number leaves `toy_poison` in dw[2]. */
static int toy_poisoned = -1;
static float toy_poison;

/* Set by a test: the scale layer with this number gives no gradient of its w. */
static int toy_unused = -1;

static cz_status table_declare(const void *hp, struct param_list *out)
{
    (void)hp;
    const int64_t shape[] = {V, C};
    return param_list_add(out, "table", 2, shape, PARAM_INIT_NORMAL, 1);
}

static cz_status scale_declare(const void *hp, struct param_list *out)
{
    char name[16];
    const int64_t shape[] = {C};
    snprintf(name, sizeof name, "w%d", ((const struct scale_hp *)hp)->number);
    TRY(param_list_add(out, name, 1, shape, PARAM_INIT_ONE, 0));
    return param_list_add(out, "v", 1, shape, PARAM_INIT_NORMAL, 0.1f);
}

/* y = table[id] */
static cz_status rows_size(const void *hp, const struct batch_shape *s, struct layer_sizes *out)
{
    (void)hp;
    out->out_nbytes = (size_t)(s->B * s->T) * C * sizeof(float);
    out->flops_forward = 1;
    return CZ_OK;
}

static cz_status rows_forward(const void *hp, const struct layer_args *a)
{
    (void)hp;
    if (a->in) return err_set(CZ_CORRUPT, 0, "the first layer got an input");
    if (!a->out) return CZ_OK;
    for (int64_t n = 0; n < a->batch->B * a->batch->T; n++)
        memcpy((float *)a->out + n * C, (const float *)a->params[0] + a->batch->ids[n] * C,
               C * sizeof(float));
    return CZ_OK;
}

static cz_status rows_backward(const void *hp, const struct layer_args *a)
{
    (void)hp;
    float *d = a->dparams[0].dp;
    if (!d) return CZ_OK;
    if (!a->dparams[0].accumulate) memset(d, 0, V * C * sizeof *d);
    for (int64_t n = 0; n < a->batch->B * a->batch->T; n++)
        for (int c = 0; c < C; c++)
            d[a->batch->ids[n] * C + c] += ((const float *)a->dout)[n * C + c];
    return CZ_OK;
}

/* y = keep(n) · w ∘ x + v ∘ x²; saved: x² */
static cz_status scale_size(const void *hp, const struct batch_shape *s, struct layer_sizes *out)
{
    (void)hp;
    out->out_nbytes = (size_t)(s->B * s->T) * C * sizeof(float);
    out->saved_nbytes = s->training ? out->out_nbytes : 0;
    out->workspace_nbytes = out->out_nbytes;
    out->cache_nbytes = 64;
    out->flops_forward = 2;
    return CZ_OK;
}

static cz_status scale_forward(const void *hp, const struct layer_args *a)
{
    (void)hp;
    const float *x = a->in, *w = a->params[0], *v = a->params[1];
    float *y = a->out, *sq = a->saved ? a->saved : a->workspace;
    for (int64_t i = 0; i < a->batch->B * a->batch->T * C; i++) {
        float keep = a->mode == LAYER_EVAL || rng_uniform(&a->rng, (uint64_t)i) > 0.3f;
        sq[i] = x[i] * x[i];
        if (y) y[i] = keep * w[i % C] * x[i] + v[i % C] * sq[i];
    }
    return CZ_OK;
}

static cz_status scale_backward(const void *hp, const struct layer_args *a)
{
    const float *x = a->in, *w = a->params[0], *v = a->params[1], *dy = a->dout, *sq = a->saved;
    a->dparams[0].none = hp && ((const struct scale_hp *)hp)->number == toy_unused;
    for (int p = 0; p < 2; p++)
        if (a->dparams[p].dp && !a->dparams[p].accumulate && !a->dparams[p].none)
            memset(a->dparams[p].dp, 0, C * sizeof(float));
    float *dw = a->dparams[0].none ? NULL : a->dparams[0].dp, *dv = a->dparams[1].dp, *dx = a->din;
    for (int64_t i = 0; i < a->batch->B * a->batch->T * C; i++) {
        float keep = rng_uniform(&a->rng, (uint64_t)i) > 0.3f;
        if (dw) dw[i % C] += dy[i] * keep * x[i];
        if (dv) dv[i % C] += dy[i] * sq[i];
        dx[i] = dy[i] * (keep * w[i % C] + 2 * v[i % C] * x[i]);
    }
    if (dw && hp && ((const struct scale_hp *)hp)->number == toy_poisoned) dw[2] = toy_poison;
    return CZ_OK;
}

/* loss = Σ_n Σ_c table[label_n][c]·x[n][c] / N; saved: its gradient */
static cz_status dot_forward(const void *hp, const struct layer_args *a)
{
    (void)hp;
    const float *x = a->in, *table = a->params[0];
    int64_t n_rows = a->batch->B * a->batch->T;
    float *d = a->mode == LAYER_TRAIN ? a->dparams[0].dp : NULL, *dx = a->saved;
    if (d && !a->dparams[0].accumulate) memset(d, 0, V * C * sizeof *d);
    float sum = 0;
    for (int64_t n = 0; n < n_rows; n++)
        for (int c = 0; c < C; c++) {
            int64_t at = a->batch->labels[n] * C + c;
            sum += table[at] * x[n * C + c];
            if (d) d[at] += a->dloss * x[n * C + c] / (float)n_rows;
            if (a->mode == LAYER_TRAIN) dx[n * C + c] = a->dloss * table[at] / (float)n_rows;
        }
    if (a->loss) *a->loss = sum / (float)n_rows;
    return CZ_OK;
}

static cz_status dot_size(const void *hp, const struct batch_shape *s, struct layer_sizes *out)
{
    (void)hp;
    out->saved_nbytes = (size_t)(s->B * s->T) * C * sizeof(float);
    return CZ_OK;
}

static cz_status dot_backward(const void *hp, const struct layer_args *a)
{
    (void)hp;
    memcpy(a->din, a->saved, (size_t)(a->batch->B * a->batch->T) * C * sizeof(float));
    return CZ_OK;
}

CZ_UNUSED static const struct layer_class rows_class = {.name = "rows",
                                                        .declare = table_declare,
                                                        .size = rows_size,
                                                        .forward = rows_forward,
                                                        .backward = rows_backward};
CZ_UNUSED static const struct layer_class scale_class = {.name = "scale",
                                                         .declare = scale_declare,
                                                         .size = scale_size,
                                                         .forward = scale_forward,
                                                         .backward = scale_backward};
CZ_UNUSED static const struct layer_class dot_class = {.name = "dot",
                                                       .flags = LAYER_LOSS,
                                                       .declare = table_declare,
                                                       .size = dot_size,
                                                       .forward = dot_forward,
                                                       .backward = dot_backward};

/* rows → n scales → dot, the table tied between the ends. */
static inline struct cz_model *toy_model(int n_scales, int64_t t_max)
{
    struct layer_desc layers[16] = {{.cls = &rows_class}};
    struct scale_hp hps[16];
    for (int i = 0; i < n_scales; i++) {
        hps[i] = (struct scale_hp){i};
        layers[i + 1] = (struct layer_desc){&scale_class, &hps[i], sizeof hps[i]};
    }
    layers[n_scales + 1].cls = &dot_class;
    const struct model_desc desc = {.name = "toy",
                                    .layers = layers,
                                    .n_layers = (size_t)n_scales + 2,
                                    .vocab_size = V,
                                    .t_max = t_max};
    struct cz_model *m = model_create(&desc);
    ck_assert_msg(m != NULL, "%s", cz_last_error());
    return m;
}

#endif
