/* The inside of zero: what its parts keep, and what they do for each other.
 *
 *   create.c         options checked, parts laid out and bound
 *   group_arrays.c   arrays of the optimizer groups; ownership.c: which elements are whose
 *   memory.c         blocks; placement.c: elements in memory or in the swap file; gpu.c: streams
 *   pass.c           visits of units: window.c brings parameters, buckets.c takes gradients away
 *   sinks/           where gradients go
 *   boundary.c       overflow, norm and the update, for which sweep.c goes over the tiles and
 *                    tensor_sums.c adds up norms of tensors; then gather.c. late.c: tile by tile
 *                    during the next forward
 *   onebit/          the 1-bit family's exchanges in place of reductions
 *   tensor_access.c  single tensors; state.c: all of it, for checkpoints */
#ifndef CZ_ZERO_ZERO_IMPL_H
#define CZ_ZERO_ZERO_IMPL_H

#include "layout/fetch.h"
#include "layout/flat.h"
#include "layout/shard.h"
#include "offload/ring.h"
#include "ops/reduce/reduce.h"
#include "zero/sinks/sink_impl.h"
#include "zero/zero.h"

#define ZERO_ALIGN ((size_t)256)
#define ZERO_PRODUCT_ALIGN                                                                         \
    ((size_t)16) /* of operands: a GPU's products depend on it up to there                         \
                  */

/* Tiles of a swapped sweep: large enough for a disk, small enough that a few of them are little
 * memory; every tile but a group's last ends where a block of the file does, whatever its dtype. */
#define TILE_NUMEL_SWAP ((size_t)2 << 20)
#define TILE_NUMEL_UNIT SWAP_ALIGN

#define ZERO_SCRATCH_NBYTES ((size_t)1 << 20) /* to convert elements, piece by piece */

#define ZERO_FETCH_SLOTS 3  /* of own chunks in staging: read, sent, and the next */
#define ZERO_MOVES       64 /* of a GPU that gathers from itself: under way at a time */
#define ZERO_STAGE_SLOTS 2  /* tiles between a GPU's memory and the host's: in work, moving */

/* ---- ownership.c: which rank owns which elements --------------------------------------------- */

/* How the sums of tensors that are cut over ranks are put together: tensor_sums.c. Tables of runs
 * of tensors, by their place in the group. */
struct zero_sums {
    struct comm_span *spans;   /* brought to the rank that adds them up, then shared with all */
    size_t n_brought, n_spans; /* n_spans 0: this rank has whole tensors */
    size_t brought_off;        /* bytes into ZERO_SMALL: what others bring to this rank … */
    size_t brought_numel;      /* … of so many tensors */
};

/* An optimizer group: its parameters in their order in the partition, and its arrays. */
struct zero_group {
    struct flat_group flat;   /* stages 0-2 */
    struct shard_group shard; /* stage 3 */
    size_t own_begin;         /* where this rank's elements begin in the group's parameters */
    size_t own_numel;
    size_t n_states;
    size_t param_off, master_off, grad_off; /* bytes into the blocks */
    size_t state_off[OPTIM_STATES_MAX];
    /* With a swap file the first `resident` masters and states are in the blocks and the others in
     * the file, as all of the parameters are: bytes into the file. On a GPU that offloads them the
     * first `resident` are in ZERO_SHARE, share_off bytes into it (masters, then states), the
     * others in the blocks or in the file. */
    size_t resident;
    size_t share_off[1 + OPTIM_STATES_MAX];
    uint64_t param_swap, master_swap, grad_swap, state_swap[OPTIM_STATES_MAX];
    bool grads_swapped;                  /* gradients are in the file, too */
    struct lamb_segment *segments;       /* of all tiles; only with tensor norms */
    size_t *tile_segment;                /* (n_tiles + 1) first segment of each tile */
    size_t sums_off, ratios_off;         /* bytes into ZERO_SMALL */
    size_t gpu_sums_off, gpu_ratios_off; /* bytes into ZERO_STEP */
    struct zero_sums sums;
    bool goes_down; /* the next pass of the sweep over the group, from its last tile to its first */
};

