/* Creation and destruction: ranks agree on what they are about to run, the plan is checked, memory
 * is allocated once, weights are streamed. Every step that one rank alone can fail at ends in
 * comm_agree(): a rank that continued would wait for the others forever. */
#include "base/host/entry.h"
#include "base/host/launchers.h"
#include "base/options.h"
#include "comm/device/device_comm.h"
#include "engine/launch/world_impl.h"
#include "engine/plan/plan_impl.h"
#include "engine/plan/tiers.h"
#include "engine/run_report.h"
#include "engine/state/save_impl.h"
#include "ops/matmul/matmul.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/threads.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The longest halving of the sequence bound that fits, for the sentence of a refusal; 0: none. What
 * is in the swap file hardly depends on it. */
static int64_t fitting_length(const struct cz_engine *e)
{
    const struct cz_plan *p = &e->desc.plan;
    if (p->nvme_nbytes > p->nvme_free_nbytes) return 0;
    size_t state = p->on_cuda ? plan_device_need(p) : p->host_peak_nbytes - p->baseline_nbytes;
    size_t limit = p->on_cuda ? p->device_free_nbytes : p->host_free_nbytes;
    for (int b = BLOCK_ACTIVATIONS; b <= BLOCK_WORKSPACE; b++) state -= p->rows[b].nbytes;
    for (int64_t T = p->T / 2; T >= 16; T /= 2) {
        const struct chain_options options = {.ops = e->desc.ops,
                                              .B = p->B,
                                              .T = T,
                                              .unpads = description_unpads(&e->desc),
                                              .dtype = e->desc.dtype,
                                              .grad_dtype = e->desc.grad_dtype,
                                              .training = true,
                                              .checkpoint_every = p->checkpoint_every,
                                              .n_together = (int64_t)e->desc.n_stages,
                                              .keep_in_file = p->activations_away,
                                              .keep_on_host = p->rows[BLOCK_KEPT].nbytes > 0};
        struct chain *chain;
        if (chain_create(e->desc.model, &options, &chain) != CZ_OK) return 0;
        struct chain_sizes s = chain_sizes(chain);
        chain_destroy(chain);
        if (state + s.activations + s.gradients + s.workspace <= limit) return T;
    }
    return 0;
}

/* A refusal that names a length that would fit is worth an estimate: halving T rebuilds the chain's
 * sizes only, since model state does not depend on T. */
static cz_status refuse_or_go_on(struct cz_engine *e)
{
    if (cz_plan_check(&e->desc.plan) == CZ_OK) return CZ_OK;
    struct err refusal;
    err_capture(&refusal);
    int64_t T = fitting_length(e);
    err_restore(&refusal);
    if (T == 0) return refusal.status;
    return err_prefix("sequences are bounded to %lld tokens here; with %lld (--seq-len, or "
                      "cz_model_set_shape) it would fit",
                      (long long)e->desc.plan.T, (long long)T);
}

/* Release everything but the model. */
static void release(struct cz_engine *e)
{
    monitor_destroy(e->run.monitor);
    profiler_destroy(e->run.profiler);
    description_end_work(&e->desc); /* before the memory: what is on its way ends in it */
    memory_free(&e->mem, &e->desc);
    description_free(&e->desc);
    free(e);
}

static cz_status fetch_weights(void *user, size_t param_idx, size_t off, size_t numel, float *dst)
{
    return model_read_weights(user, param_idx, off, numel, dst);
}

/* ---- the chain's hooks: zero sees each layer as a unit -------------------------------------- */

/* Stage 3 gathers the layer's parameters here; waiting for them is communication, not compute, in
 * the timers. */
static cz_status on_enter(void *user, size_t layer_idx, enum chain_phase phase)
{
    (void)phase;
    struct cz_engine *e = user;
    int64_t begin = clock_now_ns();
    TRY(zero_unit_acquire(e->desc.zero, layer_idx));
    e->run.comm_ns += clock_now_ns() - begin;
    profiler_enter(e->run.profiler);
    return CZ_OK;
}

/* Gradients of a layer are complete when its backward leaves: a full bucket starts its reduction
 * while earlier layers still compute. Parameters are released after that, because the reduction of
 * a tied one may need them. */
