/* An offer's plan: from the config that it would write, so that the plan is the one that a run of
 * this config makes. Budgets are the host's, shared by all ranks; a plan is one rank's. */
#include "engine/tune/tune_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

size_t tune_budget_nbytes(const struct tune *t, enum tune_budget b)
{
    const struct tune_options *o = &t->options;
    return b == TUNE_GPU ? o->gpu_nbytes : b == TUNE_HOST ? o->host_nbytes : o->nvme_nbytes;
}

/* 2 % for what a plan cannot know (fragments, libraries), at least 32 MiB a rank in the host. */
size_t tune_margin(const struct tune *t, enum tune_budget b, size_t need_nbytes)
{
    size_t share = need_nbytes / 50, least = (size_t)t->options.world_size << 25;
    if (b == TUNE_NVME) return 0; /* a file is exactly as large as planned */
    return b == TUNE_HOST && share < least ? least : share;
}

size_t tune_excess(const struct tune *t, const struct tune_offer *o, enum tune_budget b)
{
    size_t need = o->need_nbytes[b], budget = tune_budget_nbytes(t, b);
    if (need > 0) need += tune_margin(t, b, need);
    return need > budget ? need - budget : 0;
}

/* An offer that no plan can be made for is an error: the schemes are legal configs. */
cz_status tune_plan(struct tune *t, struct cz_model *model, struct tune_offer *o)
{
    struct plan_request request = {.world_size = t->options.world_size,
                                   .profile = t->options.profile,
                                   .baseline_nbytes = t->options.baseline_nbytes,
                                   .order_host_nbytes = t->options.host_nbytes,
                                   .both_orders = o->both_orders};
    struct cz_engine_options options = {.size = sizeof options,
                                        .trains_batches = true,
                                        .device = t->options.gpu_nbytes > 0 ? "cuda" : "cpu"};
    struct cz_plan *p = NULL;
    char *config = NULL;
    TRY(tune_config(t, o, &config));
    options.config_json = config;
    cz_status st = plan_create_ex(&options, &request, model, &p);
    free(config);
    if (st != CZ_OK) return st;
    if (t->n_plans++ == 0) t->options.baseline_nbytes = p->baseline_nbytes;
    /* The plan is one rank's; budgets of the host and of NVMe are shared by all ranks. */
    size_t n_ranks = (size_t)t->options.world_size;
    o->need_nbytes[TUNE_GPU] = p->device_peak_nbytes;
    o->need_nbytes[TUNE_HOST] = p->host_peak_nbytes * n_ranks;
    o->need_nbytes[TUNE_NVME] = p->nvme_nbytes * n_ranks;
    o->fits = true;
    for (int b = 0; b < TUNE_N_BUDGETS; b++)
        if (tune_excess(t, o, (enum tune_budget)b) > 0) o->fits = false;
    memcpy(o->phases, p->phases, sizeof o->phases);
    memcpy(o->traffic, p->traffic, sizeof o->traffic);
    o->order = p->order;
    snprintf(o->order_why, sizeof o->order_why, "%s", p->order_why);
    memcpy(o->saved, p->saved, sizeof o->saved);
    snprintf(o->saved_why, sizeof o->saved_why, "%s", p->saved_why);
    o->seconds = p->step_s;
    o->tokens_per_s = (double)(tune_rows(t, o) * t->T) / p->step_s;
    cz_plan_destroy(p);
    return CZ_OK;
}
