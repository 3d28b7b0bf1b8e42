/* Micro-batches through the layers: forward and backward, whose gradients add up until the boundary
 * (docs/deepspeed-behaviour.md, "Counters and boundary"). */
#include "engine/micro_batches.h"

#include "base/clock.h"
#include "base/log.h"
#include "engine/run_report.h"

/* As DeepSpeed: true during the last micro-batch, before its step() counts it. */
bool engine_is_gradient_accumulation_boundary(const struct cz_engine *e)
{
    API_ENTRY;
    NEED_OR(e, false);
    if (!e->desc.config->managed_gradient_accumulation) return true; /* every step() is one */
    return (e->run.micro_steps + 1) % e->desc.config->gradient_accumulation_steps == 0;
}

bool engine_is_between_steps(const struct cz_engine *e)
{
    NEED_OR(e, false);
    return e->run.phase == PHASE_IDLE && e->run.n_backward == 0;
}

cz_status micro_batches_settle(struct cz_engine *e)
{
    if (!e->desc.config->wall_clock_breakdown) return CZ_OK;
    return e->desc.device->ops->stream_sync(e->desc.device, e->desc.stream);
}

/* Whether the micro-batch that begins is known to be the last before the boundary. */
static bool is_last_known(const struct cz_engine *e)
{
    return e->desc.config->managed_gradient_accumulation &&
           engine_is_gradient_accumulation_boundary(e);
}

/* Otherwise a run that has lost its labels looks like one that has learned everything. */
void micro_batches_warn_labels(struct cz_engine *e, size_t stage, bool evaluates)
{
    bool *has_warned = evaluates ? &e->run.has_warned_eval_labels : &e->run.has_warned_labels;
    if (!e->mem.stages[stage].lacks_labels || *has_warned) return;
    *has_warned = true;
    LOGV(LOG_WARN, SUB_ENGINE,
         "step %lld%s: no label of a micro-batch counts (ignored, NaN or weight 0): its loss is 0. "
         "Check labels, masks and truncation (logged once)",
         (long long)e->run.global_steps + 1, evaluates ? ", evaluation" : "");
}

/* The layers' forward, profiled when this is the step to profile. Several micro-batches are all of
 * a step. */
static cz_status walk_forward(struct cz_engine *e, const struct chain_run *runs, size_t n)
{
    bool is_last = n > 1 || is_last_known(e);
    TRY(zero_pass_begin(e->desc.zero, is_last ? ZERO_PASS_LAST : ZERO_PASS_TRAIN));
    if (!profiler_is_due(e->run.profiler, e->run.global_steps))
        return chain_forward_all(e->desc.chain, runs, n);
    for (size_t k = 0; k < n; k++)
        TRY(profiler_begin(e->run.profiler, chain_shape_of(runs[k].batch)));
    cz_status st = chain_forward_all(e->desc.chain, runs, n);
    profiler_end(e->run.profiler);
    return st;
}

/* A training pass over a staged micro-batch. The loss is scaled by loss scale over accumulation
 * steps, so gradients of all micro-batches add up to the scaled mean. The first micro-batch
 * overwrites gradients (no pass to clear them), the others add. */
static struct chain_run run_of(struct cz_engine *e, size_t stage, float *logits)
{
    const struct batch *batch = &e->mem.stages[stage].batch;
    const struct objective *objective = own_loss_objective(&e->run.own_loss);
    double seed = e->run.scale.scale / (double)e->desc.config->gradient_accumulation_steps;
    return (struct chain_run){.stream = e->desc.stream,
                              .batch = batch,
                              .mode = LAYER_TRAIN,
                              .rng = {.seed = e->desc.seed,
                                      .step = (uint32_t)e->run.global_steps,
                                      .sample = batch->sample},
                              .dloss = (float)seed,
                              .loss = e->mem.stages[stage].loss,
                              .log_probs = objective ? e->mem.stages[stage].log_probs : NULL,
                              .objective = objective,
                              .logits = logits,
                              .accumulate =
                                  e->run.n_backward > 0 && zero_accumulates(e->desc.zero)};
}

/* A classifier's own loss need not have labels. */
cz_status micro_batches_stage(struct cz_engine *e, size_t stage, const struct cz_batch *batch,
                              bool wants_logits)
{
    const bool is_own = e->run.own_loss.loss != NULL;
    const bool reads_labels = !is_own || cz_model_n_classes(e->desc.model) == 0;
    if (e->run.adapter_is_off)
        return err_set(CZ_INVALID, 0,
                       "the adapter is off: call engine_use_adapter(engine, true) before training");
    TRY(batch_stage_copy(&e->mem.stages[stage], e->desc.model, batch,
                         (reads_labels ? BATCH_LOSS : 0u) | (wants_logits ? BATCH_LOGITS : 0u) |
                             (is_own ? BATCH_AS_GIVEN : 0u)));
    micro_batches_warn_labels(e, stage, false);
    return CZ_OK;
}

