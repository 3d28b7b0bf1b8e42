/* How close each memory-bound op comes to memory speed.
 *
 * Every line runs an op on GPT-2 124M's shapes (1024 tokens, 768 or 3072 columns) and on arrays
 * that do not fit in cache, and beside it the STREAM triad over as many bytes, on the same threads,
 * in turns. Bytes are those the op must move: each input read once, each output written once.
 *
 *   bench_ops [--seconds S per line] [name …]        e.g. OMP_NUM_THREADS=2 bench_ops gelu norm */
#include "base/clock.h"
#include "base/cpu.h"
#include "base/dtype.h"
#include "base/threads.h"
#include "ops/activation/activation.h"
#include "ops/dropout/dropout.h"
#include "ops/elementwise/elementwise.h"
#include "ops/embedding/embedding.h"
#include "ops/norm/norm.h"
#include "ops/ops.h"
#include "ops/reduce/reduce.h"
#include "ops/rope/rope.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct bench {
    struct device *dev;
    struct ops *ops;
    void *x, *y, *z, *w, *w2, *v, *grads, *table, *workspace;
    int32_t *ids;
    float *stats;
    size_t buffer_nbytes, workspace_nbytes;
    double seconds;
};

struct shape {
    int64_t N, C;
    enum cz_dtype dtype;
};

struct bench_op {
    const char *name;
    double n_read, n_written; /* tensors of (N,C) */
    cz_status (*run)(struct bench *b, const struct shape *s);
};

static size_t numel_of(const struct shape *s)
{
    return (size_t)(s->N * s->C);
}

static cz_status run_add(struct bench *b, const struct shape *s)
{
    struct add_args a = {s->dtype, numel_of(s), b->x, b->y, b->z};
    return ops_add(b->ops, NULL, &a);
}

static cz_status run_scale(struct bench *b, const struct shape *s)
{
    struct cast_scale_args a = {s->dtype, s->dtype, numel_of(s), 0.5f, b->x, b->z};
    return ops_cast_scale(b->ops, NULL, &a);
}

static cz_status run_bias_grad(struct bench *b, const struct shape *s)
{
    struct bias_grad_args a = {.N = s->N,
                               .C = s->C,
                               .dtype = s->dtype,
                               .dy = b->x,
                               .db = b->grads,
                               .workspace = b->workspace,
                               .workspace_nbytes = b->workspace_nbytes};
    return ops_bias_grad(b->ops, NULL, &a);
}

static cz_status activation(struct bench *b, const struct shape *s, enum activation kind,
                            bool backward)
{
    struct activation_args a = {.kind = kind,
                                .dtype = s->dtype,
                                .numel = numel_of(s),
                                .x = b->x,
                                .y = b->z,
                                .dy = b->y,
                                .dx = b->z};
    return backward ? ops_activation_backward(b->ops, NULL, &a)
                    : ops_activation_forward(b->ops, NULL, &a);
}

static cz_status run_gelu_tanh(struct bench *b, const struct shape *s)
{
    return activation(b, s, ACT_GELU_TANH, false);
}

static cz_status run_gelu_tanh_backward(struct bench *b, const struct shape *s)
{
    return activation(b, s, ACT_GELU_TANH, true);
}

static cz_status run_gelu_erf(struct bench *b, const struct shape *s)
{
    return activation(b, s, ACT_GELU_ERF, false);
}

static cz_status run_gelu_erf_backward(struct bench *b, const struct shape *s)
{
    return activation(b, s, ACT_GELU_ERF, true);
}

static struct swiglu_args swiglu_of(struct bench *b, const struct shape *s)
{
    return (struct swiglu_args){.act = ACT_SILU,
                                .dtype = s->dtype,
                                .N = s->N,
                                .C = s->C,
                                .stride = s->C,
                                .gate = b->x,
                                .up = b->y,
                                .y = b->z,
                                .dy = b->w,
                                .dgate = b->z,
                                .dup = b->v};
}

static cz_status run_swiglu(struct bench *b, const struct shape *s)
{
    struct swiglu_args a = swiglu_of(b, s);
    return ops_swiglu_forward(b->ops, NULL, &a);
}

static cz_status run_swiglu_backward(struct bench *b, const struct shape *s)
{
    struct swiglu_args a = swiglu_of(b, s);
    return ops_swiglu_backward(b->ops, NULL, &a);
}

