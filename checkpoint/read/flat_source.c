/* Stages 1 and 2: a group's parameters are concatenated into a flat tensor, of which every rank has
 * an equal partition (docs/deepspeed-behaviour.md, "Flat buffers"). param_shapes has their true
 * order; param_slice_mappings does not when gradients go round-robin, so it is only compared.
 *
 * Rank 0's file decides the plan: which groups, which states, where each parameter begins. Every
 * other rank's file must fit it.
 *
 * Legend: W ranks; L elements up to the end of the last parameter; a partition is L rounded up to a
 * multiple of 2·W, divided by W. */
#include "checkpoint/read/checkpoint_impl.h"

#include <stdlib.h>
#include <string.h>

/* Whether the mapping's entry `at` is this parameter, with this many elements if it says so. */
static bool is_listed(const struct pickle_node *mapping, size_t at, const char *name,
                      uint64_t numel)
{
    if (at >= mapping->n_pairs) return false;
    const char *there = pickle_to_string(mapping->pairs[at].key);
    int64_t n;
    bool has_numel = pickle_to_int(pickle_attr(mapping->pairs[at].value, "numel"), &n);
    return there && strcmp(there, name) == 0 && (!has_numel || (uint64_t)n == numel);
}

/* With round_robin_gradients DeepSpeed's mappings have another order than its elements. Where
 * ds_config was saved as a path, it is not known whether that was on. Writers that leave the
 * mappings empty claim nothing. */
static bool is_trusted(const struct ckpt *ck, const struct pickle_node *mapping)
{
    const struct pickle_node *config = pickle_get(ck->model_root, "ds_config");
    const struct pickle_node *zero = pickle_get(config, "zero_optimization");
    bool is_round_robin = false;
    pickle_to_bool(pickle_get(zero, "round_robin_gradients"), &is_round_robin);
    return pickle_is(config, PICKLE_DICT) && mapping->n_pairs > 0 && !is_round_robin;
}

/* Ranks' files look alike: sizes are equal, and a renamed file would be read without an error as
 * another rank's partition. param_slice_mappings names the parameters in each file, so it can tell.
 * Called once the group's tensors have their places. Errors: CZ_CORRUPT. */
static cz_status ckpt_mapping_check(const struct ckpt *ck, const struct rank_file *file, size_t g,
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
        /* The part of the parameter inside this rank's partition [begin, end). */
        const uint64_t end = begin + partition;
        uint64_t first = e->master.split.shift, last = first + e->tensor.numel;
        if (first < begin) first = begin;
        if (last > end) last = end;
        uint64_t numel = first < last ? last - first : 0;
        if (numel == 0) continue;
        if (!is_listed(mapping, at++, name, numel))
            return err_set(
                CZ_CORRUPT, 0,
                "%s: param group %zu: this is not rank %d's file: its param_slice_mappings lack a "
                "piece of '%s'",
                pt_path(file->pt), g, file->rank, name);
    }
    if (at == mapping->n_pairs) return CZ_OK;
    const char *extra = pickle_to_string(mapping->pairs[at].key);
    return err_set(
        CZ_CORRUPT, 0,
        "%s: param group %zu: this is not rank %d's file: its param_slice_mappings list a "
        "piece of '%s'",
        pt_path(file->pt), g, file->rank, extra ? extra : "?");
}

/* ---- stages 1 and 2 -------------------------------------------------------------------------- */

#define START_ALIGN 2 /* DeepSpeed's nccl_start_alignment_factor */

struct flat_plan {
    uint64_t numel; /* L */
    uint64_t partition;
    int64_t id; /* of the group's flat parameter in the optimizer's state */
    size_t master_vec, state_vecs[CKPT_STATES_MAX];
};

struct flat_read {
    struct flat_plan *groups;
    size_t n_groups;
    bool has_paddings; /* group_paddings are each rank's own (not BF16_Optimizer's) */
};

#define NO_VEC SIZE_MAX

/* ---- rank 0: the plan ------------------------------------------------------------------------ */

