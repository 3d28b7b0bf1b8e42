/* zero: who holds which elements of the model state, and when they move (stages 0-2).
 *
 * The trainable parameters of each optimizer group lie in one flat buffer, laid out as DeepSpeed's
 * partitions (layout/flat.h), so that a rank's master partition is the tensor of its checkpoint.
 * Stage 0 keeps all of it on every rank; stages 1 and 2 keep masters and optimizer states of the
 * rank's own partition. With fp32 parameters the master is the parameter itself.
 *
 * Life cycle:
 *   zero_create()              layout only: nothing large is allocated
 *   zero_block_nbytes()        what the planner must provide
 *   zero_bind() → zero_load()  memory and weights
 *   per micro-batch            zero_unit_acquire / release, zero_grads_ready around each layer
 *   at the boundary            zero_reduce → zero_scan → zero_norm → zero_step → zero_gather
 *   zero_destroy()
 *
 * It sees units (the parameters of a layer, in call order) and never calls a layer. Nothing is
 * allocated after zero_create(). Not thread-safe; calls marked "collective" are made by all ranks.
 */
#ifndef CZ_ZERO_ZERO_H
#define CZ_ZERO_ZERO_H

#include "comm/comm.h"
#include "layout/param_table.h"
#include "optim/optim.h"

CZ_EXTERN_C_BEGIN

struct zero; /* opaque */

/* The parameters of one layer, in the layer's order. */
struct zero_unit {
    const size_t *param_idx;
    size_t n;
};

struct zero_options {
    const struct param_table *table; /* lent until zero_destroy() */
    const struct zero_unit *units;   /* in call order; what they point to is lent likewise */
    size_t n_units;
    const size_t *group_of;     /* (n_params) group of each trainable parameter; read once */
    struct optim_group *groups; /* lent; their lr and betas are read at every step */
    size_t n_groups;
    int stage;               /* 0, 1 or 2 */
    enum dtype dtype;        /* of parameters */
    enum dtype grad_dtype;   /* of gradients: dtype or F32 */
    enum dtype wire_dtype;   /* what reductions round to (communication_data_type) */
    enum dtype master_dtype; /* F32; equal to dtype: parameters are their own masters */
    enum dtype state_dtype;
    bool round_robin;    /* round_robin_gradients */
    bool align_params;   /* parameter_alignment: 16 bytes */
    bool reduce_sum;     /* gradient_allreduce_op "sum": no division by W */
    size_t bucket_numel; /* reduce_bucket_size: elements reduced together; at least the largest
                            unit, at most all trainable */
    bool overlap;        /* overlap_comm: two buckets in turn */
    size_t tile_numel;   /* elements per step of the sweep; 0: TILE_NUMEL_MAX */
    struct comm *comm;   /* lent */
    struct ops *ops;     /* lent */
    struct dev_stream *stream;
};

/* Errors: CZ_INVALID (sizes overflow, a group index out of range), CZ_UNSUPPORTED (tensor norms
 * over several ranks), CZ_NOMEM. */
CZ_API cz_status zero_create(const struct zero_options *options, struct zero **out);
CZ_API void zero_destroy(struct zero *z); /* accepts NULL */

/* ---- memory --------------------------------------------------------------------------------- */

enum zero_block {
    ZERO_PARAMS = 0, /* flat parameters of all groups, then the frozen ones */
    ZERO_MASTERS,    /* 0 bytes when parameters are their own masters */
    ZERO_GRADS,      /* whole; stage 2 with several ranks: this rank's partition */
    ZERO_BUCKETS,    /* 0 bytes with one rank */
    ZERO_STATE_0,    /* the optimizer's states, in its order */
    ZERO_STATE_1,
    ZERO_SMALL, /* step scalars, per-tensor sums */
    ZERO_N_BLOCKS
};

/* Bytes this rank needs. */
CZ_API size_t zero_block_nbytes(const struct zero *z, enum zero_block block);

