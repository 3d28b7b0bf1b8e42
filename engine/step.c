/* forward, backward, step: the counters, the boundary and what happens there
 * (docs/deepspeed-behaviour.md, "Counters and boundary" to "Loss scale"). All decisions of a
 * boundary (skip, clip, new scale) follow from figures that every rank has alike, so ranks cannot
 * part ways. */
#include "engine/state/save_impl.h"
#include "engine/tiers_impl.h"

#include "base/clock.h"
#include "base/host/entry.h"
#include "base/log.h"
#include "base/size.h"
#include "formats/json/json_write.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* As DeepSpeed: true during the last micro-batch, before its step() counts it. */
bool engine_is_gradient_accumulation_boundary(const struct cz_engine *e)
{
    API_ENTRY;
    if (!e->config->managed_gradient_accumulation) return true; /* every step() is one */
    return (e->micro_steps + 1) % e->config->gradient_accumulation_steps == 0;
}

/* ---- forward and backward -------------------------------------------------------------------- */

/* wall_clock_breakdown asks where time goes: a GPU's work is then waited for where it is made. */
static cz_status settle_timers(struct cz_engine *e)
{
    if (!e->config->wall_clock_breakdown) return CZ_OK;
    return e->device->ops->stream_sync(e->device, e->stream);
}

/* Whether the micro-batch that begins is known to be the last before the boundary. */
static bool is_last_known(const struct cz_engine *e)
{
    return e->config->managed_gradient_accumulation && engine_is_gradient_accumulation_boundary(e);
}

/* Otherwise a run that has lost its labels looks like one that has learned everything. */
void engine_warn_labels(struct cz_engine *e, size_t stage, bool evaluates)
{
    bool *has_warned = evaluates ? &e->has_warned_eval_labels : &e->has_warned_labels;
    if (!e->stages[stage].lacks_labels || *has_warned) return;
    *has_warned = true;
    LOGV(LOG_WARN, SUB_ENGINE,
         "step %lld%s: no label of a micro-batch counts (ignored, NaN or weight 0): its loss is 0. "
         "Check labels, masks and truncation (logged once)",
         (long long)e->global_steps + 1, evaluates ? ", evaluation" : "");
}

/* The layers' forward, profiled when this is the step to profile. Several micro-batches are all of
 * a step. */
static cz_status walk_forward(struct cz_engine *e, const struct chain_run *runs, size_t n)
{
    bool is_last = n > 1 || is_last_known(e);
    TRY(zero_pass_begin(e->zero, is_last ? ZERO_PASS_LAST : ZERO_PASS_TRAIN));
    if (!profiler_is_due(e->profiler, e->global_steps)) return chain_forward_all(e->chain, runs, n);
    for (size_t k = 0; k < n; k++) TRY(profiler_begin(e->profiler, chain_shape_of(runs[k].batch)));
    cz_status st = chain_forward_all(e->chain, runs, n);
    profiler_end(e->profiler);
    return st;
}

/* A training pass over a staged micro-batch. The loss is scaled by loss scale over accumulation
 * steps, so gradients of all micro-batches add up to the scaled mean. The first micro-batch
 * overwrites gradients (no pass to clear them), the others add. */
static struct chain_run run_of(struct cz_engine *e, size_t stage, float *logits)
{
    const struct batch *batch = &e->stages[stage].batch;
    double seed = e->scale.scale / (double)e->config->gradient_accumulation_steps;
    return (struct chain_run){
        .stream = e->stream,
        .batch = batch,
        .mode = LAYER_TRAIN,
        .rng = {.seed = e->seed, .step = (uint32_t)e->global_steps, .sample = batch->sample},
        .dloss = (float)seed,
        .loss = e->stages[stage].loss,
        .logits = logits,
        .accumulate = e->n_backward > 0 && zero_accumulates(e->zero)};
}

/* The first n staged micro-batches through the layers. Logits of each begin `stride` behind those
 * of the one before. */
