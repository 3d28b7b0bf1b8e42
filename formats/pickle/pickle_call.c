/* What classes and calls become: known ones typed nodes, all others inert objects with their
 * arguments and state. Nothing is imported or run, so a hostile pickle can at most be large, and
 * that is bounded (pickle_memory.c, pickle_tree.c). */
#include "formats/pickle/pickle_impl.h"

/* torch.float16 and its kind are values; other names stand for themselves until they are called. */
cz_status pickle_global(struct pickle_parser *p, const char *module, const char *name,
                        struct pickle_node **out)
{
    bool is_dtype = strcmp(module, "torch") == 0 && pickle_dtype_find(name);
    return pickle_named_new(p, is_dtype ? PICKLE_DTYPE : PICKLE_GLOBAL, module, name, out);
}

/* ---- constructors ------------------------------------------------------------------------------
 * Each leaves *out NULL when the arguments are not what the class is known to write: the call then
 * becomes an inert object. */

struct call {
    const struct pickle_node *callable;
    const struct pickle_node *args; /* a TUPLE */
};

/* A new node that shows the items or pairs of `from` as they are now. Adding to either later does
 * not change the other: a borrowed array is copied before it grows. */
static cz_status make_from(struct pickle_parser *p, enum pickle_kind kind,
                           const struct pickle_node *from, struct pickle_node **out)
{
    TRY(pickle_node_new(p, kind, out));
    if (!from) return CZ_OK;
    (*out)->items = from->items;
    (*out)->pairs = from->pairs;
    (*out)->n = kind == PICKLE_DICT ? 0 : from->n;
    (*out)->n_pairs = from->n_pairs;
    (*out)->own_marks |= PICKLE_BORROWED;
    return CZ_OK;
}

static bool is_sequence(const struct pickle_node *node)
{
    return node->kind == PICKLE_LIST || node->kind == PICKLE_TUPLE || node->kind == PICKLE_SET ||
           node->kind == PICKLE_SIZE;
}

/* set([…]), list((…)) */
static cz_status make_sequence(struct pickle_parser *p, enum pickle_kind kind,
                               const struct call *call, struct pickle_node **out)
{
    if (call->args->n > 1 || (call->args->n == 1 && !is_sequence(call->args->items[0])))
        return CZ_OK;
    return make_from(p, kind, call->args->n == 1 ? call->args->items[0] : NULL, out);
}

static cz_status make_list(struct pickle_parser *p, const struct call *call,
                           struct pickle_node **out)
{
    return make_sequence(p, PICKLE_LIST, call, out);
}

static cz_status make_tuple(struct pickle_parser *p, const struct call *call,
                            struct pickle_node **out)
{
    return make_sequence(p, PICKLE_TUPLE, call, out);
}

/* frozenset and set differ by name only. */
static cz_status make_set(struct pickle_parser *p, const struct call *call,
                          struct pickle_node **out)
{
    TRY(make_sequence(p, PICKLE_SET, call, out));
    bool is_frozen = strcmp(call->callable->more->name, "frozenset") == 0;
    if (*out) (*out)->more = &pickle_set_names[is_frozen];
    return CZ_OK;
}

/* Counted as work, because one tuple may be given to many calls. */
static cz_status make_size(struct pickle_parser *p, const struct call *call,
                           struct pickle_node **out)
{
    if (call->args->n == 1) {
        const struct pickle_node *dims = call->args->items[0];
        if (!is_sequence(dims)) return CZ_OK;
        TRY(pickle_work(p, dims->n));
        for (size_t i = 0; i < dims->n; i++)
            if (dims->items[i]->kind != PICKLE_INT) return CZ_OK;
    }
    return make_sequence(p, PICKLE_SIZE, call, out);
}

static bool is_list_of_pairs(const struct pickle_node *node)
{
    if (node->kind != PICKLE_LIST && node->kind != PICKLE_TUPLE) return false;
    for (size_t i = 0; i < node->n; i++)
        if (!is_sequence(node->items[i]) || node->items[i]->n != 2) return false;
    return true;
}

