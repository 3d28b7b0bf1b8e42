/* Stage 3: every parameter is split on its own, rank r holding chunk r of W; a sub-group's chunks
 * are concatenated in one flat tensor per rank (docs/deepspeed-behaviour.md, "Partitions of stage
 * 3"). The end of a parameter's last chunk is padding of arbitrary content.
 *
 * Legend: W ranks; a chunk is ceil(numel / W) elements. */
#include "checkpoint/read/checkpoint_impl.h"
#include "layout/shard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NO_VEC SIZE_MAX

/* Made of rank 0's file, and every other rank's file must have the same lengths. */
struct shard_plan { /* of a sub-group */
    uint64_t numel; /* sum of chunks: the length on every rank */
    size_t group, master_vec, state_vecs[CKPT_STATES_MAX];
};

struct shard_read {
    struct shard_plan *subs;
    size_t n_subs;
};

/* ---- rank 0: the plan ------------------------------------------------------------------------ */

static const struct pickle_node *flat_groups(const struct rank_file *file)
{
    return pickle_get(file->head.state, "fp32_flat_groups");
}

static struct opt_view states_of(const struct rank_file *file)
{
    return opt_view_of(pickle_get(file->head.state, "optimizer_state_dict"));
}

static cz_status check_groups(const struct rank_file *file, size_t n)
{
    const struct pickle_node *groups = flat_groups(file);
    bool good = pickle_is(groups, PICKLE_LIST) && groups->n == n;
    for (size_t s = 0; s < n && good; s++) good = pickle_is(groups->items[s], PICKLE_TENSOR);
    if (good) return CZ_OK;
    return err_set(CZ_CORRUPT, 0, "%s: fp32_flat_groups is not a list of %zu tensors",
                   pt_path(file->pt), n);
}

/* param_shapes has one dictionary per sub-group. Other writers give one for all: sub-groups are
 * then filled in turn by the lengths of their flat tensors. The place of a parameter in the flat
 * tensor is the sum of the chunks before it: the file does not say it. */
static cz_status plan_params(struct ckpt *ck, const struct rank_file *file, struct shard_read *read)
{
    const struct pickle_node *shapes = pickle_get(ck->model_root, "param_shapes");
    const struct pickle_node *groups = flat_groups(file);
    size_t n_dicts = ckpt_shapes_count(shapes), s = 0;
    bool by_dict = n_dicts == read->n_subs;
    for (size_t d = 0; d < n_dicts; d++) {
        const struct pickle_node *dict = ckpt_shapes_at(shapes, d);
        if (!pickle_is(dict, PICKLE_DICT))
            return err_set(CZ_CORRUPT, 0, "%s: param_shapes: an entry is not a dictionary",
                           pt_path(ck->model));
        if (by_dict) s = d;
        for (size_t i = 0; i < dict->n_pairs; i++) {
            while (!by_dict && s < read->n_subs &&
                   read->subs[s].numel >= groups->items[s]->tensor->numel)
                s++;
            if (s == read->n_subs)
                return err_set(CZ_CORRUPT, 0,
                               "%s: param_shapes need more than fp32_flat_groups of "
                               "%s hold",
                               pt_path(ck->model), pt_path(file->pt));
            const char *name = pickle_to_string(dict->pairs[i].key);
            size_t idx;
            if (!name)
                return err_set(CZ_CORRUPT, 0, "%s: param_shapes: a key is not a name",
                               pt_path(ck->model));
            TRY(ckpt_entry_want(ck, name, dict->pairs[i].value, "param_shapes", &idx));
            uint64_t chunk = shard_chunk(ck->entries[idx].tensor.numel, ck->info.world_size);
            struct ckpt_place place = {.kind = PLACE_SPLIT};
            place.split.vec_idx = read->subs[s].master_vec;
            place.split.part = chunk;
            place.split.add = read->subs[s].numel;
            if (__builtin_add_overflow(read->subs[s].numel, chunk, &read->subs[s].numel) ||
                read->subs[s].numel > INT64_MAX)
                return err_set(CZ_CORRUPT, 0, "%s: param_shapes: too large", pt_path(ck->model));
            TRY(ckpt_entry_train(ck, idx, read->subs[s].group, place));
        }
    }
    return CZ_OK;
}

