/* Resuming: the checkpoint's whole tensors flow into each rank's own part, whatever stage and world
 * size saved them. */
#include "checkpoint/fsck.h"
#include "checkpoint/names.h"
#include "engine/client_state_impl.h"
#include "engine/load_impl.h"
#include "engine/save_impl.h"

#include "base/log.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void load_free(struct load *l)
{
    ckpt_close(l->ck);
    free(l->tensor_of);
    free(l->weights);
}

/* ---- which tensor is which --------------------------------------------------------------------
 */

static cz_status check_shape(const struct load *l, const struct param_info *p, size_t idx)
{
    const struct ckpt_tensor *t = ckpt_at(l->ck, idx);
    bool same = t->ndim == p->ndim;
    for (int d = 0; same && d < p->ndim; d++) same = t->shape[d] == p->shape[d];
    if (same || (ckpt_get_info(l->ck)->is_universal && t->ndim == 1 && t->numel == p->numel))
        return CZ_OK;
    char saved[128] = "", ours[128] = "";
    for (int d = 0, at = 0; d < t->ndim && at < 100; d++)
        at += snprintf(saved + at, sizeof saved - (size_t)at, "%s%lld", d ? ", " : "",
                       (long long)t->shape[d]);
    for (int d = 0, at = 0; d < p->ndim && at < 100; d++)
        at += snprintf(ours + at, sizeof ours - (size_t)at, "%s%lld", d ? ", " : "",
                       (long long)p->shape[d]);
    return err_set(CZ_INVALID, 0, "%s: %s is (%s) there and (%s) in the model",
                   ckpt_get_info(l->ck)->tag_dir, p->name, saved, ours);
}

/* By the parameter's name, or by one of the names it is tied to. */
static size_t find_tensor(const struct load *l, size_t param_idx)
{
    const struct param_table *table = model_params(l->e->model);
    size_t idx = ckpt_find(l->ck, table->params[param_idx].name);
    for (size_t a = 0; idx == ckpt_count(l->ck) && a < table->n_aliases; a++)
        if (table->aliases[a].param_idx == param_idx)
            idx = ckpt_find(l->ck, table->aliases[a].name);
    return idx;
}

static cz_status find_weights(struct load *l)
{
    const struct param_table *table = model_params(l->e->model);
    size_t n_missing = 0;
    const char *missing = NULL;
    for (size_t i = 0; i < table->n_params; i++) {
        l->tensor_of[i] = find_tensor(l, i);
        l->weights[i] = l->tensor_of[i] < ckpt_count(l->ck);
        if (l->weights[i]) {
            TRY(check_shape(l, &table->params[i], l->tensor_of[i]));
            l->n_restored++;
        } else if (n_missing++ == 0) {
            missing = table->params[i].name;
        }
    }
    if (n_missing == 0 || l->options->lenient) return CZ_OK;
    return err_set(CZ_INVALID, 0,
                   "%s holds %zu of the model's %zu parameters: %s is missing; a lenient load "
                   "(load_module_strict=False) leaves such weights as they are",
                   ckpt_get_info(l->ck)->tag_dir, l->n_restored, table->n_params, missing);
}

/* What the checkpoint holds and the model does not. */
static cz_status find_strangers(struct load *l)
{
    size_t n_strangers = 0, n = ckpt_count(l->ck);
    const char *stranger = NULL;
    bool *known = calloc(n + 1, sizeof *known);
    if (!known) return err_set(CZ_NOMEM, 0, "no memory for %zu tensors", n);
    for (size_t i = 0; i < model_params(l->e->model)->n_params; i++) known[l->tensor_of[i]] = true;
    for (size_t t = 0; t < n; t++) {
        if (known[t] || ckpt_at(l->ck, t)->kind == CKPT_BUFFER) continue;
        if (n_strangers++ == 0) stranger = ckpt_at(l->ck, t)->name;
    }
    free(known);
    if (n_strangers == 0 || l->options->lenient) return CZ_OK;
    return err_set(CZ_INVALID, 0,
                   "%s holds %zu tensors that the model does not have, such as %s; a lenient load "
                   "(load_module_strict=False) leaves them out",
                   ckpt_get_info(l->ck)->tag_dir, n_strangers, stranger);
}

