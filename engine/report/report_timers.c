/* Sums of times by phase, and throughput. DeepSpeed attributes communication in backward to
 * "bwd_allreduce" wherever it happens; so do these timers (report_timers.h). */
#include "engine/report/report_timers.h"

#include <string.h>

const char *const engine_timer_names_micro[N_ENGINE_TIMERS] = {
    "fwd_microstep", "bwd_microstep", "bwd_inner_microstep", "bwd_allreduce_microstep",
    "step_microstep"};
const char *const engine_timer_names[N_ENGINE_TIMERS] = {"fwd", "bwd", "bwd_inner", "bwd_allreduce",
                                                         "step"};
const char *const update_timer_names[N_UPDATE_TIMERS] = {"optimizer_allgather",
                                                         "optimizer_gradients", "optimizer_step"};

const char *const exposed_timer_names[N_EXPOSED_TIMERS] = {"exposed_comm_fwd", "exposed_comm_bwd",
                                                           "exposed_comm_step"};

void timers_add(struct engine_timers *t, enum engine_timer timer, int64_t ns)
{
    t->micro[timer] += ns;
    t->total[timer] += ns;
}

void timers_add_backward(struct engine_timers *t, int64_t inner_ns, int64_t reduce_ns)
{
    timers_add(t, TIMER_BACKWARD, inner_ns + reduce_ns);
    timers_add(t, TIMER_BACKWARD_INNER, inner_ns);
    timers_add(t, TIMER_REDUCE, reduce_ns);
}

/* Of the last boundary only: they are not sums. */
void timers_set_update(struct engine_timers *t, int64_t gradients_ns, int64_t update_ns,
                       int64_t gather_ns)
{
    t->update[TIMER_GRADIENTS] = gradients_ns;
    t->update[TIMER_UPDATE] = update_ns;
    t->update[TIMER_GATHER] = gather_ns;
    t->updated = true;
}

/* Micro-batch figures begin anew after every micro-batch, the others at the boundary. */
void timers_reset(struct engine_timers *t, bool is_boundary)
{
    memset(t->micro, 0, sizeof t->micro);
    if (!is_boundary) return;
    memset(t->total, 0, sizeof t->total);
    memset(t->exposed, 0, sizeof t->exposed);
}

/* ---- throughput ------------------------------------------------------------------------------ */

#define STEPS_NOT_COUNTED 2 /* they pay for page faults and primitive creation */

void throughput_begin(struct throughput *t, int64_t now_ns)
{
    if (t->n_global >= STEPS_NOT_COUNTED) t->begin_ns = now_ns;
}

/* Only boundaries give a current speed: a micro-batch in between is no step. */
void throughput_end(struct throughput *t, int64_t now_ns, bool is_boundary)
{
    if (t->counted) t->step_ns = 0; /* the last global step is over */
    t->counted = false;
    t->n_micro++;
    if (is_boundary) t->n_global++;
    if (t->begin_ns == 0) return;
    t->elapsed_ns += now_ns - t->begin_ns;
    t->step_ns += now_ns - t->begin_ns;
    t->begin_ns = 0;
    t->counted = is_boundary;
}

/* Over the steps that were timed; the first ones pay for page faults. */
double throughput_average(const struct throughput *t, int64_t train_batch)
{
    int64_t n = t->n_global - STEPS_NOT_COUNTED;
    if (n <= 0 || t->elapsed_ns <= 0) return 0;
    return (double)train_batch / ((double)t->elapsed_ns * 1e-9 / (double)n);
}

double throughput_current(const struct throughput *t, int64_t train_batch)
{
    return t->counted ? (double)train_batch / ((double)t->step_ns * 1e-9 + 1e-6) : 0;
}
