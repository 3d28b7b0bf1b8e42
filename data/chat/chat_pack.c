/* Bins of examples: best fit, longest first, as TRL's strategy "bfd" fills them. Examples are taken
 * from the longest to the shortest; each goes to the bin with the least space that holds it, of
 * several to the one that has waited longest; without one it opens a bin.
 *
 * Bins with equal space form a queue; a tree over the spaces (each node: the largest space below it
 * that has a bin) finds the least that suffices: n log n in all. */
#include "data/chat/chat_set.h"

#include <stdlib.h>
#include <string.h>

enum { NONE = -1 };

struct open_bin {
    int64_t next;        /* in the queue of its space */
    int64_t first, last; /* examples, linked by packer.follows */
};

struct packer {
    int64_t max_len, n_leaves;
    uint8_t *has;         /* (2·n_leaves) whether a space below this node has a bin */
    int64_t *head, *tail; /* (max_len + 1) queues */
    struct open_bin *bins;
    size_t n_bins;
    int64_t *follows; /* (n) the next example of the same bin */
};

static void set_space(struct packer *p, int64_t space, bool has)
{
    int64_t i = p->n_leaves + space;
    p->has[i] = has;
    for (i /= 2; i > 0; i /= 2) p->has[i] = p->has[2 * i] | p->has[2 * i + 1];
}

/* The least space of at least n that has a bin, or NONE. */
static int64_t find_space(const struct packer *p, int64_t n)
{
    int64_t i = p->n_leaves + n;
    while (!p->has[i]) {
        while (i & 1) i /= 2; /* up from right children */
        if (i == 0) return NONE;
        i++; /* the right neighbour */
    }
    while (i < p->n_leaves) i = p->has[2 * i] ? 2 * i : 2 * i + 1;
    return i - p->n_leaves;
}

static void push(struct packer *p, int64_t bin, int64_t space)
{
    p->bins[bin].next = NONE;
    if (p->head[space] == NONE) {
        p->head[space] = bin;
        set_space(p, space, true);
    } else {
        p->bins[p->tail[space]].next = bin;
    }
    p->tail[space] = bin;
}

static int64_t pop(struct packer *p, int64_t space)
{
    int64_t bin = p->head[space];
    p->head[space] = p->bins[bin].next;
    if (p->head[space] == NONE) set_space(p, space, false);
    return bin;
}

/* Examples by length, the longest first, equal ones in their order. One that trains something has
 * at least one token. */
static cz_status sort_by_length(const struct chat_set *s, int64_t max_len, uint32_t *sorted)
{
    size_t *at = calloc((size_t)max_len + 1, sizeof *at);
    if (!at) return err_set(CZ_NOMEM, 0, "no memory to sort %zu examples", s->n_examples);
    for (size_t i = 0; i < s->n_examples; i++)
        if (s->examples[i].n_trained > 0) at[(size_t)max_len - s->examples[i].n + 1]++;
    for (int64_t k = 1; k <= max_len; k++) at[k] += at[k - 1];
    for (size_t i = 0; i < s->n_examples; i++)
        if (s->examples[i].n_trained > 0)
            sorted[at[(size_t)max_len - s->examples[i].n]++] = (uint32_t)i;
    free(at);
    return CZ_OK;
}

static cz_status packer_init(struct packer *p, size_t n, int64_t max_len)
{
    p->max_len = max_len;
    for (p->n_leaves = 1; p->n_leaves <= max_len; p->n_leaves *= 2) continue;
    p->has = calloc(2 * (size_t)p->n_leaves, 1);
    p->head = malloc(((size_t)max_len + 1) * sizeof *p->head);
    p->tail = malloc(((size_t)max_len + 1) * sizeof *p->tail);
    p->bins = malloc(n * sizeof *p->bins + 1);
    p->follows = malloc(n * sizeof *p->follows + 1);
    if (!p->has || !p->head || !p->tail || !p->bins || !p->follows)
        return err_set(CZ_NOMEM, 0, "no memory to pack %zu examples", n);
    for (int64_t k = 0; k <= max_len; k++) p->head[k] = NONE;
    return CZ_OK;
}

static void packer_free(struct packer *p)
{
    free(p->has);
    free(p->head);
    free(p->tail);
    free(p->bins);
    free(p->follows);
}

static void pack_one(struct packer *p, const struct chat_set *s, uint32_t example)
{
    int64_t n = (int64_t)s->examples[example].n, space = find_space(p, n), bin;
    p->follows[example] = NONE;
    if (space == NONE) {
        space = p->max_len;
        bin = (int64_t)p->n_bins++;
        p->bins[bin].first = example;
    } else {
        bin = pop(p, space);
        p->follows[p->bins[bin].last] = example;
    }
    p->bins[bin].last = example;
    push(p, bin, space - n);
}

static void close_bins(const struct packer *p, struct chat_set *s)
{
    size_t at = 0;
    for (size_t b = 0; b < p->n_bins; b++) {
        struct chat_bin *bin = &s->bins[b];
        *bin = (struct chat_bin){.begin = at};
        for (int64_t i = p->bins[b].first; i != NONE; i = p->follows[i]) {
            s->order[at++] = (uint32_t)i;
            bin->n_tokens += s->examples[i].n;
            bin->n_trained += s->examples[i].n_trained;
        }
        bin->n = at - bin->begin;
    }
    s->n_bins = p->n_bins;
}

cz_status chat_set_pack(struct chat_set *s, int64_t max_len, bool packs)
{
    struct packer p = {0};
    s->order = malloc(s->n_examples * sizeof *s->order + 1);
    s->bins = malloc(s->n_examples * sizeof *s->bins + 1);
    if (!s->order || !s->bins || s->n_examples > UINT32_MAX)
        return err_set(CZ_NOMEM, 0, "no memory for %zu examples", s->n_examples);
    size_t n = 0; /* those with something to train */
    for (size_t i = 0; i < s->n_examples; i++) {
        const struct chat_example *e = &s->examples[i];
        if (e->n_trained == 0) continue;
        s->order[n] = (uint32_t)i;
        s->bins[n] =
            (struct chat_bin){.begin = n, .n = 1, .n_tokens = e->n, .n_trained = e->n_trained};
        n++;
    }
    s->n_bins = n;
    if (!packs) return CZ_OK;
    uint32_t *sorted = malloc(n * sizeof *sorted + 1);
    cz_status st = sorted ? packer_init(&p, s->n_examples, max_len)
                          : err_set(CZ_NOMEM, 0, "no memory to pack %zu examples", s->n_examples);
    if (st == CZ_OK) st = sort_by_length(s, max_len, sorted);
    for (size_t i = 0; i < n && st == CZ_OK; i++) pack_one(&p, s, sorted[i]);
    if (st == CZ_OK) close_bins(&p, s);
    packer_free(&p);
    free(sorted);
    return st;
}
