/* zero: which rank stores which elements of the model state, and when they are communicated.
 *
 * Stages 0-2: the trainable parameters of each optimizer group form one flat buffer, laid out as
 * DeepSpeed's partitions (layout/flat.h). Stage 0 keeps all of it on every rank; stage 1 keeps
 * masters and optimizer states of the rank's own partition; stage 2 gradients too: a layer's
 * gradients are written to a bucket, reduced to their owners and dropped. Stage 3: every parameter
 * is partitioned separately (layout/shard.h), frozen ones too, and gathered into a window while its
 * layer runs (layout/fetch.h); small ones stay gathered. At all stages a rank's master partition is
 * the tensor of its checkpoint. With fp32 parameters the master is the parameter itself.
 *
 * A single rank partitions nothing: all stages then have the same bytes in the same places.
 *
 * Masters and states, and parameters, may be in a swap file (offload/swap.h) at every stage. The
 * sweep then streams its tiles through a ring of buffers, and layers use their parameters in the
 * window of stage 3. The computation and its order do not change.
 *
 * Life cycle:
 *   zero_create()              layout only: nothing large is allocated
 *   zero_block_nbytes()        sizes of the blocks that the planner must provide
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

/* Options of stage 3; sizes in elements, 0 for none. */
struct zero_stage3 {
    size_t prefetch_numel;              /* stage3_prefetch_bucket_size */
    size_t param_persistence_threshold; /* parameters up to this size stay gathered … */
    size_t model_persistence_threshold; /* … up to this many elements in total */
    size_t max_live;                    /* stage3_max_live_parameters */
    size_t max_reuse;                   /* stage3_max_reuse_distance */
    size_t sub_group_numel;             /* sub_group_size: layout only */
};

/* Data in host memory while layers run on a GPU; false on the CPU, where it makes no difference.
 * Data in the swap file (below) are not on the GPU either. */
struct zero_offload {
    bool optimizer;      /* masters and states, updated by the CPU's kernels; gradients follow */
    bool params;         /* parameters, fetched into the window; one rank, or stage 3 */
    double device_share; /* of masters and states: the first of them stay on the GPU (1 − ratio) */
};

/* Data in a swap file instead of memory. */
struct zero_swap {
    bool optimizer;      /* masters (unless parameters are their own) and states */
    bool params;         /* parameters of the model's dtype, frozen ones too */
    bool grads;          /* gradients too: only with one rank that offloads its optimizer and whose
                            gradients are not rounded for messages */
    double memory_share; /* of masters and states: the first of them stay in memory (1 − ratio) */
    /* (n_params), or NULL: frozen parameters that rest in files which are only read, as arrays of
     * options.dtype: the first byte of each, as swap_source_off() gives it; 0: it rests elsewhere.
     * Only with `params`; lent. */
    const uint64_t *frozen_at;
    size_t params_in_memory; /* whole parameters, up to this many elements in total, stay
                                gathered (max_in_cpu) */
    bool read_ahead;         /* pipeline_read */
    bool write_behind;       /* pipeline_write */
};

