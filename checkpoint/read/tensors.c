/* The tables of an open checkpoint: tensors, their names, flat tensors of ranks. Sources fill them
 * in any order; ckpt_entries_finish() brings the entries into their final order and drops tensors
 * that no file holds. Until then entries are referred to by index, since the array moves as it
 * grows. */
#include "checkpoint/read/checkpoint_impl.h"

#include <stdlib.h>
#include <string.h>

/* ---- growing --------------------------------------------------------------------------------- */

static cz_status no_memory(void)
{
    return err_set(CZ_NOMEM, 0, "out of memory");
}

static cz_status entries_reserve(struct ckpt *ck)
{
    if (ck->n_entries < ck->cap_entries) return CZ_OK;
    size_t cap = ck->cap_entries ? ck->cap_entries * 2 : 64;
    struct ckpt_entry *entries = realloc(ck->entries, cap * sizeof *entries);
    if (!entries) return no_memory();
    ck->entries = entries;
    ck->cap_entries = cap;
    return CZ_OK;
}

/* The map keeps the entry's own copy of the name as its key. */
cz_status ckpt_entry_add(struct ckpt *ck, const char *name, size_t *idx)
{
    TRY(entries_reserve(ck));
    struct ckpt_entry *e = &ck->entries[ck->n_entries];
    memset(e, 0, sizeof *e);
    e->name = strdup(name);
    if (!e->name) return no_memory();
    *idx = ck->n_entries++;
    return name_map_put(&ck->names, e->name, *idx);
}

cz_status ckpt_alias_add(struct ckpt *ck, size_t idx, const char *name)
{
    struct ckpt_entry *e = &ck->entries[idx];
    size_t n = e->tensor.n_aliases;
    char **aliases = realloc(e->aliases, (n + 1) * sizeof *aliases);
    if (!aliases) return no_memory();
    e->aliases = aliases;
    aliases[n] = strdup(name);
    if (!aliases[n]) return no_memory();
    e->tensor.n_aliases++;
    return name_map_put(&ck->names, aliases[n], idx);
}

/* ---- shapes ---------------------------------------------------------------------------------- */

/* The product is limited to INT64_MAX: offsets and sums over ranks are computed from it without
 * further checks. */
static cz_status shape_numel(const int64_t *shape, int ndim, uint64_t *numel)
{
    *numel = 1;
    for (int i = 0; i < ndim; i++) {
        if (shape[i] < 0) return CZ_CORRUPT;
        if (__builtin_mul_overflow(*numel, (uint64_t)shape[i], numel)) return CZ_CORRUPT;
    }
    return *numel > INT64_MAX ? CZ_CORRUPT : CZ_OK; /* sums over ranks stay far from wrapping */
}

/* A tensor's shape may be stated in several places; they must agree. */
cz_status ckpt_entry_set_shape(struct ckpt_entry *e, const int64_t *shape, int ndim,
                               const char *label, const char *what)
{
    uint64_t numel;
    if (ndim > CKPT_NDIM_MAX)
        return err_set(CZ_UNSUPPORTED, 0, "%s: %s: '%s' has %d dimensions; at most %d are read",
                       label, what, e->name, ndim, CKPT_NDIM_MAX);
    if (shape_numel(shape, ndim, &numel) != CZ_OK)
        return err_set(CZ_CORRUPT, 0, "%s: %s: the shape of '%s' is negative or too large", label,
                       what, e->name);
    struct ckpt_tensor *t = &e->tensor;
    size_t nbytes = (size_t)ndim * sizeof *shape;
    if (e->has_shape && (t->ndim != ndim || memcmp(t->shape, shape, nbytes) != 0))
        return err_set(CZ_CORRUPT, 0,
                       "%s: %s: '%s' has another shape here than in the rest of the checkpoint",
                       label, what, e->name);
    if (nbytes > 0) memcpy(t->shape, shape, nbytes);
    t->ndim = ndim;
    t->numel = numel;
    e->has_shape = true;
    return CZ_OK;
}

/* torch.Size, or a plain tuple or list, of integers. Dimensions beyond the limit are not stored;
 * the caller refuses them by their number. */
static bool shape_of_node(const struct pickle_node *node, int64_t *shape)
{
    if (!pickle_is(node, PICKLE_SIZE) && !pickle_is(node, PICKLE_TUPLE) &&
        !pickle_is(node, PICKLE_LIST))
        return false;
    for (size_t i = 0; i < node->n; i++)
        if (i < CKPT_NDIM_MAX && !pickle_to_int(node->items[i], &shape[i])) return false;
    return true;
}

