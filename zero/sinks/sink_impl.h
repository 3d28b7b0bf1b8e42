/* Gradient sinks: where gradients go once layers have made them.
 *
 * zero/buckets.c decides what goes together (flushes) and when; a sink decides where to and how.
 * One is chosen at creation (create.c):
 *
 *   zero_sink_ranks  the mean over ranks, reduced to the owners' partitions: in place at stages 0
 *                    and 1, from buckets at stages 2 and 3. The partition is in ZERO_GRADS, in
 *                    whichever memory that block is: with an offloaded optimizer reductions of GPUs
 *                    end in host memory, so reducing and leaving the GPU combine without a sink of
 *                    their own.
 *   zero_sink_swap   one rank's gradients, written from buckets to the swap file
 *   zero_sink_host   one GPU's gradients, copied from buckets to host memory
 *
 * What several sinks share stands in zero/buckets.c; a sink's own tables hang on z->buckets.state.
 * Every call is made by the thread that trains, in the order
 *
 *   take (each group) → init → dealt → bind
 *   per pass: [restore] → is_due → begin → wait … finish
 *   at the boundary: boundary → visit → tile_wait, complete (by the optimizer's sweep)
 *   free
 *
 * begin, wait, finish and boundary are collective for zero_sink_ranks. */
#ifndef CZ_ZERO_SINKS_SINK_IMPL_H
#define CZ_ZERO_SINKS_SINK_IMPL_H

#include "base/status.h"

struct zero;

/* What a gradient takes of its bucket, in elements. */
struct zero_footprint {
    size_t lead;  /* before its first element: the sink wants that one aligned */
    size_t numel; /* with the lead and what follows behind */
};

/* Look at gradients of a group: elements [at, at + numel) of what this rank answers for. */
typedef cz_status (*zero_grads_visit)(void *user, size_t group, const void *x, size_t at,
                                      size_t numel);

struct zero_sink {
    const char *name;

    /* Buckets: how large, how many. */
    size_t bucket_numel_max; /* they are no larger, unless one unit's gradients are */
    int n_buckets;           /* 0: one; two in turn where reductions overlap the backward */
    bool is_beside;          /* begin() never holds up the backward, whatever overlap_comm says */
    bool in_stream_order;    /* the device's streams order what is under way before what follows:
                                passes need not wait for it */

    /* A gradient's part of a bucket. NULL: its elements, nothing else. */
    struct zero_footprint (*footprint)(const struct zero *z, size_t param_idx);

    /* Space for `numel` gradients of a group. NULL: it is taken from ZERO_GRADS. */
    cz_status (*take)(struct zero *z, size_t group, size_t numel);

    cz_status (*init)(struct zero *z);  /* the sink's tables, and blocks that it alone needs */
    cz_status (*dealt)(struct zero *z); /* units have been dealt to flushes: what follows from it */
    cz_status (*bind)(struct zero *z);  /* blocks and swap file are there. NULL: nothing to do */
    void (*free)(struct zero *z);       /* accepts what init left */

    /* Whether a complete flush begins at once, and not at the boundary. NULL: it does. */
    bool (*is_due)(const struct zero *z);

    cz_status (*begin)(struct zero *z, size_t flush); /* its gradients are complete */
    cz_status (*wait)(struct zero *z, size_t flush);  /* they have gone: the bucket is free */
    cz_status (*finish)(struct zero *z);              /* everything that was begun has ended */

    /* In a later micro-batch, before a layer writes: the flush's sums so far are in the bucket
     * again, and layers add to them. NULL: layers overwrite, the sink adds. */
    cz_status (*restore)(struct zero *z, size_t flush);

    /* At the boundary: afterwards gradients are the step's, or are about to be (tile_wait). */
    cz_status (*boundary)(struct zero *z);

    /* All of this rank's gradients, in any order and as they arrive. */
    cz_status (*visit)(struct zero *z, zero_grads_visit visit, void *user);

    /* Where boundary() leaves gradients on their way: those of a tile have arrived. NULL: none. */
    cz_status (*tile_wait)(struct zero *z, size_t group, size_t tile);

    /* Bytes [off, off + nbytes) as they were read from the swap file: put what the sink keeps in
     * memory of them in its place. NULL: nothing. */
    void (*complete)(struct zero *z, unsigned char *bytes, uint64_t off, size_t nbytes);

    /* Elements [off, off + numel) of this rank's partition of a group, as fp32. NULL: they are
     * where zero_grads_placement() says. */
    cz_status (*get)(struct zero *z, size_t group, size_t off, size_t numel, float *dst);

    /* Before the boundary: elements [off, off + numel) of a parameter's gradient as the boundary
     * will find them, to the bit, on every rank. *is_read false: nothing was read, the owners'
     * partitions have them already. NULL: so it is always. */
    cz_status (*read_pending)(struct zero *z, size_t param_idx, size_t off, size_t numel,
                              float *dst, bool *is_read);
};

extern const struct zero_sink zero_sink_ranks, zero_sink_swap, zero_sink_host;

/* ---- sink_ranks.c: what a reduction does, for a rank that has no others ---------------------- */

/* A communicator's reduction rounds to the wire's dtype. On a GPU one rank has no communicator to
 * do so: whether its gradients need it, and the rounding, through `most` elements at `through`. */
bool zero_rounds_alone(const struct zero *z);
cz_status zero_round_alone(struct zero *z, void *through, size_t most);

/* fp32 gradients that differ from rank to rank, `scale` times their sum, rounded on the wire and as
 * gradients are stored. Collective. */
cz_status zero_reduce_values(struct zero *z, float *x, size_t numel, float scale);

#endif
