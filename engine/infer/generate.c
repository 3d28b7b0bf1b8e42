/* Text generation: pick a token, feed it, repeat. Random numbers are functions of (seed, index), so
 * the same seed gives the same text whatever the cache, the device or the batch before. */
#include "engine/infer/generate.h"
#include "base/options.h"
#include "model/model.h"

#include "base/log.h"
#include <czero/infer.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- choosing a token ----------------------------------------------------------------------- */

/* The k-th largest of n numbers, 1 ≤ k ≤ n; x is reordered (Hoare's quickselect). */
static float kth_largest(float *x, int64_t n, int64_t k)
{
    int64_t lo = 0, hi = n - 1;
    while (lo < hi) {
        float pivot = x[lo + (hi - lo) / 2];
        int64_t i = lo, j = hi;
        while (i <= j) {
            while (x[i] > pivot) i++;
            while (x[j] < pivot) j--;
            if (i > j) break;
            float swapped = x[i];
            x[i++] = x[j];
            x[j--] = swapped;
        }
        if (k - 1 <= j)
            hi = j;
        else if (k - 1 >= i)
            lo = i;
        else
            break;
    }
    return x[k - 1];
}

/* A model may have several end tokens; -1 in end_id matches none. */
static bool ends_text(const struct cz_generate_options *o, int32_t token)
{
    for (size_t i = 0; i < o->n_end_ids; i++)
        if (token == o->end_ids[i]) return true;
    return token == o->end_id;
}

/* The first of equal ones: greedy decoding must not depend on the order of threads. */
static int32_t argmax(const float *x, int64_t n)
{
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return (int32_t)best;
}

/* A draw from softmax(x / temperature) over the entries not below `least`. */
static int32_t draw(const float *x, int64_t n, float least, float temperature, double uniform)
{
    const float top = x[argmax(x, n)];
    double total = 0, before = 0;
    int64_t last = 0;
    for (int64_t i = 0; i < n; i++)
        if (x[i] >= least) total += exp((double)(x[i] - top) / (double)temperature);
    for (int64_t i = 0; i < n; i++) {
        if (!(x[i] >= least)) continue;
        before += exp((double)(x[i] - top) / (double)temperature);
        if (uniform * total < before) return (int32_t)i;
        last = i;
    }
    return (int32_t)last;
}

/* NaN is refused by name: it would otherwise become token 0 for ever. Ids beyond the tokenizer's
 * are padding of the table and never drawn. */
cz_status generate_pick(const struct cz_generate_options *o, const float *logits, int64_t V,
                        uint64_t idx, float *scratch, int32_t *token)
{
    const int64_t n = o->n_vocab > 0 && o->n_vocab < V ? o->n_vocab : V;
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(logits[i]))
            return err_set(CZ_CORRUPT, 0, "the model gives the logit %g for token %lld",
                           (double)logits[i], (long long)i);
    if (o->temperature <= 0.0f) {
        *token = argmax(logits, n);
        return CZ_OK;
    }
    float least = -INFINITY;
    if (o->top_k > 0 && o->top_k < n) {
        memcpy(scratch, logits, (size_t)n * sizeof *scratch);
        least = kth_largest(scratch, n, o->top_k);
    }
    const struct rng_key rng = {.seed = o->seed};
    *token = draw(logits, n, least, o->temperature, (double)rng_uniform(&rng, idx));
    return CZ_OK;
}

/* ---- the loop ------------------------------------------------------------------------------- */

/* The tokens in the context; the first n_cached of them are in the cache. */
struct generator {
    struct cz_infer *infer;
    const struct cz_generate_options *options;
    int32_t *ids; /* (T) */
    int64_t T, V;
    int64_t n, n_cached;
    float *logits;  /* (V) after the last token, or (T,V) without a cache */
    float *scratch; /* (V) */
};

static void generator_free(struct generator *g)
{
    cz_infer_destroy(g->infer);
    free(g->ids);
    free(g->logits);
    free(g->scratch);
}

