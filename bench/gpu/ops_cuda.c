/* Ops of a CUDA device that are bound by its memory, as fractions of what copying inside that
 * memory reaches in the same run; matrix products and attention as rates. One JSON line per figure,
 * as scripts/gpu_check.sh reads them.
 *
 *     build/bench/ops_cuda [--tiny] [NAME…]     only those whose name holds one of the words
 *
 * --tiny: sizes for the simulated device, whose times mean nothing. Each op and the copy take
 * turns, several launches between two waits; medians. Bytes are the fewest that the op could move:
 * inputs read once, outputs written once. */
#include "base/clock.h"
#include "base/dtype.h"
#include "ops/activation/activation.h"
#include "ops/attention/attention.h"
#include "ops/cross_entropy/cross_entropy.h"
#include "ops/matmul/matmul.h"
#include "ops/norm/norm.h"
#include "ops/ops.h"
#include "ops/step/step.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_BUFS   6
#define N_ROUNDS 7
#define CHANNELS 2048
#define HEAD     64

struct bench {
    struct device *dev;
    struct ops *ops;
    struct dev_stream *stream;
    size_t nbytes; /* of each buffer */
    int n_launches;
    int64_t vocabulary;
    void *buf[N_BUFS];
    void *small; /* weights, statistics, scalars, labels: n_small bytes */
    size_t small_nbytes;
    void *workspace;
    size_t workspace_nbytes;
    double copy_rate; /* bytes per second, of the current figure */
};

/* ---- inputs ------------------------------------------------------------------------------------
 */

/* The whole buffer: values of a bell-like spread around `at`, never the same run of bytes. */
static cz_status fill(struct bench *b, void *buffer, size_t nbytes, enum cz_dtype dtype,
                      float scale, float at)
{
    const size_t chunk_nbytes = nbytes < ((size_t)8 << 20) ? nbytes : (size_t)8 << 20;
    const size_t numel = chunk_nbytes / dtype_size(dtype);
    void *chunk = malloc(chunk_nbytes);
    if (!chunk) return err_set(CZ_NOMEM, 0, "no memory for inputs");
    uint32_t state = 12345;
    for (size_t i = 0; i < numel; i++) {
        float sum = 0;
        for (int k = 0; k < 4; k++) {
            state = state * 1664525u + 1013904223u;
            sum += (float)(state >> 8) * 0x1p-24f - 0.5f;
        }
        dtype_put(chunk, i, dtype, at + scale * sum);
    }
    cz_status st = CZ_OK;
    for (size_t done = 0; done < nbytes && st == CZ_OK; done += chunk_nbytes) {
        const size_t n = nbytes - done < chunk_nbytes ? nbytes - done : chunk_nbytes;
        st = b->dev->ops->copy(b->dev, b->stream, (char *)buffer + done, chunk, n);
    }
    if (st == CZ_OK) st = b->dev->ops->stream_sync(b->dev, b->stream);
    free(chunk);
    return st;
}

static cz_status put(struct bench *b, void *dst, const void *src, size_t nbytes)
{
    TRY(b->dev->ops->copy(b->dev, b->stream, dst, src, nbytes));
    return b->dev->ops->stream_sync(b->dev, b->stream);
}

static cz_status need_workspace(struct bench *b, size_t nbytes)
{
    if (nbytes <= b->workspace_nbytes) return CZ_OK;
    b->dev->ops->mem_free(b->dev, b->workspace, b->workspace_nbytes);
    b->workspace_nbytes = 0;
    TRY(b->dev->ops->mem_alloc(b->dev, nbytes, "workspace", &b->workspace));
    b->workspace_nbytes = nbytes;
    return CZ_OK;
}

/* ---- ops ---------------------------------------------------------------------------------------
 */

/* What one launch works on; init says what it moves or computes. */
struct job {
    double nbytes, n_operations;
    union {
        struct step_args adam;
        struct norm_args norm;
        struct activation_args activation;
        struct cross_entropy_args cross_entropy;
        struct matmul_args matmul;
        struct attention_args attention;
    } args;
};

