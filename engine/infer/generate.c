/* Text generation: pick a token, feed it, repeat. Random numbers are functions of (seed, index), so
 * the same seed gives the same text whatever the cache, the device or the batch before. */
#include "engine/infer/generate.h"
#include "base/host/entry.h"
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

/* A model may have several end tokens; -1 in end_id matches none, 0 those that its files name. */
static bool ends_text(const struct cz_model *model, const struct cz_generate_options *o,
                      int32_t token)
{
    for (size_t i = 0; i < o->n_end_ids; i++)
        if (token == o->end_ids[i]) return true;
    return o->end_id == 0 ? model_ends_at(model, token) : token == o->end_id;
}

/* The first of equal ones: greedy decoding must not depend on the order of threads. */
static int32_t argmax(const float *x, int64_t n)
{
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return (int32_t)best;
}

static int by_falling_value(const void *left, const void *right)
{
    const float a = *(const float *)left, b = *(const float *)right;
    return (a < b) - (a > b);
}

/* The smallest logit that top_p keeps of those not below `least`: an entry stays while those before
 * it have less than top_p of the probability, so that the likeliest always does. */
static float least_of_top_p(const struct cz_generate_options *o, const float *x, int64_t n,
                            float least, float *scratch)
{
    const double temperature = (double)o->temperature;
    int64_t n_kept = 0;
    double total = 0, before = 0;
    for (int64_t i = 0; i < n; i++)
        if (x[i] >= least) scratch[n_kept++] = x[i];
    qsort(scratch, (size_t)n_kept, sizeof *scratch, by_falling_value);
    const double top = (double)scratch[0];
    for (int64_t i = 0; i < n_kept; i++) total += exp(((double)scratch[i] - top) / temperature);
    int64_t last = 0;
    for (int64_t i = 0; i < n_kept && before < (double)o->top_p * total; i++) {
        before += exp(((double)scratch[i] - top) / temperature);
        last = i;
    }
    return scratch[last];
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

/* Keskar et al., "CTRL" (2019), section 4.1, with the sign that keeps a penalty one for negative
 * logits, too. */
void generate_penalize(const struct cz_generate_options *o, const uint8_t *seen, int64_t V,
                       float *logits)
{
    const float penalty = o->repetition_penalty;
    if (penalty == 0 || penalty == 1) return;
    for (int64_t v = 0; v < V; v++)
        if (seen[v]) logits[v] = logits[v] > 0 ? logits[v] / penalty : logits[v] * penalty;
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
    if (o->top_p > 0 && o->top_p < 1) least = least_of_top_p(o, logits, n, least, scratch);
    const struct rng_key rng = {.seed = o->seed};
    *token = draw(logits, n, least, o->temperature, (double)rng_uniform(&rng, idx));
    return CZ_OK;
}

/* ---- the loop ------------------------------------------------------------------------------- */

/* The tokens in the context; the first n_cached of them are in the cache. */
struct generator {
    struct cz_infer *infer;
    const struct cz_model *model;
    const struct cz_generate_options *options;
    int32_t *ids;  /* (the largest T) */
    uint8_t *seen; /* (V) tokens of the whole text */
    int64_t T, V;  /* T: of this prompt */
    int64_t n, n_cached;
    bool ended;     /* by an end token, or by the receiver */
    float *logits;  /* (V) after the last token, or (T,V) without a cache */
    float *scratch; /* (V) */
};

static void generator_free(struct generator *g)
{
    cz_infer_destroy(g->infer);
    free(g->ids);
    free(g->seen);
    free(g->logits);
    free(g->scratch);
}

/* Positions that a prompt and its new tokens need, as far as the context goes. */
static int64_t reach_of(const struct cz_model *model, const struct cz_generate_options *o,
                        size_t n_prompt)
{
    const int64_t context = cz_model_t_max(model), n = (int64_t)n_prompt;
    return o->max_new_tokens < context - n ? n + o->max_new_tokens : context;
}

/* One row of T positions: the cache grows with T. */
static cz_status generator_init(struct generator *g, struct cz_model *model,
                                const struct cz_generate_options *o, int64_t T)
{
    g->options = o;
    g->model = model;
    g->V = cz_model_vocab_size(model);
    g->T = T;
    const struct cz_infer_options options = {.size = sizeof options,
                                             .B = 1,
                                             .T = g->T,
                                             .dtype = o->dtype,
                                             .cache = !o->no_cache,
                                             .device = o->device};
    TRY(cz_infer_create(model, &options, &g->infer));
    const int64_t n_rows = cz_infer_can_decode(g->infer) ? 1 : g->T;
    g->ids = malloc((size_t)g->T * sizeof *g->ids);
    g->seen = malloc((size_t)g->V);
    g->logits = malloc((size_t)n_rows * (size_t)g->V * sizeof *g->logits);
    g->scratch = malloc((size_t)g->V * sizeof *g->scratch);
    if (!g->ids || !g->seen || !g->logits || !g->scratch)
        return err_set(CZ_NOMEM, 0, "no memory for %lld rows of logits", (long long)n_rows);
    return CZ_OK;
}

/* An id outside the vocabulary is refused where the batch is checked. */
static void mark_seen(struct generator *g, int32_t token)
{
    if (token >= 0 && token < g->V) g->seen[token] = 1;
}

/* A text of T positions. The first n_kept tokens of the prompt are in the cache. */
static void generator_begin(struct generator *g, const struct cz_prompt *prompt, int64_t T,
                            int64_t n_kept)
{
    g->T = T;
    g->n = (int64_t)prompt->n_ids;
    g->n_cached = n_kept;
    memcpy(g->ids, prompt->ids, prompt->n_ids * sizeof *prompt->ids);
    memset(g->seen, 0, (size_t)g->V);
    for (size_t i = 0; i < prompt->n_ids; i++) mark_seen(g, prompt->ids[i]);
}

/* Logits after the last token of the context. */
static cz_status look(struct generator *g, float **logits)
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

/* Make space for one token. The cache cannot be shifted, since keys carry their positions: the kept
 * half is fed again. */
static void keep_half(struct generator *g, bool *said)
{
    const int64_t n_kept = g->T / 2;
    if (g->n < g->T) return;
    if (!*said)
        LOGV(LOG_INFO, SUB_ENGINE,
             "the context of %lld tokens is full: continuing from its last %lld tokens",
             (long long)g->T, (long long)n_kept);
    *said = true;
    memmove(g->ids, g->ids + g->n - n_kept, (size_t)n_kept * sizeof *g->ids);
    g->n = n_kept;
    g->n_cached = 0;
}

/* The text of prompt number `number`; the end token itself is not emitted. */
static cz_status loop(struct generator *g, size_t number, cz_generate_emit_of emit, void *user)
{
    bool said = false;
    g->ended = false;
    for (int64_t i = 0; i < g->options->max_new_tokens; i++) {
        float *logits;
        int32_t token = 0;
        TRY(look(g, &logits));
        generate_penalize(g->options, g->seen, g->V, logits);
        TRY(generate_pick(g->options, logits, g->V, (uint64_t)i, g->scratch, &token));
        if (ends_text(g->model, g->options, token)) g->ended = true;
        if (!g->ended) TRY(emit(user, number, token, &g->ended));
        if (g->ended || i + 1 == g->options->max_new_tokens) break;
        keep_half(g, &said);
        g->ids[g->n++] = token;
        mark_seen(g, token);
    }
    return CZ_OK;
}

/* What a model or a prompt rules out is told before any memory is taken. */
static cz_status check(const struct cz_model *model, const struct cz_generate_options *o,
                       const struct cz_prompt *prompts, size_t n_prompts)
{
    const int64_t V = cz_model_vocab_size(model);
    if (cz_model_n_classes(model) > 0)
        return err_set(CZ_UNSUPPORTED, 0, "%s classifies texts: it has no next token to give",
                       cz_model_name(model));
    if (V < 1)
        return err_set(CZ_INVALID, 0, "%s does not state the size of its vocabulary",
                       cz_model_name(model));
    for (size_t i = 0; i < n_prompts; i++) {
        if (prompts[i].n_ids == 0) return err_set(CZ_INVALID, 0, "the prompt contains no tokens");
        if (!prompts[i].ids)
            return err_set(CZ_INVALID, 0, "prompt %zu has %zu tokens, but its ids are NULL", i,
                           prompts[i].n_ids);
        if (prompts[i].n_ids > (size_t)cz_model_t_max(model))
            return err_set(CZ_INVALID, 0, "the prompt has %zu tokens: the model's context has %lld",
                           prompts[i].n_ids, (long long)cz_model_t_max(model));
        for (size_t t = 0; t < prompts[i].n_ids; t++)
            if (prompts[i].ids[t] < 0 || prompts[i].ids[t] >= V)
                return err_set(CZ_INVALID, 0,
                               "token %d in row %zu at position %zu is outside the vocabulary of "
                               "%lld",
                               prompts[i].ids[t], i, t, (long long)V);
    }
    if (o->max_new_tokens < 0 || o->top_k < 0 || o->n_vocab < 0 || !(o->temperature >= 0.0f))
        return err_set(CZ_INVALID, 0, "max_new_tokens, top_k and temperature must not be negative");
    if (!(o->top_p >= 0 && o->top_p <= 1))
        return err_set(CZ_INVALID, 0, "top_p is %g; it must be in 0 … 1", (double)o->top_p);
    if (!(o->repetition_penalty >= 0) || !isfinite(o->repetition_penalty))
        return err_set(CZ_INVALID, 0, "repetition_penalty is %g; it must be above 0",
                       (double)o->repetition_penalty);
    return CZ_OK;
}

cz_status cz_generate_all(struct cz_model *model, const struct cz_generate_options *options,
                          const struct cz_prompt *prompts, size_t n_prompts,
                          cz_generate_emit_of emit, void *user)
{
    API_ENTRY;
    NEED(model, "model");
    NEED(options, "options");
    NEED(prompts || n_prompts == 0, "prompts");
    NEED(emit, "emit");
    struct generator g = {0};
    struct cz_generate_options ours;
    TRY(OPTIONS_TAKE(cz_generate_options, &ours, options));
    TRY(check(model, &ours, prompts, n_prompts));
    if (n_prompts == 0) return CZ_OK;
    int64_t T = 0; /* no longer than the longest text needs */
    for (size_t i = 0; i < n_prompts; i++)
        if (reach_of(model, &ours, prompts[i].n_ids) > T)
            T = reach_of(model, &ours, prompts[i].n_ids);
    cz_status st = generator_init(&g, model, &ours, T);
    for (size_t i = 0; i < n_prompts && st == CZ_OK; i++) {
        generator_begin(&g, &prompts[i], reach_of(model, &ours, prompts[i].n_ids), 0);
        st = loop(&g, i, emit, user);
    }
    generator_free(&g);
    return st;
}

/* ---- answers of a conversation ----------------------------------------------------------------
 */

struct generate_session {
    struct generator g;
    struct cz_generate_options options;
    struct cz_model *model;
    int64_t T, max_new_tokens, n_kept;
};

cz_status generate_session_open(struct cz_model *model, const struct cz_generate_options *options,
                                int64_t T, struct generate_session **out)
{
    *out = NULL;
    struct generate_session *s = calloc(1, sizeof *s);
    if (!s) return err_set(CZ_NOMEM, 0, "no memory for a conversation");
    s->model = model;
    s->T = T;
    cz_status st = OPTIONS_TAKE(cz_generate_options, &s->options, options);
    s->max_new_tokens = s->options.max_new_tokens;
    if (st == CZ_OK) st = check(model, &s->options, NULL, 0);
    if (st == CZ_OK) st = generator_init(&s->g, model, &s->options, T);
    if (st == CZ_OK)
        *out = s;
    else
        generate_session_close(s);
    return st;
}

void generate_session_close(struct generate_session *s)
{
    if (!s) return;
    generator_free(&s->g);
    free(s);
}

/* The last token of a prompt is fed in any case: its logits are wanted. */
static int64_t count_kept(const struct generator *g, const struct cz_prompt *prompt)
{
    int64_t n = 0;
    while (n < g->n_cached && n + 1 < (int64_t)prompt->n_ids && g->ids[n] == prompt->ids[n]) n++;
    return n;
}

cz_status generate_session_answer(struct generate_session *s, const struct cz_prompt *prompt,
                                  cz_generate_emit_of emit, void *user, bool *is_full)
{
    struct generator *g = &s->g;
    const int64_t n_prompt = (int64_t)prompt->n_ids, room = s->T - n_prompt;
    *is_full = false;
    TRY(check(s->model, &s->options, prompt, 1));
    if (room < 1)
        return err_set(CZ_INVALID, 0, "the prompt has %lld tokens: the context has %lld",
                       (long long)n_prompt, (long long)s->T);
    s->n_kept = count_kept(g, prompt);
    generator_begin(g, prompt, s->T, s->n_kept);
    s->options.max_new_tokens = s->max_new_tokens < room ? s->max_new_tokens : room;
    cz_status st = loop(g, 0, emit, user);
    if (st != CZ_OK) g->n_cached = 0; /* what the cache holds is not known */
    *is_full = !g->ended && s->max_new_tokens >= room;
    return st;
}

int64_t generate_session_n_kept(const struct generate_session *s)
{
    return s->n_kept;
}

/* The receiver of a single prompt's tokens. */
struct receiver {
    cz_generate_emit emit;
    void *user;
};

static cz_status pass_on(void *user, size_t prompt, int32_t token, bool *ends)
{
    const struct receiver *r = user;
    (void)prompt, (void)ends;
    return r->emit(r->user, token);
}

cz_status cz_generate(struct cz_model *model, const struct cz_generate_options *options,
                      const int32_t *prompt, size_t n_prompt, cz_generate_emit emit, void *user)
{
    API_ENTRY;
    NEED(model, "model");
    NEED(options, "options");
    NEED(prompt, "prompt");
    NEED(emit, "emit");
    const struct cz_prompt only = {prompt, n_prompt};
    struct receiver receiver = {emit, user};
    return cz_generate_all(model, options, &only, 1, pass_on, &receiver);
}