static cz_status run_dropout(struct bench *b, const struct shape *s)
{
    struct dropout_args a = {
        .dtype = s->dtype, .numel = numel_of(s), .p = 0.1f, .x = b->x, .y = b->z};
    return ops_dropout(b->ops, NULL, &a);
}

static cz_status run_scan(struct bench *b, const struct shape *s)
{
    struct scan_result r;
    struct scan_args a = {s->dtype, numel_of(s), b->x, &r, NULL};
    return ops_scan(b->ops, NULL, &a);
}

static cz_status run_squares(struct bench *b, const struct shape *s)
{
    struct scan_result r;
    uint64_t squares[SQUARES_DIGITS] = {0};
    struct scan_args a = {s->dtype, numel_of(s), b->x, &r, squares};
    return ops_scan(b->ops, NULL, &a);
}

static struct norm_args norm_of(struct bench *b, const struct shape *s)
{
    char *grads = b->grads;
    return (struct norm_args){.N = s->N,
                              .C = s->C,
                              .dtype = s->dtype,
                              .eps = 1e-5f,
                              .x = b->x,
                              .weight = b->v,
                              .y = b->z,
                              .mean = b->stats,
                              .rstd = b->stats + s->N,
                              .dy = b->y,
                              .dx = b->z,
                              .dweight = grads,
                              .dbias = grads + (1 << 19),
                              .workspace = b->workspace,
                              .workspace_nbytes = b->workspace_nbytes};
}

static cz_status run_layernorm(struct bench *b, const struct shape *s)
{
    struct norm_args a = norm_of(b, s);
    a.bias = b->w;
    return ops_layernorm_forward(b->ops, NULL, &a);
}

static cz_status run_layernorm_residual(struct bench *b, const struct shape *s)
{
    struct norm_args a = norm_of(b, s);
    a.bias = b->w, a.residual = b->y, a.sum = b->w2;
    return ops_layernorm_forward(b->ops, NULL, &a);
}

static cz_status run_layernorm_backward(struct bench *b, const struct shape *s)
{
    struct norm_args a = norm_of(b, s);
    return ops_layernorm_backward(b->ops, NULL, &a);
}

static cz_status run_rmsnorm(struct bench *b, const struct shape *s)
{
    struct norm_args a = norm_of(b, s);
    a.dbias = NULL;
    return ops_rmsnorm_forward(b->ops, NULL, &a);
}

static cz_status run_rmsnorm_backward(struct bench *b, const struct shape *s)
{
    struct norm_args a = norm_of(b, s);
    a.dbias = NULL;
    return ops_rmsnorm_backward(b->ops, NULL, &a);
}

/* Heads of 64 over the columns; cos and sin tables are in v and w2. */
static cz_status run_rope(struct bench *b, const struct shape *s)
{
    struct rope_args a = {.N = s->N,
                          .H = s->C / 64,
                          .D = 64,
                          .dtype = s->dtype,
                          .stride = s->C,
                          .T = 1024,
                          .cos = b->v,
                          .sin = b->w2,
                          .x = b->z};
    return ops_rope(b->ops, NULL, &a);
}

enum { VOCABULARY = 50257 };

/* Each token another row of the table, as far as there are; dtable is added to. */
static struct embedding_args embedding_of(struct bench *b, const struct shape *s)
{
    return (struct embedding_args){.N = s->N,
                                   .C = s->C,
                                   .V = VOCABULARY * 768 / s->C,
                                   .dtype = s->dtype,
                                   .ids = b->ids,
                                   .table = b->table,
                                   .y = b->z,
                                   .dy = b->x,
                                   .dtable = b->table,
                                   .dtable_accumulate = true,
                                   .grad_dtype = s->dtype,
                                   .workspace = b->workspace,
                                   .workspace_nbytes = b->workspace_nbytes};
}

static cz_status run_embedding(struct bench *b, const struct shape *s)
{
    struct embedding_args a = embedding_of(b, s);
    return ops_embedding_forward(b->ops, NULL, &a);
}

static cz_status run_embedding_backward(struct bench *b, const struct shape *s)
{
    struct embedding_args a = embedding_of(b, s);
    return ops_embedding_backward(b->ops, NULL, &a);
}