/* Where a parameter and its gradient are. */
struct zero_param {
    size_t group; /* n_groups when frozen */
    size_t off;   /* first element: in the group's flat buffer, or of its chunk in the partition */
    size_t frozen_off;   /* bytes into ZERO_PARAMS, or an offset of the swap's requests */
    size_t grad_off;     /* elements into the block in which layers make its gradient */
    size_t resident_off; /* elements into ZERO_WINDOW, if it is resident */
    bool resident;       /* stays in the window */
    bool tied;           /* several units use it */
    size_t ready_unit;   /* the unit whose backward is its last use; n_units: no unit uses it */
};

/* The elements of a parameter that a rank owns: one run. */
struct zero_piece {
    size_t param_off; /* in the parameter */
    size_t own_off;   /* in the owner's partition of the group (frozen: in its chunk) */
    size_t numel;
};

/* Which elements this rank owns. Fixed by zero_create(): each element of a trained parameter is in
 * exactly one rank's partition of its group at stages 1 to 3, and in every rank's at stage 0. */
struct zero_ownership {
    struct zero_group *groups; /* (n_groups) */
    struct zero_param *params; /* (n_params) */
    bool local_steps;          /* ZeroOneAdam: ranks move all weights between exchanges. Its state
                                  is whole on every rank (stage 0) … */
    int saved_stage;           /* … but its files are this stage's */
};

/* ---- memory.c, placement.c: blocks and the swap file ----------------------------------------- */

/* Where an array of this rank rests: its first elements in memory, the others in host memory or in
 * the swap file. */
struct zero_placement {
    enum cz_dtype dtype;
    bool on_gpu;           /* the first elements */
    unsigned char *memory; /* element 0 */
    size_t resident;       /* elements there; SIZE_MAX: all of them */
    unsigned char *rest;   /* element `resident` in host memory, NULL: in the file */
    uint64_t swap_off;     /* of element `resident`, in bytes */
};

/* What zero_bind() was lent. Sizes are complete when zero_create() returns; blocks and swap file
 * stay the same from zero_bind() on. */
struct zero_storage {
    size_t nbytes[ZERO_N_BLOCKS];
    unsigned char *blocks[ZERO_N_BLOCKS];
    bool has_masters;             /* apart from the parameters; false: these are the masters */
    struct step_scalars *scalars; /* (n_groups) in ZERO_SMALL */
    unsigned char *scratch;       /* 2 · ZERO_SCRATCH_NBYTES in ZERO_SMALL; NULL: not needed */
    size_t scratch_off;
    size_t aligned_off, aligned_nbytes; /* in ZERO_STEP: what products pass odd operands through */
    struct swap *swap;                  /* NULL: everything is in memory */
    uint64_t swap_nbytes;
    zero_guard guard; /* asked before a step changes what a checkpoint may be reading; or NULL */
    void *guard_user;
};

/* What layers use: NULL for parameters that are not there now, and for gradients of frozen ones. */
struct zero_pointers {
    const void **params; /* (n_params) */
    void **grads;        /* (n_params) */
};

/* ---- buckets.c: gradients -------------------------------------------------------------------- */

/* Gradients that go together: those of some units that follow each other in the backward. */
struct zero_flush {
    size_t unit;                  /* the last of them: after its backward they are complete */
    size_t first_param, n_params; /* in zero_buckets.params */
    bool begun;                   /* in this pass, or at this boundary */
};

/* What was found in this rank's gradients. */
struct zero_found {
    bool is_known; /* of all of this step's: they were looked at on their way */
    float max_abs; /* of the finite ones */
    bool finite;
    size_t bad_group, bad_at; /* the first that is not, in the groups' order */
    uint64_t squares[SQUARES_DIGITS];
};

#define ZERO_NO_FLUSH SIZE_MAX /* of a unit without gradients */

