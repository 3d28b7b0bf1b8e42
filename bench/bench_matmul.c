/* The ops that multiply: matmul, attention and the fused head, at the sizes of GPT-2 124M.
 *
 * Every line gives the rate in GFLOP/s. Operations: 2·m·n·k for a product; attention counts its 2
 * products forward and 5 backward of the queries and keys that see each other; the head its 3.
 *
 *   bench_matmul [--seconds S per line] [--cpu] [word …]   only cases that hold all the words
 *   bench_matmul --serve      reads cases, one per line, runs each once and answers its seconds
 * bench/bench_matmul.py uses the second form to run this in turns with PyTorch. A case is a line as
 * in the table below. --cpu measures the calling thread's processor time, not the clock on the
 * wall: for one thread on a machine that is not ours alone. */
#include "base/cpu.h"
#include "base/threads.h"
#include "ops/attention/attention.h"
#include "ops/cross_entropy/cross_entropy.h"
#include "ops/matmul/matmul.h"
#include "ops/ops.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char *const table[] = {
    /* matmul DTYPE fwd|dgrad|wgrad N I O: x·w with w (I,O), dy·wᵀ, xᵀ·dy; *_t: w is (O,I) */
    "matmul fp32 fwd 1024 768 2304",
    "matmul fp32 dgrad 1024 768 2304",
    "matmul fp32 wgrad 1024 768 2304",
    "matmul fp32 fwd 1024 768 768",
    "matmul fp32 dgrad 1024 768 768",
    "matmul fp32 wgrad 1024 768 768",
    "matmul fp32 fwd 1024 768 3072",
    "matmul fp32 dgrad 1024 768 3072",
    "matmul fp32 wgrad 1024 768 3072",
    "matmul fp32 fwd 1024 3072 768",
    "matmul fp32 dgrad 1024 3072 768",
    "matmul fp32 wgrad 1024 3072 768",
    "matmul fp32 fwd_t 1 768 50257",
    "matmul bf16 fwd 1024 768 2304",
    "matmul bf16 dgrad 1024 768 2304",
    "matmul bf16 wgrad 1024 768 2304",
    "matmul bf16 fwd 1024 768 768",
    "matmul bf16 dgrad 1024 768 768",
    "matmul bf16 wgrad 1024 768 768",
    "matmul bf16 fwd 1024 768 3072",
    "matmul bf16 dgrad 1024 768 3072",
    "matmul bf16 wgrad 1024 768 3072",
    "matmul bf16 fwd 1024 3072 768",
    "matmul bf16 dgrad 1024 3072 768",
    "matmul bf16 wgrad 1024 3072 768",
    "matmul bf16 fwd_t 1 768 50257",
    "matmul fp16 fwd 1024 768 3072",
    "matmul fp16 dgrad 1024 768 3072",
    "matmul fp16 wgrad 1024 768 3072",
    /* attention DTYPE fwd|bwd B H T D [option …]: causal, packed qkv; options: windowN (keys),
       softcapN, documentsN (each of N positions) */
    "attention fp32 fwd 4 12 256 64",
    "attention fp32 bwd 4 12 256 64",
    "attention fp32 fwd 4 12 1024 64",
    "attention fp32 bwd 4 12 1024 64",
    "attention bf16 fwd 4 12 256 64",
    "attention bf16 bwd 4 12 256 64",
    "attention bf16 fwd 4 12 1024 64",
    "attention bf16 bwd 4 12 1024 64",
    "attention fp32 fwd 1 2 4096 64",
    "attention fp32 bwd 1 2 4096 64",
    "attention fp32 fwd 1 2 4096 64 window256",
    "attention fp32 bwd 1 2 4096 64 window256",
    "attention fp32 fwd 1 2 4096 64 documents128",
    "attention fp32 bwd 1 2 4096 64 documents128",
    "attention fp32 fwd 1 2 4096 64 softcap50",
    "attention fp32 bwd 1 2 4096 64 softcap50",
    /* ce_head DTYPE train|eval N C V */
    "ce_head fp32 train 1024 768 50257",
    "ce_head fp32 eval 1024 768 50257",
    "ce_head bf16 train 1024 768 50257",
    "ce_head bf16 eval 1024 768 50257",
    "ce_head fp16 train 1024 768 50257",
};

