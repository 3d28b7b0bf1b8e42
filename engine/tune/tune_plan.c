/* An offer's plan: from the config that it would write, so that the plan is the one that a run of
 * this config makes. Budgets are the host's, shared by all ranks; a plan is one rank's. */
#include "base/hash.h"
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

/* ---- plans that were made -------------------------------------------------------------------- */

/* Sizes that a config of this stage does not have are left out (tune_config.c). */
static struct tune_key key_of(const struct tune_offer *o)
{
    struct tune_key k;
    memset(&k, 0, sizeof k); /* gaps, too: keys are compared as bytes */
    k.stage = o->stage;
    k.optimizer = o->optimizer;
    k.params = o->params;
    k.gradients = o->gradients;
    k.cpu_checkpointing = o->cpu_checkpointing;
    k.both_orders = o->both_orders;
    k.ratio = o->ratio;
    k.max_in_cpu = o->max_in_cpu;
    k.checkpoint_every = o->checkpoint_every;
    k.bucket_numel = o->stage > 0 ? o->bucket_numel : 0;
    k.prefetch_numel = o->stage == 3 ? o->prefetch_numel : 0;
    k.live_numel = o->stage == 3 ? o->live_numel : 0;
    k.micro_batch = o->micro_batch;
    k.accumulation = o->accumulation;
    return k;
}

static struct tune_memo **list_of(struct tune *t, const struct tune_key *key)
{
    return &t->memos[hash_fixed(HASH_FIXED_BEGIN, key, sizeof *key) % TUNE_N_MEMOS];
}

static void judge(const struct tune *t, struct tune_offer *o)
{
    o->fits = true;
    for (int b = 0; b < TUNE_N_BUDGETS; b++)
        if (tune_excess(t, o, (enum tune_budget)b) > 0) o->fits = false;
}

/* Budgets of disks are not in a plan: the search for one that would do judges by another. */
static bool recall(struct tune *t, const struct tune_key *key, struct tune_offer *o)
{
    struct tune_memo *m = *list_of(t, key);
    while (m && memcmp(&m->key, key, sizeof *key) != 0) m = m->next;
    if (!m) return false;
    const struct tune_offer asked = *o;
    *o = m->offer;
    o->bucket_numel = asked.bucket_numel;
    o->prefetch_numel = asked.prefetch_numel;
    o->live_numel = asked.live_numel;
    judge(t, o);
    return true;
}

static cz_status keep(struct tune *t, const struct tune_key *key, const struct tune_offer *o)
{
    struct tune_memo *m = malloc(sizeof *m), **list = list_of(t, key);
    if (!m) return err_set(CZ_NOMEM, 0, "no memory for a plan");
    *m = (struct tune_memo){.offer = *o, .next = *list};
    memcpy(&m->key, key, sizeof *key); /* gaps, too */
    *list = m;
    return CZ_OK;
}

void tune_forget(struct tune *t)
{
    for (size_t i = 0; t->memos && i < TUNE_N_MEMOS; i++)
        while (t->memos[i]) {
            struct tune_memo *next = t->memos[i]->next;
            free(t->memos[i]);
            t->memos[i] = next;
        }
    free(t->memos);
    t->memos = NULL;
    ops_destroy(t->host_ops);
    device_close(t->host);
    t->host_ops = NULL;
    t->host = NULL;
}

/* ---- a plan ---------------------------------------------------------------------------------- */

/* An offer that no plan can be made for is an error: the schemes are legal configs. */
cz_status tune_plan(struct tune *t, struct cz_model *model, struct tune_offer *o)
{
    const struct tune_key key = key_of(o);
    if (recall(t, &key, o)) return CZ_OK;
    struct plan_request request = {.world_size = t->options.world_size,
                                   .profile = t->options.profile,
                                   .baseline_nbytes = t->options.baseline_nbytes,
                                   .gpu_nbytes = t->options.gpu_nbytes, /* opens no GPU here */
                                   .order_host_nbytes = t->options.host_nbytes,
                                   .host = t->host,
                                   .host_ops = t->host_ops,
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
    /* The first plan has set up the threads. */
    if (t->n_plans++ == 0) {
        t->options.baseline_nbytes = p->baseline_nbytes;
        st = device_open("cpu", 0, &t->host);
        if (st == CZ_OK) st = ops_create(t->host, &t->host_ops);
    }
    /* The plan is one rank's; budgets of the host and of NVMe are shared by all ranks. */
    size_t n_ranks = (size_t)t->options.world_size;
    o->need_nbytes[TUNE_GPU] = p->device_peak_nbytes;
    o->need_nbytes[TUNE_HOST] = p->host_peak_nbytes * n_ranks;
    o->need_nbytes[TUNE_NVME] = p->nvme_nbytes * n_ranks;
    judge(t, o);
    memcpy(o->phases, p->phases, sizeof o->phases);
    memcpy(o->traffic, p->traffic, sizeof o->traffic);
    o->order = p->order;
    snprintf(o->order_why, sizeof o->order_why, "%s", p->order_why);
    memcpy(o->saved, p->saved, sizeof o->saved);
    snprintf(o->saved_why, sizeof o->saved_why, "%s", p->saved_why);
    o->seconds = p->step_s;
    o->tokens_per_s = (double)(tune_rows(t, o) * t->T) / p->step_s;
    cz_plan_destroy(p);
    return st == CZ_OK ? keep(t, &key, o) : st;
}
