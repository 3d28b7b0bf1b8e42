/* Texts that arrive token by token, and where they end. */
#include "tools/czero/infer/answer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Where the first stop word begins in the held text; its length: nowhere. */
static size_t find_stop(const struct text_stream *s)
{
    for (size_t at = 0; at < s->held.n; at++)
        for (size_t i = 0; i < s->stops.n; i++) {
            const size_t n = strlen(s->stops.items[i]);
            if (n <= s->held.n - at && memcmp(s->held.s + at, s->stops.items[i], n) == 0) return at;
        }
    return s->held.n;
}

/* How many bytes of the held text are in front of what may become a stop word. */
static size_t count_settled(const struct text_stream *s)
{
    for (size_t at = 0; at < s->held.n; at++)
        for (size_t i = 0; i < s->stops.n; i++) {
            const size_t n = strlen(s->stops.items[i]), rest = s->held.n - at;
            if (rest < n && memcmp(s->held.s + at, s->stops.items[i], rest) == 0) return at;
        }
    return s->held.n;
}

/* The decoder hands out whole characters, or nothing while it waits for the rest of one. */
static cz_status take_text(struct text_stream *s, const char *text, size_t nbytes)
{
    if (nbytes == 0) return CZ_OK;
    TRY(text_buf_put(&s->held, text, nbytes));
    size_t n = find_stop(s);
    s->stopped = n < s->held.n;
    if (!s->stopped) n = count_settled(s);
    TRY(s->put(s->user, s->held.s, n));
    if (s->stopped) n = s->held.n; /* what follows is no part of the text */
    memmove(s->held.s, s->held.s + n, s->held.n - n);
    s->held.n -= n;
    return CZ_OK;
}

cz_status text_stream_take(struct text_stream *s, int32_t token)
{
    const char *text;
    size_t nbytes;
    TRY(cz_tokenizer_decode(s->decoder, token, &text, &nbytes));
    return take_text(s, text, nbytes);
}

cz_status text_stream_end(struct text_stream *s)
{
    const char *rest;
    size_t nbytes;
    cz_tokenizer_decoder_end(s->decoder, &rest, &nbytes);
    if (!s->stopped) TRY(take_text(s, rest, nbytes));
    if (!s->stopped && s->held.n > 0) TRY(s->put(s->user, s->held.s, s->held.n));
    s->held.n = 0;
    s->stopped = false;
    return CZ_OK;
}

void text_stream_free(struct text_stream *s)
{
    text_buf_free(&s->held);
}

const char *answer_check_sampling(const struct answer_sampling *s)
{
    if (s->top_p < 0 || s->top_p > 1) return "--top-p must be above 0 and at most 1";
    if (s->penalty <= 0) return "--repetition-penalty must be above 0";
    return s->temperature < 0 ? "--temperature must be at least 0" : NULL;
}

struct cz_generate_options answer_options(const struct answer_sampling *s,
                                          const struct model_ends *ends,
                                          const struct cz_tokenizer *tokenizer)
{
    return (struct cz_generate_options){.size = sizeof(struct cz_generate_options),
                                        .max_new_tokens = s->max_new_tokens,
                                        .temperature = (float)s->temperature,
                                        .top_k = s->top_k,
                                        .top_p = (float)s->top_p,
                                        .repetition_penalty = (float)s->penalty,
                                        .seed = (uint64_t)s->seed,
                                        .end_id = -1,
                                        .end_ids = ends->ids,
                                        .n_end_ids = ends->n,
                                        .n_vocab = cz_tokenizer_vocab_size(tokenizer)};
}

cz_status answer_find_ends(const char *model, const char *adapter,
                           const struct cz_tokenizer *tokenizer, const struct chat_encoder *e,
                           struct model_ends *ends, struct arg_list *stops)
{
    *ends = (struct model_ends){0};
    if (e && e->turn_id < 0 && *e->turn_end && stops->n < ARG_LIST_MAX)
        stops->items[stops->n++] = e->turn_end;
    if (strcmp(cz_tokenizer_name(tokenizer), "bytes") == 0) return CZ_OK;
    TRY(model_read_ends(model, "generation_config.json", ends));
    if (adapter) TRY(model_read_ends(adapter, "generation_config.json", ends));
    model_ends_add(ends, cz_tokenizer_end_id(tokenizer));
    if (ends->n == 0) TRY(model_read_ends(model, "config.json", ends));
    if (e) model_ends_add(ends, e->turn_id);
    return CZ_OK;
}
