/* Grouping tokens by id: a stable radix sort, 11 bits at a time (two passes for a vocabulary of
 * 50257), whose cost depends on the tokens and not on the vocabulary. */
#include "ops/embedding/embedding_impl.h"

#include <string.h>

enum { DIGIT_BITS = 11, N_DIGITS = 1 << DIGIT_BITS };

static size_t lines(size_t nbytes)
{
    return (nbytes + 63) / 64 * 64;
}

size_t token_segments_nbytes(size_t n_tokens)
{
    return 2 * lines(n_tokens * sizeof(uint64_t)) + lines((n_tokens + 1) * sizeof(uint32_t));
}

/* The sort is stable, so the tokens of an id stay in order. keys: id and token in one word; the
 * last pass leaves them in keys or spare, which are exchanged. */
void token_segments_build(struct token_segments *s, const int32_t *ids, size_t n_tokens,
                          size_t n_ids, void *workspace)
{
    char *base = workspace;
    size_t keys_nbytes = lines(n_tokens * sizeof(uint64_t));
    s->keys = (uint64_t *)(void *)base;
    s->spare = (uint64_t *)(void *)(base + keys_nbytes);
    s->starts = (uint32_t *)(void *)(base + 2 * keys_nbytes);
    for (size_t i = 0; i < n_tokens; i++) s->keys[i] = (uint64_t)ids[i] << 32 | i;
    for (unsigned bits = 0; n_ids > 1 && (n_ids - 1) >> bits > 0; bits += DIGIT_BITS) {
        const unsigned shift = 32 + bits;
        uint32_t next[N_DIGITS] = {0};
        for (size_t i = 0; i < n_tokens; i++) next[s->keys[i] >> shift & (N_DIGITS - 1)]++;
        uint32_t sum = 0;
        for (size_t digit = 0; digit < N_DIGITS; digit++) {
            uint32_t count = next[digit];
            next[digit] = sum;
            sum += count;
        }
        for (size_t i = 0; i < n_tokens; i++)
            s->spare[next[s->keys[i] >> shift & (N_DIGITS - 1)]++] = s->keys[i];
        uint64_t *sorted = s->spare;
        s->spare = s->keys;
        s->keys = sorted;
    }
    s->n_segments = 0;
    for (size_t i = 0; i < n_tokens; i++)
        if (i == 0 || s->keys[i] >> 32 != s->keys[i - 1] >> 32)
            s->starts[s->n_segments++] = (uint32_t)i;
    s->starts[s->n_segments] = (uint32_t)n_tokens;
}
