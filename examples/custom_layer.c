/* A custom layer: a gated MLP that also reads the previous token, stacked between czero's
 * embedding and language-model head, trained on a text file.
 *
 *   custom_layer TEXT [STEPS [DEVICE]]
 *
 * The layer, for each sequence x (T,C):
 *   g[t] = x[t]*Wnow + x[t-1]*Wbefore      (T,2F): a gate and a value of width F each
 *   out = x + (silu(gate)∘value)*Wdown
 * Three of them read three tokens back. All arithmetic is done by the functions of <czero/ops.h>,
 * so the layer works in fp32, bf16 and fp16, on the CPU and on a GPU. The engine owns the memory:
 * it asks mixer_sizes() how much the layer needs.
 *
 * Legend: B batch, T positions, N = B*T, C width, F inner width. */
#include <czero/czero.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Pass an error on: its sentence stays in cz_last_error(). */
#define TRY(call)                                                                                  \
    do {                                                                                           \
        cz_status status_ = (call);                                                                \
        if (status_ != CZ_OK) return status_;                                                      \
    } while (0)

/* ---- the layer --------------------------------------------------------------------------------
 */

struct mixer_hp { /* plain data: the model keeps a copy */
    int idx;
    int64_t C, F;
};

enum { W_NOW = 0, W_BEFORE, W_DOWN }; /* in the order of declaration */

static cz_status mixer_declare(const void *hp_, struct cz_param_list *out)
{
    const struct mixer_hp *hp = hp_;
    const int64_t in[] = {hp->C, 2 * hp->F}, down[] = {hp->F, hp->C};
    const char *const names[] = {"now", "before", "down"};
    for (int i = 0; i < 3; i++) {
        char name[64];
        snprintf(name, sizeof name, "mixer.%d.%s.weight", hp->idx, names[i]);
        TRY(cz_param_add(out, name, 2, i == W_DOWN ? down : in, CZ_INIT_NORMAL, 0.05f));
    }
    return CZ_OK;
}

/* The matrix products of one layer. x·w for `rows` rows; the transposed ones are its gradients. */
static struct cz_matmul_args product(const struct cz_layer_args *a, int64_t rows, int64_t in,
                                     int64_t out)
{
    return (struct cz_matmul_args){.size = sizeof(struct cz_matmul_args),
                                   .m = rows,
                                   .n = out,
                                   .k = in,
                                   .dtype = a->dtype,
                                   .c_dtype = a->dtype,
                                   .workspace = a->workspace,
                                   .workspace_nbytes = a->workspace_nbytes};
}

static struct cz_matmul_args product_dx(const struct cz_layer_args *a, int64_t rows, int64_t in,
                                        int64_t out)
{
    struct cz_matmul_args p = product(a, rows, out, in);
    p.trans_b = true;
    return p;
}

static struct cz_matmul_args product_dw(const struct cz_layer_args *a, int64_t rows, int64_t in,
                                        int64_t out)
{
    struct cz_matmul_args p = product(a, in, rows, out);
    p.trans_a = true;
    p.c_dtype = a->grad_dtype;
    return p;
}

static cz_status multiply(const struct cz_layer_args *a, struct cz_matmul_args p, const void *x,
                          const void *w, void *y, bool accumulate)
{
    p.a = x;
    p.b = w;
    p.c = y;
    p.accumulate = accumulate;
    return cz_matmul(a->ops, &p);
}

/* Workspace: `inner` (N,F) and `wide` (N,2F), then what a product wants. */
struct mixer_space {
    unsigned char *inner, *wide;
    struct cz_layer_args rest; /* the layer's arguments with the workspace that remains */
};

static size_t align64(size_t nbytes)
{
    return (nbytes + 63) / 64 * 64;
}

static struct mixer_space split_workspace(const struct mixer_hp *hp, const struct cz_layer_args *a)
{
    const size_t n = (size_t)(a->batch->B * a->batch->T * hp->F) * cz_dtype_size(a->dtype);
    struct mixer_space s = {.inner = a->workspace, .rest = *a};
    s.wide = s.inner + align64(n);
    s.rest.workspace = s.wide + align64(2 * n);
    s.rest.workspace_nbytes = a->workspace_nbytes - align64(n) - align64(2 * n);
    return s;
}

