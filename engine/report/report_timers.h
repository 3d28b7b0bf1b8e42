/* Where a step's time goes (wall_clock_breakdown) and how many samples pass per second.
 *
 * Plain data that the engine feeds with nanoseconds; nothing here reads a clock or prints. */
#ifndef CZ_ENGINE_REPORT_REPORT_TIMERS_H
#define CZ_ENGINE_REPORT_REPORT_TIMERS_H

#include "base/compiler.h"

CZ_EXTERN_C_BEGIN

/* In the order of DeepSpeed's line. BACKWARD = BACKWARD_INNER + REDUCE; reductions count as
 * backward wherever they happen, and never as STEP. */
enum engine_timer {
    TIMER_FORWARD = 0,
    TIMER_BACKWARD,
    TIMER_BACKWARD_INNER,
    TIMER_REDUCE,
    TIMER_STEP,
    N_ENGINE_TIMERS
};

/* Parts of an update, in the order of DeepSpeed's line. */
enum update_timer {
    TIMER_GATHER = 0, /* of the updated parameters */
    TIMER_GRADIENTS,  /* scan and norm; unscaling and clipping are part of the sweep */
    TIMER_UPDATE,     /* the optimizer's sweep */
    N_UPDATE_TIMERS
};

/* Where the run stood still for other ranks: communication that nothing hid. */
enum exposed_timer { EXPOSED_FORWARD = 0, EXPOSED_BACKWARD, EXPOSED_STEP, N_EXPOSED_TIMERS };

struct engine_timers {
    int64_t micro[N_ENGINE_TIMERS]; /* of the last micro-batch */
    int64_t total[N_ENGINE_TIMERS]; /* since the last boundary */
    int64_t update[N_UPDATE_TIMERS];
    int64_t exposed[N_EXPOSED_TIMERS]; /* since the last boundary */
    bool updated; /* `update` holds the last boundary's; false when it was skipped */
};

extern const char *const engine_timer_names_micro[N_ENGINE_TIMERS]; /* "fwd_microstep" … */
extern const char *const engine_timer_names[N_ENGINE_TIMERS];       /* "fwd" … */
extern const char *const update_timer_names[N_UPDATE_TIMERS];       /* "optimizer_allgather" … */
extern const char *const exposed_timer_names[N_EXPOSED_TIMERS];     /* "exposed_comm_fwd" … */

/* The layers' backward took `inner_ns` plus `reduce_ns` of reductions between them. */
void timers_add(struct engine_timers *t, enum engine_timer timer, int64_t ns);
void timers_add_backward(struct engine_timers *t, int64_t inner_ns, int64_t reduce_ns);

/* The parts of an update that happened. */
void timers_set_update(struct engine_timers *t, int64_t gradients_ns, int64_t update_ns,
                       int64_t gather_ns);

/* Forget the micro-batch; at a boundary, the totals too. */
void timers_reset(struct engine_timers *t, bool is_boundary);

/* ---- throughput ------------------------------------------------------------------------------
 * Samples per second as DeepSpeed counts them: the time from a micro-batch's forward to the end of
 * its step, from the third global step on. */

struct throughput {
    int64_t n_micro, n_global;
    int64_t begin_ns;            /* of the micro-batch in work; 0: none, or not counted yet */
    int64_t elapsed_ns, step_ns; /* counted in all, and of the last global step */
    bool counted;                /* the last global step was */
};

void throughput_begin(struct throughput *t, int64_t now_ns);
void throughput_end(struct throughput *t, int64_t now_ns, bool is_boundary);

/* Samples per second since counting began, and of the last global step; 0 before any. */
double throughput_average(const struct throughput *t, int64_t train_batch);
double throughput_current(const struct throughput *t, int64_t train_batch);

CZ_EXTERN_C_END
#endif
