/* Universal folders (docs/deepspeed-behaviour.md, "Universal folders"):
 * zero/NAME/{fp32,exp_avg,…}.pt for every trained parameter, zero/optimizer_state.pt, and copies of
 * the model files, which hold what else there is: shapes, ties, buffers, frozen parameters.
 *
 * Folders converted from stages 1 and 2 wrap whole tensors into dictionaries and give every
 * parameter its step; those from stage 3 have bare flat tensors, and the steps in
 * optimizer_state.pt. What the first kind has under names that are not trained (aliases, frozen
 * ones, buffers) are copies of `module`, widened: not read. */
#include "checkpoint/read/checkpoint_impl.h"
#include "formats/file_io.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SUFFIX ".pt"

struct universal {
    struct ckpt *ck;
    bool is_stage3;
    struct opt_view view; /* of stage 3: groups, steps; of stages 1-2: groups only */
};

/* ---- one tensor's file ----------------------------------------------------------------------- */

static cz_status open_file(struct ckpt *ck, const char *param, const char *file, uint32_t *file_idx,
                           struct pt **pt)
{
    size_t n = strlen(param) + strlen(file) + sizeof "zero//";
    char *name = malloc(n);
    if (name) snprintf(name, n, "zero/%s/%s", param, file);
    if (!name) return err_set(CZ_NOMEM, 0, "out of memory");
    cz_status st = ckpt_pt_add(ck, name, file_idx, pt);
    free(name);
    return st;
}

/* A strided tensor is read through its open file, which then stays open until the checkpoint is
 * closed. */
static cz_status keep(struct ckpt *ck, struct pt *pt)
{
    struct pt **kept = realloc(ck->kept, (ck->n_kept + 1) * sizeof(struct pt *));
    if (!kept) return err_set(CZ_NOMEM, 0, "out of memory");
    ck->kept = kept;
    kept[ck->n_kept++] = pt;
    return CZ_OK;
}

/* Megatron's padded vocabulary is saved without its padding, so its rows differ from param_shapes
 * and from `module`. */
static cz_status fit_vocabulary(struct ckpt_entry *e, const struct pickle_node *root,
                                const struct pickle_tensor *t, const char *path)
{
    bool is_vocabulary = false;
    pickle_to_bool(pickle_get(root, "vocab_tensor"), &is_vocabulary);
    if (!is_vocabulary || t->numel == e->tensor.numel) return CZ_OK;
    e->has_shape = false;
    e->module.kind = PLACE_NONE; /* it has the padding */
    return ckpt_entry_set_shape(e, t->shape, t->ndim, path, "param");
}

/* Earlier converters of stage 3 left up to one element of padding per rank at the end. */
static bool length_fits(const struct universal *u, const struct ckpt_entry *e,
                        const struct pickle_tensor *t)
{
    uint64_t extra = u->is_stage3 ? (uint64_t)u->ck->info.world_size : 0;
    return t->numel >= e->tensor.numel && t->numel - e->tensor.numel <= extra;
}

static cz_status place_tensor(struct universal *u, size_t idx, const struct pt *pt,
                              uint32_t file_idx, struct ckpt_place *place)
{
    struct ckpt_entry *e = &u->ck->entries[idx];
    const struct pickle_node *root = pt_root(pt), *node = root;
    if (root->kind == PICKLE_DICT) node = pickle_get(root, "param");
    if (!pickle_is(node, PICKLE_TENSOR))
        return err_set(CZ_CORRUPT, 0, "%s: contains no tensor", pt_path(pt));
    if (root->kind == PICKLE_DICT) TRY(fit_vocabulary(e, root, node->tensor, pt_path(pt)));
    if (!length_fits(u, e, node->tensor))
        return err_set(CZ_CORRUPT, 0, "%s: has %llu elements; '%s' has %llu", pt_path(pt),
                       (unsigned long long)node->tensor->numel, e->name,
                       (unsigned long long)e->tensor.numel);
    *place = ckpt_place_of(pt, file_idx, node->tensor);
    return CZ_OK;
}

