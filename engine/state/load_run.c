/* Where the saved run stood. czero's own state file says it exactly; for DeepSpeed's checkpoints it
 * is put together from the keys of its files
 * (docs/deepspeed-behaviour.md, "Model file" and "Optimizer files"). */
#include "engine/state/load_impl.h"

#include "base/log.h"

#include <math.h>
#include <string.h>

/* ---- counters and constants ----------------------------------------------------------------- */

static double number(const struct load *l, const struct pickle_node *dict, const char *key,
                     double fallback)
{
    double value;
    return ckpt_number(l->ck, pickle_get(dict, key), &value) ? value : fallback;
}

#define COUNT_MAX ((int64_t)1 << 53) /* what a double counts exactly */

/* *out stays when the key is not there. */
static cz_status take_count(const struct load *l, const char *key, int64_t *out)
{
    double value;
    const struct pickle_node *node = pickle_get(ckpt_model_states(l->ck), key);
    if (!ckpt_number(l->ck, node, &value)) return CZ_OK;
    if (!(value >= 0 && value <= (double)COUNT_MAX))
        return err_set(CZ_CORRUPT, 0, "%s: %s cannot be %g", ckpt_get_info(l->ck)->tag_dir, key,
                       value);
    *out = (int64_t)value;
    return CZ_OK;
}

/* A group's place in the checkpoint is that of its first parameter which was trained there. */
static bool saved_group(const struct load *l, size_t group, size_t *saved)
{
    const struct param_table *table = model_params(l->e->desc.model);
    for (size_t i = 0; i < table->n_params; i++) {
        if (!l->weights[i] || !table->params[i].trainable || l->e->desc.group_of[i] != group)
            continue;
        const struct ckpt_tensor *t = ckpt_at(l->ck, l->tensor_of[i]);
        if (t->kind != CKPT_TRAINED) continue;
        *saved = t->group;
        return true;
    }
    return false;
}

/* The checkpoint's constants are used, as in DeepSpeed; where the config says otherwise, say so,
 * unless a schedule moves them anyway. */
static cz_status take_constant(const struct load *l, const char *name, double value, bool moves,
                               double *field)
{
    if (!isfinite(value))
        return err_set(CZ_CORRUPT, 0, "%s: %s in param_groups cannot be %g",
                       ckpt_get_info(l->ck)->tag_dir, name, value);
    if (value != *field && !moves && l->e->desc.comm->rank == 0)
        LOGV(LOG_WARN, SUB_CKPT, "%s: using %g from the checkpoint; the config has %g", name, value,
             *field);
    *field = value;
    return CZ_OK;
}

/* A setting that this optimizer does not have is not looked for. */
static cz_status take_setting(const struct load *l, const struct pickle_node *saved,
                              const struct optim_hyper *hyper, const char *name, double *field)
{
    if (settings_find(optim_settings(hyper), name) < 0) return CZ_OK;
    return take_constant(l, name, number(l, saved, name, *field), false, field);
}

/* DeepSpeed's keys first; czero's own file then says exactly what they only imply. */
static cz_status restore_counters(struct load *l)
{
    struct cz_engine *e = l->e;
    e->run.global_steps = e->run.skipped_steps = 0;
    TRY(take_count(l, "global_steps", &e->run.global_steps));
    TRY(take_count(l, "skipped_steps", &e->run.skipped_steps));
    if (__builtin_mul_overflow(e->run.global_steps, e->desc.config->train_batch_size,
                               &e->run.global_samples))
        e->run.global_samples = COUNT_MAX;
    TRY(take_count(l, "global_samples", &e->run.global_samples));
    /* Only whether a boundary is due depends on it: at a save none was. */
    const int64_t gas = e->desc.config->gradient_accumulation_steps;
    if (__builtin_mul_overflow(e->run.global_steps, gas, &e->run.micro_steps))
        e->run.micro_steps = 0;
    e->run.n_skipped_in_a_row = 0;
    e->run.n_scales = 0;
    if (!l->has_run_state) return CZ_OK;
    if (l->run.global_steps != e->run.global_steps)
        return err_set(CZ_CORRUPT, 0,
                       "%s: the model's file is of step %lld, " CKPT_STATE
                       " of step %lld: files of two saves",
                       ckpt_get_info(l->ck)->tag_dir, (long long)e->run.global_steps,
                       (long long)l->run.global_steps);
    if (!e->desc.config->managed_gradient_accumulation || l->run.micro_steps % gas == 0)
        e->run.micro_steps = l->run.micro_steps;
    e->run.n_skipped_in_a_row = l->run.n_skipped_in_a_row;
    e->run.n_scales = l->run.n_scales;
    memcpy(e->run.scale_history, l->run.scale_history, sizeof e->run.scale_history);
    e->desc.seed = l->run.seed;
    return CZ_OK;
}