struct zero_options {
    const struct param_table *table; /* lent until zero_destroy() */
    const struct zero_unit *units;   /* in call order; lent, including their arrays */
    size_t n_units;
    const struct zero_visit *visits; /* a training pass: every unit forward, then the backward pass
                                        with recomputation; lent */
    size_t n_visits;
    const size_t *group_of;     /* (n_params) group of each trainable parameter; read once */
    struct optim_group *groups; /* lent; their lr and betas are read at every step */
    size_t n_groups;
    int stage;                  /* 0 … 3 */
    enum cz_dtype dtype;        /* of parameters */
    enum cz_dtype grad_dtype;   /* of gradients: dtype or F32 */
    enum cz_dtype wire_dtype;   /* the type of messages in reductions (communication_data_type) */
    enum cz_dtype master_dtype; /* F32; equal to dtype: parameters are their own masters */
    enum cz_dtype state_dtype;
    bool round_robin;    /* round_robin_gradients */
    bool align_params;   /* parameter_alignment: 16 bytes */
    bool reduce_sum;     /* gradient_allreduce_op "sum": no division by W */
    size_t bucket_numel; /* reduce_bucket_size: elements reduced together; at least the largest
                            unit, at most all trainable */
    bool overlap; /* overlap_comm: reduce during the backward pass, with two alternating buckets */
    struct zero_stage3 stage3;
    bool on_gpu; /* layers run on a GPU: see zero_block_memory() */
    struct zero_offload offload;
    struct zero_swap swap;
    bool skips_norm;  /* zero_norm() is never called: no squares are added up */
    bool late_update; /* leave the last pass of an update to the next forward: see zero_step() */
    const int64_t *n_steps; /* steps until now, for messages of a late update; lent, or NULL */
    size_t tile_numel;      /* elements per step of the sweep; 0: TILE_NUMEL_MAX, with a swap file
                               TILE_NUMEL_SWAP. With a swap file rounded up to 4096 */
    struct comm *comm;      /* lent; see zero_set_comm() */
    struct ops *ops;        /* of the device that layers run on; lent */
    struct ops *host_ops;   /* on a GPU: the CPU's; lent */
    struct dev_stream *stream;
};

/* Errors: CZ_INVALID (sizes overflow, a group index out of range), CZ_UNSUPPORTED (incompatible
 * dtypes), CZ_NOMEM. */
cz_status zero_create(const struct zero_options *options, struct zero **out);

/* Before zero_bind(): a communicator that replaces options.comm, of the same ranks, and
 * moves and reduces GPU memory too (comm/device/device_comm.h). Lent until zero_destroy(). */
void zero_set_comm(struct zero *z, struct comm *comm);

/* Accepts NULL. Call it before the blocks and the communicator are freed: it waits for transfers of
 * an unfinished pass. cz_last_error() does not change. */
void zero_destroy(struct zero *z);

/* ---- memory ---------------------------------------------------------------------------------- */

enum zero_block {
    ZERO_PARAMS =
        0,        /* parameters of all groups, then the frozen ones; stage 3: this rank's chunks */
    ZERO_WINDOW,  /* gathered parameters: stage 3 with several ranks, or swapped */
    ZERO_MASTERS, /* 0 bytes when parameters are their own masters */
    ZERO_GRADS,   /* whole; stages 2 and 3 with several ranks: this rank's partition */
    ZERO_BUCKETS, /* stages 2 and 3 with several ranks: gradients before their reduction, and
                     gradients of tied parameters until their last use */
    ZERO_STATE_0, /* the optimizer's states, in its order */
    ZERO_STATE_1,
    ZERO_STATE_2,
    ZERO_SMALL,   /* step scalars, per-tensor sums, buffers to convert swapped data or GPU data */
    ZERO_RING,    /* swapped: buffers that tiles pass through */
    ZERO_STAGING, /* swapped and partitioned parameters: own chunks before a gather */
    ZERO_ERRORS,  /* 1-bit family: worker and server errors, whole on every rank */
    ZERO_SIGNS,   /* 1-bit family: compressed messages, scales, masks, partial sums */
    ZERO_SHARE,   /* GPU: the share of offloaded masters and states that stays on it */
    ZERO_STEP,    /* GPU: its copy of step scalars and per-tensor sums; what products pass
                     parameters at odd addresses through */
    ZERO_UPDATE_GPU,  /* GPU: tiles that are copied from or to the host, … */
    ZERO_UPDATE_HOST, /* … host-side staging buffer */
    ZERO_N_BLOCKS
};

enum zero_memory { ZERO_HOST_MEMORY = 0, ZERO_GPU_MEMORY };

/* Bytes this rank needs. */
size_t zero_block_nbytes(const struct zero *z, enum zero_block block);

/* The memory of a block; on the CPU it is always host memory. In a GPU run, register host blocks
 * with the GPU (device.h): copies from and to unregistered memory block the caller. */
