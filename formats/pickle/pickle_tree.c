/* The finished tree: one walk over everything that the root reaches, children first. It refuses
 * cycles, great depth and trees that would explode when walked (values may be shared), and settles
 * the keys of dicts. After it every consumer may recurse over the tree without checks of its
 * own. */
#include "formats/pickle/pickle_impl.h"

#include <math.h>

/* ---- keys --------------------------------------------------------------------------------------
 * Equal as Python has it: 1, 1.0 and True are one key; tuples by value; classes by name, however
 * often it is written; everything that is not plain data only with itself. */

static bool is_number(const struct pickle_node *node)
{
    return node->kind == PICKLE_INT || node->kind == PICKLE_BOOL || node->kind == PICKLE_FLOAT;
}

/* A number's value as an integer, if it is one. */
static bool whole(const struct pickle_node *node, int64_t *out)
{
    if (node->kind != PICKLE_FLOAT) {
        *out = node->kind == PICKLE_BOOL ? node->boolean : node->integer;
        return true;
    }
    if (!(node->real >= -0x1p63 && node->real < 0x1p63) || trunc(node->real) != node->real)
        return false;
    *out = (int64_t)node->real;
    return true;
}

static uint32_t hash_of(const void *bytes, size_t n)
{
    return (uint32_t)(hash_bytes(bytes, n) >> 32);
}

static uint32_t hash_of_int(int64_t integer)
{
    return hash_of(&integer, sizeof integer);
}

/* Equal keys have equal hashes: 1, 1.0 and True hash as the integer. NaN is equal to itself only,
 * as Python has it, and so is a key by its address. Children come first, so a tuple's items have
 * theirs. */
static uint32_t hash_node(const struct pickle_node *node)
{
    int64_t integer;
    uint64_t h = 0;
    if (is_number(node)) {
        if (whole(node, &integer)) return hash_of_int(integer);
        if (isnan(node->real)) return hash_of(&node, sizeof(const struct pickle_node *));
        return hash_of(&node->real, sizeof node->real);
    }
    switch (node->kind) {
    case PICKLE_NONE: return 0;
    case PICKLE_LONG:
    case PICKLE_STRING:
    case PICKLE_BYTES: return hash_of(node->text, node->n);
    case PICKLE_TUPLE:
    case PICKLE_SIZE:
        for (size_t i = 0; i < node->n; i++) {
            uint64_t both[2] = {h, node->items[i]->own_hash};
            h = hash_bytes(both, sizeof both);
        }
        return (uint32_t)(h >> 32);
    case PICKLE_GLOBAL:
    case PICKLE_DTYPE: {
        uint64_t both[2] = {hash_text(node->more->module), hash_text(node->more->name)};
        return hash_of(both, sizeof both);
    }
    default: return hash_of(&node, sizeof(const struct pickle_node *));
    }
}

static bool is_same_name(struct pickle_parser *p, const char *a, const char *b)
{
    size_t n = strlen(a);
    p->work_left -= n < p->work_left ? n : p->work_left;
    return strcmp(a, b) == 0;
}

/* Steps are counted: tuples of tuples that share parts could otherwise be compared forever. */
static bool is_same_key(struct pickle_parser *p, const struct pickle_node *a,
                        const struct pickle_node *b)
{
    int64_t x, y;
    if (a == b) return true;
    if (p->work_left == 0 || a->own_hash != b->own_hash) return false;
    p->work_left--;
    if (is_number(a) && is_number(b)) {
        bool a_whole = whole(a, &x), b_whole = whole(b, &y);
        return a_whole && b_whole ? x == y : !a_whole && !b_whole && a->real == b->real;
    }
    if (a->kind != b->kind) return false;
    if (a->kind == PICKLE_GLOBAL || a->kind == PICKLE_DTYPE) /* items are a class's attributes */
        return is_same_name(p, a->more->module, b->more->module) &&
               is_same_name(p, a->more->name, b->more->name);
    if (a->n != b->n) return false;
    switch (a->kind) {
    case PICKLE_NONE: return true;
    case PICKLE_LONG:
    case PICKLE_STRING:
    case PICKLE_BYTES:
        p->work_left -= a->n < p->work_left ? a->n : p->work_left;
        return memcmp(a->text, b->text, a->n) == 0;
    case PICKLE_TUPLE:
    case PICKLE_SIZE:
        for (size_t i = 0; i < a->n; i++)
            if (!is_same_key(p, a->items[i], b->items[i])) return false;
        return true;
    default: return false;
    }
}

