/* Inside the pickle reader: nodes under construction, the memory they come from, the parser. */
#ifndef CZ_FORMATS_PICKLE_PICKLE_IMPL_H
#define CZ_FORMATS_PICKLE_PICKLE_IMPL_H

#include "formats/pickle/pickle.h"

#include <string.h>

/* Memory that a parse may take, tree and working space together. No sequence of opcodes needs as
 * much; only copying one list over and over does, and is refused. */
#define PICKLE_BYTES_PER_INPUT ((size_t)384)
#define PICKLE_BYTES_FIXED     ((size_t)64 << 10)

#define PICKLE_DEPTH_MAX 1000

/* One node may stand in many places. Written out without sharing, a tree has at most this many
 * nodes (and 16 per input byte), so that callers may walk it as a tree. */
#define PICKLE_UNFOLDED_MAX ((uint64_t)1 << 24)

struct pickle_storage { /* what a persistent id names */
    const struct pickle_dtype *dtype;
    bool is_untyped;
    const char *key;
    uint64_t nbytes;
};

enum pickle_colour { PICKLE_UNSEEN = 0, PICKLE_OPEN, PICKLE_DONE };

struct pickle_work {        /* a node, and what only the reader knows of it */
    struct pickle_node pub; /* first: a node's address is its work's */
    size_t items_capacity, pairs_capacity;
    const struct pickle_storage *storage; /* OBJECT that a persistent id made */
    struct pickle_work *as_bytes;         /* STRING: what _codecs.encode made of it */
    uint64_t n_unfolded;                  /* this node and all below, sharing undone */
    uint32_t hash;                        /* as a dict's key */
    uint16_t height;                      /* of what is below */
    uint8_t colour;
};

struct pickle_chunk;

struct pickle {
    struct pickle_chunk *chunks; /* newest first */
    size_t budget;               /* bytes that may still be taken */
    const struct pickle_node *root;
};

struct pickle_memo_slot {
    struct pickle_work *node; /* NULL: a free slot */
    uint32_t idx;
};

struct pickle_parser {
    struct pickle *tree;
    const char *label;
    const unsigned char *bytes;
    size_t nbytes, off, op_off; /* op_off: of the opcode at work */
    struct pickle_work **stack;
    size_t n_stack, stack_capacity;
    size_t *marks; /* heights of the stack */
    size_t n_marks, marks_capacity;
    struct pickle_memo_slot *memo; /* open addressing */
    size_t n_memo, memo_capacity;
    uint32_t seed;      /* of hashes, so that an attacker cannot prepare collisions */
    uint64_t work_left; /* steps that arguments and keys may still take to be looked at */
    struct pickle_work *none, *yes, *no, *empty; /* one of each is enough */
};

static inline struct pickle_work *pickle_work_of(const struct pickle_node *node)
{
    return (struct pickle_work *)(uintptr_t)node;
}

/* ---- memory (pickle_memory.c) ---------------------------------------------------------------- */

/* Zeroed, 16-byte aligned, freed with the tree. */
cz_status pickle_alloc(struct pickle_parser *p, size_t nbytes, void **out);
cz_status pickle_text(struct pickle_parser *p, const void *bytes, size_t nbytes, const char **out);
cz_status pickle_node_new(struct pickle_parser *p, enum pickle_kind kind, struct pickle_work **out);
cz_status pickle_item_add(struct pickle_parser *p, struct pickle_work *to,
                          struct pickle_work *const *items, size_t n);
cz_status pickle_pair_add(struct pickle_parser *p, struct pickle_work *to, struct pickle_work *key,
                          struct pickle_work *value);
cz_status pickle_push(struct pickle_parser *p, struct pickle_work *node);
cz_status pickle_mark(struct pickle_parser *p);
cz_status pickle_memo_put(struct pickle_parser *p, uint32_t idx, struct pickle_work *node);
struct pickle_work *pickle_memo_get(const struct pickle_parser *p, uint32_t idx);
void pickle_parser_free(struct pickle_parser *p);

/* ---- errors (pickle_read.c) ------------------------------------------------------------------ */

/* Count n steps over what cost no input: shared values could be looked at forever. */
cz_status pickle_work(struct pickle_parser *p, uint64_t n);

/* err_set with "LABEL: byte OFF: " in front. */
cz_status pickle_fail(const struct pickle_parser *p, cz_status status, const char *fmt, ...)
    CZ_PRINTF(3, 4);

/* ---- what constructors make (pickle_call.c, pickle_tensor.c) --------------------------------- */

/* callable(*args) or, `is_new`, cls.__new__(cls, *args). */
cz_status pickle_call(struct pickle_parser *p, struct pickle_work *callable,
                      struct pickle_work *args, bool is_new, struct pickle_work **out);
cz_status pickle_global(struct pickle_parser *p, const char *module, const char *name,
                        struct pickle_work **out);
cz_status pickle_set_state(struct pickle_parser *p, struct pickle_work *node,
                           struct pickle_work *state);

/* *out stays NULL when `callable` rebuilds no tensor. */
cz_status pickle_call_tensor(struct pickle_parser *p, const struct pickle_node *callable,
                             const struct pickle_node *args, struct pickle_work **out);
cz_status pickle_persistent(struct pickle_parser *p, struct pickle_work *id,
                            struct pickle_work **out);

/* Element type of a "FloatStorage" (UntypedStorage: bytes); NULL: unknown. And the reverse. */
const struct pickle_dtype *pickle_dtype_of_storage(const char *name);
const char *pickle_storage_of_dtype(const struct pickle_dtype *dtype);

static inline bool pickle_is_global(const struct pickle_node *node, const char *module,
                                    const char *name)
{
    return node->kind == PICKLE_GLOBAL && strcmp(node->module, module) == 0 &&
           strcmp(node->name, name) == 0;
}

/* ---- the finished tree (pickle_tree.c) ------------------------------------------------------- */

/* Walk what the root reaches: refuse cycles, depth and blow-up; settle repeated keys; index dicts.
 */
cz_status pickle_settle(struct pickle_parser *p, struct pickle_work *root);

#endif
