/* A word's ids. Words seen before come from a cache; others start as bytes and have their pairs
 * merged, lowest rank first and leftmost among equals: short words by looking at all pairs each
 * time, long ones through a heap, so that a word of a million bytes takes n log n. */
#include "data/tokenizer/bpe/bpe_impl.h"

#include "data/tokenizer/chars_impl.h"

#include <stdlib.h>
#include <string.h>

#define SHORT_MAX 48 /* symbols (at most 254); beyond it the heap is faster */
#define NONE      UINT32_MAX

/* ---- pairs ----------------------------------------------------------------------------------- */

#define FILTER_BITS 16 /* for each slot: one in twenty or fewer of them are set */

cz_status bpe_merges_init(struct bpe_merges *m, size_t n)
{
    size_t n_slots = 16; /* at most three quarters full: what is not near is slow */
    while (n_slots < n + n / 3) n_slots *= 2;
    m->pairs = bpe_table_create(n_slots * sizeof *m->pairs);
    m->filter = calloc(n_slots * FILTER_BITS / 64, sizeof *m->filter);
    m->n_slots = n_slots;
    if (!m->pairs || !m->filter) return err_set(CZ_NOMEM, 0, "no memory for %zu merges", n);
    for (size_t i = 0; i < n_slots; i++) m->pairs[i] = (struct bpe_pair){.key = BPE_NO_PAIR};
    m->n = 0;
    m->key = hash_key();
    return CZ_OK;
}

void bpe_merges_free(struct bpe_merges *m)
{
    bpe_table_destroy(m->pairs, m->n_slots * sizeof *m->pairs);
    free(m->filter);
    memset(m, 0, sizeof *m);
}

