/* Every rank's optimizer file in turn: does it belong to this checkpoint? Files are opened one
 * after another and closed at once, except rank 0's, so memory holds two parsed pickles at most.
 * What files must agree on is what two saves under one tag would differ in: stage, number of ranks,
 * version. */
#include "checkpoint/read/checkpoint_impl.h"

#include <string.h>

#define WORLD_SIZE_MAX (1 << 20)

/* partition_count is one number, or a list with one per group. Groups with different counts come
 * from expert parallelism. */
static cz_status read_world_size(const struct pt *pt, const struct pickle_node *node, int64_t *out)
{
    *out = -1;
    if (!node) return CZ_OK;
    bool is_list = node->kind == PICKLE_LIST || node->kind == PICKLE_TUPLE;
    for (size_t i = 0; i < (is_list ? node->n : 1); i++) {
        int64_t count;
        if (!pickle_to_int(is_list ? node->items[i] : node, &count) || count < 1 ||
            count > WORLD_SIZE_MAX)
            return err_set(CZ_CORRUPT, 0, "%s: partition_count is not a number of ranks",
                           pt_path(pt));
        if (*out >= 0 && count != *out)
            return err_set(CZ_UNSUPPORTED, 0,
                           "%s: groups are split over %lld and over %lld ranks: expert "
                           "parallelism, which is not read here",
                           pt_path(pt), (long long)*out, (long long)count);
        *out = count;
    }
    return CZ_OK;
}

static cz_status read_head(const struct pt *pt, struct optim_head *head)
{
    const struct pickle_node *root = pt_root(pt);
    head->state = pickle_get(root, "optimizer_state_dict");
    if (!pickle_is(head->state, PICKLE_DICT))
        return err_set(CZ_CORRUPT, 0,
                       "%s: is not an optimizer file of ZeRO: it has no 'optimizer_state_dict'",
                       pt_path(pt));
    const char *version = pickle_to_string(pickle_get(root, "ds_version"));
    head->ds_version = version ? version : "";
    if (!pickle_to_int(pickle_get(head->state, "zero_stage"), &head->stage)) head->stage = -1;
    return read_world_size(pt, pickle_get(head->state, "partition_count"), &head->world_size);
}

/* MiCS partitions over fewer ranks than there are, so partition_count and dp_world_size may
 * differ. */
static bool has_mics(const struct ckpt *ck)
{
    const struct pickle_node *zero =
        pickle_get(pickle_get(ck->model_root, "ds_config"), "zero_optimization");
    int64_t size;
    return pickle_to_int(pickle_get(zero, "mics_shard_size"), &size) && size > 0;
}

/* What the model file says, or 0. */
static int model_world_size(const struct ckpt *ck)
{
    int64_t W;
    bool there = pickle_to_int(pickle_get(ck->model_root, "dp_world_size"), &W);
    return there && W > 0 && W <= WORLD_SIZE_MAX ? (int)W : 0;
}

/* partition_count decides, then the model file, then the number of files. If the first two
 * contradict each other, the model file is of another save. */
static cz_status decide_world_size(struct ckpt *ck, const struct ckpt_folder *folder,
                                   const struct optim_head *head)
{
    int by_model = model_world_size(ck);
    int W = head->world_size > 0 ? (int)head->world_size
            : by_model           ? by_model
                                 : (int)folder->n_optims;
    ck->info.world_size = W;
    TRY(ckpt_folder_check(ck, folder->optims, folder->n_optims, W, "optimizer"));
    if (by_model == 0 || by_model == W || has_mics(ck)) return CZ_OK;
    return err_set(CZ_CORRUPT, 0,
                   "%s: was saved by %d ranks, the optimizer files by %d: files of two saves",
                   pt_path(ck->model), by_model, W);
}

static cz_status check_head(const struct ckpt *ck, const struct pt *pt,
                            const struct optim_head *head, const struct optim_head *first)
{
    const char *what = NULL;
    if (head->stage != first->stage) what = "zero_stage";
    if (head->world_size != first->world_size) what = "partition_count";
    if (strcmp(head->ds_version, first->ds_version) != 0) what = "ds_version";
    if (!what) return CZ_OK;
    return err_set(CZ_CORRUPT, 0, "%s: '%s' differs from %s: files of two different saves",
                   pt_path(pt), what, pt_path(ck->optim));
}

/* Without any optimizer file the model file says how many there should be, so that the message
 * names them. */
cz_status ckpt_ranks_read(struct ckpt *ck, const struct ckpt_folder *folder,
                          cz_status (*take)(struct ckpt *ck, const struct rank_file *file,
                                            void *user),
                          void *user)
{
    if (folder->n_optims == 0) {
        int W = model_world_size(ck);
        if (W > 0) return ckpt_folder_check(ck, NULL, 0, W, "optimizer");
        return err_set(CZ_CORRUPT, 0, "%s: there is no *_optim_states.pt in it", ck->tag_dir);
    }
    struct rank_file first = {.rank = folder->optims[0].rank};
    TRY(ckpt_pt_add(ck, folder->optims[0].name, &first.file_idx, &ck->optim));
    first.pt = ck->optim;
    TRY(read_head(ck->optim, &first.head));
    TRY(decide_world_size(ck, folder, &first.head)); /* the first is rank 0's from here on */
    ck->optim_root = first.head.state;
    TRY(take(ck, &first, user));
    for (int r = 1; r < ck->info.world_size; r++) {
        struct rank_file file = {.rank = r};
        /* One rank after the first: opened, checked, read, closed. */
        struct pt *pt;
        TRY(ckpt_pt_add(ck, folder->optims[r].name, &file.file_idx, &pt));
        file.pt = pt;
        cz_status st = read_head(pt, &file.head);
        if (st == CZ_OK) st = check_head(ck, pt, &file.head, &first.head);
        if (st == CZ_OK) st = take(ck, &file, user);
        pt_close(pt);
        TRY(st);
    }
    return CZ_OK;
}