static cz_status forward_staged(struct cz_engine *e, size_t n, float *loss, float *logits,
                                size_t stride)
{
    int64_t begin = clock_now_ns();
    report_forward(e, begin);
    comm_set_phase(e->comm, e->global_steps + 1, "forward");
    e->comm_ns = 0;
    for (size_t k = 0; k < n; k++) e->runs[k] = run_of(e, k, logits ? logits + k * stride : NULL);
    TRY(walk_forward(e, e->runs, n));
    if (logits) TRY(e->device->ops->stream_sync(e->device, e->stream));
    for (size_t k = 0; k < n; k++) /* on a GPU without waiting for it */
        TRY(batch_stage_loss(&e->stages[k], loss, &e->loss_sum));
    TRY(settle_timers(e));
    e->phase = PHASE_FORWARD;
    timers_add(&e->timers, TIMER_FORWARD, clock_now_ns() - begin);
    e->timers.exposed[EXPOSED_FORWARD] += e->comm_ns;
    report_memory(e, "Engine after forward");
    return CZ_OK;
}

static cz_status forward(struct cz_engine *e, const struct cz_batch *batch, float *loss,
                         float *logits)
{
    if (e->phase == PHASE_FORWARD)
        return err_set(CZ_INVALID, 0,
                       "engine_forward was called twice without engine_backward between; use "
                       "engine_eval to look at a loss only");
    if (e->phase == PHASE_BACKWARD && e->config->managed_gradient_accumulation)
        return err_set(CZ_INVALID, 0, "engine_step must follow each engine_backward");
    report_memory(e, "Engine before forward");
    TRY(batch_stage_copy(e->stages, e->model, batch, BATCH_LOSS | (logits ? BATCH_LOGITS : 0u)));
    engine_warn_labels(e, 0, false);
    return forward_staged(e, 1, loss, logits, 0);
}

cz_status engine_forward(struct cz_engine *e, const struct cz_batch *batch, float *loss)
{
    ENGINE_ENTRY(e);
    return forward(e, batch, loss, NULL);
}

static cz_status check_classifier(const struct cz_engine *e, const char *call)
{
    if (cz_model_n_classes(e->model) > 0) return CZ_OK;
    return err_set(CZ_UNSUPPORTED, 0,
                   "%s is for classifiers; %s is a language model, whose logits never exist as a "
                   "whole",
                   call, cz_model_name(e->model));
}

cz_status engine_forward_logits(struct cz_engine *e, const struct cz_batch *batch, float *loss,
                                float *logits)
{
    ENGINE_ENTRY(e);
    TRY(check_classifier(e, "engine_forward_logits"));
    return forward(e, batch, loss, logits);
}

/* zero_pass_end() starts or awaits what is left of this pass's reductions; the time it takes is
 * exposed communication, not backward. */
static cz_status backward(struct cz_engine *e, size_t n)
{
    report_memory(e, "Engine before backward");
    int64_t begin = clock_now_ns();
    e->comm_ns = 0;
    comm_set_phase(e->comm, e->global_steps + 1, "backward");
    TRY(chain_backward(e->chain));
    /* ignore_unused_parameters false: as DeepSpeed, at stages 1 and 2 only. */
    size_t i = chain_param_unused(e->chain);
    int stage = e->config->zero.stage;
    if (i != SIZE_MAX && !e->config->zero.ignore_unused_parameters && (stage == 1 || stage == 2))
        return err_set(CZ_INVALID, 0,
                       "%s got no gradient; freeze it, or set "
                       "zero_optimization.ignore_unused_parameters to true",
                       model_params(e->model)->params[i].name);
    TRY(settle_timers(e));
    int64_t walked = clock_now_ns();
    TRY(zero_pass_end(e->zero));
    e->comm_ns += clock_now_ns() - walked;
    e->timers.exposed[EXPOSED_BACKWARD] += e->comm_ns;
    e->phase = PHASE_BACKWARD;
    e->n_backward += (int64_t)n;
    timers_add_backward(&e->timers, clock_now_ns() - begin - e->comm_ns, e->comm_ns);
    report_memory(e, "Engine after backward");
    return CZ_OK;
}

cz_status engine_backward(struct cz_engine *e)
{
    ENGINE_ENTRY(e);
    if (e->phase != PHASE_FORWARD)
        return err_set(CZ_INVALID, 0, "engine_backward needs an engine_forward before it");
    return backward(e, 1);
}

