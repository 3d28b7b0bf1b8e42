/* Rank 0's model_states file: which tensors there are, their names, and which names are ties of one
 * tensor (docs/deepspeed-behaviour.md, "Model file").
 *
 * Ties are found twice, because neither source is complete: two names of the same storage elements
 * in `module`, and DeepSpeed's shared_params. The name that comes first in `module` owns the
 * tensor; the others become its aliases. */
#include "checkpoint/read/checkpoint_impl.h"

#include <stdlib.h>
#include <string.h>

/* ---- `module` as a list of parameters -------------------------------------------------------- */

struct module_param {
    const char *name;
    const struct pickle_tensor *t;
    size_t pos, first; /* first: position of the tie's first name, at most pos */
};

struct module_list {
    struct module_param *params; /* in the order of `module`, buffers left out */
    size_t n;
    struct name_map pos; /* of a name in params */
};

/* The strings of a list, as a set. */
static cz_status names_of_list(const struct pickle_node *list, struct name_map *set)
{
    for (size_t i = 0; list && i < list->n; i++) {
        const char *name = pickle_to_string(list->items[i]);
        if (name) TRY(name_map_put(set, name, i));
    }
    return CZ_OK;
}

/* Buffers become entries at once; parameters are listed. What is no tensor (extra state of a
 * module) stays in the tree only. */
static cz_status list_module(struct ckpt *ck, uint32_t file_idx, const struct pickle_node *module,
                             const struct name_map *buffers, struct module_list *list)
{
    list->params = calloc(module->n_pairs + 1, sizeof *list->params);
    if (!list->params) return err_set(CZ_NOMEM, 0, "out of memory");
    for (size_t i = 0; i < module->n_pairs; i++) {
        const char *name = pickle_to_string(module->pairs[i].key);
        const struct pickle_node *value = module->pairs[i].value;
        if (!name)
            return err_set(CZ_CORRUPT, 0, "%s: module: a key is not a name", pt_path(ck->model));
        if (!pickle_is(value, PICKLE_TENSOR)) continue;
        if (name_map_get(buffers, name) != NAME_MAP_NONE) {
            /* A buffer's entry, complete. */
            size_t idx;
            TRY(ckpt_entry_add(ck, name, &idx));
            struct ckpt_entry *e = &ck->entries[idx];
            TRY(ckpt_entry_set_shape(e, value->tensor->shape, value->tensor->ndim,
                                     pt_path(ck->model), "module"));
            e->has_kind = true;
            e->tensor.kind = CKPT_BUFFER;
            e->master = e->module = ckpt_place_of(ck->model, file_idx, value->tensor);
            e->script_pos = ck->n_placed++;
            continue;
        }
        list->params[list->n] = (struct module_param){name, value->tensor, list->n, list->n};
        TRY(name_map_put(&list->pos, name, list->n));
        list->n++;
    }
    return CZ_OK;
}

/* ---- ties ------------------------------------------------------------------------------------ */

static bool same_shape(const struct pickle_tensor *a, const struct pickle_tensor *b)
{
    return a->ndim == b->ndim &&
           memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape) == 0;
}

/* Storage, then offset, then position, so that a run of equal places begins with its first name. */
static int by_storage(const void *left, const void *right)
{
    const struct module_param *a = *(struct module_param *const *)left;
    const struct module_param *b = *(struct module_param *const *)right;
    int order = strcmp(a->t->key, b->t->key);
    if (order != 0) return order;
    if (a->t->off != b->t->off) return a->t->off < b->t->off ? -1 : 1;
    return a->pos < b->pos ? -1 : 1;
}

/* Two names with the same elements of one storage and the same shape. Stage 3's placeholders have
 * no elements, so they prove nothing. */