static cz_status mixer_sizes(const void *hp_, const struct cz_layer_shape *s,
                             struct cz_layer_sizes *out)
{
    const struct mixer_hp *hp = hp_;
    const int64_t N = s->B * s->T, C = hp->C, F = hp->F;
    const size_t e = cz_dtype_size(s->dtype), inner = (size_t)(N * F) * e;
    const struct cz_layer_args a = {.dtype = s->dtype, .grad_dtype = s->grad_dtype};
    const struct cz_matmul_args products[] = {
        product(&a, N, C, 2 * F),    product(&a, s->T, C, 2 * F),    product(&a, N, F, C),
        product_dx(&a, N, C, 2 * F), product_dx(&a, s->T, C, 2 * F), product_dx(&a, N, F, C),
        product_dw(&a, N, C, 2 * F), product_dw(&a, s->T, C, 2 * F), product_dw(&a, N, F, C),
    };
    size_t product_nbytes = 0;
    for (size_t i = 0; i < sizeof products / sizeof products[0]; i++)
        for (int accumulate = 0; accumulate < 2; accumulate++) {
            struct cz_matmul_args p = products[i];
            size_t nbytes = 0;
            p.accumulate = accumulate;
            TRY(cz_matmul_workspace(s->ops, &p, &nbytes));
            if (nbytes > product_nbytes) product_nbytes = nbytes;
        }
    out->out_nbytes = (size_t)(N * C) * e;
    out->saved_nbytes = s->training ? 2 * inner : 0; /* g */
    out->workspace_nbytes = align64(inner) + align64(2 * inner) + product_nbytes;
    out->flops_forward = 2.0 * (double)N * (double)F * (4.0 * (double)C + (double)C);
    return CZ_OK;
}

/* The address of row `row` of an array `width` elements wide. */
static void *row_at(const struct cz_layer_args *a, const void *base, int64_t row, int64_t width)
{
    return (unsigned char *)base + (size_t)(row * width) * cz_dtype_size(a->dtype);
}

static struct cz_swiglu_args gate_of(const struct mixer_hp *hp, const struct cz_layer_args *a,
                                     const void *g)
{
    return (struct cz_swiglu_args){.size = sizeof(struct cz_swiglu_args),
                                   .dtype = a->dtype,
                                   .N = a->batch->B * a->batch->T,
                                   .C = hp->F,
                                   .stride = 2 * hp->F,
                                   .gate = g,
                                   .up = row_at(a, g, 1, hp->F)};
}

static cz_status mixer_forward(const void *hp_, const struct cz_layer_args *a)
{
    const struct mixer_hp *hp = hp_;
    const int64_t B = a->batch->B, T = a->batch->T, N = B * T, C = hp->C, F = hp->F;
    const struct mixer_space s = split_workspace(hp, a);
    void *g = a->saved ? a->saved : s.wide; /* nothing is kept in evaluation */

    TRY(multiply(&s.rest, product(&s.rest, N, C, 2 * F), a->in, a->params[W_NOW], g, false));
    for (int64_t b = 0; b < B && T > 1; b++) /* position t reads position t-1 */
        TRY(multiply(&s.rest, product(&s.rest, T - 1, C, 2 * F), row_at(a, a->in, b * T, C),
                     a->params[W_BEFORE], row_at(a, g, b * T + 1, 2 * F), true));
    if (!a->out) return CZ_OK; /* recomputation, of which only g is wanted */

    struct cz_swiglu_args gate = gate_of(hp, a, g);
    gate.y = s.inner;
    TRY(cz_swiglu_forward(a->ops, &gate));
    TRY(multiply(&s.rest, product(&s.rest, N, F, C), s.inner, a->params[W_DOWN], a->out, false));
    const struct cz_add_args add = {.size = sizeof add,
                                    .dtype = a->dtype,
                                    .numel = (size_t)(N * C),
                                    .a = a->in,
                                    .b = a->out,
                                    .y = a->out};
    return cz_add(a->ops, &add);
}