static cz_status on_leave(void *user, size_t layer_idx, enum chain_phase phase)
{
    struct cz_engine *e = user;
    profiler_leave(e->run.profiler, layer_idx);
    int64_t begin = clock_now_ns();
    if (phase == CHAIN_BACKWARD) TRY(zero_grads_ready(e->desc.zero, layer_idx));
    TRY(zero_unit_release(e->desc.zero, layer_idx));
    e->run.comm_ns += clock_now_ns() - begin;
    return CZ_OK;
}

/* On a GPU fp32 weights pass through host memory of their own; on the CPU through memory that is
 * not in use yet. */
#define LOAD_NUMEL ((size_t)1 << 20)

static cz_status load_weights(struct cz_engine *e)
{
    size_t numel = e->desc.plan.rows[BLOCK_ACTIVATIONS].nbytes / sizeof(float);
    if (!e->desc.host)
        return zero_load(e->desc.zero, fetch_weights, e->desc.model,
                         e->mem.blocks[BLOCK_ACTIVATIONS], numel);
    float *staging = malloc(LOAD_NUMEL * sizeof *staging);
    cz_status st = staging ? CZ_OK : err_set(CZ_NOMEM, 0, "no memory to load weights through");
    st = comm_agree(e->desc.comm, st);
    if (st == CZ_OK)
        st = zero_load(e->desc.zero, fetch_weights, e->desc.model, staging, LOAD_NUMEL);
    free(staging);
    return st;
}

/* The chain's part of the swap file. */
static cz_status write_activations(void *user, uint64_t off, size_t nbytes, const void *src,
                                   uint64_t *ticket)
{
    struct cz_engine *e = user;
    uint64_t begin;
    (void)tiers_activations_nbytes(&e->desc, &begin);
    return swap_write_begin(e->mem.swap, src, begin + off, nbytes, ticket);
}

static cz_status read_activations(void *user, uint64_t off, size_t nbytes, void *dst,
                                  uint64_t *ticket)
{
    struct cz_engine *e = user;
    uint64_t begin;
    (void)tiers_activations_nbytes(&e->desc, &begin);
    return swap_read_begin(e->mem.swap, dst, begin + off, nbytes, ticket);
}

static cz_status wait_activations(void *user, uint64_t ticket)
{
    struct cz_engine *e = user;
    return swap_wait(e->mem.swap, ticket);
}

/* Nothing is copied: the chain and zero read and write the same blocks, so a gathered parameter is
 * what a layer reads. */
static cz_status bind(struct cz_engine *e)
{
    TRY(zero_bind(e->desc.zero, e->mem.blocks, e->mem.swap));
    const enum device_kind kind = e->desc.device->ops->kind;
    for (size_t k = 0; k < e->desc.n_stages; k++) {
        unsigned char *memory = e->mem.blocks[BLOCK_BATCH], *host = e->mem.blocks[BLOCK_BATCH_HOST];
        memory += k * batch_stage_nbytes(kind, e->desc.model, e->desc.plan.B, e->desc.plan.T);
        if (host)
            host +=
                k * batch_stage_host_nbytes(kind, e->desc.model, e->desc.plan.B, e->desc.plan.T);
        TRY(batch_stage_bind(&e->mem.stages[k], e->desc.model, e->desc.plan.B, e->desc.plan.T,
                             e->desc.device, e->desc.stream, memory, host));
        if (description_unpads(&e->desc))
            batch_stage_unpad(&e->mem.stages[k],
                              ops_matmul_is_by_shape(e->desc.ops, e->desc.dtype));
    }
    const struct chain_memory memory = {.activations = e->mem.blocks[BLOCK_ACTIVATIONS],
                                        .workspace = e->mem.blocks[BLOCK_WORKSPACE],
                                        .gradients = e->mem.blocks[BLOCK_GRADIENTS],
                                        .kept = e->mem.blocks[BLOCK_KEPT],
                                        .copies = e->desc.copies,
                                        .file = {.user = e,
                                                 .write_begin = write_activations,
                                                 .read_begin = read_activations,
                                                 .wait = wait_activations},
                                        .params = zero_params(e->desc.zero),
                                        .grads = zero_grads(e->desc.zero),
                                        .grad_numel = e->desc.grad_numel,
                                        .hooks = {.user = e, .enter = on_enter, .leave = on_leave}};
    chain_bind(e->desc.chain, &memory);
    return CZ_OK;
}

/* ---- optimizer, schedule, loss scale -------------------------------------------------------- */