/* ---- the optimizer's states -------------------------------------------------------------------
 */

static bool find_state(const struct ckpt_info *info, const char *name, size_t *idx)
{
    for (*idx = 0; *idx < info->n_states; ++*idx)
        if (strcmp(info->states[*idx], name) == 0) return true;
    return false;
}

/* A state that is left over tells of another optimizer: it may mean something else by the names
 * that both have. */
static void warn_of_others(const struct load *l, size_t n_states)
{
    const struct ckpt_info *info = ckpt_get_info(l->ck);
    for (size_t i = 0; i < info->n_states; i++) {
        bool used = false;
        for (size_t s = 0; s < n_states; s++) used |= l->state_of[s] == i;
        if (used || l->e->comm->rank != 0) continue;
        LOGV(LOG_WARN, SUB_CKPT,
             "%s has the optimizer state %s, which %s does not: did another optimizer save it?",
             info->tag_dir, info->states[i], l->e->groups[0].hyper.cls->name);
    }
}

/* All groups have one optimizer class. Adagrad's sum has two names, one of which is Adam's, too. */
static cz_status find_states(struct load *l)
{
    const struct engine *e = l->e;
    const struct ckpt_info *info = ckpt_get_info(l->ck);
    const struct optim_hyper *hyper = &e->groups[0].hyper;
    for (size_t s = 0; s < optim_n_states(hyper); s++) {
        const char *name = hyper->cls->state_names[s];
        bool is_sum = strcmp(name, "sum") == 0 && info->n_states == 1;
        if (find_state(info, name, &l->state_of[s]) ||
            (is_sum && find_state(info, "exp_avg_sq", &l->state_of[s])))
            continue;
        return err_set(
            CZ_INVALID, 0,
            "%s has no \"%s\", which %s needs: another optimizer saved it; load it "
            "without the optimizer's states (load_optimizer_states=False; czero train --init)",
            info->tag_dir, name, hyper->cls->name);
    }
    warn_of_others(l, optim_n_states(hyper));
    return CZ_OK;
}

/* A parameter that trains now but had no states then. */
static cz_status check_states(const struct load *l)
{
    const struct engine *e = l->e;
    const struct param_table *table = model_params(e->model);
    for (size_t i = 0; i < table->n_params; i++) {
        if (!l->weights[i] || !table->params[i].trainable) continue;
        for (size_t s = 0; s < optim_n_states(&e->groups[e->group_of[i]].hyper); s++)
            if (!ckpt_has_state(l->ck, l->tensor_of[i], l->state_of[s]))
                return err_set(
                    CZ_INVALID, 0,
                    "%s has no %s of %s: it was not trained there; load it without the "
                    "optimizer's states (load_optimizer_states=False; czero train --init)",
                    ckpt_get_info(l->ck)->tag_dir, e->groups[0].hyper.cls->state_names[s],
                    table->params[i].name);
    }
    return CZ_OK;
}

static cz_status plan_states(struct load *l)
{
    const struct ckpt_info *info = ckpt_get_info(l->ck);
    l->with_states = !l->options->no_optimizer_states && !l->options->module_only;
    if (!l->with_states) return CZ_OK;
    bool no_update_yet = l->has_run_state ? l->run.n_updates == 0 : !info->has_states;
    l->fresh_states = no_update_yet || optim_n_states(&l->e->groups[0].hyper) == 0;
    if (l->fresh_states) return CZ_OK;
    if (!info->has_states)
        return err_set(CZ_INVALID, 0,
                       "%s holds no optimizer states; load its weights alone (load_module_only; "
                       "czero train --init)",
                       info->tag_dir);
    TRY(find_states(l));
    return check_states(l);
}

/* load_from_fp32_weights false: masters begin as the 16-bit weights, where those are whole. As in
 * DeepSpeed the key is about stages 1 and 2. */
static void choose_weights(struct load *l)
{
    const struct config_zero *zero = &l->e->config->zero;
    const struct ckpt_info *info = ckpt_get_info(l->ck);
    bool is_whole = !info->is_universal && info->stage < 3;
    bool from_module = !zero->load_from_fp32_weights && zero->stage > 0 && zero->stage < 3;
    l->weight_what = from_module && is_whole ? CKPT_MODULE : CKPT_MASTER;
}