/* The class's name, and its arguments where they matter. */
static cz_status take_name(struct pickle_parser *p, const struct call *call,
                           struct pickle_node *node, const struct pickle_node *args)
{
    struct pickle_more *more;
    TRY(pickle_more_need(p, node, &more));
    more->module = call->callable->more->module;
    more->name = call->callable->more->name;
    more->args = args;
    return CZ_OK;
}

/* dict, OrderedDict, Counter: nothing, a dict, or a list of pairs. */
static cz_status make_dict(struct pickle_parser *p, const struct call *call,
                           struct pickle_node **out)
{
    const struct pickle_node *from = call->args->n > 0 ? call->args->items[0] : NULL;
    if (from && is_sequence(from)) TRY(pickle_work(p, from->n));
    bool is_list = from && is_list_of_pairs(from);
    if (call->args->n > 1 || (from && !is_list && from->kind != PICKLE_DICT)) return CZ_OK;
    TRY(make_from(p, PICKLE_DICT, is_list ? NULL : from, out));
    if (is_list) {
        /* [[key, value], …], as Python 2 writes an OrderedDict. */
        for (size_t i = 0; i < from->n; i++) {
            const struct pickle_node *pair = from->items[i];
            TRY(pickle_pair_add(p, *out, pickle_own(pair->items[0]), pickle_own(pair->items[1])));
        }
    }
    if (strcmp(call->callable->more->name, "dict") == 0) return CZ_OK;
    return take_name(p, call, *out, NULL);
}

/* defaultdict(factory), its items follow. */
static cz_status make_defaultdict(struct pickle_parser *p, const struct call *call,
                                  struct pickle_node **out)
{
    if (call->args->n > 1) return CZ_OK;
    TRY(make_from(p, PICKLE_DICT, NULL, out));
    return take_name(p, call, *out, call->args);
}

/* Code points up to 255 of valid UTF-8, one byte each; false when there are others. */
static bool to_latin1(const char *text, size_t n, char *bytes, size_t *n_bytes)
{
    size_t used = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c > 0xC3) return false;
        if (c >= 0xC2) c = (unsigned char)(c << 6 | ((unsigned char)text[++i] & 0x3F));
        bytes[used++] = (char)c;
    }
    *n_bytes = used;
    return true;
}

static bool is_latin1_name(const struct pickle_node *node)
{
    return node->kind == PICKLE_STRING &&
           (strcmp(node->text, "latin1") == 0 || strcmp(node->text, "latin-1") == 0);
}

/* _codecs.encode(text, "latin1") and bytes(text, "latin1"): how protocol 2 spells bytes. A string
 * that is encoded again gives the node that it gave before. */
static cz_status make_bytes(struct pickle_parser *p, const struct call *call,
                            struct pickle_node **out)
{
    const struct pickle_node *args = call->args;
    if (args->n == 0 && strcmp(call->callable->more->name, "bytes") == 0)
        return pickle_node_new(p, PICKLE_BYTES, out);
    if (args->n != 2 || args->items[0]->kind != PICKLE_STRING || !is_latin1_name(args->items[1]))
        return CZ_OK;
    struct pickle_node *text = pickle_own(args->items[0]);
    struct pickle_more *more;
    TRY(pickle_more_need(p, text, &more));
    if (!more->own[PICKLE_OWN_AS_BYTES]) {
        void *bytes;
        size_t n;
        struct pickle_node *node;
        TRY(pickle_alloc(p, text->n + 1, &bytes));
        if (!to_latin1(text->text, text->n, bytes, &n)) return CZ_OK;
        TRY(pickle_node_new(p, PICKLE_BYTES, &node));
        node->text = bytes;
        node->n = (uint32_t)n;
        more->own[PICKLE_OWN_AS_BYTES] = node;
    }
    *out = pickle_own(more->own[PICKLE_OWN_AS_BYTES]);
    return CZ_OK;
}

