/* From options to everything but memory: config, device, ops, groups, chain, model state, plan. A
 * plan and an engine take this same way, so a plan's figures are those of the run. What fails
 * half-way is released by engine_free(), which accepts every half-built state. */
#include "engine/tiers_impl.h"

#include "base/cpu.h"
#include "base/log.h"
#include "base/threads.h"
#include "engine/tune/machine.h"
#include "optim/onebit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the config ------------------------------------------------------------------------------ */

static size_t count(const char *const *list)
{
    size_t n = 0;
    while (list && list[n]) n++;
    return n;
}

/* A text has no path that relative names and messages could begin with. */
static cz_status read_config(struct cz_engine *e, const struct cz_engine_options *o,
                             struct config_options *c)
{
    if (o->config_path) return config_load(o->config_path, c, &e->config);
    return config_load_text(o->config_json, strlen(o->config_json), NULL, c, &e->config);
}

/* DeepSpeed's default of 100000 steps outlives most runs. Skipped steps make it later still. */
static void warn_endless_warm_up(const struct ds_config *c, int64_t total_steps)
{
    const struct optim_hyper *h = &c->optimizer.hyper;
    if (total_steps <= 0 || !optim_is_onebit(h)) return;
    /* In 16 bits the first of the optimizer's calls is none of the run's steps. */
    uint64_t n_calls = (uint64_t)total_steps + (c->model_dtype != DTYPE_F32);
    if (onebit_freezes_at(h) < n_calls) return;
    if (h->var_freeze_step > 0)
        LOGV(LOG_WARN, SUB_CONFIG,
             "optimizer.params.var_freeze_step: with %g, a run of %lld steps ends during the "
             "warm-up: the variance is never frozen, and ranks exchange in every step",
             h->var_freeze_step, (long long)total_steps);
    else
        LOGV(LOG_WARN, SUB_CONFIG,
             "optimizer.params.freeze_step: with %g, a run of %lld steps ends during the warm-up: "
             "nothing is compressed; about 15 %% of the steps is a common choice",
             h->freeze_step, (long long)total_steps);
}

/* torch's OneCycleLR ends a run that is longer. Skipped updates do not count, and fp16
 * skips some. */
static cz_status check_run_length(const struct ds_config *c, int64_t total_steps)
{
    const struct schedule_params *p = &c->scheduler.params;
    if (!c->scheduler.usable || p->kind != SCHEDULE_TORCH_ONE_CYCLE || c->fp16.enabled ||
        total_steps <= p->torch.total_steps)
        return CZ_OK;
    return err_set(CZ_INVALID, 0,
                   "scheduler.params.total_steps: OneCycleLR ends after %lld updates, and the run "
                   "has %lld",
                   (long long)p->torch.total_steps, (long long)total_steps);
}

/* Unknown and deprecated keys are warnings, and a run says what was filled in. What has no effect
 * here, defaults and choices are shown on request (`czero config check`, -v). */
static enum cz_log_level level_of(enum config_note_kind kind)
{
    switch (kind) {
    case CONFIG_NOTE_UNKNOWN:
    case CONFIG_NOTE_DEPRECATED: return LOG_WARN;
    case CONFIG_NOTE_UNEXPECTED:
    case CONFIG_NOTE_FILLED: return LOG_INFO;
    default: return LOG_STEP;
    }
}

/* Everything below reads e->config only, so whatever the file, --set, --auto and compat say is
 * settled here, on every rank alike. */