static cz_status ckpt_entry_read_shape(struct ckpt_entry *e, const struct pickle_node *node,
                                       const char *label, const char *what)
{
    int64_t shape[CKPT_NDIM_MAX];
    if (!shape_of_node(node, shape))
        return err_set(CZ_CORRUPT, 0, "%s: %s: the entry of '%s' is not a shape", label, what,
                       e->name);
    int ndim = node->n > CKPT_NDIM_MAX ? CKPT_NDIM_MAX + 1 : (int)node->n;
    return ckpt_entry_set_shape(e, shape, ndim, label, what);
}

cz_status ckpt_entry_want(struct ckpt *ck, const char *name, const struct pickle_node *shape,
                          const char *what, size_t *idx)
{
    *idx = name_map_get(&ck->names, name);
    if (*idx == NAME_MAP_NONE) TRY(ckpt_entry_add(ck, name, idx));
    return ckpt_entry_read_shape(&ck->entries[*idx], shape, pt_path(ck->model), what);
}

/* script_pos counts in the order of these calls, which is that of DeepSpeed's script. */
cz_status ckpt_entry_train(struct ckpt *ck, size_t idx, size_t group, struct ckpt_place master)
{
    struct ckpt_entry *e = &ck->entries[idx];
    if (e->has_kind)
        return err_set(CZ_CORRUPT, 0, "%s: param_shapes: '%s' is listed twice, or as a buffer",
                       pt_path(ck->model), e->name);
    e->has_kind = true;
    e->tensor.kind = CKPT_TRAINED;
    e->tensor.group = group;
    e->master = master;
    e->script_pos = ck->n_placed++;
    return CZ_OK;
}

cz_status ckpt_entry_freeze(struct ckpt *ck, size_t idx, struct ckpt_place place)
{
    struct ckpt_entry *e = &ck->entries[idx];
    if (e->has_kind)
        return err_set(CZ_CORRUPT, 0, "%s: '%s' is listed as frozen, and as trained or a buffer",
                       pt_path(ck->model), e->name);
    e->has_kind = true;
    e->tensor.kind = CKPT_FROZEN;
    e->tensor.group = ck->info.n_groups;
    e->master = e->module = place;
    e->script_pos = ck->n_placed++;
    return CZ_OK;
}

/* ---- flat tensors ---------------------------------------------------------------------------- */

/* A flat tensor has a place in each rank's file. Places are filled as the files are read;
 * CKPT_NO_FILE marks those that are not yet. */
cz_status ckpt_vec_add(struct ckpt *ck, size_t *vec_idx)
{
    if (ck->n_vecs == ck->cap_vecs) {
        size_t cap = ck->cap_vecs ? ck->cap_vecs * 2 : 8;
        struct ckpt_vec *vecs = realloc(ck->vecs, cap * sizeof *vecs);
        if (!vecs) return no_memory();
        ck->vecs = vecs;
        ck->cap_vecs = cap;
    }
    size_t W = (size_t)ck->info.world_size;
    struct ckpt_spot *spots = calloc(W, sizeof *spots);
    if (!spots) return no_memory();
    for (size_t r = 0; r < W; r++) spots[r].file_idx = CKPT_NO_FILE;
    *vec_idx = ck->n_vecs;
    ck->vecs[ck->n_vecs++] = (struct ckpt_vec){.spots = spots};
    return CZ_OK;
}

static uint64_t tensor_off(const struct pt *pt, const struct pickle_tensor *t)
{
    return pt_storage(pt, t)->off + t->off * t->dtype->size;
}

/* Flat tensors are addressed by offset, so they must be contiguous and of one dtype on all
 * ranks. */
cz_status ckpt_vec_set(struct ckpt *ck, size_t vec_idx, int rank, uint32_t file_idx,
                       const struct pt *pt, const struct pickle_tensor *t)
{
    struct ckpt_vec *vec = &ck->vecs[vec_idx];
    if (!t->is_contiguous)
        return err_set(CZ_UNSUPPORTED, 0, "%s: a flat tensor is stored with strides", pt_path(pt));
    if (vec->dtype && vec->dtype != t->dtype)
        return err_set(CZ_CORRUPT, 0, "%s: a flat tensor is %s, and %s in another rank's file",
                       pt_path(pt), t->dtype->torch_name, vec->dtype->torch_name);
    vec->dtype = t->dtype;
    vec->spots[rank] = (struct ckpt_spot){tensor_off(pt, t), file_idx};
    return CZ_OK;
}

struct ckpt_place ckpt_place_of(const struct pt *pt, uint32_t file_idx,
                                const struct pickle_tensor *t)
{
    struct ckpt_place place = {.kind = PLACE_WHOLE, .dtype = t->dtype};
    if (t->is_contiguous) {
        place.whole = (struct ckpt_spot){tensor_off(pt, t), file_idx};
        return place;
    }
    place.kind = PLACE_STRIDED;
    place.strided.pt = pt;
    place.strided.t = t;
    return place;
}

