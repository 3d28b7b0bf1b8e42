/* Stage 0: weights, masters and states are whole tensors of one file
 * (docs/deepspeed-behaviour.md, "Optimizer files"). Masters are in fp32_groups (one by one) or
 * fp32_groups_flat; without either, `module` itself holds them. */
#include "checkpoint/read/whole_impl.h"

#include <stdlib.h>
#include <string.h>

/* ---- the optimizer's groups ------------------------------------------------------------------ */

/* Ids of the parameters of group g. */
static const struct pickle_node *ids_of(const struct opt_view *view, size_t g)
{
    const struct pickle_node *ids = pickle_get(view->groups->items[g], "params");
    return pickle_is(ids, PICKLE_LIST) ? ids : NULL;
}

static size_t count_items(const struct opt_view *view)
{
    size_t n = 0;
    for (size_t g = 0; g < view->groups->n; g++) n += ids_of(view, g) ? ids_of(view, g)->n : 0;
    return n;
}

static cz_status bad_masters(const struct whole *w, const char *key)
{
    return err_set(CZ_CORRUPT, 0, "%s: optimizer: %s does not fit its param_groups",
                   pt_path(w->ck->model), key);
}

/* The optimizer's groups: their states by id, and their masters, as a list of tensors (unfused
 * wrapper) or one flat tensor (fused one). */
