/* step: the counters, the boundary and what happens there
 * (docs/deepspeed-behaviour.md, "Counters and boundary" to "Loss scale"). All decisions of a
 * boundary (skip, clip, new scale) follow from figures that every rank has alike, so ranks cannot
 * part ways. */
#include "engine/micro_batches.h"
#include "engine/run_report.h"
#include "engine/state/save_impl.h"

#include "base/clock.h"
#include "base/host/entry.h"
#include "base/log.h"
#include "base/size.h"
#include "formats/json/json_write.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- a boundary without finite gradients ---------------------------------------------------- */

/* The first bad element, by name: an overflow without a place sends users searching through
 * layers. */
static const char *offender(const struct cz_engine *e, const struct zero_scan *scan, char *buf,
                            size_t nbytes)
{
    char value[JSON_FLOAT_NBYTES];
    snprintf(buf, nbytes, "the gradient of %s is %s at element %zu",
             model_params(e->desc.model)->params[scan->param_idx].name,
             json_float_text((double)scan->value, value), scan->elem);
    return buf;
}

/* A ring of the last scales, oldest first. */
static const char *history(const struct cz_engine *e, char *buf, size_t nbytes)
{
    int64_t n = e->run.n_scales < SCALE_HISTORY ? e->run.n_scales : SCALE_HISTORY;
    size_t at = 0;
    buf[0] = '\0';
    for (int64_t i = e->run.n_scales - n; i < e->run.n_scales && at < nbytes; i++)
        at += (size_t)snprintf(buf + at, nbytes - at, "%s%g", i == e->run.n_scales - n ? "" : ", ",
                               e->run.scale_history[i % SCALE_HISTORY]);
    return buf;
}

/* All ranks know the same: one says it. */
static void log_skip(struct cz_engine *e, const struct zero_scan *scan, double old_scale)
{
    if (e->desc.comm->rank != 0) return;
    char what[512], scale[96] = "";
    if (e->desc.config->fp16.enabled && e->run.scale.scale != old_scale)
        snprintf(scale, sizeof scale, "; loss scale %g, now %g", old_scale, e->run.scale.scale);
    else if (e->run.scale.dynamic)
        snprintf(scale, sizeof scale, "; loss scale %g, remaining hysteresis %lld", old_scale,
                 (long long)e->run.scale.hysteresis);
    else if (e->desc.config->fp16.enabled)
        snprintf(scale, sizeof scale, "; the loss scale is fixed at %g", old_scale);
    /* A dynamic scale finds its level by overflowing: no reason to warn. */
    LOGV(e->run.scale.dynamic ? LOG_INFO : LOG_WARN, SUB_ENGINE, "step %lld skipped: %s%s",
         (long long)e->run.global_steps + 1, offender(e, scan, what, sizeof what), scale);
}

/* ---- the boundary ---------------------------------------------------------------------------- */

/* Norm of the gradients as they are (still scaled); NAN when it is neither wanted nor needed. */
static cz_status measure_norm(struct cz_engine *e, const struct zero_scan *scan, double *norm)
{
    *norm = NAN;
    if (!scan->finite || !description_needs_norm(&e->desc)) return CZ_OK;
    return zero_norm(e->desc.zero, norm);
}

/* The same after an update that did not wait for it. */
static cz_status measure_norm_late(struct cz_engine *e, double *norm)
{
    struct zero_scan scan;
    if (!e->desc.config->zero.compute_grad_norm) return CZ_OK;
    TRY(zero_scan(e->desc.zero, &scan));
    return measure_norm(e, &scan, norm);
}

/* The variance of a 1-bit optimizer no longer changes. */
static bool is_frozen(const struct cz_engine *e)
{
    const struct zero_onebit onebit = zero_onebit(e->desc.zero);
    return onebit.clock && onebit.clock->frozen;
}