/* Elements that are skipped after parameter i of group g (0.19.8's parameter_alignment). */
static cz_status align_padding(const struct rank_file *file, size_t g, size_t i, size_t n_params,
                               uint64_t *out)
{
    const struct pickle_node *groups = pickle_get(file->head.state, "param_alignment_paddings");
    *out = 0;
    if (!groups || groups->kind == PICKLE_NONE) return CZ_OK;
    const struct pickle_node *pads =
        pickle_is(groups, PICKLE_LIST) && g < groups->n ? groups->items[g] : NULL;
    int64_t pad;
    if (!pickle_is(pads, PICKLE_LIST) || pads->n != n_params ||
        !pickle_to_int(pads->items[i], &pad) || pad < 0 || pad > INT32_MAX)
        return err_set(CZ_CORRUPT, 0,
                       "%s: param_alignment_paddings of group %zu do not fit its %zu parameters",
                       pt_path(file->pt), g, n_params);
    *out = (uint64_t)pad;
    return CZ_OK;
}

/* Assigns the parameters of group g their places in its flat tensor. Sums are checked for overflow,
 * since shapes come from a file. */
static cz_status plan_params(struct ckpt *ck, const struct rank_file *file, size_t g,
                             struct flat_plan *plan)
{
    const struct pickle_node *shapes =
        ckpt_shapes_at(pickle_get(ck->model_root, "param_shapes"), g);
    if (!pickle_is(shapes, PICKLE_DICT))
        return err_set(CZ_CORRUPT, 0, "%s: param_shapes: group %zu is not a dictionary",
                       pt_path(ck->model), g);
    uint64_t off = 0;
    for (size_t i = 0; i < shapes->n_pairs; i++) {
        const char *name = pickle_to_string(shapes->pairs[i].key);
        size_t idx;
        uint64_t pad;
        if (!name)
            return err_set(CZ_CORRUPT, 0, "%s: param_shapes: a key is not a name",
                           pt_path(ck->model));
        TRY(ckpt_entry_want(ck, name, shapes->pairs[i].value, "param_shapes", &idx));
        struct ckpt_place place = {.kind = PLACE_SPLIT};
        place.split.vec_idx = plan->master_vec;
        place.split.shift = off;
        TRY(ckpt_entry_train(ck, idx, g, place));
        plan->numel = off + ck->entries[idx].tensor.numel;
        TRY(align_padding(file, g, i, shapes->n_pairs, &pad));
        if (__builtin_add_overflow(plan->numel, pad, &off) || off > INT64_MAX)
            return err_set(CZ_CORRUPT, 0, "%s: param_shapes: group %zu is too large",
                           pt_path(ck->model), g);
    }
    plan->numel = off; /* DeepSpeed counts a padding after the last one, if there were one */
    return CZ_OK;
}

/* An integer of a list, or `fallback` if the list is absent or too short: old versions lack these
 * lists. */
static int64_t list_int(const struct pickle_node *list, size_t idx, int64_t fallback)
{
    int64_t value;
    bool there = pickle_is(list, PICKLE_LIST) && idx < list->n;
    return there && pickle_to_int(list->items[idx], &value) ? value : fallback;
}

static struct opt_view states_of(const struct rank_file *file)
{
    return opt_view_of(pickle_get(file->head.state, "base_optimizer_state"));
}

/* BF16_Optimizer's files have no zero_stage and record paddings for the last rank only, so theirs
 * are not compared (docs/deepspeed-behaviour.md, "Flat buffers"). */
static cz_status plan_groups(struct ckpt *ck, const struct rank_file *file, struct flat_read *read)
{
    const struct opt_view view = states_of(file);
    read->n_groups = ckpt_shapes_count(pickle_get(ck->model_root, "param_shapes"));
    read->has_paddings = file->head.stage >= 0;
    read->groups = calloc(read->n_groups + 1, sizeof *read->groups);
    if (!read->groups) return err_set(CZ_NOMEM, 0, "out of memory");
    TRY(ckpt_groups_set(ck, read->n_groups, view.groups));
    for (size_t g = 0; g < read->n_groups; g++) {
        for (size_t i = 0; i < CKPT_STATES_MAX; i++) read->groups[g].state_vecs[i] = NO_VEC;
        TRY(ckpt_vec_add(ck, &read->groups[g].master_vec));
        TRY(plan_params(ck, file, g, &read->groups[g]));
        uint64_t unit = START_ALIGN * (uint64_t)ck->info.world_size;
        read->groups[g].partition = (read->groups[g].numel + unit - 1) / unit * START_ALIGN;
        const struct pickle_node *ids =
            view.groups && g < view.groups->n ? pickle_get(view.groups->items[g], "params") : NULL;
        read->groups[g].id = list_int(ids, 0, (int64_t)g);
    }
    return CZ_OK;
}

