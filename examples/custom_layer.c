/* A layer of your own: a gated MLP that looks one token back, stacked between czero's embedding and
 * language-model head, trained on a text file.
 *
 *   custom_layer TEXT [STEPS [DEVICE]]
 *
 * The layer, for each sequence x (T,C):
 *   g_t = x_t·Wnow + x_(t−1)·Wbefore       (T,2F): a gate and a value, F wide each
 *   out = x + (silu(gate) ∘ value)·Wdown
 * Three of them see three tokens back. Everything runs through `ops`, so the layer works in fp32,
 * bf16 and fp16, on the CPU and on a GPU, whose memory it never looks into; memory belongs to the
 * engine, which asks size() how much there should be.
 *
 * Legend: B batch, T positions, N = B·T, C width, F inner width. */
#include "model/model.h"
#include "model/parts/parts.h"
#include "ops/activation/activation.h"
#include "ops/elementwise/elementwise.h"
#include "ops/matmul/matmul.h"
#include "ops/ops.h"

#include <czero/czero.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the layer --------------------------------------------------------------------------------
 */

struct mixer_hp { /* plain data: the model keeps a copy */
    int idx;
    int64_t C, F;
};

enum { W_NOW = 0, W_BEFORE, W_DOWN }; /* in the order of declaration */

static cz_status mixer_declare(const void *hp_, struct param_list *out)
{
    const struct mixer_hp *hp = hp_;
    const int64_t in[] = {hp->C, 2 * hp->F}, down[] = {hp->F, hp->C};
    const char *const names[] = {"now", "before", "down"};
    for (int i = 0; i < 3; i++) {
        char name[64];
        snprintf(name, sizeof name, "mixer.%d.%s.weight", hp->idx, names[i]);
        TRY(param_list_add(out, name, 2, i == W_DOWN ? down : in, PARAM_INIT_NORMAL, 0.05f));
    }
    return CZ_OK;
}

/* The matrix products of one layer. x·w for `rows` rows; the transposed ones are its gradients. */
static struct matmul_args product(const struct layer_args *a, int64_t rows, int64_t in, int64_t out)
{
    return (struct matmul_args){.m = rows,
                                .n = out,
                                .k = in,
                                .dtype = a->dtype,
                                .c_dtype = a->dtype,
                                .workspace = a->workspace,
                                .workspace_nbytes = a->workspace_nbytes};
}

static struct matmul_args product_dx(const struct layer_args *a, int64_t rows, int64_t in,
                                     int64_t out)
{
    struct matmul_args p = product(a, rows, out, in);
    p.trans_b = true;
    return p;
}

static struct matmul_args product_dw(const struct layer_args *a, int64_t rows, int64_t in,
                                     int64_t out)
{
    struct matmul_args p = product(a, in, rows, out);
    p.trans_a = true;
    p.c_dtype = a->grad_dtype;
    return p;
}

static cz_status multiply(const struct layer_args *a, struct matmul_args p, const void *x,
                          const void *w, void *y, bool accumulate)
{
    p.a = x;
    p.b = w;
    p.c = y;
    p.accumulate = accumulate;
    return ops_matmul(a->ops, a->stream, &p);
}

/* Workspace: `inner` (N,F) and `wide` (N,2F), then what a product wants. */
struct mixer_space {
    unsigned char *inner, *wide;
    struct layer_args rest; /* the layer's arguments with the workspace behind both */
};

static size_t align64(size_t nbytes)
{
    return (nbytes + 63) / 64 * 64;
}

static struct mixer_space split_workspace(const struct mixer_hp *hp, const struct layer_args *a)
{
    const size_t n = (size_t)(a->batch->B * a->batch->T * hp->F) * dtype_size(a->dtype);
    struct mixer_space s = {.inner = a->workspace, .rest = *a};
    s.wide = s.inner + align64(n);
    s.rest.workspace = s.wide + align64(2 * n);
    s.rest.workspace_nbytes = a->workspace_nbytes - align64(n) - align64(2 * n);
    return s;
}

static cz_status mixer_size(const void *hp_, const struct batch_shape *s, struct layer_sizes *out)
{
    const struct mixer_hp *hp = hp_;
    const int64_t N = s->B * s->T, C = hp->C, F = hp->F;
    const size_t e = dtype_size(s->dtype), inner = (size_t)(N * F) * e;
    const struct layer_args a = {.dtype = s->dtype, .grad_dtype = s->grad_dtype};
    const struct matmul_args products[] = {
        product(&a, N, C, 2 * F),    product(&a, s->T, C, 2 * F),    product(&a, N, F, C),
        product_dx(&a, N, C, 2 * F), product_dx(&a, s->T, C, 2 * F), product_dx(&a, N, F, C),
        product_dw(&a, N, C, 2 * F), product_dw(&a, s->T, C, 2 * F), product_dw(&a, N, F, C),
    };
    size_t product_nbytes = 0;
    for (size_t i = 0; i < sizeof products / sizeof products[0]; i++)
        for (int accumulate = 0; accumulate < 2; accumulate++) {
            struct matmul_args p = products[i];
            size_t nbytes = 0;
            p.accumulate = accumulate;
            TRY(ops_matmul_workspace(s->ops, &p, &nbytes));
            if (nbytes > product_nbytes) product_nbytes = nbytes;
        }
    *out = (struct layer_sizes){
        .out_nbytes = (size_t)(N * C) * e,
        .saved_nbytes = s->training ? 2 * inner : 0, /* g */
        .workspace_nbytes = align64(inner) + align64(2 * inner) + product_nbytes,
        .flops_forward = 2.0 * (double)N * (double)F * (4.0 * (double)C + (double)C),
    };
    return CZ_OK;
}

