/* Resuming: the checkpoint's whole tensors flow into each rank's own part, whatever stage and world
 * size saved them. Everything is checked and matched before the first element of the run changes;
 * after that only I/O can fail. */
#include "base/host/entry.h"
#include "base/options.h"
#include "checkpoint/fsck/fsck.h"
#include "checkpoint/read/names.h"
#include "engine/host_scratch.h"
#include "engine/micro_batches.h"
#include "engine/report/monitor.h"
#include "engine/state/client_state_impl.h"
#include "engine/state/load_impl.h"
#include "engine/state/save_impl.h"

#include "base/log.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void load_free(struct load *l)
{
    ckpt_close(l->ck);
    load_names_free(l);
    load_renames_free(l);
    free(l->tensor_of);
    free(l->weights);
    run_state_free(&l->run);
}

/* ---- opening -------------------------------------------------------------------------------- */

/* One sentence is enough to refuse a checkpoint. */
static void remember_first(const struct cz_fsck_finding *finding, void *user)
{
    struct err *first = user;
    if (first->status != CZ_OK) return;
    err_set(finding->status, 0, "%s", finding->sentence);
    err_capture(first);
}

/* The tag that ckpt_open() will take: under checkpoint.load_universal not the one of `latest`. *tag
 * is the caller's to free(); NULL: fsck finds the same. */
static cz_status tag_to_verify(const struct load *l, const char *dir, char **tag)
{
    const char *given = l->options->tag;
    *tag = NULL;
    if (given) {
        *tag = strdup(given);
        return *tag ? CZ_OK : err_set(CZ_NOMEM, 0, "no memory to load %s", dir);
    }
    if (!l->e->desc.config->checkpoint.load_universal) return CZ_OK;
    cz_status st = ckpt_latest_read(dir, true, tag);
    if (st != CZ_NOTFOUND) return st;
    err_clear();
    return CZ_OK;
}

/* One rank reads everything once and compares checksums. */
static cz_status verify(const struct load *l, const char *dir)
{
    struct err first = {.status = CZ_OK};
    struct cz_fsck_report report = {.size = sizeof report};
    char *tag;
    if (l->options->no_verify || l->e->desc.comm->rank != 0) return CZ_OK;
    TRY(ckpt_no_file(dir));
    TRY(tag_to_verify(l, dir, &tag));
    const struct cz_fsck_options options = {
        .size = sizeof options, .dir = dir, .tag = tag, .finding = remember_first, .user = &first};
    cz_status st = cz_fsck(&options, &report);
    cz_fsck_report_free(&report);
    free(tag);
    if (st != CZ_OK) return st;
    return first.status == CZ_OK ? CZ_OK : err_restore(&first);
}

/* Whose states a stage-0 checkpoint of DeepSpeed's holds is not in it where frozen parameters or
 * groups have equal shapes and values: then this run's own are taken, as DeepSpeed does. */
static size_t group_of_name(const char *name, void *user)
{
    const struct load *l = user;
    size_t idx;
    if (!load_param_of(l, name, &idx)) return SIZE_MAX;
    return model_params(l->e->desc.model)->params[idx].trainable ? l->e->desc.group_of[idx]
                                                                 : SIZE_MAX;
}

/* An adapter on another model than its own would train, but from a far higher loss. */
static cz_status check_base(const struct load *l)
{
    struct cz_model *m = l->e->desc.model;
    uint64_t hash;
    if (!l->has_run_state || !l->run.has_base || !cz_model_has_adapter(m) || l->options->lenient ||
        l->e->desc.comm->rank != 0)
        return CZ_OK;
    TRY(model_base_hash(m, &hash));
    if (hash == l->run.base_hash) return CZ_OK;
    return err_set(
        CZ_INVALID, 0,
        "%s: its adapter was trained on a model with other weights than %s (hash %016llx "
        "there, %016llx here)",
        ckpt_get_info(l->ck)->tag_dir, cz_model_name(m), (unsigned long long)l->run.base_hash,
        (unsigned long long)hash);
}