/* ---- every rank: masters --------------------------------------------------------------------- */

/* Elements of a rank's partition without the padding at its end. The last ranks may hold padding
 * alone. */
static uint64_t lean_of(const struct flat_plan *plan, int rank)
{
    uint64_t begin = (uint64_t)rank * plan->partition;
    if (begin >= plan->numel) return 0;
    uint64_t left = plan->numel - begin;
    return left < plan->partition ? left : plan->partition;
}

/* Masters come without padding, states with it, and BF16_Optimizer's masters with it too
 * ("Optimizer files"), so both lengths are accepted everywhere. */
static bool length_fits(const struct flat_plan *plan, int rank, const struct pickle_tensor *t)
{
    return t->ndim == 1 && (t->numel == plan->partition || t->numel == lean_of(plan, rank));
}

static cz_status wrong_length(const struct rank_file *file, size_t g, const char *what,
                              const struct pickle_tensor *t, const struct flat_plan *plan)
{
    return err_set(
        CZ_CORRUPT, 0,
        "%s: param group %zu: %s has %llu elements; by param_shapes rank %d has %llu, or "
        "%llu with padding",
        pt_path(file->pt), g, what, (unsigned long long)t->numel, file->rank,
        (unsigned long long)lean_of(plan, file->rank), (unsigned long long)plan->partition);
}

static cz_status check_padding(const struct rank_file *file, size_t g, const struct flat_plan *plan)
{
    const struct pickle_node *paddings = pickle_get(file->head.state, "group_paddings");
    int64_t want = (int64_t)(plan->partition - lean_of(plan, file->rank));
    int64_t have = list_int(paddings, g, want);
    if (have == want) return CZ_OK;
    return err_set(
        CZ_CORRUPT, 0,
        "%s: param group %zu: group_paddings says %lld elements, but by the shapes rank %d "
        "has %lld",
        pt_path(file->pt), g, (long long)have, file->rank, (long long)want);
}

static cz_status take_masters(struct ckpt *ck, const struct rank_file *file,
                              const struct flat_read *read)
{
    const struct pickle_node *masters =
        pickle_get(file->head.state, "single_partition_of_fp32_groups");
    if (!pickle_is(masters, PICKLE_LIST) || masters->n != read->n_groups)
        return err_set(CZ_CORRUPT, 0,
                       "%s: single_partition_of_fp32_groups has %u groups, param_shapes has %zu",
                       pt_path(file->pt), masters ? masters->n : 0, read->n_groups);
    for (size_t g = 0; g < read->n_groups; g++) {
        const struct flat_plan *plan = &read->groups[g];
        if (!pickle_is(masters->items[g], PICKLE_TENSOR))
            return err_set(CZ_CORRUPT, 0, "%s: param group %zu: the master is not a tensor",
                           pt_path(file->pt), g);
        const struct pickle_tensor *t = masters->items[g]->tensor;
        if (!length_fits(plan, file->rank, t)) return wrong_length(file, g, "master", t, plan);
        if (read->has_paddings) TRY(check_padding(file, g, plan));
        TRY(ckpt_mapping_check(ck, file, g, plan->partition));
        TRY(ckpt_vec_set(ck, plan->master_vec, file->rank, file->file_idx, file->pt, t));
    }
    return CZ_OK;
}

/* ---- every rank: states ---------------------------------------------------------------------- */

/* Every rank must have the states that rank 0 has: a rank without one would leave a hole in the
 * tensor. */
