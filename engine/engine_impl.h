/* The inside of an engine, shared by the files of this module that make it up. */
#ifndef CZ_ENGINE_ENGINE_IMPL_H
#define CZ_ENGINE_ENGINE_IMPL_H

#include "base/host/entry.h"
#include "comm/comm.h"
#include "engine/batch_stage.h"
#include "engine/chain/chain.h"
#include "engine/config/config.h"
#include "engine/engine.h"
#include "engine/plan/plan.h"
#include "engine/report/monitor.h"
#include "engine/report/profiler.h"
#include "engine/report/report_timers.h"
#include "offload/host_memory.h"
#include "optim/loss_scale.h"
#include "optim/schedule.h"
#include "zero/zero.h"

/* Rows of the plan, which are also the engine's allocations: first zero's blocks, in its order. */
enum engine_block {
    BLOCK_ACTIVATIONS = ZERO_N_BLOCKS, /* what layers keep from forward to backward */
    BLOCK_GRADIENTS,                   /* of activations */
    BLOCK_WORKSPACE,
    BLOCK_BATCH,      /* a copy of the micro-batch, and the loss */
    BLOCK_BATCH_HOST, /* on a GPU: where batches wait for their copy, and losses for a reader */
    BLOCK_KEPT,       /* on a GPU: inputs of recomputed layers that wait in the host */
    BLOCK_SAVE,       /* what passes from the swap file, or a GPU, into a checkpoint */
    ENGINE_N_BLOCKS
};

enum engine_phase { PHASE_IDLE = 0, PHASE_FORWARD, PHASE_BACKWARD };

#define SCALE_HISTORY 8
#define METRICS_CHUNK 8 /* exchanged at once */

/* The first line of exported calls on an engine. */
#define ENGINE_ENTRY(e)                                                                            \
    API_ENTRY;                                                                                     \
    TRY(entry_check_process((e)->generation, "this engine"))

struct cz_engine {
    unsigned generation; /* of the process that made it (base/host/entry.h) */
    const struct plan_request *request; /* only a plan is wanted; NULL: an engine */
    const enum plan_order *order;       /* that is to be planned; NULL: it is chosen */

    /* What engine_prepare() makes: everything but the memory. */
    struct ds_config *config;
    struct machine_profile *profile; /* of czero.machine_profile, or a plan's; NULL: none */
    struct device *device;
    struct dev_stream *stream; /* of the layers; the host's only one */
    struct dev_stream *copies; /* on a GPU: of inputs that wait in the host */
    struct ops *ops;
    struct device *host;    /* the CPU, beside a GPU; NULL: the device is the CPU */
    struct ops *host_ops;   /* its kernels; NULL likewise */
    struct comm *comm;      /* of the GPUs, once there are several ranks with one */
    struct comm *host_comm; /* what that wraps; NULL: comm is the host's */
    bool owns_comm;
    struct cz_model *model; /* owned once engine_initialize() has succeeded */
    struct optim_group *groups;
    size_t n_groups;
    size_t *group_of;          /* by parameter */
    struct zero_unit *units;   /* one per layer */
    size_t *tied_params;       /* of the unit that also needs the loss layer's (chain_tied_layer) */
    struct zero_visit *visits; /* of a training pass */
    size_t *grad_numel;        /* by parameter */
    struct chain *chain;
    struct zero *zero;
    uint64_t *frozen_at;         /* by parameter: zero_swap.frozen_at; NULL: none */
    struct swap_source *sources; /* the model's files that it points into */
    size_t n_sources;
    struct cz_plan plan;
    enum cz_dtype dtype, grad_dtype;
    uint64_t seed;
    cz_engine_print print;
    void *print_user;

    /* What engine_initialize() adds. */
    struct affinity *affinity; /* which cores and nodes; NULL: hwloc cannot tell */
    struct host_memory pageable, pinned;
    bool pinned_registered; /* with the GPU */
    void *gpu_memory;       /* of all rows there */
    size_t gpu_nbytes;
    struct swap *swap;                   /* NULL: nothing is swapped */
    struct swap_counts swap_before;      /* at the last boundary */
    int64_t swap_before_ns;              /* when that was */
    struct cz_swap_traffic swap_traffic; /* of the last step */
    void *blocks[ENGINE_N_BLOCKS];
    struct batch_stage *stages; /* (n_stages) the micro-batches that go through layers together */
    struct chain_run *runs;     /* (n_stages) */
    size_t n_stages;
    struct schedule schedule; /* when config->scheduler is usable */
    struct loss_scale scale;
    struct monitor *monitor;
    struct profiler *profiler; /* NULL: not asked for, or not rank 0 */