static inline uint64_t pair_key(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

static inline uint64_t pair_hash(const struct bpe_merges *m, uint64_t key)
{
    return hash_number(m->key, key);
}

/* The bit of a pair: other bits of the hash than its slot's, where there are as many. */
static inline uint64_t *filter_word(const struct bpe_merges *m, uint64_t hash, uint64_t *bit)
{
    size_t i = (size_t)(hash * 0xD6E8FEB86659FD93u >> 24) & (m->n_slots * FILTER_BITS - 1);
    *bit = (uint64_t)1 << (i & 63);
    return &m->filter[i >> 6];
}

/* NULL: such a pair is not merged. Most are not, and most of those show in the filter, which is
 * small enough to stay in a near cache. */
static inline const struct bpe_pair *find_pair(const struct bpe_merges *m, int32_t left,
                                               int32_t right)
{
    uint64_t key = pair_key(left, right), hash = pair_hash(m, key), bit;
    if (!(*filter_word(m, hash, &bit) & bit)) return NULL;
    for (size_t i = (size_t)hash & (m->n_slots - 1);; i = (i + 1) & (m->n_slots - 1)) {
        if (m->pairs[i].key == key) return &m->pairs[i];
        if (m->pairs[i].key == BPE_NO_PAIR) return NULL;
    }
}

const struct bpe_pair *bpe_merges_find(const struct bpe_merges *m, int32_t left, int32_t right)
{
    return find_pair(m, left, right);
}

void bpe_merges_add(struct bpe_merges *m, int32_t left, int32_t right, uint32_t rank, int32_t id)
{
    uint64_t key = pair_key(left, right), hash = pair_hash(m, key), bit;
    size_t i = (size_t)hash & (m->n_slots - 1);
    while (m->pairs[i].key != key && m->pairs[i].key != BPE_NO_PAIR) i = (i + 1) & (m->n_slots - 1);
    if (m->pairs[i].key == BPE_NO_PAIR) m->n++;
    m->pairs[i] = (struct bpe_pair){key, rank, id};
    uint64_t *word = filter_word(m, hash, &bit);
    *word |= bit;
}

/* ---- symbols --------------------------------------------------------------------------------- */

/* The id of a character with what stands around it: the prefix of all but a word's first, the
 * suffix of its last. *affixed: its text then, NULL when it is the character alone. */
static int32_t char_id(const struct bpe_model *b, const char *s, size_t n, bool is_first,
                       bool is_last, char *affixed, size_t *n_affixed)
{
    const struct bpe_chars *chars = b->chars;
    const size_t n_prefix = is_first ? 0 : chars->n_prefix,
                 n_suffix = is_last ? chars->n_suffix : 0;
    size_t len;
    memcpy(affixed, chars->prefix, n_prefix);
    memcpy(affixed + n_prefix, s, n);
    memcpy(affixed + n_prefix + n, chars->suffix, n_suffix);
    *n_affixed = n_prefix + n + n_suffix;
    if (n_prefix + n_suffix == 0) {
        const int32_t c = chars_at(s, n, &len);
        if (c < BPE_CHARS) return chars->ids[c];
    }
    return bpe_vocab_find(&b->vocab, affixed, *n_affixed);
}

/* The ids of <0xE4> … for all bytes, or none. */
static size_t fallback_ids(const struct bpe_model *b, const char *s, size_t n, int32_t *ids)
{
    if (!b->chars->byte_fallback) return 0;
    for (size_t i = 0; i < n; i++)
        if (b->bytes[(unsigned char)s[i]].n == 0) return 0;
    for (size_t i = 0; i < n; i++) ids[i] = b->bytes[(unsigned char)s[i]].ids[0];
    return n;
}

/* As first_ids(), by characters. */
static size_t first_ids_of_chars(const struct bpe_model *b, const char *s, size_t n, int32_t *ids)
{
    char affixed[2 * BPE_AFFIX_MAX + 4];
    size_t n_ids = 0, len, n_affixed;
    bool is_waiting = false;
    for (size_t i = 0; i < n; i += len) {
        (void)chars_at(s + i, n - i, &len);
        const int32_t id = char_id(b, s + i, len, i == 0, i + len == n, affixed, &n_affixed);
        if (is_waiting && id >= 0) {
            ids[n_ids++] = b->unk_id;
            is_waiting = false;
        }
        if (id >= 0) {
            ids[n_ids++] = id;
            continue;
        }
        const size_t n_bytes = fallback_ids(b, affixed, n_affixed, ids + n_ids);
        n_ids += n_bytes;
        if (n_bytes > 0 || b->unk_id < 0) continue;
        if (is_waiting && !b->fuse_unk) ids[n_ids++] = b->unk_id;
        is_waiting = true;
    }
    if (is_waiting) ids[n_ids++] = b->unk_id;
    return n_ids;
}

/* The start of the character at s. Those that have none, like emoji, begin as bytes and so do their
 * neighbours; the end of the word is no hindrance. */
static inline const struct bpe_start *start_at(const struct bpe_model *b, const char *s, size_t n,
                                               size_t *len)
{
    static const struct bpe_start bytes = {.rank = BPE_NO_RANK},
                                  end = {.after = BPE_NO_RANK, .before = BPE_NO_RANK};
    *len = 0;
    if (n == 0) return &end;
    const int32_t c = chars_at(s, n, len);
    return c < BPE_CHARS ? &b->starts[c] : &bytes;
}

/* As first_ids(), where all bytes are known but, perhaps, the last. */
static size_t first_ids_by_starts(const struct bpe_model *b, const char *s, size_t n, int32_t *ids)
{
    size_t n_ids = 0, len, len_next;
    const struct bpe_start *before = start_at(b, s, 0, &len), *start = start_at(b, s, n, &len);
    for (size_t at = 0; at < n; at += len, len = len_next) {
        const bool is_last = at + len == n && b->lasts;
        const struct bpe_start *next = start_at(b, s + at + len, n - at - len, &len_next);
        if (start->rank < before->after && start->rank < next->before && !is_last) {
            for (uint32_t k = 0; k < start->n; k++) ids[n_ids++] = start->ids[k];
        } else {
            for (size_t k = at; k < at + len; k++)
                ids[n_ids++] = b->bytes[(unsigned char)s[k]].ids[0];
            if (is_last) n_ids--;
        }
        before = start;
        start = next;
    }
    if (!b->lasts) return n_ids;
    const struct bpe_byte *last = &b->lasts[(unsigned char)s[n - 1]];
    if (last->is_known || b->unk_id >= 0) ids[n_ids++] = last->is_known ? last->ids[0] : b->unk_id;
    return n_ids;
}

/* Words of ASCII begin as bytes either way, and sooner so. */
static bool has_wide(const char *s, size_t n)
{
    char all = 0;
    for (size_t i = 0; i < n; i++) all = (char)(all | s[i]);
    return (signed char)all < 0;
}

/* The ids that a word begins as: at most growth · n. An unknown byte waits for the next known one,
 * and joins those after it when they are fused. */
static size_t first_ids(const struct bpe_model *b, const char *s, size_t n, int32_t *ids)
{
    if (b->chars) return first_ids_of_chars(b, s, n, ids);
    if (b->starts && has_wide(s, n)) return first_ids_by_starts(b, s, n, ids);
    size_t n_ids = 0;
    bool is_waiting = false;
    for (size_t i = 0; i < n; i++) {
        const struct bpe_byte *bytes = b->lasts && i + 1 == n ? b->lasts : b->bytes;
        const struct bpe_byte *byte = &bytes[(unsigned char)s[i]];
        bool is_unknown = byte->n == 0 && b->unk_id >= 0;
        if (is_waiting && (byte->is_known || (is_unknown && !b->fuse_unk))) {
            ids[n_ids++] = b->unk_id;
            is_waiting = false;
        }
        for (int k = 0; k < byte->n; k++) ids[n_ids++] = byte->ids[k];
        is_waiting |= is_unknown;
    }
    if (is_waiting) ids[n_ids++] = b->unk_id;
    return n_ids;
}

/* ---- short words ----------------------------------------------------------------------------- */

/* Symbols stay where they began; those that are merged into the one before are passed over. */
struct short_word {
    int32_t ids[SHORT_MAX];
    int32_t ranks[SHORT_MAX];  /* of the pair with the next symbol, NO_MERGE: none */
    int32_t merged[SHORT_MAX]; /* its id */
    uint8_t next[SHORT_MAX + 1], prev[SHORT_MAX + 1];
    size_t n;
};
#define NO_MERGE INT32_MAX

static void look_up(const struct bpe_merges *m, struct short_word *w, size_t i, size_t next)
{
    const struct bpe_pair *pair = next < w->n ? find_pair(m, w->ids[i], w->ids[next]) : NULL;
    w->ranks[i] = pair ? (int32_t)pair->rank : NO_MERGE;
    if (pair) w->merged[i] = pair->id;
}

/* The first place of the lowest rank. The minimum comes first: compilers make vectors of it. */
static size_t lowest(const int32_t *ranks, size_t n)
{
    int32_t min = NO_MERGE;
    for (size_t i = 0; i < n; i++) min = ranks[i] < min ? ranks[i] : min;
    if (min == NO_MERGE) return n;
    size_t at = 0;
    while (ranks[at] != min) at++;
    return at;
}

static void merge_short(const struct bpe_merges *m, struct short_word *w)
{
    /* The table is larger than near caches: all pairs are asked for before the first is needed. */
    for (size_t i = 0; i + 1 < w->n; i++) {
        const uint64_t hash = pair_hash(m, pair_key(w->ids[i], w->ids[i + 1]));
        __builtin_prefetch(&m->pairs[(size_t)hash & (m->n_slots - 1)]);
    }
    for (size_t i = 0; i < w->n; i++) {
        w->next[i] = (uint8_t)(i + 1);
        w->prev[i + 1] = (uint8_t)i;
        look_up(m, w, i, i + 1);
    }
    for (size_t at; (at = lowest(w->ranks, w->n)) < w->n;) {
        size_t gone = w->next[at], after = w->next[gone];
        w->ids[at] = w->merged[at];
        w->ranks[gone] = NO_MERGE;
        w->next[at] = (uint8_t)after;
        w->prev[after] = (uint8_t)at;
        look_up(m, w, at, after);
        if (at > 0) look_up(m, w, w->prev[at], at);
    }
    size_t n = 0;
    for (size_t i = 0; i < w->n; i = w->next[i]) w->ids[n++] = w->ids[i];
    w->n = n;
}

/* ---- long words ------------------------------------------------------------------------------ */

static cz_status room_for_symbols(struct bpe_work *w, size_t n)
{
    if (n <= w->cap) return CZ_OK;
    if (n >= NONE) return err_set(CZ_NOMEM, 0, "a word of %zu bytes is too long", n);
    free(w->ids);
    free(w->left);
    free(w->right);
    free(w->heap);
    w->cap = 0;
    size_t cap = n + n / 4;
    w->ids = malloc(cap * sizeof *w->ids);
    w->left = malloc(cap * sizeof *w->left);
    w->right = malloc(cap * sizeof *w->right);
    /* A merge takes one pair out and puts at most two in: 3 · n are never exceeded. */
    w->heap = malloc(3 * cap * sizeof *w->heap);
    if (!w->ids || !w->left || !w->right || !w->heap)
        return err_set(CZ_NOMEM, 0, "no memory for a word of %zu bytes", n);
    w->cap = cap;
    return CZ_OK;
}

static uint64_t heap_pop(uint64_t *heap, size_t *n)
{
    uint64_t top = heap[0], last = heap[--*n];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= *n) break;
        if (child + 1 < *n && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= last) break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = last;
    return top;
}

