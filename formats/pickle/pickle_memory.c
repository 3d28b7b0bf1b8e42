/* What all parts of the reader use: errors with their place, and memory. The tree is in chunks that
 * are freed at once; the machine's stack, marks and memo are arrays that grow. Everything counts
 * against one budget, a multiple of the input's length, so that a small file cannot ask for
 * gigabytes. */
#include "formats/pickle/pickle_impl.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_NBYTES_MIN ((size_t)4096)
#define CHUNK_NBYTES_MAX ((size_t)256 << 10)

struct pickle_chunk {
    struct pickle_chunk *next;
    size_t used, nbytes;
    uint64_t data[];
};

const char *pickle_kind_name(enum pickle_kind kind)
{
    static const char *const names[] = {
        "None",  "bool", "int",        "int",  "float",  "string", "bytes", "list",
        "tuple", "set",  "torch.Size", "dict", "tensor", "dtype",  "class", "object",
    };
    _Static_assert(CZ_ARRAY_LEN(names) == PICKLE_OBJECT + 1, "a name for each kind");
    return (unsigned)kind < CZ_ARRAY_LEN(names) ? names[kind] : "?";
}

const char *pickle_kind_phrase(enum pickle_kind kind)
{
    static const char *const phrases[] = {
        "None",     "a bool",  "an int",  "an int",    "a float",      "a string",
        "bytes",    "a list",  "a tuple", "a set",     "a torch.Size", "a dict",
        "a tensor", "a dtype", "a class", "an object",
    };
    _Static_assert(CZ_ARRAY_LEN(phrases) == PICKLE_OBJECT + 1, "a phrase for each kind");
    return (unsigned)kind < CZ_ARRAY_LEN(phrases) ? phrases[kind] : "?";
}

/* Names the opcode's place in the input. */
cz_status pickle_fail(const struct pickle_parser *p, cz_status status, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return err_set(status, 0, "%s: byte %zu: %s", p->label, p->op_off, text);
}

/* Steps that the input makes the reader take without adding memory, such as looking at one long
 * list again and again. */
cz_status pickle_work(struct pickle_parser *p, uint64_t n)
{
    if (n > p->work_left) return pickle_fail(p, CZ_CORRUPT, "too many calls use the same values");
    p->work_left -= n;
    return CZ_OK;
}

static cz_status spend(struct pickle_parser *p, size_t nbytes)
{
    if (nbytes > p->tree->budget && p->tree->is_host_short)
        return pickle_fail(p, CZ_NOMEM, "values need more than half of the host's free memory");
    if (nbytes > p->tree->budget)
        return pickle_fail(p, CZ_CORRUPT,
                           "values need more than %zu bytes of memory per byte of pickle",
                           PICKLE_BYTES_PER_INPUT);
    p->tree->budget -= nbytes;
    return CZ_OK;
}

static cz_status fail_memory(const struct pickle_parser *p, size_t nbytes)
{
    return pickle_fail(p, CZ_NOMEM, "no memory for %zu bytes", nbytes);
}

static cz_status chunk_add(struct pickle_parser *p, size_t nbytes)
{
    struct pickle_chunk *last = p->tree->chunks;
    size_t size = last ? 2 * last->nbytes : CHUNK_NBYTES_MIN;
    if (size > CHUNK_NBYTES_MAX) size = CHUNK_NBYTES_MAX;
    if (size < nbytes) size = nbytes;
    struct pickle_chunk *chunk = calloc(1, sizeof *chunk + size);
    if (!chunk) return fail_memory(p, size);
    chunk->nbytes = size;
    chunk->next = last;
    p->tree->chunks = chunk;
    return CZ_OK;
}

cz_status pickle_alloc(struct pickle_parser *p, size_t nbytes, void **out)
{
    *out = NULL;
    if (nbytes > p->tree->budget) return spend(p, nbytes); /* before rounding can wrap */
    nbytes = (nbytes + 7) / 8 * 8;
    TRY(spend(p, nbytes));
    struct pickle_chunk *chunk = p->tree->chunks;
    if (!chunk || nbytes > chunk->nbytes - chunk->used) {
        TRY(chunk_add(p, nbytes));
        chunk = p->tree->chunks;
    }
    *out = (unsigned char *)chunk->data + chunk->used;
    chunk->used += nbytes;
    return CZ_OK;
}

