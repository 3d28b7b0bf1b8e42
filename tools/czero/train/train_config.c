/* What a run needs to know of its config before there is an engine, and --dry-run-lr. */
#include "tools/czero/train/train.h"

#include "base/log.h"
#include "tools/czero/tool.h"

#include <stdio.h>

/* The same options as the engine's own parse later, so both see the same config. */
static cz_status open_config(const struct run *r, struct ds_config **out)
{
    const struct train_options *o = r->options;
    struct config_options options = config_args_options(&o->values, &r->wanted);
    enum device_kind kind;
    int ordinal;
    TRY(device_parse(o->device, &kind, &ordinal));
    options.on_gpu = kind == DEVICE_CUDA;
    options.world_size = engine_world_size(r->world);
    options.hidden_size = cz_model_hidden_size(r->model);
    options.total_steps = r->steps > 0 ? r->steps : CONFIG_ANY_STEPS;
    return config_load(o->config, &options, out);
}

/* The engine is created after the data, but the data needs the batch sizes: the config is parsed
 * once more, only for them. */
cz_status config_look(struct run *r)
{
    struct ds_config *config;
    log_set_level(LOG_ASKED, SUB_ALL); /* the engine says the same later */
    cz_status st = open_config(r, &config);
    tool_log_init(r->options->quiet);
    TRY(st);
    r->micro = config->train_micro_batch_size_per_gpu;
    r->accumulation = config->gradient_accumulation_steps;
    r->adapts = r->options->adapter || config->czero.lora.given;
    r->fp16 = config->model_dtype == DTYPE_F16;
    r->drop_last = config->dataloader_drop_last;
    config_free(config);
    return CZ_OK;
}

enum { STEPS_LOOKED_AT = 1000000 };

/* What a schedule does in the run's steps from `first` on. */
struct rates {
    int64_t first, last;                       /* steps of this run */
    int64_t n_zero, n_zero_first, n_zero_last; /* in all, from the first on, up to the last */
    double end;                                /* of the last step … */
    int64_t n_flat;                            /* … and of so many up to it */
};

static cz_status look_at_rates(const struct ds_config *config, int64_t first, int64_t last,
                               struct rates *out)
{
    struct optim_group group;
    struct schedule schedule;
    *out = (struct rates){.first = first, .last = last};
    TRY(optim_group_init(&group, &config->optimizer.hyper, NULL));
    TRY(schedule_init(&schedule, &config->scheduler.params, &group, 1));
    for (int64_t step = 1; step <= last; step++) {
        if (step >= first && group.lr == 0) {
            out->n_zero++;
            out->n_zero_last++;
            out->n_zero_first += out->n_zero_first == step - first;
        } else {
            out->n_zero_last = 0;
        }
        out->n_flat = group.lr == out->end && step > first ? out->n_flat + 1 : 1;
        out->end = group.lr;
        if (step < last) TRY(schedule_step(&schedule, &group));
    }
    return CZ_OK;
}

/* 0: no schedule that ends. */
static int64_t end_of(const struct config_scheduler *s)
{
    const struct setting_table *table = schedule_settings(&s->params);
    const double total = s->params.total_num_steps;
    if (!table || settings_find(table, "total_num_steps") < 0) return 0;
    return total < (double)STEPS_LOOKED_AT ? (int64_t)total : 0;
}

static void say_rates(const struct ds_config *config, const struct rates *x)
{
    const int64_t end = end_of(&config->scheduler), n = x->last - x->first + 1;
    if (end > 0 && end < x->last && (x->n_flat > 1 || x->end == 0)) {
        LOGV(LOG_WARN, SUB_CONFIG,
             "the schedule ends at step %lld of %lld; the last %lld step%s ha%s a rate of %g: "
             "\"total_num_steps\": \"auto\" is the length of the run",
             (long long)end, (long long)x->last, (long long)x->n_flat, x->n_flat == 1 ? "" : "s",
             x->n_flat == 1 ? "s" : "ve", x->end);
        return;
    }
    /* DeepSpeed's warm-ups begin with two updates at their minimum. */
    if (x->n_zero > 0 && x->n_zero == x->n_zero_first && x->n_zero < n)
        LOGV(x->n_zero > 2 ? LOG_WARN : LOG_INFO, SUB_CONFIG,
             "the schedule begins with a rate of 0 for %lld of %lld steps", (long long)x->n_zero,
             (long long)n);
    else if (x->n_zero > 0)
        LOGV(LOG_WARN, SUB_CONFIG, "the rate is 0 in %lld of %lld step%s%s", (long long)x->n_zero,
             (long long)n, n == 1 ? "" : "s", x->n_zero_last > 0 ? ", the last among them" : "");
}

cz_status config_say_rates(const struct run *r)
{
    struct ds_config *config;
    struct rates rates;
    const int64_t first = r->resume.has_run ? r->resume.run.global_steps + 1 : 1;
    if (!run_is_first_rank(r) || r->steps > STEPS_LOOKED_AT || first > r->steps) return CZ_OK;
    log_set_level(LOG_ASKED, SUB_ALL); /* the config was looked at before */
    cz_status st = open_config(r, &config);
    tool_log_init(r->options->quiet);
    TRY(st);
    if (config->optimizer.usable && config->scheduler.usable &&
        look_at_rates(config, first, r->steps, &rates) == CZ_OK)
        say_rates(config, &rates);
    err_clear(); /* a schedule without a rate stops the run where it has none */
    config_free(config);
    return CZ_OK;
}

/* As --curve writes them: its lr_next is the next row's rate here. */
static cz_status print_rates(const struct ds_config *config, int64_t n_steps)
{
    struct optim_group group;
    struct schedule schedule;
    TRY(config_check(config));
    if (!config->optimizer.usable)
        return err_set(CZ_INVALID, 0, "--dry-run-lr: the config has no optimizer");
    TRY(optim_group_init(&group, &config->optimizer.hyper, NULL));
    if (config->scheduler.usable)
        TRY(schedule_init(&schedule, &config->scheduler.params, &group, 1));
    printf("step,lr\n");
    for (int64_t step = 1; step <= n_steps && !ferror(stdout); step++) {
        printf("%lld,%.17g\n", (long long)step, group.lr);
        if (config->scheduler.usable) TRY(schedule_step(&schedule, &group));
    }
    return CZ_OK;
}

/* --dry-run-lr: runs the schedule alone, with the optimizer's real group. */
cz_status config_print_rates(const struct run *r)
{
    struct ds_config *config;
    if (!run_is_first_rank(r)) return CZ_OK;
    TRY(open_config(r, &config));
    for (size_t i = 0; i < config_n_notes(config); i++)
        if (config_note(config, i)->kind == CONFIG_NOTE_UNEXPECTED)
            LOGV(LOG_WARN, SUB_CONFIG, "%s", config_note(config, i)->text);
    cz_status st = print_rates(config, r->steps);
    config_free(config);
    return st;
}
