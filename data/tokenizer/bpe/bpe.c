/* Byte-level BPE: a text's ids. Added tokens are cut out, what is between them is normalized, split
 * into words by the steps, and each word is merged. */
#include "data/tokenizer/bpe/bpe_impl.h"

#include "base/arena.h"
#include "base/size.h"
#include "base/utf8.h"
#include "data/tokenizer/chars_impl.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ---- what a call works with ------------------------------------------------------------------ */

enum { CACHE_LINE = 64 };

void *bpe_table_create(size_t nbytes)
{
    if (nbytes >= ARENA_PAGE_BYTES) return arena_map(size_round_up(nbytes, ARENA_PAGE_BYTES));
    void *table = aligned_alloc(CACHE_LINE, size_round_up(nbytes, CACHE_LINE));
    return table ? memset(table, 0, nbytes) : NULL;
}

void bpe_table_destroy(void *table, size_t nbytes)
{
    if (table && nbytes >= ARENA_PAGE_BYTES)
        munmap(table, size_round_up(nbytes, ARENA_PAGE_BYTES));
    else
        free(table);
}

#define CACHE_NBYTES (BPE_CACHE_SLOTS * sizeof(struct bpe_cached))

void bpe_work_destroy(struct bpe_work *w)
{
    if (!w) return;
    for (size_t i = 0; i < CZ_ARRAY_LEN(w->text); i++) free(w->text[i]);
    bpe_table_destroy(w->cache, CACHE_NBYTES);
    free(w->ids);
    free(w->left);
    free(w->right);
    free(w->heap);
    free(w);
}

struct bpe_work *bpe_work_create(void)
{
    _Static_assert(sizeof(struct bpe_cached) == CACHE_LINE, "a word is one line of the cache");
    struct bpe_work *w = calloc(1, sizeof *w);
    if (w) w->cache = bpe_table_create(CACHE_NBYTES);
    if (w && w->cache) return w;
    bpe_work_destroy(w);
    return NULL;
}

/* Encoding needs buffers and a cache of words; they are kept between calls and lent to one thread
 * at a time. */
static cz_status work_borrow(const struct bpe *b, struct bpe_work **out)
{
    struct bpe *mine = (struct bpe *)(uintptr_t)b; /* only the list of idle ones changes */
    pthread_mutex_lock(&mine->lock);
    struct bpe_work *w = mine->idle;
    if (w) mine->idle = w->next;
    pthread_mutex_unlock(&mine->lock);
    if (!w) w = bpe_work_create();
    *out = w;
    return w ? CZ_OK : err_set(CZ_NOMEM, 0, "no memory for the words of a text");
}

/* ---- encoding -------------------------------------------------------------------------------- */

static cz_status with_space(struct bpe_work *w, const char **s, size_t *n)
{
    TRY(bpe_work_reserve(w, BPE_TEXT_PREFIXED, *n + 1));
    char *dst = w->text[BPE_TEXT_PREFIXED];
    dst[0] = ' ';
    memcpy(dst + 1, *s, *n);
    w->ends = NULL;
    *s = dst;
    *n += 1;
    return CZ_OK;
}

/* The ends of the ids from `first` on, which a word that ends at `end` has become. They are lost
 * where the bytes of its tokens are not as many as its own. */
static cz_status note_ends(const struct bpe *b, struct bpe_work *w, const char *s, const char *end,
                           size_t first, const struct id_list *out)
{
    const uint32_t *lens = b->model.vocab.lens;
    TRY(id_list_reserve(w->ends, out->n - first));
    const char *at = s;
    for (size_t i = first; i < out->n; i++) {
        if (lens[out->ids[i]] > (size_t)(end - at)) break;
        at += lens[out->ids[i]];
        const char *whole = at; /* one that ends inside of a character reaches to its end */
        while (whole < w->end && ((unsigned char)*whole & 0xC0) == 0x80) whole++;
        w->ends->ids[w->ends->n++] = (int32_t)(whole - w->begin);
    }
    if (at != end || w->ends->n != out->n) w->ends = NULL;
    return CZ_OK;
}

