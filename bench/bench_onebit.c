/* The 1-bit family's kernels on the host beside the STREAM triad, on the same threads, in turns.
 *
 * Everything is fp32; bytes per element are those that must move, signs included: an exchange is
 * feed (momentum, gradient and error in, error out), pack (error in and out), serve (the same, and
 * a bit of each rank) and unpack (momentum out).
 * Triad: a[i] = b[i] + s·c[i], 12 bytes per element (STREAM does not count that an ordinary store
 * reads its line first). "streamed" stores past the cache. "in place": a[i] = s·a[i], 8 bytes, none
 * uncounted: what pack could reach at best. unpack only writes, and each line is read first.
 * serve is over the numel/W elements of a rank's own chunk in an exchange; here over all.
 * Arrays are four times an L3 of 32 MiB; give --numel for a larger one.
 *
 *   bench_onebit [--numel N] [--runs R] [--cpu] [name …]   lines whose name holds one of the words
 * --cpu counts processor time instead of the clock on the wall: for one thread (OMP_NUM_THREADS=1)
 * on a machine that is not ours alone. */
#include "base/arena.h"
#include "base/cpu.h"
#include "base/threads.h"
#include "ops/lamb/lamb.h"
#include "ops/onebit/onebit.h"
#include "ops/ops.h"

#include <emmintrin.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RANKS_MAX = 8 };

struct bench {
    struct device *dev;
    struct ops *ops;
    struct arena arena;
    size_t numel;
    bool cpu_time;
    void *e, *m, *g, *v, *fresh, *p, *a;
    void *bits; /* of RANKS_MAX vectors */
    void *mask;
    double *partials;
    float scales[RANKS_MAX];
    struct step_scalars scalars;
};

/* ---- yardsticks -------------------------------------------------------------------------------
 */

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

static cz_status in_place(struct bench *b)
{
    float *a = b->a;
#pragma omp parallel for simd schedule(static)
    for (size_t i = 0; i < b->numel; i++) a[i] *= -1.0f;
    return CZ_OK;
}

/* ---- an exchange ------------------------------------------------------------------------------
 */

static cz_status feed(struct bench *b, const void *g, const float *m)
{
    const struct onebit_feed_args args = {.numel = b->numel,
                                          .m = m,
                                          .g = g,
                                          .scalars = &b->scalars,
                                          .coeff = 1,
                                          .e = b->e,
                                          .partials = b->partials};
    return ops_onebit_feed(b->ops, NULL, &args);
}

static cz_status feed_momentum(struct bench *b)
{
    return feed(b, b->g, b->m);
}

static cz_status feed_gradient(struct bench *b)
{
    return feed(b, b->g, NULL);
}

/* In two chunks. */
static cz_status pack(struct bench *b)
{
    const struct onebit_pack_args args = {.numel = b->numel,
                                          .chunk_numel = b->numel / 2,
                                          .chunk_stride = b->numel / 16,
                                          .scale = &b->scales[0],
                                          .e = b->e,
                                          .bits = b->bits};
    return ops_onebit_pack(b->ops, NULL, &args);
}

static cz_status serve(struct bench *b, int n_ranks)
{
    const struct onebit_serve_args args = {.numel = b->numel,
                                           .n_ranks = n_ranks,
                                           .bits = b->bits,
                                           .rank_stride = b->numel / 8,
                                           .scales = b->scales,
                                           .scale_stride = 1,
                                           .inv_ranks = 1.0f / (float)n_ranks,
                                           .e = b->e,
                                           .partials = b->partials};
    return ops_onebit_serve(b->ops, NULL, &args);
}

static cz_status serve_2(struct bench *b)
{
    return serve(b, 2);
}

static cz_status serve_4(struct bench *b)
{
    return serve(b, 4);
}

static cz_status serve_8(struct bench *b)
{
    return serve(b, 8);
}

static struct onebit_unpack_args unpack_args(struct bench *b)
{
    return (struct onebit_unpack_args){.end = b->numel,
                                       .chunk_numel = b->numel / 2,
                                       .chunk_stride = b->numel / 16,
                                       .bits = b->bits,
                                       .scales = b->scales,
                                       .scale_stride = 1,
                                       .coeff = 1,
                                       .mask = {.bits = b->mask, .first = 0},
                                       .scalars = &b->scalars,
                                       .x = b->m};
}

static cz_status unpack(struct bench *b)
{
    const struct onebit_unpack_args args = unpack_args(b);
    return ops_onebit_unpack(b->ops, NULL, &args);
}

/* From bit 3 of a byte on, the mask from bit 5: as tensors are in a segment. */
static cz_status unpack_unaligned(struct bench *b)
{
    struct onebit_unpack_args args = unpack_args(b);
    args.begin = 3;
    args.mask.first = 5;
    return ops_onebit_unpack(b->ops, NULL, &args);
}

static cz_status unpack_blend(struct bench *b)
{
    struct onebit_unpack_args args = unpack_args(b);
    args.blend = &b->scalars;
    return ops_onebit_unpack(b->ops, NULL, &args);
}

