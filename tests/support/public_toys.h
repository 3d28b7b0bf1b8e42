/* The layers of tests/support/toy_layers.h once more, written against <czero/layer.h> alone: the
 * same arithmetic in the same order, so that a model of these trains to the same bits. */
#ifndef CZ_TESTS_PUBLIC_TOYS_H
#define CZ_TESTS_PUBLIC_TOYS_H

#include <czero/layer.h>

#include <stdio.h>
#include <string.h>

enum { PUB_C = 4, PUB_V = 8 };

struct pub_scale_hp {
    int number;
};

/* Set by a test: the scale layer with this number gives no gradient of its w. */
static int pub_unused = -1;

static int64_t pub_rows(const struct cz_layer_args *a)
{
    return a->batch->B * a->batch->T;
}

static cz_status pub_table_declare(const void *hp, struct cz_param_list *out)
{
    (void)hp;
    const int64_t shape[] = {PUB_V, PUB_C};
    return cz_param_add(out, "table", 2, shape, CZ_INIT_NORMAL, 1);
}

static cz_status pub_scale_declare(const void *hp, struct cz_param_list *out)
{
    char name[16];
    const int64_t shape[] = {PUB_C};
    snprintf(name, sizeof name, "w%d", ((const struct pub_scale_hp *)hp)->number);
    cz_status st = cz_param_add(out, name, 1, shape, CZ_INIT_ONE, 0);
    return st == CZ_OK ? cz_param_add(out, "v", 1, shape, CZ_INIT_NORMAL, 0.1f) : st;
}

/* y = table[id] */
static cz_status pub_rows_sizes(const void *hp, const struct cz_layer_shape *s,
                                struct cz_layer_sizes *out)
{
    (void)hp;
    out->out_nbytes = (size_t)(s->B * s->T) * PUB_C * sizeof(float);
    out->flops_forward = 1;
    return CZ_OK;
}

static cz_status pub_rows_forward(const void *hp, const struct cz_layer_args *a)
{
    (void)hp;
    if (!a->out) return CZ_OK;
    for (int64_t n = 0; n < pub_rows(a); n++)
        memcpy((float *)a->out + n * PUB_C,
               (const float *)a->params[0] + a->host_batch->ids[n] * PUB_C, PUB_C * sizeof(float));
    return CZ_OK;
}

static cz_status pub_rows_backward(const void *hp, const struct cz_layer_args *a)
{
    (void)hp;
    float *d = (float *)a->dparams[0].dp;
    if (!d) return CZ_OK;
    if (!a->dparams[0].accumulate) memset(d, 0, PUB_V * PUB_C * sizeof *d);
    for (int64_t n = 0; n < pub_rows(a); n++)
        for (int c = 0; c < PUB_C; c++)
            d[a->batch->ids[n] * PUB_C + c] += ((const float *)a->dout)[n * PUB_C + c];
    return CZ_OK;
}

/* y = keep(n) * w∘x + v∘x^2; saved: x^2 */
static cz_status pub_scale_sizes(const void *hp, const struct cz_layer_shape *s,
                                 struct cz_layer_sizes *out)
{
    (void)hp;
    out->out_nbytes = (size_t)(s->B * s->T) * PUB_C * sizeof(float);
    out->saved_nbytes = s->training ? out->out_nbytes : 0;
    out->workspace_nbytes = out->out_nbytes;
    out->cache_nbytes = 64;
    out->flops_forward = 2;
    return CZ_OK;
}

static cz_status pub_scale_forward(const void *hp, const struct cz_layer_args *a)
{
    (void)hp;
    const float *x = (const float *)a->in, *w = (const float *)a->params[0],
                *v = (const float *)a->params[1];
    float *y = (float *)a->out, *sq = (float *)(a->saved ? a->saved : a->workspace);
    for (int64_t i = 0; i < pub_rows(a) * PUB_C; i++) {
        float keep = !a->dropout || cz_rng_uniform(&a->rng, (uint64_t)i) > 0.3f;
        sq[i] = x[i] * x[i];
        if (y) y[i] = keep * w[i % PUB_C] * x[i] + v[i % PUB_C] * sq[i];
    }
    return CZ_OK;
}