/* weights_only: optimizer files of another world size need not even be there. */
static cz_status open_checkpoint(struct load *l, const char *dir)
{
    const struct cz_engine *e = l->e;
    size_t n = model_params(e->desc.model)->n_params + 1;
    const struct ckpt_open_options options = {
        .dir = dir,
        .tag = l->options->tag,
        .universal = e->desc.config->checkpoint.load_universal,
        .weights_only = l->options->no_optimizer_states || l->options->module_only,
        .group_of = group_of_name,
        .user = l};
    l->tensor_of = calloc(n, sizeof *l->tensor_of);
    l->weights = calloc(n, sizeof *l->weights);
    if (!l->tensor_of || !l->weights) return err_set(CZ_NOMEM, 0, "no memory to load %s", dir);
    TRY(load_renames_open(l));
    TRY(ckpt_open(&options, &l->ck));
    cz_status st = run_state_load(ckpt_get_info(l->ck)->tag_dir, &l->run);
    if (st != CZ_OK && st != CZ_NOTFOUND) return st;
    l->has_run_state = st == CZ_OK;
    TRY(load_match(l));
    return check_base(l);
}

/* ---- tensors -------------------------------------------------------------------------------- */

/* States that a fresh optimizer begins with come from its class: they need not be zero. */
static cz_status fetch(void *user, enum zero_what what, size_t state_idx, size_t param_idx,
                       size_t off, size_t numel, float *dst)
{
    const struct load *l = user;
    const struct cz_engine *e = l->e;
    size_t idx = l->tensor_of[param_idx];
    if (what == ZERO_WEIGHT) return ckpt_read(l->ck, idx, l->weight_what, off, numel, dst);
    size_t group = e->desc.group_of[param_idx], state = l->state_of[group][state_idx];
    if (!l->fresh_states && state != LOAD_NO_STATE)
        return ckpt_read(l->ck, idx, CKPT_STATE_0 + (int)state, off, numel, dst);
    double init = optim_state_init(&e->desc.groups[group].hyper, state_idx);
    for (size_t i = 0; i < numel; i++) dst[i] = (float)init;
    return CZ_OK;
}

/* Through scratch: elements go to memory, the swap file or a GPU, wherever they are placed. */
static cz_status restore_tensors(struct load *l)
{
    struct cz_engine *e = l->e;
    struct host_scratch room;
    cz_status st = host_scratch_take(e, &room);
    const struct zero_restore args = {.fetch = fetch,
                                      .user = l,
                                      .weights = l->weights,
                                      .states = l->with_states,
                                      .staging = room.p,
                                      .staging_numel = room.numel};
    if (st == CZ_OK) st = zero_restore(e->desc.zero, &args);
    host_scratch_give(&room);
    return st;
}

/* ---- all of it ------------------------------------------------------------------------------ */

/* Removes the monitors' rows beyond this step: a run that was cut off wrote them. */
static cz_status restart_monitor(const struct load *l)
{
    struct cz_engine *e = l->e;
    if (l->options->module_only || e->desc.comm->rank != 0 || !monitor_is_enabled(e->run.monitor))
        return CZ_OK;
    return monitor_restart(e->run.monitor, e->run.global_samples + 1);
}

/* Weights alone are of the step that saved them, whatever step the run is at. */
static long long step_of_weights(const struct load *l)
{
    double steps = (double)l->e->run.global_steps;
    if (l->options->module_only)
        ckpt_number(l->ck, pickle_get(ckpt_model_states(l->ck), "global_steps"), &steps);
    return (long long)steps;
}

static bool has_states(const struct load *l)
{
    return l->with_states && !l->drops_states;
}

static void say(const struct load *l)
{
    const struct ckpt_info *info = ckpt_get_info(l->ck);
    if (l->e->desc.comm->rank != 0) return;
    LOGV(LOG_INFO, SUB_CKPT,
         "restored %zu of %zu tensors%s from %s (stage %d, %d rank%s), step %lld", l->n_restored,
         model_params(l->e->desc.model)->n_params,
         has_states(l) ? " and the optimizer's states" : "", info->tag_dir, info->stage,
         info->world_size, info->world_size == 1 ? "" : "s", step_of_weights(l));
}

/* Strings are the caller's: the checkpoint is closed when the call returns. */
static cz_status fill_result(const struct load *l, struct cz_load_result *r)
{
    *r = (struct cz_load_result){.n_restored = l->n_restored,
                                 .n_tensors = model_params(l->e->desc.model)->n_params,
                                 .has_states = has_states(l),
                                 .has_cursor = l->has_run_state && l->run.has_cursor,
                                 .cursor = l->run.cursor};
    r->tag_dir = strdup(ckpt_get_info(l->ck)->tag_dir);
    if (!r->tag_dir) return err_set(CZ_NOMEM, 0, "no memory for a path");
    TRY(client_state_json(ckpt_model_states(l->ck), &r->client_state_json));
    if (!l->options->pickles_client_state) return CZ_OK;
    return client_state_pickle(l->ck, &r->client_state_pickle, &r->client_state_nbytes);
}