static cz_status unpack_fresh(struct bench *b)
{
    struct onebit_unpack_args args = unpack_args(b);
    args.fresh = b->fresh;
    return ops_onebit_unpack(b->ops, NULL, &args);
}

/* ---- around it --------------------------------------------------------------------------------
 */

static cz_status lamb_norms(struct bench *b)
{
    struct lamb_sums sums = {{0}, {0}};
    float factor = 0;
    const struct lamb_segment segment = {0, b->numel, 0};
    const struct onebit_lamb_norms_args args = {.numel = b->numel,
                                                .m = b->m,
                                                .v = b->v,
                                                .fresh = b->fresh,
                                                .p = b->p,
                                                .eps = 1e-8f,
                                                .weight_decay = 0.01f,
                                                .mask = {.bits = b->mask, .first = 0},
                                                .segments = &segment,
                                                .n_segments = 1,
                                                .sums = &sums,
                                                .factors = &factor};
    return ops_onebit_lamb_norms(b->ops, NULL, &args);
}

/* eps 1: what is moved keeps its size from call to call. */
static struct zero_one_args zero_one_args(struct bench *b)
{
    return (struct zero_one_args){.numel = b->numel,
                                  .g = b->g,
                                  .scalars = &b->scalars,
                                  .eps = 1,
                                  .weight_decay = 0.01f,
                                  .mask = {.bits = b->mask, .first = 0},
                                  .m = b->m,
                                  .moved = b->e,
                                  .v = b->v,
                                  .p = b->p,
                                  .out = b->a};
}

static cz_status zero_one_local(struct bench *b)
{
    const struct zero_one_args args = zero_one_args(b);
    return ops_zero_one_local(b->ops, NULL, &args);
}

static cz_status zero_one_gather(struct bench *b)
{
    const struct zero_one_args args = zero_one_args(b);
    return ops_zero_one_gather(b->ops, NULL, &args);
}

static cz_status zero_one_settle(struct bench *b)
{
    const struct zero_one_args args = zero_one_args(b);
    return ops_zero_one_settle(b->ops, NULL, &args);
}

/* ---- lines ------------------------------------------------------------------------------------
 */

#define N_RUNS_MAX   1000
#define BIT          0.125
#define N_YARDSTICKS 3

static struct line {
    const char *name;
    double nbytes; /* per element */
    cz_status (*run)(struct bench *b);
    bool skipped;
    double seconds[N_RUNS_MAX];
} lines[] = {
    {.name = "triad", .nbytes = 12, .run = triad},
    {.name = "triad_streamed", .nbytes = 12, .run = triad_streamed},
    {.name = "in_place", .nbytes = 8, .run = in_place},
    {.name = "feed_momentum", .nbytes = 16, .run = feed_momentum},
    {.name = "feed_gradient", .nbytes = 12, .run = feed_gradient},
    {.name = "pack", .nbytes = 8 + BIT, .run = pack},
    {.name = "serve_2", .nbytes = 8 + 2 * BIT, .run = serve_2},
    {.name = "serve_4", .nbytes = 8 + 4 * BIT, .run = serve_4},
    {.name = "serve_8", .nbytes = 8 + 8 * BIT, .run = serve_8},
    {.name = "unpack", .nbytes = 4 + 2 * BIT, .run = unpack},
    {.name = "unpack_unaligned", .nbytes = 4 + 2 * BIT, .run = unpack_unaligned},
    {.name = "unpack_blend", .nbytes = 8 + 2 * BIT, .run = unpack_blend},
    {.name = "unpack_fresh", .nbytes = 16 + 2 * BIT, .run = unpack_fresh},
    {.name = "lamb_norms", .nbytes = 16 + BIT, .run = lamb_norms},
    {.name = "zero_one_local", .nbytes = 32 + BIT, .run = zero_one_local},
    {.name = "zero_one_gather", .nbytes = 12, .run = zero_one_gather},
    {.name = "zero_one_settle", .nbytes = 28, .run = zero_one_settle},
};

/* ---- running ----------------------------------------------------------------------------------
 */

/* Values as in the middle of a training; signs at random. */
static void fill(struct bench *b)
{
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < b->numel; i++) {
        float x = (float)((i * 2654435761u >> 8) & 0xffff) * 0x1p-15f - 1.0f;
        ((float *)b->p)[i] = x;
        ((float *)b->m)[i] = 1e-3f * x;
        ((float *)b->v)[i] = ((float *)b->fresh)[i] = 1e-6f * x * x;
        ((float *)b->g)[i] = -2e-3f * x;
        ((float *)b->e)[i] = 5e-4f * x;
    }
    for (size_t k = 0; k < b->numel; k++)
        ((uint8_t *)b->bits)[k] = (uint8_t)((k * 2654435761u) >> 11);
    memset(b->mask, 0xff, b->numel / 8 + 1);
    for (int q = 0; q < RANKS_MAX; q++) b->scales[q] = 1e-3f + 1e-5f * (float)q;
}