static const struct bench_op table[] = {
    {"add", 2, 1, run_add},
    {"scale", 1, 1, run_scale},
    {"bias_grad", 1, 0, run_bias_grad},
    {"gelu_tanh", 1, 1, run_gelu_tanh},
    {"gelu_tanh_backward", 2, 1, run_gelu_tanh_backward},
    {"gelu_erf", 1, 1, run_gelu_erf},
    {"gelu_erf_backward", 2, 1, run_gelu_erf_backward},
    {"swiglu", 2, 1, run_swiglu},
    {"swiglu_backward", 3, 2, run_swiglu_backward},
    {"dropout", 1, 1, run_dropout},
    {"scan", 1, 0, run_scan},
    {"scan with squares", 1, 0, run_squares},
    {"layernorm", 1, 1, run_layernorm},
    {"layernorm_residual", 2, 2, run_layernorm_residual},
    {"layernorm_backward", 2, 1, run_layernorm_backward},
    {"rmsnorm", 1, 1, run_rmsnorm},
    {"rmsnorm_backward", 2, 1, run_rmsnorm_backward},
    {"rope", 1, 1, run_rope},
    {"embedding", 1, 1, run_embedding},
    {"embedding_backward", 2, 1, run_embedding_backward},
};

/* The yardstick: a[i] = b[i] + 3·c[i] over `nbytes` in all. Runs like any op, so it is measured
 * like one. */