cz_status engine_take_losses(struct cz_engine *e)
{
    for (size_t k = 0; k < e->n_stages; k++) TRY(batch_stage_losses(&e->stages[k], &e->loss_sum));
    return CZ_OK;
}

/* ---- a boundary without finite gradients ---------------------------------------------------- */

/* The first bad element, by name: an overflow without a place sends users searching through
 * layers. */
static const char *offender(const struct cz_engine *e, const struct zero_scan *scan, char *buf,
                            size_t nbytes)
{
    char value[JSON_FLOAT_NBYTES];
    snprintf(buf, nbytes, "the gradient of %s is %s at element %zu",
             model_params(e->model)->params[scan->param_idx].name,
             json_float_text((double)scan->value, value), scan->elem);
    return buf;
}

/* A ring of the last scales, oldest first. */
static const char *history(const struct cz_engine *e, char *buf, size_t nbytes)
{
    int64_t n = e->n_scales < SCALE_HISTORY ? e->n_scales : SCALE_HISTORY;
    size_t at = 0;
    buf[0] = '\0';
    for (int64_t i = e->n_scales - n; i < e->n_scales && at < nbytes; i++)
        at += (size_t)snprintf(buf + at, nbytes - at, "%s%g", i == e->n_scales - n ? "" : ", ",
                               e->scale_history[i % SCALE_HISTORY]);
    return buf;
}

/* All ranks know the same: one says it. */
static void log_skip(struct cz_engine *e, const struct zero_scan *scan, double old_scale)
{
    if (e->comm->rank != 0) return;
    char what[512], scale[96] = "";
    if (e->config->fp16.enabled && e->scale.scale != old_scale)
        snprintf(scale, sizeof scale, "; loss scale %g, now %g", old_scale, e->scale.scale);
    else if (e->scale.dynamic)
        snprintf(scale, sizeof scale, "; loss scale %g, remaining hysteresis %lld", old_scale,
                 (long long)e->scale.hysteresis);
    else if (e->config->fp16.enabled)
        snprintf(scale, sizeof scale, "; the loss scale is fixed at %g", old_scale);
    /* A dynamic scale finds its level by overflowing: no reason to warn. */
    LOGV(e->scale.dynamic ? LOG_INFO : LOG_WARN, SUB_ENGINE, "step %lld skipped: %s%s",
         (long long)e->global_steps + 1, offender(e, scan, what, sizeof what), scale);
}

/* ---- the boundary ---------------------------------------------------------------------------- */

/* Whether non-finite gradients stop the update (bf16.check_grad_overflow false: they do not). */
static bool checks_overflow(const struct ds_config *c)
{
    return !c->bf16.enabled || c->bf16.check_grad_overflow;
}

bool engine_updates_first(const struct cz_engine *e)
{
    const struct ds_config *c = e->config;
    return !checks_overflow(c) && !(c->gradient_clipping > 0) && !onebit_of(e->groups, e->n_groups);
}

bool engine_needs_norm(const struct cz_engine *e)
{
    return e->config->zero.compute_grad_norm || e->config->gradient_clipping > 0;
}

/* Norm of the gradients as they are (still scaled); NAN when it is neither wanted nor needed. */
static cz_status measure_norm(struct cz_engine *e, const struct zero_scan *scan, double *norm)
{
    *norm = NAN;
    if (!scan->finite || !engine_needs_norm(e)) return CZ_OK;
    return zero_norm(e->zero, norm);
}

/* The same after an update that did not wait for it. */
static cz_status measure_norm_late(struct cz_engine *e, double *norm)
{
    struct zero_scan scan;
    if (!e->config->zero.compute_grad_norm) return CZ_OK;
    TRY(zero_scan(e->zero, &scan));
    return measure_norm(e, &scan, norm);
}

/* The variance of a 1-bit optimizer no longer changes. */
static bool is_frozen(const struct cz_engine *e)
{
    const struct zero_onebit onebit = zero_onebit(e->zero);
    return onebit.clock && onebit.clock->frozen;
}

