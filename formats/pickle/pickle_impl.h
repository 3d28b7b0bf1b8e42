/* Inside the pickle reader: nodes under construction, the memory they come from, the parser. */
#ifndef CZ_FORMATS_PICKLE_PICKLE_IMPL_H
#define CZ_FORMATS_PICKLE_PICKLE_IMPL_H

#include "base/hash.h"
#include "formats/pickle/pickle.h"

#include <string.h>

/* Memory that a parse may take, tree and working space together, whatever the opcodes: what Python
 * writes needs less, and only bombs need more (docs/fuzzing.md has the figures). */
#define PICKLE_BYTES_PER_INPUT ((size_t)96)
#define PICKLE_BYTES_FIXED     ((size_t)256 << 10)

/* Steps over values that cost no input, such as looking at one long tuple again and again. */
#define PICKLE_WORK_PER_INPUT ((uint64_t)4)
#define PICKLE_WORK_FIXED     ((uint64_t)64 << 10)

#define PICKLE_DEPTH_MAX 1000

/* One node may stand in many places. Written out without sharing, a tree has at most this many
 * nodes, and never more than 32 bits can count, so that callers may walk it as a tree. */
#define PICKLE_UNFOLDED_MAX       ((uint64_t)1 << 20)
#define PICKLE_UNFOLDED_PER_INPUT ((uint64_t)16)
#define PICKLE_NBYTES_MAX         ((size_t)1 << 30)

struct pickle_storage { /* what a persistent id names */
    const struct pickle_dtype *dtype;
    bool is_untyped;
    const char *key;
    uint64_t nbytes;
};

/* Bits of a node's own_marks. */
#define PICKLE_OPEN     1u /* the walk over the tree is inside it */
#define PICKLE_DONE     2u /* it has left it */
#define PICKLE_BORROWED 4u /* items and pairs are another node's: copied before they grow */
#define PICKLE_HAS_NUL  8u /* the text holds a NUL */

/* What own[] of a node's more is. */
enum pickle_own {
    PICKLE_OWN_STORAGE = 0,  /* OBJECT that a persistent id made: struct pickle_storage */
    PICKLE_OWN_AS_BYTES = 0, /* STRING: the node that _codecs.encode made of it */
    PICKLE_OWN_INDEX = 1     /* DICT, OBJECT: where keys stand, uint32_t[] */
};

/* Of an OBJECT that a persistent id made; NULL: another node. */
static inline const struct pickle_storage *pickle_storage_of(const struct pickle_node *node)
{
    return node->kind == PICKLE_OBJECT ? node->more->own[PICKLE_OWN_STORAGE] : NULL;
}

struct pickle_chunk;

struct pickle {
    struct pickle_chunk *chunks; /* newest first */
    size_t budget;               /* bytes that may still be taken */
    bool is_host_short; /* the budget is what the host has left, not the input's multiple */
    const struct pickle_node *root;
};

struct pickle_memo_slot {
    struct pickle_node *node; /* NULL: a free slot */
    uint32_t idx;
};

struct pickle_parser {
    struct pickle *tree;
    const char *label;
    const unsigned char *bytes;
    size_t nbytes, off, op_off; /* op_off: of the opcode at work */
    struct pickle_node **stack;
    size_t n_stack, stack_capacity;
    size_t *marks; /* heights of the stack */
    size_t n_marks, marks_capacity;
    struct pickle_memo_slot *memo; /* open addressing */
    size_t n_memo, memo_capacity;
    struct hash_key key; /* of the memo's slots */
    uint64_t work_left;  /* steps that arguments and keys may still take to be looked at */
    struct pickle_node *none, *yes, *no, *empty; /* one of each is enough */
};

/* The reader's nodes are const for all others only. */
static inline struct pickle_node *pickle_own(const struct pickle_node *node)
{
    return (struct pickle_node *)(uintptr_t)node;
}

/* ---- memory (pickle_memory.c) ---------------------------------------------------------------- */

/* Zeroed, 8-byte aligned, freed with the tree. */
cz_status pickle_alloc(struct pickle_parser *p, size_t nbytes, void **out);
cz_status pickle_text(struct pickle_parser *p, const void *bytes, size_t nbytes, const char **out);
cz_status pickle_node_new(struct pickle_parser *p, enum pickle_kind kind, struct pickle_node **out);
/* The node's own part, made from the shared empty one when it has none yet. */
cz_status pickle_more_need(struct pickle_parser *p, struct pickle_node *node,
                           struct pickle_more **out);
/* A new node of that kind with a module and a name, which stay the caller's. */
cz_status pickle_named_new(struct pickle_parser *p, enum pickle_kind kind, const char *module,
                           const char *name, struct pickle_node **out);
extern const struct pickle_more pickle_nothing, pickle_set_names[2]; /* "set", "frozenset" */
cz_status pickle_item_add(struct pickle_parser *p, struct pickle_node *to,
                          struct pickle_node *const *items, size_t n);
cz_status pickle_pair_add(struct pickle_parser *p, struct pickle_node *to, struct pickle_node *key,
                          struct pickle_node *value);
cz_status pickle_push(struct pickle_parser *p, struct pickle_node *node);
cz_status pickle_mark(struct pickle_parser *p);
cz_status pickle_memo_put(struct pickle_parser *p, uint32_t idx, struct pickle_node *node);
struct pickle_node *pickle_memo_get(const struct pickle_parser *p, uint32_t idx);
void pickle_parser_free(struct pickle_parser *p);

/* ---- errors (pickle_read.c) ------------------------------------------------------------------ */

/* Count n steps over what cost no input: shared values could be looked at forever. */
cz_status pickle_work(struct pickle_parser *p, uint64_t n);

/* err_set with "LABEL: byte OFF: " in front. */
cz_status pickle_fail(const struct pickle_parser *p, cz_status status, const char *fmt, ...)
    CZ_PRINTF(3, 4);

/* ---- what constructors make (pickle_call.c, pickle_tensor.c) --------------------------------- */

/* callable(*args) or, `is_new`, cls.__new__(cls, *args). */
cz_status pickle_call(struct pickle_parser *p, struct pickle_node *callable,
                      struct pickle_node *args, bool is_new, struct pickle_node **out);
cz_status pickle_global(struct pickle_parser *p, const char *module, const char *name,
                        struct pickle_node **out);
cz_status pickle_set_state(struct pickle_parser *p, struct pickle_node *node,
                           struct pickle_node *state);

/* *out stays NULL when `callable` rebuilds no tensor. */
cz_status pickle_call_tensor(struct pickle_parser *p, const struct pickle_node *callable,
                             const struct pickle_node *args, struct pickle_node **out);
cz_status pickle_persistent(struct pickle_parser *p, struct pickle_node *id,
                            struct pickle_node **out);

/* Element type of a "FloatStorage" (UntypedStorage: bytes); NULL: unknown. */
const struct pickle_dtype *pickle_dtype_of_storage(const char *name);

static inline bool pickle_is_global(const struct pickle_node *node, const char *module,
                                    const char *name)
{
    return node->kind == PICKLE_GLOBAL && strcmp(node->more->module, module) == 0 &&
           strcmp(node->more->name, name) == 0;
}

/* ---- the finished tree (pickle_tree.c) ------------------------------------------------------- */

/* Walk what the root reaches: refuse cycles, depth and blow-up; settle repeated keys; index dicts.
 */
cz_status pickle_settle(struct pickle_parser *p, struct pickle_node *root);

#endif
