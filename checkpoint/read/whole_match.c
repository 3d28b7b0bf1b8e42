/* Stage 0 saves the optimizer's parameters by number, in groups whose members it does not name
 * (docs/deepspeed-behaviour.md, "Optimizer files"). Groups keep the model's order, shapes must be
 * equal, and a 16-bit weight is its master rounded: from these the assignment is searched by
 * backtracking. Our own checkpoints name the members in the manifest, which prunes the search to
 * one path. */
#include "checkpoint/read/whole_impl.h"

#include <string.h>

#define STEPS_MAX ((size_t)1 << 20)

/* ---- one candidate --------------------------------------------------------------------------- */

void whole_rewind(struct whole *w)
{
    for (size_t g = 0; g < w->n_groups; g++) w->groups[g].pos = w->groups[g].off = 0;
}

/* Takes the group's next parameter: a position in a list of tensors, or a range of the flat one. */
void whole_advance(struct whole *w, size_t group, uint64_t numel)
{
    if (w->groups[group].flat)
        w->groups[group].off += numel;
    else
        w->groups[group].pos++;
}

struct ckpt_place whole_master(const struct whole *w, size_t group)
{
    const struct whole_group *g = &w->groups[group];
    const struct ckpt_place none = {.kind = PLACE_NONE};
    if (!g->flat)
        return g->masters ? ckpt_place_of(w->ck->model, w->file_idx, g->masters[g->pos]) : none;
    struct ckpt_place place = ckpt_place_of(w->ck->model, w->file_idx, g->flat);
    place.whole.off += g->off * g->flat->dtype->size;
    return place;
}

static bool same_shape(const struct pickle_tensor *t, const struct ckpt_tensor *want)
{
    return t->ndim == want->ndim &&
           memcmp(t->shape, want->shape, (size_t)t->ndim * sizeof *t->shape) == 0;
}

/* Whether the group's next parameter may have this shape. */
static bool shape_fits(const struct whole_group *g, const struct ckpt_tensor *want)
{
    if (g->flat) return want->numel <= g->flat->numel - g->off;
    if (g->pos == g->n_items) return false;
    if (g->masters) return same_shape(g->masters[g->pos], want);
    /* A parameter without states fits anything; else one of its tensors has its shape. */
    const struct pickle_node *state = g->states[g->pos];
    bool any = false;
    for (size_t i = 0; state && i < state->n_pairs; i++) {
        const char *name = pickle_to_string(state->pairs[i].key);
        const struct pickle_node *value = state->pairs[i].value;
        if (!name || opt_is_scalar_state(name) || !pickle_is(value, PICKLE_TENSOR)) continue;
        if (same_shape(value->tensor, want)) return true;
        any = true;
    }
    return !any;
}

/* ---- values ---------------------------------------------------------------------------------- */

/* Whether the weight is the group's next master, rounded. The entry's master is set for the
 * duration of the call, since the comparison reads through entries. */
static cz_status values_fit(struct whole *w, size_t idx, size_t group, bool *fits)
{
    struct ckpt_entry *e = &w->ck->entries[idx];
    e->master = whole_master(w, group); /* for the moment of this call */
    cz_status st = ckpt_rounds_to_module(w->ck, idx, fits);
    e->master.kind = PLACE_NONE;
    return st;
}

/* ---- our manifest ---------------------------------------------------------------------------- */

static bool is_weight(const struct manifest_tensor *t)
{
    return strcmp(t->what, "param") == 0 || strcmp(t->what, "frozen") == 0;
}

static const struct manifest_tensor *written_at(const struct manifest_file *file, uint64_t off)
{
    size_t low = 0, high = file->n_tensors;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (file->tensors[mid].off < off)
            low = mid + 1;
        else
            high = mid;
    }
    return low < file->n_tensors && file->tensors[low].off == off ? &file->tensors[low] : NULL;
}

/* The first tensor of the group's next parameter that the manifest lists at its offset. */
static const struct manifest_tensor *item_written(const struct whole *w, size_t group)
{
    const struct whole_group *g = &w->groups[group];
    const struct manifest_tensor *found = NULL;
    struct ckpt_place place = whole_master(w, group);
    if (place.kind == PLACE_WHOLE) found = written_at(w->written, place.whole.off);
    const struct pickle_node *state = g->flat ? NULL : g->states[g->pos];
    for (size_t i = 0; !found && state && i < state->n_pairs; i++) {
        const struct pickle_node *value = state->pairs[i].value;
        if (!pickle_is(value, PICKLE_TENSOR) || value->tensor->numel == 0) continue;
        place = ckpt_place_of(w->ck->model, w->file_idx, value->tensor);
        if (place.kind == PLACE_WHOLE) found = written_at(w->written, place.whole.off);
    }
    return found && !is_weight(found) ? found : NULL;
}

/* What the manifest says of entry idx being frozen: -1 nothing, 0 no, 1 yes. */
static int written_frozen(const struct whole *w, const struct ckpt_entry *e)
{
    if (!w->written || e->module.kind != PLACE_WHOLE) return -1;
    const struct manifest_tensor *t = written_at(w->written, e->module.whole.off);
    if (!t || !is_weight(t) || strcmp(t->name, e->name) != 0) return -1;
    return strcmp(t->what, "frozen") == 0;
}

/* ---- the search ------------------------------------------------------------------------------ */

struct search {
    struct whole *w;
    uint64_t slack; /* parameters, or elements when groups are flat, that may still be frozen */
    bool by_numel, compare;
    bool by_caller; /* only the groups that the caller names */
    size_t n_steps;
};

static uint64_t cost_of(const struct search *s, const struct ckpt_tensor *t)
{
    return s->by_numel ? t->numel : 1;
}

