/* What classes and calls become: known ones typed nodes, all others inert objects with their
 * arguments and state. Nothing is imported or run, so a hostile pickle can at most be large, and
 * that is bounded (pickle_memory.c, pickle_tree.c). */
#include "formats/pickle/pickle_impl.h"

/* torch.float16 and its kind are values; other names stand for themselves until they are called. */
cz_status pickle_global(struct pickle_parser *p, const char *module, const char *name,
                        struct pickle_work **out)
{
    bool is_dtype = strcmp(module, "torch") == 0 && pickle_dtype_find(name);
    TRY(pickle_node_new(p, is_dtype ? PICKLE_DTYPE : PICKLE_GLOBAL, out));
    (*out)->pub.module = module;
    (*out)->pub.name = name;
    return CZ_OK;
}

/* ---- constructors ------------------------------------------------------------------------------
 * Each leaves *out NULL when the arguments are not what the class is known to write: the call then
 * becomes an inert object. */

struct call {
    const struct pickle_node *callable;
    const struct pickle_node *args; /* a TUPLE */
};

/* A new node that shows the items or pairs of `from` as they are now. Adding to either later does
 * not change the other: a full array is copied before it grows, and what follows the n items
 * that the new node shows is never its own. */
static cz_status make_from(struct pickle_parser *p, enum pickle_kind kind,
                           const struct pickle_node *from, struct pickle_work **out)
{
    TRY(pickle_node_new(p, kind, out));
    if (!from) return CZ_OK;
    (*out)->pub.items = from->items;
    (*out)->pub.pairs = from->pairs;
    (*out)->pub.n = (*out)->items_capacity = kind == PICKLE_DICT ? 0 : from->n;
    (*out)->pub.n_pairs = (*out)->pairs_capacity = from->n_pairs;
    return CZ_OK;
}

static bool is_sequence(const struct pickle_node *node)
{
    return node->kind == PICKLE_LIST || node->kind == PICKLE_TUPLE || node->kind == PICKLE_SET ||
           node->kind == PICKLE_SIZE;
}

/* set([…]), list((…)) */
static cz_status make_sequence(struct pickle_parser *p, enum pickle_kind kind,
                               const struct call *call, struct pickle_work **out)
{
    if (call->args->n > 1 || (call->args->n == 1 && !is_sequence(call->args->items[0])))
        return CZ_OK;
    return make_from(p, kind, call->args->n == 1 ? call->args->items[0] : NULL, out);
}

static cz_status make_list(struct pickle_parser *p, const struct call *call,
                           struct pickle_work **out)
{
    return make_sequence(p, PICKLE_LIST, call, out);
}

static cz_status make_tuple(struct pickle_parser *p, const struct call *call,
                            struct pickle_work **out)
{
    return make_sequence(p, PICKLE_TUPLE, call, out);
}

/* frozenset and set differ by name only. */
static cz_status make_set(struct pickle_parser *p, const struct call *call,
                          struct pickle_work **out)
{
    TRY(make_sequence(p, PICKLE_SET, call, out));
    if (*out) (*out)->pub.name = call->callable->name;
    return CZ_OK;
}

/* Counted as work, because one tuple may be given to many calls. */
static cz_status make_size(struct pickle_parser *p, const struct call *call,
                           struct pickle_work **out)
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

/* dict, OrderedDict, Counter: nothing, a dict, or a list of pairs. */
static cz_status make_dict(struct pickle_parser *p, const struct call *call,
                           struct pickle_work **out)
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
            TRY(pickle_pair_add(p, *out, pickle_work_of(pair->items[0]),
                                pickle_work_of(pair->items[1])));
        }
    }
    if (strcmp(call->callable->name, "dict") == 0) return CZ_OK;
    (*out)->pub.module = call->callable->module;
    (*out)->pub.name = call->callable->name;
    return CZ_OK;
}