/* ---- opening ----------------------------------------------------------------------------------
 */

static void remember_first(const struct fsck_finding *finding, void *user)
{
    struct err *first = user;
    if (first->status != CZ_OK) return;
    err_set(CZ_CORRUPT, 0, "%s", finding->sentence);
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
    if (!l->e->config->checkpoint.load_universal) return CZ_OK;
    cz_status st = ckpt_latest_read(dir, true, tag);
    if (st != CZ_NOTFOUND) return st;
    err_clear();
    return CZ_OK;
}

/* One rank reads everything once and compares checksums. */
static cz_status verify(const struct load *l, const char *dir)
{
    struct err first = {.status = CZ_OK};
    struct fsck_report report;
    char *tag;
    if (l->options->no_verify || l->e->comm->rank != 0) return CZ_OK;
    TRY(tag_to_verify(l, dir, &tag));
    const struct fsck_options options = {
        .dir = dir, .tag = tag, .finding = remember_first, .user = &first};
    cz_status st = fsck_run(&options, &report);
    fsck_report_free(&report);
    free(tag);
    if (st != CZ_OK) return st;
    return first.status == CZ_OK ? CZ_OK : err_restore(&first);
}

/* Whose states a stage-0 checkpoint of DeepSpeed's holds is not in it where frozen parameters or
 * groups have equal shapes and values: then this run's own are taken, as DeepSpeed does. */
static size_t group_of_name(const char *name, void *user)
{
    const struct engine *e = user;
    const struct param_table *table = model_params(e->model);
    size_t idx;
    if (param_table_find(table, name, &idx) != CZ_OK) {
        err_clear();
        return SIZE_MAX;
    }
    return table->params[idx].trainable ? e->group_of[idx] : SIZE_MAX;
}

static cz_status open_checkpoint(struct load *l, const char *dir)
{
    const struct engine *e = l->e;
    size_t n = model_params(e->model)->n_params + 1;
    const struct ckpt_open_options options = {.dir = dir,
                                              .tag = l->options->tag,
                                              .universal = e->config->checkpoint.load_universal,
                                              .weights_only = l->options->no_optimizer_states ||
                                                              l->options->module_only,
                                              .group_of = group_of_name,
                                              .user = l->e};
    l->tensor_of = calloc(n, sizeof *l->tensor_of);
    l->weights = calloc(n, sizeof *l->weights);
    if (!l->tensor_of || !l->weights) return err_set(CZ_NOMEM, 0, "no memory to load %s", dir);
    TRY(ckpt_open(&options, &l->ck));
    cz_status st = run_state_load(ckpt_get_info(l->ck)->tag_dir, &l->run);
    if (st != CZ_OK && st != CZ_NOTFOUND) return st;
    l->has_run_state = st == CZ_OK;
    TRY(find_weights(l));
    TRY(find_strangers(l));
    choose_weights(l);
    return plan_states(l);
}

/* Ranks that would load different states stop here. */
static cz_status same_checkpoint(const struct load *l)
{
    char text[512];
    const struct ckpt_info *info = ckpt_get_info(l->ck);
    double steps = 0;
    ckpt_number(l->ck, pickle_get(ckpt_model_states(l->ck), "global_steps"), &steps);
    snprintf(text, sizeof text, "tag %s\nsteps %.0f\nsize %llu\n", info->tag, steps,
             (unsigned long long)info->nbytes);
    return comm_same(l->e->comm, "the checkpoint", text);
}

/* ---- tensors ----------------------------------------------------------------------------------
 */

static cz_status fetch(void *user, enum zero_what what, size_t state_idx, size_t param_idx,
                       size_t off, size_t numel, float *dst)
{
    const struct load *l = user;
    const struct engine *e = l->e;
    size_t idx = l->tensor_of[param_idx];
    if (what == ZERO_WEIGHT) return ckpt_read(l->ck, idx, l->weight_what, off, numel, dst);
    if (!l->fresh_states)
        return ckpt_read(l->ck, idx, CKPT_STATE_0 + (int)l->state_of[state_idx], off, numel, dst);
    double init = optim_state_init(&e->groups[e->group_of[param_idx]].hyper, state_idx);
    for (size_t i = 0; i < numel; i++) dst[i] = (float)init;
    return CZ_OK;
}