enum zero_memory zero_block_memory(const struct zero *z, enum zero_block block);

/* Bytes of the swap file that this rank needs; 0: none. */
size_t zero_swap_nbytes(const struct zero *z);

/* An array in a block that the sweep processes in tiles, each divided evenly among the threads. */
struct zero_array {
    enum zero_block block;
    size_t off, nbytes; /* in the block */
    size_t tile_nbytes;
};

/* Visit all such arrays in memory, to choose the NUMA nodes of their pages. */
void zero_each_array(const struct zero *z,
                     void (*visit)(void *user, const struct zero_array *array), void *user);

/* Figures of the layout, for plans and tests. In elements unless noted. */
struct zero_figures {
    size_t numel_padded; /* trainable, over all ranks, with padding */
    size_t numel_own;    /* in this rank's partitions, with padding */
    size_t tile_numel;   /* of the sweep */
    size_t ring_slots;   /* tiles that are on their way from and to the file at a time */
    size_t bucket_numel; /* of one bucket; 0: gradients are reduced in place */
    size_t tied_numel;   /* gradients of tied parameters, kept whole outside of the buckets */
    int n_buckets;
    size_t resident_numel; /* stage 3: parameters that stay gathered */
    size_t window_numel;   /* stage 3: memory for the other parameters */
    size_t live_max;       /* stage 3: maximum of their elements at any time */
    size_t fetched_numel;  /* fetched into the window by a training pass */
    size_t n_reduces;      /* reductions per micro-batch (stages 2, 3) or boundary (0, 1) */
    size_t n_updates;      /* gathers after an update */
    size_t n_gathers;      /* stage 3: gathers per training pass */
    /* Bytes that this rank sends: */
    size_t reduce_nbytes; /* per micro-batch (stages 2, 3) or boundary (0, 1) */
    size_t fetch_nbytes;  /* stage 3: per training pass */
    size_t update_nbytes; /* parameters after an update */
    size_t sums_nbytes;   /* sums of partitioned tensors, by an update */
    size_t n_sums;        /* collectives of these */
    size_t signs_nbytes;  /* 1-bit family: by a compressed exchange, instead of reduce_nbytes */
    /* Swapped: bytes from and to the file, without rounding to blocks: */
    size_t master_swapped_nbytes, param_swapped_nbytes, grad_swapped_nbytes; /* sizes in the file */
    size_t in_place_nbytes;                  /* of frozen parameters in files that are only read */
    size_t swapped_nbytes[OPTIM_STATES_MAX]; /* of each state */
    size_t pass_read_nbytes, pass_written_nbytes; /* by a training pass */
    size_t forward_read_nbytes;                   /* of pass_read_nbytes, by the forward */
    size_t pass_fed_nbytes; /* … that the first pass after an update takes from it: not read */
    size_t update_read_nbytes, update_written_nbytes; /* by a step */
    size_t update_found_nbytes; /* … that the sweep before has left in the ring: not read */
    size_t update_early_read_nbytes, update_early_written_nbytes; /* of these, at the boundary; the
                                        others by the next forward, if that has the last pass */
};

struct zero_figures zero_figures(const struct zero *z);

/* Lend the blocks (in the memory of zero_block_memory(); aligned to 256 bytes, zeroed; NULL for 0
 * bytes) and the swap file (new, of zero_swap_nbytes(); NULL if that is 0) until zero_destroy(),
 * and initialise the states. Local. */
cz_status zero_bind(struct zero *z, void *const blocks[ZERO_N_BLOCKS], struct swap *swap);

/* Supplies fp32 elements [off, off + numel) of a parameter. */
typedef cz_status (*zero_fetch)(void *user, size_t param_idx, size_t off, size_t numel, float *dst);

/* Fill parameters and masters. Masters start from the rounded parameters, as DeepSpeed's do.
 * staging: staging_numel ≥ 1 floats of scratch for 16-bit parameters. */