static cz_status read_tensor(struct universal *u, size_t idx, const char *file,
                             struct ckpt_place *place)
{
    struct pt *pt;
    uint32_t file_idx;
    TRY(open_file(u->ck, u->ck->entries[idx].name, file, &file_idx, &pt));
    cz_status st = place_tensor(u, idx, pt, file_idx, place);
    if (st == CZ_OK && place->kind == PLACE_STRIDED) {
        st = keep(u->ck, pt);
        if (st == CZ_OK) pt = NULL;
    }
    pt_close(pt);
    return st;
}

/* ---- one parameter's folder ------------------------------------------------------------------ */

/* A state's file, such as exp_avg.pt. Masters and steps have names of their own in the same
 * folder. */
static cz_status read_state(struct universal *u, size_t idx, const char *file)
{
    char name[256];
    size_t state_idx, n = strlen(file) - strlen(SUFFIX);
    if (strcmp(file, "fp32.pt") == 0) return CZ_OK;
    if (strcmp(file, "step.pt") == 0) {
        struct pt *pt;
        uint32_t file_idx;
        const struct ckpt_entry *e = &u->ck->entries[idx];
        TRY(open_file(u->ck, e->name, file, &file_idx, &pt));
        cz_status st = ckpt_step_take(u->ck, pt, e->tensor.group, pt_root(pt));
        pt_close(pt);
        return st;
    }
    if (n >= sizeof name) return CZ_OK; /* no name of a state */
    memcpy(name, file, n);
    name[n] = '\0';
    if (opt_is_scalar_state(name)) return CZ_OK;
    TRY(ckpt_state_idx(u->ck, name, &state_idx));
    return read_tensor(u, idx, file, &u->ck->entries[idx].states[state_idx]);
}

static cz_status list_folder(const struct ckpt *ck, const char *param, struct ckpt_list *list)
{
    char *name = file_join("zero", param);
    if (!name) return err_set(CZ_NOMEM, 0, "out of memory");
    cz_status st = ckpt_list_files_in(ck->tag_dir, name, SUFFIX, list);
    free(name);
    return st;
}

/* A name becomes that of a folder, so one with '/' is refused. */
static cz_status read_param(struct universal *u, const struct pickle_pair *pair, size_t group)
{
    struct ckpt *ck = u->ck;
    const char *name = pickle_to_string(pair->key);
    size_t idx;
    if (!name || strchr(name, '/'))
        return err_set(CZ_CORRUPT, 0, "%s: param_shapes: a key is not a name", pt_path(ck->model));
    TRY(ckpt_entry_want(ck, name, pair->value, "param_shapes", &idx));
    struct ckpt_place master;
    TRY(read_tensor(u, idx, "fp32.pt", &master));
    TRY(ckpt_entry_train(ck, idx, group, master));
    if (ck->weights_only) return CZ_OK;
    struct ckpt_list list;
    TRY(list_folder(ck, ck->entries[idx].name, &list));
    cz_status st = CZ_OK;
    for (size_t i = 0; i < list.n && st == CZ_OK; i++) st = read_state(u, idx, list.names[i]);
    ckpt_list_free(&list);
    return st;
}

/* ---- optimizer_state.pt ---------------------------------------------------------------------- */

/* Weights can be read without it. The number of ranks only matters for the model files' chunks of
 * stage 3. */
static cz_status read_optimizer(struct universal *u)
{
    struct ckpt *ck = u->ck;
    uint32_t file_idx;
    cz_status st = ckpt_pt_add(ck, "zero/optimizer_state.pt", &file_idx, &ck->optim);
    if (st == CZ_NOTFOUND && ck->weights_only)
        err_clear();
    else if (st != CZ_OK)
        return st;
    if (ck->optim) ck->optim_root = pt_root(ck->optim);
    const struct pickle_node *inner = pickle_get(ck->optim_root, "optimizer_state_dict");
    const struct pickle_node *groups = pickle_get(ck->optim_root, "param_groups");
    u->view = opt_view_of(inner);
    if (pickle_is(groups, PICKLE_LIST)) u->view.groups = groups;
    if (u->view.groups && u->view.groups->n == 0) u->view.groups = NULL;
    const struct pickle_node *node = pickle_get(ck->optim_root, "partition_count");
    int64_t W = 0;
    if (pickle_is(node, PICKLE_LIST)) node = node->n > 0 ? node->items[0] : NULL;
    if (!pickle_to_int(node, &W)) pickle_to_int(pickle_get(ck->model_root, "dp_world_size"), &W);
    ck->info.world_size = W > 0 && W < INT32_MAX ? (int)W : 1;
    ck->info.stage = u->is_stage3 ? 3 : 2;
    size_t n_shapes = ckpt_shapes_count(pickle_get(ck->model_root, "param_shapes"));
    size_t n_groups = u->view.groups ? u->view.groups->n : 1;
    return ckpt_groups_set(ck, u->is_stage3 ? n_groups : n_shapes, u->view.groups);
}