/* One writer: DeepSpeed's monitors are rank 0's, too. */
static cz_status start_monitor(struct cz_engine *e)
{
    if (e->desc.comm->rank != 0) return CZ_OK;
    return monitor_create(&e->desc.config->csv_monitor, &e->desc.config->tensorboard,
                          &e->run.monitor);
}

/* ---- ranks must mean the same run ----------------------------------------------------------- */

/* Text, so that comm_same() can show both sides' first difference. */
static void describe_model(const struct cz_engine *e, FILE *f)
{
    const struct param_table *table = model_params(e->desc.model);
    fprintf(f, "model %s, sequences up to %lld\n", cz_model_name(e->desc.model),
            (long long)e->desc.plan.T);
    fprintf(f, "seed %llu, %zu parameter groups\n", (unsigned long long)e->desc.seed,
            e->desc.n_groups);
    for (size_t g = 0; g < e->desc.n_groups; g++) {
        const struct optim_group *group = &e->desc.groups[g];
        fprintf(f, "group %zu: lr %.17g, betas %.17g %.17g, weight decay %.17g\n", g, group->lr,
                group->betas[0], group->betas[1], group->hyper.weight_decay);
    }
    for (size_t i = 0; i < table->n_params; i++) {
        const struct param_info *p = &table->params[i];
        fprintf(f, "%s", p->name);
        for (int d = 0; d < p->ndim; d++) fprintf(f, " %lld", (long long)p->shape[d]);
        fprintf(f, p->trainable ? " in group %zu\n" : " frozen\n", e->desc.group_of[i]);
    }
    fprintf(f, "%zu micro-batches through each layer\n", e->desc.n_stages);
    for (size_t i = 0; i < chain_n_layers(e->desc.chain);
         i++) { /* heads and the like show in these */
        struct layer_sizes sizes = chain_layer_sizes(e->desc.chain, i);
        fprintf(f, "layer %zu: %s keeps %zu bytes, %.0f operations\n", i,
                chain_layer(e->desc.chain, i)->cls->name, sizes.saved_nbytes, sizes.flops_forward);
    }
}

/* The kernels chosen are part of it: sums in another order would make ranks drift apart. */
static cz_status same_model(struct cz_engine *e)
{
    char *text = NULL;
    size_t nbytes;
    FILE *f = open_memstream(&text, &nbytes);
    if (!f) return err_set(CZ_NOMEM, 0, "no memory for the model's description");
    fprintf(f, "kernels %s, %d threads\n", ops_isa(e->desc.ops), threads_count());
    describe_model(e, f);
    fclose(f);
    if (!text) return err_set(CZ_NOMEM, 0, "no memory for the model's description");
    cz_status st = comm_same(e->desc.comm, "the model", text);
    free(text);
    return st;
}

/* A rank that cannot read its config says so to the others. */
static cz_status agree(struct cz_engine *e, const struct cz_engine_options *options, cz_status mine)
{
    if (!options->world) return mine;
    if (!e->desc.comm) e->desc.comm = world_comm(options->world);
    return comm_agree(e->desc.comm, mine);
}

/* Several ranks with GPUs: from here on their communicator takes the place of the host's. */
static cz_status join_gpus(struct cz_engine *e)
{
    struct device_comm_options options = {
        .host = e->desc.comm, .device = e->desc.device, .stream = e->desc.stream};
    struct comm *comm;
    if (!e->desc.host || e->desc.comm->world_size == 1) return CZ_OK;
    TRY(comm_device_pick(e->desc.comm, e->desc.device, &options.kind));
    TRY(plan_meet_on_device(&e->desc, options.kind));
    TRY(comm_device_create(&options, &comm));
    e->desc.host_comm = e->desc.comm;
    e->desc.comm = comm;
    zero_set_comm(e->desc.zero, comm);
    if (e->desc.comm->rank == 0)
        LOGV(LOG_INFO, SUB_COMM, "%d ranks, %s between their GPUs", comm->world_size,
             comm_device_kind_name(options.kind));
    return CZ_OK;
}

/* The order is forced: agreement needs the config, GPUs' communicators need agreement, the memory
 * check needs to know what these take, and memory is placed before it is touched for the first
 * time. */