/* Every step that can fail on one rank ends in an agreement; the run is changed only after all of
 * them. */
static cz_status load(struct load *l, const char *dir, struct cz_load_result *result)
{
    struct cz_engine *e = l->e;
    TRY(comm_agree(e->desc.comm, verify(l, dir)));
    TRY(comm_agree(e->desc.comm, open_checkpoint(l, dir)));
    /* Without a shared file system, ranks may see different folders. They must load the same
     * state. */
    char text[512];
    const struct ckpt_info *info = ckpt_get_info(l->ck);
    double steps = 0;
    ckpt_number(l->ck, pickle_get(ckpt_model_states(l->ck), "global_steps"), &steps);
    snprintf(text, sizeof text, "tag %s\nsteps %.0f\nsize %llu\n", info->tag, steps,
             (unsigned long long)info->nbytes);
    TRY(comm_same(l->e->desc.comm, "the checkpoint", text));
    TRY(micro_batches_drop(e)); /* a program goes back because of it, such as a loss of NaN */
    TRY(restore_tensors(l));
    TRY(comm_agree(e->desc.comm, load_run(l)));
    TRY(comm_agree(e->desc.comm, load_onebit(l)));
    TRY(zero_onebit_restored(e->desc.zero));
    e->run.loss_sum = 0;
    for (size_t k = 0; k < e->desc.n_stages; k++) e->mem.stages[k].n_losses = 0;
    e->run.grad_norm = NAN;
    e->run.boundary_loss = NAN;
    log_set_step(e->run.global_steps);
    say(l);
    TRY(comm_agree(e->desc.comm, load_compare(l)));
    TRY(comm_agree(e->desc.comm, restart_monitor(l)));
    return comm_agree(e->desc.comm, fill_result(l, result));
}

/* A save that is under way is ended first: it may be the checkpoint to load, and it reads what
 * loading overwrites. */
cz_status engine_load_checkpoint_ex(struct cz_engine *e, const char *dir,
                                    const struct cz_load_options *options,
                                    struct cz_load_result *result)
{
    ENGINE_ENTRY(e);
    NEED(dir, "dir");
    struct cz_load_options ours;
    struct cz_load_result restored = {.size = sizeof restored};
    struct load l = {.e = e, .options = &ours};
    TRY(OPTIONS_TAKE(cz_load_options, &ours, options));
    if (result) TRY(OPTIONS_GIVE(cz_load_result, result, &restored));
    if (!*dir) return err_set(CZ_INVALID, 0, "a folder to load from is needed");
    comm_set_phase(e->desc.comm, e->run.global_steps, "loading a checkpoint");
    engine_save_end(e);
    cz_status st = load(&l, dir, &restored);
    load_free(&l);
    if (st != CZ_OK || !result) {
        cz_load_result_free(&restored);
        return st;
    }
    return OPTIONS_GIVE(cz_load_result, result, &restored);
}

void cz_load_result_free(struct cz_load_result *r)
{
    if (!r) return;
    free(r->tag_dir);
    free(r->client_state_json);
    free(r->client_state_pickle);
    r->tag_dir = r->client_state_json = NULL;
    r->client_state_pickle = NULL;
    r->client_state_nbytes = 0;
}

cz_status engine_load_checkpoint(struct cz_engine *e, const char *dir, const char *tag)
{
    const struct cz_load_options options = {.size = sizeof options, .tag = tag};
    return engine_load_checkpoint_ex(e, dir, &options, NULL);
}

/* For programs that must place their data before an engine exists. */
cz_status cz_saved_run_read(const char *dir, const char *tag, struct cz_saved_run *out)
{
    API_ENTRY;
    NEED(dir, "dir");
    NEED(out, "out");
    char *tag_dir, *name;
    struct run_state run;
    TRY(ckpt_locate(dir, tag, &tag_dir, &name));
    cz_status st = run_state_load(tag_dir, &run);
    free(tag_dir);
    free(name);
    TRY(st);
    const struct cz_saved_run ours = {.seed = run.seed,
                                      .has_cursor = run.has_cursor,
                                      .cursor = run.cursor,
                                      .global_steps = run.global_steps};
    run_state_free(&run);
    return OPTIONS_GIVE(cz_saved_run, out, &ours);
}