cz_status zero_load(struct zero *z, zero_fetch fetch, void *user, float *staging,
                    size_t staging_numel);

/* Pointers by parameter index, for chain_bind(): parameters while their unit is acquired,
 * gradients always; NULL for frozen parameters' gradients. Local. */
const void *const *zero_params(const struct zero *z);
void *const *zero_grads(const struct zero *z);

/* ---- a pass over the layers ------------------------------------------------------------------ */

enum zero_pass {
    ZERO_PASS_EVAL = 0, /* every unit forward, once; no gradients */
    ZERO_PASS_TRAIN,    /* all visits; more micro-batches follow before the boundary */
    ZERO_PASS_LAST      /* all visits; the boundary follows */
};

/* Local. The next begin ends a pass that failed midway. */
cz_status zero_pass_begin(struct zero *z, enum zero_pass pass);

/* The unit's parameters are whole in memory between acquire and release; when the visit writes
 * gradients, zero_grads() may be written. CZ_INVALID: not the next unit of the pass. */
cz_status zero_unit_acquire(struct zero *z, size_t unit_idx);
cz_status zero_unit_release(struct zero *z, size_t unit_idx);

/* The unit's backward pass of this micro-batch is complete. Call it before the release. */
cz_status zero_grads_ready(struct zero *z, size_t unit_idx);

/* Wait for all transfers of the pass. */
cz_status zero_pass_end(struct zero *z);

/* Whether a further micro-batch adds to zero_grads() (true) or overwrites them, because each was
 * reduced separately (stages 2 and 3 with several ranks). Local. */
bool zero_accumulates(const struct zero *z);

/* ---- the boundary ---------------------------------------------------------------------------- */

/* Average gradients over ranks: afterwards this rank's partition contains the mean. In steps in
 * which the 1-bit family uses each rank's own gradients (zero_averages() false) nothing is sent,
 * and zero_scan() and zero_norm() examine the gradients of all ranks. CZ_INVALID when no training
 * pass has ended. */
cz_status zero_reduce(struct zero *z);

/* Whether the coming boundary averages gradients over ranks. Local. */
bool zero_averages(const struct zero *z);

struct zero_scan {
    float max_abs; /* over the finite gradients of all ranks */
    bool finite;
    /* If not finite: the first such element of the lowest rank that has one. */
    int rank;
    size_t param_idx;
    size_t elem; /* inside the parameter */
    float value; /* as stored: still multiplied by the loss scale */
};

/* Search for non-finite gradients, and add up the squares of this rank's. Gradients in the swap
 * file were looked at on their way there. */
cz_status zero_scan(struct zero *z, struct zero_scan *out);

/* Global L2 norm of the gradients, still scaled, which zero_scan() has found finite. The same bits
 * for any partition. Of gradients that are not averaged: the root mean square over ranks of their
 * norms, which is at least the norm of their mean. */
cz_status zero_norm(struct zero *z, double *norm);

/* Update number t ≥ 1 of this rank's partition: one pass over the tiles (unscale, clip, update,
 * round to parameters); two if the optimizer needs a norm per tensor. zero_scan() waits for
 * gradients that are still being copied from a GPU. Without a scan before this call, each tile
 * waits only for its own gradients, and the update overlaps with the rest of the backward pass: the
 * same bits. Local; collective if tensors with norms are partitioned (stages 1 to 3), and for the
 * 1-bit family, which exchanges here: a rank that fails still takes part.
 *
 * With late_update, where it applies (zero_updates_late()), the last pass is left to the next
 * training pass: zero_unit_acquire() updates the tiles of a unit's parameters before the unit uses
 * them, while the swap file's transfers for the next ones run beside the layers, and on a GPU the
 * layers before. What the GPU itself updates (device_share, memory_share) is updated here. The
 * figures of this step are kept for it, and gradients stay as they are until then. The bytes are
 * the same.
 * Whatever looks at weights or states (an evaluation, zero_read(), zero_write(), zero_restore())
 * completes it first; call zero_update_end() before zero_source_ranges() are read. Errors of the
 * file then come from there, and name the step. */