static cz_status start(struct cz_engine *e, const struct cz_engine_options *options,
                       struct cz_model *model)
{
    TRY(agree(e, options, description_make(&e->desc, options, world_comm(options->world), model)));
    /* Ranks with different configs or models would deadlock, or diverge silently. */
    char *config = NULL;
    if (e->desc.comm->world_size != 1) {
        TRY(comm_agree(e->desc.comm, config_values(e->desc.config, &config)));
        cz_status st = comm_same(e->desc.comm, "the config", config);
        free(config);
        TRY(st);
        TRY(same_model(e));
    }
    TRY(join_gpus(e));
    TRY(comm_agree(e->desc.comm, refuse_or_go_on(e)));
    struct device_info info;
    TRY(comm_agree(e->desc.comm, e->desc.device->ops->info(e->desc.device, &info)));
    TRY(comm_agree(e->desc.comm, world_place(e->desc.comm, info.pci_bus_id, &e->mem.affinity)));
    TRY(comm_agree(e->desc.comm, memory_allocate(&e->mem, &e->desc)));
    TRY(comm_agree(e->desc.comm, bind(e)));
    TRY(load_weights(e));
    /* Without a scheduler the config's rate stays. */
    if (e->desc.config->scheduler.usable)
        TRY(schedule_init(&e->run.schedule, &e->desc.config->scheduler.params, e->desc.groups,
                          e->desc.n_groups));
    /* DeepSpeed 0.16 keeps its own defaults unless the file names one of the scaler's keys
     * (docs/deepspeed-behaviour.md, "Loss scale"). */
    const struct config_fp16 *c = &e->desc.config->fp16;
    bool is_0_16 = e->desc.config->compat == CONFIG_COMPAT_0_16;
    struct loss_scale_options o = loss_scale_defaults(c->enabled, is_0_16, !c->scaler_given);
    if (c->scaler_given || !is_0_16) {
        o.initial_power = c->initial_scale_power;
        o.window = c->loss_scale_window;
        o.min_scale = (double)c->min_loss_scale;
        o.hysteresis = c->hysteresis;
        o.consecutive_hysteresis = c->consecutive_hysteresis;
    }
    o.static_scale = c->loss_scale;
    TRY(loss_scale_init(&e->run.scale, &o));
    TRY(comm_agree(e->desc.comm, start_monitor(e)));
    e->run.grad_norm = NAN;
    e->run.boundary_loss = NAN;
    memory_count_step(&e->mem); /* from here on */
    e->mem.swap_traffic = (struct cz_swap_traffic){0};
    return comm_agree(e->desc.comm, report_start(e));
}

struct cz_engine *engine_initialize_ex(const struct cz_engine_options *options,
                                       struct cz_model *model)
{
    API_ENTRY;
    struct cz_engine_options ours;
    if (entry_need(options, "options") != CZ_OK || entry_need(model, "model") != CZ_OK) return NULL;
    if (model_is_taken(model)) {
        err_set(CZ_INVALID, 0, "another engine owns this model: open it once more");
        return NULL;
    }
    if (OPTIONS_TAKE(cz_engine_options, &ours, options) != CZ_OK) return NULL;
    if (!ours.world && !world_has_been_made() && launchers_check_alone() != CZ_OK) return NULL;
    if (ours.world &&
        entry_check_process(world_comm(ours.world)->generation, "this world") != CZ_OK)
        return NULL;
    struct cz_engine *e = calloc(1, sizeof *e);
    if (!e) {
        err_set(CZ_NOMEM, 0, "no memory for an engine");
        return NULL;
    }
    e->generation = entry_generation();
    e->desc.n_steps = &e->run.global_steps;
    if (start(e, &ours, model) == CZ_OK) {
        model_take(model);
        return e;
    }
    release(e);
    return NULL;
}

struct cz_engine *engine_initialize(const char *config_path, struct cz_model *model)
{
    API_ENTRY;
    const struct cz_engine_options options = {.size = sizeof options, .config_path = config_path};
    if (entry_need(config_path, "config_path") != CZ_OK) return NULL;
    return engine_initialize_ex(&options, model);
}

/* A save that is under way reads the states: it is finished first. */
void engine_destroy(struct cz_engine *e)
{
    API_ENTRY;
    /* In a forked child, threads, swap files and a save under way are the parent's. */
    if (!e || e->generation != entry_generation()) return;
    struct cz_model *model = e->desc.model;
    if (e->run.save && engine_save_wait(e) != CZ_OK)
        LOGV(LOG_WARN, SUB_CKPT, "a checkpoint was not saved: %s", cz_last_error());
    release(e);
    cz_model_destroy(model);
}
