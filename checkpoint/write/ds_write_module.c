/* What the model file holds of parameters: their tensors, shapes, frozen pieces and other names. At
 * stages 0 to 2 `module` has the weights, of stages 1 and 2 as views of one storage per group; at
 * stage 3 empty placeholders (docs/deepspeed-behaviour.md, "Model file"). */
#include "checkpoint/write/ds_write_impl.h"

#include <string.h>

static bool is_dropped(const struct ckpt_writer *w, size_t param_idx)
{
    return w->options->exclude_frozen && ds_is_frozen(w, param_idx);
}

/* ---- module ---------------------------------------------------------------------------------- */

/* The storage of all of a group's parameters, whose flat buffer they are views of. It is padded as
 * the partitions are; FusedAdam's wrapper at stage 0 pads nothing. Made when the group's first
 * parameter is written. */
static size_t flat_storage(struct ckpt_writer *w, size_t group)
{
    const struct flat_group *flat = w->options->groups[group].flat;
    size_t numel = w->options->stage == 0 ? flat->numel : flat->numel_padded;
    if (w->group_storage[group] == DS_NONE) {
        size_t idx = ds_storage(w, DS_MODEL, w->options->dtype, numel);
        ds_flat_segments(w, DS_MODEL, ds_stream_of(w, CKPT_FROM_PARAM, group, 0), idx, flat, 0,
                         numel);
        w->group_storage[group] = idx;
    }
    return w->group_storage[group];
}

/* A parameter's own storage: all of it, or at stage 3 an empty placeholder. A tied parameter is
 * written under several names with the same storage. */
static size_t own_storage(struct ckpt_writer *w, size_t param_idx, size_t numel)
{
    if (w->param_storage[param_idx] != DS_NONE) return w->param_storage[param_idx];
    size_t group = w->options->group_of[param_idx];
    struct ds_segment s = {.file = DS_MODEL,
                           .storage_idx = ds_storage(w, DS_MODEL, w->options->dtype, numel),
                           .numel = numel,
                           .param_idx = param_idx};
    if (ds_is_frozen(w, param_idx)) {
        s.stream = ds_stream_of(w, CKPT_FROM_FROZEN, 0, param_idx);
    } else {
        s.stream = ds_stream_of(w, CKPT_FROM_PARAM, group, 0);
        if (numel) s.src_off = w->options->groups[group].flat->params[w->param_pos[param_idx]].off;
    }
    ds_segment_add(w, s);
    return w->param_storage[param_idx] = s.storage_idx;
}

/* Which of the three forms a parameter takes: placeholder, tensor of its own, view of the group's
 * storage. */
static void put_param(struct ckpt_writer *w, size_t param_idx)
{
    const struct ckpt_write_options *o = w->options;
    const struct param_info *info = &o->table->params[param_idx];
    struct pickle_tensor_desc t = {.dtype = o->dtype, .ndim = info->ndim, .shape = info->shape};
    if (o->stage == 3) {
        t.storage_idx = own_storage(w, param_idx, 0);
        ds_put_flat(w->files[DS_MODEL].pickle, t, 0);
        return;
    }
    if (ds_is_frozen(w, param_idx) || ds_is_plain(w)) {
        t.storage_idx = own_storage(w, param_idx, info->numel);
        t.storage_numel = info->numel;
    } else {
        const struct flat_group *flat = o->groups[o->group_of[param_idx]].flat;
        t.storage_idx = flat_storage(w, o->group_of[param_idx]);
        t.storage_numel = o->stage == 0 ? flat->numel : flat->numel_padded;
        t.off = flat->params[w->param_pos[param_idx]].off;
    }
    pickle_put_tensor(w->files[DS_MODEL].pickle, &t);
}

/* Entry idx of `module`: parameters, then the other names of tied ones. */
static const char *module_name(const struct ckpt_writer *w, size_t idx, size_t *param_idx)
{
    const struct param_table *table = w->options->table;
    if (idx < table->n_params) {
        *param_idx = idx;
        return table->params[idx].name;
    }
    *param_idx = table->aliases[idx - table->n_params].param_idx;
    return table->aliases[idx - table->n_params].name;
}

/* Whether no entry before idx is inside the module path name[0 … n). Quadratic in the number of
 * parameters, which is small beside the tensors. */
static bool is_first_of_path(const struct ckpt_writer *w, size_t idx, const char *name, size_t n)
{
    size_t param_idx;
    while (idx-- > 0) {
        const char *other = module_name(w, idx, &param_idx);
        if (!is_dropped(w, param_idx) && strncmp(other, name, n) == 0 && other[n] == '.')
            return false;
    }
    return true;
}

static void put_version(struct pickle_writer *p, const char *path, size_t n)
{
    char text[512];
    if (n >= sizeof text) return; /* no reader needs it */
    memcpy(text, path, n);
    text[n] = '\0';
    pickle_put_string(p, text);
    pickle_dict_begin(p);
    ds_pair_int(p, "version", 1);
    pickle_dict_end(p);
}

/* nn.Module's versions, for the modules that the names imply. Modules without parameters are not
 * known here; torch takes a missing one as version 1. */
static void put_metadata(struct ckpt_writer *w, size_t n_entries)
{
    struct pickle_writer *p = w->files[DS_MODEL].pickle;
    size_t param_idx;
    pickle_state_begin(p);
    pickle_put_string(p, "_metadata");
    pickle_ordered_dict_begin(p);
    put_version(p, "", 0);
    for (size_t i = 0; i < n_entries; i++) {
        const char *name = module_name(w, i, &param_idx);
        if (is_dropped(w, param_idx)) continue;
        for (const char *dot = strchr(name, '.'); dot; dot = strchr(dot + 1, '.'))
            if (is_first_of_path(w, i, name, (size_t)(dot - name)))
                put_version(p, name, (size_t)(dot - name));
    }
    pickle_dict_end(p);
    pickle_state_end(p);
}