static void push_pair(const struct bpe_merges *m, struct bpe_work *w, size_t *n_heap, uint32_t at)
{
    uint32_t next = w->right[at];
    if (next == NONE) return;
    const struct bpe_pair *pair = find_pair(m, w->ids[at], w->ids[next]);
    if (pair) {
        /* A heap of rank << 32 | place: the smallest is the leftmost pair of lowest rank. */
        const uint64_t item = (uint64_t)pair->rank << 32 | at;
        size_t i = (*n_heap)++;
        while (i > 0 && w->heap[(i - 1) / 2] > item) {
            w->heap[i] = w->heap[(i - 1) / 2];
            i = (i - 1) / 2;
        }
        w->heap[i] = item;
    }
}

/* The n symbols w->ids merged and appended. Pairs in the heap may be gone by now: a place without a
 * symbol has id −1, and a pair that has changed has another rank. */
static cz_status merge_long(const struct bpe_merges *m, struct bpe_work *w, size_t n,
                            struct id_list *out)
{
    size_t n_heap = 0;
    TRY(id_list_reserve(out, n));
    for (size_t i = 0; i < n; i++) {
        w->left[i] = i > 0 ? (uint32_t)(i - 1) : NONE;
        w->right[i] = i + 1 < n ? (uint32_t)(i + 1) : NONE;
    }
    for (size_t i = 0; i + 1 < n; i++) push_pair(m, w, &n_heap, (uint32_t)i);
    while (n_heap > 0) {
        uint64_t top = heap_pop(w->heap, &n_heap);
        uint32_t at = (uint32_t)top, next = w->right[at];
        if (w->ids[at] < 0 || next == NONE) continue;
        const struct bpe_pair *pair = find_pair(m, w->ids[at], w->ids[next]);
        if (!pair || pair->rank != (uint32_t)(top >> 32)) continue;
        w->ids[at] = pair->id;
        w->ids[next] = -1;
        w->right[at] = w->right[next];
        if (w->right[at] != NONE) w->left[w->right[at]] = at;
        push_pair(m, w, &n_heap, at);
        if (w->left[at] != NONE) push_pair(m, w, &n_heap, w->left[at]);
    }
    for (size_t i = 0; i < n; i++)
        if (w->ids[i] >= 0) out->ids[out->n++] = w->ids[i];
    return CZ_OK;
}