/* torch would take these from the checkpoint without a word; as for DeepSpeed's schedules, only the
 * position is taken. */
static void say_other_settings(const struct load *l, const struct pickle_node *saved)
{
    const struct schedule *s = &l->e->run.schedule;
    size_t n;
    const struct schedule_entry *entries = schedule_entries(s->params.kind, &n);
    for (size_t i = 0; i < n && l->e->desc.comm->rank == 0; i++) {
        const void *field = (const char *)&s->params.torch + entries[i].offset;
        const bool is_int = entries[i].kind == SCHEDULE_ENTRY_INT;
        double have;
        if (entries[i].kind > SCHEDULE_ENTRY_INT || strcmp(entries[i].key, "T_cur") == 0 ||
            strcmp(entries[i].key, "T_i") == 0)
            continue;
        const double want = is_int ? (double)*(const int64_t *)field : *(const double *)field;
        if (ckpt_number(l->ck, pickle_get(saved, entries[i].key), &have) && have != want)
            LOGV(LOG_WARN, SUB_CKPT, "%s: %g in the checkpoint; the config's %g is used",
                 entries[i].key, have, want);
    }
}

/* The position is restored, not the rates: these come with the optimizer's groups. *restored:
 * whether the checkpoint had a position. */
static cz_status restore_schedule(struct load *l, bool *restored)
{
    struct cz_engine *e = l->e;
    *restored = false;
    if (l->options->no_lr_scheduler || !e->desc.config->scheduler.usable) return CZ_OK;
    const struct pickle_node *saved = pickle_get(ckpt_model_states(l->ck), "lr_scheduler");
    int64_t last;
    /* torch's schedules count from 0; transformers' are torch's LambdaLR. */
    const bool is_torchs = pickle_to_int(pickle_get(saved, "last_epoch"), &last);
    if (is_torchs && last >= 0 && last <= COUNT_MAX) {
        last--;
    } else if (!is_torchs && !pickle_to_int(pickle_get(saved, "last_batch_iteration"), &last)) {
        if (e->desc.comm->rank == 0)
            LOGV(LOG_WARN, SUB_CKPT,
                 "the checkpoint has no learning-rate schedule: it starts from the beginning");
        return CZ_OK;
    }
    if (last < -1 || last > COUNT_MAX)
        return err_set(CZ_CORRUPT, 0, "%s: %s cannot be %lld", ckpt_get_info(l->ck)->tag_dir,
                       is_torchs ? "last_epoch" : "last_batch_iteration", (long long)last);
    schedule_restore(&e->run.schedule, last);
    say_other_settings(l, saved);
    *restored = true;
    return CZ_OK;
}

/* Absent or of another type: the field stays. */
static void take_bool(const struct pickle_node *value, bool *field)
{
    bool taken;
    if (pickle_to_bool(value, &taken)) *field = taken;
}

static void take_number(const struct load *l, const struct pickle_node *value, double *field)
{
    double taken;
    if (ckpt_number(l->ck, value, &taken)) *field = taken;
}

