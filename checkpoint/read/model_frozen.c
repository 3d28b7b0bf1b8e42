/* What a model_states file says besides `module`: shapes, frozen parameters, and whether it belongs
 * to rank 0's. */
#include "checkpoint/read/checkpoint_impl.h"

#include <string.h>

/* ---- shapes ---------------------------------------------------------------------------------- */

/* One dictionary per group, or in old files a single dictionary for all. */
size_t ckpt_shapes_count(const struct pickle_node *param_shapes)
{
    if (pickle_is(param_shapes, PICKLE_DICT)) return 1;
    bool is_list = pickle_is(param_shapes, PICKLE_LIST) || pickle_is(param_shapes, PICKLE_TUPLE);
    return is_list ? param_shapes->n : 0;
}

const struct pickle_node *ckpt_shapes_at(const struct pickle_node *param_shapes, size_t idx)
{
    return pickle_is(param_shapes, PICKLE_DICT) ? param_shapes : param_shapes->items[idx];
}

/* ---- frozen parameters ----------------------------------------------------------------------- */

/* Shapes and fragments are two dictionaries; a name that only one has would be read as empty. */
cz_status ckpt_frozen_check(const struct pt *model)
{
    const struct pickle_node *shapes = pickle_get(pt_root(model), "frozen_param_shapes");
    const struct pickle_node *fragments = pickle_get(pt_root(model), "frozen_param_fragments");
    size_t n_shapes = pickle_is(shapes, PICKLE_DICT) ? shapes->n_pairs : 0;
    size_t n_fragments = pickle_is(fragments, PICKLE_DICT) ? fragments->n_pairs : 0;
    bool same = n_shapes == n_fragments;
    for (size_t i = 0; i < n_shapes && same; i++) {
        const char *name = pickle_to_string(shapes->pairs[i].key);
        same = name && pickle_is(pickle_get(fragments, name), PICKLE_TENSOR);
    }
    if (same) return CZ_OK;
    return err_set(CZ_CORRUPT, 0,
                   "%s: frozen_param_shapes and frozen_param_fragments have different names",
                   pt_path(model));
}

/* Parameters that the file lists as frozen (from stage 2 on), in that order. Stage 1 writes None
 * there (docs/deepspeed-behaviour.md, "Model file"). */
static cz_status freeze_listed(struct ckpt *ck, uint32_t file_idx)
{
    TRY(ckpt_frozen_check(ck->model));
    const struct pickle_node *shapes = pickle_get(ck->model_root, "frozen_param_shapes");
    const struct pickle_node *fragments = pickle_get(ck->model_root, "frozen_param_fragments");
    size_t n = pickle_is(shapes, PICKLE_DICT) ? shapes->n_pairs : 0;
    for (size_t i = 0; i < n; i++) {
        const char *name = pickle_to_string(shapes->pairs[i].key);
        const struct pickle_tensor *t = pickle_get(fragments, name)->tensor;
        size_t idx;
        TRY(ckpt_entry_want(ck, name, shapes->pairs[i].value, "frozen_param_shapes", &idx));
        if (t->numel != ck->entries[idx].tensor.numel)
            return err_set(CZ_CORRUPT, 0,
                           "%s: frozen_param_fragments: '%s' has %llu elements instead of %llu",
                           pt_path(ck->model), name, (unsigned long long)t->numel,
                           (unsigned long long)ck->entries[idx].tensor.numel);
        TRY(ckpt_entry_freeze(ck, idx, ckpt_place_of(ck->model, file_idx, t)));
    }
    return CZ_OK;
}

/* Whatever `module` holds and no source has claimed was not trained: at stage 1 this is the only
 * trace of frozen parameters. */
cz_status ckpt_frozen_whole(struct ckpt *ck, uint32_t file_idx)
{
    TRY(freeze_listed(ck, file_idx));
    for (size_t i = 0; i < ck->n_entries; i++) {
        struct ckpt_entry *e = &ck->entries[i];
        if (!e->has_kind && e->module.kind != PLACE_NONE) TRY(ckpt_entry_freeze(ck, i, e->module));
    }
    return CZ_OK;
}

cz_status ckpt_frozen_rest(struct ckpt *ck, uint32_t file_idx)
{
    const struct pickle_node *module = pickle_get(ck->model_root, "module");
    for (size_t i = 0; i < ck->n_entries; i++) {
        struct ckpt_entry *e = &ck->entries[i];
        const struct pickle_node *value = e->has_kind ? NULL : pickle_get(module, e->name);
        if (!pickle_is(value, PICKLE_TENSOR) || value->tensor->numel == 0) continue;
        const struct pickle_tensor *t = value->tensor;
        TRY(ckpt_entry_set_shape(e, t->shape, t->ndim, pt_path(ck->model), "module"));
        TRY(ckpt_entry_freeze(ck, i, ckpt_place_of(ck->model, file_idx, t)));
    }
    return CZ_OK;
}

/* ---- do ranks' model files belong together? -------------------------------------------------- */

static bool same_value(const struct pickle_node *a, const struct pickle_node *b);

static bool same_items(const struct pickle_node *a, const struct pickle_node *b)
{
    if (a->n != b->n) return false;
    for (size_t i = 0; i < a->n; i++)
        if (!same_value(a->items[i], b->items[i])) return false;
    return true;
}

static bool same_pairs(const struct pickle_node *a, const struct pickle_node *b)
{
    if (a->n_pairs != b->n_pairs) return false;
    for (size_t i = 0; i < a->n_pairs; i++)
        if (!same_value(a->pairs[i].key, b->pairs[i].key) ||
            !same_value(a->pairs[i].value, b->pairs[i].value))
            return false;
    return true;
}

/* Of what shapes, counters and versions are made of. */
static bool same_value(const struct pickle_node *a, const struct pickle_node *b)
{
    if (!a || !b) return a == b;
    if (a->kind != b->kind) return false;
    switch (a->kind) {
    case PICKLE_INT: return a->integer == b->integer;
    case PICKLE_STRING: return a->n == b->n && memcmp(a->text, b->text, a->n) == 0;
    case PICKLE_DICT: return same_pairs(a, b);
    case PICKLE_LIST:
    case PICKLE_TUPLE:
    case PICKLE_SIZE: return same_items(a, b);
    default: return true;
    }
}

cz_status ckpt_model_agree(const struct ckpt *ck, const struct pt *other)
{
    static const char *const keys[] = {"ds_version", "dp_world_size", "global_steps",
                                       "param_shapes", "frozen_param_shapes"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(keys); i++)
        if (!same_value(pickle_get(ck->model_root, keys[i]), pickle_get(pt_root(other), keys[i])))
            return err_set(CZ_CORRUPT, 0, "%s: '%s' differs from %s: files of two different saves",
                           pt_path(other), keys[i], pt_path(ck->model));
    return CZ_OK;
}
