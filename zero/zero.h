/* zero: which rank holds which elements of the model state, and when they move.
 *
 * Stages 0-2: the trainable parameters of each optimizer group form one flat buffer, laid out as
 * DeepSpeed's partitions (layout/flat.h). Stage 0 keeps all of it on every rank; stage 1 keeps
 * masters and optimizer states of the rank's own partition; stage 2 gradients too: a layer's
 * gradients are made in a bucket, reduced to their owners and gone. Stage 3: every parameter is
 * split on its own (layout/shard.h), frozen ones too, and gathered into a window while its layer
 * runs (layout/fetch.h); small ones stay gathered. Either way a rank's master partition is the
 * tensor of its checkpoint. With fp32 parameters the master is the parameter itself.
 *
 * One rank alone splits nothing: every stage is then the same bytes in the same places.
 *
 * Masters and states, and parameters, may rest in a swap file (offload/swap.h) at every stage. The
 * sweep then streams its tiles through a ring of buffers, and layers find their parameters in the
 * window of stage 3. What is computed, and in which order, does not change.
 *
 * Life cycle:
 *   zero_create()              layout only: nothing large is allocated
 *   zero_block_nbytes()        what the planner must provide
 *   zero_bind() → zero_load()  memory and weights
 *   per pass over the layers   zero_pass_begin, then zero_unit_acquire / zero_unit_release around
 *                              each visit of a layer (zero_grads_ready before the release of a
 *                              backward), zero_pass_end
 *   at the boundary            zero_reduce → zero_scan → zero_norm → zero_step → zero_gather
 *   zero_destroy()
 *
 * It sees units (the parameters of a layer, in call order) and never calls a layer. Nothing is
 * allocated after zero_create(). Not thread-safe. Every call from zero_load() on is collective:
 * all ranks make it, in the same order, unless it says "local". */
#ifndef CZ_ZERO_ZERO_H
#define CZ_ZERO_ZERO_H

#include "comm/comm.h"
#include "layout/param_table.h"
#include "offload/swap.h"
#include "optim/onebit.h"

CZ_EXTERN_C_BEGIN

struct zero; /* opaque */

/* The parameters of one layer, in the layer's order. */
struct zero_unit {
    const size_t *param_idx;
    size_t n;
};

/* One visit of a unit in a training pass. */
struct zero_visit {
    size_t unit_idx;
    bool writes_grads; /* a backward, or the forward of a loss layer */
    bool is_backward;  /* the unit's gradients are complete after it */
};

/* What is special about stage 3; sizes in elements, zero for none. */
struct zero_stage3 {
    size_t prefetch_numel;              /* stage3_prefetch_bucket_size */
    size_t param_persistence_threshold; /* parameters up to this size stay gathered … */
    size_t model_persistence_threshold; /* … up to this many elements in all */
    size_t max_live;                    /* stage3_max_live_parameters */
    size_t max_reuse;                   /* stage3_max_reuse_distance */
    size_t sub_group_numel;             /* sub_group_size: layout only */
};

/* What rests in host memory while layers run on a GPU; false on the CPU, where that is all the
 * same. What a swap file takes (below) leaves the GPU as well. */
struct zero_offload {
    bool optimizer;      /* masters and states, updated by the CPU's kernels; gradients follow */
    bool params;         /* parameters, fetched into the window; one rank, or stage 3 */
    double device_share; /* of masters and states: the first of them stay on the GPU (1 − ratio) */
};

/* What rests in a swap file instead of memory. */
struct zero_swap {
    bool optimizer;      /* masters (unless parameters are their own) and states */
    bool params;         /* parameters of the model's dtype, frozen ones too */
    bool grads;          /* gradients too: of one rank that offloads its optimizer and whose
                            gradients are not rounded on a wire; others keep theirs in memory */
    double memory_share; /* of masters and states: the first of them stay in memory (1 − ratio) */
    size_t params_in_memory; /* whole parameters, up to so many elements, stay gathered
                                (max_in_cpu) */
    bool read_ahead;         /* pipeline_read */
    bool write_behind;       /* pipeline_write */
};

