/* Attention on a CUDA device at the shapes of GPT-2 and LLaMA: milliseconds and TFLOP/s of forward,
 * of backward and of both, one JSON line per shape.
 *
 *     build/bench/attention_cuda [--tiny] [WORD…]      only shapes whose name holds one of the
 * words
 *
 * --tiny: lengths for the simulated device, whose times mean nothing. FLOP are those of the
 * formulas, 4·Tq·Tk·D per head forward and 10 backward, half of them when causal, whatever a kernel
 * computes twice; so rates compare with those that others publish. Several launches between two
 * waits; medians. */
#include "base/clock.h"
#include "base/dtype.h"
#include "ops/attention/attention.h"
#include "ops/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_ROUNDS 7

static const struct shape {
    const char *name;
    int64_t B, T, H, G, D;
    bool causal;
    float dropout_p;
    enum cz_dtype dtype;
} shapes[] = {
    {"gpt2-124m", 16, 1024, 12, 12, 64, true, 0, DTYPE_BF16},
    {"gpt2-124m dropout", 16, 1024, 12, 12, 64, true, 0.1f, DTYPE_BF16},
    {"gpt2-124m fp32", 4, 1024, 12, 12, 64, true, 0, DTYPE_F32},
    {"bert-base", 32, 512, 12, 12, 64, false, 0, DTYPE_F16},
    {"gpt2-xl", 8, 1024, 25, 25, 64, true, 0, DTYPE_BF16},
    {"llama-7b", 4, 2048, 32, 32, 128, true, 0, DTYPE_BF16},
    {"llama3-8b", 2, 4096, 32, 8, 128, true, 0, DTYPE_BF16},
    {"long", 1, 16384, 16, 16, 128, true, 0, DTYPE_BF16},
    {"stablelm-3b", 4, 2048, 32, 32, 80, true, 0, DTYPE_BF16},
};

struct bench {
    struct device *dev;
    struct ops *ops;
    struct dev_stream *stream;
    struct attention_args args;
    char *room; /* every tensor of a shape, one after the other */
    size_t room_nbytes;
    int n_launches;
};

/* Random halves around 0 are enough: the time does not depend on them. */
static cz_status fill(const struct bench *b, char *at, size_t numel)
{
    const enum cz_dtype dtype = b->args.dtype;
    const size_t most = (size_t)1 << 20;
    void *chunk = malloc(most * dtype_size(dtype));
    if (!chunk) return err_set(CZ_NOMEM, 0, "no memory for inputs");
    uint32_t state = 12345;
    for (size_t i = 0; i < most; i++) {
        state = state * 1664525u + 1013904223u;
        dtype_put(chunk, i, dtype, (float)(state >> 8) * 0x1p-23f - 1.0f);
    }
    cz_status st = CZ_OK;
    for (size_t done = 0; done < numel && st == CZ_OK; done += most) {
        const size_t n = numel - done < most ? numel - done : most;
        st = b->dev->ops->copy(b->dev, b->stream, at + done * dtype_size(dtype), chunk,
                               n * dtype_size(dtype));
        if (st == CZ_OK) st = b->dev->ops->stream_sync(b->dev, b->stream);
    }
    free(chunk);
    return st;
}

/* q, k and v are columns of one matrix, as the blocks of model/ have them, their gradients too. */
static cz_status start(struct bench *b, const struct shape *s)
{
    struct attention_args *a = &b->args;
    const int64_t width = (s->H + 2 * s->G) * s->D, N = s->B * s->T;
    *a = (struct attention_args){.B = s->B, .Tq = s->T, .Tk = s->T, .H = s->H, .G = s->G};
    a->D = s->D, a->dtype = s->dtype, a->causal = s->causal, a->dropout_p = s->dropout_p;
    a->scale = 0.1f, a->rng = (struct rng_key){.seed = 1};
    a->q_stride = a->k_stride = a->v_stride = width, a->out_stride = s->H * s->D;
    a->workspace_nbytes = ops_attention_workspace(b->ops, a, true);

    const size_t unit = dtype_size(s->dtype), qkv = (size_t)(N * width) * unit;
    const size_t out = (size_t)(N * s->H * s->D) * unit, lse = (size_t)(N * s->H) * sizeof(float);
    b->room_nbytes = 2 * qkv + 2 * out + lse + a->workspace_nbytes;
    TRY(b->dev->ops->mem_alloc(b->dev, b->room_nbytes, s->name, (void **)&b->room));
    const size_t k_at = (size_t)(s->H * s->D) * unit, v_at = k_at + (size_t)(s->G * s->D) * unit;
    char *gradients = b->room + qkv, *outs = gradients + qkv;
    a->q = b->room, a->k = b->room + k_at, a->v = b->room + v_at;
    a->dq = gradients, a->dk = gradients + k_at, a->dv = gradients + v_at;
    a->out = outs, a->dout = outs + out;
    a->lse = (float *)(void *)(outs + 2 * out);
    a->workspace = outs + 2 * out + lse;
    TRY(fill(b, b->room, qkv / unit));
    return fill(b, outs + out, out / unit);
}

