/* The part of an optimizer's dictionary that torch makes: param_groups and states. What differs by
 * class is data in the options (settings, states, the kind of step; docs/checkpoint-format.md has
 * the table), so this code has no case per optimizer. */
#include "checkpoint/write/ds_write_impl.h"

/* ---- param_groups ---------------------------------------------------------------------------- */

static void put_pair(struct pickle_writer *p, const double value[2], bool as_list)
{
    if (as_list)
        pickle_list_begin(p);
    else
        pickle_tuple_begin(p);
    pickle_put_double(p, value[0]);
    pickle_put_double(p, value[1]);
    if (as_list)
        pickle_list_end(p);
    else
        pickle_tuple_end(p);
}

/* Tensors that the optimizer sees in a group: sub-groups at stage 3, one flat tensor at stages 1
 * and 2 and behind the fused wrapper, else parameters. */
size_t ds_n_optim_params(const struct ckpt_writer *w, size_t group)
{
    const struct ckpt_group *g = &w->options->groups[group];
    if (w->options->stage == 3) return g->shard->n_sub_groups;
    return ds_is_plain(w) ? g->flat->n_params : 1;
}

/* Parameters are numbered on through the groups. */
static void put_param_groups(struct ckpt_writer *w, struct pickle_writer *p)
{
    const struct ckpt_write_options *o = w->options;
    int64_t running = 0;
    pickle_list_begin(p);
    for (size_t g = 0; g < o->n_groups; g++) {
        pickle_dict_begin(p);
        for (size_t i = 0; i < o->groups[g].n_settings; i++) {
            pickle_put_string(p, o->groups[g].settings[i].name);
            switch (o->groups[g].settings[i].kind) {
            case CKPT_NUMBER: pickle_put_double(p, o->groups[g].settings[i].value[0]); break;
            case CKPT_INT: pickle_put_int(p, (int64_t)o->groups[g].settings[i].value[0]); break;
            case CKPT_BOOL: pickle_put_bool(p, o->groups[g].settings[i].value[0] != 0.0); break;
            case CKPT_PAIR: put_pair(p, o->groups[g].settings[i].value, false); break;
            case CKPT_PAIR_LIST: put_pair(p, o->groups[g].settings[i].value, true); break;
            case CKPT_NONE: pickle_put_none(p); break;
            }
        }
        pickle_put_string(p, "params");
        pickle_list_begin(p);
        for (size_t i = 0; i < ds_n_optim_params(w, g); i++) pickle_put_int(p, running++);
        pickle_list_end(p);
        pickle_dict_end(p);
    }
    pickle_list_end(p);
}

/* ---- states ---------------------------------------------------------------------------------- */

/* A step that is a tensor gets a storage of one element, whose value is known now and written when
 * the file is created. */
static void put_step(struct ckpt_writer *w, int file, const struct ckpt_group *g)
{
    struct ds_file *f = &w->files[file];
    if (g->no_step) return;
    pickle_put_string(f->pickle, "step");
    if (!g->step_is_tensor) {
        pickle_put_int(f->pickle, g->step);
        return;
    }
    size_t storage = ds_storage(w, file, DTYPE_F32, 1);
    const struct pickle_tensor_desc t = {
        .dtype = DTYPE_F32, .storage_idx = storage, .storage_numel = 1};
    pickle_put_tensor(f->pickle, &t);
    ds_known(w, file, (struct ds_known){.storage_idx = storage, .step = (float)g->step});
}

/* Where the elements are that the optimizer sees as its idx-th tensor of the group. */
static void add_segments(struct ckpt_writer *w, int file, size_t stream, size_t storage,
                         size_t group, size_t idx)
{
    const struct ckpt_write_options *o = w->options;
    const struct ckpt_group *g = &o->groups[group];
    if (o->stage == 3) {
        size_t src_off = 0;
        for (size_t s = 0; s < idx; s++) src_off += g->shard->sub_groups[s].numel;
        ds_shard_segments(w, file, stream, storage, g->shard, idx, src_off);
    } else if (o->stage > 0) {
        size_t begin = (size_t)o->rank * g->flat->partition;
        ds_flat_segments(w, file, stream, storage, g->flat, begin, begin + g->flat->partition);
    } else if (!ds_is_plain(w)) {
        ds_flat_segments(w, file, stream, storage, g->flat, 0, g->flat->numel);
    } else {
        const struct flat_param *p = &g->flat->params[idx];
        ds_segment_add(w, (struct ds_segment){.file = file,
                                              .stream = stream,
                                              .storage_idx = storage,
                                              .src_off = p->off,
                                              .numel = p->numel,
                                              .param_idx = p->param_idx});
    }
}

