/* Tensors: storages named by persistent ids, and the functions of torch that make views of them
 * (docs/deepspeed-behaviour.md, "Pickles"). Every view is checked to be inside its storage, so
 * readers of tensors need not. */
#include "formats/pickle/pickle_impl.h"

#include <inttypes.h>

/* ---- storages -------------------------------------------------------------------------------- */

/* By the class of the storage: torch.FloatStorage, torch.cuda.HalfStorage, … */
static const struct pickle_dtype *storage_dtype(const struct pickle_node *type)
{
    if (type->kind != PICKLE_GLOBAL) return NULL;
    if (strncmp(type->more->module, "torch", 5) != 0) return NULL;
    return pickle_dtype_of_storage(type->more->name);
}

static bool is_storage_id(const struct pickle_node *id)
{
    if (id->kind != PICKLE_TUPLE || id->n < 5) return false;
    const char *word = pickle_to_string(id->items[0]);
    return word && strcmp(word, "storage") == 0 && pickle_to_string(id->items[2]);
}

/* ('storage', type, key, location, numel) → an object that rebuild functions know. The location is
 * where the tensor was when it was saved: of no use here. */
cz_status pickle_persistent(struct pickle_parser *p, struct pickle_node *id,
                            struct pickle_node **out)
{
    if (!is_storage_id(id))
        return pickle_fail(p, CZ_CORRUPT,
                           "a persistent id is not ('storage', type, key, location, numel)");
    const struct pickle_node *type = id->items[1], *numel = id->items[4];
    const struct pickle_dtype *dtype = storage_dtype(type);
    if (!dtype)
        return pickle_fail(p, CZ_UNSUPPORTED, "storage %s has an unknown type %s.%s",
                           id->items[2]->text, type->more->module, type->more->name);
    void *memory;
    TRY(pickle_alloc(p, sizeof(struct pickle_storage), &memory));
    struct pickle_storage *storage = memory;
    storage->dtype = dtype;
    storage->is_untyped = strcmp(type->more->name, "UntypedStorage") == 0;
    storage->key = id->items[2]->text;
    if (numel->kind != PICKLE_INT || numel->integer < 0 ||
        __builtin_mul_overflow((uint64_t)numel->integer, dtype->size, &storage->nbytes) ||
        storage->nbytes > INT64_MAX)
        return pickle_fail(p, CZ_CORRUPT, "storage %s has an impossible length", storage->key);
    struct pickle_more *more;
    TRY(pickle_node_new(p, PICKLE_OBJECT, out));
    TRY(pickle_more_need(p, *out, &more));
    more->module = type->more->module;
    more->name = type->more->name;
    more->args = id;
    more->own[PICKLE_OWN_STORAGE] = storage;
    return CZ_OK;
}

/* ---- views ----------------------------------------------------------------------------------- */

static cz_status fail_tensor(const struct pickle_parser *p, const struct pickle_tensor *t,
                             const char *what)
{
    return pickle_fail(p, CZ_CORRUPT, "a tensor of storage %s %s", t->key, what);
}

/* A tuple of sizes or strides → its numbers, none negative. */
static cz_status read_dims(struct pickle_parser *p, const struct pickle_tensor *t,
                           const struct pickle_node *dims, const char *what, const int64_t **out)
{
    void *memory;
    if ((dims->kind != PICKLE_TUPLE && dims->kind != PICKLE_SIZE && dims->kind != PICKLE_LIST) ||
        dims->n != (size_t)t->ndim)
        return fail_tensor(p, t, what);
    TRY(pickle_alloc(p, dims->n * sizeof(int64_t), &memory));
    int64_t *numbers = memory;
    for (size_t i = 0; i < dims->n; i++) {
        if (dims->items[i]->kind != PICKLE_INT || dims->items[i]->integer < 0)
            return fail_tensor(p, t, what);
        numbers[i] = dims->items[i]->integer;
    }
    *out = numbers;
    return CZ_OK;
}

/* Dimensions of one element may have any stride, as torch writes them. */
static bool is_row_major(const struct pickle_tensor *t)
{
    if (t->numel <= 1) return true;
    int64_t expected = 1;
    for (int i = t->ndim - 1; i >= 0; i--) {
        if (t->shape[i] != 1 && t->stride[i] != expected) return false;
        expected *= t->shape[i]; /* at most numel */
    }
    return true;
}

