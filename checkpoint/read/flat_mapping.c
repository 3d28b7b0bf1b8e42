/* Stages 1 and 2: every rank's file says itself which parameters it holds pieces of
 * (param_slice_mappings). It is not needed to read them, but it tells the files of two ranks apart
 * that are of the same length. */
#include "checkpoint/read/checkpoint_impl.h"

#include <string.h>

/* The piece of a parameter that lies in [begin, end) of the flat tensor. */
static uint64_t overlap(const struct ckpt_entry *e, uint64_t begin, uint64_t end)
{
    uint64_t first = e->master.split.shift, last = first + e->tensor.numel;
    if (first < begin) first = begin;
    if (last > end) last = end;
    return first < last ? last - first : 0;
}

static cz_status not_this_rank(const struct rank_file *file, size_t g, const char *name)
{
    return err_set(CZ_CORRUPT, 0,
                   "%s: param group %zu: by its param_slice_mappings it is not rank %d's file: "
                   "that holds a piece of %s",
                   pt_path(file->pt), g, file->rank, name);
}

static bool is_listed(const struct pickle_node *mapping, size_t at, const char *name,
                      uint64_t numel)
{
    if (at >= mapping->n_pairs) return false;
    const char *there = pickle_to_string(mapping->pairs[at].key);
    int64_t n;
    bool has_numel = pickle_to_int(pickle_attr(mapping->pairs[at].value, "numel"), &n);
    return there && strcmp(there, name) == 0 && (!has_numel || (uint64_t)n == numel);
}

/* With round_robin_gradients DeepSpeed's mappings are of another order than its elements; where the
 * config was saved as a path nobody knows. Writers that leave the mappings empty say nothing. */
static bool is_trusted(const struct ckpt *ck, const struct pickle_node *mapping)
{
    const struct pickle_node *config = pickle_get(ck->model_root, "ds_config");
    const struct pickle_node *zero = pickle_get(config, "zero_optimization");
    bool is_round_robin = false;
    pickle_to_bool(pickle_get(zero, "round_robin_gradients"), &is_round_robin);
    return pickle_is(config, PICKLE_DICT) && mapping->n_pairs > 0 && !is_round_robin;
}

cz_status ckpt_mapping_check(const struct ckpt *ck, const struct rank_file *file, size_t g,
                             uint64_t partition)
{
    const struct pickle_node *list = pickle_get(file->head.state, "param_slice_mappings");
    const struct pickle_node *mapping =
        pickle_is(list, PICKLE_LIST) && g < list->n ? list->items[g] : NULL;
    const struct pickle_node *shapes =
        ckpt_shapes_at(pickle_get(ck->model_root, "param_shapes"), g);
    if (!pickle_is(mapping, PICKLE_DICT) || !is_trusted(ck, mapping)) return CZ_OK;
    uint64_t begin = (uint64_t)file->rank * partition;
    size_t at = 0;
    for (size_t i = 0; i < shapes->n_pairs; i++) {
        const char *name = pickle_to_string(shapes->pairs[i].key);
        const struct ckpt_entry *e = &ck->entries[ckpt_find(ck, name)];
        uint64_t numel = overlap(e, begin, begin + partition);
        if (numel == 0) continue;
        if (!is_listed(mapping, at++, name, numel)) return not_this_rank(file, g, name);
    }
    if (at == mapping->n_pairs) return CZ_OK;
    const char *extra = pickle_to_string(mapping->pairs[at].key);
    return err_set(CZ_CORRUPT, 0,
                   "%s: param group %zu: by its param_slice_mappings it is not rank %d's file: it "
                   "says that it holds a piece of %s",
                   pt_path(file->pt), g, file->rank, extra ? extra : "?");
}