/* ---- the final order ------------------------------------------------------------------------- */

static void entry_free(struct ckpt_entry *e)
{
    for (size_t i = 0; i < e->tensor.n_aliases; i++) free(e->aliases[i]);
    free(e->aliases);
    free(e->name);
}

/* Removes tensors without a place, and keeps their names for the report: a model file may list
 * tensors whose elements were never saved. */
static cz_status drop_absent(struct ckpt *ck)
{
    ck->absent = calloc(ck->n_entries + 1, sizeof *ck->absent);
    if (!ck->absent) return no_memory();
    size_t kept = 0;
    for (size_t i = 0; i < ck->n_entries; i++) {
        struct ckpt_entry *e = &ck->entries[i];
        if (e->has_kind && e->master.kind != PLACE_NONE) {
            ck->entries[kept++] = *e;
            continue;
        }
        ck->absent[ck->n_absent++] = e->name;
        e->name = NULL;
        entry_free(e);
    }
    ck->n_entries = kept;
    ck->info.absent = (const char *const *)ck->absent;
    ck->info.n_absent = ck->n_absent;
    return CZ_OK;
}

struct script_key {
    int kind;
    size_t pos, idx;
};

static int by_script(const void *left, const void *right)
{
    const struct script_key *a = left, *b = right;
    if (a->kind != b->kind) return a->kind - b->kind;
    return a->pos < b->pos ? -1 : a->pos > b->pos;
}

/* The order of DeepSpeed's zero_to_fp32: buffers, frozen parameters, trained ones
 * ("Consolidation"). */
static cz_status script_order(struct ckpt *ck)
{
    static const int turns[] = {[CKPT_BUFFER] = 0, [CKPT_FROZEN] = 1, [CKPT_TRAINED] = 2};
    struct script_key *keys = calloc(ck->n_entries + 1, sizeof *keys);
    ck->script = calloc(ck->n_entries + 1, sizeof *ck->script);
    if (!keys || !ck->script) {
        free(keys);
        return no_memory();
    }
    for (size_t i = 0; i < ck->n_entries; i++) {
        const struct ckpt_entry *e = &ck->entries[i];
        keys[i] = (struct script_key){turns[e->tensor.kind], e->script_pos, i};
    }
    if (ck->n_entries > 1) qsort(keys, ck->n_entries, sizeof *keys, by_script);
    for (size_t i = 0; i < ck->n_entries; i++) ck->script[i] = keys[i].idx;
    free(keys);
    return CZ_OK;
}

cz_status ckpt_entries_finish(struct ckpt *ck)
{
    TRY(drop_absent(ck));
    struct ckpt_entry *sorted = calloc(ck->n_entries + 1, sizeof *sorted);
    if (!sorted) return no_memory();
    size_t n = 0;
    /* Buffers go last, so that parameters are numbered as in the model. The name map is built anew:
     * it held indexes of the old order. */
    for (int buffers = 0; buffers < 2; buffers++)
        for (size_t i = 0; i < ck->n_entries; i++)
            if ((ck->entries[i].tensor.kind == CKPT_BUFFER) == (buffers != 0))
                sorted[n++] = ck->entries[i];
    free(ck->entries);
    ck->entries = sorted;
    ck->cap_entries = ck->n_entries + 1;
    TRY(script_order(ck));
    name_map_free(&ck->names);
    for (size_t i = 0; i < ck->n_entries; i++) {
        struct ckpt_entry *e = &ck->entries[i];
        struct ckpt_tensor *t = &e->tensor;
        t->name = e->name;
        t->aliases = (const char *const *)e->aliases;
        t->dtype = e->master.dtype;
        TRY(name_map_put(&ck->names, e->name, i));
        for (size_t a = 0; a < t->n_aliases; a++) TRY(name_map_put(&ck->names, e->aliases[a], i));
    }
    return CZ_OK;
}

size_t ckpt_find(const struct ckpt *ck, const char *name)
{
    size_t idx = name_map_get(&ck->names, name);
    return idx == NAME_MAP_NONE ? ck->n_entries : idx;
}

void ckpt_tables_free(struct ckpt *ck)
{
    for (size_t i = 0; i < ck->n_entries; i++) entry_free(&ck->entries[i]);
    for (size_t i = 0; i < ck->n_vecs; i++) free(ck->vecs[i].spots);
    for (size_t i = 0; i < ck->n_absent; i++) free(ck->absent[i]);
    for (size_t i = 0; i < CKPT_STATES_MAX; i++) free(ck->states[i]);
    name_map_free(&ck->names);
    free(ck->entries);
    free(ck->script);
    free(ck->vecs);
    free(ck->absent);
    free(ck->steps);
}
