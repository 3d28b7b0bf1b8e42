/* The longest token at a place: a double array over the tokens' bytes (Aoe 1989).
 *
 * Built breadth first from the sorted tokens. A node's children need their slots free at one common
 * base. Several search from a place that moves on when little fits there, so that the search stays
 * short; an only child takes the first free slot, and fills what others left. */
#include "data/tokenizer/wordpiece/wordpiece_impl.h"

#include <stdlib.h>
#include <string.h>

#define N_BYTES  256
#define FREE     (-1)
#define N_TRIED  32 /* slots that do not do, after which the search begins further on */
#define SLOT_MAX (INT32_MAX - 2 * N_BYTES)

/* Tokens [lo, hi) begin with the same `depth` bytes, those of `node`. */
struct build_item {
    size_t lo, hi, depth;
    int32_t node;
};

struct build {
    struct wp_trie *trie;
    const struct wp_token *tokens;
    struct build_item *queue;
    size_t n_queued, cap_queued;
    int32_t single_from, search_from;
    size_t used; /* slots up to the last one in use */
};

static int compare_tokens(const void *a, const void *b)
{
    const struct wp_token *x = a, *y = b;
    size_t n = x->nbytes < y->nbytes ? x->nbytes : y->nbytes;
    int order = n ? memcmp(x->text, y->text, n) : 0;
    if (order) return order;
    if (x->nbytes != y->nbytes) return x->nbytes < y->nbytes ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* Slots 0 … n − 1 exist. */
static cz_status need_slots(struct wp_trie *trie, size_t n)
{
    if (n <= trie->cap) return CZ_OK;
    size_t cap = trie->cap + trie->cap / 2 > n ? trie->cap + trie->cap / 2 : n;
    struct wp_node *nodes = realloc(trie->nodes, cap * sizeof *nodes);
    if (!nodes) return err_set(CZ_NOMEM, 0, "no memory for a vocabulary's tree");
    for (size_t i = trie->cap; i < cap; i++)
        nodes[i] = (struct wp_node){.base = 0, .parent = FREE, .id = -1};
    trie->nodes = nodes;
    trie->cap = cap;
    return CZ_OK;
}

static bool fits(const struct wp_trie *trie, int32_t base, const unsigned char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (trie->nodes[base + bytes[i]].parent != FREE) return false;
    return true;
}

/* A base at which children by `bytes` (ascending) find free slots. Slot 0 is the root's. */
static cz_status find_base(struct build *b, const unsigned char *bytes, size_t n, int32_t *base)
{
    struct wp_trie *trie = b->trie;
    int32_t *from = n == 1 ? &b->single_from : &b->search_from;
    int32_t slot = *from > bytes[0] + 1 ? *from : bytes[0] + 1;
    for (int n_tried = 0;; slot++) {
        if (slot > SLOT_MAX) return err_set(CZ_UNSUPPORTED, 0, "the vocabulary is too large");
        TRY(need_slots(trie, (size_t)slot + 2 * N_BYTES));
        *base = slot - bytes[0];
        if (fits(trie, *base, bytes, n)) break;
        if (++n_tried == N_TRIED) *from = slot;
    }
    return CZ_OK;
}

static cz_status add_item(struct build *b, struct build_item item)
{
    if (b->n_queued == b->cap_queued) {
        size_t cap = 2 * b->cap_queued + 256;
        struct build_item *queue = realloc(b->queue, cap * sizeof *queue);
        if (!queue) return err_set(CZ_NOMEM, 0, "no memory for a vocabulary's tree");
        b->queue = queue;
        b->cap_queued = cap;
    }
    b->queue[b->n_queued++] = item;
    return CZ_OK;
}

/* Give a node its id and its children, which are queued for theirs. */
static cz_status build_node(struct build *b, struct build_item item)
{
    unsigned char bytes[N_BYTES];
    size_t starts[N_BYTES + 1], n = 0;
    int32_t base = 0;
    for (; item.lo < item.hi && b->tokens[item.lo].nbytes == item.depth; item.lo++)
        b->trie->nodes[item.node].id = b->tokens[item.lo].id;
    for (size_t i = item.lo; i < item.hi; i++) {
        unsigned char byte = (unsigned char)b->tokens[i].text[item.depth];
        if (n > 0 && bytes[n - 1] == byte) continue;
        bytes[n] = byte;
        starts[n++] = i;
    }
    if (n == 0) return CZ_OK;
    starts[n] = item.hi;
    TRY(find_base(b, bytes, n, &base));
    b->trie->nodes[item.node].base = base;
    for (size_t i = 0; i < n; i++) {
        int32_t child = base + bytes[i];
        b->trie->nodes[child].parent = item.node;
        if ((size_t)child > b->used) b->used = (size_t)child;
        TRY(add_item(b, (struct build_item){starts[i], starts[i + 1], item.depth + 1, child}));
    }
    return CZ_OK;
}

cz_status wp_trie_build(struct wp_trie *trie, struct wp_token *tokens, size_t n_tokens)
{
    struct build b = {.trie = trie, .tokens = tokens, .single_from = 1, .search_from = 1};
    cz_status st;
    memset(trie, 0, sizeof *trie);
    if (n_tokens > 0) qsort(tokens, n_tokens, sizeof *tokens, compare_tokens);
    TRY_GOTO(need_slots(trie, (size_t)2 * N_BYTES), done);
    trie->nodes[0].parent = 0;
    TRY_GOTO(add_item(&b, (struct build_item){0, n_tokens, 0, 0}), done);
    for (size_t i = 0; i < b.n_queued; i++) TRY_GOTO(build_node(&b, b.queue[i]), done);
    trie->nodes[0].parent = FREE; /* no node's child */
    trie->n = b.used + 1;
done:
    free(b.queue);
    if (st != CZ_OK) wp_trie_free(trie);
    return st;
}

void wp_trie_free(struct wp_trie *trie)
{
    free(trie->nodes);
    memset(trie, 0, sizeof *trie);
}

int32_t wp_trie_walk(const struct wp_trie *trie, int32_t node, const char *text, size_t nbytes)
{
    for (size_t i = 0; i < nbytes; i++) {
        int32_t next = trie->nodes[node].base + (unsigned char)text[i];
        if (trie->nodes[next].parent != node) return -1;
        node = next;
    }
    return node;
}