static cz_status tie_by_storage(struct module_list *list)
{
    struct module_param **sorted = calloc(list->n + 1, sizeof(struct module_param *));
    if (!sorted) return err_set(CZ_NOMEM, 0, "out of memory");
    size_t n = 0;
    for (size_t i = 0; i < list->n; i++)
        if (list->params[i].t->numel > 0) sorted[n++] = &list->params[i];
    if (n > 1) qsort(sorted, n, sizeof(struct module_param *), by_storage);
    const struct module_param *owner = n > 0 ? sorted[0] : NULL;
    for (size_t i = 1; i < n; i++) {
        const struct pickle_tensor *t = sorted[i]->t;
        bool same = strcmp(owner->t->key, t->key) == 0 && owner->t->off == t->off;
        if (same && same_shape(owner->t, t))
            sorted[i]->first = owner->pos;
        else
            owner = sorted[i];
    }
    free(sorted);
    return CZ_OK;
}

/* The names of all dictionaries of shapes: they have elements of their own, so what shared_params
 * says of them is an accident (empty tensors all have the address 0). */
static cz_status names_with_shapes(const struct pickle_node *root, struct name_map *set)
{
    const struct pickle_node *shapes = pickle_get(root, "param_shapes");
    const size_t n_dicts = ckpt_shapes_count(shapes);
    for (size_t d = 0; d <= n_dicts; d++) {
        const struct pickle_node *dict =
            d < n_dicts ? ckpt_shapes_at(shapes, d) : pickle_get(root, "frozen_param_shapes");
        if (!pickle_is(dict, PICKLE_DICT) && !pickle_is(dict, PICKLE_OBJECT)) continue;
        for (size_t i = 0; i < dict->n_pairs; i++) {
            const char *name = pickle_to_string(dict->pairs[i].key);
            if (name) TRY(name_map_put(set, name, d));
        }
    }
    return CZ_OK;
}

/* Union-find. Halving the paths keeps chains short however many names a file ties together. */
static size_t first_of(struct module_list *list, size_t pos)
{
    struct module_param *params = list->params;
    while (params[pos].first != pos) pos = params[pos].first = params[params[pos].first].first;
    return pos;
}

/* The earlier name becomes the owner, so the result does not depend on the order of
 * shared_params. */
static void unite(struct module_list *list, size_t a, size_t b)
{
    a = first_of(list, a);
    b = first_of(list, b);
    if (a < b)
        list->params[b].first = a;
    else
        list->params[a].first = b;
}

/* shared_params: alias → owner. DeepSpeed finds ties by address, and all empty tensors of stage 3
 * have the address 0; so a claim counts only if the alias has no shape of its own. */
static cz_status tie_by_names(const struct ckpt *ck, const struct name_map *shaped,
                              struct module_list *list)
{
    const struct pickle_node *shared = pickle_get(ck->model_root, "shared_params");
    for (size_t i = 0; shared && i < shared->n_pairs; i++) {
        const char *alias = pickle_to_string(shared->pairs[i].key);
        const char *owner = pickle_to_string(shared->pairs[i].value);
        if (!alias || !owner)
            return err_set(CZ_CORRUPT, 0, "%s: shared_params: not a name", pt_path(ck->model));
        size_t a = name_map_get(&list->pos, alias), b = name_map_get(&list->pos, owner);
        if (b == NAME_MAP_NONE && name_map_get(shaped, owner) == NAME_MAP_NONE)
            return err_set(CZ_CORRUPT, 0,
                           "%s: shared_params: '%s' is an alias of '%s', which is missing",
                           pt_path(ck->model), alias, owner);
        if (a == NAME_MAP_NONE || b == NAME_MAP_NONE) continue;
        const struct pickle_tensor *t = list->params[a].t;
        bool own = t->numel == 0 && name_map_get(shaped, alias) != NAME_MAP_NONE;
        if (!own && same_shape(t, list->params[b].t)) unite(list, a, b);
    }
    return CZ_OK;
}

/* ---- entries of parameters ------------------------------------------------------------------- */

/* At stages 0 to 2 `module` holds the weight itself; at stage 3 an empty placeholder, and the shape
 * comes from param_shapes. */
static cz_status add_param(struct ckpt *ck, uint32_t file_idx, const struct module_param *p,
                           bool is_stage3)
{
    size_t idx;
    TRY(ckpt_entry_add(ck, p->name, &idx));
    if (is_stage3) return CZ_OK;
    struct ckpt_entry *e = &ck->entries[idx];
    TRY(ckpt_entry_set_shape(e, p->t->shape, p->t->ndim, pt_path(ck->model), "module"));
    e->module = ckpt_place_of(ck->model, file_idx, p->t);
    return CZ_OK;
}