cz_status pickle_text(struct pickle_parser *p, const void *bytes, size_t nbytes, const char **out)
{
    void *text;
    TRY(pickle_alloc(p, nbytes + 1, &text));
    if (nbytes > 0) memcpy(text, bytes, nbytes);
    *out = text;
    return CZ_OK;
}

const struct pickle_more pickle_nothing = {.module = "", .name = ""};
const struct pickle_more pickle_set_names[2] = {{.module = "", .name = "set"},
                                                {.module = "", .name = "frozenset"}};

cz_status pickle_node_new(struct pickle_parser *p, enum pickle_kind kind, struct pickle_node **out)
{
    void *node;
    TRY(pickle_alloc(p, sizeof **out, &node));
    *out = node;
    (*out)->kind = kind;
    (*out)->more = &pickle_nothing;
    if (kind == PICKLE_STRING || kind == PICKLE_BYTES) (*out)->text = "";
    return CZ_OK;
}

/* Before the tree is done, a part that is not shared is this node's alone. */
cz_status pickle_more_need(struct pickle_parser *p, struct pickle_node *node,
                           struct pickle_more **out)
{
    const struct pickle_more *more = node->more;
    *out = NULL;
    if (more == &pickle_nothing || more == &pickle_set_names[0] || more == &pickle_set_names[1]) {
        void *memory;
        TRY(pickle_alloc(p, sizeof *more, &memory));
        memcpy(memory, more, sizeof *more);
        node->more = memory;
    }
    *out = (struct pickle_more *)(uintptr_t)node->more;
    return CZ_OK;
}

cz_status pickle_named_new(struct pickle_parser *p, enum pickle_kind kind, const char *module,
                           const char *name, struct pickle_node **out)
{
    struct pickle_more *more;
    TRY(pickle_node_new(p, kind, out));
    TRY(pickle_more_need(p, *out, &more));
    more->module = module;
    more->name = name;
    return CZ_OK;
}

/* Arrays have their capacity in front. The old array stays where it is: another node may show its
 * first elements. */
static cz_status grow(struct pickle_parser *p, const void *old, size_t used, size_t elem_nbytes,
                      size_t n, void **out)
{
    size_t want = used + n > 2 * used ? used + n : 2 * used;
    void *memory;
    TRY(pickle_alloc(p, sizeof(uint64_t) + want * elem_nbytes, &memory));
    *(uint64_t *)memory = want;
    *out = (uint64_t *)memory + 1;
    if (used > 0) memcpy(*out, old, used * elem_nbytes);
    return CZ_OK;
}

/* Elements that fit behind the `used` ones. */
static size_t room(const struct pickle_node *node, const void *array, size_t used)
{
    if (!array || (node->own_marks & PICKLE_BORROWED)) return 0;
    return (size_t)((const uint64_t *)array)[-1] - used;
}

/* A borrowed array becomes the node's own: items and pairs at once, since one mark stands for
 * both. */
static cz_status own_arrays(struct pickle_parser *p, struct pickle_node *node)
{
    void *items = NULL, *pairs = NULL;
    if (!(node->own_marks & PICKLE_BORROWED)) return CZ_OK;
    if (node->items) TRY(grow(p, node->items, node->n, sizeof *node->items, 0, &items));
    if (node->pairs) TRY(grow(p, node->pairs, node->n_pairs, sizeof *node->pairs, 0, &pairs));
    node->items = items;
    node->pairs = pairs;
    node->own_marks &= ~PICKLE_BORROWED;
    return CZ_OK;
}

cz_status pickle_item_add(struct pickle_parser *p, struct pickle_node *to,
                          struct pickle_node *const *items, size_t n)
{
    const size_t used = to->items ? to->n : 0;
    if (n == 0) return CZ_OK;
    TRY(own_arrays(p, to));
    void *array = (void *)(uintptr_t)to->items;
    if (n > room(to, array, used)) TRY(grow(p, array, used, sizeof *to->items, n, &array));
    memcpy((struct pickle_node **)array + used, items, n * sizeof *items);
    to->items = array;
    to->n = (uint32_t)(used + n);
    return CZ_OK;
}

