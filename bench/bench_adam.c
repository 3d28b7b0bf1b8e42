/* The optimizer steps on the host beside the STREAM triad, on the same threads, in turns.
 *
 * fp32: gradient and parameter in fp32, in place. bf16, fp16: gradient in, parameter out, around
 * fp32 master and states. masters16: master, gradient and states in bf16. Bytes per parameter are
 * those that must move: Adam 28 (14 with masters16), Lion, Adagrad and SGD with momentum 20, Lamb,
 * which reads everything twice, 40.
 * Triad: a[i] = b[i] + s·c[i] over fp32 arrays as large as the states, 12 bytes per element (STREAM
 * does not count that an ordinary store reads its line first). "streamed" stores past the cache.
 *
 *   bench_adam [--numel N] [--runs R] [name …]   lines whose name holds one of the words
 *   bench_adam [--numel N] --serve   reads names of lines, answers each with its seconds
 * --cpu counts processor time instead of the clock on the wall: for one thread (OMP_NUM_THREADS=1)
 * on a machine that is not ours alone.
 * bench/bench_adam.py uses the second form to run this in turns with PyTorch and DeepSpeed. */
#include "base/arena.h"
#include "base/cpu.h"
#include "base/threads.h"
#include "ops/lamb/lamb.h"
#include "ops/ops.h"
#include "ops/step/step.h"

#include <emmintrin.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct bench {
    struct device *dev;
    struct ops *ops;
    struct arena arena;
    size_t numel;
    bool cpu_time;
    void *p, *m, *v, *g32, *g16, *out16, *a;
    void *low[2]; /* bf16 states */
    struct step_scalars scalars;
};

/* Everything in fp32, or a gradient and a parameter of 16 bits around it. */
static struct step_tensors tensors_of(struct bench *b, enum cz_dtype dtype)
{
    const bool wide = dtype == DTYPE_F32;
    return (struct step_tensors){.numel = b->numel,
                                 .p = b->p,
                                 .g = wide ? b->g32 : b->g16,
                                 .g_dtype = dtype,
                                 .states = {b->m, b->v},
                                 .out = wide ? NULL : b->out16,
                                 .out_dtype = dtype};
}

static cz_status adam(struct bench *b, const struct step_tensors *t)
{
    const struct step_args args = {.op = STEP_ADAM,
                                   .t = *t,
                                   .scalars = &b->scalars,
                                   .eps = 1e-8f,
                                   .weight_decay = 0.01f,
                                   .decoupled = true};
    return ops_step(b->ops, NULL, &args);
}

static cz_status adam_fp32(struct bench *b)
{
    const struct step_tensors t = tensors_of(b, DTYPE_F32);
    return adam(b, &t);
}

static cz_status adam_bf16(struct bench *b)
{
    const struct step_tensors t = tensors_of(b, DTYPE_BF16);
    return adam(b, &t);
}

/* The gradients' bits are small numbers in fp16, too. */
static cz_status adam_fp16(struct bench *b)
{
    const struct step_tensors t = tensors_of(b, DTYPE_F16);
    return adam(b, &t);
}

/* fp32 gradients of a bf16 model (grad_accum_dtype). */
static cz_status adam_accum32(struct bench *b)
{
    struct step_tensors t = tensors_of(b, DTYPE_BF16);
    t.g = b->g32;
    t.g_dtype = DTYPE_F32;
    return adam(b, &t);
}

/* The low halves of fp32 arrays serve: their contents do not matter. */
static cz_status adam_masters16(struct bench *b)
{
    const struct step_tensors t = {.numel = b->numel,
                                   .p = b->out16,
                                   .p_dtype = DTYPE_BF16,
                                   .g = b->g16,
                                   .g_dtype = DTYPE_BF16,
                                   .states = {b->low[0], b->low[1]},
                                   .state_dtype = DTYPE_BF16};
    return adam(b, &t);
}

static cz_status lion(struct bench *b, enum cz_dtype dtype)
{
    const struct step_args args = {
        .op = STEP_LION, .t = tensors_of(b, dtype), .scalars = &b->scalars, .weight_decay = 0.01f};
    return ops_step(b->ops, NULL, &args);
}

static cz_status lion_fp32(struct bench *b)
{
    return lion(b, DTYPE_F32);
}

static cz_status lion_bf16(struct bench *b)
{
    return lion(b, DTYPE_BF16);
}

static cz_status adagrad(struct bench *b, enum cz_dtype dtype)
{
    struct step_args args = {.op = STEP_ADAGRAD,
                             .t = tensors_of(b, dtype),
                             .scalars = &b->scalars,
                             .eps = 1e-10f,
                             .weight_decay = 0.01f};
    args.t.states[0] = b->v; /* sums of squares */
    return ops_step(b->ops, NULL, &args);
}

static cz_status adagrad_fp32(struct bench *b)
{
    return adagrad(b, DTYPE_F32);
}

static cz_status adagrad_bf16(struct bench *b)
{
    return adagrad(b, DTYPE_BF16);
}