/* Gradients on their way from layers to where the optimizer finds them: buckets.c, sinks/.
 *
 * Each trained parameter that a layer uses is in one flush. With is_bucketed, flush f is made in
 * bucket f % n_buckets, which is its own from zero_bucket_acquire() of its first unit until the
 * sink's wait(f); otherwise gradients are made in ZERO_GRADS and stay there. */
struct zero_buckets {
    const struct zero_sink *sink;
    void *state;       /* the sink's own */
    bool is_bucketed;  /* layers make gradients in ZERO_BUCKETS; ZERO_GRADS has this rank's only */
    bool rest_in_host; /* ZERO_GRADS is host memory although layers are on a GPU */
    struct zero_flush *flushes; /* (n_flushes) in the order in which they are begun */
    size_t n_flushes;
    size_t *ready_first;  /* (n_units + 1) where a unit's begin in ready_params; then the end */
    size_t *ready_params; /* trained parameters by the unit they become ready with, in the table's
                             order */
    size_t *unit_flush;   /* (n_units) the flush that takes the unit's gradients */
    size_t *params;       /* (n_params) flush by flush, in the table's order */
    size_t n_restored;    /* flushes of this pass whose earlier sums were brought back */
    bool is_under_way;    /* a flush was begun and not yet waited for */
    bool reduced;         /* the gradients are this boundary's: means */
    size_t n_passes;      /* training passes since the boundary */
    struct zero_found found;
};

/* ---- window.c: parameters that come and go --------------------------------------------------- */

/* Parameters of a pass: gathered from the chunks of all ranks (stage 3), read from the swap file,
 * or brought to a GPU. The schedule, made at creation, says at which visit each begins to come and
 * when it may go, and gives it a fixed place; between its acquire and its release a unit's
 * parameters are whole, and nothing else is written to their places. */
struct zero_window {
    bool is_used;
    bool is_split; /* parameters are put together from chunks; false: read straight from the file */
    struct fetch_schedule schedule;
    size_t off; /* elements into ZERO_WINDOW: behind the resident parameters */
    struct comm_span *spans;
    size_t *first_span;               /* (n_ops + 1) */
    struct comm_ticket *tickets;      /* (n_ops) */
    struct comm_ticket last;          /* of the last pass */
    size_t n_begun;                   /* ops, in this pass */
    struct comm_span *resident_spans; /* trainable ones first */
    size_t n_resident_spans, n_resident_spans_trained;

    /* With a swap file: */
    uint64_t *read_tickets;     /* (n_stays) */
    bool *is_read;              /* (n_stays) of the op that begins: from the file */
    size_t n_reads_begun;       /* ops, in this pass */
    size_t n_reads_ended;       /* ops that were waited for */
    size_t *staging_off;        /* (n_stays) bytes into the op's slot: the chunk's first block */
    size_t staging_slot_nbytes; /* one op's own chunks, or a batch of the resident ones' */
};

/* ---- sweep.c: the update --------------------------------------------------------------------- */

/* What an update streams through. A tile is updated where its masters and states rest; what it
 * needs from elsewhere passes through a slot. */
struct zero_sweep {
    struct ring *ring; /* NULL: no swap file */
    size_t n_slots;    /* of the ring */
    size_t ring_slot_nbytes;
    size_t stage_slot_nbytes; /* of ZERO_UPDATE_*: rounded parameters, then gradients, … */
    size_t stage_grads_off;   /* … which begin here in a slot */
    bool params_changed;      /* by the last update */
    bool goes_down;           /* the next step, from the last group to the first */
};

/* ---- late.c: the update at first use --------------------------------------------------------- */

struct zero_tile {
    size_t group, tile;
};

/* The last pass of an update, tile by tile in the order in which a forward uses them; first those
 * that a GPU updates, which do not wait for it. */