/* The 1-bit family has come to the steps that it is chosen for. */
static void log_frozen(const struct cz_engine *e)
{
    const struct cz_plan *p = &e->plan;
    char few[24], many[24];
    if (e->comm->rank != 0) return;
    if (p->world_size == 1) {
        LOGV(LOG_INFO, SUB_ENGINE, "%s: the variance is frozen from step %lld on",
             onebit_of(e->groups, e->n_groups)->cls->name, (long long)e->global_steps + 2);
        return;
    }
    LOGV(LOG_INFO, SUB_ENGINE,
         "%s: the variance is frozen; from step %lld on an exchange sends %s from each rank "
         "instead of %s",
         onebit_of(e->groups, e->n_groups)->cls->name, (long long)e->global_steps + 2,
         size_human(p->sent_nbytes_frozen, few, sizeof few),
         size_human(p->sent_nbytes_per_step, many, sizeof many));
}

/* Unscale with the scale that the gradients were made with, which DeepSpeed does not
 * (docs/deepspeed-behaviour.md, "Scale of a growing step"), clip, update. */
static cz_status apply(struct cz_engine *e, const struct zero_scan *scan, double made_with)
{
    double norm = NAN;
    bool first = engine_updates_first(e);
    int64_t begin = clock_now_ns();
    if (!first) TRY(measure_norm(e, scan, &norm));
    double clip =
        isfinite(norm) ? optim_clip_factor(norm, made_with, e->config->gradient_clipping) : 1;
    int64_t normed = clock_now_ns();
    comm_set_phase(e->comm, e->global_steps + 1, "update");
    bool was_frozen = is_frozen(e);
    cz_status st = zero_step(e->zero, e->n_updates + 1, made_with, clip);
    TRY(e->swap ? comm_agree(e->comm, st) : st); /* one rank's disk may fail */
    TRY(settle_timers(e));
    int64_t swept = clock_now_ns();
    TRY(zero_gather(e->zero));
    int64_t gathered = clock_now_ns();
    e->timers.exposed[EXPOSED_STEP] += gathered - swept;
    if (first) TRY(measure_norm_late(e, &norm));
    timers_set_update(&e->timers, normed - begin + clock_now_ns() - gathered, swept - normed,
                      gathered - swept);
    e->n_updates++;
    if (is_frozen(e) && !was_frozen) log_frozen(e);
    e->grad_norm = norm / made_with;
    return e->config->scheduler.usable ? schedule_step(&e->schedule, e->groups) : CZ_OK;
}

/* Samples: a managed run counts whole batches as DeepSpeed does; otherwise what was really
 * accumulated. */
static void count_boundary(struct cz_engine *e)
{
    const struct ds_config *c = e->config;
    int64_t per_backward = c->train_batch_size / c->gradient_accumulation_steps;
    e->global_steps++;
    e->global_samples +=
        c->managed_gradient_accumulation ? c->train_batch_size : e->n_backward * per_backward;
    e->n_backward = 0;
    e->loss_sum = 0;
    /* The communicator counts since its creation. */
    const struct comm_traffic *t = &e->comm->traffic;
    uint64_t sent = t->reduce_sent_nbytes + t->move_sent_nbytes;
    e->sent_nbytes = sent - e->sent_before;
    e->sent_before = sent;
    tiers_count_step(e);
    log_set_step(e->global_steps);
}

/* What a boundary does, in order: reduce, average the loss, look for overflows, update the scale,
 * skip or apply, count. Both DIVERGED ends come after the figures they quote are final; the weights
 * are as before. */