void ds_put_module(struct ckpt_writer *w)
{
    const struct param_table *table = w->options->table;
    struct pickle_writer *p = w->files[DS_MODEL].pickle;
    size_t n_entries = table->n_params + table->n_aliases, param_idx;
    pickle_ordered_dict_begin(p);
    for (size_t i = 0; i < n_entries; i++) {
        const char *name = module_name(w, i, &param_idx);
        if (is_dropped(w, param_idx)) continue;
        pickle_put_string(p, name);
        put_param(w, param_idx);
    }
    pickle_dict_end(p);
    put_metadata(w, n_entries);
}

/* ---- shapes ---------------------------------------------------------------------------------- */

static void put_shape(struct ckpt_writer *w, size_t param_idx)
{
    const struct param_info *info = &w->options->table->params[param_idx];
    struct pickle_writer *p = w->files[DS_MODEL].pickle;
    pickle_put_string(p, info->name);
    pickle_put_size(p, info->shape, info->ndim);
}

static void put_shard_shapes(struct ckpt_writer *w, const struct shard_group *shard)
{
    struct pickle_writer *p = w->files[DS_MODEL].pickle;
    for (size_t s = 0; s < shard->n_sub_groups; s++) {
        const struct shard_sub_group *sub = &shard->sub_groups[s];
        pickle_ordered_dict_begin(p);
        for (size_t i = sub->first; i < sub->first + sub->n_params; i++)
            put_shape(w, shard->params[i].param_idx);
        pickle_dict_end(p);
    }
}

/* The order of the flat buffers: readers cut the ranks' tensors by it. */
void ds_put_param_shapes(struct ckpt_writer *w)
{
    const struct ckpt_write_options *o = w->options;
    struct pickle_writer *p = w->files[DS_MODEL].pickle;
    if (o->stage == 0) {
        pickle_put_none(p);
        return;
    }
    pickle_list_begin(p);
    for (size_t g = 0; g < o->n_groups; g++) {
        if (o->stage == 3) {
            put_shard_shapes(w, o->groups[g].shard);
            continue;
        }
        pickle_ordered_dict_begin(p);
        for (size_t i = 0; i < o->groups[g].flat->n_params; i++)
            put_shape(w, o->groups[g].flat->params[i].param_idx);
        pickle_dict_end(p);
    }
    pickle_list_end(p);
}

/* ---- frozen and tied parameters -------------------------------------------------------------- */

/* This rank's chunk at stage 3; at stage 2 the tensor that `module` holds. The chunk's padding is a
 * segment, too, since the storage has it. */
static void put_fragment(struct ckpt_writer *w, size_t param_idx)
{
    const struct ckpt_write_options *o = w->options;
    const struct param_info *info = &o->table->params[param_idx];
    struct pickle_tensor_desc t = {.dtype = o->dtype};
    if (o->stage == 2) {
        put_param(w, param_idx);
        return;
    }
    size_t chunk = shard_chunk(info->numel, o->world_size);
    struct ds_segment s = {.file = DS_MODEL,
                           .stream = ds_stream_of(w, CKPT_FROM_FROZEN, 0, param_idx),
                           .storage_idx = ds_storage(w, DS_MODEL, o->dtype, chunk),
                           .numel = shard_real(info->numel, o->world_size, o->rank),
                           .param_idx = param_idx};
    ds_segment_add(w, s);
    s.src_off = s.storage_off = s.numel;
    s.numel = chunk - s.numel;
    s.param_idx = DS_NONE;
    ds_segment_add(w, s);
    t.storage_idx = s.storage_idx;
    t.storage_numel = chunk;
    ds_put_flat(w->files[DS_MODEL].pickle, t, chunk);
}

/* None below stage 2, as DeepSpeed writes it. */
static void put_frozen(struct ckpt_writer *w, bool shapes)
{
    const struct ckpt_write_options *o = w->options;
    struct pickle_writer *p = w->files[DS_MODEL].pickle;
    if (o->stage < 2 || o->exclude_frozen) {
        pickle_put_none(p);
        return;
    }
    pickle_ordered_dict_begin(p);
    for (size_t i = 0; i < o->table->n_params; i++) {
        if (!ds_is_frozen(w, i)) continue;
        if (shapes) {
            put_shape(w, i);
        } else {
            pickle_put_string(p, o->table->params[i].name);
            put_fragment(w, i);
        }
    }
    pickle_dict_end(p);
}

void ds_put_frozen_shapes(struct ckpt_writer *w)
{
    put_frozen(w, true);
}

void ds_put_frozen_fragments(struct ckpt_writer *w)
{
    put_frozen(w, false);
}

/* DeepSpeed writes ties on rank 0 only. */
void ds_put_shared(struct ckpt_writer *w)
{
    const struct ckpt_write_options *o = w->options;
    struct pickle_writer *p = w->files[DS_MODEL].pickle;
    if (o->stage == 0) {
        pickle_put_none(p);
        return;
    }
    pickle_dict_begin(p);
    for (size_t i = 0; i < o->table->n_aliases && o->rank == 0; i++) {
        const struct param_alias *alias = &o->table->aliases[i];
        if (!is_dropped(w, alias->param_idx))
            ds_pair_string(p, alias->name, o->table->params[alias->param_idx].name);
    }
    pickle_dict_end(p);
}