/* The 1-bit family has come to the steps that it is chosen for. */
static void log_frozen(const struct cz_engine *e)
{
    const struct cz_plan *p = &e->desc.plan;
    char few[24], many[24];
    if (e->desc.comm->rank != 0) return;
    if (p->world_size == 1) {
        LOGV(LOG_INFO, SUB_ENGINE, "%s: the variance is frozen from step %lld on",
             onebit_of(e->desc.groups, e->desc.n_groups)->cls->name,
             (long long)e->run.global_steps + 2);
        return;
    }
    LOGV(LOG_INFO, SUB_ENGINE,
         "%s: the variance is frozen; from step %lld on an exchange sends %s from each rank "
         "instead of %s",
         onebit_of(e->desc.groups, e->desc.n_groups)->cls->name, (long long)e->run.global_steps + 2,
         size_human(p->sent_nbytes_frozen, few, sizeof few),
         size_human(p->sent_nbytes_per_step, many, sizeof many));
}

/* Unscale with the scale that the gradients were made with, which DeepSpeed does not
 * (docs/deepspeed-behaviour.md, "Scale of a growing step"), clip, update. */
static cz_status apply(struct cz_engine *e, const struct zero_scan *scan, double made_with)
{
    double norm = NAN;
    bool first = description_updates_first(&e->desc);
    int64_t begin = clock_now_ns();
    if (!first) TRY(measure_norm(e, scan, &norm));
    double clip =
        isfinite(norm) ? optim_clip_factor(norm, made_with, e->desc.config->gradient_clipping) : 1;
    int64_t normed = clock_now_ns();
    comm_set_phase(e->desc.comm, e->run.global_steps + 1, "update");
    bool was_frozen = is_frozen(e);
    cz_status st = zero_step(e->desc.zero, e->run.n_updates + 1, made_with, clip);
    TRY(e->mem.swap ? comm_agree(e->desc.comm, st) : st); /* one rank's disk may fail */
    TRY(micro_batches_settle(e));
    int64_t swept = clock_now_ns();
    TRY(zero_gather(e->desc.zero));
    int64_t gathered = clock_now_ns();
    e->run.timers.exposed[EXPOSED_STEP] += gathered - swept;
    if (first) TRY(measure_norm_late(e, &norm));
    timers_set_update(&e->run.timers, normed - begin + clock_now_ns() - gathered, swept - normed,
                      gathered - swept);
    e->run.n_updates++;
    if (is_frozen(e) && !was_frozen) log_frozen(e);
    e->run.grad_norm = norm / made_with;
    return e->desc.config->scheduler.usable ? schedule_step(&e->run.schedule, e->desc.groups)
                                            : CZ_OK;
}

/* Samples: a managed run counts whole batches as DeepSpeed does; otherwise what was really
 * accumulated. */
static void count_boundary(struct cz_engine *e)
{
    const struct ds_config *c = e->desc.config;
    int64_t per_backward = c->train_batch_size / c->gradient_accumulation_steps;
    e->run.global_steps++;
    e->run.has_dropped_step = false;
    e->run.global_samples +=
        c->managed_gradient_accumulation ? c->train_batch_size : e->run.n_backward * per_backward;
    e->run.n_backward = 0;
    e->run.loss_sum = 0;
    /* The communicator counts since its creation. */
    const struct comm_traffic *t = &e->desc.comm->traffic;
    uint64_t sent = t->reduce_sent_nbytes + t->move_sent_nbytes;
    e->run.sent_nbytes = sent - e->run.sent_before;
    e->run.sent_before = sent;
    memory_count_step(&e->mem);
    log_set_step(e->run.global_steps);
}

/* What a boundary does, in order: reduce, average the loss, look for overflows, update the scale,
 * skip or apply, count. Both DIVERGED ends come after the figures they quote are final; the weights
 * are as before. */