/* Where the step that has begun began. */
static int64_t first_micro_step(const struct cz_engine *e)
{
    if (!e->desc.config->managed_gradient_accumulation) return e->run.micro_steps;
    return e->run.micro_steps - e->run.micro_steps % e->desc.config->gradient_accumulation_steps;
}

/* The first n staged micro-batches through the layers. Logits of each begin `stride` behind those
 * of the one before. */
cz_status micro_batches_forward(struct cz_engine *e, size_t n, float *loss, float *logits,
                                size_t stride)
{
    int64_t begin = clock_now_ns();
    report_forward(e, begin);
    comm_set_phase(e->desc.comm, e->run.global_steps + 1, "forward");
    e->run.comm_ns = 0;
    for (size_t k = 0; k < n; k++)
        e->mem.runs[k] = run_of(e, k, logits ? logits + k * stride : NULL);
    TRY(walk_forward(e, e->mem.runs, n));
    if (logits) TRY(e->desc.device->ops->stream_sync(e->desc.device, e->desc.stream));
    for (size_t k = 0; k < n; k++) /* on a GPU without waiting for it */
        TRY(batch_stage_loss(&e->mem.stages[k], loss, &e->run.loss_sum));
    TRY(micro_batches_settle(e));
    e->run.phase = PHASE_FORWARD;
    e->run.dropped_by = NULL;
    timers_add(&e->run.timers, TIMER_FORWARD, clock_now_ns() - begin);
    e->run.timers.exposed[EXPOSED_FORWARD] += e->run.comm_ns;
    report_memory(e, "Engine after forward");
    return CZ_OK;
}

/* ---- a step that is not made ------------------------------------------------------------------
 */

/* A step that is not made leaves nothing: its micro-batches do not count. */
void micro_batches_forget(struct cz_engine *e, int64_t micro_steps)
{
    zero_grads_drop(e->desc.zero);
    e->run.micro_steps = micro_steps;
    e->run.n_backward = 0;
    e->run.loss_sum = 0;
    e->run.phase = PHASE_IDLE;
    for (size_t k = 0; k < e->desc.n_stages; k++) e->mem.stages[k].n_losses = 0;
}

/* Gathers and reductions of a pass may be under way. */
static cz_status complete_pass(struct cz_engine *e)
{
    comm_set_phase(e->desc.comm, e->run.global_steps + 1, "backward");
    TRY(chain_backward(e->desc.chain));
    return zero_pass_end(e->desc.zero);
}

cz_status micro_batches_drop(struct cz_engine *e)
{
    cz_status st = CZ_OK;
    if (e->run.phase == PHASE_IDLE && e->run.n_backward == 0) return CZ_OK;
    if (e->run.phase == PHASE_FORWARD) st = complete_pass(e);
    micro_batches_forget(e, first_micro_step(e));
    return st;
}

/* All ranks know the same: one says it. */
static void warn_dropped(struct cz_engine *e, const char *what, const char *advice)
{
    const bool has_gradients = e->run.n_backward > 0;
    if (!has_gradients && e->run.has_warned_forward) return;
    if (!has_gradients) e->run.has_warned_forward = true;
    if (e->desc.comm->rank != 0) return;
    if (has_gradients)
        LOGV(LOG_WARN, SUB_ENGINE,
             "step %lld: %s drops the step, with the gradients of %lld of its micro-batches. %s",
             (long long)e->run.global_steps + 1, what, (long long)e->run.n_backward, advice);
    else
        LOGV(LOG_WARN, SUB_ENGINE,
             "step %lld: %s drops the training forward before it. %s (logged once)",
             (long long)e->run.global_steps + 1, what, advice);
}

cz_status micro_batches_drop_forward(struct cz_engine *e, const char *what)
{
    if (e->run.phase != PHASE_FORWARD) return CZ_OK;
    if (e->run.n_backward > 0)
        return err_set(CZ_INVALID, 0,
                       "a training forward waits, and %lld micro-batches of its step have "
                       "gradients: call engine_backward before %s, or drop the step with "
                       "engine_discard_step",
                       (long long)e->run.n_backward, what);
    warn_dropped(e, what, "Call engine_backward first");
    e->run.dropped_by = what;
    return micro_batches_drop(e);
}

cz_status engine_discard_step(struct cz_engine *e)
{
    ENGINE_ENTRY(e);
    e->run.dropped_by = e->run.phase == PHASE_FORWARD ? "engine_discard_step" : NULL;
    e->run.has_dropped_step = false;
    return micro_batches_drop(e);
}

/* ---- the calls ------------------------------------------------------------------------------- */

