/* Strings with running numbers and counts: a hash table over one block of bytes. Strings are
 * referred to by number, since the block moves as it grows. */
#include "data/tokenizer/vocab_impl.h"

#include "base/hash.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

/* The character at `at` as a token: "a" at a word's beginning, "##b" inside. */
size_t vocab_symbol(const char *word, size_t nbytes, size_t at, char *dst, size_t *len)
{
    size_t used = at > 0 ? VOCAB_PREFIX_NBYTES : 0;
    memcpy(dst, VOCAB_PREFIX, used);
    *len = (size_t)utf8_length(word + at, nbytes - at);
    memcpy(dst + used, word + at, *len);
    return used + *len;
}

static uint32_t hash_of(const char *text, size_t nbytes)
{
    return (uint32_t)(hash_bytes(text, nbytes) >> 32);
}

/* The slot that holds the string, or the empty one where it belongs. */
static size_t find_slot(const struct strings *s, const char *text, size_t nbytes, uint32_t hash)
{
    size_t slot = hash & (s->n_slots - 1);
    for (; s->slots[slot]; slot = (slot + 1) & (s->n_slots - 1)) {
        const struct string_row *row = &s->rows[s->slots[slot] - 1];
        if (row->hash == hash && row->nbytes == nbytes &&
            memcmp(s->bytes + row->off, text, nbytes) == 0)
            break;
    }
    return slot;
}

static cz_status add_row(struct strings *s, const char *text, size_t nbytes, uint32_t hash)
{
    if (s->n == s->cap) {
        uint32_t cap = s->cap ? 2 * s->cap : 512;
        struct string_row *rows =
            s->n < UINT32_MAX / 2 ? realloc(s->rows, cap * sizeof *rows) : NULL;
        if (!rows) return err_set(CZ_NOMEM, 0, "no memory for more than %u words", s->n);
        s->rows = rows;
        s->cap = cap;
    }
    if (s->cap_bytes - s->n_bytes < nbytes) {
        size_t cap = 2 * s->cap_bytes + nbytes + 4096;
        char *bytes = realloc(s->bytes, cap);
        if (!bytes) return err_set(CZ_NOMEM, 0, "no memory for %zu bytes of words", cap);
        s->bytes = bytes;
        s->cap_bytes = cap;
    }
    memcpy(s->bytes + s->n_bytes, text, nbytes);
    s->rows[s->n++] = (struct string_row){s->n_bytes, (uint32_t)nbytes, hash, 0};
    s->n_bytes += nbytes;
    return CZ_OK;
}

cz_status strings_need(struct strings *s, const char *text, size_t nbytes, uint32_t *idx)
{
    uint32_t hash = hash_of(text, nbytes);
    if ((size_t)s->n + s->n / 2 >= s->n_slots) {
        size_t n_slots = s->n_slots ? 2 * s->n_slots : 1024;
        uint32_t *slots = calloc(n_slots, sizeof *slots);
        if (!slots) return err_set(CZ_NOMEM, 0, "no memory for %u words", s->n);
        for (uint32_t i = 0; i < s->n; i++) {
            size_t slot = s->rows[i].hash & (n_slots - 1);
            while (slots[slot]) slot = (slot + 1) & (n_slots - 1);
            slots[slot] = i + 1;
        }
        free(s->slots);
        s->slots = slots;
        s->n_slots = n_slots;
    }
    size_t slot = find_slot(s, text, nbytes, hash);
    if (!s->slots[slot]) {
        TRY(add_row(s, text, nbytes, hash));
        s->slots[slot] = s->n;
    }
    *idx = s->slots[slot] - 1;
    return CZ_OK;
}

int64_t strings_find(const struct strings *s, const char *text, size_t nbytes)
{
    if (s->n_slots == 0) return -1;
    return (int64_t)s->slots[find_slot(s, text, nbytes, hash_of(text, nbytes))] - 1;
}

void strings_free(struct strings *s)
{
    free(s->bytes);
    free(s->rows);
    free(s->slots);
    memset(s, 0, sizeof *s);
}

static int compare_rows(const void *a, const void *b, void *user)
{
    const struct strings *s = user;
    const struct string_row *x = &s->rows[*(const uint32_t *)a];
    const struct string_row *y = &s->rows[*(const uint32_t *)b];
    if (x->count != y->count) return x->count > y->count ? -1 : 1;
    size_t n = x->nbytes < y->nbytes ? x->nbytes : y->nbytes;
    int order = memcmp(s->bytes + x->off, s->bytes + y->off, n);
    return order ? order : x->nbytes < y->nbytes ? -1 : x->nbytes > y->nbytes;
}

/* By count, then by bytes: an order that does not depend on that of the texts. */
cz_status strings_order(const struct strings *s, uint32_t **order)
{
    *order = malloc((s->n + 1) * sizeof **order);
    if (!*order) return err_set(CZ_NOMEM, 0, "no memory for %u words", s->n);
    for (uint32_t i = 0; i < s->n; i++) (*order)[i] = i;
    qsort_r(*order, s->n, sizeof **order, compare_rows, (void *)(uintptr_t)s);
    return CZ_OK;
}