/* numel, and that the last element is inside the storage. Strides may be 0 (expanded tensors), so
 * numel can exceed the storage, but not what an int64_t can count. */
static cz_status check_bounds(const struct pickle_parser *p, struct pickle_tensor *t)
{
    uint64_t numel = 1, last = t->off, step;
    bool is_empty = false;
    for (int i = 0; i < t->ndim; i++) is_empty |= t->shape[i] == 0;
    t->numel = 0;
    t->is_contiguous = true;
    if (is_empty) return CZ_OK;
    for (int i = 0; i < t->ndim; i++)
        if (__builtin_mul_overflow(numel, (uint64_t)t->shape[i], &numel) ||
            __builtin_mul_overflow((uint64_t)t->shape[i] - 1, (uint64_t)t->stride[i], &step) ||
            __builtin_add_overflow(last, step, &last))
            return fail_tensor(p, t, "is larger than any memory");
    if (numel > (uint64_t)INT64_MAX / t->dtype->size)
        return fail_tensor(p, t, "is larger than any memory");
    if (last >= t->storage_nbytes / t->dtype->size)
        return pickle_fail(p, CZ_CORRUPT,
                           "a tensor reaches element %" PRIu64 " of storage %s, which has %" PRIu64,
                           last, t->key, t->storage_nbytes / t->dtype->size);
    t->numel = numel;
    t->is_contiguous = is_row_major(t);
    return CZ_OK;
}

struct view { /* arguments of a rebuild function; dtype, requires_grad: NULL if it has none */
    const struct pickle_node *storage, *off, *shape, *stride, *requires_grad, *dtype;
};

/* requires_grad is checked only because a wrong type means another argument order. */
static cz_status make_tensor(struct pickle_parser *p, const struct view *v,
                             struct pickle_node **out)
{
    const struct pickle_storage *storage = pickle_storage_of(v->storage);
    if (!storage) return pickle_fail(p, CZ_CORRUPT, "a tensor is rebuilt without a storage");
    void *memory;
    TRY(pickle_alloc(p, sizeof(struct pickle_tensor), &memory));
    struct pickle_tensor *t = memory;
    t->key = storage->key;
    t->dtype = storage->dtype;
    t->storage_nbytes = storage->nbytes;
    if (v->dtype) {
        t->dtype = v->dtype->kind == PICKLE_DTYPE ? pickle_dtype_find(v->dtype->more->name) : NULL;
        if (!t->dtype) return fail_tensor(p, t, "has an unknown dtype");
    }
    if (v->off->kind != PICKLE_INT || v->off->integer < 0)
        return fail_tensor(p, t, "has an impossible offset");
    t->off = (uint64_t)v->off->integer;
    if (v->shape->n > PICKLE_NDIM_MAX)
        return pickle_fail(p, CZ_UNSUPPORTED, "a tensor of storage %s has more than %d dimensions",
                           t->key, PICKLE_NDIM_MAX);
    t->ndim = (int)v->shape->n;
    TRY(read_dims(p, t, v->shape, "has an impossible shape", &t->shape));
    TRY(read_dims(p, t, v->stride, "has impossible strides", &t->stride));
    TRY(check_bounds(p, t));
    if (v->requires_grad && !pickle_to_bool(v->requires_grad, &t->requires_grad))
        return fail_tensor(p, t, "has a requires_grad that is not a bool");
    TRY(pickle_node_new(p, PICKLE_TENSOR, out));
    (*out)->tensor = t;
    return CZ_OK;
}

/* ---- torch's functions ----------------------------------------------------------------------- */

static cz_status rebuild_v1(struct pickle_parser *p, const struct pickle_node *args,
                            struct pickle_node **out)
{
    const struct pickle_node *const *a = args->items;
    struct view v = {a[0], a[1], a[2], a[3], NULL, NULL};
    return make_tensor(p, &v, out);
}

static cz_status rebuild_v2(struct pickle_parser *p, const struct pickle_node *args,
                            struct pickle_node **out)
{
    const struct pickle_node *const *a = args->items;
    struct view v = {a[0], a[1], a[2], a[3], a[4], NULL};
    return make_tensor(p, &v, out);
}

static cz_status rebuild_v3(struct pickle_parser *p, const struct pickle_node *args,
                            struct pickle_node **out)
{
    const struct pickle_node *const *a = args->items;
    struct view v = {a[0], a[1], a[2], a[3], a[4], a[6]};
    return make_tensor(p, &v, out);
}