struct zero_late {
    bool on;
    bool is_pending;         /* zero_step() has been called, and tiles from n_done on are left */
    bool is_begun;           /* the ring is at these tiles: it reads ahead, also before the step */
    bool reads_ahead;        /* it may begin before the step: nothing else uses it meanwhile */
    bool is_early;           /* it did, before there were gradients */
    bool is_unwritten;       /* updated parameters may still be on their way to the file */
    uint64_t step;           /* whose gradients they are, for messages */
    struct zero_tile *turns; /* (n_turns) all tiles */
    size_t n_turns, n_done;
    size_t n_at_once; /* the first turns: of tiles on a GPU */
    size_t *turn_of;  /* (n_turns) the turn of a tile, group by group: from first_tile[group] on */
    size_t *first_tile;   /* (n_groups + 1) */
    size_t *due;          /* (n_units) tiles that must be done at a forward visit */
    size_t *due_op;       /* (n_ops) … for an op of the window's schedule */
    size_t *first_copied; /* (n_turns + 1) parameters that take what tiles make, by tile … */
    size_t *copied;       /* … that has elements of them */
    unsigned char *
        *open; /* (n_params) where tiles copy the one that comes to the window; or NULL */
    const unsigned char *last_params; /* what the tile made that was done last */
    /* On several ranks, parameters that stay in the window and an update changes: */
    struct comm_span *shared;      /* parts that ranks send each other, by forward visit */
    size_t *first_shared;          /* (n_units + 1) a visit's, and the end */
    size_t n_shared;               /* visits whose parts have begun to go; n_units: all */
    struct comm_ticket tickets[2]; /* of a visit's, and the next one's */
};

/* ---- pass.c, gpu.c, and what the collectives of a boundary need ------------------------------ */

/* The visit whose turn it is. */
struct zero_turn {
    enum zero_pass pass;
    bool in_pass;
    size_t visit; /* index into options.visits */
};

/* Streams beside the layers' own, and the events that order them. */
struct zero_gpu {
    struct dev_stream *in, *out; /* what comes to the GPU, what leaves it */
    struct dev_stream *reader;   /* of zero_range_read(), from whatever thread */
    struct dev_event **now;      /* (1) recorded and waited for at once */
    struct dev_event **settled;  /* (1) the state stands as it is until the next update */
    struct dev_event **moved;    /* (ZERO_MOVES) moves under way, in turn */
    struct dev_event **staged;   /* (ZERO_STAGE_SLOTS) what went through a slot has arrived */
    uint64_t n_moves;
};

/* One entry per rank. */
struct zero_per_rank {
    struct zero_scan *scans;
    uint64_t *squares; /* SQUARES_DIGITS each */
    struct comm_span *spans;
};

struct zero_onebit_core; /* onebit/ */

struct zero {
    struct zero_options options; /* as they are used: defaults filled in */
    struct zero_figures figures;
    struct zero_ownership own;
    struct zero_storage mem;
    struct zero_pointers pointers;
    struct zero_buckets buckets;
    struct zero_window window;
    struct zero_sweep sweep;
    struct zero_late late;
    struct zero_turn turn;
    struct zero_gpu gpu;
    struct zero_per_rank per_rank;
    struct zero_onebit_core *onebit; /* NULL: an optimizer of another family */
};

/* ---- memory.c: blocks ------------------------------------------------------------------------ */

/* Take `numel` elements of `dtype` at the end of a block; *off in bytes. */
cz_status zero_block_take(struct zero *z, enum zero_block block, size_t numel, enum cz_dtype dtype,
                          size_t *off);

bool zero_is_on_gpu(const struct zero *z, enum zero_block block);

/* Whether parameters, and masters and states, leave the GPU that layers run on. */
bool zero_params_leave(const struct zero_options *o);
bool zero_states_leave(const struct zero_options *o);

/* Move a block up to where the swap file's requests may begin, and make it known to the swap: after
 * zero_block_take() of SWAP_ALIGN bytes more. */
cz_status zero_lend_to_swap(struct zero *z, enum zero_block block);

/* First element of this rank's gradients of a group, in ZERO_GRADS. */
void *zero_own_grad(const struct zero *z, size_t group);

/* First element of a group's parameters in memory: whole, or at stage 3 this rank's chunks. */
void *zero_group_params(const struct zero *z, size_t group);