static void stop(struct bench *b)
{
    b->dev->ops->mem_free(b->dev, b->room, b->room_nbytes);
    b->room = NULL, b->room_nbytes = 0;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Seconds of one launch: the median of rounds of several. */
static cz_status seconds_of(const struct bench *b,
                            cz_status (*run)(struct ops *, struct dev_stream *,
                                             const struct attention_args *),
                            double *seconds)
{
    double rounds[N_ROUNDS];
    TRY(run(b->ops, b->stream, &b->args)); /* warm */
    TRY(b->dev->ops->stream_sync(b->dev, b->stream));
    for (int r = 0; r < N_ROUNDS; r++) {
        const int64_t begin = clock_now_ns();
        for (int i = 0; i < b->n_launches; i++) TRY(run(b->ops, b->stream, &b->args));
        TRY(b->dev->ops->stream_sync(b->dev, b->stream));
        rounds[r] = (double)(clock_now_ns() - begin) * 1e-9 / b->n_launches;
    }
    qsort(rounds, N_ROUNDS, sizeof *rounds, by_value);
    *seconds = rounds[N_ROUNDS / 2];
    return CZ_OK;
}

static cz_status measure(struct bench *b, const struct shape *s)
{
    double forward, backward;
    TRY(seconds_of(b, ops_attention_forward, &forward));
    TRY(seconds_of(b, ops_attention_backward, &backward));
    const double flop = (double)(s->B * s->H) * (double)s->T * (double)s->T * (double)s->D *
                        (s->causal ? 0.5 : 1.0);
    printf("{\"figure\": \"attention %s\", \"B\": %lld, \"T\": %lld, \"H\": %lld, \"G\": %lld, "
           "\"D\": %lld, \"causal\": %s, \"dropout\": %g, \"dtype\": \"%s\", "
           "\"forward_ms\": %.4g, \"forward_tflops\": %.4g, "
           "\"backward_ms\": %.4g, \"backward_tflops\": %.4g, "
           "\"value\": %.4g, \"unit\": \"TFLOP/s\", \"seconds\": %.6g}\n",
           s->name, (long long)s->B, (long long)s->T, (long long)s->H, (long long)s->G,
           (long long)s->D, s->causal ? "true" : "false", (double)s->dropout_p,
           dtype_name(s->dtype), forward * 1e3, 4 * flop / forward * 1e-12, backward * 1e3,
           10 * flop / backward * 1e-12, 14 * flop / (forward + backward) * 1e-12,
           forward + backward);
    fflush(stdout);
    return CZ_OK;
}

static bool is_wanted(const char *name, char *const *words, int n_words)
{
    for (int i = 0; i < n_words; i++)
        if (strstr(name, words[i])) return true;
    return n_words == 0;
}

/* A shape that fails is told, and the others are measured all the same. */
static cz_status run(struct bench *b, bool is_tiny, char *const *words, int n_words)
{
    cz_status worst = CZ_OK;
    TRY(ops_create(b->dev, &b->ops));
    TRY(b->dev->ops->stream_create(b->dev, &b->stream));
    b->n_launches = is_tiny ? 1 : 20;
    for (size_t i = 0; i < CZ_ARRAY_LEN(shapes); i++) {
        struct shape s = shapes[i];
        if (!is_wanted(s.name, words, n_words)) continue;
        if (is_tiny) s.B = 1, s.T = 96, s.H = s.H / s.G, s.G = 1;
        cz_status st = start(b, &s);
        if (st == CZ_OK) st = measure(b, &s);
        stop(b);
        if (st != CZ_OK) fprintf(stderr, "attention_cuda: %s: %s\n", s.name, cz_last_error());
        if (worst == CZ_OK) worst = st;
    }
    return worst;
}

int main(int argc, char **argv)
{
    struct bench b = {0};
    const bool is_tiny = argc > 1 && strcmp(argv[1], "--tiny") == 0;
    if (device_open("cuda", 0, &b.dev) != CZ_OK) {
        printf("{\"figure\": \"attention\", \"skipped\": \"%s\"}\n", cz_last_error());
        return 77;
    }
    cz_status st = run(&b, is_tiny, argv + 1 + is_tiny, argc - 1 - is_tiny);
    if (st != CZ_OK) fprintf(stderr, "attention_cuda: %s\n", cz_last_error());
    if (b.stream) b.dev->ops->stream_destroy(b.dev, b.stream);
    ops_destroy(b.ops);
    device_close(b.dev);
    return st == CZ_OK ? 0 : 1;
}
