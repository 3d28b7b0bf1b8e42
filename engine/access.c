/* Looking at a run from outside: evaluation, single tensors, getters. Everything here leaves the
 * run as it was: an evaluation between two training steps changes no later bit of them (weights and
 * states that a caller sets are the exception). */
#include "base/host/entry.h"
#include "base/log.h"
#include "base/options.h"
#include "engine/micro_batches.h"
#include "engine/state/save_impl.h"

#include <math.h>
#include <string.h>

/* ---- evaluation ------------------------------------------------------------------------------ */

/* Losses of training passes before it are collected as well: their stream is waited for anyway. */
static cz_status evaluate(struct cz_engine *e, const struct cz_batch *batch, float *loss,
                          float *hits, const float **log_probs, float *logits, float *hidden)
{
    TRY(micro_batches_drop_forward(e, "an evaluation"));
    /* Where a rank stands that is lost meanwhile: at the step whose gradients are being collected,
     * or behind the last one. */
    comm_set_phase(e->desc.comm, e->run.global_steps + (e->run.n_backward > 0), "evaluation");
    TRY(batch_stage_copy(e->mem.stages, e->desc.model, batch,
                         BATCH_EVAL | (loss ? BATCH_LOSS : 0u)));
    if (loss) micro_batches_warn_labels(e, 0, true);
    const struct chain_run run = {.stream = e->desc.stream,
                                  .batch = &e->mem.stages->batch,
                                  .mode = LAYER_EVAL,
                                  .loss = loss ? e->mem.stages->loss : NULL,
                                  .hits = hits ? e->mem.stages->loss + 1 : NULL,
                                  .log_probs = log_probs ? e->mem.stages->log_probs : NULL,
                                  .no_branches = e->run.adapter_is_off,
                                  .logits = logits,
                                  .hidden = hidden};
    TRY(zero_pass_begin(e->desc.zero, ZERO_PASS_EVAL));
    TRY(chain_forward(e->desc.chain, &run));
    TRY(zero_pass_end(e->desc.zero));
    TRY(micro_batches_take_losses(e)); /* of training passes before it */
    if (loss) TRY(batch_stage_loss(e->mem.stages, loss, NULL));
    if (hits) TRY(batch_stage_hits(e->mem.stages, hits));
    if (log_probs) TRY(batch_stage_log_probs(e->mem.stages, log_probs));
    return e->desc.device->ops->stream_sync(e->desc.device, e->desc.stream);
}

cz_status engine_eval(struct cz_engine *e, const struct cz_batch *batch, float *loss)
{
    ENGINE_ENTRY(e);
    NEED(loss, "loss");
    return evaluate(e, batch, loss, NULL, NULL, NULL, NULL);
}

cz_status engine_eval_tokens(struct cz_engine *e, const struct cz_batch *batch, float *loss,
                             int64_t *n_right)
{
    ENGINE_ENTRY(e);
    NEED(loss, "loss");
    NEED(n_right, "n_right");
    float hits;
    TRY(model_check_counts_hits(e->desc.model));
    TRY(evaluate(e, batch, loss, &hits, NULL, NULL, NULL));
    *n_right = (int64_t)hits;
    return CZ_OK;
}

/* *out is the stage's, until the next pass. */
static cz_status eval_log_probs(struct cz_engine *e, const char *call, const struct cz_batch *batch,
                                const float **out)
{
    float loss;
    TRY(own_loss_check_head(e->desc.model, call));
    if (cz_model_n_classes(e->desc.model) > 0)
        return err_set(CZ_UNSUPPORTED, 0,
                       "%s is for language models; engine_predict has a classifier's logits", call);
    return evaluate(e, batch, &loss, NULL, out, NULL, NULL);
}

cz_status engine_eval_log_probs(struct cz_engine *e, const struct cz_batch *batch, float *log_probs)
{
    ENGINE_ENTRY(e);
    NEED(batch, "batch");
    NEED(log_probs, "log_probs");
    const float *values;
    TRY(eval_log_probs(e, "engine_eval_log_probs", batch, &values));
    memcpy(log_probs, values, (size_t)(batch->B * batch->T) * sizeof *log_probs);
    return CZ_OK;
}

cz_status engine_eval_rows(struct cz_engine *e, const struct cz_batch *batch, double *sums)
{
    ENGINE_ENTRY(e);
    NEED(batch, "batch");
    NEED(sums, "sums");
    const float *values;
    TRY(eval_log_probs(e, "engine_eval_rows", batch, &values));
    for (int64_t b = 0; b < batch->B; b++) {
        sums[b] = 0;
        for (int64_t t = 0; t < batch->T; t++) sums[b] += (double)values[b * batch->T + t];
    }
    return CZ_OK;
}