static cz_status adam_init(struct bench *b, struct job *j, enum cz_dtype dtype)
{
    const struct step_scalars scalars = {.grad_scale = 0.5f,
                                         .lr = 1e-4f,
                                         .beta1 = 0.9f,
                                         .beta2 = 0.999f,
                                         .inv_bias1 = 1.01f,
                                         .inv_sqrt_bias2 = 1.1f,
                                         .step = 100};
    struct step_args *a = &j->args.adam;
    const size_t numel = b->nbytes / sizeof(float);
    *a = (struct step_args){.op = STEP_ADAM,
                            .t = {.numel = numel,
                                  .p = b->buf[0],
                                  .g = b->buf[1],
                                  .g_dtype = dtype,
                                  .states = {b->buf[2], b->buf[3]},
                                  .out = dtype == DTYPE_F32 ? NULL : b->buf[4],
                                  .out_dtype = dtype},
                            .scalars = b->small,
                            .eps = 1e-8f,
                            .weight_decay = 0.01f,
                            .decoupled = true};
    j->nbytes = 28.0 * (double)numel; /* either way: ops/step/adam_impl.h */
    TRY(put(b, b->small, &scalars, sizeof scalars));
    TRY(fill(b, b->buf[0], b->nbytes, DTYPE_F32, 0.1f, 0));
    TRY(fill(b, b->buf[1], b->nbytes, dtype, 1e-3f, 0));
    TRY(fill(b, b->buf[2], b->nbytes, DTYPE_F32, 1e-3f, 0));
    return fill(b, b->buf[3], b->nbytes, DTYPE_F32, 1e-7f, 1e-6f);
}

static cz_status adam(struct bench *b, const struct job *j)
{
    return ops_step(b->ops, b->stream, &j->args.adam);
}

/* Statistics are behind the weights, gradients of the weights behind them. */
static cz_status norm_init(struct bench *b, struct job *j, enum cz_dtype dtype)
{
    struct norm_args *a = &j->args.norm;
    const int64_t rows = (int64_t)(b->nbytes / dtype_size(dtype)) / CHANNELS;
    char *const small = b->small;
    *a = (struct norm_args){.N = rows,
                            .C = CHANNELS,
                            .dtype = dtype,
                            .eps = 1e-5f,
                            .x = b->buf[0],
                            .y = b->buf[1],
                            .weight = small,
                            .bias = small + 4 * CHANNELS,
                            .grad_dtype = DTYPE_F32,
                            .dweight = small + 8 * CHANNELS,
                            .dbias = small + 12 * CHANNELS,
                            .mean = (float *)(void *)(small + 16 * CHANNELS),
                            .dy = b->buf[2],
                            .dx = b->buf[3]};
    a->rstd = a->mean + rows;
    j->nbytes = 2.0 * (double)b->nbytes;
    TRY(fill(b, b->small, 16 * CHANNELS, dtype, 0.1f, 1));
    TRY(fill(b, b->buf[0], b->nbytes, dtype, 1, 0));
    return fill(b, b->buf[2], b->nbytes, dtype, 1, 0);
}

static cz_status norm_backward_init(struct bench *b, struct job *j, enum cz_dtype dtype)
{
    struct norm_args *a = &j->args.norm;
    TRY(norm_init(b, j, dtype));
    TRY(ops_layernorm_forward(b->ops, b->stream, a)); /* the statistics */
    j->nbytes = 3.0 * (double)b->nbytes;
    a->workspace_nbytes = ops_norm_workspace(b->ops, a);
    TRY(need_workspace(b, a->workspace_nbytes));
    a->workspace = b->workspace;
    return CZ_OK;
}

static cz_status norm_forward(struct bench *b, const struct job *j)
{
    return ops_layernorm_forward(b->ops, b->stream, &j->args.norm);
}

static cz_status norm_backward(struct bench *b, const struct job *j)
{
    return ops_layernorm_backward(b->ops, b->stream, &j->args.norm);
}

static cz_status gelu_init(struct bench *b, struct job *j, enum cz_dtype dtype)
{
    j->args.activation = (struct activation_args){.kind = ACT_GELU_TANH,
                                                  .dtype = dtype,
                                                  .numel = b->nbytes / dtype_size(dtype),
                                                  .x = b->buf[0],
                                                  .y = b->buf[1],
                                                  .dy = b->buf[2],
                                                  .dx = b->buf[3]};
    j->nbytes = 2.0 * (double)b->nbytes;
    TRY(fill(b, b->buf[0], b->nbytes, dtype, 2, 0));
    return fill(b, b->buf[2], b->nbytes, dtype, 1, 0);
}