/* A word that the cache has. The lengths of its ids are looked up once. */
static cz_status add_cached(const struct bpe *b, struct bpe_work *w, struct bpe_cached *hit,
                            const char *s, struct id_list *out)
{
    const size_t first = out->n, n = hit->n_ids;
    TRY(bpe_cached_take(hit, out));
    if (!w->ends) return CZ_OK;
    if (hit->lens[0] == 0) {
        TRY(note_ends(b, w, s, s + hit->nbytes, first, out));
        for (size_t i = 0; w->ends && i < n; i++)
            hit->lens[i] = (uint8_t)b->model.vocab.lens[hit->ids[i]];
        return CZ_OK;
    }
    TRY(id_list_reserve(w->ends, BPE_CACHED_IDS));
    int32_t *ends = w->ends->ids + w->ends->n;
    const char *at = s, *end = s + hit->nbytes;
    for (size_t i = 0; i + 1 < n; i++) {
        at += hit->lens[i];
        const char *whole = at;
        while (whole < end && ((unsigned char)*whole & 0xC0) == 0x80) whole++;
        ends[i] = (int32_t)(whole - w->begin);
    }
    ends[n - 1] = (int32_t)(end - w->begin); /* words end behind a character */
    w->ends->n += n;
    return CZ_OK;
}

/* The words of the last step. Their places in the cache are asked for some words ahead, because
 * caches of processors hold a part of it. */
static cz_status encode_last(const struct bpe *b, struct bpe_work *w, const char *s, size_t n,
                             struct id_list *out)
{
    enum { AHEAD = 16 };
    size_t (*next)(const char *, size_t) = b->steps[b->n_steps - 1].split->next;
    while (n > 0) {
        struct bpe_slot places[AHEAD];
        size_t n_ahead = 0;
        for (const char *at = s; n > 0 && n_ahead < AHEAD; n_ahead++) {
            const size_t k = next(at, n);
            places[n_ahead] = bpe_slot_of(w, at, k, n);
            if (places[n_ahead].pair) __builtin_prefetch(places[n_ahead].pair);
            at += k;
            n -= k;
        }
        for (size_t i = 0; i < n_ahead; i++) {
            const size_t first = out->n, k = places[i].nbytes;
            struct bpe_cached *hit = places[i].pair ? bpe_cache_find(&places[i]) : NULL;
            if (hit) {
                TRY(add_cached(b, w, hit, s, out));
            } else {
                TRY(bpe_word_new(&b->model, w, &places[i], s, out));
                if (w->ends) TRY(note_ends(b, w, s, s + k, first, out));
            }
            s += k;
        }
    }
    return CZ_OK;
}

/* Each step cuts the pieces of the step before. Only one step adds a space (bpe_open.c sees to it),
 * so one buffer is enough. */
static cz_status encode_from(const struct bpe *b, struct bpe_work *w, size_t step, const char *s,
                             size_t n, struct id_list *out)
{
    const size_t first = out->n;
    if (step == b->n_steps) { /* there are none */
        TRY(bpe_word(&b->model, w, s, n, n, out));
        return w->ends ? note_ends(b, w, s, s + n, first, out) : CZ_OK;
    }
    if (b->steps[step].add_prefix_space && s[0] != ' ') TRY(with_space(w, &s, &n));
    if (step + 1 == b->n_steps) return encode_last(b, w, s, n, out);
    size_t (*next)(const char *, size_t) = b->steps[step].split->next;
    while (n > 0) {
        size_t k = next(s, n);
        TRY(encode_from(b, w, step + 1, s, k, out));
        s += k;
        n -= k;
    }
    return CZ_OK;
}

/* What encodes the text between the tokens of a set. */
typedef cz_status encode_section(const struct bpe *b, struct bpe_work *w, const char *s, size_t n,
                                 struct id_list *out);