static cz_status sgd_fp32(struct bench *b)
{
    const struct step_args args = {
        .op = STEP_SGD, .t = tensors_of(b, DTYPE_F32), .scalars = &b->scalars, .momentum = 0.9f};
    return ops_step(b->ops, NULL, &args);
}

/* Both passes, over tensors of the size of a GPT-2 124M layer's largest. */
static cz_status lamb(struct bench *b, enum cz_dtype dtype)
{
    enum { TENSORS_MAX = 1024 };
    static struct lamb_segment segments[TENSORS_MAX];
    static struct lamb_sums sums[TENSORS_MAX];
    static float ratios[TENSORS_MAX];
    const size_t least = (size_t)768 * 3072, even = (b->numel + TENSORS_MAX - 1) / TENSORS_MAX;
    const size_t size = even > least ? even : least;
    size_t n = 0;
    for (size_t at = 0; at < b->numel; at += size, n++)
        segments[n] = (struct lamb_segment){at, at + size < b->numel ? at + size : b->numel, n};
    memset(sums, 0, n * sizeof *sums);
    const struct lamb_args args = {.t = tensors_of(b, dtype),
                                   .scalars = &b->scalars,
                                   .eps = 1e-6f,
                                   .weight_decay = 0.01f,
                                   .segments = segments,
                                   .n_segments = n,
                                   .sums = sums,
                                   .ratios = ratios};
    TRY(ops_lamb_moments(b->ops, NULL, &args));
    for (size_t i = 0; i < n; i++) ratios[i] = lamb_ratio(&sums[i], 0.01, 10);
    return ops_lamb_apply(b->ops, NULL, &args);
}

static cz_status lamb_fp32(struct bench *b)
{
    return lamb(b, DTYPE_F32);
}

static cz_status lamb_bf16(struct bench *b)
{
    return lamb(b, DTYPE_BF16);
}

static cz_status triad(struct bench *b)
{
    float *restrict out = b->a;
    const float *restrict x = b->p, *restrict y = b->m;
#pragma omp parallel for simd schedule(static)
    for (size_t i = 0; i < b->numel; i++) out[i] = x[i] + 3.0f * y[i];
    return CZ_OK;
}

static cz_status triad_streamed(struct bench *b)
{
    float *restrict out = b->a;
    const float *restrict x = b->p, *restrict y = b->m;
    const __m128 scale = _mm_set1_ps(3.0f);
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < b->numel / 4; i++)
        _mm_stream_ps(out + 4 * i, _mm_add_ps(_mm_load_ps(x + 4 * i),
                                              _mm_mul_ps(scale, _mm_load_ps(y + 4 * i))));
    return CZ_OK;
}

#define N_RUNS_MAX 1000

static struct line {
    const char *name;
    double nbytes; /* per element */
    cz_status (*run)(struct bench *b);
    bool skipped;
    double seconds[N_RUNS_MAX];
} lines[] = {
    {.name = "triad", .nbytes = 12, .run = triad},
    {.name = "triad_streamed", .nbytes = 12, .run = triad_streamed},
    {.name = "adam_fp32", .nbytes = 28, .run = adam_fp32},
    {.name = "adam_bf16", .nbytes = 28, .run = adam_bf16},
    {.name = "adam_fp16", .nbytes = 28, .run = adam_fp16},
    {.name = "adam_accum32", .nbytes = 30, .run = adam_accum32},
    {.name = "adam_masters16", .nbytes = 14, .run = adam_masters16},
    {.name = "lion_fp32", .nbytes = 20, .run = lion_fp32},
    {.name = "lion_bf16", .nbytes = 20, .run = lion_bf16},
    {.name = "adagrad_fp32", .nbytes = 20, .run = adagrad_fp32},
    {.name = "adagrad_bf16", .nbytes = 20, .run = adagrad_bf16},
    {.name = "sgd_fp32", .nbytes = 20, .run = sgd_fp32},
    {.name = "lamb_fp32", .nbytes = 40, .run = lamb_fp32},
    {.name = "lamb_bf16", .nbytes = 40, .run = lamb_bf16},
};

/* Values as in the middle of a training. */
static void fill(struct bench *b)
{
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < b->numel; i++) {
        float x = (float)((i * 2654435761u >> 8) & 0xffff) * 0x1p-15f - 1.0f;
        ((float *)b->p)[i] = x;
        ((float *)b->m)[i] = 1e-3f * x;
        ((float *)b->v)[i] = 1e-6f * x * x;
        ((float *)b->g32)[i] = -2e-3f * x;
        ((uint16_t *)b->g16)[i] = f32_to_bf16(-2e-3f * x);
    }
}

