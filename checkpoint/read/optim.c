/* What a torch optimizer's state dictionary says: states, groups, steps. Its forms differ by class
 * and version (docs/deepspeed-behaviour.md, "Optimizer files"): a step is an integer, a float or a
 * tensor, kept by parameter or by group. */
#include "checkpoint/read/checkpoint_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct opt_view opt_view_of(const struct pickle_node *state_dict)
{
    struct opt_view view = {0};
    if (pickle_is(state_dict, PICKLE_LIST)) { /* elastic: a dictionary per group */
        view.state = state_dict;
        return view;
    }
    const struct pickle_node *state = pickle_get(state_dict, "state");
    const struct pickle_node *groups = pickle_get(state_dict, "param_groups");
    if (pickle_is(state, PICKLE_DICT)) view.state = state;
    if (pickle_is(groups, PICKLE_LIST)) view.groups = groups;
    return view;
}

static const struct pickle_node *dict_or_null(const struct pickle_node *node)
{
    return pickle_is(node, PICKLE_DICT) ? node : NULL;
}

/* The state of parameter `id`, or NULL. Ids are the dictionary's keys and may start anywhere; they
 * are numbered on through the groups. */
const struct pickle_node *opt_state(const struct opt_view *view, int64_t id)
{
    const struct pickle_node *state = view->state;
    if (!state || id < 0) return NULL;
    if (state->kind == PICKLE_LIST)
        return (uint64_t)id < state->n ? dict_or_null(state->items[id]) : NULL;
    return dict_or_null(pickle_get_int(state, id));
}

/* The first group that lists an id; the first of all if none does. */
void opt_groups_of(const struct opt_view *view, size_t n, size_t *groups)
{
    memset(groups, 0, n * sizeof *groups);
    for (size_t g = view->groups ? view->groups->n : 0; g-- > 0;) {
        const struct pickle_node *params = pickle_get(view->groups->items[g], "params");
        for (size_t i = 0; pickle_is(params, PICKLE_LIST) && i < params->n; i++) {
            int64_t id;
            if (pickle_to_int(params->items[i], &id) && id >= 0 && (uint64_t)id < n) groups[id] = g;
        }
    }
}

/* Of the parameter if it has one, else of its group. */
const struct pickle_node *opt_step(const struct opt_view *view, size_t group, int64_t id)
{
    const struct pickle_node *step = pickle_get(opt_state(view, id), "step");
    if (step || !view->groups || group >= view->groups->n) return step;
    return pickle_get(view->groups->items[group], "step");
}

/* States that are no element-wise tensors: counters, and the 1-bit errors, whose length is that of
 * a segment. */
bool opt_is_scalar_state(const char *name)
{
    static const char *const names[] = {"step", "worker_error", "server_error"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(names); i++)
        if (strcmp(name, names[i]) == 0) return true;
    return false;
}

/* States are numbered in the order in which they are met; all ranks' files have the same. */
cz_status ckpt_state_idx(struct ckpt *ck, const char *name, size_t *state_idx)
{
    size_t n = ck->info.n_states;
    for (size_t i = 0; i < n; i++) {
        *state_idx = i;
        if (strcmp(ck->states[i], name) == 0) return CZ_OK;
    }
    if (n == CKPT_STATES_MAX)
        return err_set(CZ_UNSUPPORTED, 0,
                       "%s: the optimizer has more than %d states per weight ('%s' is one more)",
                       ck->tag_dir, CKPT_STATES_MAX, name);
    ck->states[n] = strdup(name);
    if (!ck->states[n]) return err_set(CZ_NOMEM, 0, "out of memory");
    ck->info.states[n] = ck->states[n];
    ck->info.n_states = n + 1;
    *state_idx = n;
    return CZ_OK;
}

cz_status ckpt_groups_set(struct ckpt *ck, size_t n_groups, const struct pickle_node *groups)
{
    if (groups && groups->n != n_groups)
        return err_set(CZ_CORRUPT, 0,
                       "%s: the optimizer has %u param groups, the model's parameters are in %zu",
                       ck->tag_dir, groups->n, n_groups);
    ck->steps = calloc(n_groups + 1, sizeof *ck->steps);
    if (!ck->steps) return err_set(CZ_NOMEM, 0, "out of memory");
    for (size_t g = 0; g < n_groups; g++) ck->steps[g] = -1;
    ck->info.n_groups = n_groups;
    ck->groups_node = groups;
    return CZ_OK;
}

/* A group has one step: all parameters and ranks must agree, or files of two saves were mixed. The
 * limit keeps a double exact as an integer. */
cz_status ckpt_step_take(struct ckpt *ck, const struct pt *pt, size_t group,
                         const struct pickle_node *node)
{
    if (!node || node->kind == PICKLE_NONE) return CZ_OK;
    double step;
    TRY(pt_number(pt, node, &step));
    if (!(step >= 0 && step < 0x1p53) || step != floor(step))
        return err_set(CZ_CORRUPT, 0,
                       "%s: param group %zu: its step, %g, is not a count of updates", pt_path(pt),
                       group, step);
    int64_t *known = &ck->steps[group];
    if (*known >= 0 && *known != (int64_t)step)
        return err_set(
            CZ_CORRUPT, 0,
            "%s: param group %zu: its step is %lld, but %lld elsewhere in this checkpoint",
            pt_path(pt), group, (long long)step, (long long)*known);
    *known = (int64_t)step;
    return CZ_OK;
}

int64_t ckpt_group_step(const struct ckpt *ck, size_t group)
{
    return group < ck->info.n_groups ? ck->steps[group] : -1;
}

const struct pickle_node *ckpt_state_dict(const struct ckpt *ck, size_t idx)
{
    return ck->entries[idx].state;
}

const struct pickle_node *ckpt_param_group(const struct ckpt *ck, size_t group)
{
    const struct pickle_node *groups = ck->groups_node;
    return groups && group < groups->n ? groups->items[group] : NULL;
}