static const struct constructor {
    const char *module, *name;
    cz_status (*make)(struct pickle_parser *p, const struct call *call, struct pickle_node **out);
} constructors[] = {
    {"collections", "OrderedDict", make_dict},
    {"collections", "Counter", make_dict},
    {"collections", "defaultdict", make_defaultdict},
    {"torch", "Size", make_size},
    {"_codecs", "encode", make_bytes},
    {"builtins", "bytes", make_bytes},
    {"builtins", "dict", make_dict},
    {"builtins", "frozenset", make_set},
    {"builtins", "list", make_list},
    {"builtins", "set", make_set},
    {"builtins", "tuple", make_tuple},
};

static const struct constructor *find_constructor(const struct pickle_node *callable)
{
    const char *module = callable->more->module;
    if (strcmp(module, "__builtin__") == 0) module = "builtins"; /* its name in Python 2 */
    for (size_t i = 0; i < CZ_ARRAY_LEN(constructors); i++)
        if (strcmp(constructors[i].module, module) == 0 &&
            strcmp(constructors[i].name, callable->more->name) == 0)
            return &constructors[i];
    return NULL;
}

/* ---- objects --------------------------------------------------------------------------------- */

static cz_status make_object(struct pickle_parser *p, struct pickle_node *callable,
                             struct pickle_node *args, bool is_new, struct pickle_node **out)
{
    TRY(pickle_named_new(p, PICKLE_OBJECT, callable->more->module, callable->more->name, out));
    ((struct pickle_more *)(uintptr_t)(*out)->more)->args = args;
    (*out)->boolean = is_new;
    return CZ_OK;
}

/* Calling something that cannot be called is damage; calling an unknown class is not. */
cz_status pickle_call(struct pickle_parser *p, struct pickle_node *callable,
                      struct pickle_node *args, bool is_new, struct pickle_node **out)
{
    enum pickle_kind kind = callable->kind;
    *out = NULL;
    if (kind != PICKLE_GLOBAL && kind != PICKLE_OBJECT && kind != PICKLE_DTYPE)
        return pickle_fail(p, CZ_CORRUPT, "%s is called like a function", pickle_kind_phrase(kind));
    if (args->kind != PICKLE_TUPLE)
        return pickle_fail(p, CZ_CORRUPT, "the arguments of a call are %s, not a tuple",
                           pickle_kind_phrase(args->kind));
    if (kind == PICKLE_OBJECT) {
        /* Something is called that is an object itself: keep both in the arguments. */
        struct pickle_node *both, *items[2] = {callable, args};
        struct pickle_more *more;
        TRY(pickle_node_new(p, PICKLE_OBJECT, out));
        TRY(pickle_more_need(p, *out, &more));
        TRY(pickle_node_new(p, PICKLE_TUPLE, &both));
        TRY(pickle_item_add(p, both, items, 2));
        more->args = both;
        (*out)->boolean = is_new;
        return CZ_OK;
    }
    TRY(pickle_call_tensor(p, callable, args, out));
    const struct constructor *c = *out ? NULL : find_constructor(callable);
    if (c) {
        struct call call = {callable, args};
        TRY(c->make(p, &call, out));
    }
    return *out ? CZ_OK : make_object(p, callable, args, is_new, out);
}

cz_status pickle_set_state(struct pickle_parser *p, struct pickle_node *node,
                           struct pickle_node *state)
{
    enum pickle_kind kind = node->kind;
    if (kind != PICKLE_OBJECT && kind != PICKLE_GLOBAL && kind != PICKLE_DICT &&
        kind != PICKLE_TENSOR)
        return pickle_fail(p, CZ_CORRUPT, "%s is given attributes", pickle_kind_phrase(kind));
    struct pickle_more *more;
    TRY(pickle_more_need(p, node, &more));
    more->state = state;
    return CZ_OK;
}