static cz_status setup(struct bench *b)
{
    size_t wide = b->numel * sizeof(float), half = b->numel * sizeof(uint16_t);
    struct {
        const char *what;
        size_t nbytes;
        void **out;
    } arrays[] = {{"p", wide, &b->p},     {"m", wide, &b->m},     {"v", wide, &b->v},
                  {"g32", wide, &b->g32}, {"g16", half, &b->g16}, {"out16", half, &b->out16},
                  {"a", wide, &b->a}};
    size_t total = 0;
    for (size_t i = 0; i < CZ_ARRAY_LEN(arrays); i++) total += arena_piece(arrays[i].nbytes);
    TRY(device_open("cpu", 0, &b->dev));
    TRY(ops_create(b->dev, &b->ops));
    total += 2 * arena_piece(half);
    TRY(arena_init(&b->arena, "bench_adam", total));
    for (int i = 0; i < 2; i++) TRY(arena_take(&b->arena, half, "states", &b->low[i]));
    for (size_t i = 0; i < CZ_ARRAY_LEN(arrays); i++)
        TRY(arena_take(&b->arena, arrays[i].nbytes, arrays[i].what, arrays[i].out));
    b->scalars = (struct step_scalars){.grad_scale = 0.5f,
                                       .lr = 1e-4f,
                                       .beta1 = 0.9f,
                                       .beta2 = 0.999f,
                                       .inv_bias1 = 1.01f,
                                       .inv_sqrt_bias2 = 1.1f,
                                       .step_size = 1e-4f,
                                       .step = 100};
    fill(b);
    return CZ_OK;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double now(const struct bench *b)
{
    struct timespec ts;
    clock_gettime(b->cpu_time ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static cz_status timed(struct bench *b, const struct line *line, double *seconds)
{
    double begin = now(b);
    TRY(line->run(b));
    *seconds = now(b) - begin;
    return CZ_OK;
}

static cz_status serve(struct bench *b)
{
    char name[64];
    while (scanf("%63s", name) == 1)
        for (size_t i = 0; i < CZ_ARRAY_LEN(lines); i++) {
            double seconds = 0;
            if (strcmp(lines[i].name, name) != 0) continue;
            TRY(timed(b, &lines[i], &seconds));
            printf("%.9f\n", seconds);
            fflush(stdout);
        }
    return CZ_OK;
}

/* All lines in turns, so that they see the same machine; one turn to warm up. */
static cz_status measure(struct bench *b, int n_runs)
{
    for (int r = -1; r < n_runs; r++)
        for (size_t i = 0; i < CZ_ARRAY_LEN(lines); i++)
            if (!lines[i].skipped) TRY(timed(b, &lines[i], &lines[i].seconds[r < 0 ? 0 : r]));
    for (size_t i = 0; i < CZ_ARRAY_LEN(lines); i++)
        qsort(lines[i].seconds, (size_t)n_runs, sizeof(double), compare_doubles);
    return CZ_OK;
}

static void report(const struct bench *b, int n_runs)
{
    double numel = (double)b->numel;
    printf("%s, %d thread(s), %s rows, %.0f M parameters, %d runs\n", cpu_model_name(),
           threads_count(), ops_isa(b->ops), numel * 1e-6, n_runs);
    printf("%-16s %9s %9s %9s %9s %10s %10s\n", "", "min ms", "median", "max", "GB/s", "of triad",
           "of streamed");
    for (size_t i = 0; i < CZ_ARRAY_LEN(lines); i++) {
        const double *t = lines[i].seconds;
        if (lines[i].skipped) continue;
        double per_byte = t[0] / lines[i].nbytes;
        printf("%-16s %9.2f %9.2f %9.2f %9.2f %8.0f %% %8.0f %%\n", lines[i].name, t[0] * 1e3,
               t[n_runs / 2] * 1e3, t[n_runs - 1] * 1e3, numel / per_byte * 1e-9,
               100 * lines[0].seconds[0] / lines[0].nbytes / per_byte,
               100 * lines[1].seconds[0] / lines[1].nbytes / per_byte);
    }
}

/* The triads always run: what the others are compared with. */
static void choose(char **names, int n_names)
{
    for (size_t i = 2; i < CZ_ARRAY_LEN(lines); i++) {
        lines[i].skipped = n_names > 0;
        for (int n = 0; n < n_names; n++)
            if (strstr(lines[i].name, names[n])) lines[i].skipped = false;
    }
}

int main(int argc, char **argv)
{
    struct bench b = {.numel = (size_t)64 << 20};
    int n_runs = 10;
    bool serving = false;
    char *names[argc];
    int n_names = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--serve") == 0)
            serving = true;
        else if (strcmp(argv[i], "--cpu") == 0)
            b.cpu_time = true;
        else if (strcmp(argv[i], "--numel") == 0 && i + 1 < argc)
            b.numel = (size_t)strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--runs") == 0 && i + 1 < argc)
            n_runs = atoi(argv[++i]);
        else
            names[n_names++] = argv[i];
    }
    if (b.numel < 1 || n_runs < 1 || n_runs > N_RUNS_MAX) {
        fprintf(stderr, "bench_adam: --numel must be 1 or more, --runs 1 to %d\n", N_RUNS_MAX);
        return 2;
    }
    choose(names, n_names);
    threads_init(1);
    cz_status st = setup(&b);
    if (st == CZ_OK) st = serving ? serve(&b) : measure(&b, n_runs);
    if (st == CZ_OK && !serving) report(&b, n_runs);
    if (st != CZ_OK) fprintf(stderr, "bench_adam: %s\n", cz_last_error());
    arena_free(&b.arena);
    ops_destroy(b.ops);
    device_close(b.dev);
    return st == CZ_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