cz_status pickle_pair_add(struct pickle_parser *p, struct pickle_node *to, struct pickle_node *key,
                          struct pickle_node *value)
{
    const size_t used = to->n_pairs;
    TRY(own_arrays(p, to));
    void *array = (void *)(uintptr_t)to->pairs;
    if (room(to, array, used) == 0) TRY(grow(p, array, used, sizeof *to->pairs, 1, &array));
    ((struct pickle_pair *)array)[used] = (struct pickle_pair){key, value};
    to->pairs = array;
    to->n_pairs++;
    return CZ_OK;
}

/* ---- the machine's own arrays ---------------------------------------------------------------- */

/* For stack, marks and memo, which move as they grow: nothing points into them across a push. */
static cz_status grow_own(struct pickle_parser *p, void **array, size_t *capacity, size_t used,
                          size_t elem_nbytes)
{
    if (used < *capacity) return CZ_OK;
    size_t want = *capacity ? 2 * *capacity : 64;
    TRY(spend(p, (want - *capacity) * elem_nbytes));
    void *bigger = realloc(*array, want * elem_nbytes);
    if (!bigger) return fail_memory(p, want * elem_nbytes);
    *array = bigger;
    *capacity = want;
    return CZ_OK;
}

cz_status pickle_push(struct pickle_parser *p, struct pickle_node *node)
{
    void *array = p->stack;
    cz_status st = grow_own(p, &array, &p->stack_capacity, p->n_stack, sizeof(void *));
    p->stack = array;
    TRY(st);
    p->stack[p->n_stack++] = node;
    return CZ_OK;
}

cz_status pickle_mark(struct pickle_parser *p)
{
    void *array = p->marks;
    cz_status st = grow_own(p, &array, &p->marks_capacity, p->n_marks, sizeof *p->marks);
    p->marks = array;
    TRY(st);
    p->marks[p->n_marks++] = p->n_stack;
    return CZ_OK;
}

/* Keyed, so that indexes cannot be chosen to collide. Python numbers them in sequence, but nothing
 * forces a file to. */
static size_t memo_slot(const struct pickle_parser *p, uint32_t idx)
{
    size_t slot = (size_t)hash_number(p->key, idx) & (p->memo_capacity - 1);
    while (p->memo[slot].node && p->memo[slot].idx != idx)
        slot = (slot + 1) & (p->memo_capacity - 1);
    return slot;
}

cz_status pickle_memo_put(struct pickle_parser *p, uint32_t idx, struct pickle_node *node)
{
    if (2 * (p->n_memo + 1) > p->memo_capacity) {
        struct pickle_memo_slot *old = p->memo;
        size_t n_old = p->memo_capacity, n_new = n_old ? 2 * n_old : 64;
        TRY(spend(p, (n_new - n_old) * sizeof *old));
        struct pickle_memo_slot *slots = calloc(n_new, sizeof *slots);
        if (!slots) return fail_memory(p, n_new * sizeof *slots);
        p->memo = slots;
        p->memo_capacity = n_new;
        for (size_t i = 0; i < n_old; i++)
            if (old[i].node) p->memo[memo_slot(p, old[i].idx)] = old[i];
        free(old);
    }
    struct pickle_memo_slot *slot = &p->memo[memo_slot(p, idx)];
    if (!slot->node) p->n_memo++;
    *slot = (struct pickle_memo_slot){.node = node, .idx = idx};
    return CZ_OK;
}

struct pickle_node *pickle_memo_get(const struct pickle_parser *p, uint32_t idx)
{
    return p->memo_capacity ? p->memo[memo_slot(p, idx)].node : NULL;
}

void pickle_parser_free(struct pickle_parser *p)
{
    free(p->stack);
    free(p->marks);
    free(p->memo);
}

void pickle_free(struct pickle *tree)
{
    if (!tree) return;
    for (struct pickle_chunk *chunk = tree->chunks, *next; chunk; chunk = next) {
        next = chunk->next;
        free(chunk);
    }
    free(tree);
}