static cz_status boundary(struct cz_engine *e)
{
    struct zero_scan scan = {.finite = true};
    bool skip_step;
    double made_with = e->run.scale.scale;
    int64_t begin = clock_now_ns();
    comm_set_phase(e->desc.comm, e->run.global_steps + 1, "reducing gradients");
    TRY(zero_reduce(e->desc.zero));
    e->run.comm_ns = clock_now_ns() - begin;
    e->run.timers.exposed[EXPOSED_STEP] += e->run.comm_ns;
    /* Over micro-batches and ranks, in rank order: every rank adds in the same order and gets the
     * same bits. */
    double sum = 0;
    TRY(micro_batches_take_losses(e));
    e->mem.losses[e->desc.comm->rank] = e->run.loss_sum / (double)e->run.n_backward;
    TRY(comm_all_gather(e->desc.comm, &e->mem.losses[e->desc.comm->rank], e->mem.losses,
                        sizeof *e->mem.losses));
    for (int r = 0; r < e->desc.comm->world_size; r++) sum += e->mem.losses[r];
    e->run.boundary_loss = sum / (double)e->desc.comm->world_size;
    /* Without a check (see description_updates_first) an update need not wait for the last
     * gradient. */
    if (!description_updates_first(&e->desc)) TRY(zero_scan(e->desc.zero, &scan));
    bool usable = scan.finite || !description_checks_overflow(e->desc.config);
    e->run.scale_history[e->run.n_scales++ % SCALE_HISTORY] = made_with;
    /* The loss scale cannot go lower. */
    if (loss_scale_update(&e->run.scale, usable, &skip_step) != CZ_OK) {
        char what[512], scales[256], reason[512];
        snprintf(reason, sizeof reason, "%s", cz_last_error());
        return err_set(CZ_DIVERGED, 0, "step %lld: %s; %s; the last loss scales were %s",
                       (long long)e->run.global_steps + 1, offender(e, &scan, what, sizeof what),
                       reason, history(e, scales, sizeof scales));
    }
    e->run.n_skipped_in_a_row = skip_step ? e->run.n_skipped_in_a_row + 1 : 0;
    /* An overflow leaves weights and states as they are. */
    if (skip_step) {
        log_skip(e, &scan, made_with);
        e->run.grad_norm = INFINITY;
        e->run.skipped_steps++;
        e->run.timers.updated = false;
    } else {
        TRY(apply(e, &scan, made_with));
    }
    e->run.was_applied = !skip_step;
    zero_grads_drop(e->desc.zero);
    count_boundary(e);
    /* A run that skips forever would otherwise only look slow. */
    int64_t limit = e->desc.config->czero.max_consecutive_skips;
    if (limit <= 0 || e->run.n_skipped_in_a_row < limit) return CZ_OK;
    char what[512], scales[256];
    return err_set(CZ_DIVERGED, 0,
                   "%lld steps in a row were skipped (czero.max_consecutive_skips): %s; the last "
                   "loss scales were %s; look at the data, lower the learning rate, or train in "
                   "bf16",
                   (long long)e->run.n_skipped_in_a_row, offender(e, &scan, what, sizeof what),
                   history(e, scales, sizeof scales));
}

/* comm_agree(): one rank's failure (its disk, a refused scale) must end the step on all of them. */
cz_status engine_step(struct cz_engine *e)
{
    ENGINE_ENTRY(e);
    if (e->run.phase != PHASE_BACKWARD)
        return err_set(CZ_INVALID, 0, "engine_step needs an engine_backward before it");
    report_memory(e, "Engine before step");
    int64_t begin = clock_now_ns();
    bool is_boundary = engine_is_gradient_accumulation_boundary(e);
    e->run.was_applied = false;
    e->run.comm_ns = 0;
    if (is_boundary) TRY(comm_agree(e->desc.comm, boundary(e)));
    e->run.phase = PHASE_IDLE;
    e->run.micro_steps++;
    if (is_boundary) TRY(engine_save_poll(e));
    timers_add_backward(&e->run.timers, 0,
                        e->run.comm_ns); /* wherever it happens: see report_timers.h */
    timers_add(&e->run.timers, TIMER_STEP, clock_now_ns() - begin - e->run.comm_ns);
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
    return micro_batches_stage(e, stage, &batch, source->logits != NULL);
}