struct zero_options {
    const struct param_table *table; /* lent until zero_destroy() */
    const struct zero_unit *units;   /* in call order; what they point to is lent likewise */
    size_t n_units;
    const struct zero_visit *visits; /* a training pass: every unit forward, then the backward with
                                        what it recomputes; lent likewise */
    size_t n_visits;
    const size_t *group_of;     /* (n_params) group of each trainable parameter; read once */
    struct optim_group *groups; /* lent; their lr and betas are read at every step */
    size_t n_groups;
    int stage;                  /* 0 … 3 */
    enum cz_dtype dtype;        /* of parameters */
    enum cz_dtype grad_dtype;   /* of gradients: dtype or F32 */
    enum cz_dtype wire_dtype;   /* what reductions round to (communication_data_type) */
    enum cz_dtype master_dtype; /* F32; equal to dtype: parameters are their own masters */
    enum cz_dtype state_dtype;
    bool round_robin;    /* round_robin_gradients */
    bool align_params;   /* parameter_alignment: 16 bytes */
    bool reduce_sum;     /* gradient_allreduce_op "sum": no division by W */
    size_t bucket_numel; /* reduce_bucket_size: elements reduced together; at least the largest
                            unit, at most all trainable */
    bool overlap; /* overlap_comm: reduce while the backward continues, two buckets in turn */
    struct zero_stage3 stage3;
    bool on_gpu; /* layers run on a GPU: see zero_block_memory() */
    struct zero_offload offload;
    struct zero_swap swap;
    size_t tile_numel;    /* elements per step of the sweep; 0: TILE_NUMEL_MAX, with a swap file
                             TILE_NUMEL_SWAP. With a swap file rounded up to 4096 */
    struct comm *comm;    /* lent; see zero_set_comm() */
    struct ops *ops;      /* of the device that layers run on; lent */
    struct ops *host_ops; /* on a GPU: the CPU's; lent */
    struct dev_stream *stream;
};

/* Errors: CZ_INVALID (sizes overflow, a group index out of range), CZ_UNSUPPORTED (dtypes that do
 * not go together), CZ_NOMEM. */
cz_status zero_create(const struct zero_options *options, struct zero **out);

/* Before zero_bind(): the communicator that takes the place of options.comm, of the same ranks, and
 * moves and reduces a GPU's memory too (comm/device/device_comm.h). Lent until zero_destroy(). */
void zero_set_comm(struct zero *z, struct comm *comm);

/* Accepts NULL. Waits for what a pass without its boundary has begun: before the blocks and the
 * communicator go. cz_last_error() stays. */
void zero_destroy(struct zero *z);

/* ---- memory ---------------------------------------------------------------------------------- */

enum zero_block {
    ZERO_PARAMS =
        0,        /* parameters of all groups, then the frozen ones; stage 3: this rank's chunks */
    ZERO_WINDOW,  /* parameters that come and go: stage 3 with several ranks, or swapped */
    ZERO_MASTERS, /* 0 bytes when parameters are their own masters */
    ZERO_GRADS,   /* whole; stages 2 and 3 with several ranks: this rank's partition */
    ZERO_BUCKETS, /* stages 2 and 3 with several ranks: where layers put their gradients, and
                     those of tied parameters until their last use */
    ZERO_STATE_0, /* the optimizer's states, in its order */
    ZERO_STATE_1,
    ZERO_STATE_2,
    ZERO_SMALL,   /* step scalars, per-tensor sums, memory to convert what is swapped or on a GPU */
    ZERO_RING,    /* swapped: buffers that tiles pass through */
    ZERO_STAGING, /* swapped and split parameters: own chunks on their way into a gather */
    ZERO_ERRORS,  /* 1-bit family: worker and server errors, whole on every rank */
    ZERO_SIGNS,   /* 1-bit family: compressed messages, scales, masks, partial sums */
    ZERO_SHARE,   /* GPU: its share of masters and states that leave it otherwise */
    ZERO_STEP,    /* GPU: its copy of step scalars and per-tensor sums */
    ZERO_UPDATE_GPU,  /* GPU: tiles on their way between its memory and the host's, … */
    ZERO_UPDATE_HOST, /* … host-side staging buffer */
    ZERO_N_BLOCKS
};