static cz_status setup(struct bench *b)
{
    size_t wide = b->numel * sizeof(float), nbytes = b->numel / 8 + 1;
    void *partials;
    struct {
        const char *what;
        size_t nbytes;
        void **out;
    } arrays[] = {{"e", wide, &b->e},
                  {"m", wide, &b->m},
                  {"g", wide, &b->g},
                  {"v", wide, &b->v},
                  {"fresh", wide, &b->fresh},
                  {"p", wide, &b->p},
                  {"a", wide, &b->a},
                  {"bits", RANKS_MAX * nbytes, &b->bits},
                  {"mask", nbytes, &b->mask},
                  {"partials", onebit_n_partials(b->numel) * sizeof(double), &partials}};
    size_t total = 0;
    for (size_t i = 0; i < CZ_ARRAY_LEN(arrays); i++) total += arena_piece(arrays[i].nbytes);
    TRY(device_open("cpu", 0, &b->dev));
    TRY(ops_create(b->dev, &b->ops));
    TRY(arena_init(&b->arena, "bench_onebit", total));
    for (size_t i = 0; i < CZ_ARRAY_LEN(arrays); i++)
        TRY(arena_take(&b->arena, arrays[i].nbytes, arrays[i].what, arrays[i].out));
    b->partials = partials;
    b->scalars = (struct step_scalars){
        .grad_scale = 0.5f, .lr = 1e-4f, .beta1 = 0.9f, .beta2 = 0.999f, .step_size = 1e-3f};
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

/* All lines in turns, so that they see the same machine; one turn to warm up. */
static cz_status measure(struct bench *b, int n_runs)
{
    for (int r = -1; r < n_runs; r++)
        for (size_t i = 0; i < CZ_ARRAY_LEN(lines); i++) {
            if (lines[i].skipped) continue;
            double begin = now(b);
            TRY(lines[i].run(b));
            lines[i].seconds[r < 0 ? 0 : r] = now(b) - begin;
        }
    for (size_t i = 0; i < CZ_ARRAY_LEN(lines); i++)
        qsort(lines[i].seconds, (size_t)n_runs, sizeof(double), compare_doubles);
    return CZ_OK;
}

static void report(const struct bench *b, int n_runs)
{
    double numel = (double)b->numel;
    printf("%s, %d thread(s), %s rows, %.0f M elements, %d runs\n", cpu_model_name(),
           threads_count(), ops_isa(b->ops), numel * 1e-6, n_runs);
    printf("%-16s %9s %9s %9s %9s %10s %10s %10s\n", "", "min ms", "median", "max", "GB/s",
           "of triad", "streamed", "in place");
    for (size_t i = 0; i < CZ_ARRAY_LEN(lines); i++) {
        const double *t = lines[i].seconds;
        if (lines[i].skipped) continue;
        double per_byte = t[0] / lines[i].nbytes;
        printf("%-16s %9.2f %9.2f %9.2f %9.2f", lines[i].name, t[0] * 1e3, t[n_runs / 2] * 1e3,
               t[n_runs - 1] * 1e3, numel / per_byte * 1e-9);
        for (size_t y = 0; y < N_YARDSTICKS; y++)
            printf(" %8.0f %%", 100 * lines[y].seconds[0] / lines[y].nbytes / per_byte);
        printf("\n");
    }
}

/* The yardsticks always run: what the others are compared with. */
static void choose(char **names, int n_names)
{
    for (size_t i = N_YARDSTICKS; i < CZ_ARRAY_LEN(lines); i++) {
        lines[i].skipped = n_names > 0;
        for (int n = 0; n < n_names; n++)
            if (strstr(lines[i].name, names[n])) lines[i].skipped = false;
    }
}

int main(int argc, char **argv)
{
    struct bench b = {.numel = (size_t)32 << 20};
    int n_runs = 10;
    char *names[argc];
    int n_names = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--cpu") == 0)
            b.cpu_time = true;
        else if (strcmp(argv[i], "--numel") == 0 && i + 1 < argc)
            b.numel = (size_t)strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--runs") == 0 && i + 1 < argc)
            n_runs = atoi(argv[++i]);
        else
            names[n_names++] = argv[i];
    }
    if (b.numel < 16 || b.numel % 16 != 0 || n_runs < 1 || n_runs > N_RUNS_MAX) {
        fprintf(stderr, "bench_onebit: --numel must be a multiple of 16, --runs 1 to %d\n",
                N_RUNS_MAX);
        return 2;
    }
    choose(names, n_names);
    threads_init(1);
    cz_status st = setup(&b);
    if (st == CZ_OK) st = measure(&b, n_runs);
    if (st == CZ_OK) report(&b, n_runs);
    if (st != CZ_OK) fprintf(stderr, "bench_onebit: %s\n", cz_last_error());
    arena_free(&b.arena);
    ops_destroy(b.ops);
    device_close(b.dev);
    return st == CZ_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