static cz_status read_groups(struct whole *w, const struct opt_view *view)
{
    const struct pickle_node *listed = pickle_get(w->ck->optim_root, "fp32_groups");
    const struct pickle_node *flats = pickle_get(w->ck->optim_root, "fp32_groups_flat");
    if (!pickle_is(listed, PICKLE_LIST)) listed = NULL;
    if (!pickle_is(flats, PICKLE_LIST)) flats = NULL;
    size_t n_items = count_items(view), at = 0;
    w->n_groups = view->groups->n;
    w->has_masters = listed || flats;
    w->groups = calloc(w->n_groups + 1, sizeof *w->groups);
    w->master_pool = calloc(n_items + 1, sizeof(struct pickle_tensor *));
    w->state_pool = calloc(n_items + 1, sizeof(struct pickle_node *));
    if (!w->groups || !w->master_pool || !w->state_pool)
        return err_set(CZ_NOMEM, 0, "out of memory");
    for (size_t g = 0; g < w->n_groups; g++) {
        const struct pickle_node *ids = ids_of(view, g);
        w->groups[g].n_items = ids ? ids->n : 0;
        w->groups[g].states = w->state_pool + at;
        for (size_t i = 0; ids && i < ids->n; i++) {
            int64_t id;
            bool is_id = pickle_to_int(ids->items[i], &id);
            w->state_pool[at + i] = is_id ? opt_state(view, id) : NULL;
            w->has_states |= w->state_pool[at + i] != NULL;
        }
        if (listed) {
            const struct pickle_tensor **pool = w->master_pool + at;
            const struct pickle_node *group = g < listed->n ? listed->items[g] : NULL;
            if (!pickle_is(group, PICKLE_LIST) || group->n != w->groups[g].n_items)
                return bad_masters(w, "fp32_groups");
            for (size_t i = 0; i < group->n; i++) {
                if (!pickle_is(group->items[i], PICKLE_TENSOR))
                    return bad_masters(w, "fp32_groups");
                pool[i] = group->items[i]->tensor;
            }
            w->groups[g].masters = pool;
        }
        if (!listed && flats) {
            const struct pickle_node *flat = g < flats->n ? flats->items[g] : NULL;
            if (!pickle_is(flat, PICKLE_TENSOR) || !flat->tensor->is_contiguous ||
                w->groups[g].n_items != 1)
                return bad_masters(w, "fp32_groups_flat");
            w->groups[g].flat = flat->tensor;
        }
        at += w->groups[g].n_items;
    }
    return CZ_OK;
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* The step of the group's next parameter. DeepSpeed's FusedAdam and FusedLion (whose groups hold a
 * "step" that stays 0) count in the state of a group's last parameter only. */
static cz_status bind_step(struct whole *w, size_t group, const struct pickle_node *state)
{
    const struct whole_group *g = &w->groups[group];
    bool in_last_only = pickle_get(w->ck->groups_node->items[group], "step") != NULL;
    if (in_last_only && g->pos + 1 < g->n_items) return CZ_OK;
    return ckpt_step_take(w->ck, w->ck->model, group, pickle_get(state, "step"));
}

/* State tensors of the group's next parameter: of its shape, or its range of a flat tensor. */
static cz_status bind_states(struct whole *w, size_t group, struct ckpt_entry *e)
{
    const struct whole_group *g = &w->groups[group];
    const struct pickle_node *state = g->states[g->pos];
    e->state = state;
    for (size_t i = 0; state && i < state->n_pairs; i++) {
        const char *name = pickle_to_string(state->pairs[i].key);
        const struct pickle_node *value = state->pairs[i].value;
        if (!name || opt_is_scalar_state(name) || !pickle_is(value, PICKLE_TENSOR)) continue;
        const struct pickle_tensor *t = value->tensor;
        bool fits =
            g->flat ? t->is_contiguous && t->numel == g->flat->numel
                    : t->ndim == e->tensor.ndim && memcmp(t->shape, e->tensor.shape,
                                                          (size_t)t->ndim * sizeof *t->shape) == 0;
        if (!fits) continue;
        size_t state_idx;
        TRY(ckpt_state_idx(w->ck, name, &state_idx));
        e->states[state_idx] = ckpt_place_of(w->ck->model, w->file_idx, t);
        if (g->flat) e->states[state_idx].whole.off += g->off * t->dtype->size;
    }
    return bind_step(w, group, state);
}

/* Older optimizers keep the step with the group; FusedAdam leaves a 0 there. */
static cz_status group_steps(struct whole *w, const struct opt_view *view)
{
    for (size_t g = 0; g < w->n_groups; g++)
        if (w->ck->steps[g] < 0)
            TRY(ckpt_step_take(w->ck, w->ck->model, g, pickle_get(view->groups->items[g], "step")));
    return CZ_OK;
}

/* Without a usable optimizer every parameter counts as trained, in one group, and as its own
 * master: the weights can still be read. */
static cz_status train_all(struct whole *w)
{
    for (size_t i = 0; i < w->n_params; i++)
        TRY(ckpt_entry_train(w->ck, w->params[i], 0, w->ck->entries[w->params[i]].module));
    return CZ_OK;
}

static cz_status match(struct whole *w, bool *is_unique)
{
    size_t *scratch = calloc(w->n_params + 1, sizeof *scratch);
    if (!scratch) return err_set(CZ_NOMEM, 0, "out of memory");
    cz_status st = whole_match(w, scratch, is_unique);
    free(scratch);
    return st;
}

/* Weights alone may be read where the assignment is ambiguous; states may not, because training
 * would continue with another parameter's momentum. */
static cz_status read_matched(struct whole *w, const struct opt_view *view)
{
    struct ckpt *ck = w->ck;
    bool is_unique = false;
    cz_status st = match(w, &is_unique);
    if (ck->weights_only && !w->has_masters && !is_unique) { /* `module` has the weights */
        err_clear();
        return train_all(w);
    }
    TRY(st);
    if (!is_unique && !ck->weights_only)
        return err_set(CZ_UNSUPPORTED, 0,
                       "%s: the optimizer's states do not tell which parameters they belong to "
                       "(groups or frozen parameters of equal shapes); its weights can be read",
                       pt_path(ck->model));
    /* Follow choice[]: masters, states, steps. */
    whole_rewind(w);
    for (size_t i = 0; i < w->n_params; i++) {
        size_t idx = w->params[i], group = w->choice[i];
        if (group == w->n_groups) continue;
        struct ckpt_entry *e = &w->ck->entries[idx];
        struct ckpt_place master = whole_master(w, group);
        TRY(ckpt_entry_train(w->ck, idx, group, master.kind == PLACE_NONE ? e->module : master));
        if (!ck->weights_only) TRY(bind_states(w, group, e));
        whole_advance(w, group, e->tensor.numel);
    }
    return ck->weights_only ? CZ_OK : group_steps(w, view);
}

static cz_status list_params(struct whole *w)
{
    struct ckpt *ck = w->ck;
    w->params = calloc(ck->n_entries + 1, sizeof *w->params);
    w->choice = calloc(ck->n_entries + 1, sizeof *w->choice);
    if (!w->params || !w->choice) return err_set(CZ_NOMEM, 0, "out of memory");
    for (size_t i = 0; i < ck->n_entries; i++)
        if (!ck->entries[i].has_kind) w->params[w->n_params++] = i;
    return CZ_OK;
}

static cz_status read_whole(struct whole *w)
{
    struct ckpt *ck = w->ck;
    const struct pickle_node *inner = pickle_get(ck->optim_root, "optimizer_state_dict");
    const struct opt_view view = opt_view_of(inner ? inner : ck->optim_root);
    TRY(list_params(w));
    if (!view.groups) { /* saved without an optimizer */
        TRY(ckpt_groups_set(ck, 1, NULL));
        return train_all(w);
    }
    TRY(ckpt_groups_set(ck, view.groups->n, view.groups));
    TRY(read_groups(w, &view));
    return read_matched(w, &view);
}

/* Stage 0 has no optimizer files; those that are there belong to another save. */
static cz_status check_stale(const struct ckpt *ck, const struct ckpt_folder *folder)
{
    if (folder->n_optims == 0) return CZ_OK;
    return err_set(CZ_CORRUPT, 0,
                   "%s: stale optimizer file %s: %s is of stage 0, which has none; move the files "
                   "of the earlier save away",
                   ck->tag_dir, folder->optims[0].name, folder->whole_model);
}

/* Only checkpoints of czero have a manifest, whose names settle the assignment. */
cz_status ckpt_whole_read(struct ckpt *ck, const struct ckpt_folder *folder, uint32_t file_idx)
{
    const struct pickle_node *optimizer = pickle_get(ck->model_root, "optimizer");
    struct whole w = {.ck = ck, .file_idx = file_idx};
    struct manifest manifest = {0};
    int64_t W;
    bool has_world = pickle_to_int(pickle_get(ck->model_root, "dp_world_size"), &W);
    ck->info.world_size = has_world && W > 0 && W < INT32_MAX ? (int)W : 1;
    TRY(check_stale(ck, folder));
    if (pickle_is(optimizer, PICKLE_DICT)) ck->optim_root = optimizer;
    if (ck->info.is_ours) {
        TRY(manifest_load(ck->tag_dir, &manifest));
        w.written = manifest_find(&manifest, folder->whole_model);
    }
    cz_status st = read_whole(&w);
    if (st == CZ_OK) st = ckpt_frozen_whole(ck, file_idx);
    free(w.groups);
    free(w.params);
    free(w.choice);
    free(w.master_pool);
    free(w.state_pool);
    manifest_free(&manifest);
    return st;
}
