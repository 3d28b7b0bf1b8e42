/* From options to a description: config, device, ops, groups, chain, model state, plan. A plan and
 * an engine take this same way, so a plan's figures are those of the run. */
#include "engine/plan/groups.h"
#include "engine/plan/order.h"
#include "engine/plan/plan_impl.h"
#include "engine/plan/tiers.h"
#include "engine/state/save_impl.h"

#include "base/cpu.h"
#include "base/host/proc.h"
#include "base/log.h"
#include "base/size.h"
#include "base/text/unread.h"
#include "base/threads.h"
#include "engine/machine/machine.h"
#include "optim/onebit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/* ---- the config ------------------------------------------------------------------------------ */

static size_t count(const char *const *list)
{
    size_t n = 0;
    while (list && list[n]) n++;
    return n;
}

/* A text has no path that relative names and messages could begin with. */
static cz_status read_config(struct description *d, const struct cz_engine_options *o,
                             struct config_options *c)
{
    if (o->config_path) return config_load(o->config_path, c, &d->config);
    return config_load_text(o->config_json, strlen(o->config_json), NULL, c, &d->config);
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

/* Unknown and deprecated keys and surprising rates are warnings, and a run says what was filled in.
 * `czero config check` and -v show the others: defaults, choices, keys without effect. */
static enum cz_log_level level_of(enum config_note_kind kind)
{
    switch (kind) {
    case CONFIG_NOTE_UNKNOWN:
    case CONFIG_NOTE_DEPRECATED:
    case CONFIG_NOTE_UNEXPECTED: return LOG_WARN;
    case CONFIG_NOTE_FILLED: return LOG_INFO;
    default: return LOG_STEP;
    }
}

/* Everything below reads d->config only, so whatever the file, --set, --auto and compat say is
 * settled here, on every rank alike. */
static cz_status load_config(struct description *d, const struct cz_engine_options *o)
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
    c.world_size = d->comm->world_size;
    c.autos = o->auto_values;
    c.n_autos = count(o->auto_values);
    c.wanted = o->option_values;
    c.n_wanted = count(o->option_values);
    c.trainer = true;
    c.hidden_size = cz_model_hidden_size(d->model);
    c.total_steps = o->total_steps > 0 ? o->total_steps : d->request ? CONFIG_ANY_STEPS : 0;
    c.sets = o->set_values;
    c.n_sets = count(o->set_values);
    c.strict = o->strict || unread_is_strict();
    c.on_gpu = kind == DEVICE_CUDA;
    TRY(read_config(d, o, &c));
    TRY(config_check(d->config));
    char where[256];
    if (!d->config->optimizer.usable)
        return err_set(CZ_INVALID, 0,
                       "%s: training needs an optimizer, for example {\"type\": \"%s\", "
                       "\"params\": {\"lr\": 3e-4}}",
                       config_where(d->config, "optimizer", where, sizeof where),
                       optim_type_default()->name);
    TRY(check_run_length(d->config, o->total_steps));
    /* "log_level" in the file wins over the program's default. */
    switch (d->config->log_level) {
    case CONFIG_LOG_DEFAULT: break;
    case CONFIG_LOG_DEBUG: log_set_level(LOG_MICRO, SUB_ALL); break;
    case CONFIG_LOG_INFO: log_set_level(LOG_INFO, SUB_ALL); break;
    case CONFIG_LOG_WARNING: log_set_level(LOG_WARN, SUB_ALL); break;
    case CONFIG_LOG_ERROR: /* the library logs no errors: calls return them */
    case CONFIG_LOG_CRITICAL: log_set_level(LOG_ASKED, SUB_ALL); break;
    }
    if (d->comm->rank > 0) return CZ_OK; /* rank 0 prints for all */
    for (size_t i = 0; i < config_n_notes(d->config); i++) {
        const struct config_note *note = config_note(d->config, i);
        LOGV(level_of(note->kind), SUB_CONFIG, "%s", note->text);
    }
    warn_endless_warm_up(d->config, o->total_steps);
    return CZ_OK;
}

/* ---- the machine ----------------------------------------------------------------------------- */

/* A plan's own profile stands for the config's, unless nothing of it was measured. */
static cz_status read_profile(struct description *d)
{
    const struct machine_profile *given = d->request ? d->request->profile : NULL;
    const char *path = d->config->czero.machine_profile;
    const bool is_given = given && !given->is_assumed;
    char where[256];
    if (!is_given && !path) return CZ_OK;
    d->profile = calloc(1, sizeof *d->profile);
    if (!d->profile) return err_set(CZ_NOMEM, 0, "no memory for a machine profile");
    if (is_given)
        *d->profile = *given;
    else if (machine_read(path, d->profile) != CZ_OK)
        return err_prefix("%s",
                          config_where(d->config, "czero.machine_profile", where, sizeof where));
    return CZ_OK;
}