enum zero_memory { ZERO_HOST_MEMORY = 0, ZERO_GPU_MEMORY };

/* Bytes this rank needs. */
size_t zero_block_nbytes(const struct zero *z, enum zero_block block);

/* Where it has to be; all blocks are in host memory on the CPU. Host blocks of a GPU should be
 * registered with it (device.h): copies from and to others hold up the caller. */
enum zero_memory zero_block_memory(const struct zero *z, enum zero_block block);

/* Bytes of the swap file that this rank needs; 0: none. */
size_t zero_swap_nbytes(const struct zero *z);

/* An array in a block over which the sweep goes in tiles, each cut evenly among the threads. */
struct zero_array {
    enum zero_block block;
    size_t off, nbytes; /* in the block */
    size_t tile_nbytes;
};

/* All of them that are in memory, to decide on which NUMA node their pages should be. */
void zero_each_array(const struct zero *z,
                     void (*visit)(void *user, const struct zero_array *array), void *user);

/* Figures of the layout, for plans and proofs. Elements unless they say otherwise. */
struct zero_figures {
    size_t numel_padded; /* trainable, over all ranks, with padding */
    size_t numel_own;    /* in this rank's partitions, with padding */
    size_t tile_numel;   /* of the sweep */
    size_t bucket_numel; /* of one bucket; 0: gradients are reduced in place */
    size_t tied_numel;   /* gradients of tied parameters, kept whole beside the buckets */
    int n_buckets;
    size_t resident_numel; /* stage 3: parameters that stay gathered */
    size_t window_numel;   /* stage 3: memory for those that come and go */
    size_t live_max;       /* stage 3: most elements of those at any time */
    size_t fetched_numel;  /* brought into the window by a training pass */
    size_t n_reduces;      /* reductions per micro-batch (stages 2, 3) or boundary (0, 1) */
    size_t n_updates;      /* gathers after an update */
    size_t n_gathers;      /* stage 3: gathers per training pass */
    /* Bytes that this rank sends: */
    size_t reduce_nbytes; /* per micro-batch (stages 2, 3) or boundary (0, 1) */
    size_t fetch_nbytes;  /* stage 3: per training pass */
    size_t update_nbytes; /* parameters after an update */
    size_t sums_nbytes;   /* sums of tensors that are cut over ranks, by an update */
    size_t n_sums;        /* collectives of these */
    size_t signs_nbytes;  /* 1-bit family: by a compressed exchange, instead of reduce_nbytes */
    size_t n_signs;       /* collectives of one */
    /* Swapped: bytes from and to the file, as they are, without rounding to blocks: */
    size_t master_swapped_nbytes, param_swapped_nbytes, grad_swapped_nbytes; /* what rests there */
    size_t swapped_nbytes[OPTIM_STATES_MAX];                                 /* of each state */
    size_t pass_read_nbytes, pass_written_nbytes;     /* by a step's first training pass */
    size_t update_read_nbytes, update_written_nbytes; /* by a step */
};

struct zero_figures zero_figures(const struct zero *z);

/* Lend the blocks (where zero_block_memory() says; aligned to 256 bytes, zeroed; NULL for 0 bytes)
 * and the swap file (fresh, of zero_swap_nbytes(); NULL when that is 0) until zero_destroy(), and
 * fill states with their first values. Local. */
cz_status zero_bind(struct zero *z, void *const blocks[ZERO_N_BLOCKS], struct swap *swap);

/* Supplies fp32 elements [off, off + numel) of a parameter. */
typedef cz_status (*zero_fetch)(void *user, size_t param_idx, size_t off, size_t numel, float *dst);