/* A run survives a step that Ctrl-C or an exception has cut off. The loss layer adds its gradients
 * in forward, so a dropped forward takes those of earlier micro-batches with it. */
static cz_status drop_abandoned(struct cz_engine *e)
{
    static const char what[] = "another engine_forward";
    const bool lacks_step = e->run.phase == PHASE_BACKWARD;
    if (e->run.phase == PHASE_IDLE) return CZ_OK;
    if (lacks_step && !e->desc.config->managed_gradient_accumulation) return CZ_OK;
    if (lacks_step && e->run.has_dropped_step)
        return err_set(CZ_INVALID, 0,
                       "engine_step must follow each engine_backward: call it, or drop the step "
                       "with engine_discard_step");
    warn_dropped(e, what,
                 lacks_step ? "Call engine_step after each engine_backward"
                            : "To look at a loss alone, call engine_eval");
    if (lacks_step) e->run.has_dropped_step = true;
    e->run.dropped_by = what;
    return micro_batches_drop(e);
}

static cz_status forward(struct cz_engine *e, const struct cz_batch *batch, float *loss,
                         float *logits)
{
    TRY(drop_abandoned(e));
    report_memory(e, "Engine before forward");
    TRY(micro_batches_stage(e, 0, batch, logits != NULL));
    return micro_batches_forward(e, 1, loss, logits, 0);
}

cz_status engine_forward(struct cz_engine *e, const struct cz_batch *batch, float *loss)
{
    ENGINE_ENTRY(e);
    NEED(batch, "batch");
    return forward(e, batch, loss, NULL);
}

cz_status micro_batches_check_classifier(const struct cz_engine *e, const char *call)
{
    if (cz_model_n_classes(e->desc.model) > 0) return CZ_OK;
    return err_set(CZ_UNSUPPORTED, 0,
                   "%s is for classifiers; %s is a language model, whose logits never exist as a "
                   "whole",
                   call, cz_model_name(e->desc.model));
}

cz_status engine_forward_logits(struct cz_engine *e, const struct cz_batch *batch, float *loss,
                                float *logits)
{
    ENGINE_ENTRY(e);
    NEED(batch, "batch");
    NEED(logits, "logits");
    TRY(micro_batches_check_classifier(e, "engine_forward_logits"));
    return forward(e, batch, loss, logits);
}

/* zero_pass_end() starts or awaits what is left of this pass's reductions; the time it takes is
 * exposed communication, not backward. */
cz_status micro_batches_backward(struct cz_engine *e, size_t n)
{
    report_memory(e, "Engine before backward");
    int64_t begin = clock_now_ns();
    e->run.comm_ns = 0;
    comm_set_phase(e->desc.comm, e->run.global_steps + 1, "backward");
    TRY(chain_backward(e->desc.chain));
    /* ignore_unused_parameters false: as DeepSpeed, at stages 1 and 2 only. */
    size_t i = chain_param_unused(e->desc.chain);
    int stage = e->desc.config->zero.stage;
    if (i != SIZE_MAX && !e->desc.config->zero.ignore_unused_parameters &&
        (stage == 1 || stage == 2))
        return err_set(CZ_INVALID, 0,
                       "%s got no gradient; freeze it, or set "
                       "zero_optimization.ignore_unused_parameters to true",
                       model_params(e->desc.model)->params[i].name);
    TRY(micro_batches_settle(e));
    int64_t walked = clock_now_ns();
    TRY(zero_pass_end(e->desc.zero));
    e->run.comm_ns += clock_now_ns() - walked;
    e->run.timers.exposed[EXPOSED_BACKWARD] += e->run.comm_ns;
    e->run.phase = PHASE_BACKWARD;
    e->run.n_backward += (int64_t)n;
    timers_add_backward(&e->run.timers, clock_now_ns() - begin - e->run.comm_ns, e->run.comm_ns);
    report_memory(e, "Engine after backward");
    return CZ_OK;
}

cz_status engine_backward(struct cz_engine *e)
{
    ENGINE_ENTRY(e);
    if (e->run.phase != PHASE_FORWARD && e->run.dropped_by)
        return err_set(CZ_INVALID, 0,
                       "engine_backward needs an engine_forward before it: the last one was "
                       "dropped for %s",
                       e->run.dropped_by);
    if (e->run.phase != PHASE_FORWARD)
        return err_set(CZ_INVALID, 0, "engine_backward needs an engine_forward before it");
    cz_status st = micro_batches_backward(e, 1);
    /* Half of a gradient is none. */
    if (st != CZ_OK) micro_batches_forget(e, first_micro_step(e));
    return st;
}

cz_status micro_batches_take_losses(struct cz_engine *e)
{
    for (size_t k = 0; k < e->desc.n_stages; k++)
        TRY(batch_stage_losses(&e->mem.stages[k], &e->run.loss_sum));
    return CZ_OK;
}