/* defaultdict(factory), its items follow. */
static cz_status make_defaultdict(struct pickle_parser *p, const struct call *call,
                                  struct pickle_work **out)
{
    if (call->args->n > 1) return CZ_OK;
    TRY(make_from(p, PICKLE_DICT, NULL, out));
    (*out)->pub.module = call->callable->module;
    (*out)->pub.name = call->callable->name;
    (*out)->pub.args = call->args;
    return CZ_OK;
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
                            struct pickle_work **out)
{
    const struct pickle_node *args = call->args;
    if (args->n == 0 && strcmp(call->callable->name, "bytes") == 0)
        return pickle_node_new(p, PICKLE_BYTES, out);
    if (args->n != 2 || args->items[0]->kind != PICKLE_STRING || !is_latin1_name(args->items[1]))
        return CZ_OK;
    struct pickle_work *text = pickle_work_of(args->items[0]);
    if (!text->as_bytes) {
        void *bytes;
        size_t n;
        struct pickle_work *node;
        TRY(pickle_alloc(p, text->pub.n + 1, &bytes));
        if (!to_latin1(text->pub.text, text->pub.n, bytes, &n)) return CZ_OK;
        TRY(pickle_node_new(p, PICKLE_BYTES, &node));
        node->pub.text = bytes;
        node->pub.n = n;
        text->as_bytes = node;
    }
    *out = text->as_bytes;
    return CZ_OK;
}

static const struct constructor {
    const char *module, *name;
    cz_status (*make)(struct pickle_parser *p, const struct call *call, struct pickle_work **out);
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
    const char *module = callable->module;
    if (strcmp(module, "__builtin__") == 0) module = "builtins"; /* its name in Python 2 */
    for (size_t i = 0; i < CZ_ARRAY_LEN(constructors); i++)
        if (strcmp(constructors[i].module, module) == 0 &&
            strcmp(constructors[i].name, callable->name) == 0)
            return &constructors[i];
    return NULL;
}

/* ---- objects --------------------------------------------------------------------------------- */

static cz_status make_object(struct pickle_parser *p, struct pickle_work *callable,
                             struct pickle_work *args, bool is_new, struct pickle_work **out)
{
    TRY(pickle_node_new(p, PICKLE_OBJECT, out));
    (*out)->pub.module = callable->pub.module;
    (*out)->pub.name = callable->pub.name;
    (*out)->pub.boolean = is_new;
    (*out)->pub.args = &args->pub;
    return CZ_OK;
}

/* Calling something that cannot be called is damage; calling an unknown class is not. */
cz_status pickle_call(struct pickle_parser *p, struct pickle_work *callable,
                      struct pickle_work *args, bool is_new, struct pickle_work **out)
{
    enum pickle_kind kind = callable->pub.kind;
    *out = NULL;
    if (kind != PICKLE_GLOBAL && kind != PICKLE_OBJECT && kind != PICKLE_DTYPE)
        return pickle_fail(p, CZ_CORRUPT, "a %s is called", pickle_kind_name(kind));
    if (args->pub.kind != PICKLE_TUPLE)
        return pickle_fail(p, CZ_CORRUPT, "the arguments of a call are a %s, not a tuple",
                           pickle_kind_name(args->pub.kind));
    if (kind == PICKLE_OBJECT) {
        /* Something is called that is an object itself: keep both in the arguments. */
        struct pickle_work *both, *items[2] = {callable, args};
        TRY(pickle_node_new(p, PICKLE_OBJECT, out));
        TRY(pickle_node_new(p, PICKLE_TUPLE, &both));
        TRY(pickle_item_add(p, both, items, 2));
        (*out)->pub.args = &both->pub;
        (*out)->pub.boolean = is_new;
        return CZ_OK;
    }
    TRY(pickle_call_tensor(p, &callable->pub, &args->pub, out));
    const struct constructor *c = *out ? NULL : find_constructor(&callable->pub);
    if (c) {
        struct call call = {&callable->pub, &args->pub};
        TRY(c->make(p, &call, out));
    }
    return *out ? CZ_OK : make_object(p, callable, args, is_new, out);
}

cz_status pickle_set_state(struct pickle_parser *p, struct pickle_work *node,
                           struct pickle_work *state)
{
    enum pickle_kind kind = node->pub.kind;
    if (kind != PICKLE_OBJECT && kind != PICKLE_GLOBAL && kind != PICKLE_DICT &&
        kind != PICKLE_TENSOR)
        return pickle_fail(p, CZ_CORRUPT, "a %s is given attributes", pickle_kind_name(kind));
    node->pub.state = &state->pub;
    return CZ_OK;
}