/* Fill parameters and masters. Masters start from the rounded parameters, as DeepSpeed's do.
 * staging: staging_numel ≥ 1 floats of scratch for 16-bit parameters. */
cz_status zero_load(struct zero *z, zero_fetch fetch, void *user, float *staging,
                    size_t staging_numel);

/* Pointers by parameter index, as chain_bind() wants them: parameters while their unit is acquired,
 * gradients always; NULL for frozen parameters' gradients. Local. */
const void *const *zero_params(const struct zero *z);
void *const *zero_grads(const struct zero *z);

/* ---- a pass over the layers ------------------------------------------------------------------ */

enum zero_pass {
    ZERO_PASS_EVAL = 0, /* every unit forward, once; no gradients */
    ZERO_PASS_TRAIN,    /* all visits; more micro-batches follow before the boundary */
    ZERO_PASS_LAST      /* all visits; the boundary follows */
};

/* Local. A pass that failed half-way is ended by the next begin. */
cz_status zero_pass_begin(struct zero *z, enum zero_pass pass);

/* The unit's parameters are whole in memory between acquire and release; when the visit writes
 * gradients, zero_grads() may be written. CZ_INVALID: not the unit whose turn it is. */
cz_status zero_unit_acquire(struct zero *z, size_t unit_idx);
cz_status zero_unit_release(struct zero *z, size_t unit_idx);

/* The unit's backward of this micro-batch is done: before its release. */
cz_status zero_grads_ready(struct zero *z, size_t unit_idx);

/* Everything that the pass began has arrived. */
cz_status zero_pass_end(struct zero *z);

/* Whether a further micro-batch adds to zero_grads() (true) or overwrites them, because each was
 * reduced on its own (stages 2 and 3 with several ranks). Local. */
bool zero_accumulates(const struct zero *z);

/* ---- the boundary ---------------------------------------------------------------------------- */

/* Average gradients over ranks: afterwards this rank's partition holds the mean. In steps that the
 * 1-bit family takes from each rank's own gradients (zero_averages() false) nothing is sent, and
 * zero_scan() and zero_norm() look at all ranks' own ones. CZ_INVALID when no training pass has
 * ended. */
cz_status zero_reduce(struct zero *z);

/* Whether the coming boundary averages gradients over ranks. Local. */
bool zero_averages(const struct zero *z);

struct zero_scan {
    float max_abs; /* over the finite gradients of all ranks */
    bool finite;
    /* When not finite: the first offender, of the lowest rank that has one. */
    int rank;
    size_t param_idx;
    size_t elem; /* inside the parameter */
    float value; /* as stored: still multiplied by the loss scale */
};

/* Look for non-finite gradients. */
cz_status zero_scan(struct zero *z, struct zero_scan *out);

/* Global L2 norm of the (finite) gradients, still scaled; max_abs from zero_scan(). The same bits
 * for any partition. Of gradients that are not averaged: the root mean square over ranks of their
 * norms, which is at least the norm of their mean. */
cz_status zero_norm(struct zero *z, float max_abs, double *norm);

/* Update number t ≥ 1 of this rank's partition: one pass over the tiles (unscale, clip, update,
 * round to parameters); two where the optimizer wants a norm per tensor. zero_scan() waits for
 * gradients that are still leaving a GPU; where this comes first, each tile waits for its own only,
 * and the update runs beside the rest of the backward: the same bits. Local; collective when
 * tensors with norms are cut over ranks (stages 1 to 3), and for the 1-bit family, which exchanges
 * here: a rank that fails has taken part. */
cz_status zero_step(struct zero *z, uint64_t t, double loss_scale, double clip_factor);

/* Give every rank the parameters that the others have updated and that it keeps whole. */
cz_status zero_gather(struct zero *z);

/* Forget the gradients: before the next step's first micro-batch. Local. */
void zero_grads_drop(struct zero *z);

/* ---- single tensors -------------------------------------------------------------------------- */

