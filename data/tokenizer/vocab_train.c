/* Pieces of a vocabulary: the pair of neighbours that occurs most often becomes one, again and
 * again (Sennrich et al. 2016, over "a" and "##b", or over bytes). Pairs know the words they are
 * in, so that a merge touches those alone; a heap has the counts as they were when a pair was last
 * pushed, and what is out of date there is pushed anew when it comes up. Equal counts go by token
 * numbers. */
#include "data/tokenizer/vocab_impl.h"

#include "data/tokenizer/bpe/bpe_impl.h"

#include <stdlib.h>
#include <string.h>

struct train_word {
    uint32_t *tokens; /* in the pool */
    uint32_t n;
    uint64_t count;
};

struct pair {
    uint32_t left, right;
    int64_t count;
    uint32_t *words; /* where it is, or was */
    uint32_t n, cap;
    bool is_listed; /* in `risen` */
};

struct heap_item {
    int64_t count;
    uint32_t pair;
};

struct train {
    struct vocab *v;
    uint32_t *pool;
    struct train_word *words;
    uint32_t n_words;
    struct pair *pairs;
    uint32_t n_pairs, cap_pairs;
    uint32_t *slots; /* pair + 1, 0: empty */
    size_t n_slots;
    struct heap_item *heap;
    size_t n_heap, cap_heap;
    uint32_t *risen; /* pairs to push after a merge */
    size_t n_risen, cap_risen;
    uint32_t bytes[256]; /* BPE: their tokens */
};

static cz_status no_memory(void)
{
    return err_set(CZ_NOMEM, 0, "no memory to train a vocabulary");
}

/* Capacity for one more of `size` bytes in a block that grows. */
static cz_status reserve(void *block, size_t n, size_t *cap, size_t size)
{
    void **p = block;
    if (n < *cap) return CZ_OK;
    size_t grown = 2 * *cap + 64;
    void *moved = realloc(*p, grown * size);
    if (!moved) return no_memory();
    *p = moved;
    *cap = grown;
    return CZ_OK;
}

/* ---- the heap -------------------------------------------------------------------------------- */

/* Equal counts go by token numbers, so that the result does not depend on the heap. */
static bool goes_before(const struct train *t, struct heap_item a, struct heap_item b)
{
    const struct pair *x = &t->pairs[a.pair], *y = &t->pairs[b.pair];
    if (a.count != b.count) return a.count > b.count;
    return x->left != y->left ? x->left < y->left : x->right < y->right;
}

static cz_status heap_push(struct train *t, uint32_t pair)
{
    struct heap_item item = {t->pairs[pair].count, pair};
    TRY(reserve(&t->heap, t->n_heap, &t->cap_heap, sizeof *t->heap));
    size_t at = t->n_heap++;
    for (; at > 0 && goes_before(t, item, t->heap[(at - 1) / 2]); at = (at - 1) / 2)
        t->heap[at] = t->heap[(at - 1) / 2];
    t->heap[at] = item;
    return CZ_OK;
}

static struct heap_item heap_pop(struct train *t)
{
    struct heap_item top = t->heap[0], last = t->heap[--t->n_heap];
    size_t at = 0, child;
    while ((child = 2 * at + 1) < t->n_heap) {
        if (child + 1 < t->n_heap && goes_before(t, t->heap[child + 1], t->heap[child])) child++;
        if (!goes_before(t, t->heap[child], last)) break;
        t->heap[at] = t->heap[child];
        at = child;
    }
    t->heap[at] = last;
    return top;
}

/* ---- pairs ----------------------------------------------------------------------------------- */

static size_t pair_slot(const struct train *t, uint32_t left, uint32_t right)
{
    uint64_t key = ((uint64_t)left << 32 | right) * 0x9E3779B97F4A7C15u;
    size_t slot = (size_t)(key >> 20) & (t->n_slots - 1);
    for (; t->slots[slot]; slot = (slot + 1) & (t->n_slots - 1)) {
        const struct pair *p = &t->pairs[t->slots[slot] - 1];
        if (p->left == left && p->right == right) break;
    }
    return slot;
}

/* Pairs are never removed; a count of 0 is enough. */
static cz_status need_pair(struct train *t, uint32_t left, uint32_t right, uint32_t *pair)
{
    size_t cap = t->cap_pairs;
    if ((size_t)t->n_pairs + t->n_pairs / 2 >= t->n_slots) {
        size_t n_slots = t->n_slots ? 2 * t->n_slots : 4096;
        uint32_t *slots = calloc(n_slots, sizeof *slots);
        if (!slots) return no_memory();
        free(t->slots);
        t->slots = slots;
        t->n_slots = n_slots;
        for (uint32_t i = 0; i < t->n_pairs; i++)
            slots[pair_slot(t, t->pairs[i].left, t->pairs[i].right)] = i + 1;
    }
    size_t slot = pair_slot(t, left, right);
    if (!t->slots[slot]) {
        TRY(reserve(&t->pairs, t->n_pairs, &cap, sizeof *t->pairs));
        t->cap_pairs = (uint32_t)cap;
        t->pairs[t->n_pairs++] = (struct pair){.left = left, .right = right};
        t->slots[slot] = t->n_pairs;
    }
    *pair = t->slots[slot] - 1;
    return CZ_OK;
}