static cz_status mixer_backward(const void *hp_, const struct cz_layer_args *a)
{
    const struct mixer_hp *hp = hp_;
    const int64_t B = a->batch->B, T = a->batch->T, N = B * T, C = hp->C, F = hp->F;
    const struct mixer_space s = split_workspace(hp, a);
    const struct cz_param_grad *d = a->dparams; /* .dp is NULL for a frozen parameter */

    struct cz_swiglu_args gate = gate_of(hp, a, a->saved);
    gate.y = s.inner; /* the forward's inner values once more, for dWdown */
    TRY(cz_swiglu_forward(a->ops, &gate));
    if (d[W_DOWN].dp)
        TRY(multiply(&s.rest, product_dw(&s.rest, N, F, C), s.inner, a->dout, d[W_DOWN].dp,
                     d[W_DOWN].accumulate));
    TRY(multiply(&s.rest, product_dx(&s.rest, N, F, C), a->dout, a->params[W_DOWN], s.inner,
                 false));
    gate.dy = s.inner;
    gate.dgate = s.wide;
    gate.dup = row_at(a, s.wide, 1, F);
    TRY(cz_swiglu_backward(a->ops, &gate));

    if (d[W_NOW].dp)
        TRY(multiply(&s.rest, product_dw(&s.rest, N, C, 2 * F), a->in, s.wide, d[W_NOW].dp,
                     d[W_NOW].accumulate));
    TRY(multiply(&s.rest, product_dx(&s.rest, N, C, 2 * F), s.wide, a->params[W_NOW], a->din,
                 false));
    if (T == 1 && d[W_BEFORE].dp && !d[W_BEFORE].accumulate) /* no position has one before it */
        TRY(cz_fill_zero(a->ops, d[W_BEFORE].dp,
                         (size_t)(2 * C * F) * cz_dtype_size(a->grad_dtype)));
    for (int64_t b = 0; b < B && T > 1; b++) {
        const void *dg = row_at(a, s.wide, b * T + 1, 2 * F);
        if (d[W_BEFORE].dp)
            TRY(multiply(&s.rest, product_dw(&s.rest, T - 1, C, 2 * F), row_at(a, a->in, b * T, C),
                         dg, d[W_BEFORE].dp, b > 0 || d[W_BEFORE].accumulate));
        TRY(multiply(&s.rest, product_dx(&s.rest, T - 1, C, 2 * F), dg, a->params[W_BEFORE],
                     row_at(a, a->din, b * T, C), true));
    }
    const struct cz_add_args add = {.size = sizeof add,
                                    .dtype = a->dtype,
                                    .numel = (size_t)(N * C),
                                    .a = a->din,
                                    .b = a->dout,
                                    .y = a->din};
    return cz_add(a->ops, &add);
}

static const struct cz_layer_class mixer_class = {
    .size = sizeof mixer_class,
    .name = "mixer",
    .declare = mixer_declare,
    .sizes = mixer_sizes,
    .forward = mixer_forward,
    .backward = mixer_backward,
    /* no .decode: generation computes the whole prefix again for each token */
};

/* ---- the model --------------------------------------------------------------------------------
 */

enum { WIDTH = 64, INNER = 128, DEPTH = 3, VOCAB = 256, SEQ_LEN = 64, MICRO_BATCH = 8 };

static struct cz_model *mixer_model(void)
{
    const struct cz_embedding_hp embedding = {.size = sizeof embedding,
                                              .token_name = "token.weight",
                                              .V = VOCAB,
                                              .C = WIDTH,
                                              .init_std = 0.1f};
    const struct cz_lm_head_hp head = {.size = sizeof head,
                                       .norm_weight_name = "norm.weight",
                                       .weight_name = "token.weight", /* tied */
                                       .tied_alias = "head.weight",
                                       .V = VOCAB,
                                       .C = WIDTH,
                                       .eps = 1e-5f};
    struct mixer_hp mixers[DEPTH];
    struct cz_layer_desc layers[DEPTH + 2];
    layers[0] = (struct cz_layer_desc){cz_layer_embedding(), &embedding, sizeof embedding};
    for (int i = 0; i < DEPTH; i++) {
        mixers[i] = (struct mixer_hp){.idx = i, .C = WIDTH, .F = INNER};
        layers[i + 1] = (struct cz_layer_desc){&mixer_class, &mixers[i], sizeof mixers[i]};
    }
    layers[DEPTH + 1] = (struct cz_layer_desc){cz_layer_lm_head(), &head, sizeof head};
    const struct cz_model_desc desc = {.size = sizeof desc,
                                       .name = "mixer",
                                       .layers = layers,
                                       .n_layers = DEPTH + 2,
                                       .vocab_size = VOCAB,
                                       .t_max = SEQ_LEN,
                                       .hidden_size = WIDTH};
    return cz_model_create(&desc);
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
               "Train a small model with a custom layer on the bytes of a text file, on cpu\n"
               "(default) or cuda.\n");
        return argc < 2 ? 2 : 0;
    }
    long n_steps = argc > 2 ? strtol(argv[2], NULL, 10) : 300;
    const char *device = argc > 3 ? argv[3] : NULL;
    if (run(argv[1], n_steps > 0 ? n_steps : 1, device) == CZ_OK) return 0;
    fprintf(stderr, "custom_layer: %s\n", cz_last_error());
    return 1;
}