static cz_status take_state(struct ckpt *ck, const struct rank_file *file, size_t g,
                            const struct flat_plan *plan, const struct pickle_node *state,
                            size_t state_idx)
{
    const char *name = ck->states[state_idx];
    const struct pickle_node *value = pickle_get(state, name);
    if (!pickle_is(value, PICKLE_TENSOR))
        return err_set(CZ_CORRUPT, 0, "%s: param group %zu has no state '%s', which rank 0 has",
                       pt_path(file->pt), g, name);
    if (!length_fits(plan, file->rank, value->tensor))
        return wrong_length(file, g, name, value->tensor, plan);
    return ckpt_vec_set(ck, plan->state_vecs[state_idx], file->rank, file->file_idx, file->pt,
                        value->tensor);
}

static cz_status take_states(struct ckpt *ck, const struct rank_file *file, struct flat_read *read)
{
    const struct opt_view view = states_of(file);
    for (size_t g = 0; g < read->n_groups; g++) {
        struct flat_plan *plan = &read->groups[g];
        const struct pickle_node *state = opt_state(&view, plan->id);
        if (file->rank == 0) {
            /* A state with one element per weight has the partition's length. Others, such as
             * counters, are left to the engine. */
            for (size_t i = 0; state && i < state->n_pairs; i++) {
                const char *name = pickle_to_string(state->pairs[i].key);
                const struct pickle_node *value = state->pairs[i].value;
                if (!name || opt_is_scalar_state(name) || !pickle_is(value, PICKLE_TENSOR))
                    continue;
                if (!length_fits(plan, 0, value->tensor)) continue;
                size_t state_idx;
                TRY(ckpt_state_idx(ck, name, &state_idx));
                TRY(ckpt_vec_add(ck, &plan->state_vecs[state_idx]));
            }
        }
        for (size_t i = 0; i < ck->info.n_states; i++)
            if (plan->state_vecs[i] != NO_VEC) TRY(take_state(ck, file, g, plan, state, i));
        /* Elastic files have the group's step beside its state. FusedAdam and FusedLion count in
         * the state alone, so their group says 0 forever. */
        const struct pickle_node *step = opt_step(&view, g, plan->id);
        if (!step) step = pickle_get(file->head.state, "base_optimizer_state_step");
        TRY(ckpt_step_take(ck, file->pt, g, step));
    }
    return CZ_OK;
}

/* Called for rank 0 first (ckpt_ranks_read), whose file makes the plan. */
static cz_status take_rank(struct ckpt *ck, const struct rank_file *file, void *user)
{
    struct flat_read *read = user;
    if (file->head.stage > 2)
        return err_set(CZ_CORRUPT, 0, "%s: is of stage %lld, but %s of stage 1 or 2",
                       pt_path(file->pt), (long long)file->head.stage, pt_path(ck->model));
    if (file->rank == 0) TRY(plan_groups(ck, file, read));
    ck->info.stage = file->head.stage < 1 ? 1 : (int)file->head.stage;
    TRY(take_masters(ck, file, read));
    return ck->weights_only ? CZ_OK : take_states(ck, file, read);
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* States are laid out as the masters are, in flat tensors of their own. */
static void bind_tensor(const struct ckpt *ck, const struct flat_plan *plan, struct ckpt_entry *e)
{
    e->master.dtype = ck->vecs[plan->master_vec].dtype;
    e->master.split.part = plan->partition;
    for (size_t i = 0; i < ck->info.n_states; i++) {
        if (plan->state_vecs[i] == NO_VEC) continue;
        e->states[i] = e->master;
        e->states[i].dtype = ck->vecs[plan->state_vecs[i]].dtype;
        e->states[i].split.vec_idx = plan->state_vecs[i];
    }
}

/* Frozen parameters are not in the flat tensors; they are read from the model file last. */
cz_status ckpt_flat_read(struct ckpt *ck, const struct ckpt_folder *folder, uint32_t file_idx)
{
    struct flat_read read = {0};
    cz_status st = ckpt_ranks_read(ck, folder, take_rank, &read);
    for (size_t i = 0; i < ck->n_entries && st == CZ_OK; i++) {
        struct ckpt_entry *e = &ck->entries[i];
        bool trained = e->has_kind && e->tensor.kind == CKPT_TRAINED;
        if (trained) bind_tensor(ck, &read.groups[e->tensor.group], e);
    }
    free(read.groups);
    if (st == CZ_OK) st = ckpt_frozen_whole(ck, file_idx);
    return st;
}