/* The address of row `row` of an array `width` elements wide. */
static void *row_at(const struct layer_args *a, const void *base, int64_t row, int64_t width)
{
    return (unsigned char *)base + (size_t)(row * width) * dtype_size(a->dtype);
}

static struct swiglu_args gate_of(const struct mixer_hp *hp, const struct layer_args *a,
                                  const void *g)
{
    return (struct swiglu_args){.dtype = a->dtype,
                                .N = a->batch->B * a->batch->T,
                                .C = hp->F,
                                .stride = 2 * hp->F,
                                .gate = g,
                                .up = row_at(a, g, 1, hp->F)};
}

static cz_status mixer_forward(const void *hp_, const struct layer_args *a)
{
    const struct mixer_hp *hp = hp_;
    const int64_t B = a->batch->B, T = a->batch->T, N = B * T, C = hp->C, F = hp->F;
    const struct mixer_space s = split_workspace(hp, a);
    void *g = a->saved ? a->saved : s.wide; /* nothing is kept in evaluation */

    TRY(multiply(&s.rest, product(&s.rest, N, C, 2 * F), a->in, a->params[W_NOW], g, false));
    for (int64_t b = 0; b < B && T > 1; b++) /* position t gets what position t−1 says */
        TRY(multiply(&s.rest, product(&s.rest, T - 1, C, 2 * F), row_at(a, a->in, b * T, C),
                     a->params[W_BEFORE], row_at(a, g, b * T + 1, 2 * F), true));
    if (!a->out) return CZ_OK; /* recomputation that only wants g */

    struct swiglu_args gate = gate_of(hp, a, g);
    gate.y = s.inner;
    TRY(ops_swiglu_forward(a->ops, a->stream, &gate));
    TRY(multiply(&s.rest, product(&s.rest, N, F, C), s.inner, a->params[W_DOWN], a->out, false));
    const struct add_args add = {
        .dtype = a->dtype, .numel = (size_t)(N * C), .a = a->in, .b = a->out, .y = a->out};
    return ops_add(a->ops, a->stream, &add);
}

static cz_status mixer_backward(const void *hp_, const struct layer_args *a)
{
    const struct mixer_hp *hp = hp_;
    const int64_t B = a->batch->B, T = a->batch->T, N = B * T, C = hp->C, F = hp->F;
    const struct mixer_space s = split_workspace(hp, a);
    const struct param_grad *d = a->dparams; /* .dp is NULL for a frozen parameter */

    struct swiglu_args gate = gate_of(hp, a, a->saved);
    gate.y = s.inner; /* the forward's inner values once more, for dWdown */
    TRY(ops_swiglu_forward(a->ops, a->stream, &gate));
    if (d[W_DOWN].dp)
        TRY(multiply(&s.rest, product_dw(&s.rest, N, F, C), s.inner, a->dout, d[W_DOWN].dp,
                     d[W_DOWN].accumulate));
    TRY(multiply(&s.rest, product_dx(&s.rest, N, F, C), a->dout, a->params[W_DOWN], s.inner,
                 false));
    gate.dy = s.inner;
    gate.dgate = s.wide;
    gate.dup = row_at(a, s.wide, 1, F);
    TRY(ops_swiglu_backward(a->ops, a->stream, &gate));

    if (d[W_NOW].dp)
        TRY(multiply(&s.rest, product_dw(&s.rest, N, C, 2 * F), a->in, s.wide, d[W_NOW].dp,
                     d[W_NOW].accumulate));
    TRY(multiply(&s.rest, product_dx(&s.rest, N, C, 2 * F), s.wide, a->params[W_NOW], a->din,
                 false));
    if (T == 1 && d[W_BEFORE].dp &&
        !d[W_BEFORE].accumulate) /* no position read the previous token */
        TRY(ops_device(a->ops)->ops->fill_zero(ops_device(a->ops), a->stream, d[W_BEFORE].dp,
                                               (size_t)(2 * C * F) * dtype_size(a->grad_dtype)));
    for (int64_t b = 0; b < B && T > 1; b++) {
        const void *dg = row_at(a, s.wide, b * T + 1, 2 * F);
        if (d[W_BEFORE].dp)
            TRY(multiply(&s.rest, product_dw(&s.rest, T - 1, C, 2 * F), row_at(a, a->in, b * T, C),
                         dg, d[W_BEFORE].dp, b > 0 || d[W_BEFORE].accumulate));
        TRY(multiply(&s.rest, product_dx(&s.rest, T - 1, C, 2 * F), dg, a->params[W_BEFORE],
                     row_at(a, a->din, b * T, C), true));
    }
    const struct add_args add = {
        .dtype = a->dtype, .numel = (size_t)(N * C), .a = a->din, .b = a->dout, .y = a->din};
    return ops_add(a->ops, a->stream, &add);
}