/* slack: what the model has more than the optimizer, that is the frozen parameters. Values are
 * compared only where shapes leave a choice, because that reads the file. */
static cz_status search_init(struct search *s, struct whole *w, bool by_caller)
{
    uint64_t have = 0, want = 0;
    *s = (struct search){
        .w = w, .by_numel = w->n_groups > 0 && w->groups[0].flat, .by_caller = by_caller};
    for (size_t i = 0; i < w->n_params; i++)
        have += cost_of(s, &w->ck->entries[w->params[i]].tensor);
    for (size_t g = 0; g < w->n_groups; g++)
        want += s->by_numel ? w->groups[g].flat->numel : w->groups[g].n_items;
    if (want > have)
        return err_set(CZ_CORRUPT, 0, "%s: the optimizer has %llu %s, the model only %llu",
                       pt_path(w->ck->model), (unsigned long long)want,
                       s->by_numel ? "elements" : "parameters", (unsigned long long)have);
    s->slack = have - want;
    s->compare = w->has_masters && !w->written && (w->n_groups > 1 || s->slack > 0);
    return CZ_OK;
}

/* Whether the caller's optimizer has a parameter in this group. */
static bool caller_agrees(const struct search *s, const struct ckpt_entry *e, size_t group)
{
    const struct ckpt *ck = s->w->ck;
    if (!s->by_caller) return true;
    size_t named = ck->group_of(e->name, ck->user);
    return named == SIZE_MAX ? group == s->w->n_groups : group == named;
}

/* Whether parameter i may be the next one of a group; group n_groups: frozen. */
static cz_status may_be(struct search *s, size_t i, size_t group, bool *yes)
{
    struct whole *w = s->w;
    const struct ckpt_entry *e = &w->ck->entries[w->params[i]];
    int frozen = written_frozen(w, e);
    *yes = false;
    if (!caller_agrees(s, e, group)) return CZ_OK;
    if (group == w->n_groups) {
        *yes = frozen != 0 && s->slack >= cost_of(s, &e->tensor);
        return CZ_OK;
    }
    if (frozen == 1 || !shape_fits(&w->groups[group], &e->tensor)) return CZ_OK;
    const struct manifest_tensor *written = w->written ? item_written(w, group) : NULL;
    *yes = !written || strcmp(written->name, e->name) == 0;
    return *yes && s->compare ? values_fit(w, w->params[i], group, yes) : CZ_OK;
}

static void choose(struct search *s, size_t i, size_t group)
{
    const struct ckpt_tensor *t = &s->w->ck->entries[s->w->params[i]].tensor;
    s->w->choice[i] = group;
    if (group == s->w->n_groups)
        s->slack -= cost_of(s, t);
    else
        whole_advance(s->w, group, t->numel);
}

static void undo(struct search *s, size_t i)
{
    const struct ckpt_tensor *t = &s->w->ck->entries[s->w->params[i]].tensor;
    if (s->w->choice[i] == s->w->n_groups)
        s->slack += cost_of(s, t);
    else {
        if (s->w->groups[s->w->choice[i]].flat)
            s->w->groups[s->w->choice[i]].off -= t->numel;
        else
            s->w->groups[s->w->choice[i]].pos--;
    }
}

/* Continues at parameter i with candidates from `first` on, until all are chosen. The slack is used
 * up exactly then, so every group is complete too. The number of steps is bounded: many parameters
 * of equal shape could take exponentially many. *found false: no further way. */
static cz_status search_on(struct search *s, size_t i, size_t first, bool *found)
{
    struct whole *w = s->w;
    *found = false;
    while (i < w->n_params) {
        size_t group = first;
        bool yes = false;
        for (; group <= w->n_groups; group++) {
            TRY(may_be(s, i, group, &yes));
            if (yes) break;
        }
        if (++s->n_steps > STEPS_MAX)
            return err_set(CZ_UNSUPPORTED, 0, "%s: cannot identify the optimizer's parameters",
                           pt_path(w->ck->model));
        if (yes) {
            choose(s, i++, group);
            first = 0;
            continue;
        }
        if (i == 0) return CZ_OK;
        undo(s, --i);
        first = w->choice[i] + 1;
    }
    *found = true;
    return CZ_OK;
}

/* Looks for a second way; choice[] stays the first one. Without masters only shapes decide, so a
 * unique assignment is worth knowing before states are used. */
static cz_status another_way(struct search *s, size_t *copy, bool *found)
{
    struct whole *w = s->w;
    size_t nbytes = w->n_params * sizeof *copy;
    memcpy(copy, w->choice, nbytes);
    size_t last = w->n_params - 1;
    undo(s, last);
    cz_status st = search_on(s, last, w->choice[last] + 1, found);
    memcpy(w->choice, copy, nbytes);
    return st;
}

/* The first way there is. */
static cz_status first_way(struct search *s, struct whole *w, bool by_caller, bool *found)
{
    TRY(search_init(s, w, by_caller));
    whole_rewind(w);
    return search_on(s, 0, 0, found);
}

/* A caller that resumes knows its own groups, so its assignment is tried first; if it does not fit
 * the file, the file decides alone. */
cz_status whole_match(struct whole *w, size_t *scratch, bool *is_unique)
{
    struct search s;
    bool found = false;
    *is_unique = true;
    if (w->ck->group_of) TRY(first_way(&s, w, true, &found));
    if (found) return CZ_OK;
    TRY(first_way(&s, w, false, &found));
    if (!found)
        return err_set(CZ_CORRUPT, 0,
                       "%s: the optimizer's tensors do not fit the parameters of 'module'",
                       pt_path(w->ck->model));
    if (w->has_masters || !w->has_states || w->n_params == 0) return CZ_OK;
    TRY(another_way(&s, scratch, &found));
    *is_unique = !found;
    return CZ_OK;
}