static cz_status boundary(struct cz_engine *e)
{
    struct zero_scan scan = {.finite = true};
    bool skip_step;
    double made_with = e->scale.scale;
    int64_t begin = clock_now_ns();
    comm_set_phase(e->comm, e->global_steps + 1, "reducing gradients");
    TRY(zero_reduce(e->zero));
    e->comm_ns = clock_now_ns() - begin;
    e->timers.exposed[EXPOSED_STEP] += e->comm_ns;
    /* Over micro-batches and ranks, in rank order: every rank adds in the same order and gets the
     * same bits. */
    double sum = 0;
    TRY(engine_take_losses(e));
    e->losses[e->comm->rank] = e->loss_sum / (double)e->n_backward;
    TRY(comm_all_gather(e->comm, &e->losses[e->comm->rank], e->losses, sizeof *e->losses));
    for (int r = 0; r < e->comm->world_size; r++) sum += e->losses[r];
    e->boundary_loss = sum / (double)e->comm->world_size;
    /* Without a check (see engine_updates_first) an update need not wait for the last gradient. */
    if (!engine_updates_first(e)) TRY(zero_scan(e->zero, &scan));
    bool usable = scan.finite || !checks_overflow(e->config);
    e->scale_history[e->n_scales++ % SCALE_HISTORY] = made_with;
    /* The loss scale cannot go lower. */
    if (loss_scale_update(&e->scale, usable, &skip_step) != CZ_OK) {
        char what[512], scales[256], reason[512];
        snprintf(reason, sizeof reason, "%s", cz_last_error());
        return err_set(CZ_DIVERGED, 0, "step %lld: %s; %s; the last loss scales were %s",
                       (long long)e->global_steps + 1, offender(e, &scan, what, sizeof what),
                       reason, history(e, scales, sizeof scales));
    }
    e->n_skipped_in_a_row = skip_step ? e->n_skipped_in_a_row + 1 : 0;
    /* An overflow leaves weights and states as they are. */
    if (skip_step) {
        log_skip(e, &scan, made_with);
        e->grad_norm = INFINITY;
        e->skipped_steps++;
        e->timers.updated = false;
    } else {
        TRY(apply(e, &scan, made_with));
    }
    e->was_applied = !skip_step;
    zero_grads_drop(e->zero);
    count_boundary(e);
    /* A run that skips forever would otherwise only look slow. */
    int64_t limit = e->config->czero.max_consecutive_skips;
    if (limit <= 0 || e->n_skipped_in_a_row < limit) return CZ_OK;
    char what[512], scales[256];
    return err_set(CZ_DIVERGED, 0,
                   "%lld steps in a row were skipped (czero.max_consecutive_skips): %s; the last "
                   "loss scales were %s; look at the data, lower the learning rate, or train in "
                   "bf16",
                   (long long)e->n_skipped_in_a_row, offender(e, &scan, what, sizeof what),
                   history(e, scales, sizeof scales));
}

/* comm_agree(): one rank's failure (its disk, a refused scale) must end the step on all of them. */
cz_status engine_step(struct cz_engine *e)
{
    ENGINE_ENTRY(e);
    if (e->phase != PHASE_BACKWARD)
        return err_set(CZ_INVALID, 0, "engine_step needs an engine_backward before it");
    report_memory(e, "Engine before step");
    int64_t begin = clock_now_ns();
    bool is_boundary = engine_is_gradient_accumulation_boundary(e);
    e->was_applied = false;
    e->comm_ns = 0;
    if (is_boundary) TRY(comm_agree(e->comm, boundary(e)));
    e->phase = PHASE_IDLE;
    e->micro_steps++;
    if (is_boundary) TRY(engine_save_poll(e));
    timers_add_backward(&e->timers, 0, e->comm_ns); /* wherever it happens: see report_timers.h */
    timers_add(&e->timers, TIMER_STEP, clock_now_ns() - begin - e->comm_ns);
    TRY(report_step(e, is_boundary));
    report_memory(e, "Engine after step");
    return CZ_OK;
}

/* ---- a whole step -----------------------------------------------------------------------------
 */

/* Where micro-batches come from, and where their logits go. */
struct batch_source {
    cz_next_batch next;
    void *user;
    float *logits;
    size_t stride; /* elements from one micro-batch's logits to the next */
};

static cz_status take_batch(struct cz_engine *e, const struct batch_source *source, size_t stage)
{
    struct cz_batch batch = {.size = sizeof batch};
    TRY(source->next(source->user, &batch));
    TRY(batch_stage_copy(&e->stages[stage], e->model, &batch,
                         BATCH_LOSS | (source->logits ? BATCH_LOGITS : 0u)));
    engine_warn_labels(e, stage, false);
    return CZ_OK;
}