static cz_status encode_between(const struct bpe *b, struct bpe_work *w,
                                const struct added_tokens *set, const char *s, size_t n,
                                encode_section *section, struct id_list *out)
{
    size_t from = 0, done = 0, start, end;
    struct added_token token;
    while (added_tokens_next(set, s, n, done, &from, &start, &end, &token)) {
        if (start > done) TRY(section(b, w, s + done, start - done, out));
        TRY(id_list_add(out, token.id));
        if (w->ends) TRY(note_ends(b, w, s + start, s + end, out->n - 1, out));
        done = end;
    }
    return done < n ? section(b, w, s + done, n - done, out) : CZ_OK;
}

static cz_status encode_words(const struct bpe *b, struct bpe_work *w, const char *s, size_t n,
                              struct id_list *out)
{
    return encode_from(b, w, 0, s, n, out);
}

static cz_status encode_raw(const struct bpe *b, struct bpe_work *w, const char *s, size_t n,
                            struct id_list *out)
{
    const char *given = s;
    if (b->nfc) TRY(bpe_normalize(w, &s, &n));
    if (s != given) w->ends = NULL;
    if (b->normalized.n == 0) return encode_words(b, w, s, n, out);
    return encode_between(b, w, &b->normalized, s, n, encode_words, out);
}

static bool all_bytes_are_known(const struct bpe *b)
{
    for (size_t i = 0; i < 256; i++)
        if (!b->model.bytes[i].is_known) return false;
    return true;
}

/* *ends: bpe_encode_ends()'s, set to NULL where there are none. */
static cz_status encode_noting(const struct bpe *b, const char *text, size_t nbytes,
                               struct id_list *out, struct id_list **ends)
{
    struct bpe_work *w;
    TRY(work_borrow(b, &w));
    const char *given = text;
    w->begin = text;
    w->end = text + nbytes;
    w->ends = *ends;
    if (b->is_spaced || nbytes > INT32_MAX || (*ends && !all_bytes_are_known(b))) w->ends = NULL;
    cz_status st = bpe_repair(w, &text, &nbytes);
    if (text != given) w->ends = NULL;
    if (st == CZ_OK) st = encode_between(b, w, &b->raw, text, nbytes, encode_raw, out);
    *ends = w->ends;
    struct bpe *mine = (struct bpe *)(uintptr_t)b;
    pthread_mutex_lock(&mine->lock);
    w->next = mine->idle;
    mine->idle = w;
    pthread_mutex_unlock(&mine->lock);
    return st;
}

static cz_status bpe_encode(const struct cz_tokenizer *tok, const char *text, size_t nbytes,
                            struct id_list *out)
{
    struct id_list *none = NULL;
    return encode_noting((const struct bpe *)tok, text, nbytes, out, &none);
}

static cz_status bpe_encode_ends(const struct cz_tokenizer *tok, const char *text, size_t nbytes,
                                 struct id_list *out, struct id_list *ends, bool *are_known)
{
    struct id_list *noted = ends;
    TRY(encode_noting((const struct bpe *)tok, text, nbytes, out, &noted));
    *are_known = noted != NULL;
    return CZ_OK;
}

/* ---- cutting --------------------------------------------------------------------------------- */

/* The character that ends at `end`; false where UTF-8 is broken. */
static bool look_back(const char *text, size_t end, int32_t *c)
{
    size_t n = 1;
    while (n < 4 && n < end && ((unsigned char)text[end - n] & 0xC0) == 0x80) n++;
    if (utf8_length(text + end - n, n) != (int)n) return false;
    *c = chars_at(text + end - n, n, &n);
    return true;
}

static bool look_ahead(const char *text, size_t n, int32_t *c)
{
    size_t len;
    if (utf8_length(text, n) <= 0) return false;
    *c = chars_at(text, n, &len);
    return true;
}

static unsigned class_of(int32_t c)
{
    return c < 0x80 ? chars_ascii[c] : chars_wide_class(c);
}