static void take_int(const struct pickle_node *value, int64_t *field)
{
    int64_t taken;
    if (pickle_to_int(value, &taken)) *field = taken;
}

/* Of DeepSpeed's scaler object; stage 0 keeps a few of its fields beside the optimizer's states. */
static const struct pickle_node *scale_field(const struct load *l, const char *key)
{
    const struct pickle_node *optim = ckpt_optim_states(l->ck);
    const struct pickle_node *scaler = pickle_get(optim, "loss_scaler");
    return scaler ? pickle_attr(scaler, key) : pickle_get(optim, key);
}

/* All fields, because the window and the hysteresis count from the last overflow. */
static void take_deepspeed_scale(const struct load *l, struct loss_scale *s)
{
    take_bool(scale_field(l, "dynamic"), &s->dynamic);
    take_number(l, scale_field(l, "cur_scale"), &s->scale);
    take_int(scale_field(l, "cur_iter"), &s->iter);
    take_int(scale_field(l, "last_overflow_iter"), &s->last_overflow_iter);
    take_number(l, scale_field(l, "scale_factor"), &s->factor);
    take_int(scale_field(l, "scale_window"), &s->window);
    take_number(l, scale_field(l, "min_scale"), &s->min_scale);
    take_int(scale_field(l, "delayed_shift"), &s->delayed_shift);
    take_int(scale_field(l, "cur_hysteresis"), &s->hysteresis);
    take_bool(scale_field(l, "consecutive_hysteresis"), &s->consecutive_hysteresis);
}

/* A scale is worth keeping between two runs in fp16 only. */
static cz_status restore_scale(struct load *l)
{
    struct cz_engine *e = l->e;
    const struct pickle_dtype *saved = ckpt_get_info(l->ck)->model_dtype;
    if (!e->desc.config->fp16.enabled || !saved || !saved->has_base || saved->base != DTYPE_F16)
        return CZ_OK;
    struct loss_scale scale = l->has_run_state ? l->run.scale : e->run.scale;
    if (!l->has_run_state) take_deepspeed_scale(l, &scale);
    if (loss_scale_check(&scale) != CZ_OK)
        return err_prefix("%s: loss scale", ckpt_get_info(l->ck)->tag_dir);
    e->run.scale = scale;
    return CZ_OK;
}

/* Whether the config's schedule gives another rate for the next update than the saved run's. The
 * config's rate is used then. The schedules of torch may differ in rounding, so rates may, too. */
static bool is_other_rate(const struct load *l, size_t g, double saved)
{
    const double ours =
        schedule_lr(&l->e->run.schedule, l->e->run.schedule.last_batch_iteration, g);
    return fabs(ours - saved) > 1e-9 * fmax(fabs(ours), fabs(saved));
}

static void take_own_rates(struct load *l, size_t g, double saved)
{
    struct optim_group *group = &l->e->desc.groups[g];
    struct schedule *s = &l->e->run.schedule;
    schedule_write_lr(s, g, group);
    schedule_write_betas(s, g, group);
    if (g == 0 && l->e->desc.comm->rank == 0)
        LOGV(LOG_WARN, SUB_CKPT,
             "the next step has the rate %g of the config's schedule; the checkpoint's had left %g",
             group->lr, saved);
}

