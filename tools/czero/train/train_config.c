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
    cz_status st = print_rates(config, r->steps);
    config_free(config);
    return st;
}