/* ---- dicts ----------------------------------------------------------------------------------- */

#define SMALL_DICT 8 /* up to here a walk is faster than a table */

/* The index of a dict: a mask, then mask + 1 slots, each 1 + a pair's number, or 0. */
static cz_status index_new(struct pickle_parser *p, size_t n_pairs, uint32_t **out)
{
    void *memory;
    *out = NULL;
    if (n_pairs <= SMALL_DICT) return CZ_OK;
    size_t n_slots = 16;
    while (n_slots < n_pairs + n_pairs / 2) n_slots *= 2;
    TRY(pickle_alloc(p, (1 + n_slots) * sizeof **out, &memory));
    *out = memory;
    (*out)[0] = (uint32_t)(n_slots - 1);
    return CZ_OK;
}

/* The place of `key` among the first n pairs; n if it is not there. *slot: its slot, in a large
 * dict. */
static size_t find_pair(struct pickle_parser *p, const struct pickle_pair *pairs, size_t n,
                        uint32_t *index, const struct pickle_node *key, uint32_t **slot)
{
    if (!index) {
        for (size_t i = 0; i < n; i++)
            if (is_same_key(p, pairs[i].key, key)) return i;
        return n;
    }
    uint32_t mask = index[0];
    for (uint32_t i = key->own_hash & mask;; i = (i + 1) & mask) {
        *slot = &index[1 + i];
        if (**slot == 0) return n;
        if (is_same_key(p, pairs[**slot - 1].key, key)) return **slot - 1;
    }
}

/* Repeated keys get their last value at their first place, as in Python, and the index is built.
 * Pairs are copied only if there is something to change, since they may be shared. */
static cz_status settle_pairs(struct pickle_parser *p, struct pickle_node *node)
{
    const struct pickle_pair *pairs = node->pairs;
    struct pickle_pair *own = NULL; /* a copy, once there is something to change */
    size_t n = 0;
    uint32_t *index, *slot = NULL;
    TRY(index_new(p, node->n_pairs, &index));
    for (size_t i = 0; i < node->n_pairs; i++) {
        struct pickle_pair pair = node->pairs[i];
        size_t at = find_pair(p, pairs, n, index, pair.key, &slot);
        if (at < n && !own) {
            void *memory;
            TRY(pickle_alloc(p, node->n_pairs * sizeof *own, &memory));
            pairs = own = memory;
            memcpy(own, node->pairs, i * sizeof *own);
        }
        if (at < n)
            own[at].value = pair.value;
        else if (own)
            own[n] = pair;
        if (at < n) continue;
        if (index) *slot = (uint32_t)(n + 1);
        n++;
    }
    if (p->work_left == 0)
        return pickle_fail(p, CZ_CORRUPT, "the keys of a dict share too much to be compared");
    node->pairs = pairs;
    node->n_pairs = (uint32_t)n;
    if (!index) return CZ_OK;
    struct pickle_more *more;
    TRY(pickle_more_need(p, node, &more));
    more->own[PICKLE_OWN_INDEX] = index;
    return CZ_OK;
}

static const uint32_t *index_of(const struct pickle_node *dict)
{
    return dict->more->own[PICKLE_OWN_INDEX];
}

/* The nth pair to look at for a key of this hash, NULL after the last; without an index all of
 * them. */
static const struct pickle_pair *candidate(const struct pickle_node *dict, uint32_t hash,
                                           uint32_t nth)
{
    const uint32_t *index = index_of(dict);
    if (!index) return nth < dict->n_pairs ? &dict->pairs[nth] : NULL;
    uint32_t entry = index[1 + ((hash + nth) & index[0])];
    return entry ? &dict->pairs[entry - 1] : NULL;
}

static bool has_keys(const struct pickle_node *node)
{
    return node && (node->kind == PICKLE_DICT || node->kind == PICKLE_OBJECT);
}

const struct pickle_node *pickle_get(const struct pickle_node *dict, const char *key)
{
    if (!has_keys(dict)) return NULL;
    const size_t length = strlen(key);
    const uint32_t hash = index_of(dict) ? hash_of(key, length) : 0;
    const struct pickle_pair *pair;
    for (uint32_t i = 0; (pair = candidate(dict, hash, i)) != NULL; i++) {
        const struct pickle_node *got = pair->key;
        if (got->kind == PICKLE_STRING && got->n == length && memcmp(got->text, key, length) == 0)
            return pair->value;
    }
    return NULL;
}