/* With padding: the storage has it even where the tensor hides it. */
static size_t optim_numel(const struct ckpt_writer *w, size_t group, size_t idx)
{
    const struct ckpt_group *g = &w->options->groups[group];
    if (w->options->stage == 3) return g->shard->sub_groups[idx].numel;
    if (w->options->stage > 0) return g->flat->partition;
    return ds_is_plain(w) ? g->flat->params[idx].numel : g->flat->numel;
}

void ds_put_optim_tensor(struct ckpt_writer *w, const struct ds_optim_tensor *a)
{
    size_t numel = optim_numel(w, a->group, a->idx);
    size_t storage = ds_storage(w, a->file, a->dtype, numel);
    struct pickle_tensor_desc t = {.dtype = a->dtype,
                                   .storage_idx = storage,
                                   .storage_numel = numel,
                                   .requires_grad = a->requires_grad,
                                   .ds_id = a->ds_id};
    add_segments(w, a->file, a->stream, storage, a->group, a->idx);
    if (!ds_is_plain(w)) {
        ds_put_flat(w->files[a->file].pickle, t, numel - a->n_hidden);
        return;
    }
    const struct ckpt_write_options *o = w->options;
    size_t param_idx = o->groups[a->group].flat->params[a->idx].param_idx;
    t.ndim = o->table->params[param_idx].ndim;
    t.shape = o->table->params[param_idx].shape;
    pickle_put_tensor(w->files[a->file].pickle, &t);
}

/* The 1-bit errors come after the first two states, as in DeepSpeed's classes. */
static void put_states_of(struct ckpt_writer *w, int file, size_t group, size_t idx)
{
    const struct ckpt_write_options *o = w->options;
    const struct ckpt_group *g = &o->groups[group];
    struct pickle_writer *p = w->files[file].pickle;
    pickle_dict_begin(p);
    put_step(w, file, g);
    ds_put_onebit_ratios(w, file, group, idx);
    for (size_t i = 0; i < g->n_states; i++) {
        if (i == 2) ds_put_onebit_errors(w, file, group, idx);
        const struct ds_optim_tensor a = {.file = file,
                                          .stream = ds_stream_of(w, CKPT_FROM_STATE, group, i),
                                          .group = group,
                                          .idx = idx,
                                          .dtype = o->state_dtype};
        pickle_put_string(p, g->states[i]);
        ds_put_optim_tensor(w, &a);
    }
    if (g->n_states <= 2) ds_put_onebit_errors(w, file, group, idx);
    ds_put_onebit_scaling(w, file, group, idx);
    pickle_dict_end(p);
}

/* torch counts parameters in the group's own order; with round_robin_gradients the flat buffer has
 * another. Position k is looked at first, since the two mostly agree. */
size_t ds_flat_position(const struct flat_group *flat, size_t k)
{
    size_t pos = k;
    if (flat->order[k] != k)
        for (pos = 0; flat->order[pos] != k;) pos++;
    return pos;
}

void ds_put_torch(struct ckpt_writer *w, int file)
{
    const struct ckpt_write_options *o = w->options;
    struct pickle_writer *p = w->files[file].pickle;
    int64_t running = 0;
    pickle_dict_begin(p);
    pickle_put_string(p, "state");
    pickle_dict_begin(p);
    for (size_t g = 0; g < o->n_groups; g++) {
        /* Without states torch has nothing to save; ZeRO asks for it and gets an empty one. */
        bool has_states = o->groups[g].step > 0 && (o->groups[g].n_states > 0 || o->stage > 0);
        for (size_t i = 0; i < ds_n_optim_params(w, g); i++, running++) {
            if (!has_states) continue;
            pickle_put_int(p, running);
            put_states_of(w, file, g, ds_is_plain(w) ? ds_flat_position(o->groups[g].flat, i) : i);
        }
    }
    pickle_dict_end(p);
    pickle_put_string(p, "param_groups");
    put_param_groups(w, p);
    pickle_dict_end(p);
}