static void triad(struct bench *b, size_t nbytes)
{
    size_t numel = nbytes / 3 / sizeof(float);
    float *restrict out = b->z;
    const float *restrict p = b->x, *restrict q = b->y;
#pragma omp parallel for simd schedule(static)
    for (size_t i = 0; i < numel; i++) out[i] = p[i] + 3.0f * q[i];
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

#define N_RUNS_MAX 2000

struct times {
    double min, median, p90; /* seconds */
};

static struct times summarise(double *seconds, int n)
{
    qsort(seconds, (size_t)n, sizeof *seconds, compare_doubles);
    return (struct times){seconds[0], seconds[n / 2], seconds[n * 9 / 10]};
}

/* Op and triad in turns until the time is used up, so that both see the same machine. */
static cz_status measure(struct bench *b, const struct bench_op *op, const struct shape *s)
{
    static double op_seconds[N_RUNS_MAX], triad_seconds[N_RUNS_MAX];
    double nbytes =
        (op->n_read + op->n_written) * (double)numel_of(s) * (double)dtype_size(s->dtype);
    size_t triad_nbytes =
        (size_t)nbytes < 3 * b->buffer_nbytes ? (size_t)nbytes : 3 * b->buffer_nbytes;
    int n = 0;
    int64_t start = clock_now_ns();
    TRY(op->run(b, s));
    triad(b, triad_nbytes);
    while (n < N_RUNS_MAX && (n < 5 || (double)(clock_now_ns() - start) * 1e-9 < b->seconds)) {
        int64_t t0 = clock_now_ns();
        TRY(op->run(b, s));
        int64_t t1 = clock_now_ns();
        triad(b, triad_nbytes);
        int64_t t2 = clock_now_ns();
        op_seconds[n] = (double)(t1 - t0) * 1e-9;
        triad_seconds[n++] = (double)(t2 - t1) * 1e-9 * nbytes / (double)triad_nbytes;
    }
    struct times ours = summarise(op_seconds, n), limit = summarise(triad_seconds, n);
    printf("%-20s %-5s %6lldx%-6lld %9.1f %9.1f %9.1f %8.1f %8.1f %7.0f %%\n", op->name,
           dtype_name(s->dtype), (long long)s->N, (long long)s->C, ours.min * 1e6,
           ours.median * 1e6, ours.p90 * 1e6, nbytes / ours.min * 1e-9, nbytes / limit.min * 1e-9,
           100.0 * limit.min / ours.min);
    return CZ_OK;
}

static bool wanted(const char *name, int n_names, char **names)
{
    for (int i = 0; i < n_names; i++)
        if (strstr(name, names[i])) return true;
    return n_names == 0;
}

static cz_status buffer(struct bench *b, const char *what, size_t nbytes, void **out)
{
    /* Each starts at another offset in its page, so that tensors do not share cache sets. */
    static size_t skew;
    void *base;
    TRY(b->dev->ops->mem_alloc(b->dev, nbytes + 65536, what, &base));
    skew += 4096 + 576;
    *out = (char *)base + skew % 65536 / 64 * 64;
    return CZ_OK;
}

/* Values in [−2, 2) in the first three tensors, whatever dtype reads them. */
static cz_status fill(struct bench *b, enum cz_dtype dtype)
{
    void *tensors[] = {b->x, b->y, b->w};
    size_t numel = b->buffer_nbytes / dtype_size(dtype);
    for (size_t t = 0; t < 3; t++)
        for (size_t i = 0; i < numel; i++) {
            float v = (float)((i * 2654435761u >> 8) & 0xffff) * 0x1p-14f - 2.0f;
            if (dtype == DTYPE_F32)
                ((float *)tensors[t])[i] = v;
            else
                ((uint16_t *)tensors[t])[i] = dtype == DTYPE_BF16 ? f32_to_bf16(v) : f32_to_f16(v);
        }
    return CZ_OK;
}

static cz_status setup(struct bench *b)
{
    b->buffer_nbytes = (size_t)128 << 20;
    b->workspace_nbytes = (size_t)64 << 20;
    TRY(device_open("cpu", 0, &b->dev));
    TRY(ops_create(b->dev, &b->ops));
    TRY(buffer(b, "x", b->buffer_nbytes, &b->x));
    TRY(buffer(b, "y", b->buffer_nbytes, &b->y));
    TRY(buffer(b, "z", b->buffer_nbytes, &b->z));
    TRY(buffer(b, "w", b->buffer_nbytes, &b->w));
    TRY(buffer(b, "v", b->buffer_nbytes, &b->v));
    TRY(buffer(b, "w2", b->buffer_nbytes, &b->w2));
    TRY(buffer(b, "grads", (size_t)1 << 20, &b->grads));
    TRY(buffer(b, "workspace", b->workspace_nbytes, &b->workspace));
    TRY(buffer(b, "table", (size_t)VOCABULARY * 768 * sizeof(float), &b->table));
    void *stats, *ids;
    TRY(buffer(b, "ids", (size_t)1 << 20, &ids));
    b->ids = ids;
    for (int i = 0; i < 1 << 18; i++) b->ids[i] = (int32_t)(i * 7919L % (VOCABULARY / 4));
    TRY(buffer(b, "stats", (size_t)4 << 20, &stats));
    b->stats = stats;
    return CZ_OK;
}

static cz_status run_all(struct bench *b, int n_names, char **names)
{
    static const struct shape shapes[] = {
        {1024, 768, DTYPE_F32},  {1024, 3072, DTYPE_F32},  {40960, 768, DTYPE_F32},
        {1024, 768, DTYPE_BF16}, {1024, 3072, DTYPE_BF16}, {81920, 768, DTYPE_BF16},
    };
    TRY(setup(b));
    printf("%s, %d thread(s), %s rows\n", cpu_model_name(), threads_count(), ops_isa(b->ops));
    printf("%-20s %-5s %13s %9s %9s %9s %8s %8s %9s\n", "op", "dtype", "shape", "min us", "median",
           "p90", "GB/s", "triad", "of triad");
    for (size_t d = 0; d < 2; d++) {
        TRY(fill(b, d == 0 ? DTYPE_F32 : DTYPE_BF16));
        for (size_t i = 0; i < CZ_ARRAY_LEN(table); i++)
            for (size_t s = 3 * d; s < 3 * d + 3 && wanted(table[i].name, n_names, names); s++)
                TRY(measure(b, &table[i], &shapes[s]));
    }
    return CZ_OK;
}

int main(int argc, char **argv)
{
    struct bench b = {.seconds = 0.3};
    int first = 1;
    if (argc > 2 && strcmp(argv[1], "--seconds") == 0) {
        b.seconds = atof(argv[2]);
        first = 3;
    }
    threads_init(1);
    cz_status st = run_all(&b, argc - first, argv + first);
    if (st != CZ_OK) fprintf(stderr, "bench_ops: %s\n", cz_last_error());
    ops_destroy(b.ops);
    device_close(b.dev);
    return st == CZ_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
