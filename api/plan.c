/* Public plans and tuning: their types and options, in terms of engine/plan and engine/tune. */
#include "engine/plan/plan.h"
#include "base/host/entry.h"
#include "base/options.h"
#include "engine/machine/machine.h"
#include "engine/tune/tune.h"

#include <czero/plan.h>

#include <math.h>
#include <stdlib.h>

/* ---- plan ------------------------------------------------------------------------------------ */

_Static_assert((int)CZ_PLACE_HOST == (int)PLAN_HOST && (int)CZ_PLACE_DEVICE == (int)PLAN_DEVICE &&
                   (int)CZ_PLACE_PINNED == (int)PLAN_PINNED && (int)CZ_PLACE_NVME == (int)PLAN_NVME,
               "public and internal places agree");

cz_status cz_plan_create(const struct cz_engine_options *options, const struct cz_plan_options *how,
                         struct cz_model *model, struct cz_plan **out)
{
    API_ENTRY;
    NEED(out, "out");
    struct cz_engine_options engine;
    struct cz_plan_options ours;
    struct machine_profile profile;
    *out = NULL;
    NEED(options, "options");
    NEED(model, "model");
    TRY(OPTIONS_TAKE(cz_engine_options, &engine, options));
    TRY(OPTIONS_TAKE(cz_plan_options, &ours, how));
    if (ours.world_size < 0)
        return err_set(CZ_INVALID, 0, "a world of %lld ranks cannot be planned",
                       (long long)ours.world_size);
    if (ours.profile_path) TRY(machine_read(ours.profile_path, &profile));
    const struct plan_request request = {.world_size = ours.world_size ? ours.world_size : 1,
                                         .profile = ours.profile_path ? &profile : NULL};
    return plan_create_ex(&engine, &request, model, out);
}

size_t cz_plan_nbytes(const struct cz_plan *plan, enum cz_place place)
{
    NEED_OR(plan, 0);
    switch (place) {
    case CZ_PLACE_HOST: return plan->host_peak_nbytes;
    case CZ_PLACE_DEVICE: return plan->device_peak_nbytes;
    case CZ_PLACE_PINNED: return plan->pinned_nbytes;
    case CZ_PLACE_NVME: return plan->nvme_nbytes;
    }
    return 0;
}

size_t cz_plan_sent_nbytes(const struct cz_plan *plan)
{
    NEED_OR(plan, 0);
    return plan->sent_nbytes_per_step;
}

double cz_plan_step_s(const struct cz_plan *plan)
{
    NEED_OR(plan, NAN);
    return plan->step_s;
}

/* ---- tune ------------------------------------------------------------------------------------ */

struct cz_tune {
    struct tune *tune;
    struct machine_profile profile;
};

static cz_status tune_from(struct cz_tune *t, const struct cz_tune_options *o,
                           struct cz_model *model)
{
    struct cz_lora_options adapter = {0};
    if (o->profile_path) TRY(machine_read(o->profile_path, &t->profile));
    if (o->lora) TRY(OPTIONS_TAKE(cz_lora_options, &adapter, o->lora));
    const struct config_lora lora = {.given = true,
                                     .rank = adapter.rank ? adapter.rank : CONFIG_LORA_RANK,
                                     .alpha = adapter.alpha,
                                     .dropout = adapter.dropout,
                                     .rslora = adapter.rslora,
                                     .dora = adapter.dora,
                                     .targets = adapter.targets,
                                     .layers = adapter.layers,
                                     .modules_to_save = adapter.modules_to_save};
    const struct tune_options options = {.world_size = o->world_size ? o->world_size : 1,
                                         .gpu_nbytes = o->gpu_nbytes,
                                         .host_nbytes = o->host_nbytes,
                                         .nvme_nbytes = o->nvme_nbytes,
                                         .nvme_path = o->nvme_path,
                                         .profile = o->profile_path ? &t->profile : NULL,
                                         .profile_path = o->profile_path,
                                         .dtype = o->dtype,
                                         .micro_batch = o->micro_batch,
                                         .batch = o->batch,
                                         .lora = o->lora ? &lora : NULL,
                                         .recipe = {.lr = o->lr,
                                                    .beta2 = o->beta2,
                                                    .weight_decay = o->weight_decay,
                                                    .warmup_steps = o->warmup_steps,
                                                    .total_steps = o->total_steps},
                                         .fall = TUNE_FALL_WHEN_GIVEN};
    return tune_create(&options, model, &t->tune);
}

cz_status cz_tune_create(const struct cz_tune_options *options, struct cz_model *model,
                         struct cz_tune **out)
{
    API_ENTRY;
    NEED(out, "out");
    struct cz_tune_options ours;
    *out = NULL;
    NEED(options, "options");
    NEED(model, "model");
    TRY(OPTIONS_TAKE(cz_tune_options, &ours, options));
    struct cz_tune *t = calloc(1, sizeof *t);
    if (!t) return err_set(CZ_NOMEM, 0, "no memory to tune");
    cz_status st = tune_from(t, &ours, model);
    if (st != CZ_OK) {
        free(t);
        return st;
    }
    *out = t;
    return CZ_OK;
}

void cz_tune_destroy(struct cz_tune *t)
{
    if (!t) return;
    tune_destroy(t->tune);
    free(t);
}

size_t cz_tune_n_offers(const struct cz_tune *t)
{
    NEED_OR(t, 0);
    return tune_n_offers(t->tune);
}

bool cz_tune_offer_fits(const struct cz_tune *t, size_t idx)
{
    NEED_OR(t, false);
    return idx < tune_n_offers(t->tune) && tune_offer(t->tune, idx)->fits;
}

double cz_tune_offer_tokens_per_s(const struct cz_tune *t, size_t idx)
{
    NEED_OR(t, NAN);
    return idx < tune_n_offers(t->tune) ? tune_offer(t->tune, idx)->tokens_per_s : NAN;
}

const char *cz_tune_missing(const struct cz_tune *t)
{
    NEED_OR(t, "");
    const char *missing = tune_best(t->tune) ? NULL : tune_missing(t->tune);
    return missing ? missing : "";
}

cz_status cz_tune_config(const struct cz_tune *t, size_t idx, char **out)
{
    API_ENTRY;
    NEED(t, "tune");
    NEED(out, "out");
    *out = NULL;
    if (idx >= tune_n_offers(t->tune))
        return err_set(CZ_INVALID, 0, "offer %zu of %zu", idx, tune_n_offers(t->tune));
    return tune_config(t->tune, tune_offer(t->tune, idx), out);
}

cz_status cz_tune_table(const struct cz_tune *t, size_t n_max, char **out)
{
    API_ENTRY;
    NEED(t, "tune");
    NEED(out, "out");
    return tune_table(t->tune, n_max, out);
}

cz_status cz_tune_json(const struct cz_tune *t, char **out)
{
    API_ENTRY;
    NEED(t, "tune");
    NEED(out, "out");
    char verdict[TUNE_VERDICT_NBYTES];
    return tune_json(t->tune, tune_verdict(t->tune, NULL, "", verdict, sizeof verdict), out);
}