static cz_status load_config(struct cz_engine *e, const struct cz_engine_options *o)
{
    if (!o->config_path == !o->config_json)
        return err_set(CZ_INVALID, 0, "exactly one of config_path and config_json is needed");
    struct config_options c = config_options_default();
    enum device_kind kind;
    int ordinal;
    TRY(device_parse(o->device, &kind, &ordinal));
    if (o->compat) {
        if (strcmp(o->compat, "0.19") == 0)
            c.compat = CONFIG_COMPAT_0_19;
        else if (strcmp(o->compat, "0.16") == 0)
            c.compat = CONFIG_COMPAT_0_16;
        else
            return err_set(CZ_INVALID, 0, "compat is \"%s\"; \"0.19\" or \"0.16\" would work",
                           o->compat);
    }
    c.world_size = e->comm->world_size;
    c.autos = o->auto_values;
    c.n_autos = count(o->auto_values);
    c.wanted = o->option_values;
    c.n_wanted = count(o->option_values);
    c.trainer = true;
    c.hidden_size = cz_model_hidden_size(e->model);
    c.total_steps = o->total_steps > 0 ? o->total_steps : e->request ? CONFIG_ANY_STEPS : 0;
    c.sets = o->set_values;
    c.n_sets = count(o->set_values);
    c.strict = o->strict;
    c.on_gpu = kind == DEVICE_CUDA;
    TRY(read_config(e, o, &c));
    TRY(config_check(e->config));
    char where[256];
    if (!e->config->optimizer.usable)
        return err_set(CZ_INVALID, 0,
                       "%s: training needs an optimizer, for example {\"type\": \"%s\", "
                       "\"params\": {\"lr\": 3e-4}}",
                       config_where(e->config, "optimizer", where, sizeof where),
                       optim_type_default()->name);
    TRY(check_run_length(e->config, o->total_steps));
    /* "log_level" in the file wins over the program's default. */
    switch (e->config->log_level) {
    case CONFIG_LOG_DEFAULT: break;
    case CONFIG_LOG_DEBUG: log_set_level(LOG_MICRO, SUB_ALL); break;
    case CONFIG_LOG_INFO: log_set_level(LOG_INFO, SUB_ALL); break;
    case CONFIG_LOG_WARNING: log_set_level(LOG_WARN, SUB_ALL); break;
    case CONFIG_LOG_ERROR: /* the library logs no errors: calls return them */
    case CONFIG_LOG_CRITICAL: log_set_level(LOG_ASKED, SUB_ALL); break;
    }
    if (e->comm->rank > 0) return CZ_OK; /* rank 0 prints for all */
    for (size_t i = 0; i < config_n_notes(e->config); i++) {
        const struct config_note *note = config_note(e->config, i);
        LOGV(level_of(note->kind), SUB_CONFIG, "%s", note->text);
    }
    warn_endless_warm_up(e->config, o->total_steps);
    return CZ_OK;
}

/* ---- the machine ----------------------------------------------------------------------------- */

/* A plan's own profile stands for the config's, unless nothing of it was measured. */
static cz_status read_profile(struct cz_engine *e)
{
    const struct machine_profile *given = e->request ? e->request->profile : NULL;
    const char *path = e->config->czero.machine_profile;
    const bool is_given = given && !given->is_assumed;
    char where[256];
    if (!is_given && !path) return CZ_OK;
    e->profile = calloc(1, sizeof *e->profile);
    if (!e->profile) return err_set(CZ_NOMEM, 0, "no memory for a machine profile");
    if (is_given)
        *e->profile = *given;
    else if (machine_read(path, e->profile) != CZ_OK)
        return err_prefix("%s",
                          config_where(e->config, "czero.machine_profile", where, sizeof where));
    return CZ_OK;
}

/* ---- the adapter ----------------------------------------------------------------------------- */

cz_status engine_add_lora(struct cz_model *model, const struct config_lora *c)
{
    const struct cz_lora_options options = {.size = sizeof options,
                                            .rank = c->rank,
                                            .alpha = c->alpha,
                                            .targets = c->targets,
                                            .layers = c->layers,
                                            .modules_to_save = c->modules_to_save,
                                            .dropout = c->dropout,
                                            .rslora = c->rslora,
                                            .dora = c->dora};
    return model_has_lora(model, &options) ? CZ_OK : cz_model_add_lora(model, &options);
}

static cz_status add_lora(struct cz_engine *e)
{
    const struct config_lora *lora = &e->config->czero.lora;
    char where[256];
    if (!lora->given || engine_add_lora(e->model, lora) == CZ_OK) return CZ_OK;
    return err_prefix("%s", config_where(e->config, "czero.lora", where, sizeof where));
}

/* ---- chain and model state ------------------------------------------------------------------- */

