/* Frozen parameters of stage 3: every rank's model file holds its chunk, in the model's dtype
 * (docs/deepspeed-behaviour.md, "Partitions of stage 3"). They become split tensors like trained
 * ones, but in the model files. */
#include "checkpoint/read/checkpoint_impl.h"
#include "layout/shard.h"

#include <stdlib.h>
#include <string.h>

struct frozen_read {
    const struct pickle_node *shapes; /* rank 0's; NULL: none */
    size_t n;
    size_t *entries, *vecs; /* (n) */
};

static cz_status plan(struct ckpt *ck, struct frozen_read *read)
{
    const struct pickle_node *shapes = pickle_get(ck->model_root, "frozen_param_shapes");
    if (!pickle_is(shapes, PICKLE_DICT)) return CZ_OK;
    read->shapes = shapes;
    read->n = shapes->n_pairs;
    read->entries = calloc(read->n + 1, sizeof *read->entries);
    read->vecs = calloc(read->n + 1, sizeof *read->vecs);
    if (!read->entries || !read->vecs) return err_set(CZ_NOMEM, 0, "out of memory");
    for (size_t i = 0; i < read->n; i++) {
        const char *name = pickle_to_string(shapes->pairs[i].key);
        if (!name)
            return err_set(CZ_CORRUPT, 0, "%s: frozen_param_shapes: a key is not a name",
                           pt_path(ck->model));
        TRY(ckpt_entry_want(ck, name, shapes->pairs[i].value, "frozen_param_shapes",
                            &read->entries[i]));
        TRY(ckpt_vec_add(ck, &read->vecs[i]));
    }
    return CZ_OK;
}

/* The chunks of one rank. The files' dictionaries have one order, so the entry at the same position
 * is looked at first; a lookup by name would make this quadratic. */
static cz_status take(struct ckpt *ck, const struct pt *pt, int rank, uint32_t file_idx,
                      const struct frozen_read *read)
{
    TRY(ckpt_model_agree(ck, pt));
    TRY(ckpt_frozen_check(pt));
    for (size_t i = 0; i < read->n; i++) {
        const struct ckpt_entry *e = &ck->entries[read->entries[i]];
        const char *name = pickle_to_string(read->shapes->pairs[i].key);
        const struct pickle_node *fragments = pickle_get(pt_root(pt), "frozen_param_fragments");
        const char *there = pickle_to_string(fragments->pairs[i].key);
        bool in_order = there && strcmp(there, name) == 0;
        const struct pickle_node *value =
            in_order ? fragments->pairs[i].value : pickle_get(fragments, name);
        const struct pickle_tensor *t = pickle_is(value, PICKLE_TENSOR) ? value->tensor : NULL;
        uint64_t chunk = shard_chunk(e->tensor.numel, ck->info.world_size);
        if (!t || (t->numel != chunk && chunk > 0))
            return err_set(CZ_CORRUPT, 0,
                           "%s: frozen_param_fragments: '%s' has %llu elements; %d ranks hold %llu "
                           "each",
                           pt_path(pt), e->name, t ? (unsigned long long)t->numel : 0,
                           ck->info.world_size, (unsigned long long)chunk);
        TRY(ckpt_vec_set(ck, read->vecs[i], rank, file_idx, pt, t));
    }
    return CZ_OK;
}

static cz_status take_all(struct ckpt *ck, const struct ckpt_folder *folder, uint32_t file_idx,
                          const struct frozen_read *read)
{
    TRY(take(ck, ck->model, 0, file_idx, read));
    for (int r = 1; r < ck->info.world_size; r++) {
        uint32_t other_idx;
        struct pt *pt;
        TRY(ckpt_pt_add(ck, folder->models[r].name, &other_idx, &pt));
        cz_status st = take(ck, pt, r, other_idx, read);
        pt_close(pt);
        if (st != CZ_OK) return st;
    }
    return CZ_OK;
}

static cz_status bind(struct ckpt *ck, const struct frozen_read *read)
{
    for (size_t i = 0; i < read->n; i++) {
        size_t idx = read->entries[i];
        struct ckpt_place place = {.kind = PLACE_SPLIT, .dtype = ck->vecs[read->vecs[i]].dtype};
        place.split.vec_idx = read->vecs[i];
        place.split.part = shard_chunk(ck->entries[idx].tensor.numel, ck->info.world_size);
        TRY(ckpt_entry_freeze(ck, idx, place));
    }
    return CZ_OK;
}

/* Files of ranks are opened one at a time. What a folder's `module` still holds whole is frozen
 * last. */
cz_status ckpt_frozen_chunks(struct ckpt *ck, const struct ckpt_folder *folder, uint32_t file_idx)
{
    struct frozen_read read = {0};
    cz_status st = plan(ck, &read);
    if (st == CZ_OK) st = take_all(ck, folder, file_idx, &read);
    if (st == CZ_OK) st = bind(ck, &read);
    free(read.entries);
    free(read.vecs);
    if (st == CZ_OK) st = ckpt_frozen_rest(ck, file_idx);
    return st;
}