/* ---- the adapter ----------------------------------------------------------------------------- */

cz_status description_add_lora(struct cz_model *model, const struct config_lora *c)
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

static cz_status add_lora(struct description *d)
{
    const struct config_lora *lora = &d->config->czero.lora;
    char where[256];
    if (!lora->given || description_add_lora(d->model, lora) == CZ_OK) return CZ_OK;
    if (cz_model_has_adapter(d->model))
        err_set(CZ_INVALID, 0,
                "begins another adapter than the one that the model has (--adapter): remove one of "
                "the two");
    return err_prefix("%s", config_where(d->config, "czero.lora", where, sizeof where));
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
static cz_status make_chain(struct description *d, const struct cz_engine_options *o)
{
    const struct chain_options options = {
        .ops = d->ops,
        .B = d->config->train_micro_batch_size_per_gpu,
        .T = cz_model_t_max(d->model),
        .unpads = description_unpads(d),
        .dtype = d->dtype,
        .grad_dtype = d->grad_dtype,
        .training = true,
        .keeps_all = d->config->czero.keep_all_activations,
        .checkpoint_every = checkpoint_every(d->config, model_n_layers(d->model)),
        .keep_on_host = d->plan.on_cuda && d->config->activation_checkpointing.cpu_checkpointing};
    d->plan.checkpoint_every = options.checkpoint_every;
    TRY(order_choose(d, o, &options));
    d->n_stages = 1;
    if (d->plan.order == PLAN_BY_LAYER)
        d->n_stages = (size_t)d->config->gradient_accumulation_steps;
    return CZ_OK;
}

/* The unit of the layer that makes a gradient of the loss layer's (chain_tied_layer()). */
static cz_status join_units(struct description *d)
{
    const size_t tied = chain_tied_layer(d->chain), last = model_n_layers(d->model) - 1;
    if (tied == SIZE_MAX) return CZ_OK;
    struct zero_unit *unit = &d->units[tied];
    const struct zero_unit loss = d->units[last];
    d->tied_params = calloc(unit->n + loss.n, sizeof *d->tied_params);
    if (!d->tied_params) return err_set(CZ_NOMEM, 0, "no memory for shared parameters");
    memcpy(d->tied_params, unit->param_idx, unit->n * sizeof *d->tied_params);
    size_t n = unit->n;
    for (size_t k = 0; k < loss.n; k++) {
        bool is_there = false;
        for (size_t i = 0; i < unit->n; i++) is_there |= unit->param_idx[i] == loss.param_idx[k];
        if (!is_there) d->tied_params[n++] = loss.param_idx[k];
    }
    *unit = (struct zero_unit){.param_idx = d->tied_params, .n = n};
    return CZ_OK;
}

/* zero knows no layers: it sees a unit (a list of parameters) per layer and the order in which a
 * training pass visits them. Stage 3 lays its gathers out by these visits, and buckets are filled
 * by the ones that write gradients; a loss layer writes its own in its forward. */
static cz_status make_units(struct description *d)
{
    size_t n = model_n_layers(d->model), n_visits = chain_n_visits(d->chain);
    const struct param_table *table = model_params(d->model);
    d->units = calloc(n, sizeof *d->units);
    d->visits = calloc(n_visits, sizeof *d->visits);
    d->grad_numel = calloc(table->n_params + 1, sizeof *d->grad_numel);
    if (!d->units || !d->visits || !d->grad_numel)
        return err_set(CZ_NOMEM, 0, "no memory for %zu layers", n);
    for (size_t i = 0; i < table->n_params; i++) d->grad_numel[i] = table->params[i].numel;
    for (size_t i = 0; i < n; i++) {
        const struct model_layer *layer = model_layer_at(d->model, i);
        d->units[i] = (struct zero_unit){.param_idx = layer->param_idx, .n = layer->n_params};
    }
    TRY(join_units(d));
    for (size_t v = 0; v < n_visits; v++) {
        struct chain_visit visit = chain_visit_at(d->chain, v);
        bool is_backward = visit.phase == CHAIN_BACKWARD;
        bool is_loss = model_layer_at(d->model, visit.layer_idx)->cls->flags & LAYER_LOSS;
        d->visits[v] = (struct zero_visit){.unit_idx = visit.layer_idx,
                                           .writes_grads = is_backward || is_loss,
                                           .is_backward = is_backward};
    }
    return CZ_OK;
}

/* Stage 0 reduces everything together as DeepSpeed's allreduce does, in pieces of its fixed size;
 * the config's bucket size counts from stage 1 on. */
static cz_status make_zero(struct description *d)
{
    const struct ds_config *c = d->config;
    TRY(tiers_find_in_place(d));
    int64_t bucket = c->zero.stage == 0 ? 500000000 : c->zero.reduce_bucket_size;
    /* With one GPU the update runs beside the backward, which is longer than the forward. */
    bool beside = d->plan.on_cuda && d->comm->world_size == 1 && description_updates_first(d);
    const struct zero_options options = {.table = model_params(d->model),
                                         .units = d->units,
                                         .n_units = model_n_layers(d->model),
                                         .visits = d->visits,
                                         .n_visits = chain_n_visits(d->chain),
                                         .group_of = d->group_of,
                                         .groups = d->groups,
                                         .n_groups = d->n_groups,
                                         .stage = c->zero.stage,
                                         .dtype = d->dtype,
                                         .grad_dtype = d->grad_dtype,
                                         .wire_dtype = c->communication_dtype,
                                         .master_dtype = c->master_dtype,
                                         .state_dtype = c->state_dtype,
                                         .round_robin = c->zero.round_robin_gradients,
                                         .align_params = c->zero.parameter_alignment,
                                         .reduce_sum = c->gradient_allreduce_sum,
                                         .bucket_numel = (size_t)bucket,
                                         .overlap = c->zero.overlap_comm,
                                         .stage3 = tiers_window(d),
                                         .on_gpu = d->plan.on_cuda,
                                         .offload = tiers_offload(d),
                                         .swap = tiers_swap(d),
                                         .skips_norm = !description_needs_norm(d),
                                         .late_update = c->czero.late_update && !beside,
                                         .n_steps = d->n_steps,
                                         .tile_numel = (size_t)c->czero.tile_numel,
                                         .comm = d->comm,
                                         .ops = d->ops,
                                         .host_ops = d->host_ops,
                                         .stream = d->stream};
    return zero_create(&options, &d->zero);
}

/* ---- all of it ------------------------------------------------------------------------------- */

/* A GPU is planned for without one, too: the CPU's kernels stand in (plan_device.c). So they do for
 * a request that looks at no machine. */
static cz_status open_or_stand_in(struct description *d, const char *device)
{
    bool is_planned = d->request && d->plan.on_cuda;
    if (!is_planned || (d->request->baseline_nbytes == 0 && d->request->gpu_nbytes == 0)) {
        cz_status st = device_open_named(device, d->comm->rank_host, &d->device);
        if (st != CZ_UNSUPPORTED || !is_planned) return st;
        err_clear();
    }
    return device_open("cpu", 0, &d->device);
}

/* The kernels of a request stand in where the CPU's would be opened. */
static cz_status open_kernels(struct description *d, const char *device)
{
    const struct plan_request *r = d->request;
    if (r && r->host_ops && (!d->plan.on_cuda || r->baseline_nbytes > 0 || r->gpu_nbytes > 0)) {
        d->device = r->host;
        d->ops = r->host_ops;
        return CZ_OK;
    }
    TRY(open_or_stand_in(d, device));
    return ops_create(d->device, &d->ops); /* says which kernels it chose */
}

/* oneDNN, the pool's threads and the loader take address space before a plan can count it, and
 * again in the first step. Where they get none they end the process, so a run asks beforehand. */
#define FLOOR_NBYTES        ((size_t)32 << 20)
#define THREAD_FLOOR_NBYTES ((size_t)10 << 20) /* stack and guard of a thread of the pool */

/* Before threads_init(), as threads_count() starts the pool. */
static cz_status check_address_space(int n_ranks_host)
{
    struct rlimit limit;
    const int asked = threads_asked();
    const int n_threads = asked > 0 ? asked : threads_allowed_cores(NULL) / n_ranks_host;
    const size_t used = proc_nbytes("/proc/self/status", "VmSize:");
    const size_t floor =
        FLOOR_NBYTES + (n_threads > 1 ? (size_t)(n_threads - 1) * THREAD_FLOOR_NBYTES : 0);
    char have[24], want[24];
    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return CZ_OK;
    const size_t left = limit.rlim_cur > used ? (size_t)limit.rlim_cur - used : 0;
    if (left >= floor) return CZ_OK;
    return err_set(CZ_NOMEM, 0,
                   "address space (ulimit -v): %s are left, and a run takes at least %s beside its "
                   "plan",
                   size_human(left, have, sizeof have), size_human(floor, want, sizeof want));
}

/* The order is forced: kernels fix the layers' sizes, the chain fixes the visits, zero needs both,
 * and the plan adds up what all of them want. Nothing large is allocated. */
cz_status description_make(struct description *d, const struct cz_engine_options *options,
                           struct comm *comm, struct cz_model *model)
{
    d->model = model;
    d->seed = options->seed;
    d->print = options->print;
    d->print_user = options->print_user;
    d->comm = comm;
    if (!comm) {
        TRY(comm_self_create(0, 1, &d->comm));
        d->owns_comm = true;
    }
    if (!d->request) TRY(check_address_space(d->comm->n_ranks_host));
    threads_init(d->comm->n_ranks_host);
    log_set_rank(d->comm->rank, d->comm->world_size);
    log_set_common(true);
    const cz_status loaded = load_config(d, options);
    log_set_common(false);
    TRY(loaded);
    TRY(read_profile(d));
    TRY(add_lora(d));
    d->dtype = d->config->model_dtype;
    d->grad_dtype = d->config->grad_accum_dtype;
    enum device_kind kind;
    int ordinal;
    /* An unusable CZERO_ISA is refused before kernels are chosen by it. */
    TRY(cpu_isa_check());
    TRY(device_parse(options->device, &kind, &ordinal));
    d->plan.on_cuda = kind == DEVICE_CUDA;
    TRY(open_kernels(d, options->device));
    if (d->config->czero.tf32) ops_allow_tf32(d->ops, true);
    if (d->device->ops->kind != DEVICE_HOST) {
        TRY(d->device->ops->stream_create(d->device, &d->stream));
        TRY(d->device->ops->stream_create(d->device, &d->copies));
        TRY(device_open("cpu", 0, &d->host));
        TRY(ops_create(d->host, &d->host_ops));
    }
    struct cz_engine_options grouped = *options;
    /* An optimizer that was added for a trainer has a trainer's groups. */
    if (d->config->optimizer_added && options->n_groups == 0) grouped.groups_hf = true;
    TRY(groups_make(d, &grouped));
    /* A class whose form in checkpoints is unknown is refused now, not at the first save. */
    for (size_t g = 0; g < d->n_groups; g++) TRY(save_check_class(&d->groups[g]));
    TRY(make_chain(d, options));
    TRY(make_units(d));
    TRY(make_zero(d));
    plan_describe(d);
    TRY(order_fit(d));
    return plan_fill(d);
}

/* ---- a plan alone ---------------------------------------------------------------------------- */

/* Another plan of the same run, for its traffic alone. No model can have it that refuses the order.
 */
static void plan_other_order(const struct cz_engine_options *options,
                             const struct plan_request *request, struct comm *comm,
                             struct cz_model *model, struct cz_plan *p)
{
    const enum plan_order other = p->order == PLAN_BY_LAYER ? PLAN_BY_MICRO_BATCH : PLAN_BY_LAYER;
    struct description *d = calloc(1, sizeof *d);
    if (!d) return;
    d->request = request;
    d->order = &other;
    if (description_make(d, options, comm, model) == CZ_OK)
        p->traffic[other] = d->plan.traffic[other];
    else
        err_clear();
    description_free(d);
    free(d);
}

/* One process stands for all ranks: a communicator that pretends to be one of world_size. */
cz_status plan_create_ex(const struct cz_engine_options *options,
                         const struct plan_request *request, struct cz_model *model,
                         struct cz_plan **out)
{
    int64_t world_size = request->world_size;
    *out = NULL;
    if (world_size < 1 || world_size > INT32_MAX)
        return err_set(CZ_INVALID, 0, "a world of %lld ranks cannot be planned",
                       (long long)world_size);
    struct description *d = calloc(1, sizeof *d);
    struct cz_plan *p = calloc(1, sizeof *p);
    struct comm *comm = NULL;
    cz_status st;
    if (!d || !p) {
        st = err_set(CZ_NOMEM, 0, "no memory for a plan");
        goto done;
    }
    d->request = request;
    TRY_GOTO(comm_self_create(0, (int)world_size, &comm), done);
    TRY_GOTO(description_make(d, options, comm, model), done);
    *p = d->plan;
    if (request->both_orders && p->accumulation > 1)
        plan_other_order(options, request, comm, model, p);
    *out = p;
done:
    if (d) description_free(d);
    free(d);
    comm_destroy(comm);
    if (st != CZ_OK) free(p);
    return st;
}

cz_status plan_create(const struct cz_engine_options *options, int64_t world_size,
                      struct cz_model *model, struct cz_plan **out)
{
    const struct plan_request request = {.world_size = world_size};
    return plan_create_ex(options, &request, model, out);
}