cz_status engine_predict(struct cz_engine *e, const struct cz_batch *batch, float *logits)
{
    ENGINE_ENTRY(e);
    NEED(logits, "logits");
    return evaluate(e, batch, NULL, NULL, NULL, logits, NULL);
}

cz_status engine_hidden(struct cz_engine *e, const struct cz_batch *batch, float *hidden)
{
    ENGINE_ENTRY(e);
    NEED(hidden, "hidden");
    return evaluate(e, batch, NULL, NULL, NULL, NULL, hidden);
}

/* ---- what passes compute ----------------------------------------------------------------------
 */

cz_status engine_use_adapter(struct cz_engine *e, bool on)
{
    ENGINE_ENTRY(e);
    TRY(model_check_keeps_base(e->desc.model));
    e->run.adapter_is_off = !on;
    return CZ_OK;
}

cz_status engine_set_loss(struct cz_engine *e, cz_loss loss, void *user)
{
    ENGINE_ENTRY(e);
    if (loss) TRY(own_loss_check_head(e->desc.model, "engine_set_loss"));
    if (e->run.phase != PHASE_IDLE)
        return err_set(CZ_INVALID, 0,
                       "a micro-batch is under way: set the loss after its step, or drop that with "
                       "engine_discard_step");
    own_loss_set(&e->run.own_loss, loss, user, e->mem.stages->values);
    return CZ_OK;
}

/* ---- single tensors -------------------------------------------------------------------------- */

struct target {
    enum zero_what what;
    size_t param_idx, state_idx;
};

/* A frozen parameter has neither gradient nor states on any rank. */
static cz_status find_target(const struct cz_engine *e, const char *name, const char *what,
                             size_t numel, struct target *t)
{
    const struct param_table *table = model_params(e->desc.model);
    *t = (struct target){.what = ZERO_WEIGHT};
    TRY(param_table_find(table, name, &t->param_idx));
    const struct param_info *info = &table->params[t->param_idx];
    if (numel != info->numel)
        return err_set(CZ_INVALID, 0, "%s has %zu elements, not %zu", name, info->numel, numel);
    if (strcmp(what, "weight") == 0) return CZ_OK;
    if (!info->trainable)
        return err_set(CZ_NOTFOUND, 0, "%s is frozen: it has a weight and nothing else", name);
    if (strcmp(what, "grad") == 0) {
        t->what = ZERO_GRAD;
        return CZ_OK;
    }
    t->what = ZERO_STATE;
    const struct optim_hyper *hyper = &e->desc.groups[e->desc.group_of[t->param_idx]].hyper;
    for (size_t s = 0; s < optim_n_states(hyper); s++)
        if (strcmp(hyper->cls->state_names[s], what) == 0) {
            t->state_idx = s;
            return CZ_OK;
        }
    return err_set(CZ_NOTFOUND, 0, "%s has no \"%s\": %s keeps %s%s%s besides weight and grad",
                   info->name, what, hyper->cls->name,
                   optim_n_states(hyper) > 0 ? hyper->cls->state_names[0] : "no state",
                   optim_n_states(hyper) > 1 ? " and " : "",
                   optim_n_states(hyper) > 1 ? hyper->cls->state_names[1] : "");
}

/* Gradients are kept scaled; callers want them unscaled, as DeepSpeed's safe_get_full_grad gives
 * them. */
cz_status engine_param_get(struct cz_engine *e, const char *name, const char *what, float *dst,
                           size_t numel)
{
    ENGINE_ENTRY(e);
    NEED(name, "name");
    NEED(what, "what");
    NEED(dst, "dst");
    struct target t;
    TRY(find_target(e, name, what, numel, &t));
    if (t.what == ZERO_GRAD && (e->run.n_backward == 0 || e->run.phase == PHASE_FORWARD))
        return err_set(CZ_INVALID, 0, "no gradients exist before engine_backward");
    TRY(zero_read(e->desc.zero, t.what, t.state_idx, t.param_idx, 0, numel, dst));
    if (t.what != ZERO_GRAD || e->run.scale.scale == 1) return CZ_OK;
    for (size_t i = 0; i < numel; i++) dst[i] = (float)(dst[i] / e->run.scale.scale);
    return CZ_OK;
}

static void warn_not_finite(const char *name, const char *what, const float *src, size_t numel)
{
    size_t i = 0;
    while (i < numel && isfinite(src[i])) i++;
    if (i < numel)
        LOGV(LOG_WARN, SUB_ENGINE, "%s: element %zu of %s is set to %g", name, i, what,
             (double)src[i]);
}