#define CASES_MAX 64

struct bench_case {
    char line[96];
    char op[16], dtype_name[16], form[16];
    long long size[4];
    enum cz_dtype dtype;
    double n_operations;
    union {
        struct matmul_args matmul;
        struct attention_args attention;
        struct ce_head_args ce_head;
    } args;
    float loss;
};

struct bench {
    struct device *dev;
    struct ops *ops;
    struct bench_case cases[CASES_MAX];
    size_t n_cases;
    bool cpu_time;
};

/* `numel` small values of `dtype`, never freed: a case exists until the program ends. */
static void *tensor(enum cz_dtype dtype, size_t numel)
{
    char *p = aligned_alloc(64, (numel * dtype_size(dtype) + 127) / 64 * 64);
    if (!p) return NULL;
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < numel; i++) {
        float x = (float)((i * 2654435761u >> 8) & 0xffff) * 0x1p-17f - 0.25f;
        uint16_t half = dtype == DTYPE_F16 ? f32_to_f16(x) : f32_to_bf16(x);
        if (dtype == DTYPE_F32)
            memcpy(p + i * sizeof x, &x, sizeof x);
        else
            memcpy(p + i * sizeof half, &half, sizeof half);
    }
    return p;
}

static void *room(size_t nbytes)
{
    void *p = aligned_alloc(64, (nbytes + 127) / 64 * 64);
    if (p) memset(p, 0, nbytes);
    return p;
}

static cz_status setup_matmul(struct bench *b, struct bench_case *c)
{
    const int64_t N = c->size[0], I = c->size[1], O = c->size[2];
    struct matmul_args *a = &c->args.matmul;
    bool stored_oi = strstr(c->form, "_t") != NULL;
    *a = (struct matmul_args){.dtype = c->dtype, .c_dtype = c->dtype};
    if (strncmp(c->form, "fwd", 3) == 0)
        a->m = N, a->n = O, a->k = I, a->trans_b = stored_oi;
    else if (strncmp(c->form, "dgrad", 5) == 0)
        a->m = N, a->n = I, a->k = O, a->trans_b = !stored_oi;
    else
        a->m = stored_oi ? O : I, a->n = stored_oi ? I : O, a->k = N, a->trans_a = true;
    a->a = tensor(c->dtype, (size_t)(a->m * a->k));
    a->b = tensor(c->dtype, (size_t)(a->k * a->n));
    a->c = tensor(c->dtype, (size_t)(a->m * a->n));
    TRY(ops_matmul_workspace(b->ops, a, &a->workspace_nbytes));
    a->workspace = room(a->workspace_nbytes);
    c->n_operations = 2.0 * (double)N * (double)I * (double)O;
    return CZ_OK;
}

/* The number that follows an option's name in a line; 0 where the line does not have it. */
static int64_t option_of(const char *line, const char *name)
{
    const char *at = strstr(line, name);
    return at ? atoll(at + strlen(name)) : 0;
}

/* Options of the line; returns the pairs of a query and a key that see each other, of one head. */
static double attention_options(const struct bench_case *c, struct attention_args *a)
{
    const int64_t T = a->Tk, window = option_of(c->line, "window");
    const int64_t document = option_of(c->line, "documents");
    int32_t *documents = document ? room((size_t)(a->B * T) * sizeof *documents) : NULL;
    double n_pairs = 0;
    for (int64_t i = 0; i < a->B * T; i++) {
        const int64_t t = i % T, of_window = window ? t + 1 - window : 0;
        const int64_t of_document = document ? t / document * document : 0;
        const int64_t first = of_window > of_document ? of_window : of_document;
        n_pairs += (double)(t + 1 - (first > 0 ? first : 0));
        if (documents) documents[i] = (int32_t)(t / document);
    }
    a->window = window, a->softcap = (float)option_of(c->line, "softcap");
    a->documents = documents;
    return n_pairs;
}