/* ---- what the converter gets wrong ----------------------------------------------------------- */

/* With round_robin_gradients DeepSpeed's converter takes elements of other parameters, silently: a
 * fragment's offset is not where its elements are. The weights of `module` reveal it, since each
 * must be its master rounded. */
static cz_status check_round_robin(const struct universal *u)
{
    const struct ckpt *ck = u->ck;
    const struct pickle_node *zero =
        pickle_get(pickle_get(ck->model_root, "ds_config"), "zero_optimization");
    bool is_round_robin = false;
    pickle_to_bool(pickle_get(zero, "round_robin_gradients"), &is_round_robin);
    if (u->is_stage3 || !is_round_robin) return CZ_OK;
    for (size_t i = 0; i < ck->n_entries; i++) {
        bool yes = true;
        if (ck->entries[i].has_kind && ck->entries[i].tensor.kind == CKPT_TRAINED)
            TRY(ckpt_rounds_to_module(ck, i, &yes));
        if (!yes)
            return err_set(CZ_CORRUPT, 0,
                           "%s: zero/%s is not the model's weight: DeepSpeed's converter scrambles "
                           "checkpoints with round_robin_gradients; the folder that it was made "
                           "from can be loaded without conversion",
                           ck->tag_dir, ck->entries[i].name);
    }
    return CZ_OK;
}

/* ---- everything ------------------------------------------------------------------------------ */

/* The converter copies the model files of all ranks; users may have deleted some. */
static bool all_models_there(const struct ckpt *ck, const struct ckpt_folder *folder)
{
    size_t W = (size_t)ck->info.world_size;
    return folder->n_models >= W && folder->models[W - 1].rank == (int)W - 1;
}

/* group_of: the group of each of stage 3's dictionaries; at stages 1 and 2 each is a group. */
static cz_status read_params(struct universal *u, size_t *group_of)
{
    const struct pickle_node *shapes = pickle_get(u->ck->model_root, "param_shapes");
    const size_t n = ckpt_shapes_count(shapes);
    if (u->is_stage3) opt_groups_of(&u->view, n, group_of);
    for (size_t d = 0; d < n; d++) {
        const struct pickle_node *dict = ckpt_shapes_at(shapes, d);
        size_t group = u->is_stage3 ? group_of[d] : d;
        if (!pickle_is(dict, PICKLE_DICT))
            return err_set(CZ_CORRUPT, 0, "%s: param_shapes: an entry is not a dictionary",
                           pt_path(u->ck->model));
        for (size_t i = 0; i < dict->n_pairs; i++) TRY(read_param(u, &dict->pairs[i], group));
        if (u->is_stage3 && !u->ck->weights_only)
            TRY(ckpt_step_take(u->ck, u->ck->optim, group, opt_step(&u->view, group, (int64_t)d)));
    }
    return CZ_OK;
}

/* The check of values comes when all parameters have places, and before frozen ones are added. */
cz_status ckpt_universal_read(struct ckpt *ck, const struct ckpt_folder *folder, uint32_t file_idx)
{
    struct universal u = {.ck = ck, .is_stage3 = !folder->whole_model};
    TRY(read_optimizer(&u));
    size_t n_dicts = ckpt_shapes_count(pickle_get(ck->model_root, "param_shapes"));
    size_t *group_of = calloc(n_dicts + 1, sizeof *group_of);
    if (!group_of) return err_set(CZ_NOMEM, 0, "out of memory");
    cz_status st = read_params(&u, group_of);
    free(group_of);
    TRY(st);
    TRY(check_round_robin(&u));
    if (!u.is_stage3) return ckpt_frozen_whole(ck, file_idx);
    if (all_models_there(ck, folder)) return ckpt_frozen_chunks(ck, folder, file_idx);
    return ckpt_frozen_rest(ck, file_idx);
}