/* Elements: over all trainable parameters with padding, and in this rank's partitions. */
CZ_API size_t zero_numel_padded(const struct zero *z);
CZ_API size_t zero_numel_own(const struct zero *z);

/* Lend the blocks (aligned to 256 bytes, zeroed; NULL for 0 bytes) until zero_destroy(), and fill
 * states with their first values. CZ_UNSUPPORTED: stage 2 with several ranks. */
CZ_API cz_status zero_bind(struct zero *z, void *const blocks[ZERO_N_BLOCKS]);

/* Supplies fp32 elements [off, off + numel) of a parameter. */
typedef cz_status (*zero_fetch)(void *user, size_t param_idx, size_t off, size_t numel, float *dst);

/* Fill parameters and masters. Masters start from the rounded parameters, as DeepSpeed's do.
 * staging: staging_numel ≥ 1 floats of scratch for 16-bit parameters. */
CZ_API cz_status zero_load(struct zero *z, zero_fetch fetch, void *user, float *staging,
                           size_t staging_numel);

/* Pointers by parameter index, as chain_bind() wants them; grads has NULL for frozen parameters. */
CZ_API const void *const *zero_params(const struct zero *z);
CZ_API void *const *zero_grads(const struct zero *z);

/* ---- a pass over the layers ------------------------------------------------------------------
 */

/* The unit's parameters are whole in memory between acquire and release. */
CZ_API cz_status zero_unit_acquire(struct zero *z, size_t unit_idx);
CZ_API cz_status zero_unit_release(struct zero *z, size_t unit_idx);

/* The unit's last backward of this micro-batch is done: its gradients stand in zero_grads(). */
CZ_API cz_status zero_grads_ready(struct zero *z, size_t unit_idx);

/* ---- the boundary ---------------------------------------------------------------------------
 */

/* Average gradients over ranks: afterwards this rank's partition holds the mean. Collective.
 * CZ_INVALID when some unit's gradients are not ready. */
CZ_API cz_status zero_reduce(struct zero *z);

struct zero_scan {
    float max_abs; /* over the finite gradients of all ranks */
    bool finite;
    /* When not finite: the first offender, of the lowest rank that has one. */
    int rank;
    size_t param_idx;
    size_t elem; /* inside the parameter */
    float value; /* as stored: still multiplied by the loss scale */
};

/* Look for non-finite gradients. Collective. */
CZ_API cz_status zero_scan(struct zero *z, struct zero_scan *out);

/* Global L2 norm of the (finite) gradients, still scaled; max_abs from zero_scan(). The same bits
 * for any partition. Collective. */
CZ_API cz_status zero_norm(struct zero *z, float max_abs, double *norm);

/* Update number t ≥ 1 of this rank's partition: one pass over the tiles (unscale, clip, update,
 * round to parameters). */
CZ_API cz_status zero_step(struct zero *z, uint64_t t, double loss_scale, double clip_factor);

/* Give every rank the parameters that the others have updated. Collective. */
CZ_API cz_status zero_gather(struct zero *z);

/* Forget which gradients are ready: after a skipped step. */
CZ_API void zero_grads_drop(struct zero *z);

/* ---- single tensors ------------------------------------------------------------------------- */

enum zero_what { ZERO_WEIGHT = 0, ZERO_GRAD, ZERO_STATE };

/* Elements [off, off + numel) of a parameter's master weight, gradient (as stored) or state, as
 * fp32. A frozen parameter has a weight only (CZ_NOTFOUND). Writing a weight also writes the
 * rounded parameter. CZ_UNSUPPORTED: elements that another rank owns. */
CZ_API cz_status zero_read(struct zero *z, enum zero_what what, size_t state_idx, size_t param_idx,
                           size_t off, size_t numel, float *dst);
CZ_API cz_status zero_write(struct zero *z, enum zero_what what, size_t state_idx, size_t param_idx,
                            size_t off, size_t numel, const float *src);

CZ_EXTERN_C_END
#endif