enum zero_what { ZERO_WEIGHT = 0, ZERO_GRAD, ZERO_STATE };

/* Elements [off, off + numel) of a parameter's master weight, gradient or state, as fp32, on every
 * rank. A gradient is the mean over ranks of what has been accumulated, as stored (still multiplied
 * by the loss scale). States that ranks hold apart (ZeroOneAdam between exchanges) come as their
 * mean. A frozen parameter has a weight only (CZ_NOTFOUND). CZ_UNSUPPORTED: a
 * pretended rank is asked for what another owns. */
cz_status zero_read(struct zero *z, enum zero_what what, size_t state_idx, size_t param_idx,
                    size_t off, size_t numel, float *dst);

/* The same for writing weights and states: every rank brings all of src. The rounded parameter is
 * written too. */
cz_status zero_write(struct zero *z, enum zero_what what, size_t state_idx, size_t param_idx,
                     size_t off, size_t numel, const float *src);

/* ---- the 1-bit family ---------------------------------------------------------------------
 *
 * zero/onebit/ owns its exchange. What is compressed together is a segment: in fp32 each
 * parameter, in 16 bits each group, for OneBitLamb everything (as DeepSpeed 0.16.9 does). A
 * segment's elements are those of its parameters in table order, then zeros up to numel_padded.
 *
 * At stage 1 masters and variance are split, the momentum and the errors are whole on every rank.
 * ZeroOneAdam keeps all of its state whole at stage 1 too, because each rank moves all weights by
 * itself between exchanges; its files are those of stage 1. On a GPU all of it is the GPU's. Stages
 * 2 and 3, offload, swap files: refused. */

struct zero_segment {
    const size_t *param_idx; /* lent */
    size_t n_params;
    size_t numel, numel_padded; /* numel_padded is a multiple of W·lcm(W, 8) */
};

size_t zero_n_segments(const struct zero *z); /* 0: not of this family, or one rank */
struct zero_segment zero_segment(const struct zero *z, size_t segment);

/* Counters, and per group Σ lr since ZeroOneAdam's last exchange (n_groups), and OneBitLamb's
 * values by parameter index; NULL where the optimizer has none. What a checkpoint restores it
 * writes there before zero_onebit_restored(). Local. */
struct zero_onebit {
    struct onebit_clock *clock;
    double *lrs;
    struct onebit_tensor *tensors;
};
struct zero_onebit zero_onebit(struct zero *z);

/* What differs from rank to rank, or is whole on each, beside the optimizer's states. */
enum zero_onebit_what {
    ZERO_WORKER_ERROR = 0, /* of a segment: numel_padded elements, this rank's own */
    ZERO_SERVER_ERROR,     /* of a segment: numel_padded/W, of the chunk that this rank serves */
    ZERO_LOCAL_MOMENTUM,   /* of a parameter: ZeroOneAdam's between exchanges */
    ZERO_LOCAL_MOVES       /* of a parameter: its momentum_accumulator */
};

/* Where it is, fp32, for a checkpoint to read (between boundaries, guarded as
 * zero_source_ranges()). idx: a segment or a parameter (trained). nbytes 0: this run has none.
 * Local. */
struct zero_range zero_onebit_range(const struct zero *z, enum zero_onebit_what what, size_t idx);

/* Elements [off, off + numel) of it from and to host memory, done on return; all of it to zero. For
 * a checkpoint to restore: zero_onebit_restored() must follow. Local. */
cz_status zero_onebit_read(struct zero *z, enum zero_onebit_what what, size_t idx, size_t off,
                           size_t numel, float *dst);
cz_status zero_onebit_write(struct zero *z, enum zero_onebit_what what, size_t idx, size_t off,
                            size_t numel, const float *src);
cz_status zero_onebit_clear(struct zero *z, enum zero_onebit_what what, size_t idx);

/* After zero_restore() and whatever was written through zero_onebit() and zero_onebit_write():
 * momentum and masks are made whole again. Collective. */