static cz_status gelu_backward_init(struct bench *b, struct job *j, enum cz_dtype dtype)
{
    TRY(gelu_init(b, j, dtype));
    j->nbytes = 3.0 * (double)b->nbytes;
    return CZ_OK;
}

static cz_status gelu_forward(struct bench *b, const struct job *j)
{
    return ops_activation_forward(b->ops, b->stream, &j->args.activation);
}

static cz_status gelu_backward(struct bench *b, const struct job *j)
{
    return ops_activation_backward(b->ops, b->stream, &j->args.activation);
}

/* Loss and gradient of a vocabulary's logits: read once, written once. */
static cz_status cross_entropy_init(struct bench *b, struct job *j, enum cz_dtype dtype)
{
    const int64_t rows = (int64_t)(b->nbytes / sizeof(float)) / b->vocabulary;
    int32_t *labels = malloc((size_t)rows * sizeof *labels);
    if (!labels) return err_set(CZ_NOMEM, 0, "no memory for labels");
    (void)dtype;
    for (int64_t i = 0; i < rows; i++) labels[i] = (int32_t)(i * 7919 % b->vocabulary);
    cz_status st = put(b, (char *)b->small + 256, labels, (size_t)rows * sizeof *labels);
    free(labels);
    j->args.cross_entropy = (struct cross_entropy_args){.N = rows,
                                                        .V = b->vocabulary,
                                                        .logits = b->buf[0],
                                                        .labels = (void *)((char *)b->small + 256),
                                                        .loss = b->small,
                                                        .dloss = 1,
                                                        .dlogits = b->buf[1]};
    j->nbytes = 2.0 * (double)rows * (double)b->vocabulary * sizeof(float);
    return st == CZ_OK ? fill(b, b->buf[0], b->nbytes, DTYPE_F32, 4, 0) : st;
}

static cz_status cross_entropy(struct bench *b, const struct job *j)
{
    return ops_cross_entropy(b->ops, b->stream, &j->args.cross_entropy);
}

static cz_status matmul_init(struct bench *b, struct job *j, enum cz_dtype dtype)
{
    struct matmul_args *a = &j->args.matmul;
    int64_t n = 64;
    while (4 * n * n * (int64_t)sizeof(float) <= (int64_t)b->nbytes && n < 8192) n *= 2;
    *a = (struct matmul_args){.m = n,
                              .n = n,
                              .k = n,
                              .dtype = dtype,
                              .c_dtype = dtype,
                              .a = b->buf[0],
                              .b = b->buf[1],
                              .c = b->buf[2]};
    j->n_operations = 2.0 * (double)n * (double)n * (double)n;
    TRY(ops_matmul_workspace(b->ops, a, &a->workspace_nbytes));
    TRY(need_workspace(b, a->workspace_nbytes));
    a->workspace = b->workspace;
    TRY(fill(b, b->buf[0], b->nbytes, dtype, 0.5f, 0));
    return fill(b, b->buf[1], b->nbytes, dtype, 0.5f, 0);
}

static cz_status matmul(struct bench *b, const struct job *j)
{
    return ops_matmul(b->ops, b->stream, &j->args.matmul);
}

/* GPT-2's shape: 16 × 12 heads of 64 over 1024 positions. bench/gpu/attention_gpu.py knows it, too.
 */
static cz_status attention_init(struct bench *b, struct job *j, enum cz_dtype dtype)
{
    const bool is_tiny = b->nbytes < (size_t)64 << 20;
    const int64_t B = is_tiny ? 1 : 16, T = is_tiny ? 64 : 1024, H = is_tiny ? 2 : 12;
    const int64_t stride = 3 * H * HEAD;
    struct attention_args *a = &j->args.attention;
    char *qkv = b->buf[0], *dqkv = b->buf[3];
    const size_t third = (size_t)(H * HEAD) * dtype_size(dtype);
    *a = (struct attention_args){.B = B,
                                 .Tq = T,
                                 .Tk = T,
                                 .H = H,
                                 .G = H,
                                 .D = HEAD,
                                 .dtype = dtype,
                                 .scale = 0.125f,
                                 .causal = true,
                                 .q = qkv,
                                 .k = qkv + third,
                                 .v = qkv + 2 * third,
                                 .q_stride = stride,
                                 .k_stride = stride,
                                 .v_stride = stride,
                                 .out = b->buf[1],
                                 .out_stride = H * HEAD,
                                 .lse = b->small,
                                 .dout = b->buf[2],
                                 .dq = dqkv,
                                 .dk = dqkv + third,
                                 .dv = dqkv + 2 * third};
    /* two products forward, five backward, half of each masked */
    j->n_operations = 7.0 * 2.0 * (double)(B * H) * (double)T * (double)T * HEAD / 2;
    a->workspace_nbytes = ops_attention_workspace(b->ops, a, true);
    TRY(need_workspace(b, a->workspace_nbytes));
    a->workspace = b->workspace;
    TRY(fill(b, b->buf[0], b->nbytes, dtype, 1, 0));
    return fill(b, b->buf[2], b->nbytes, dtype, 1, 0);
}