/* The pair occurs in a word (again): +count; no more: −count. Words are listed when a pair appears
 * in them and may be listed in vain later, which only costs a look. */
static cz_status change_pair(struct train *t, uint32_t left, uint32_t right, uint32_t word,
                             int64_t change)
{
    uint32_t idx = 0;
    TRY(need_pair(t, left, right, &idx));
    struct pair *p = &t->pairs[idx];
    p->count += change;
    if (change < 0) return CZ_OK;
    if (p->n == 0 || p->words[p->n - 1] != word) {
        size_t cap = p->cap;
        TRY(reserve(&p->words, p->n, &cap, sizeof *p->words));
        p->cap = (uint32_t)cap;
        p->words[p->n++] = word;
    }
    if (p->is_listed) return CZ_OK;
    TRY(reserve(&t->risen, t->n_risen, &t->cap_risen, sizeof *t->risen));
    t->risen[t->n_risen++] = idx;
    p->is_listed = true;
    return CZ_OK;
}

static cz_status push_risen(struct train *t)
{
    for (size_t i = 0; i < t->n_risen; i++) {
        t->pairs[t->risen[i]].is_listed = false;
        if (t->pairs[t->risen[i]].count > 0) TRY(heap_push(t, t->risen[i]));
    }
    t->n_risen = 0;
    return CZ_OK;
}

/* ---- merging --------------------------------------------------------------------------------- */

/* Replaces the pair in one word by `both`, from the left; its neighbours form new pairs. */
static cz_status merge_in(struct train *t, uint32_t word_idx, uint32_t left, uint32_t right,
                          uint32_t both)
{
    struct train_word *w = &t->words[word_idx];
    const int64_t count = (int64_t)w->count;
    uint32_t n = 0; /* tokens of the word as it will be */
    for (uint32_t i = 0; i < w->n; i++) {
        const uint32_t *at = w->tokens + i, rest = w->n - i;
        if (rest < 2 || at[0] != left || at[1] != right) {
            w->tokens[n++] = at[0];
            continue;
        }
        TRY(change_pair(t, left, right, word_idx, -count));
        if (n > 0) {
            TRY(change_pair(t, w->tokens[n - 1], left, word_idx, -count));
            TRY(change_pair(t, w->tokens[n - 1], both, word_idx, count));
        }
        if (rest > 2) {
            TRY(change_pair(t, right, at[2], word_idx, -count));
            TRY(change_pair(t, both, at[2], word_idx, count));
        }
        w->tokens[n++] = both;
        i++;
    }
    w->n = n;
    return CZ_OK;
}

/* "ab" of "a" and "##b", "##ab" of "##a" and "##b"; of bytes "ab" of "a" and "b". */
static cz_status join(struct vocab *v, uint32_t left, uint32_t right, uint32_t *both)
{
    char text[VOCAB_PREFIX_NBYTES + 2 * VOCAB_WORD_MAX];
    const size_t left_nbytes = v->tokens.rows[left].nbytes;
    const size_t skipped = vocab_is_bpe(v) ? 0 : VOCAB_PREFIX_NBYTES;
    const size_t right_nbytes = v->tokens.rows[right].nbytes - skipped;
    memcpy(text, strings_text(&v->tokens, left), left_nbytes);
    memcpy(text + left_nbytes, strings_text(&v->tokens, right) + skipped, right_nbytes);
    TRY(strings_need(&v->tokens, text, left_nbytes + right_nbytes, both));
    if (!vocab_is_bpe(v)) return CZ_OK;
    TRY(reserve(&v->merges, v->n_merges, &v->cap_merges, sizeof *v->merges));
    v->merges[v->n_merges++] = (struct vocab_merge){left, right};
    return CZ_OK;
}

static cz_status merge(struct train *t, uint32_t pair)
{
    uint32_t left = t->pairs[pair].left, right = t->pairs[pair].right, both;
    uint32_t *words = t->pairs[pair].words, n = t->pairs[pair].n;
    TRY(join(t->v, left, right, &both));
    t->pairs[pair].words = NULL; /* a merge makes other pairs only, so none is added meanwhile */
    t->pairs[pair].n = t->pairs[pair].cap = 0;
    cz_status st = CZ_OK;
    for (uint32_t i = 0; st == CZ_OK && i < n; i++) st = merge_in(t, words[i], left, right, both);
    free(words);
    return st == CZ_OK ? push_risen(t) : st;
}