/* ---- the cache ------------------------------------------------------------------------------- */

void bpe_cache_put(const struct bpe_slot *p, const int32_t *ids, size_t n_ids)
{
    struct bpe_cached *pair = p->pair;
    if (n_ids > BPE_CACHED_IDS) return;
    pair[1] = pair[0];
    pair[0].nbytes = (uint8_t)p->nbytes;
    pair[0].n_ids = (uint8_t)n_ids;
    memcpy(pair[0].key, &p->key[0], 8);
    memcpy(pair[0].key + 8, &p->key[1], 8);
    memcpy(pair[0].key + BPE_CACHED_NBYTES - 8, &p->key[2], 8);
    memcpy(pair[0].ids, ids, n_ids * sizeof *ids);
    pair[0].lens[0] = 0;
}

cz_status bpe_word(const struct bpe_model *b, struct bpe_work *w, const char *s, size_t n,
                   size_t n_there, struct id_list *out)
{
    const struct bpe_slot place = bpe_slot_of(w, s, n, n_there);
    const struct bpe_cached *hit = place.pair ? bpe_cache_find(&place) : NULL;
    return hit ? bpe_cached_take(hit, out) : bpe_word_new(b, w, &place, s, out);
}

cz_status bpe_word_new(const struct bpe_model *b, struct bpe_work *w, const struct bpe_slot *place,
                       const char *s, struct id_list *out)
{
    struct short_word word;
    const size_t n = place->nbytes;
    int32_t whole = b->ignore_merges ? bpe_vocab_find(&b->vocab, s, n) : -1;
    if (whole >= 0) {
        word.ids[0] = whole;
        word.n = 1;
    } else {
        int32_t *ids = word.ids;
        if (b->growth * n > SHORT_MAX) {
            TRY(room_for_symbols(w, b->growth * n));
            ids = w->ids;
        }
        word.n = first_ids(b, s, n, ids);
        if (word.n > SHORT_MAX) return merge_long(&b->merges, w, word.n, out);
        if (ids != word.ids) memcpy(word.ids, ids, word.n * sizeof *ids);
        merge_short(&b->merges, &word);
    }
    TRY(id_list_reserve(out, word.n));
    if (word.n > 0) memcpy(out->ids + out->n, word.ids, word.n * sizeof *word.ids);
    out->n += word.n;
    if (place->pair) bpe_cache_put(place, word.ids, word.n);
    return CZ_OK;
}
