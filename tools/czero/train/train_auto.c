/* Values for "auto" in the config: from flags of czero train, from the model and from the length of
 * the run. Flags only fill "auto", as in transformers' DeepSpeed integration; a key that the config
 * sets wins, and the flag is reported as unused. */
#include "tools/czero/train/train.h"

#include "base/log.h"
#include "engine/config/config.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void auto_add(struct auto_values *a, const char *path, const char *fmt, ...) CZ_PRINTF(3, 4);

static void auto_add(struct auto_values *a, const char *path, const char *fmt, ...)
{
    if (a->n_texts == CZ_ARRAY_LEN(a->texts)) return;
    char *text = a->texts[a->n_texts++];
    int n = snprintf(text, sizeof a->texts[0], "%s=", path);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text + n, sizeof a->texts[0] - (size_t)n, fmt, ap);
    va_end(ap);
    a->items[a->n_items++] = text;
}

/* --auto comes first in the list, because the first assignment replaces the "auto" and later ones
 * find none. */
void auto_from_flags(struct auto_values *a, const struct train_options *o,
                     const struct cz_model *model, int world_size, int64_t steps)
{
    a->n_texts = a->n_items = 0;
    for (size_t i = 0; i < o->autos.n; i++) a->items[a->n_items++] = o->autos.items[i];
    auto_add(a, "hidden_size", "%lld", (long long)cz_model_hidden_size(model));
    auto_add(a, "scheduler.params.total_num_steps", "%lld", (long long)steps);
    auto_add(a, "scheduler.params.warmup_min_lr", "0");
    if (o->micro_batch > 0)
        auto_add(a, "train_micro_batch_size_per_gpu", "%lld", (long long)o->micro_batch);
    if (o->accumulation > 0)
        auto_add(a, "gradient_accumulation_steps", "%lld", (long long)o->accumulation);
    if (o->micro_batch > 0)
        auto_add(
            a, "train_batch_size", "%lld",
            (long long)(o->micro_batch * (o->accumulation > 0 ? o->accumulation : 1) * world_size));
    if (!isnan(o->lr)) {
        auto_add(a, "optimizer.params.lr", "%.17g", o->lr);
        auto_add(a, "scheduler.params.warmup_max_lr", "%.17g", o->lr);
    }
    if (o->warmup_steps >= 0)
        auto_add(a, "scheduler.params.warmup_num_steps", "%lld", (long long)o->warmup_steps);
    if (!isnan(o->weight_decay))
        auto_add(a, "optimizer.params.weight_decay", "%.17g", o->weight_decay);
    if (!isnan(o->max_grad_norm)) auto_add(a, "gradient_clipping", "%.17g", o->max_grad_norm);
    if (o->precision) {
        auto_add(a, "fp16.enabled", "%s", strcmp(o->precision, "fp16") == 0 ? "true" : "false");
        auto_add(a, "bf16.enabled", "%s", strcmp(o->precision, "bf16") == 0 ? "true" : "false");
    }
}

/* A flag that fills no "auto" is not silently dropped: say what is in force instead. */
static void warn_unused(const char *flag, const char *path, double given, double in_force)
{
    if (isnan(given) || given == in_force) return;
    LOGV(LOG_WARN, SUB_CONFIG,
         "%s %g has no effect: the config sets %s to %g (write \"auto\" there, or use --set)", flag,
         given, path, in_force);
}

/* Compared with the value in force: a flag that says the same as the config needs no warning. */
static void warn_unused_flags(const struct train_options *o, const struct ds_config *c)
{
    double micro = o->micro_batch > 0 ? (double)o->micro_batch : NAN;
    double accumulation = o->accumulation > 0 ? (double)o->accumulation : NAN;
    double warmup = o->warmup_steps >= 0 ? (double)o->warmup_steps : NAN;
    warn_unused("--micro-batch", "train_micro_batch_size_per_gpu", micro,
                (double)c->train_micro_batch_size_per_gpu);
    warn_unused("--accumulation", "gradient_accumulation_steps", accumulation,
                (double)c->gradient_accumulation_steps);
    warn_unused("--lr", "optimizer.params.lr", o->lr, c->optimizer.hyper.lr);
    warn_unused("--weight-decay", "optimizer.params.weight_decay", o->weight_decay,
                c->optimizer.hyper.weight_decay);
    warn_unused("--max-grad-norm", "gradient_clipping", o->max_grad_norm, c->gradient_clipping);
    bool has_warmup = c->scheduler.usable && (c->scheduler.params.kind == SCHEDULE_WARMUP ||
                                              c->scheduler.params.kind == SCHEDULE_WARMUP_DECAY ||
                                              c->scheduler.params.kind == SCHEDULE_WARMUP_COSINE);
    if (!has_warmup && !isnan(warmup))
        LOGV(LOG_WARN, SUB_CONFIG,
             "--warmup-steps has no effect: the config has no warm-up scheduler");
    /* DeepSpeed's schedules warm up for at least two steps. */
    if (has_warmup && warmup >= 2)
        warn_unused("--warmup-steps", "scheduler.params.warmup_num_steps", warmup,
                    (double)c->scheduler.params.warmup_num_steps);
    if (o->precision && strcmp(o->precision, dtype_name(c->model_dtype)) != 0)
        LOGV(
            LOG_WARN, SUB_CONFIG,
            "--precision %s has no effect: the config trains in %s (write \"auto\" in fp16.enabled "
            "and bf16.enabled, or use --set)",
            o->precision, dtype_name(c->model_dtype));
}

/* The same options as the engine's own parse later, so both see the same config. */
static cz_status open_config(const struct run *r, struct ds_config **out)
{
    const struct train_options *o = r->options;
    struct config_options options = config_options_default();
    enum device_kind kind;
    int ordinal;
    TRY(device_parse(o->device, &kind, &ordinal));
    options.autos = r->autos.items;
    options.n_autos = r->autos.n_items;
    options.sets = o->set.items;
    options.n_sets = o->set.n;
    options.strict = o->strict;
    options.on_gpu = kind == DEVICE_CUDA;
    options.world_size = engine_world_size(r->world);
    if (o->compat)
        options.compat = strcmp(o->compat, "0.16") == 0 ? CONFIG_COMPAT_0_16 : CONFIG_COMPAT_0_19;
    return config_load(o->config, &options, out);
}

/* The engine is created after the data, but the data needs the batch sizes: the config is parsed
 * once more, only for them. */
cz_status config_look(struct run *r, bool warn)
{
    struct ds_config *config;
    TRY(open_config(r, &config));
    if (warn && run_is_first_rank(r)) warn_unused_flags(r->options, config);
    r->micro = config->train_micro_batch_size_per_gpu;
    r->accumulation = config->gradient_accumulation_steps;
    r->fp16 = config->model_dtype == DTYPE_F16;
    r->drop_last = config->dataloader_drop_last;
    r->steps_managed = config->managed_gradient_accumulation;
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
        if (config->scheduler.usable) schedule_step(&schedule, &group);
    }
    return CZ_OK;
}

/* --dry-run-lr: runs the schedule alone, with the optimizer's real group. */
cz_status config_print_rates(const struct run *r)
{
    struct ds_config *config;
    if (!run_is_first_rank(r)) return CZ_OK;
    TRY(open_config(r, &config));
    cz_status st = print_rates(config, r->steps);
    config_free(config);
    return st;
}