/* Attributes; None and NULL are none. */
static cz_status take_state(struct pickle_parser *p, struct pickle_node *node,
                            const struct pickle_node *state)
{
    struct pickle_more *more;
    if (!state || state->kind == PICKLE_NONE) return CZ_OK;
    TRY(pickle_more_need(p, node, &more));
    more->state = state;
    return CZ_OK;
}

/* (tensor, requires_grad, hooks) and, with state, a fourth: its attributes. */
static cz_status rebuild_parameter(struct pickle_parser *p, const struct pickle_node *args,
                                   struct pickle_node **out)
{
    if (args->items[0]->kind != PICKLE_TENSOR)
        return pickle_fail(p, CZ_CORRUPT, "a parameter is rebuilt from %s, not from a tensor",
                           pickle_kind_phrase(args->items[0]->kind));
    /* The same view under a new node, so that attributes of one are not the other's. */
    void *memory;
    TRY(pickle_alloc(p, sizeof(struct pickle_tensor), &memory));
    struct pickle_tensor *t = memory;
    *t = *args->items[0]->tensor;
    TRY(pickle_node_new(p, PICKLE_TENSOR, out));
    (*out)->tensor = t;
    TRY(take_state(p, *out, args->items[0]->more->state));
    t->is_parameter = true;
    if (!pickle_to_bool(args->items[1], &t->requires_grad))
        return fail_tensor(p, t, "has a requires_grad that is not a bool");
    return args->n == 4 ? take_state(p, *out, args->items[3]) : CZ_OK;
}

static const struct rebuild {
    const char *module, *name;
    size_t n_args_min, n_args_max;
    cz_status (*make)(struct pickle_parser *p, const struct pickle_node *args,
                      struct pickle_node **out);
} rebuilds[] = {
    {"torch._utils", "_rebuild_tensor", 4, 4, rebuild_v1},
    {"torch._utils", "_rebuild_tensor_v2", 6, 7, rebuild_v2},
    {"torch._utils", "_rebuild_tensor_v3", 7, 8, rebuild_v3},
    {"torch._utils", "_rebuild_parameter", 3, 3, rebuild_parameter},
    {"torch._utils", "_rebuild_parameter_with_state", 4, 4, rebuild_parameter},
};

/* Functions of torch._utils that are not listed make quantized or sparse tensors, whose values this
 * reader would misread. */
static cz_status call_rebuild(struct pickle_parser *p, const struct pickle_node *callable,
                              const struct pickle_node *args, struct pickle_node **out)
{
    for (size_t i = 0; i < CZ_ARRAY_LEN(rebuilds); i++) {
        const struct rebuild *r = &rebuilds[i];
        if (!pickle_is_global(callable, r->module, r->name)) continue;
        if (args->n < r->n_args_min || args->n > r->n_args_max)
            return pickle_fail(p, CZ_CORRUPT, "%s has %u arguments", r->name, args->n);
        return r->make(p, args, out);
    }
    if (callable->kind == PICKLE_GLOBAL && strcmp(callable->more->module, "torch._utils") == 0 &&
        strncmp(callable->more->name, "_rebuild_", 9) == 0)
        return pickle_fail(
            p, CZ_UNSUPPORTED,
            "a tensor made by %s is not read; only dense tensors without quantization are",
            callable->more->name);
    return CZ_OK;
}

cz_status pickle_call_tensor(struct pickle_parser *p, const struct pickle_node *callable,
                             const struct pickle_node *args, struct pickle_node **out)
{
    *out = NULL;
    if (pickle_is_global(callable, "torch._tensor", "_rebuild_from_type_v2") ||
        pickle_is_global(callable, "torch._tensor", "_rebuild_from_type")) {
        /* (function, type, its arguments, attributes): a tensor that carries Python attributes. */
        if (args->n != 4 || args->items[2]->kind != PICKLE_TUPLE)
            return pickle_fail(p, CZ_CORRUPT,
                               "_rebuild_from_type_v2 has other arguments than four");
        TRY(call_rebuild(p, args->items[0], args->items[2], out));
        if (!*out) return CZ_OK;
        if (pickle_is_global(args->items[1], "torch.nn.parameter", "Parameter"))
            ((struct pickle_tensor *)(uintptr_t)(*out)->tensor)->is_parameter = true;
        return take_state(p, *out, args->items[3]);
    }
    return call_rebuild(p, callable, args, out);
}