/* Layers per activation checkpoint: czero.activation_checkpointing.every, or so many that
 * number_checkpoints are kept. 0: none. */
static int64_t checkpoint_every(const struct ds_config *c, size_t n_layers)
{
    int64_t number = c->activation_checkpointing.number_checkpoints;
    if (c->czero.activation_checkpointing_every > 0) return c->czero.activation_checkpointing_every;
    if (number <= 0) return 0;
    int64_t inner = (int64_t)n_layers - 1;
    return inner > number ? (inner + number - 1) / number : 1;
}

/* On a GPU checkpointed inputs may wait in host memory; on the CPU they are there already, so the
 * key changes nothing. */
static cz_status make_chain(struct cz_engine *e, const struct cz_engine_options *o)
{
    const struct chain_options options = {
        .ops = e->ops,
        .B = e->config->train_micro_batch_size_per_gpu,
        .T = cz_model_t_max(e->model),
        .unpads = engine_unpads(e),
        .dtype = e->dtype,
        .grad_dtype = e->grad_dtype,
        .training = true,
        .keeps_all = e->config->czero.keep_all_activations,
        .checkpoint_every = checkpoint_every(e->config, model_n_layers(e->model)),
        .keep_on_host = e->plan.on_cuda && e->config->activation_checkpointing.cpu_checkpointing};
    e->plan.checkpoint_every = options.checkpoint_every;
    TRY(order_choose(e, o, &options));
    e->n_stages = 1;
    if (e->plan.order == PLAN_BY_LAYER)
        e->n_stages = (size_t)e->config->gradient_accumulation_steps;
    e->stages = calloc(e->n_stages, sizeof *e->stages);
    e->runs = calloc(e->n_stages, sizeof *e->runs);
    if (!e->stages || !e->runs) return err_set(CZ_NOMEM, 0, "no memory for micro-batches");
    return CZ_OK;
}

/* The unit of the layer that makes a gradient of the loss layer's (chain_tied_layer()). */
static cz_status join_units(struct cz_engine *e)
{
    const size_t tied = chain_tied_layer(e->chain), last = model_n_layers(e->model) - 1;
    if (tied == SIZE_MAX) return CZ_OK;
    struct zero_unit *unit = &e->units[tied];
    const struct zero_unit loss = e->units[last];
    e->tied_params = calloc(unit->n + loss.n, sizeof *e->tied_params);
    if (!e->tied_params) return err_set(CZ_NOMEM, 0, "no memory for shared parameters");
    memcpy(e->tied_params, unit->param_idx, unit->n * sizeof *e->tied_params);
    size_t n = unit->n;
    for (size_t k = 0; k < loss.n; k++) {
        bool is_there = false;
        for (size_t i = 0; i < unit->n; i++) is_there |= unit->param_idx[i] == loss.param_idx[k];
        if (!is_there) e->tied_params[n++] = loss.param_idx[k];
    }
    *unit = (struct zero_unit){.param_idx = e->tied_params, .n = n};
    return CZ_OK;
}

/* zero knows no layers: it sees a unit (a list of parameters) per layer and the order in which a
 * training pass visits them. Stage 3 lays its gathers out by these visits, and buckets are filled
 * by the ones that write gradients; a loss layer writes its own in its forward. */
static cz_status make_units(struct cz_engine *e)
{
    size_t n = model_n_layers(e->model), n_visits = chain_n_visits(e->chain);
    const struct param_table *table = model_params(e->model);
    e->units = calloc(n, sizeof *e->units);
    e->visits = calloc(n_visits, sizeof *e->visits);
    e->grad_numel = calloc(table->n_params + 1, sizeof *e->grad_numel);
    if (!e->units || !e->visits || !e->grad_numel)
        return err_set(CZ_NOMEM, 0, "no memory for %zu layers", n);
    for (size_t i = 0; i < table->n_params; i++) e->grad_numel[i] = table->params[i].numel;
    for (size_t i = 0; i < n; i++) {
        const struct model_layer *layer = model_layer_at(e->model, i);
        e->units[i] = (struct zero_unit){.param_idx = layer->param_idx, .n = layer->n_params};
    }
    TRY(join_units(e));
    for (size_t v = 0; v < n_visits; v++) {
        struct chain_visit visit = chain_visit_at(e->chain, v);
        bool is_backward = visit.phase == CHAIN_BACKWARD;
        bool is_loss = model_layer_at(e->model, visit.layer_idx)->cls->flags & LAYER_LOSS;
        e->visits[v] = (struct zero_visit){.unit_idx = visit.layer_idx,
                                           .writes_grads = is_backward || is_loss,
                                           .is_backward = is_backward};
    }
    return CZ_OK;
}