/* What the heap holds may be out of date: a pair whose count has sunk is pushed again with its
 * count of now. */
static cz_status merge_all(struct train *t)
{
    int64_t least = t->v->options.min_count > 0 ? (int64_t)t->v->options.min_count : 1;
    while (t->n_heap > 0 && t->v->tokens.n < t->v->options.size) {
        struct heap_item top = heap_pop(t);
        const struct pair *p = &t->pairs[top.pair];
        if (p->count != top.count) { /* fewer by now, or pushed again since */
            if (p->count > 0 && p->count < top.count) TRY(heap_push(t, top.pair));
            continue;
        }
        if (p->count < least) break;
        TRY(merge(t, top.pair));
    }
    return CZ_OK;
}

/* ---- words ----------------------------------------------------------------------------------- */

/* A word as characters; one with a character that is no token takes no part. */
static bool split_chars(struct train *t, const char *text, size_t nbytes, uint32_t *tokens,
                        uint32_t *n)
{
    size_t len;
    *n = 0;
    for (size_t at = 0; at < nbytes; at += len) {
        char symbol[VOCAB_SYMBOL_NBYTES];
        size_t n_symbol = vocab_symbol(text, nbytes, at, symbol, &len);
        int64_t idx = strings_find(&t->v->tokens, symbol, n_symbol);
        if (idx < 0) return false;
        tokens[(*n)++] = (uint32_t)idx;
    }
    return *n > 1;
}

static bool split_bytes(struct train *t, const char *text, size_t nbytes, uint32_t *tokens,
                        uint32_t *n)
{
    *n = (uint32_t)nbytes;
    for (size_t i = 0; i < nbytes; i++) tokens[i] = t->bytes[(unsigned char)text[i]];
    return true;
}

/* The token of each byte. */
static void find_bytes(struct train *t)
{
    for (int byte = 0; byte < 256; byte++) {
        char written[3];
        bpe_alphabet_char((unsigned char)byte, written);
        t->bytes[byte] = (uint32_t)strings_find(&t->v->tokens, written, strlen(written));
    }
}

static cz_status split_words(struct train *t)
{
    const struct strings *words = &t->v->words;
    size_t used = 0;
    t->pool = malloc((words->n_bytes + 1) * sizeof *t->pool);
    t->words = malloc((words->n + (size_t)1) * sizeof *t->words);
    uint32_t *order;
    bool (*const split)(struct train *, const char *, size_t, uint32_t *, uint32_t *) =
        vocab_is_bpe(t->v) ? split_bytes : split_chars;
    if (vocab_is_bpe(t->v)) find_bytes(t);
    if (!t->pool || !t->words) return no_memory();
    TRY(strings_order(words, &order)); /* not the order of the texts */
    for (uint32_t i = 0; i < words->n; i++) {
        const struct string_row *row = &words->rows[order[i]];
        struct train_word *w = &t->words[t->n_words];
        *w = (struct train_word){.tokens = t->pool + used, .count = row->count};
        if (!split(t, strings_text(words, order[i]), row->nbytes, w->tokens, &w->n)) continue;
        used += w->n;
        t->n_words++;
    }
    free(order);
    return CZ_OK;
}

static cz_status count_pairs(struct train *t)
{
    for (uint32_t i = 0; i < t->n_words; i++) {
        const struct train_word *w = &t->words[i];
        for (uint32_t k = 0; k + 1 < w->n; k++)
            TRY(change_pair(t, w->tokens[k], w->tokens[k + 1], i, (int64_t)w->count));
    }
    return push_risen(t);
}

cz_status vocab_train(struct vocab *v)
{
    struct train t = {.v = v};
    cz_status st;
    TRY_GOTO(split_words(&t), done);
    TRY_GOTO(count_pairs(&t), done);
    TRY_GOTO(merge_all(&t), done);
    for (uint32_t i = 0; i < t.n_words; i++)
        v->report.n_pieces_used += t.words[i].n * t.words[i].count;
    for (uint32_t i = 0; i < v->words.n; i++)
        v->report.n_bytes += v->words.rows[i].nbytes * v->words.rows[i].count;
done:
    for (uint32_t i = 0; i < t.n_pairs; i++) free(t.pairs[i].words);
    free(t.pairs);
    free(t.pool);
    free(t.words);
    free(t.slots);
    free(t.heap);
    free(t.risen);
    return st;
}