/* Whether pieces never reach across the place between two characters. */
static bool splits_between(const struct bpe *b, int32_t before, int32_t after)
{
    unsigned left = class_of(before), right = class_of(after);
    if (right & CHAR_S) {
        if (b->cuts & BPE_CUTS_BEFORE_SPACE) return !(left & CHAR_S);
        return (b->cuts & BPE_CUTS_AFTER_WORD) && (left & (CHAR_L | CHAR_NUMBER));
    }
    return (b->cuts & BPE_CUTS_LINES) && before == '\n' && (right & (CHAR_L | CHAR_NUMBER));
}

/* With NFC, characters on both sides must be ones that no neighbour changes. */
static bool can_cut(const struct bpe *b, const char *text, size_t nbytes, size_t at)
{
    int32_t before, after;
    if (!look_back(text, at, &before) || !look_ahead(text + at, nbytes - at, &after)) return false;
    if (!splits_between(b, before, after)) return false;
    if (b->nfc && !(bpe_is_plain(before) && bpe_is_plain(after))) return false;
    return !added_tokens_touch(&b->raw, text, nbytes, at) &&
           !added_tokens_touch(&b->normalized, text, nbytes, at);
}

/* Places are tried where a space, a line end or the character after one is: with a space in front
 * of every text, only in front of spaces, where the second part gets none. Tokens that are searched
 * in normalized text may be where the raw text does not show them: then nothing is cut. */
static size_t bpe_cut(const struct cz_tokenizer *tok, const char *text, size_t nbytes, size_t from)
{
    const struct bpe *b = (const struct bpe *)tok;
    bool has_prefix = false;
    int n_tried = 0;
    for (size_t i = 0; i < b->n_steps; i++) has_prefix |= b->steps[i].add_prefix_space;
    if (b->cuts == BPE_CUTS_NONE || (b->nfc && b->normalized.n > 0)) return nbytes;
    for (size_t at = from > 0 ? from : 1; at < nbytes; at++) {
        bool is_line = !has_prefix && (text[at] == '\n' || text[at - 1] == '\n');
        if (text[at] != ' ' && !is_line) continue;
        if (can_cut(b, text, nbytes, at)) return at;
        if (++n_tried == TOKENIZER_CUTS_TRIED) break;
    }
    return nbytes;
}

/* ---- the kind -------------------------------------------------------------------------------- */

static size_t bpe_piece(const struct cz_tokenizer *tok, int64_t id, bool first, char *dst)
{
    const struct bpe *b = (const struct bpe *)tok;
    const struct bpe_vocab *v = b->is_spaced ? &b->written : &b->model.vocab;
    const size_t n = v->lens[id], n_space = n > 0 && b->is_spaced && !first;
    if (n_space > 0) *dst++ = ' ';
    if (n > 0) memcpy(dst, v->bytes + v->offs[id], n);
    return n_space + n;
}

static bool bpe_is_added(const struct cz_tokenizer *tok, int64_t id)
{
    const struct bpe *b = (const struct bpe *)tok;
    return added_tokens_have(&b->raw, id) || added_tokens_have(&b->normalized, id);
}

static void bpe_close(struct cz_tokenizer *tok)
{
    struct bpe *b = (struct bpe *)tok;
    while (b->idle) {
        struct bpe_work *next = b->idle->next;
        bpe_work_destroy(b->idle);
        b->idle = next;
    }
    pthread_mutex_destroy(&b->lock);
    added_tokens_free(&b->raw);
    added_tokens_free(&b->normalized);
    bpe_starts_free(&b->model);
    bpe_merges_free(&b->model.merges);
    bpe_vocab_free(&b->model.vocab);
    bpe_vocab_free(&b->written);
    free(b);
}

const struct tokenizer_class bpe_class = {.name = "bpe",
                                          .encode = bpe_encode,
                                          .encode_ends = bpe_encode_ends,
                                          .cut = bpe_cut,
                                          .piece = bpe_piece,
                                          .is_added = bpe_is_added,
                                          .close = bpe_close};
