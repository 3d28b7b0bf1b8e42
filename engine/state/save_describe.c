/* The run in the terms of checkpoint/: groups, layout, scaler and config, as the writer of
 * DeepSpeed's files needs them. Pointers stay the engine's: a description is shorter-lived than the
 * run. */
#include "engine/state/save_impl.h"

#include <stdlib.h>
#include <string.h>

/* ---- param groups --------------------------------------------------------------------------- */

static cz_status describe_group(const struct cz_engine *e, size_t idx, struct ckpt_group *g,
                                struct ckpt_setting *room)
{
    struct zero_layout layout = zero_group_layout(e->desc.zero, idx);
    g->n_states = layout.n_states;
    TRY(save_describe_class(&e->desc.groups[idx], g, room));
    if (e->desc.config->scheduler.usable) save_describe_kept(&e->run.schedule, idx, g, room);
    g->step = (int64_t)e->run.n_updates;
    g->flat = layout.flat;
    g->shard = layout.shard;
    return CZ_OK;
}

static cz_status describe_groups(const struct cz_engine *e, struct save_description *d)
{
    const struct param_table *table = model_params(e->desc.model);
    d->group_of = calloc(table->n_params + 1, sizeof *d->group_of);
    d->groups = calloc(e->desc.n_groups, sizeof *d->groups);
    d->settings = calloc(e->desc.n_groups * SAVE_SETTINGS_MAX, sizeof *d->settings);
    if (!d->group_of || !d->groups || !d->settings)
        return err_set(CZ_NOMEM, 0, "no memory to describe %zu parameter groups", e->desc.n_groups);
    for (size_t g = 0; g < e->desc.n_groups; g++)
        TRY(describe_group(e, g, &d->groups[g], &d->settings[g * SAVE_SETTINGS_MAX]));
    for (size_t i = 0; i < table->n_params; i++)
        d->group_of[i] = table->params[i].trainable ? e->desc.group_of[i] : e->desc.n_groups;
    return CZ_OK;
}

/* ---- all of it ------------------------------------------------------------------------------ */

/* All of the scaler's state: a resumed run must skip and grow at the same steps. */
static struct ckpt_scaler describe_scaler(const struct loss_scale *s)
{
    return (struct ckpt_scaler){.dynamic = s->dynamic,
                                .consecutive_hysteresis = s->consecutive_hysteresis,
                                .scale = s->scale,
                                .factor = s->factor,
                                .min_scale = s->min_scale,
                                .iter = s->iter,
                                .last_overflow_iter = s->last_overflow_iter,
                                .window = s->window,
                                .delayed_shift = s->delayed_shift,
                                .hysteresis = s->hysteresis};
}

/* Everything that files repeat (config, settings, counters) is taken once, while the step stands
 * still. */
cz_status save_describe(const struct cz_engine *e, const char *dir, const struct cz_save_options *o,
                        bool exclude_frozen, struct save_description *d)
{
    const struct ds_config *c = e->desc.config;
    bool is_flat;
    memset(d, 0, sizeof *d);
    TRY(describe_groups(e, d));
    /* DeepSpeed wraps an optimizer, which its form decides: all groups have one there. */
    is_flat = optim_saved_as(&e->desc.groups[0].hyper)->flat_masters;
    for (size_t g = 1; g < e->desc.n_groups; g++)
        if (optim_saved_as(&e->desc.groups[g].hyper)->flat_masters != is_flat)
            return err_set(CZ_UNSUPPORTED, 0,
                           "optimizers %s and %s side by side: DeepSpeed's checkpoints hold the "
                           "masters of one",
                           e->desc.groups[0].hyper.cls->name, e->desc.groups[g].hyper.cls->name);
    /* Without an update there are no states: what remains are the settings and the masters. */
    for (size_t g = 0; o->weights_only && g < e->desc.n_groups; g++)
        d->groups[g].step = 0, d->groups[g].n_states = 0;
    if (!o->weights_only) TRY(save_describe_onebit(e, d));
    TRY(config_json(c, &d->config_json));
    const enum schedule_kind kind = c->scheduler.params.kind;
    const bool is_torchs = schedule_is_hf(kind) || schedule_is_torch(kind);
    d->options =
        (struct ckpt_write_options){.dir = dir,
                                    .table = model_params(e->desc.model),
                                    .group_of = d->group_of,
                                    .groups = d->groups,
                                    .n_groups = e->desc.n_groups,
                                    .stage = c->zero.stage,
                                    .rank = e->desc.comm->rank,
                                    .world_size = e->desc.comm->world_size,
                                    .dtype = e->desc.dtype,
                                    .state_dtype = c->state_dtype,
                                    .fp16 = c->fp16.enabled,
                                    .fused = is_flat,
                                    .master_dtype = c->master_dtype,
                                    .exclude_frozen = exclude_frozen,
                                    .clip_grad = c->gradient_clipping,
                                    .overflow = e->run.n_skipped_in_a_row > 0,
                                    .scaler = describe_scaler(&e->run.scale),
                                    .global_steps = e->run.global_steps,
                                    .global_samples = e->run.global_samples,
                                    .skipped_steps = e->run.skipped_steps,
                                    .has_scheduler = c->scheduler.usable,
                                    .last_batch_iteration = e->run.schedule.last_batch_iteration,
                                    .put_schedule = is_torchs ? save_put_schedule : NULL,
                                    .schedule = e,
                                    .onebit = d->onebit.optimizer ? &d->onebit : NULL,
                                    .ds_config_json = d->config_json,
                                    .client_state_json = o->client_state_json,
                                    .client_state_pickle = o->client_state_pickle,
                                    .client_state_nbytes = o->client_state_nbytes};
    return CZ_OK;
}

void save_description_free(struct save_description *d)
{
    free(d->groups);
    free(d->settings);
    free(d->group_of);
    free(d->segments);
    free(d->tensors);
    free(d->config_json);
    memset(d, 0, sizeof *d);
}
