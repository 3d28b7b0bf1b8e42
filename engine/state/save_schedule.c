/* Schedules in the form of torch's state_dict(): those of torch, and transformers' as the LambdaLR
 * that they are. torch takes a saved dictionary as it is, so keys, order and types are torch's. */
#include "engine/state/save_impl.h"

#include <math.h>

static void put_whole(struct pickle_writer *p, double v)
{
    if (v == floor(v) && fabs(v) < 0x1p62)
        pickle_put_int(p, (int64_t)v);
    else
        pickle_put_double(p, v);
}

static void put_rates(struct pickle_writer *p, const struct setting_list *list, size_t n_groups)
{
    pickle_list_begin(p);
    for (size_t g = 0; g < n_groups; g++) pickle_put_double(p, list->v[list->n == 1 ? 0 : g]);
    pickle_list_end(p);
}

/* collections.Counter({30: 1, 80: 1}), in the order of the first of each. */
static void put_counts(struct pickle_writer *p, const struct setting_list *list)
{
    pickle_call_begin(p, "collections", "Counter");
    pickle_dict_begin(p);
    for (size_t i = 0; i < list->n; i++) {
        int64_t n_before = 0, n = 0;
        for (size_t k = 0; k < list->n; k++) {
            n += list->v[k] == list->v[i];
            n_before += k < i && list->v[k] == list->v[i];
        }
        if (n_before > 0) continue;
        put_whole(p, list->v[i]);
        pickle_put_int(p, n);
    }
    pickle_dict_end(p);
    pickle_call_end(p);
}

static void pair_string(struct pickle_writer *p, const char *key, const char *value)
{
    pickle_put_string(p, key);
    pickle_put_string(p, value);
}

/* Names of the ends of each phase, which are keys of param_groups. */
static void put_phases(struct pickle_writer *p, const struct schedule_torch *t)
{
    static const struct {
        const char *lrs[2], *momentums[2];
    } first = {{"initial_lr", "max_lr"}, {"max_momentum", "base_momentum"}},
      down = {{"max_lr", "min_lr"}, {"base_momentum", "max_momentum"}},
      back = {{"max_lr", "initial_lr"}, {"base_momentum", "max_momentum"}},
      out = {{"initial_lr", "min_lr"}, {"max_momentum", "max_momentum"}};
    const int n = t->three_phase ? 3 : 2;
    pickle_list_begin(p);
    for (int i = 0; i < n; i++) {
        const bool is_last = i == n - 1;
        const char *const *lrs = i == 0    ? first.lrs
                                 : n == 2  ? down.lrs
                                 : is_last ? out.lrs
                                           : back.lrs;
        const char *const *momentums = i == 0    ? first.momentums
                                       : n == 2  ? down.momentums
                                       : is_last ? out.momentums
                                                 : back.momentums;
        pickle_dict_begin(p);
        pickle_put_string(p, "end_step");
        if (is_last)
            pickle_put_int(p, t->total_steps - 1);
        else
            pickle_put_double(p, t->phase_ends[i]);
        pair_string(p, "start_lr", lrs[0]);
        pair_string(p, "end_lr", lrs[1]);
        pair_string(p, "start_momentum", momentums[0]);
        pair_string(p, "end_momentum", momentums[1]);
        pickle_dict_end(p);
    }
    pickle_list_end(p);
}

static void put_entry(struct pickle_writer *p, const struct schedule *s,
                      const struct schedule_entry *entry)
{
    const void *value = (const char *)&s->params.torch + entry->offset;
    pickle_put_string(p, entry->key);
    switch (entry->kind) {
    case SCHEDULE_ENTRY_NUMBER: pickle_put_double(p, *(const double *)value); break;
    case SCHEDULE_ENTRY_WHOLE: put_whole(p, *(const double *)value); break;
    case SCHEDULE_ENTRY_INT: pickle_put_int(p, *(const int64_t *)value); break;
    case SCHEDULE_ENTRY_BOOL: pickle_put_bool(p, *(const bool *)value); break;
    case SCHEDULE_ENTRY_NAME: pickle_put_string(p, entry->names[*(const int *)value]); break;
    case SCHEDULE_ENTRY_RATES: put_rates(p, value, s->n_groups); break;
    case SCHEDULE_ENTRY_COUNTS: put_counts(p, value); break;
    case SCHEDULE_ENTRY_PHASES: put_phases(p, &s->params.torch); break;
    }
}

/* `last_epoch` counts updates from 0 on, so it is one ahead of DeepSpeed's index. A LambdaLR's
 * lambdas are objects without state, one per group; CosineAnnealingWarmRestarts has a step() of its
 * own that does not count. */
void save_put_schedule(struct pickle_writer *p, const void *engine)
{
    const struct cz_engine *e = engine;
    const struct schedule *s = &e->run.schedule;
    const enum schedule_kind kind = s->params.kind;
    const int64_t last_epoch = s->last_batch_iteration + 1;
    size_t n;
    const struct schedule_entry *entries = schedule_entries(kind, &n);
    for (size_t i = 0; i < n; i++)
        if (!entries[i].of_momentum || s->params.torch.cycle_momentum) put_entry(p, s, &entries[i]);
    pickle_put_string(p, "base_lrs");
    pickle_list_begin(p);
    for (size_t g = 0; g < s->n_groups; g++) pickle_put_double(p, s->base_lr[g]);
    pickle_list_end(p);
    pickle_put_string(p, "last_epoch");
    pickle_put_int(p, last_epoch);
    pickle_put_string(p, "_step_count");
    pickle_put_int(p, kind == SCHEDULE_TORCH_RESTARTS ? 0 : last_epoch + 1);
    pickle_put_string(p, "_is_initial");
    pickle_put_bool(p, false);
    pickle_put_string(p, "_get_lr_called_within_step");
    pickle_put_bool(p, false);
    pickle_put_string(p, "_last_lr");
    pickle_list_begin(p);
    for (size_t g = 0; g < s->n_groups; g++) pickle_put_double(p, e->desc.groups[g].lr);
    pickle_list_end(p);
    if (kind == SCHEDULE_TORCH_CYCLIC) {
        pickle_put_string(p, "_scale_fn_custom");
        pickle_put_none(p);
    }
    if (!schedule_is_hf(kind)) return;
    pickle_put_string(p, "lr_lambdas");
    pickle_list_begin(p);
    for (size_t g = 0; g < s->n_groups; g++) {
        pickle_dict_begin(p);
        pickle_dict_end(p);
    }
    pickle_list_end(p);
}

void save_describe_kept(const struct schedule *s, size_t group, struct ckpt_group *g,
                        struct ckpt_setting room[SAVE_SETTINGS_MAX])
{
    _Static_assert(OPTIM_SAVED_SETTINGS_MAX + SCHEDULE_KEPT_MAX <= SAVE_SETTINGS_MAX, "both fit");
    const char *names[SCHEDULE_KEPT_MAX];
    double values[SCHEDULE_KEPT_MAX];
    const size_t n = schedule_kept(s, group, names, values);
    for (size_t i = 0; i < n; i++)
        room[g->n_settings++] =
            (struct ckpt_setting){.name = names[i], .kind = CKPT_NUMBER, .value = {values[i], 0}};
}