static cz_status setup_attention(struct bench *b, struct bench_case *c)
{
    const int64_t B = c->size[0], H = c->size[1], T = c->size[2], D = c->size[3], C = H * D;
    const size_t unit = dtype_size(c->dtype), N = (size_t)(B * T);
    bool backward = strcmp(c->form, "bwd") == 0;
    char *qkv = tensor(c->dtype, N * (size_t)(3 * C)), *d = tensor(c->dtype, N * (size_t)(3 * C));
    struct attention_args *a = &c->args.attention;
    *a = (struct attention_args){.B = B,
                                 .Tq = T,
                                 .Tk = T,
                                 .H = H,
                                 .G = H,
                                 .D = D,
                                 .dtype = c->dtype,
                                 .scale = 1.0f / sqrtf((float)D),
                                 .causal = true,
                                 .q = qkv,
                                 .k = qkv + (size_t)C * unit,
                                 .v = qkv + (size_t)(2 * C) * unit,
                                 .q_stride = 3 * C,
                                 .k_stride = 3 * C,
                                 .v_stride = 3 * C,
                                 .out = tensor(c->dtype, N * (size_t)C),
                                 .out_stride = C,
                                 .lse = tensor(DTYPE_F32, N * (size_t)H),
                                 .dout = tensor(c->dtype, N * (size_t)C),
                                 .dq = d,
                                 .dk = d + (size_t)C * unit,
                                 .dv = d + (size_t)(2 * C) * unit};
    const double n_pairs = attention_options(c, a);
    for (int i = 0; i <= (int)backward; i++) {
        a->workspace_nbytes = ops_attention_workspace(b->ops, a, i);
        a->workspace = room(a->workspace_nbytes);
        if (backward && i == 0) TRY(ops_attention_forward(b->ops, NULL, a));
    }
    c->n_operations = (backward ? 10.0 : 4.0) * n_pairs * (double)C;
    return CZ_OK;
}

static cz_status setup_ce_head(struct bench *b, struct bench_case *c)
{
    const int64_t N = c->size[0], C = c->size[1], V = c->size[2];
    bool train = strcmp(c->form, "train") == 0;
    int32_t *labels = room((size_t)N * sizeof *labels);
    for (int64_t n = 0; labels && n < N; n++) labels[n] = (int32_t)(n * 7919 % V);
    struct ce_head_args *a = &c->args.ce_head;
    *a = (struct ce_head_args){.N = N,
                               .C = C,
                               .V = V,
                               .dtype = c->dtype,
                               .grad_dtype = c->dtype,
                               .x = tensor(c->dtype, (size_t)(N * C)),
                               .w = tensor(c->dtype, (size_t)(V * C)),
                               .labels = labels,
                               .loss = &c->loss,
                               .dloss = 1.0f,
                               .dx = train ? room((size_t)(N * C) * 4) : NULL,
                               .dw = train ? room((size_t)(V * C) * dtype_size(c->dtype)) : NULL};
    TRY(ops_ce_head_workspace(b->ops, a, &a->workspace_nbytes));
    a->workspace = room(a->workspace_nbytes);
    c->n_operations = (train ? 6.0 : 2.0) * (double)N * (double)C * (double)V;
    return CZ_OK;
}

static cz_status case_run(struct bench *b, struct bench_case *c)
{
    struct ops *ops = b->ops;
    if (strcmp(c->op, "matmul") == 0) return ops_matmul(ops, NULL, &c->args.matmul);
    if (strcmp(c->op, "ce_head") == 0) return ops_ce_head(ops, NULL, &c->args.ce_head);
    if (strcmp(c->form, "bwd") == 0) return ops_attention_backward(ops, NULL, &c->args.attention);
    return ops_attention_forward(ops, NULL, &c->args.attention);
}

static cz_status parse(struct bench_case *c, const char *line)
{
    snprintf(c->line, sizeof c->line, "%s", line);
    c->line[strcspn(c->line, "\n")] = '\0';
    int n = sscanf(c->line, "%15s %15s %15s %lld %lld %lld %lld", c->op, c->dtype_name, c->form,
                   &c->size[0], &c->size[1], &c->size[2], &c->size[3]);
    if (n < 6) return err_set(CZ_INVALID, 0, "bench_matmul: cannot read the case \"%s\"", c->line);
    c->dtype = strcmp(c->dtype_name, "bf16") == 0   ? DTYPE_BF16
               : strcmp(c->dtype_name, "fp16") == 0 ? DTYPE_F16
                                                    : DTYPE_F32;
    return CZ_OK;
}