/* A sub-group's number is its id in the optimizer's state, by which its param group is found. */
static cz_status plan_subs(struct ckpt *ck, const struct rank_file *file, struct shard_read *read)
{
    const struct pickle_node *groups = flat_groups(file);
    const struct opt_view view = states_of(file);
    TRY(check_groups(file, groups ? groups->n : 0));
    read->n_subs = groups->n;
    read->subs = calloc(read->n_subs + 1, sizeof *read->subs);
    if (!read->subs) return err_set(CZ_NOMEM, 0, "out of memory");
    TRY(ckpt_groups_set(ck, view.groups && view.groups->n > 0 ? view.groups->n : 1,
                        view.groups && view.groups->n ? view.groups : NULL));
    size_t *group_of = calloc(read->n_subs + 1, sizeof *group_of);
    if (!group_of) return err_set(CZ_NOMEM, 0, "out of memory");
    opt_groups_of(&view, read->n_subs, group_of);
    for (size_t s = 0; s < read->n_subs; s++) read->subs[s].group = group_of[s];
    free(group_of);
    for (size_t s = 0; s < read->n_subs; s++) {
        struct shard_plan *plan = &read->subs[s];
        for (size_t i = 0; i < CKPT_STATES_MAX; i++) plan->state_vecs[i] = NO_VEC;
        TRY(ckpt_vec_add(ck, &plan->master_vec));
    }
    return plan_params(ck, file, read);
}

/* ---- every rank: flat tensors ---------------------------------------------------------------- */

/* A sub-group that was swapped to NVMe has an empty tensor here; the tag holds a copy of the swap
 * file ("Swap files"), raw numbers with alignment at the end. */
static cz_status take_swapped(struct ckpt *ck, const struct rank_file *file, const char *swap_id,
                              const char *state, uint64_t numel, size_t vec_idx)
{
    struct ckpt_vec *vec = &ck->vecs[vec_idx];
    const char *first = state ? state : "", *dash = state ? "-" : "";
    if (strchr(first, '/') || strchr(swap_id, '/'))
        return err_set(CZ_CORRUPT, 0,
                       "%s: the name of a swap file, \"%s%s%s\", is refused: it has a slash",
                       pt_path(file->pt), first, dash, swap_id);
    const size_t nbytes = strlen(first) + strlen(swap_id) + 64;
    char *name = malloc(nbytes);
    if (!name) return err_set(CZ_NOMEM, 0, "out of memory");
    snprintf(name, nbytes, "offloaded_tensors/rank%02d/%s%s%s.tensor.swp", file->rank, first, dash,
             swap_id);
    struct ckpt_spot *spot = &vec->spots[file->rank];
    cz_status st = ckpt_file_add(ck, name, &spot->file_idx);
    if (st == CZ_NOTFOUND)
        st = err_set(CZ_UNSUPPORTED, 0,
                     "%s: its tensors were swapped to NVMe, but their copy %s is not in the tag",
                     pt_path(file->pt), name);
    free(name);
    if (st != CZ_OK) return st;
    if (ckpt_file_nbytes(ck, spot->file_idx) / sizeof(float) < numel)
        return err_set(CZ_CORRUPT, 0, "%s: is too short for %llu fp32 elements",
                       ckpt_file_path(ck, spot->file_idx), (unsigned long long)numel);
    spot->off = 0;
    vec->dtype = pickle_dtype_of(DTYPE_F32);
    return CZ_OK;
}

/* Master (state NULL) or state of a sub-group: a tensor of the file, or a swapped one. */
static cz_status take_flat(struct ckpt *ck, const struct rank_file *file, size_t s,
                           const struct shard_plan *plan, const struct pickle_node *node,
                           const char *state, size_t vec_idx)
{
    const struct pickle_tensor *t = node->tensor;
    const struct pickle_node *master = flat_groups(file)->items[s];
    const char *swap_id = pickle_to_string(pickle_get(master->more->state, "ds_id"));
    if (t->numel == plan->numel)
        return ckpt_vec_set(ck, vec_idx, file->rank, file->file_idx, file->pt, t);
    if (t->numel == 0 && swap_id)
        return take_swapped(ck, file, swap_id, state, plan->numel, vec_idx);
    return err_set(CZ_CORRUPT, 0,
                   "%s: sub-group %zu: %s has %llu elements; by param_shapes it has %llu on every "
                   "rank",
                   pt_path(file->pt), s, state ? state : "the master", (unsigned long long)t->numel,
                   (unsigned long long)plan->numel);
}