/* y = x in another dtype, both in host memory. */
cz_status zero_cast(struct zero *z, enum cz_dtype from, const void *x, enum cz_dtype to, void *y,
                    size_t numel);

/* The CPU's kernels. */
static inline struct ops *zero_host_ops(const struct zero *z)
{
    return z->options.host_ops;
}

/* The device that layers run on. */
static inline struct device *zero_device(const struct zero *z)
{
    return ops_device(z->options.ops);
}

/* A group's step scalars where kernels of that device read them. */
static inline const struct step_scalars *zero_device_scalars(const struct zero *z, size_t group)
{
    const struct step_scalars *there = (const void *)z->mem.blocks[ZERO_STEP];
    return (z->options.on_gpu ? there : z->mem.scalars) + group;
}

/* Wait until everything that was begun on the layers' stream is done. */
static inline cz_status zero_sync(const struct zero *z)
{
    struct device *device = zero_device(z);
    return device->ops->stream_sync(device, z->options.stream);
}

/* Before a step changes these bytes: wait until no checkpoint reads them. */
static inline cz_status zero_claim(const struct zero *z, const struct zero_range *range)
{
    return z->mem.guard && range->nbytes > 0 ? z->mem.guard(z->mem.guard_user, range) : CZ_OK;
}

static inline unsigned char *zero_advance(void *p, size_t elems, enum cz_dtype dtype)
{
    return (unsigned char *)p + elems * dtype_size(dtype);
}

/* ---- gpu.c: streams and copies; on the CPU nothing, or what the communicator does ------------ */

cz_status zero_gpu_check(const struct zero_options *o);
cz_status zero_gpu_bind(struct zero *z);
void zero_gpu_free(struct zero *z);
cz_status zero_gpu_drain(struct zero *z);  /* everything that was begun is done */
cz_status zero_gpu_settle(struct zero *z); /* zero_range_read() sees what was begun until now */

/* Events, (n) of them; free accepts what make left. */
cz_status zero_events_make(struct zero *z, struct dev_event ***out, size_t n);
void zero_events_free(struct zero *z, struct dev_event **events, size_t n);

/* What is put on stream `later` from here on runs after all that is on `earlier` now. */
cz_status zero_after(struct zero *z, struct dev_stream *later, struct dev_stream *earlier);

cz_status zero_copy(struct zero *z, struct dev_stream *stream, void *dst, const void *src,
                    size_t nbytes);

/* Elements between a GPU's memory and fp32 in the host's; done on return. */
cz_status zero_pull(struct zero *z, enum cz_dtype dtype, const void *src, float *dst, size_t numel);
cz_status zero_push(struct zero *z, enum cz_dtype dtype, const float *src, void *dst, size_t numel);

/* Moves of parameters, from wherever they rest to where layers are: of the device's communicator,
 * or copies within one rank. After zero_move_wait() the layers' stream sees them; after
 * zero_move_wait_host() the host may use the source for something else. */
cz_status zero_move_begin(struct zero *z, const struct comm_move *args, struct comm_ticket *ticket);
cz_status zero_move_wait(struct zero *z, struct comm_ticket ticket);
cz_status zero_move_wait_host(struct zero *z, struct comm_ticket ticket);
cz_status zero_move(struct zero *z, const struct comm_move *args);

/* ---- placement.c: elements in memory or in the swap file ------------------------------------- */

/* Take bytes at the end of the file, so that byte `aligned_at` of them begins a block. */
cz_status zero_swap_take(struct zero *z, size_t nbytes, size_t aligned_at, uint64_t *off);

/* An array that is in a block as a whole, `off` bytes into it. */
struct zero_placement zero_block_placement(const struct zero *z, enum zero_block block, size_t off,
                                           enum cz_dtype dtype);

/* A group's parameters: all of them, at stage 3 this rank's chunks; what the sweep writes of them;
 * one parameter, or this rank's chunk of it. */
struct zero_placement zero_params_placement(const struct zero *z, size_t group);
struct zero_placement zero_own_params_placement(const struct zero *z, size_t group);
struct zero_placement zero_param_placement(const struct zero *z, size_t param_idx);

