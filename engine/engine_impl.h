/* The inside of an engine, shared by the files of this room that make it up. */
#ifndef CZ_ENGINE_ENGINE_IMPL_H
#define CZ_ENGINE_ENGINE_IMPL_H

#include "comm/comm.h"
#include "engine/chain.h"
#include "engine/config.h"
#include "engine/engine.h"
#include "engine/monitor.h"
#include "engine/plan.h"
#include "optim/loss_scale.h"
#include "optim/schedule.h"
#include "zero/zero.h"

/* Rows of the plan, which are also the engine's allocations: first zero's blocks, in its order. */
enum engine_block {
    BLOCK_ACTIVATIONS = ZERO_N_BLOCKS, /* what layers keep from forward to backward */
    BLOCK_GRADIENTS,                   /* of activations */
    BLOCK_WORKSPACE,
    BLOCK_BATCH, /* a copy of the micro-batch, and the loss */
    ENGINE_N_BLOCKS
};

/* The micro-batch that layers see: lives from forward to backward. */
struct batch_stage {
    int64_t B, T; /* capacity */
    int32_t *ids, *labels, *types, *positions;
    float *loss_weights;
    uint8_t *key_mask;
    float *loss; /* where the chain puts the mean loss */
    struct batch batch;
};

enum engine_phase { PHASE_IDLE = 0, PHASE_FORWARD, PHASE_BACKWARD };

/* Nanoseconds by phase; `micro` of the last micro-batch, `total` since the last boundary. */
enum timer { TIMER_FORWARD = 0, TIMER_BACKWARD, TIMER_REDUCE, TIMER_STEP, N_TIMERS };
struct timers {
    int64_t micro[N_TIMERS], total[N_TIMERS];
    int64_t optimizer_ns, gather_ns, norm_ns; /* of the last update */
};

/* Samples per second, as DeepSpeed's throughput timer counts: from the third step on. */
struct throughput {
    int64_t step_begin_ns; /* 0: no micro-batch of this step yet */
    int64_t n_steps;
    double elapsed, elapsed_since_print;
};

#define SCALE_HISTORY 8

struct engine {
    /* What engine_prepare() makes: everything but the memory. */
    struct ds_config *config;
    struct device *device;
    struct dev_stream *stream; /* the device's default one */
    struct ops *ops;
    struct comm *comm;
    bool owns_comm;
    struct model *model; /* owned once engine_initialize() has succeeded */
    struct optim_group *groups;
    size_t n_groups;
    size_t *group_of;        /* by parameter */
    struct zero_unit *units; /* one per layer */
    struct chain *chain;
    struct zero *zero;
    struct plan plan;
    enum dtype dtype, grad_dtype;
    uint64_t seed;
    engine_print print;
    void *print_user;

    /* What engine_initialize() adds. */
    void *arena;
    size_t arena_nbytes;
    void *blocks[ENGINE_N_BLOCKS];
    struct batch_stage stage;
    struct schedule schedule; /* when config->scheduler is usable */
    struct loss_scale scale;
    struct monitor *monitor;

    /* Where the run stands. */
    enum engine_phase phase;
    int64_t micro_steps, global_steps, global_samples, skipped_steps;
    int64_t n_backward; /* micro-batches whose gradients have been added up */
    uint64_t n_updates;
    bool was_applied;
    double loss_sum, boundary_loss, grad_norm;
    int64_t n_skipped_in_a_row;
    double scale_history[SCALE_HISTORY]; /* scales of the last boundaries, a ring */
    int64_t n_scales;
    struct timers timers;
    struct throughput throughput;
};

/* ---- setup.c: from options to everything but memory ------------------------------------------ */

/* comm NULL: world size 1. On failure the engine is half-built and engine_free() accepts it. */
cz_status engine_prepare(struct engine *e, const struct engine_options *options, struct comm *comm,
                         struct model *model);

/* Release everything but the model. */
void engine_free(struct engine *e);

/* ---- groups.c: which parameter belongs to which group ---------------------------------------- */

cz_status engine_make_groups(struct engine *e, const struct engine_options *options);

/* ---- plan.c ------------------------------------------------------------------------------------
 */

/* Fill e->plan from the chain and zero; measures the baseline. */
cz_status plan_fill(struct engine *e);

/* ---- batch_stage.c -----------------------------------------------------------------------------
 */

size_t batch_stage_nbytes(int64_t B, int64_t T);
void batch_stage_bind(struct batch_stage *s, int64_t B, int64_t T, void *memory);

/* Check a batch against the model and copy it. need_labels: the loss is wanted.
 * CZ_INVALID names the row, position and value. */
cz_status batch_stage_copy(struct batch_stage *s, const struct model *model,
                           const struct batch *batch, bool need_labels);

/* ---- report.c: what the config asks to be printed or recorded ----------------------------------
 */

/* A whole line or table that the config asked for (with its newlines), to options.print or the log.
 */
void engine_say(struct engine *e, const char *text);

cz_status report_start(struct engine *e);
cz_status report_step(struct engine *e, bool is_boundary);

#endif