static cz_status attention(struct bench *b, const struct job *j)
{
    TRY(ops_attention_forward(b->ops, b->stream, &j->args.attention));
    return ops_attention_backward(b->ops, b->stream, &j->args.attention);
}

static const struct bench_op {
    const char *name;
    cz_status (*init)(struct bench *, struct job *, enum cz_dtype);
    cz_status (*run)(struct bench *, const struct job *);
    const char *op; /* as ops_require() knows it */
    enum cz_dtype dtype;
    double goal; /* of copy bandwidth; 0: the rate is told */
} table[] = {
    {"adam", adam_init, adam, "step", DTYPE_F32, 0.9},
    {"adam", adam_init, adam, "step", DTYPE_BF16, 0.9},
    {"layernorm forward", norm_init, norm_forward, "layernorm_forward", DTYPE_BF16, 0.8},
    {"layernorm backward", norm_backward_init, norm_backward, "layernorm_backward", DTYPE_BF16,
     0.8},
    {"gelu forward", gelu_init, gelu_forward, "activation_forward", DTYPE_BF16, 0.8},
    {"gelu backward", gelu_backward_init, gelu_backward, "activation_backward", DTYPE_BF16, 0.8},
    {"cross-entropy", cross_entropy_init, cross_entropy, "cross_entropy", DTYPE_F32, 0.8},
    {"matmul", matmul_init, matmul, "matmul", DTYPE_BF16, 0},
    {"matmul", matmul_init, matmul, "matmul", DTYPE_F32, 0},
    {"attention forward+backward", attention_init, attention, "attention_backward", DTYPE_BF16, 0},
};

/* ---- time --------------------------------------------------------------------------------------
 */

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values)
{
    qsort(values, N_ROUNDS, sizeof *values, by_value);
    return values[N_ROUNDS / 2];
}

static cz_status copy(struct bench *b, const struct job *j)
{
    (void)j;
    return b->dev->ops->copy(b->dev, b->stream, b->buf[5], b->buf[4], b->nbytes);
}

/* Seconds of one launch, of several in a row. */
static cz_status seconds_of(struct bench *b, cz_status (*run)(struct bench *, const struct job *),
                            const struct job *j, double *seconds)
{
    TRY(b->dev->ops->stream_sync(b->dev, b->stream));
    const int64_t begin = clock_now_ns();
    for (int i = 0; i < b->n_launches; i++) TRY(run(b, j));
    TRY(b->dev->ops->stream_sync(b->dev, b->stream));
    *seconds = (double)(clock_now_ns() - begin) * 1e-9 / b->n_launches;
    return CZ_OK;
}

static void print(const struct bench *b, const struct bench_op *op, const struct job *j,
                  double seconds)
{
    printf("{\"figure\": \"%s, %s\", ", op->name, dtype_name(op->dtype));
    if (op->goal > 0)
        printf("\"value\": %.4g, \"unit\": \"GB/s\", \"ratio\": %.4f, \"goal\": %g, \"goal_of\": "
               "\"of copy bandwidth\", \"note\": \"copy %.4g GB/s\"}\n",
               j->nbytes / seconds * 1e-9, j->nbytes / seconds / b->copy_rate, op->goal,
               b->copy_rate * 1e-9);
    else
        printf(
            "\"value\": %.4g, \"unit\": \"TFLOP/s\", \"seconds\": %.6g, \"note\": \"%.4g ms\"}\n",
            j->n_operations / seconds * 1e-12, seconds, seconds * 1e3);
    fflush(stdout);
}