/* Aliases that `module` does not list: stage 3 omits some. Those with an unknown owner were
 * reported by tie_by_names(). */
static cz_status add_other_aliases(struct ckpt *ck)
{
    const struct pickle_node *shared = pickle_get(ck->model_root, "shared_params");
    for (size_t i = 0; shared && i < shared->n_pairs; i++) {
        const char *alias = pickle_to_string(shared->pairs[i].key);
        const char *owner = pickle_to_string(shared->pairs[i].value);
        if (name_map_get(&ck->names, alias) != NAME_MAP_NONE) continue;
        size_t idx = name_map_get(&ck->names, owner);
        if (idx != NAME_MAP_NONE) TRY(ckpt_alias_add(ck, idx, alias));
    }
    return CZ_OK;
}

static bool is_floating(const struct pickle_dtype *dtype)
{
    return strncmp(dtype->torch_name, "float", 5) == 0 ||
           strncmp(dtype->torch_name, "bfloat", 6) == 0;
}

/* Of the first floating parameter: buffers and integer tables say nothing about the run's
 * precision. */
static const struct pickle_dtype *model_dtype_of(const struct module_list *list)
{
    for (size_t i = 0; i < list->n; i++)
        if (is_floating(list->params[i].t->dtype)) return list->params[i].t->dtype;
    return NULL;
}

/* The two keys that every version writes. With pipeline parallelism `module` is None and the layers
 * have files of their own. */
static cz_status check_model_file(const struct ckpt *ck)
{
    const char *path = pt_path(ck->model);
    const struct pickle_node *module = pickle_get(ck->model_root, "module");
    const struct pickle_node *buffers = pickle_get(ck->model_root, "buffer_names");
    if (!module || !buffers)
        return err_set(CZ_CORRUPT, 0, "%s: is not DeepSpeed's model file: it has no '%s'", path,
                       module ? "buffer_names" : "module");
    if (pickle_is(module, PICKLE_NONE))
        return err_set(CZ_UNSUPPORTED, 0,
                       "%s: 'module' is None: pipeline parallelism, which is not read here", path);
    if (!pickle_is(module, PICKLE_DICT))
        return err_set(CZ_CORRUPT, 0, "%s: 'module' is %s, not a dict", path,
                       pickle_kind_phrase(module->kind));
    if (!pickle_is(buffers, PICKLE_LIST) && !pickle_is(buffers, PICKLE_NONE))
        return err_set(CZ_CORRUPT, 0, "%s: 'buffer_names' is %s, not a list", path,
                       pickle_kind_phrase(buffers->kind));
    return CZ_OK;
}

static cz_status read_module(struct ckpt *ck, uint32_t file_idx, bool is_stage3,
                             struct name_map *names, struct module_list *list)
{
    TRY(names_of_list(pickle_get(ck->model_root, "buffer_names"), names));
    TRY(list_module(ck, file_idx, pickle_get(ck->model_root, "module"), names, list));
    if (!is_stage3) TRY(tie_by_storage(list));
    name_map_free(names);
    TRY(names_with_shapes(ck->model_root, names));
    TRY(tie_by_names(ck, names, list));
    ck->info.model_dtype = model_dtype_of(list);
    for (size_t i = 0; i < list->n; i++) {
        const struct module_param *p = &list->params[i];
        size_t first = first_of(list, i);
        if (first == i)
            TRY(add_param(ck, file_idx, p, is_stage3));
        else
            TRY(ckpt_alias_add(ck, name_map_get(&ck->names, list->params[first].name), p->name));
    }
    return CZ_OK;
}

cz_status ckpt_model_read(struct ckpt *ck, uint32_t file_idx, bool is_stage3)
{
    ck->model_root = pt_root(ck->model);
    TRY(check_model_file(ck));
    struct module_list list = {.n = 0};
    struct name_map names = {.n = 0};
    cz_status st = read_module(ck, file_idx, is_stage3, &names, &list);
    free(list.params);
    name_map_free(&names);
    name_map_free(&list.pos);
    if (st == CZ_OK) st = add_other_aliases(ck);
    return st;
}
