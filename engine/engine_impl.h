/* The inside of an engine, shared by the files of this module that run it: what it is (a
 * description), what was allocated for it, and where the run stands. docs/design.md, "An engine's
 * three parts". */
#ifndef CZ_ENGINE_ENGINE_IMPL_H
#define CZ_ENGINE_ENGINE_IMPL_H

#include "base/host/entry.h"
#include "engine/batch_stage.h"
#include "engine/memory.h"
#include "engine/own_loss.h"
#include "engine/plan/description.h"
#include "engine/report/monitor.h"
#include "engine/report/profiler.h"
#include "engine/report/report_timers.h"
#include "optim/loss_scale.h"
#include "optim/schedule.h"

enum engine_phase { PHASE_IDLE = 0, PHASE_FORWARD, PHASE_BACKWARD };

#define SCALE_HISTORY 8

/* The first line of exported calls on an engine. */
#define ENGINE_ENTRY(e)                                                                            \
    API_ENTRY;                                                                                     \
    NEED(e, "engine");                                                                             \
    TRY(entry_check_process((e)->generation, "this engine"))

/* Where the run stands: what a checkpoint keeps, what the step in work has come to, and what the
 * last one was. */
struct run {
    struct schedule schedule; /* when config->scheduler is usable */
    struct loss_scale scale;
    enum engine_phase phase;
    int64_t micro_steps, global_steps, global_samples, skipped_steps;
    int64_t n_backward;      /* micro-batches whose gradients have been added up */
    const char *dropped_by;  /* what dropped the last forward, until the next one; NULL: nothing */
    bool has_warned_forward; /* that a forward without backward was dropped */
    bool has_dropped_step;   /* since the last boundary, for a forward without engine_step */
    uint64_t n_updates;
    bool was_applied;
    double loss_sum, boundary_loss, grad_norm;
    int64_t n_skipped_in_a_row;
    struct own_loss own_loss;
    bool adapter_is_off;                            /* of evaluations; training needs it */
    bool has_warned_labels, has_warned_eval_labels; /* that a micro-batch had none */
    double scale_history[SCALE_HISTORY];            /* scales of the last boundaries, a ring */
    int64_t n_scales;
    struct save *save;     /* a checkpoint that is being written; NULL: none (save_impl.h) */
    struct err save_error; /* of the last one, until engine_save_wait() has told */

    /* For reports. */
    struct monitor *monitor;   /* of rank 0 */
    struct profiler *profiler; /* NULL: not asked for, or not rank 0 */
    struct engine_timers timers;
    uint64_t sent_nbytes, sent_before; /* to other ranks: in the last step, and before it in all */
    int64_t comm_ns;                   /* waited for other ranks during the pass in work */
    struct throughput throughput;
};

struct cz_engine {
    unsigned generation; /* of the process that made it (base/host/entry.h) */
    struct description desc;
    struct memory mem;
    struct run run;
};

#endif