cz_status zero_step(struct zero *z, uint64_t t, double loss_scale, double clip_factor);

/* On the CPU with a swap file, on a GPU whose masters and states leave it: one rank, or several at
 * stages 0 and 3. Local. */
bool zero_updates_late(const struct zero *z);

/* Complete an update that zero_step() has left to the next pass; afterwards the file has all of it.
 * At stage 3 with several ranks it is collective: one rank's error ends it on all. */
cz_status zero_update_end(struct zero *z);

/* Send every rank the updated parameters of the others that it stores whole. */
cz_status zero_gather(struct zero *z);

/* Drop the gradients: before the next step's first micro-batch. Local. */
void zero_grads_drop(struct zero *z);

/* ---- single tensors -------------------------------------------------------------------------- */

enum zero_what { ZERO_WEIGHT = 0, ZERO_GRAD, ZERO_STATE };

/* Elements [off, off + numel) of a parameter's master weight, gradient or state, as fp32, on every
 * rank. A gradient is the mean over ranks of what has been accumulated, as stored (still multiplied
 * by the loss scale). States that differ between ranks (ZeroOneAdam between exchanges) are returned
 * as their mean. A frozen parameter has only a weight (CZ_NOTFOUND). CZ_UNSUPPORTED: a simulated
 * rank was asked for elements of another rank. */
cz_status zero_read(struct zero *z, enum zero_what what, size_t state_idx, size_t param_idx,
                    size_t off, size_t numel, float *dst);

/* The same for writing weights and states: every rank passes all of src. This also writes the
 * rounded parameter. */
cz_status zero_write(struct zero *z, enum zero_what what, size_t state_idx, size_t param_idx,
                     size_t off, size_t numel, const float *src);

/* ---- the 1-bit family ---------------------------------------------------------------------
 *
 * zero/onebit/ implements its exchange. A segment is compressed as one unit: in fp32 each
 * parameter, in 16 bits each group, for OneBitLamb everything (as in DeepSpeed 0.16.9). A
 * segment's elements are those of its parameters in table order, then zeros up to numel_padded.
 *
 * At stage 1 masters and variance are partitioned; momentum and errors are whole on every rank.
 * ZeroOneAdam keeps its whole state on every rank at stage 1 too, because each rank updates all
 * weights independently between exchanges; its files are those of stage 1. On a GPU all of this is
 * in GPU memory. Stages 2 and 3, offload and swap files are refused. */

struct zero_segment {
    const size_t *param_idx; /* lent */
    size_t n_params;
    size_t numel, numel_padded; /* numel_padded is a multiple of W·lcm(W, 8) */
};

size_t zero_n_segments(const struct zero *z); /* 0: not of this family, or one rank */
struct zero_segment zero_segment(const struct zero *z, size_t segment);

/* Counters, and per group Σ lr since ZeroOneAdam's last exchange (n_groups), and OneBitLamb's
 * values by parameter index; NULL if the optimizer has none. A checkpoint that is restored
 * writes them before zero_onebit_restored(). Local. */
struct zero_onebit {
    struct onebit_clock *clock;
    double *lrs;
    struct onebit_tensor *tensors;
};
struct zero_onebit zero_onebit(struct zero *z);

/* Values that differ between ranks, or are whole on each, in addition to the optimizer's states. */
enum zero_onebit_what {
    ZERO_WORKER_ERROR = 0, /* of a segment: numel_padded elements, this rank's own */
    ZERO_SERVER_ERROR,     /* of a segment: numel_padded/W, of the chunk that this rank averages */
    ZERO_LOCAL_MOMENTUM,   /* of a parameter: ZeroOneAdam's between exchanges */
    ZERO_LOCAL_MOVES       /* of a parameter: its momentum_accumulator */
};

/* The place of these values, fp32, for saving (between boundaries, guarded like
 * zero_source_ranges()). idx: a segment or a parameter (trained). nbytes 0: this run has none.
 * Local. */
