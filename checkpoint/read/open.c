/* Opening a checkpoint: locates the tag, decides which of the four layouts it has (whole, flat,
 * sharded, universal), and lets that source fill the tables (tensors.c). After ckpt_open() a
 * checkpoint looks the same whatever its stage: tensors with places in files. */
#include "checkpoint/read/checkpoint_impl.h"
#include "checkpoint/store/manifest.h"
#include "formats/beneath.h"

#include <stdlib.h>
#include <string.h>

/* ---- opening --------------------------------------------------------------------------------- */

/* With checkpoint.load_universal DeepSpeed asks for latest_universal before latest. */
static cz_status locate(struct ckpt *ck, const struct ckpt_open_options *options)
{
    char *named = NULL;
    if (options->universal && !options->tag) {
        cz_status st = ckpt_latest_read(options->dir, true, &named);
        if (st != CZ_OK && st != CZ_NOTFOUND) return st;
        if (st == CZ_NOTFOUND) err_clear();
    }
    cz_status st = ckpt_locate(options->dir, named ? named : options->tag, &ck->tag_dir, &ck->tag);
    free(named);
    ck->info.tag_dir = ck->tag_dir;
    ck->info.tag = ck->tag;
    return st;
}

/* The 1-bit optimizers' own files belong to the checkpoint although no tensor of it is in them;
 * they are added for the count of files and bytes. */
static cz_status add_onebit_files(struct ckpt *ck)
{
    struct ckpt_list list;
    uint32_t file_idx;
    if (!ck->info.is_ours || ck->weights_only) return CZ_OK;
    TRY(ckpt_list_files(ck->tag_dir, ".pt", &list));
    cz_status st = CZ_OK;
    for (size_t i = 0; i < list.n && st == CZ_OK; i++)
        if (strncmp(list.names[i], CKPT_ONEBIT_PREFIX, strlen(CKPT_ONEBIT_PREFIX)) == 0)
            st = ckpt_file_add(ck, list.names[i], &file_idx);
    ckpt_list_free(&list);
    return st;
}

/* Stage 3 without rank 0's model file cannot be read. The other files' ranks tell how many there
 * were, so the message can name what is missing. */
static cz_status check_first_model(const struct ckpt *ck, const struct ckpt_folder *folder)
{
    if (folder->models[0].rank == 0) return CZ_OK;
    int last = folder->models[folder->n_models - 1].rank;
    int last_optim = folder->n_optims ? folder->optims[folder->n_optims - 1].rank : 0;
    int world_size = (last > last_optim ? last : last_optim) + 1;
    return ckpt_folder_check(ck, folder->models, folder->n_models, world_size, "model");
}

static cz_status read_sources(struct ckpt *ck, const struct ckpt_folder *folder, uint32_t file_idx)
{
    if (ck->info.is_universal) return ckpt_universal_read(ck, folder, file_idx);
    if (!folder->whole_model) return ckpt_shard_read(ck, folder, file_idx);
    /* param_shapes is written from stage 1 on, and tells stage 0 from stages 1 and 2. */
    if (ckpt_shapes_count(pickle_get(ck->model_root, "param_shapes")) > 0)
        return ckpt_flat_read(ck, folder, file_idx);
    return ckpt_whole_read(ck, folder, file_idx);
}

/* A manifest that belongs to the shards says what they say. One that is damaged says nothing, and
 * the shards can be read without it: fsck reports the damage. A universal checkpoint has other
 * files than those that were saved. */
static cz_status check_manifest(const struct ckpt *ck)
{
    struct manifest m;
    if (!ck->info.is_ours || ck->info.is_universal) return CZ_OK;
    cz_status st = manifest_load(ck->tag_dir, &m);
    if (st == CZ_NOMEM || st == CZ_IO) return st;
    const bool is_damaged = st != CZ_OK;
    if (is_damaged) err_clear();
    st = CZ_OK;
    if (!is_damaged && m.world_size != ck->info.world_size)
        st = err_set(CZ_CORRUPT, 0,
                     "%s/" CKPT_MANIFEST ": its world_size is %d, but the shards are those of %d "
                     "rank%s: it is the manifest of another save",
                     ck->tag_dir, m.world_size, ck->info.world_size,
                     ck->info.world_size == 1 ? "" : "s");
    else if (!is_damaged && m.stage != ck->info.stage)
        st = err_set(CZ_CORRUPT, 0,
                     "%s/" CKPT_MANIFEST ": its stage is %d, but the shards are those of stage %d: "
                     "it is the manifest of another save",
                     ck->tag_dir, m.stage, ck->info.stage);
    manifest_free(&m);
    return st;
}

/* is_ours: with a manifest the checkpoint was written by czero, whose manifest settles what
 * DeepSpeed's format leaves open. */