/* Counters and schedule belong to the model; the optimizer's settings come with its states only. */
cz_status load_run(struct load *l)
{
    if (l->options->module_only) return CZ_OK;
    TRY(restore_counters(l));
    bool has_position;
    TRY(restore_schedule(l, &has_position));
    if (!l->with_states) return CZ_OK;
    for (size_t g = 0; g < l->e->desc.n_groups; g++) {
        static const char *const names[] = {"betas[0]", "betas[1]"};
        struct optim_group *group = &l->e->desc.groups[g];
        size_t saved;
        if (saved_group(l, g, &saved)) {
            const struct pickle_node *settings = ckpt_param_group(l->ck, saved);
            const struct pickle_node *betas = pickle_get(settings, "betas");
            /* Elastic files hold no groups, so no rate: the schedule says what it was. */
            if (has_position && !pickle_get(settings, "lr"))
                schedule_write_lr(&l->e->run.schedule, g, group);
            if (has_position && !betas) schedule_write_betas(&l->e->run.schedule, g, group);
            double lr = number(l, settings, "lr", group->lr);
            TRY(take_constant(l, "lr", lr, l->e->desc.config->scheduler.usable, &group->lr));
            for (size_t i = 0; group->hyper.cls->has_betas && betas && betas->n == 2 && i < 2;
                 i++) {
                double beta = group->betas[i];
                pickle_to_double(betas->items[i], &beta);
                TRY(take_constant(l, names[i], beta, l->e->run.schedule.cycles_momentum,
                                  &group->betas[i]));
            }
            TRY(take_setting(l, settings, &group->hyper, "weight_decay",
                             &group->hyper.weight_decay));
            TRY(take_setting(l, settings, &group->hyper, "eps", &group->hyper.eps));
        }
    }
    /* SGD's momentum is not among what a run's own file holds of a group. */
    if (has_position && schedule_is_torch(l->e->run.schedule.params.kind))
        for (size_t g = 0; g < l->e->desc.n_groups; g++)
            if (!l->e->desc.groups[g].hyper.cls->has_betas)
                schedule_write_betas(&l->e->run.schedule, g, &l->e->desc.groups[g]);
    for (size_t g = 0;
         l->has_run_state && g < l->e->desc.n_groups && l->run.n_groups == l->e->desc.n_groups;
         g++) {
        l->e->desc.groups[g].lr = l->run.lrs[g];
        memcpy(l->e->desc.groups[g].betas, l->run.betas[g], sizeof l->run.betas[g]);
    }
    for (size_t g = 0; l->e->desc.config->scheduler.usable && !l->options->no_lr_scheduler &&
                       g < l->e->desc.n_groups;
         g++)
        if (is_other_rate(l, g, l->e->desc.groups[g].lr))
            take_own_rates(l, g, l->e->desc.groups[g].lr);
    /* The rules are those for a config. A schedule that cycles momentum may have left a beta1 that
     * it would not set here. */
    for (size_t g = 0; g < l->e->desc.n_groups; g++) {
        struct optim_group *group = &l->e->desc.groups[g];
        if (l->e->run.schedule.cycles_momentum && group->betas[0] >= 1)
            group->betas[0] = SCHEDULE_BETA1_MAX;
        struct optim_group moved = *group; /* with the sum of rates in place of the rate */
        if (l->has_run_state && l->run.onebit.has_lrs && g < l->run.n_groups)
            moved.lr = l->run.onebit.lrs[g];
        if (optim_group_check(group) != CZ_OK || optim_group_check(&moved) != CZ_OK)
            return err_set(CZ_CORRUPT, 0, "%s: parameter group %zu: %s",
                           ckpt_get_info(l->ck)->tag_dir, g, cz_last_error());
    }
    TRY(restore_scale(l));
    /* Updates applied so far; all groups' states have seen the same. */
    int64_t step = -1;
    for (size_t g = 0; g < l->e->desc.n_groups; g++) {
        size_t saved;
        if (!saved_group(l, g, &saved)) continue;
        int64_t of_group = ckpt_group_step(l->ck, saved);
        if (step >= 0 && of_group >= 0 && of_group != step)
            return err_set(CZ_UNSUPPORTED, 0,
                           "%s: parameter groups have seen %lld and %lld updates",
                           ckpt_get_info(l->ck)->tag_dir, (long long)step, (long long)of_group);
        if (of_group >= 0) step = of_group;
    }
    if (l->fresh_states && step < 0) step = 0;
    if (step < 0) step = l->e->run.global_steps - l->e->run.skipped_steps;
    l->e->run.n_updates = l->has_run_state ? l->run.n_updates : (uint64_t)step;
    return CZ_OK;
}