/* One row, no longer than prompt and new tokens need: the cache grows with T. */
static cz_status generator_init(struct generator *g, struct cz_model *model,
                                const struct cz_generate_options *o, const int32_t *prompt,
                                size_t n_prompt)
{
    const int64_t context = cz_model_t_max(model), n = (int64_t)n_prompt;
    g->options = o;
    g->V = cz_model_vocab_size(model);
    g->T = o->max_new_tokens < context - n ? n + o->max_new_tokens : context;
    g->n = n;
    const struct cz_infer_options options = {.size = sizeof options,
                                             .B = 1,
                                             .T = g->T,
                                             .dtype = o->dtype,
                                             .cache = !o->no_cache,
                                             .device = o->device};
    TRY(cz_infer_create(model, &options, &g->infer));
    const int64_t n_rows = cz_infer_can_decode(g->infer) ? 1 : g->T;
    g->ids = malloc((size_t)g->T * sizeof *g->ids);
    g->logits = malloc((size_t)n_rows * (size_t)g->V * sizeof *g->logits);
    g->scratch = malloc((size_t)g->V * sizeof *g->scratch);
    if (!g->ids || !g->logits || !g->scratch)
        return err_set(CZ_NOMEM, 0, "no memory for %lld rows of logits", (long long)n_rows);
    memcpy(g->ids, prompt, n_prompt * sizeof *prompt);
    return CZ_OK;
}

/* Logits after the last token of the context. */
static cz_status look(struct generator *g, const float **logits)
{
    const int64_t first = cz_infer_can_decode(g->infer) ? g->n_cached : 0;
    const struct cz_batch batch = {
        .size = sizeof batch, .B = 1, .T = g->n - first, .ids = g->ids + first};
    *logits = g->logits;
    if (cz_infer_can_decode(g->infer)) {
        g->n_cached = g->n;
        return cz_infer_decode(g->infer, &batch, first, g->logits);
    }
    *logits = g->logits + (g->n - 1) * g->V;
    return cz_infer_forward(g->infer, &batch, NULL, g->logits);
}

/* The end token itself is not emitted. */
static cz_status loop(struct generator *g, cz_generate_emit emit, void *user)
{
    bool said = false;
    for (int64_t i = 0; i < g->options->max_new_tokens; i++) {
        const float *logits;
        int32_t token = 0;
        TRY(look(g, &logits));
        TRY(generate_pick(g->options, logits, g->V, (uint64_t)i, g->scratch, &token));
        if (ends_text(g->options, token)) break;
        TRY(emit(user, token));
        if (i + 1 == g->options->max_new_tokens) break;
        /* Make space for one token. The cache cannot be shifted, since keys carry their positions:
         * the kept half is fed again. */
        const int64_t n_kept = g->T / 2;
        if (g->n >= g->T) {
            if (!said)
                LOGV(LOG_INFO, SUB_ENGINE,
                     "the context of %lld tokens is full: continuing from its last %lld tokens",
                     (long long)g->T, (long long)n_kept);
            said = true;
            memmove(g->ids, g->ids + g->n - n_kept, (size_t)n_kept * sizeof *g->ids);
            g->n = n_kept;
            g->n_cached = 0;
        }
        g->ids[g->n++] = token;
    }
    return CZ_OK;
}

cz_status cz_generate(struct cz_model *model, const struct cz_generate_options *options,
                      const int32_t *prompt, size_t n_prompt, cz_generate_emit emit, void *user)
{
    struct generator g = {0};
    struct cz_generate_options ours;
    TRY(OPTIONS_TAKE(cz_generate_options, &ours, options));
    /* What a model or a prompt rules out is told before any memory is taken. */
    if (cz_model_n_classes(model) > 0)
        return err_set(CZ_UNSUPPORTED, 0, "%s classifies texts: it has no next token to give",
                       cz_model_name(model));
    if (cz_model_vocab_size(model) < 1)
        return err_set(CZ_INVALID, 0, "%s does not state the size of its vocabulary",
                       cz_model_name(model));
    if (n_prompt == 0) return err_set(CZ_INVALID, 0, "the prompt contains no tokens");
    if (n_prompt > (size_t)cz_model_t_max(model))
        return err_set(CZ_INVALID, 0, "the prompt has %zu tokens: the model's context has %lld",
                       n_prompt, (long long)cz_model_t_max(model));
    if (ours.max_new_tokens < 0 || ours.top_k < 0 || ours.n_vocab < 0 ||
        !(ours.temperature >= 0.0f))
        return err_set(CZ_INVALID, 0, "max_new_tokens, top_k and temperature must not be negative");
    cz_status st = generator_init(&g, model, &ours, prompt, n_prompt);
    if (st == CZ_OK) st = loop(&g, emit, user);
    generator_free(&g);
    return st;
}