/* Stage 0 reduces everything together as DeepSpeed's allreduce does, in pieces of its fixed size;
 * the config's bucket size counts from stage 1 on. */
static cz_status make_zero(struct cz_engine *e)
{
    const struct ds_config *c = e->config;
    TRY(tiers_find_in_place(e));
    int64_t bucket = c->zero.stage == 0 ? 500000000 : c->zero.reduce_bucket_size;
    /* One rank with a GPU updates beside the backward then, which is longer than the forward. */
    bool beside = e->plan.on_cuda && e->comm->world_size == 1 && engine_updates_first(e);
    const struct zero_options options = {.table = model_params(e->model),
                                         .units = e->units,
                                         .n_units = model_n_layers(e->model),
                                         .visits = e->visits,
                                         .n_visits = chain_n_visits(e->chain),
                                         .group_of = e->group_of,
                                         .groups = e->groups,
                                         .n_groups = e->n_groups,
                                         .stage = c->zero.stage,
                                         .dtype = e->dtype,
                                         .grad_dtype = e->grad_dtype,
                                         .wire_dtype = c->communication_dtype,
                                         .master_dtype = c->master_dtype,
                                         .state_dtype = c->state_dtype,
                                         .round_robin = c->zero.round_robin_gradients,
                                         .align_params = c->zero.parameter_alignment,
                                         .reduce_sum = c->gradient_allreduce_sum,
                                         .bucket_numel = (size_t)bucket,
                                         .overlap = c->zero.overlap_comm,
                                         .stage3 = tiers_window(e),
                                         .on_gpu = e->plan.on_cuda,
                                         .offload = tiers_offload(e),
                                         .swap = tiers_swap(e),
                                         .skips_norm = !engine_needs_norm(e),
                                         .late_update = c->czero.late_update && !beside,
                                         .n_steps = &e->global_steps,
                                         .tile_numel = (size_t)c->czero.tile_numel,
                                         .comm = e->comm,
                                         .ops = e->ops,
                                         .host_ops = e->host_ops,
                                         .stream = e->stream};
    return zero_create(&options, &e->zero);
}

/* ---- all of it ------------------------------------------------------------------------------- */

/* A GPU is planned for without one, too: the CPU's kernels stand in (plan_device.c). So they do for
 * a request that looks at no machine. */
static cz_status open_or_stand_in(struct cz_engine *e, const char *device)
{
    bool is_planned = e->request && e->plan.on_cuda;
    if (!is_planned || (e->request->baseline_nbytes == 0 && e->request->gpu_nbytes == 0)) {
        cz_status st = device_open_named(device, e->comm->rank_host, &e->device);
        if (st != CZ_UNSUPPORTED || !is_planned) return st;
        err_clear();
    }
    return device_open("cpu", 0, &e->device);
}

/* The kernels of a request stand in where the CPU's would be opened. */
static cz_status open_kernels(struct cz_engine *e, const char *device)
{
    const struct plan_request *r = e->request;
    if (r && r->host_ops && (!e->plan.on_cuda || r->baseline_nbytes > 0 || r->gpu_nbytes > 0)) {
        e->device = r->host;
        e->ops = r->host_ops;
        return CZ_OK;
    }
    TRY(open_or_stand_in(e, device));
    return ops_create(e->device, &e->ops); /* says which kernels it chose */
}

/* The order is forced: kernels fix the layers' sizes, the chain fixes the visits, zero needs both,
 * and the plan adds up what all of them want. Nothing large is allocated. */