    /* Where the run stands. */
    enum engine_phase phase;
    int64_t micro_steps, global_steps, global_samples, skipped_steps;
    int64_t n_backward; /* micro-batches whose gradients have been added up */
    uint64_t n_updates;
    bool was_applied;
    double loss_sum, boundary_loss, grad_norm;
    double *losses;  /* (world_size) of the last boundary */
    double *metrics; /* (world_size, METRICS_CHUNK) of engine_gather_metrics() */
    int64_t n_skipped_in_a_row;
    bool has_warned_labels, has_warned_eval_labels; /* that a micro-batch had none */
    double scale_history[SCALE_HISTORY]; /* scales of the last boundaries, a ring */
    int64_t n_scales;
    struct save *save;     /* a checkpoint that is being written; NULL: none (save_impl.h) */
    struct err save_error; /* of the last one, until engine_save_wait() has told */
    struct engine_timers timers;
    uint64_t sent_nbytes, sent_before; /* to other ranks: in the last step, and before it in all */
    int64_t comm_ns;                   /* waited for other ranks during the pass in work */
    struct throughput throughput;
};

/* Once per engine for training and once for evaluation, if no label of the micro-batch that was
 * staged counts: its loss is 0. */
void engine_warn_labels(struct cz_engine *e, size_t stage, bool evaluates);

/* Forget the step that has begun, if one has: its gradients and its micro-steps. */
cz_status engine_drop_step(struct cz_engine *e);

/* ---- setup.c: from options to everything but memory ------------------------------------------ */

/* Put the adapter on a model; one that has it already, because it was planned for, stays. Errors:
 * as cz_model_add_lora(). */
cz_status engine_add_lora(struct cz_model *model, const struct config_lora *lora);

/* comm NULL: world size 1. On failure the engine is half-built and engine_free() accepts it. */
cz_status engine_prepare(struct cz_engine *e, const struct cz_engine_options *options,
                         struct comm *comm, struct cz_model *model);

/* Whether an update depends on nothing that all gradients have to be there for (overflow check,
 * clipping): it may begin with those that have left a GPU, beside the rest of the backward. They
 * are looked at afterwards. */
bool engine_updates_first(const struct cz_engine *e);

/* Whether a step needs the norm of its gradients: it clips, or reports it. */
bool engine_needs_norm(const struct cz_engine *e);

/* Whether batches go through the layers without their padding. On a GPU they do not: attention that
 * keeps to documents has no kernel on tensor cores. */
static inline bool engine_unpads(const struct cz_engine *e)
{
    return model_unpads(e->model) && !e->plan.on_cuda;
}

/* Add the losses of training passes that are still on their way, in the order of micro-batches. */
cz_status engine_take_losses(struct cz_engine *e);

/* Release everything but the model. */
void engine_free(struct cz_engine *e);

/* ---- order.c: one micro-batch after the other, or all of them through each layer ---------------
 */

/* e->chain and e->plan.order, with the reason in words. Errors: CZ_UNSUPPORTED, CZ_INVALID (the
 * config asks for layers and the model or the run has none of it). */
cz_status order_choose(struct cz_engine *e, const struct cz_engine_options *options,
                       const struct chain_options *chain);

/* Once the memory of everything else is known: what becomes of what layers save for every
 * micro-batch. */
cz_status order_fit(struct cz_engine *e);

/* ---- groups.c: which parameter belongs to which group ---------------------------------------- */

cz_status engine_make_groups(struct cz_engine *e, const struct cz_engine_options *options);

/* ---- plan.c --------------------------------------------------------------------------------- */

/* Fill in what e->plan is for, from the config and the model. */
void plan_describe(struct cz_engine *e);

/* Fill the rest of e->plan from the chain and zero; measures the baseline. */
cz_status plan_fill(struct cz_engine *e);

/* ---- host_scratch.c: fp32 scratch in host memory while nothing is under way ----------------- */

struct host_scratch {
    float *p;
    size_t numel; /* the same on all ranks of a run on GPUs */
    float *own;   /* to be freed; NULL: the run's */
};

/* Collective on GPUs. host_scratch_give() follows, also after CZ_NOMEM. */
cz_status host_scratch_take(const struct cz_engine *e, struct host_scratch *scratch);
void host_scratch_give(struct host_scratch *scratch);

/* ---- report.c: what the config asks to be printed or recorded ------------------------------- */

/* Lines that the config asked for go to options.print or the log. Called by rank 0 and all others:
 * only rank 0 prints. */
cz_status report_start(struct cz_engine *e);
void report_forward(struct cz_engine *e, int64_t now_ns); /* a micro-batch begins */
cz_status report_step(struct cz_engine *e, bool is_boundary);
void report_memory(struct cz_engine *e, const char *where); /* memory_breakdown */

#endif