/* All micro-batches through each layer. A rank without data says so before any layer runs. */
static cz_status train_by_layer(struct cz_engine *e, const struct batch_source *source)
{
    cz_status st = CZ_OK;
    report_memory(e, "Engine before forward");
    for (size_t k = 0; k < e->desc.n_stages && st == CZ_OK; k++) st = take_batch(e, source, k);
    TRY(comm_agree(e->desc.comm, st));
    TRY(micro_batches_forward(e, e->desc.n_stages, NULL, source->logits, source->stride));
    TRY(micro_batches_backward(e, e->desc.n_stages));
    if (e->desc.config->managed_gradient_accumulation)
        e->run.micro_steps += (int64_t)e->desc.n_stages - 1;
    return CZ_OK;
}

/* One micro-batch after the other; the boundary's step is left to the caller. */
static cz_status train_by_micro_batch(struct cz_engine *e, const struct batch_source *source)
{
    const int64_t n = e->desc.config->gradient_accumulation_steps;
    for (int64_t k = 0; k < n; k++) {
        report_memory(e, "Engine before forward");
        TRY(comm_agree(e->desc.comm, take_batch(e, source, 0)));
        float *logits = source->logits ? source->logits + (size_t)k * source->stride : NULL;
        TRY(micro_batches_forward(e, 1, NULL, logits, 0));
        TRY(micro_batches_backward(e, 1));
        if (e->desc.config->managed_gradient_accumulation && k + 1 < n) TRY(engine_step(e));
    }
    return CZ_OK;
}

static cz_status train_batch(struct cz_engine *e, const struct batch_source *source, float *loss)
{
    const int64_t n = e->desc.config->gradient_accumulation_steps, micro_steps = e->run.micro_steps;
    const bool is_managed = e->desc.config->managed_gradient_accumulation;
    TRY(micro_batches_drop_forward(e, "engine_train_batch"));
    if (e->run.phase != PHASE_IDLE || e->run.n_backward > 0 || (is_managed && micro_steps % n != 0))
        return err_set(CZ_INVALID, 0,
                       "engine_train_batch makes a whole step, and one has begun: end it with "
                       "engine_backward and engine_step, or drop it with engine_discard_step");
    cz_status st =
        e->desc.n_stages > 1 ? train_by_layer(e, source) : train_by_micro_batch(e, source);
    if (st != CZ_OK) {
        micro_batches_forget(e, micro_steps);
        return st;
    }
    TRY(engine_step(e));
    if (loss) *loss = (float)e->run.boundary_loss;
    return CZ_OK;
}

cz_status engine_train_batch(struct cz_engine *e, cz_next_batch next, void *user, float *loss)
{
    ENGINE_ENTRY(e);
    NEED(next, "next");
    const struct batch_source source = {.next = next, .user = user};
    return train_batch(e, &source, loss);
}

cz_status engine_train_batch_logits(struct cz_engine *e, cz_next_batch next, void *user,
                                    float *loss, float *logits)
{
    ENGINE_ENTRY(e);
    NEED(next, "next");
    NEED(logits, "logits");
    TRY(micro_batches_check_classifier(e, "engine_train_batch_logits"));
    const bool by_row = model_is_by_row(e->desc.model);
    const size_t n_rows = (size_t)(e->desc.plan.B * (by_row ? 1 : e->desc.plan.T));
    const struct batch_source source = {.next = next,
                                        .user = user,
                                        .logits = logits,
                                        .stride =
                                            n_rows * (size_t)cz_model_n_classes(e->desc.model)};
    return train_batch(e, &source, loss);
}