static cz_status pub_scale_backward(const void *hp, const struct cz_layer_args *a)
{
    const float *x = (const float *)a->in, *w = (const float *)a->params[0],
                *v = (const float *)a->params[1], *dy = (const float *)a->dout,
                *sq = (const float *)a->saved;
    a->dparams[0].none = ((const struct pub_scale_hp *)hp)->number == pub_unused;
    for (int p = 0; p < 2; p++)
        if (a->dparams[p].dp && !a->dparams[p].accumulate && !a->dparams[p].none)
            memset(a->dparams[p].dp, 0, PUB_C * sizeof(float));
    float *dw = a->dparams[0].none ? NULL : (float *)a->dparams[0].dp;
    float *dv = (float *)a->dparams[1].dp, *dx = (float *)a->din;
    for (int64_t i = 0; i < pub_rows(a) * PUB_C; i++) {
        float keep = cz_rng_uniform(&a->rng, (uint64_t)i) > 0.3f;
        if (dw) dw[i % PUB_C] += dy[i] * keep * x[i];
        if (dv) dv[i % PUB_C] += dy[i] * sq[i];
        dx[i] = dy[i] * (keep * w[i % PUB_C] + 2 * v[i % PUB_C] * x[i]);
    }
    return CZ_OK;
}

/* loss = sum over n and c of table[label[n]][c]*x[n][c], divided by N; saved: its gradient */
static cz_status pub_dot_forward(const void *hp, const struct cz_layer_args *a)
{
    (void)hp;
    const float *x = (const float *)a->in, *table = (const float *)a->params[0];
    const int64_t n_rows = pub_rows(a);
    const bool trains = a->mode == CZ_LAYER_TRAIN;
    float *d = trains ? (float *)a->dparams[0].dp : NULL, *dx = (float *)a->saved;
    if (d && !a->dparams[0].accumulate) memset(d, 0, PUB_V * PUB_C * sizeof *d);
    float sum = 0;
    for (int64_t n = 0; n < n_rows; n++)
        for (int c = 0; c < PUB_C; c++) {
            int64_t at = a->batch->labels[n] * PUB_C + c;
            sum += table[at] * x[n * PUB_C + c];
            if (d) d[at] += a->dloss * x[n * PUB_C + c] / (float)n_rows;
            if (trains) dx[n * PUB_C + c] = a->dloss * table[at] / (float)n_rows;
        }
    if (a->loss) *a->loss = sum / (float)n_rows;
    return CZ_OK;
}

static cz_status pub_dot_sizes(const void *hp, const struct cz_layer_shape *s,
                               struct cz_layer_sizes *out)
{
    (void)hp;
    out->saved_nbytes = (size_t)(s->B * s->T) * PUB_C * sizeof(float);
    return CZ_OK;
}

static cz_status pub_dot_backward(const void *hp, const struct cz_layer_args *a)
{
    (void)hp;
    memcpy(a->din, a->saved, (size_t)pub_rows(a) * PUB_C * sizeof(float));
    return CZ_OK;
}

/* Not static: a class need not outlive cz_model_create(). */
static inline struct cz_layer_class pub_rows_class(void)
{
    const struct cz_layer_class c = {.size = sizeof c,
                                     .name = "rows",
                                     .declare = pub_table_declare,
                                     .sizes = pub_rows_sizes,
                                     .forward = pub_rows_forward,
                                     .backward = pub_rows_backward};
    return c;
}

static inline struct cz_layer_class pub_scale_class(void)
{
    const struct cz_layer_class c = {.size = sizeof c,
                                     .name = "scale",
                                     .declare = pub_scale_declare,
                                     .sizes = pub_scale_sizes,
                                     .forward = pub_scale_forward,
                                     .backward = pub_scale_backward};
    return c;
}

static inline struct cz_layer_class pub_dot_class(void)
{
    const struct cz_layer_class c = {.size = sizeof c,
                                     .name = "dot",
                                     .flags = CZ_LAYER_LOSS,
                                     .declare = pub_table_declare,
                                     .sizes = pub_dot_sizes,
                                     .forward = pub_dot_forward,
                                     .backward = pub_dot_backward};
    return c;
}

/* rows → n scales → dot, the table tied between the ends. NULL on error. */
static inline struct cz_model *pub_model(int n_scales, int64_t t_max)
{
    const struct cz_layer_class rows = pub_rows_class(), scale = pub_scale_class(),
                                dot = pub_dot_class();
    struct cz_layer_desc layers[16] = {{.cls = &rows}};
    struct pub_scale_hp hps[16];
    for (int i = 0; i < n_scales; i++) {
        hps[i].number = i;
        layers[i + 1] = (struct cz_layer_desc){&scale, &hps[i], sizeof hps[i]};
    }
    layers[n_scales + 1].cls = &dot;
    const struct cz_model_desc desc = {.size = sizeof desc,
                                       .name = "toy",
                                       .layers = layers,
                                       .n_layers = (size_t)n_scales + 2,
                                       .vocab_size = PUB_V,
                                       .t_max = t_max};
    return cz_model_create(&desc);
}

#endif