const struct pickle_node *pickle_get_int(const struct pickle_node *dict, int64_t key)
{
    if (!has_keys(dict)) return NULL;
    const uint32_t hash = index_of(dict) ? hash_of_int(key) : 0;
    const struct pickle_pair *pair;
    for (uint32_t i = 0; (pair = candidate(dict, hash, i)) != NULL; i++) {
        int64_t got;
        if (is_number(pair->key) && whole(pair->key, &got) && got == key) return pair->value;
    }
    return NULL;
}

/* ---- the walk -------------------------------------------------------------------------------- */

struct frame {
    struct pickle_node *node;
    size_t next_child;
    uint64_t n_unfolded;
    uint16_t height;
};

/* All that a node refers to, in one numbering: items, keys and values, arguments, state. */
static struct pickle_node *child_at(const struct pickle_node *node, size_t idx)
{
    const size_t n_items = node->items ? node->n : 0; /* n also counts text */
    const size_t n_pairs = node->n_pairs;
    if (idx < n_items) return pickle_own(node->items[idx]);
    idx -= n_items;
    if (idx < 2 * n_pairs)
        return pickle_own(idx % 2 ? node->pairs[idx / 2].value : node->pairs[idx / 2].key);
    idx -= 2 * n_pairs;
    const struct pickle_node *last[] = {node->more->args, node->more->state};
    for (size_t i = 0; i < CZ_ARRAY_LEN(last); i++)
        if (last[i] && idx-- == 0) return pickle_own(last[i]);
    return NULL;
}

static cz_status enter(struct pickle_parser *p, struct frame *frames, size_t depth,
                       struct pickle_node *node)
{
    if (depth == PICKLE_DEPTH_MAX)
        return pickle_fail(p, CZ_CORRUPT, "values are nested more than %d deep", PICKLE_DEPTH_MAX);
    frames[depth] = (struct frame){.node = node, .n_unfolded = 1};
    node->own_marks |= PICKLE_OPEN;
    return CZ_OK;
}

/* n_unfolded counts values as a walk meets them, shared ones each time. */
static cz_status count_child(struct pickle_parser *p, struct frame *parent, size_t depth,
                             const struct pickle_node *child)
{
    if (depth + child->own_height + 1 > PICKLE_DEPTH_MAX)
        return pickle_fail(p, CZ_CORRUPT, "values are nested more than %d deep", PICKLE_DEPTH_MAX);
    if (child->own_height >= parent->height) parent->height = (uint16_t)(child->own_height + 1);
    parent->n_unfolded += child->own_unfolded;
    const uint64_t limit = PICKLE_UNFOLDED_MAX + PICKLE_UNFOLDED_PER_INPUT * p->nbytes;
    if (parent->n_unfolded > (limit < UINT32_MAX ? limit : UINT32_MAX))
        return pickle_fail(p, CZ_CORRUPT,
                           "written out without sharing, the values are more than %llu",
                           (unsigned long long)parent->n_unfolded - 1);
    return CZ_OK;
}

static cz_status leave(struct pickle_parser *p, struct frame *frame)
{
    struct pickle_node *node = frame->node;
    node->own_marks = (node->own_marks & ~PICKLE_OPEN) | PICKLE_DONE;
    node->own_height = frame->height;
    node->own_unfolded = (uint32_t)frame->n_unfolded;
    node->own_hash = hash_node(node);
    return node->n_pairs > 1 ? settle_pairs(p, node) : CZ_OK;
}

/* An explicit stack: the depth is bounded, but not small enough to recurse with frames of this size
 * in every caller's thread. */
cz_status pickle_settle(struct pickle_parser *p, struct pickle_node *root)
{
    struct frame frames[PICKLE_DEPTH_MAX];
    size_t depth = 0;
    TRY(enter(p, frames, depth++, root));
    while (depth > 0) {
        struct frame *top = &frames[depth - 1];
        struct pickle_node *child = child_at(top->node, top->next_child);
        if (!child) {
            TRY(leave(p, top));
            if (--depth > 0) TRY(count_child(p, &frames[depth - 1], depth, top->node));
            continue;
        }
        top->next_child++;
        if (child->own_marks & PICKLE_OPEN)
            return pickle_fail(p, CZ_CORRUPT, "%s contains itself",
                               pickle_kind_phrase(child->kind));
        if (child->own_marks & PICKLE_DONE)
            TRY(count_child(p, top, depth, child));
        else
            TRY(enter(p, frames, depth++, child));
    }
    return CZ_OK;
}