/* All micro-batches through each layer. A rank without data says so before any layer runs. */
static cz_status train_by_layer(struct cz_engine *e, const struct batch_source *source)
{
    cz_status st = CZ_OK;
    report_memory(e, "Engine before forward");
    for (size_t k = 0; k < e->n_stages && st == CZ_OK; k++) st = take_batch(e, source, k);
    TRY(comm_agree(e->comm, st));
    TRY(forward_staged(e, e->n_stages, NULL, source->logits, source->stride));
    TRY(backward(e, e->n_stages));
    if (e->config->managed_gradient_accumulation) e->micro_steps += (int64_t)e->n_stages - 1;
    return CZ_OK;
}

/* One micro-batch after the other; the boundary's step is left to the caller. */
static cz_status train_by_micro_batch(struct cz_engine *e, const struct batch_source *source)
{
    const int64_t n = e->config->gradient_accumulation_steps;
    for (int64_t k = 0; k < n; k++) {
        report_memory(e, "Engine before forward");
        TRY(comm_agree(e->comm, take_batch(e, source, 0)));
        float *logits = source->logits ? source->logits + (size_t)k * source->stride : NULL;
        TRY(forward_staged(e, 1, NULL, logits, 0));
        TRY(backward(e, 1));
        if (e->config->managed_gradient_accumulation && k + 1 < n) TRY(engine_step(e));
    }
    return CZ_OK;
}

/* A step that is not made leaves nothing: its micro-batches do not count. */
static void drop_step(struct cz_engine *e, int64_t micro_steps)
{
    zero_grads_drop(e->zero);
    e->micro_steps = micro_steps;
    e->n_backward = 0;
    e->loss_sum = 0;
    e->phase = PHASE_IDLE;
    for (size_t k = 0; k < e->n_stages; k++) e->stages[k].n_losses = 0;
}

/* A forward is completed first: gathers and reductions of its pass may be under way. */
cz_status engine_drop_step(struct cz_engine *e)
{
    int64_t micro_steps = e->micro_steps;
    if (e->phase == PHASE_IDLE && e->n_backward == 0) return CZ_OK;
    if (e->phase == PHASE_FORWARD) TRY(backward(e, 1));
    if (e->config->managed_gradient_accumulation)
        micro_steps -= micro_steps % e->config->gradient_accumulation_steps;
    drop_step(e, micro_steps);
    return CZ_OK;
}

static cz_status train_batch(struct cz_engine *e, const struct batch_source *source, float *loss)
{
    const int64_t n = e->config->gradient_accumulation_steps, micro_steps = e->micro_steps;
    const bool is_managed = e->config->managed_gradient_accumulation;
    if (!source->next) return err_set(CZ_INVALID, 0, "engine_train_batch needs a `next`");
    if (e->phase != PHASE_IDLE || e->n_backward > 0 || (is_managed && micro_steps % n != 0))
        return err_set(CZ_INVALID, 0,
                       "engine_train_batch makes a whole step, and one has begun: end it with "
                       "engine_backward and engine_step");
    cz_status st = e->n_stages > 1 ? train_by_layer(e, source) : train_by_micro_batch(e, source);
    if (st != CZ_OK) {
        drop_step(e, micro_steps);
        return st;
    }
    TRY(engine_step(e));
    if (loss) *loss = (float)e->boundary_loss;
    return CZ_OK;
}

cz_status engine_train_batch(struct cz_engine *e, cz_next_batch next, void *user, float *loss)
{
    ENGINE_ENTRY(e);
    const struct batch_source source = {.next = next, .user = user};
    return train_batch(e, &source, loss);
}

cz_status engine_train_batch_logits(struct cz_engine *e, cz_next_batch next, void *user,
                                    float *loss, float *logits)
{
    ENGINE_ENTRY(e);
    TRY(check_classifier(e, "engine_train_batch_logits"));
    const bool of_tokens = cz_model_labels(e->model) == CZ_LABELS_TOKEN_CLASS;
    const size_t n_rows = (size_t)(e->plan.B * (of_tokens ? e->plan.T : 1));
    const struct batch_source source = {.next = next,
                                        .user = user,
                                        .logits = logits,
                                        .stride = n_rows * (size_t)cz_model_n_classes(e->model)};
    return train_batch(e, &source, loss);
}