/* This rank's masters of a group, and one of its states. */
struct zero_placement zero_master_placement(const struct zero *z, size_t group);
struct zero_placement zero_state_placement(const struct zero *z, size_t group, size_t state_idx);

/* The placement of what begins with element `off`. */
struct zero_placement zero_placement_from(struct zero_placement where, size_t off);

/* Elements [off, off + numel) to and from fp32; from one placement to another; all the same. */
cz_status zero_placement_get(struct zero *z, const struct zero_placement *where, size_t off,
                             size_t numel, float *dst);
cz_status zero_placement_put(struct zero *z, const struct zero_placement *where, size_t off,
                             size_t numel, const float *src);
cz_status zero_placement_copy(struct zero *z, const struct zero_placement *from,
                              const struct zero_placement *to, size_t numel);
cz_status zero_placement_fill(struct zero *z, const struct zero_placement *where, size_t numel,
                              float value);

/* Elements [off, off + numel) as one or two runs of bytes; returns how many. */
size_t zero_placement_ranges(const struct zero_placement *where, size_t off, size_t numel,
                             struct zero_range out[2]);

/* ---- group_arrays.c
 * -------------------------------------------------------------------------------- */

cz_status zero_groups_init(struct zero *z); /* adds to most blocks, and to the swap file */
void zero_groups_free(struct zero *z);

/* ---- ownership.c: the arithmetic of it ------------------------------------------------------- */

size_t zero_group_n_params(const struct zero *z, size_t group);
size_t zero_group_param(const struct zero *z, size_t group, size_t pos);

/* What `rank` owns of a parameter. At stage 0, where every rank owns everything, an even share. */
struct zero_piece zero_piece_of(const struct zero *z, size_t param_idx, int rank);

/* What this rank has of a parameter: at stage 0 all of it. */
struct zero_piece zero_piece_mine(const struct zero *z, size_t param_idx);

/* The parameter behind element `at` of this rank's partition; false: padding. */
bool zero_param_at(const struct zero *z, size_t group, size_t at, size_t *param_idx, size_t *elem);

/* What sums over ranks are multiplied by. */
static inline float zero_reduce_scale(const struct zero *z)
{
    return z->options.reduce_sum ? 1.0f : 1.0f / (float)z->options.comm->world_size;
}

/* ---- buckets.c ------------------------------------------------------------------------------- */

cz_status zero_grads_take(struct zero *z, size_t group, size_t numel); /* space for gradients */
cz_status zero_buckets_init(struct zero *z); /* adds to nbytes[ZERO_BUCKETS] */
void zero_buckets_free(struct zero *z);
cz_status zero_bucket_acquire(struct zero *z, size_t unit_idx); /* before gradients are written */
cz_status zero_bucket_ready(struct zero *z, size_t unit_idx);   /* after they are complete */
cz_status zero_bucket_finish(struct zero *z);                   /* what was begun has ended */
cz_status zero_flush_begin(struct zero *z, size_t flush);

/* Whether gradients may still be arriving where the sweep finds them: tiles then wait for theirs.
 */
static inline bool zero_grads_arrive(const struct zero *z)
{
    return z->buckets.sink->tile_wait && z->buckets.is_under_way;
}

/* Where this rank's gradients of a group are; in the swap file, less what the sink completes. */
struct zero_placement zero_grads_placement(const struct zero *z, size_t group);

/* All of them, where they are in memory. */
cz_status zero_visit_partition(struct zero *z, zero_grads_visit visit, void *user);

/* Elements of them as fp32. */
cz_status zero_grads_get(struct zero *z, size_t group, size_t off, size_t numel, float *dst);

/* The kernels for them. */
struct ops *zero_grads_ops(const struct zero *z);

/* ---- window.c -------------------------------------------------------------------------------- */

cz_status zero_window_init(struct zero *z); /* adds to nbytes of ZERO_WINDOW and ZERO_STAGING */
void zero_window_free(struct zero *z);
void zero_window_bind(struct zero *z);