static cz_status measure(struct bench *b, const struct bench_op *op)
{
    struct job j = {0};
    double ours[N_ROUNDS], copies[N_ROUNDS], warm;
    if (ops_require(b->ops, op->op) != CZ_OK) {
        printf("{\"figure\": \"%s, %s\", \"skipped\": \"no such kernel\"}\n", op->name,
               dtype_name(op->dtype));
        return CZ_OK;
    }
    TRY(op->init(b, &j, op->dtype));
    TRY(seconds_of(b, op->run, &j, &warm));
    TRY(seconds_of(b, copy, &j, &warm));
    for (int i = 0; i < N_ROUNDS; i++) {
        TRY(seconds_of(b, op->run, &j, &ours[i]));
        TRY(seconds_of(b, copy, &j, &copies[i]));
    }
    b->copy_rate = 2.0 * (double)b->nbytes / median(copies);
    print(b, op, &j, median(ours));
    return CZ_OK;
}

/* ---- all of it ---------------------------------------------------------------------------------
 */

static cz_status setup(struct bench *b, bool is_tiny)
{
    b->nbytes = is_tiny ? (size_t)1 << 18 : (size_t)512 << 20;
    b->n_launches = is_tiny ? 1 : 20;
    b->vocabulary = is_tiny ? 1000 : 50304;
    b->small_nbytes = (size_t)8 << 20;
    TRY(device_open("cuda", 0, &b->dev));
    TRY(ops_create(b->dev, &b->ops));
    TRY(b->dev->ops->stream_create(b->dev, &b->stream));
    for (int i = 0; i < N_BUFS; i++)
        TRY(b->dev->ops->mem_alloc(b->dev, b->nbytes, "a tensor", &b->buf[i]));
    return b->dev->ops->mem_alloc(b->dev, b->small_nbytes, "weights", &b->small);
}

static void teardown(struct bench *b)
{
    if (!b->dev) return;
    for (int i = 0; i < N_BUFS; i++) b->dev->ops->mem_free(b->dev, b->buf[i], b->nbytes);
    b->dev->ops->mem_free(b->dev, b->small, b->small_nbytes);
    b->dev->ops->mem_free(b->dev, b->workspace, b->workspace_nbytes);
    b->dev->ops->stream_destroy(b->dev, b->stream);
    ops_destroy(b->ops);
    device_close(b->dev);
}

/* Of what was measured; a product that cuBLASLt refuses runs all the same, at a fraction of its
 * rate, and a warning on stderr names its shape. */
static void print_products(struct ops_products p)
{
    if (p.n == 0) return;
    printf(
        "{\"figure\": \"products that cuBLASLt refused\", \"value\": %llu, \"unit\": \"of %llu\", "
        "\"goal_of\": \"none\", \"pass\": %s, \"note\": \"%llu more without their epilogue\"}\n",
        (unsigned long long)p.n_slow, (unsigned long long)p.n, p.n_slow == 0 ? "true" : "false",
        (unsigned long long)p.n_split);
}

static bool wanted(const char *name, int n_words, char **words)
{
    for (int i = 0; i < n_words; i++)
        if (strstr(name, words[i])) return true;
    return n_words == 0;
}

int main(int argc, char **argv)
{
    struct bench b = {0};
    const bool is_tiny = argc > 1 && strcmp(argv[1], "--tiny") == 0;
    const int first = is_tiny ? 2 : 1;
    cz_status worst = setup(&b, is_tiny);
    if (worst != CZ_OK) fprintf(stderr, "ops_cuda: %s\n", cz_last_error());
    const size_t n = worst == CZ_OK ? CZ_ARRAY_LEN(table) : 0;
    for (size_t i = 0; i < n; i++) { /* one that fails is told, and the others are measured */
        if (!wanted(table[i].name, argc - first, argv + first)) continue;
        const cz_status st = measure(&b, &table[i]);
        if (st == CZ_OK) continue;
        fprintf(stderr, "ops_cuda: %s, %s: %s\n", table[i].name, dtype_name(table[i].dtype),
                cz_last_error());
        worst = st;
    }
    if (b.ops) print_products(ops_products(b.ops));
    teardown(&b);
    return worst == CZ_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