/* Rank 0 decides which states there are; on other ranks a state that is missing is damage. */
static cz_status take_states(struct ckpt *ck, const struct rank_file *file, struct shard_read *read)
{
    const struct opt_view view = states_of(file);
    for (size_t s = 0; s < read->n_subs; s++) {
        struct shard_plan *plan = &read->subs[s];
        const struct pickle_node *state = opt_state(&view, (int64_t)s);
        if (file->rank == 0) {
            /* A state with one element per weight is as long as the master, also where both were
             * swapped and are empty here. */
            for (size_t i = 0; state && i < state->n_pairs; i++) {
                const char *name = pickle_to_string(state->pairs[i].key);
                const struct pickle_node *value = state->pairs[i].value;
                if (!name || opt_is_scalar_state(name) || !pickle_is(value, PICKLE_TENSOR))
                    continue;
                const struct pickle_tensor *t = value->tensor;
                bool is_swapped =
                    t->numel == 0 && (flat_groups(file)->items[s]->tensor)->numel == 0;
                if (t->ndim != 1 || (t->numel != plan->numel && !is_swapped)) continue;
                size_t state_idx;
                TRY(ckpt_state_idx(ck, name, &state_idx));
                TRY(ckpt_vec_add(ck, &plan->state_vecs[state_idx]));
            }
        }
        for (size_t i = 0; i < ck->info.n_states; i++) {
            const char *name = ck->states[i];
            if (plan->state_vecs[i] == NO_VEC) continue;
            const struct pickle_node *value = pickle_get(state, name);
            if (!pickle_is(value, PICKLE_TENSOR))
                return err_set(CZ_CORRUPT, 0,
                               "%s: sub-group %zu has no state '%s', which rank 0 has",
                               pt_path(file->pt), s, name);
            TRY(take_flat(ck, file, s, plan, value, name, plan->state_vecs[i]));
        }
        TRY(ckpt_step_take(ck, file->pt, plan->group, opt_step(&view, plan->group, (int64_t)s)));
    }
    return CZ_OK;
}

/* Files come one after the other, rank 0 first. */
static cz_status take_rank(struct ckpt *ck, const struct rank_file *file, void *user)
{
    struct shard_read *read = user;
    if (file->head.stage >= 0 && file->head.stage != 3)
        return err_set(CZ_CORRUPT, 0, "%s: is of stage %lld, but %s of stage 3", pt_path(file->pt),
                       (long long)file->head.stage, pt_path(ck->model));
    if (file->rank == 0) TRY(plan_subs(ck, file, read));
    TRY(check_groups(file, read->n_subs));
    const struct pickle_node *groups = flat_groups(file);
    for (size_t s = 0; s < read->n_subs; s++)
        TRY(take_flat(ck, file, s, &read->subs[s], groups->items[s], NULL,
                      read->subs[s].master_vec));
    return ck->weights_only ? CZ_OK : take_states(ck, file, read);
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* The sub-group that holds a tensor's master: plan_subs() made their flat tensors one after the
 * other, before any other. */
static const struct shard_plan *plan_of(const struct shard_read *read, const struct ckpt_entry *e)
{
    return &read->subs[e->master.split.vec_idx - read->subs[0].master_vec];
}

/* States are laid out as the master is, so only tensor and dtype differ. */
static void bind_tensor(const struct ckpt *ck, const struct shard_plan *plan, struct ckpt_entry *e)
{
    e->master.dtype = ck->vecs[plan->master_vec].dtype;
    for (size_t i = 0; i < ck->info.n_states; i++) {
        if (plan->state_vecs[i] == NO_VEC) continue;
        e->states[i] = e->master;
        e->states[i].dtype = ck->vecs[plan->state_vecs[i]].dtype;
        e->states[i].split.vec_idx = plan->state_vecs[i];
    }
}

/* Tensors are bound after all ranks, when the dtypes of the flat tensors are known. */
cz_status ckpt_shard_read(struct ckpt *ck, const struct ckpt_folder *folder, uint32_t file_idx)
{
    struct shard_read read = {0};
    ck->info.stage = 3;
    cz_status st = ckpt_ranks_read(ck, folder, take_rank, &read);
    for (size_t i = 0; i < ck->n_entries && st == CZ_OK; i++) {
        struct ckpt_entry *e = &ck->entries[i];
        bool trained = e->has_kind && e->tensor.kind == CKPT_TRAINED;
        if (trained) bind_tensor(ck, plan_of(&read, e), e);
    }
    free(read.subs);
    TRY(st);
    TRY(ckpt_folder_check(ck, folder->models, folder->n_models, ck->info.world_size, "model"));
    return ckpt_frozen_chunks(ck, folder, file_idx);
}