cz_status engine_prepare(struct cz_engine *e, const struct cz_engine_options *options,
                         struct comm *comm, struct cz_model *model)
{
    e->model = model;
    e->seed = options->seed;
    e->print = options->print;
    e->print_user = options->print_user;
    e->comm = comm;
    if (!comm) {
        TRY(comm_self_create(0, 1, &e->comm));
        e->owns_comm = true;
    }
    e->losses = calloc((size_t)e->comm->world_size, sizeof *e->losses);
    e->metrics = calloc((size_t)e->comm->world_size * METRICS_CHUNK, sizeof *e->metrics);
    if (!e->losses || !e->metrics) return err_set(CZ_NOMEM, 0, "no memory for an engine");
    threads_init(e->comm->n_ranks_host);
    log_set_rank(e->comm->rank, e->comm->world_size);
    log_set_common(true);
    const cz_status loaded = load_config(e, options);
    log_set_common(false);
    TRY(loaded);
    TRY(read_profile(e));
    TRY(add_lora(e));
    e->dtype = e->config->model_dtype;
    e->grad_dtype = e->config->grad_accum_dtype;
    enum device_kind kind;
    int ordinal;
    /* An unusable CZERO_ISA is refused before kernels are chosen by it. */
    TRY(cpu_isa_check());
    TRY(device_parse(options->device, &kind, &ordinal));
    e->plan.on_cuda = kind == DEVICE_CUDA;
    TRY(open_kernels(e, options->device));
    if (e->config->czero.tf32) ops_allow_tf32(e->ops, true);
    if (e->device->ops->kind != DEVICE_HOST) {
        TRY(e->device->ops->stream_create(e->device, &e->stream));
        TRY(e->device->ops->stream_create(e->device, &e->copies));
        TRY(device_open("cpu", 0, &e->host));
        TRY(ops_create(e->host, &e->host_ops));
    }
    struct cz_engine_options grouped = *options;
    /* An optimizer that was added for a trainer has a trainer's groups. */
    if (e->config->optimizer_added && options->n_groups == 0) grouped.groups_hf = true;
    TRY(engine_make_groups(e, &grouped));
    TRY(make_chain(e, options));
    TRY(make_units(e));
    TRY(make_zero(e));
    plan_describe(e);
    TRY(order_fit(e));
    return plan_fill(e);
}

void engine_free(struct cz_engine *e)
{
    /* A GPU's running work ends in memory that is freed next; its result no longer matters.
     */
    if (e->device && e->device->ops->kind != DEVICE_HOST) {
        struct err error;
        err_capture(&error);
        if (e->stream) (void)e->device->ops->stream_sync(e->device, e->stream);
        if (e->copies) (void)e->device->ops->stream_sync(e->device, e->copies);
        err_restore(&error);
    }
    monitor_destroy(e->monitor);
    profiler_destroy(e->profiler);
    zero_destroy(e->zero); /* before the arena: what is on its way ends in it */
    for (size_t k = 0; k < e->n_stages && e->stages; k++) batch_stage_free(&e->stages[k]);
    tiers_free(e);
    chain_destroy(e->chain);
    free(e->profile);
    free(e->losses);
    free(e->metrics);
    free(e->stages);
    free(e->runs);
    free(e->units);
    free(e->tied_params);
    free(e->visits);
    free(e->grad_numel);
    free(e->groups);
    free(e->group_of);
    free(e->frozen_at);
    free(e->sources);
    if (e->host_comm) { /* before the device goes */
        comm_destroy(e->comm);
        e->comm = e->host_comm;
    }
    if (e->stream) e->device->ops->stream_destroy(e->device, e->stream);
    if (e->copies) e->device->ops->stream_destroy(e->device, e->copies);
    const bool borrows = e->request && e->request->host_ops && e->ops == e->request->host_ops;
    if (!borrows) {
        ops_destroy(e->ops);
        device_close(e->device);
    }
    ops_destroy(e->host_ops);
    device_close(e->host);
    config_free(e->config);
    if (e->owns_comm) comm_destroy(e->comm);
    memset(e, 0, sizeof *e);
}