struct zero_range zero_onebit_range(const struct zero *z, enum zero_onebit_what what, size_t idx);

/* Copy elements [off, off + numel) from and to host memory, complete on return; set all to zero.
 * For restoring a checkpoint: zero_onebit_restored() must follow. Local. */
cz_status zero_onebit_read(struct zero *z, enum zero_onebit_what what, size_t idx, size_t off,
                           size_t numel, float *dst);
cz_status zero_onebit_write(struct zero *z, enum zero_onebit_what what, size_t idx, size_t off,
                            size_t numel, const float *src);
cz_status zero_onebit_clear(struct zero *z, enum zero_onebit_what what, size_t idx);

/* Call it after zero_restore() and all writes through zero_onebit() and zero_onebit_write(): it
 * gathers the momentum and computes the masks. Collective. */
cz_status zero_onebit_restored(struct zero *z);

/* ---- the whole state, for checkpoints -------------------------------------------------------- */

struct flat_group;  /* layout/flat.h */
struct shard_group; /* layout/shard.h */

/* The layout of a group. Lent until zero_destroy(). */
struct zero_layout {
    const struct flat_group *flat;   /* stages 0-2, else NULL */
    const struct shard_group *shard; /* stage 3, else NULL */
    size_t own_numel;  /* elements of this rank's masters and of each state, as saved */
    size_t held_numel; /* … and as stored and updated */
    size_t n_states;
};

struct zero_layout zero_group_layout(const struct zero *z, size_t group);

enum zero_source {
    ZERO_FROM_PARAMS =
        0,            /* a group's rounded parameters: whole at stages 0-2, own chunks at stage 3 */
    ZERO_FROM_FROZEN, /* a frozen parameter: whole; own chunk at stage 3 */
    ZERO_FROM_MASTERS, /* the own masters of a group */
    ZERO_FROM_STATES   /* and one of its states */
};

/* Contiguous bytes of the state: in memory, or in the swap file. */
struct zero_range {
    const unsigned char *memory; /* NULL: in the swap file */
    bool on_gpu;                 /* memory is a GPU's: read it with zero_range_read() */
    uint64_t off;                /* in the swap file */
    size_t nbytes;
};

/* Whether two ranges overlap; in the file, whether their blocks do, because the file is read and
 * written in blocks: a checksum (swap_options.checksums) covers a block. */
static inline bool zero_ranges_overlap(const struct zero_range *a, const struct zero_range *b)
{
    if (!a->memory != !b->memory) return false;
    uint64_t unit = a->memory ? 1 : SWAP_ALIGN;
    uint64_t a_begin = a->memory ? (uintptr_t)a->memory : a->off;
    uint64_t b_begin = b->memory ? (uintptr_t)b->memory : b->off;
    uint64_t a_end = a_begin + a->nbytes, b_end = b_begin + b->nbytes;
    return a_begin / unit * unit < b_end && b_begin / unit * unit < a_end;
}

/* The one or two ranges of elements [off, off + numel) of a source; returns their number. They may
 * be read between boundaries. Local. */
size_t zero_source_ranges(const struct zero *z, enum zero_source source, size_t group,
                          size_t state_idx, size_t param_idx, size_t off, size_t numel,
                          struct zero_range out[2]);

/* Read a range from memory, the GPU or the file. Any thread. Errors: CZ_IO. */
cz_status zero_range_read(const struct zero *z, const struct zero_range *range, void *dst);

/* zero_step() and zero_gather() call it before they change a range that zero_source_ranges()
 * returns; it waits while a checkpoint is still being written from that range. NULL: none. */
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

/* Replace masters, states and rounded parameters, each rank its own part; parameters become the
 * rounded masters, as after a step. Accumulated gradients are dropped. After a failure the state is
 * undefined. */
cz_status zero_restore(struct zero *z, const struct zero_restore *args);

CZ_EXTERN_C_END
#endif