cz_status zero_onebit_restored(struct zero *z);

/* ---- the whole state, for checkpoints -------------------------------------------------------- */

struct flat_group;  /* layout/flat.h */
struct shard_group; /* layout/shard.h */

/* How a group is laid out. Lent until zero_destroy(). */
struct zero_layout {
    const struct flat_group *flat;   /* stages 0-2, else NULL */
    const struct shard_group *shard; /* stage 3, else NULL */
    size_t own_numel;  /* elements of this rank's masters and of each state, as saved */
    size_t held_numel; /* … and as it holds and updates them */
    size_t n_states;
};

struct zero_layout zero_group_layout(const struct zero *z, size_t group);

enum zero_source {
    ZERO_FROM_PARAMS =
        0,             /* a group's rounded parameters: whole at stages 0-2, at 3 the own chunks */
    ZERO_FROM_FROZEN,  /* a frozen parameter: whole, at stage 3 the own chunk */
    ZERO_FROM_MASTERS, /* the own masters of a group */
    ZERO_FROM_STATES   /* and one of its states */
};

/* A run of bytes of the state: in memory, or in the swap file. */
struct zero_range {
    const unsigned char *memory; /* NULL: in the swap file */
    bool on_gpu;                 /* memory is a GPU's: zero_range_read() brings it */
    uint64_t off;                /* in the swap file */
    size_t nbytes;
};

/* In the file: of whole blocks, because those are what is read and written. A byte keeps its value
 * when its neighbours are written, but a checksum (swap_options.checksums) covers the block. */
static inline bool zero_ranges_overlap(const struct zero_range *a, const struct zero_range *b)
{
    if (!a->memory != !b->memory) return false;
    uint64_t unit = a->memory ? 1 : SWAP_ALIGN;
    uint64_t a_begin = a->memory ? (uintptr_t)a->memory : a->off;
    uint64_t b_begin = b->memory ? (uintptr_t)b->memory : b->off;
    uint64_t a_end = a_begin + a->nbytes, b_end = b_begin + b->nbytes;
    return a_begin / unit * unit < b_end && b_begin / unit * unit < a_end;
}

/* Where elements [off, off + numel) of a source are, in one or two runs; returns how many. They may
 * be read between boundaries. Local. */
size_t zero_source_ranges(const struct zero *z, enum zero_source source, size_t group,
                          size_t state_idx, size_t param_idx, size_t off, size_t numel,
                          struct zero_range out[2]);

/* Read a run from wherever it is. Any thread. Errors: CZ_IO. */
cz_status zero_range_read(const struct zero *z, const struct zero_range *range, void *dst);

/* Called before the optimizer's sweep or the gather after it changes a run of what
 * zero_source_ranges() gives, from zero_step() and zero_gather(): a checkpoint that is still being
 * written from there makes it wait. NULL: none. */
typedef cz_status (*zero_guard)(void *user, const struct zero_range *range);
void zero_set_guard(struct zero *z, zero_guard guard, void *user);

/* Supplies fp32 elements [off, off + numel) of a parameter's master (ZERO_WEIGHT) or state. */
typedef cz_status (*zero_restore_fetch)(void *user, enum zero_what what, size_t state_idx,
                                        size_t param_idx, size_t off, size_t numel, float *dst);

/* What zero_restore() replaces. */
struct zero_restore {
    zero_restore_fetch fetch;
    void *user;
    const bool *weights; /* (n_params) false: this parameter keeps its weight; NULL: all */
    bool states;         /* the optimizer's states as well, of the same parameters */
    float *staging;      /* staging_numel >= 1 floats of scratch */
    size_t staging_numel;
};

/* Masters, states and rounded parameters from elsewhere, each rank its own part; parameters are the
 * masters rounded, as after a step. Collected gradients are forgotten. When
 * it fails the state is a mixture. */
cz_status zero_restore(struct zero *z, const struct zero_restore *args);

CZ_EXTERN_C_END
#endif