/* The case of this line, set up and run once to warm up when it is new. */
static cz_status case_get(struct bench *b, const char *line, struct bench_case **out)
{
    struct bench_case *c = &b->cases[b->n_cases];
    if (b->n_cases == CASES_MAX) return err_set(CZ_INVALID, 0, "bench_matmul: too many cases");
    TRY(parse(c, line));
    for (size_t i = 0; i < b->n_cases; i++)
        if (strcmp(b->cases[i].line, c->line) == 0) {
            *out = &b->cases[i];
            return CZ_OK;
        }
    if (strcmp(c->op, "matmul") == 0)
        TRY(setup_matmul(b, c));
    else if (strcmp(c->op, "attention") == 0)
        TRY(setup_attention(b, c));
    else
        TRY(setup_ce_head(b, c));
    TRY(case_run(b, c));
    b->n_cases++;
    *out = c;
    return CZ_OK;
}

static double now(const struct bench *b)
{
    struct timespec t;
    clock_gettime(b->cpu_time ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static cz_status timed(struct bench *b, struct bench_case *c, double *seconds)
{
    double begin = now(b);
    TRY(case_run(b, c));
    *seconds = now(b) - begin;
    return CZ_OK;
}

static cz_status serve(struct bench *b)
{
    char line[96];
    while (fgets(line, sizeof line, stdin)) {
        struct bench_case *c;
        double seconds = 0;
        TRY(case_get(b, line, &c));
        TRY(timed(b, c, &seconds));
        printf("%.9f\n", seconds);
        fflush(stdout);
    }
    return CZ_OK;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static cz_status report(struct bench *b, const char *line, double budget)
{
    enum { RUNS_MAX = 1000, RUNS_MIN = 3 };
    static double seconds[RUNS_MAX];
    struct bench_case *c;
    TRY(case_get(b, line, &c));
    double total = 0;
    int n = 0;
    while (n < RUNS_MAX && (n < RUNS_MIN || total < budget)) {
        TRY(timed(b, c, &seconds[n]));
        total += seconds[n++];
    }
    qsort(seconds, (size_t)n, sizeof *seconds, compare_doubles);
    printf("%-44s %9.3f %9.3f %9.3f %5d %9.1f\n", line, seconds[0] * 1e3, seconds[n / 2] * 1e3,
           seconds[n - 1] * 1e3, n, c->n_operations / seconds[0] * 1e-9);
    fflush(stdout);
    return CZ_OK;
}

static bool wanted(const char *line, char **words, int n_words)
{
    for (int i = 0; i < n_words; i++)
        if (!strstr(line, words[i])) return false;
    return true;
}

static cz_status run(struct bench *b, bool serving, double budget, char **words, int n_words)
{
    TRY(device_open("cpu", 0, &b->dev));
    TRY(ops_create(b->dev, &b->ops));
    if (serving) return serve(b);
    printf("%s, %d thread(s), %s rows\n", cpu_model_name(), threads_count(), ops_isa(b->ops));
    printf("%-44s %9s %9s %9s %5s %9s\n", "", "min ms", "median", "max", "runs", "GFLOP/s");
    for (size_t i = 0; i < CZ_ARRAY_LEN(table); i++)
        if (wanted(table[i], words, n_words)) TRY(report(b, table[i], budget));
    return CZ_OK;
}

int main(int argc, char **argv)
{
    static struct bench b;
    bool serving = false;
    double budget = 1;
    int first_word = argc;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--serve") == 0)
            serving = true;
        else if (strcmp(argv[i], "--cpu") == 0)
            b.cpu_time = true;
        else if (strcmp(argv[i], "--seconds") == 0 && i + 1 < argc)
            budget = atof(argv[++i]);
        else if (first_word == argc)
            first_word = i;
    }
    threads_init(1);
    cz_status st = run(&b, serving, budget, argv + first_word, argc - first_word);
    if (st != CZ_OK) fprintf(stderr, "bench_matmul: %s\n", cz_last_error());
    ops_destroy(b.ops);
    device_close(b.dev);
    return st == CZ_OK ? 0 : 1;
}