static cz_status read_folder(struct ckpt *ck, const struct ckpt_folder *folder)
{
    bool is_stage3 = !folder->whole_model;
    uint32_t file_idx;
    if (is_stage3) TRY(check_first_model(ck, folder));
    TRY(ckpt_pt_add(ck, is_stage3 ? folder->models[0].name : folder->whole_model, &file_idx,
                    &ck->model));
    TRY(ckpt_model_read(ck, file_idx, is_stage3));
    const char *version = pickle_to_string(pickle_get(ck->model_root, "ds_version"));
    ck->ds_version = strdup(version ? version : "");
    if (!ck->ds_version) return err_set(CZ_NOMEM, 0, "out of memory");
    ck->info.ds_version = ck->ds_version;
    ck->info.is_ours = beneath_is_there(ck->tag_dir, CKPT_MANIFEST);
    TRY(read_sources(ck, folder, file_idx));
    TRY(check_manifest(ck));
    TRY(add_onebit_files(ck));
    return ckpt_entries_finish(ck);
}

static bool any_states(const struct ckpt *ck)
{
    for (size_t i = 0; i < ck->n_entries; i++)
        for (size_t s = 0; s < ck->info.n_states; s++)
            if (ck->entries[i].states[s].kind != PLACE_NONE) return true;
    return false;
}

/* A folder with universal files and shards is read as shards unless the caller asks otherwise: the
 * shards are what was saved, the rest was derived from them. */
static cz_status open_tag(struct ckpt *ck, const struct ckpt_open_options *options)
{
    struct ckpt_folder folder;
    ck->weights_only = options->weights_only;
    ck->group_of = options->group_of;
    ck->user = options->user;
    TRY(ckpt_files_create(&ck->files));
    TRY(locate(ck, options));
    TRY(ckpt_folder_scan(ck->tag_dir, &folder));
    ck->info.is_universal = folder.is_universal && (folder.n_optims == 0 || options->universal);
    cz_status st = read_folder(ck, &folder);
    ckpt_folder_free(&folder);
    ck->info.has_states = st == CZ_OK && any_states(ck);
    return st;
}

cz_status ckpt_open(const struct ckpt_open_options *options, struct ckpt **out)
{
    *out = NULL;
    struct ckpt *ck = calloc(1, sizeof *ck);
    if (!ck) return err_set(CZ_NOMEM, 0, "out of memory");
    cz_status st = open_tag(ck, options);
    if (st != CZ_OK) {
        ckpt_close(ck);
        return st;
    }
    *out = ck;
    return CZ_OK;
}

void ckpt_close(struct ckpt *ck)
{
    if (!ck) return;
    ckpt_tables_free(ck);
    pt_close(ck->model);
    pt_close(ck->optim);
    for (size_t i = 0; i < ck->n_kept; i++) pt_close(ck->kept[i]);
    free(ck->kept);
    ckpt_files_destroy(ck->files);
    free(ck->tag_dir);
    free(ck->tag);
    free(ck->ds_version);
    free(ck);
}

/* ---- asking ---------------------------------------------------------------------------------- */

const struct ckpt_info *ckpt_get_info(const struct ckpt *ck)
{
    return &ck->info;
}

size_t ckpt_count(const struct ckpt *ck)
{
    return ck->n_entries;
}

const struct ckpt_tensor *ckpt_at(const struct ckpt *ck, size_t idx)
{
    return &ck->entries[idx].tensor;
}

void ckpt_script_order(const struct ckpt *ck, size_t *order)
{
    memcpy(order, ck->script, ck->n_entries * sizeof *order);
}

const struct pickle_node *ckpt_model_states(const struct ckpt *ck)
{
    return ck->model_root;
}

const struct pickle_node *ckpt_optim_states(const struct ckpt *ck)
{
    return ck->optim_root;
}

cz_status ckpt_read_model_tensor(const struct ckpt *ck, const struct pickle_tensor *t, void *dst)
{
    return pt_read(ck->model, t, 0, (size_t)t->numel, dst);
}

/* Whether a node is part of a tree. */
static bool holds(const struct pickle_node *tree, const struct pickle_node *node)
{
    if (!tree || tree == node) return tree != NULL;
    for (size_t i = 0; tree->items && i < tree->n; i++)
        if (holds(tree->items[i], node)) return true;
    for (size_t i = 0; i < tree->n_pairs; i++)
        if (holds(tree->pairs[i].value, node)) return true;
    return holds(tree->more->args, node) || holds(tree->more->state, node);
}

/* A tensor's elements are in the file that its node came from, so the tree that holds the node
 * decides which file is read. */
bool ckpt_number(const struct ckpt *ck, const struct pickle_node *node, double *out)
{
    if (!node) return false;
    const struct pt *pt = ck->model;
    if (node->kind == PICKLE_TENSOR && ck->optim && holds(pt_root(ck->optim), node)) pt = ck->optim;
    if (pt_number(pt, node, out) == CZ_OK) return true;
    err_clear();
    return false;
}