static const struct layer_class mixer_class = {
    .name = "mixer",
    .declare = mixer_declare,
    .size = mixer_size,
    .forward = mixer_forward,
    .backward = mixer_backward,
    /* no .decode: generation would recompute the prefix */
};

/* ---- the model --------------------------------------------------------------------------------
 */

enum { WIDTH = 64, INNER = 128, DEPTH = 3, VOCAB = 256, SEQ_LEN = 64, MICRO_BATCH = 8 };

static struct cz_model *mixer_model(void)
{
    const struct model_embedding_hp embedding = {
        .token_name = "token.weight", .V = VOCAB, .C = WIDTH, .init_std = 0.1f};
    const struct model_lm_head_hp head = {.norm_weight_name = "norm.weight",
                                          .weight_name = "token.weight", /* tied */
                                          .tied_alias = "head.weight",
                                          .V = VOCAB,
                                          .C = WIDTH,
                                          .eps = 1e-5f};
    struct mixer_hp mixers[DEPTH];
    struct layer_desc layers[DEPTH + 2];
    layers[0] = (struct layer_desc){&model_embedding_class, &embedding, sizeof embedding};
    for (int i = 0; i < DEPTH; i++) {
        mixers[i] = (struct mixer_hp){.idx = i, .C = WIDTH, .F = INNER};
        layers[i + 1] = (struct layer_desc){&mixer_class, &mixers[i], sizeof mixers[i]};
    }
    layers[DEPTH + 1] = (struct layer_desc){&model_lm_head_class, &head, sizeof head};
    const struct model_desc desc = {.name = "mixer",
                                    .layers = layers,
                                    .n_layers = DEPTH + 2,
                                    .vocab_size = VOCAB,
                                    .t_max = SEQ_LEN,
                                    .hidden_size = WIDTH};
    return model_create(&desc);
}

/* ---- training it ------------------------------------------------------------------------------
 */

static const char config[] =
    "{\"train_micro_batch_size_per_gpu\": 8, \"gradient_accumulation_steps\": 1,"
    " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 3e-3, \"weight_decay\": 0.01}},"
    " \"gradient_clipping\": 1.0}";

static cz_status train(struct cz_engine *engine, struct cz_data_loader *loader, long n_steps)
{
    float first = 0, recent = 0;
    for (long step = 0; step < n_steps; step++) {
        struct cz_batch batch = {.size = sizeof batch};
        float loss;
        TRY(cz_data_next(loader, &batch));
        TRY(engine_forward(engine, &batch, &loss));
        TRY(engine_backward(engine));
        TRY(engine_step(engine));
        if (step == 0) first = recent = loss;
        recent += 0.05f * (loss - recent);
        if (step % 50 == 0 || step + 1 == n_steps)
            printf("step %4ld  loss %.4f  gradient norm %.3f\n", step + 1, (double)loss,
                   engine_get_global_grad_norm(engine));
    }
    printf("loss went from %.3f to about %.3f\n", (double)first, (double)recent);
    return CZ_OK;
}

static cz_status run(const char *path, long n_steps, const char *device)
{
    const struct cz_data_options data = {.size = sizeof data,
                                         .paths = &path,
                                         .n_paths = 1,
                                         .seq_len = SEQ_LEN,
                                         .micro_batch = MICRO_BATCH,
                                         .shuffle = true};
    const struct cz_engine_options options = {
        .size = sizeof options, .config_json = config, .device = device, .seed = 1};
    struct cz_data_loader *loader = NULL;
    struct cz_engine *engine = NULL;
    cz_status status = cz_data_open(&data, &loader);
    struct cz_model *model = status == CZ_OK ? mixer_model() : NULL;
    if (model) engine = engine_initialize_ex(&options, model); /* owns the model on success */
    if (engine) {
        status = train(engine, loader, n_steps);
    } else {
        status = cz_last_status();
        cz_model_destroy(model);
    }
    engine_destroy(engine);
    cz_data_close(loader);
    return status;
}

int main(int argc, char **argv)
{
    if (argc < 2 || strcmp(argv[1], "--help") == 0) {
        printf("Usage: custom_layer TEXT [STEPS [DEVICE]]\n\n"
               "Train a small model with a layer of its own on the bytes of a text file, on cpu\n"
               "(default) or cuda.\n");
        return argc < 2 ? 2 : 0;
    }
    long n_steps = argc > 2 ? strtol(argv[2], NULL, 10) : 300;
    const char *device = argc > 3 ? argv[3] : NULL;
    if (run(argv[1], n_steps > 0 ? n_steps : 1, device) == CZ_OK) return 0;
    fprintf(stderr, "custom_layer: %s\n", cz_last_error());
    return 1;
}