/* Ops before this one have begun to be read after a visit: chunks are read one op ahead. */
size_t zero_window_reads_until(const struct zero *z, size_t visit);

/* Bytes that the late update spares the forward of a step's first pass. */
size_t zero_window_fed_nbytes(const struct zero *z);
cz_status zero_window_acquire(struct zero *z); /* the current visit's parameters have come */
void zero_window_release(struct zero *z);      /* after the current visit */
cz_status zero_window_finish(struct zero *z);  /* nothing that was begun is under way */

/* Parameters that stay in the window come anew. */
cz_status zero_window_residents(struct zero *z, bool trained_only);

/* ---- pass.c ---------------------------------------------------------------------------------- */

cz_status zero_pass_drain(struct zero *z); /* what passes have begun has ended */

/* ---- sweep.c --------------------------------------------------------------------------------- */

cz_status zero_sweep_init(struct zero *z); /* adds to nbytes of ZERO_UPDATE_* */
cz_status
zero_ring_take(struct zero *z); /* adds to nbytes[ZERO_RING], which has z->sweep.n_slots */
cz_status zero_sweep_bind(struct zero *z);
cz_status zero_sweep_group(struct zero *z, size_t group);

/* In the place of a group's sweep after an error `st`, which it returns: what other ranks wait for
 * is done. */
cz_status zero_sweep_failed(struct zero *z, size_t group, cz_status st);

/* Where gradients, and updated parameters, that are in the file have their place in a slot of the
 * ring. */
size_t zero_ring_grads_off(const struct zero *z);
size_t zero_ring_params_off(const struct zero *z);

/* Whether masters and states of a tile are on the GPU: its kernels update them then. */
bool zero_tile_is_on_gpu(const struct zero *z, size_t group, size_t tile);

/* Bytes of a tile that are in the file and that only the sweep changes: what the ring keeps. */
size_t zero_kept_nbytes(const struct zero *z, size_t group, size_t tile);

/* A group's stages but the last one; of that, what the ring moves of a tile, and the tile's update.
 * *params: where the new parameters are, of the model's dtype, until the tile's slots are used
 * again. */
cz_status zero_sweep_before_last(struct zero *z, size_t group);
size_t zero_tile_pieces(const struct zero *z, struct zero_tile tile, struct ring_piece *out);
cz_status zero_tile_update(struct zero *z, struct zero_tile tile, unsigned char *slot,
                           const unsigned char **params);

/* Whether the ring reads a tile's parameters, which are in the file: those of a group's last tile,
 * if it ends inside a block. */
bool zero_tile_reads_params(const struct zero *z, struct zero_tile tile);

/* The last of the frozen stages over this rank's partition. one: a trust ratio of 1 where kernels
 * read it, for optimizers that have none. */
cz_status zero_sweep_apply(struct zero *z, size_t group, const float *one);

/* End a use of the ring that came to `st`: nothing is under way any more. */
cz_status zero_ring_end(struct zero *z, cz_status st);

/* ---- late.c ---------------------------------------------------------------------------------- */

cz_status zero_late_init(struct zero *z); /* after the window's; decides z->sweep.n_slots */
void zero_late_free(struct zero *z);
size_t zero_late_found_nbytes(const struct zero *z);

/* The update of step `step`, whose scalars are known, begins: its last pass is left to the passes
 * that follow. */
cz_status zero_late_begin(struct zero *z, uint64_t step);

/* Before the next update begins: the one before it has ended. */
cz_status zero_late_before_step(struct zero *z);

/* What ranks send each other of an update has arrived, as far as it was begun. */
cz_status zero_late_drain(struct zero *z);

/* Whether tiles from turn `n_done` on make all of this rank's elements of a parameter that are not
 * in the slot of the one before: it need not be read from the file. Then zero_late_open(), while
 * that is so, has it copied to `dst`, and zero_late_op() has completed it. */
bool zero_late_feeds(const struct zero *z, size_t param_idx, size_t n_done);
void zero_late_open(struct zero *z, size_t param_idx, unsigned char *dst);