static cz_status restore_tensors(struct load *l)
{
    struct engine *e = l->e;
    const struct zero_restore args = {
        .fetch = fetch,
        .user = l,
        .weights = l->weights,
        .states = l->with_states,
        .staging = e->blocks[BLOCK_ACTIVATIONS], /* nothing is under way */
        .staging_numel = e->plan.rows[BLOCK_ACTIVATIONS].nbytes / sizeof(float)};
    return zero_restore(e->zero, &args);
}

/* ---- all of it --------------------------------------------------------------------------------
 */

static void say(const struct load *l)
{
    const struct ckpt_info *info = ckpt_get_info(l->ck);
    if (l->e->comm->rank != 0) return;
    LOGV(LOG_INFO, SUB_CKPT,
         "restored %zu of %zu tensors%s from %s (stage %d, %d rank%s), step %lld", l->n_restored,
         model_params(l->e->model)->n_params, l->with_states ? " and the optimizer's states" : "",
         info->tag_dir, info->stage, info->world_size, info->world_size == 1 ? "" : "s",
         (long long)l->e->global_steps);
}

static cz_status fill_result(const struct load *l, struct engine_load_result *r)
{
    if (!r) return CZ_OK;
    *r = (struct engine_load_result){.n_restored = l->n_restored,
                                     .n_tensors = model_params(l->e->model)->n_params,
                                     .has_states = l->with_states,
                                     .has_cursor = l->has_run_state && l->run.has_cursor,
                                     .cursor = l->run.cursor};
    r->tag_dir = strdup(ckpt_get_info(l->ck)->tag_dir);
    if (!r->tag_dir) return err_set(CZ_NOMEM, 0, "no memory for a path");
    return client_state_json(ckpt_model_states(l->ck), &r->client_state_json);
}

static cz_status load(struct load *l, const char *dir, struct engine_load_result *result)
{
    struct engine *e = l->e;
    TRY(comm_agree(e->comm, verify(l, dir)));
    TRY(comm_agree(e->comm, open_checkpoint(l, dir)));
    TRY(same_checkpoint(l));
    TRY(restore_tensors(l));
    TRY(comm_agree(e->comm, load_run(l)));
    e->loss_sum = 0;
    e->grad_norm = NAN;
    e->boundary_loss = NAN;
    log_set_step(e->global_steps);
    say(l);
    return comm_agree(e->comm, fill_result(l, result));
}

cz_status engine_load_checkpoint_ex(struct engine *e, const char *dir,
                                    const struct engine_load_options *options,
                                    struct engine_load_result *result)
{
    const struct engine_load_options none = {0};
    struct load l = {.e = e, .options = options ? options : &none};
    if (result) memset(result, 0, sizeof *result);
    if (!dir || !*dir) return err_set(CZ_INVALID, 0, "a folder to load from is needed");
    if (e->phase != PHASE_IDLE || e->n_backward > 0)
        return err_set(CZ_INVALID, 0, "a step is half done: load after its boundary");
    comm_set_phase(e->comm, e->global_steps, "loading a checkpoint");
    engine_save_end(e);
    cz_status st = load(&l, dir, result);
    load_free(&l);
    return st;
}

void engine_load_result_free(struct engine_load_result *r)
{
    free(r->tag_dir);
    free(r->client_state_json);
    memset(r, 0, sizeof *r);
}

cz_status engine_load_checkpoint(struct engine *e, const char *dir, const char *tag)
{
    const struct engine_load_options options = {.tag = tag};
    return engine_load_checkpoint_ex(e, dir, &options, NULL);
}

cz_status engine_saved_run_read(const char *dir, const char *tag, struct engine_saved_run *out)
{
    char *tag_dir, *name;
    struct run_state run;
    TRY(ckpt_locate(dir, tag, &tag_dir, &name));
    cz_status st = run_state_load(tag_dir, &run);
    free(tag_dir);
    free(name);
    TRY(st);
    *out = (struct engine_saved_run){.seed = run.seed,
                                     .has_cursor = run.has_cursor,
                                     .cursor = run.cursor,
                                     .global_steps = run.global_steps};
    return CZ_OK;
}