/* A save that is under way would otherwise mix old and new elements: it is settled first. */
cz_status engine_param_set(struct cz_engine *e, const char *name, const char *what,
                           const float *src, size_t numel)
{
    ENGINE_ENTRY(e);
    NEED(name, "name");
    NEED(what, "what");
    NEED(src, "src");
    struct target t;
    TRY(find_target(e, name, what, numel, &t));
    if (t.what == ZERO_GRAD)
        return err_set(CZ_INVALID, 0, "gradients cannot be set; weights and states can");
    TRY(micro_batches_drop_forward(e, "engine_param_set"));
    if (e->desc.comm->rank == 0) warn_not_finite(name, what, src, numel);
    engine_save_settle(e);
    cz_status st = zero_write(e->desc.zero, t.what, t.state_idx, t.param_idx, 0, numel, src);
    return e->mem.swap ? comm_agree(e->desc.comm, st) : st; /* one rank's disk may fail */
}

/* ---- getters --------------------------------------------------------------------------------- */

/* The first group's, as DeepSpeed's get_lr()[0]. */
double engine_get_lr(const struct cz_engine *e)
{
    NEED_OR(e, NAN);
    return e->desc.groups[0].lr;
}

cz_status engine_get_lrs(const struct cz_engine *e, double *lrs, size_t n_lrs)
{
    ENGINE_ENTRY(e);
    NEED(lrs, "lrs");
    if (n_lrs != e->desc.n_groups)
        return err_set(CZ_INVALID, 0, "there are %zu parameter groups, not %zu", e->desc.n_groups,
                       n_lrs);
    for (size_t g = 0; g < n_lrs; g++) lrs[g] = e->desc.groups[g].lr;
    return CZ_OK;
}

cz_status engine_set_lr(struct cz_engine *e, double lr)
{
    ENGINE_ENTRY(e);
    if (!isfinite(lr) || lr < 0)
        return err_set(CZ_INVALID, 0, "a learning rate of %g: a number from 0 on is needed", lr);
    for (size_t g = 0; g < e->desc.n_groups; g++) e->desc.groups[g].lr = lr;
    return CZ_OK;
}

double engine_get_global_grad_norm(const struct cz_engine *e)
{
    NEED_OR(e, NAN);
    return e->run.grad_norm;
}

double engine_get_loss_scale(const struct cz_engine *e)
{
    NEED_OR(e, NAN);
    return e->run.scale.scale;
}

int64_t engine_get_global_steps(const struct cz_engine *e)
{
    NEED_OR(e, 0);
    return e->run.global_steps;
}

int64_t engine_get_global_samples(const struct cz_engine *e)
{
    NEED_OR(e, 0);
    return e->run.global_samples;
}

int64_t engine_get_sent_bytes(const struct cz_engine *e)
{
    NEED_OR(e, 0);
    return (int64_t)e->run.sent_nbytes;
}

int64_t engine_get_skipped_steps(const struct cz_engine *e)
{
    NEED_OR(e, 0);
    return e->run.skipped_steps;
}

int64_t engine_get_micro_steps(const struct cz_engine *e)
{
    NEED_OR(e, 0);
    return e->run.micro_steps;
}

bool engine_was_step_applied(const struct cz_engine *e)
{
    NEED_OR(e, false);
    return e->run.was_applied;
}

double engine_get_boundary_loss(const struct cz_engine *e)
{
    NEED_OR(e, NAN);
    return e->run.boundary_loss;
}

int64_t engine_get_micro_batch(const struct cz_engine *e)
{
    NEED_OR(e, 0);
    return e->desc.config->train_micro_batch_size_per_gpu;
}

int64_t engine_get_accumulation(const struct cz_engine *e)
{
    NEED_OR(e, 0);
    return e->desc.config->gradient_accumulation_steps;
}

int64_t engine_get_train_batch(const struct cz_engine *e)
{
    NEED_OR(e, 0);
    return e->desc.config->train_batch_size;
}

int64_t engine_get_world_size(const struct cz_engine *e)
{
    NEED_OR(e, 0);
    return e->desc.comm->world_size;
}

int64_t engine_get_rank(const struct cz_engine *e)
{
    NEED_OR(e, 0);
    return e->desc.comm->rank;
}

const struct cz_plan *engine_get_plan(const struct cz_engine *e)
{
    NEED_OR(e, NULL);
    return &e->desc.plan;
}

const struct cz_model *engine_get_model(const struct cz_engine *e)
{
    NEED_OR(e, NULL);
    return e->desc.model;
}

struct ops *engine_get_ops(struct cz_engine *e)
{
    return e->desc.ops;
}

cz_status engine_get_swap_traffic(const struct cz_engine *e, struct cz_swap_traffic *out)
{
    NEED(e, "engine");
    NEED(out, "out");
    return OPTIONS_GIVE(cz_swap_traffic, out, &e->mem.swap_traffic);
}

void engine_remove_swap_files(void)
{
    swap_remove_files();
}