/* The tiles of an op's parameters are updated. Then zero_late_written(): and in the file. */
cz_status zero_late_op(struct zero *z, size_t op);
cz_status zero_late_written(struct zero *z);

/* All that the current visit uses is updated, and what stays in the window is there. After the
 * visit's ops have begun. */
cz_status zero_late_acquire(struct zero *z);

/* Something else changes the file, or uses the ring: it reads ahead no more. */
cz_status zero_late_interrupt(struct zero *z);

/* ---- tensor_sums.c: optimizers with a norm per tensor ---------------------------------------- */

cz_status zero_tensor_sums_init(struct zero *z, size_t group); /* adds to nbytes[ZERO_SMALL] */

/* Each rank's sums over its own elements (zero_group_sums()) become those over whole tensors, for
 * all tensors of the group on every rank, the same bits whatever the stage and the number of ranks.
 * Nothing to do where tensors are whole. Collective. */
cz_status zero_tensor_sums_add(struct zero *z, size_t group);

/* The same for a rank that may have failed before: it takes part all the same, so that no rank
 * waits for it, and gets its own error back. */
cz_status zero_tensor_sums_after(struct zero *z, size_t group, cz_status mine);

/* Sums of tensors by kernels of the device that layers run on: from zero (clear), where they add
 * to, and what they have come to (join: waited for, in zero_group_sums()). Then ratios as the host
 * has them (zero_group_ratios()) for its kernels. */
cz_status zero_sums_clear(struct zero *z, size_t group);
struct lamb_sums *zero_device_sums(const struct zero *z, size_t group);
float *zero_device_ratios(const struct zero *z, size_t group); /* only on a GPU */
cz_status zero_sums_join(struct zero *z, size_t group);
cz_status zero_ratios_send(struct zero *z, size_t group);

/* By place in the group: sums, and what between() makes of them. */
static inline struct lamb_sums *zero_group_sums(const struct zero *z, size_t group)
{
    return (struct lamb_sums *)(void *)(z->mem.blocks[ZERO_SMALL] + z->own.groups[group].sums_off);
}

static inline float *zero_group_ratios(const struct zero *z, size_t group)
{
    return (float *)(void *)(z->mem.blocks[ZERO_SMALL] + z->own.groups[group].ratios_off);
}

/* ---- boundary.c ----------------------------------------------------------------------------- */

/* A zero_grads_visit (user: the zero): adds to z->buckets.found. A sink that has all of a step's
 * gradients in memory once, in the step's last pass, calls it then and sets is_known, so that
 * zero_scan() need not bring them back. */
cz_status zero_scan_piece(void *user, size_t group, const void *x, size_t at, size_t numel);

/* ---- gather.c -------------------------------------------------------------------------------- */

void zero_gather_count(struct zero *z); /* figures of gathers after an update */
bool zero_gathers_through_ring(const struct zero *z);

/* ---- onebit/: only when z->onebit ------------------------------------------------------------ */

cz_status zero_onebit_check(const struct zero_options *o);
cz_status zero_onebit_init(struct zero *z); /* adds to nbytes[ZERO_ERRORS] and [ZERO_SIGNS] */
void zero_onebit_free(struct zero *z);
cz_status zero_onebit_bind(struct zero *z);
void zero_onebit_scalars(struct zero *z); /* changes z->mem.scalars as this step needs them */
cz_status zero_onebit_step(struct zero *z);

/* Whether ranks have taken local steps in a group since their last exchange: its states differ. */
bool zero_onebit_is_apart(const struct zero *z, size_t group);

/* A state was set from outside: what every rank keeps of it as a whole follows. */
cz_status zero_onebit_wrote(struct zero *z, size_t state_idx, size_t param_idx, size_t off,
                            size_t numel, const float *src);

/* A weight was: this rank's moves of it since the last exchange count no more. */
cz_status zero_onebit_wrote_weight(struct zero *z, size_t param_idx, size_t off, size_t numel);

#endif
