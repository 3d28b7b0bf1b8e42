/* The inside of the 1-bit family.
 *
 * onebit_step.c           what each update does
 * onebit_layout.c    segments, and where everything is
 * onebit_exchange.c  the compressed all-reduce
 * onebit_masks.c     which elements take no part
 * onebit_local.c     ZeroOneAdam between exchanges
 * onebit_lamb.c      what OneBitLamb adds: scales of momenta, factors of frozen coefficients
 * onebit_state.c     what a checkpoint sees
 *
 * Arrays are where layers run: kernels of that device work on them, collectives move them from and
 * to its memory, and nothing here reads them on the host but through zero_onebit_read(). The host
 * waits for the device where it decides something: when masks are made, when OneBitLamb's momenta
 * freeze, and for OneBitLamb's ratios in each step after that. */
#ifndef CZ_ZERO_ONEBIT_ONEBIT_IMPL_H
#define CZ_ZERO_ONEBIT_ONEBIT_IMPL_H

#include "ops/onebit/onebit.h"
#include "ops/reduce/reduce.h"
#include "zero/zero_impl.h"

/* A parameter inside its segment. */
struct onebit_run {
    size_t param_idx, group;
    size_t pos;      /* in the group's order */
    size_t flat_off; /* in the group's flat buffer */
    size_t seg_off;  /* in the segment */
    size_t numel;
};

struct onebit_segment {
    size_t first_run, n_runs;
    size_t numel, numel_padded; /* equal with one rank */
    size_t error_off;           /* elements: in the worker errors */
    size_t server_off;          /* … and in the server errors */
    size_t bits_off;            /* bytes: in each rank's piece of a message */
    size_t mask_bit;            /* first bit of its mask */
};

/* What kernels read in the device's memory and never changes. */
struct onebit_constants {
    struct step_scalars unit; /* gradients are taken as they are */
    float one;                /* the trust ratio of optimizers that have none */
};

struct zero_onebit_core {
    struct onebit_clock clock;
    double *lrs;                     /* (n_groups) */
    bool *apart;                     /* (n_groups) ranks hold other momenta and moves */
    struct onebit_tensor *tensors;   /* (n_params) OneBitLamb */
    struct onebit_run *runs;         /* (n_runs) segment by segment */
    size_t *run_params;              /* (n_runs) their param_idx, as zero_segment() lends them */
    size_t *run_of;                  /* (n_params) index into runs */
    struct onebit_segment *segments; /* (n_segments) */
    size_t n_runs, n_segments;
    bool masks_stale;          /* the variance has changed since the masks were made */
    float *maxima;             /* (W · n_runs) per tensor, of every rank */
    struct scan_result *found; /* (n_runs) where kernels say what they have seen of a tensor … */
    uint64_t *squares;         /* (n_runs · SQUARES_DIGITS) … and what its squares add up to */
    double *norms;             /* (n_runs) of OneBitLamb's momenta, as the variance freezes */
    size_t *numels;            /* (n_runs) */
    struct onebit_tensor *scaled;         /* (n_runs) */
    float *worker_scales, *server_scales; /* (W · n_segments), in ZERO_SIGNS */
    float *worker_errors, *server_errors; /* in ZERO_ERRORS */
    uint8_t *out, *in;                    /* W pieces of piece_nbytes each */
    uint8_t *masks;
    double *partials;
    float *factors; /* (n_runs) OneBitLamb: the largest of each tensor, on this rank */
    struct onebit_constants *constants; /* in ZERO_SIGNS */
    size_t worker_numel, server_numel;  /* of all segments' errors */
    size_t piece_nbytes, mask_nbytes, n_partials;
    size_t out_off, in_off, masks_off, partials_off, scales_off, factors_off,
        constants_off; /* into ZERO_SIGNS */
};

/* ---- onebit_step.c --------------------------------------------------------------------------- */

/* Stage 1: gather the ranks' parts of the momentum on all ranks, as exchanges need it. */
cz_status onebit_gather_momentum(struct zero *z);

/* ---- onebit_layout.c ------------------------------------------------------------------------- */

static inline const struct optim_hyper *onebit_hyper(const struct zero *z)
{
    return onebit_of(z->options.groups, z->options.n_groups);
}

static inline bool onebit_is_lamb(const struct zero *z)
{
    return optim_stage_of(onebit_hyper(z)->cls, OPTIM_TENSOR_SUMS) != NULL;
}

static inline size_t onebit_world(const struct zero *z)
{
    return (size_t)z->options.comm->world_size;
}

static inline struct zero_range onebit_floats(const struct zero *z, const float *x, size_t numel)
{
    return (struct zero_range){.memory = (const unsigned char *)x,
                               .on_gpu = z->options.on_gpu,
                               .nbytes = numel * sizeof *x};
}

/* Floats that are about to change. */
static inline cz_status onebit_claim_floats(const struct zero *z, const float *x, size_t numel)
{
    const struct zero_range range = onebit_floats(z, x, numel);
    return zero_claim(z, &range);
}

/* In stream order. */
static inline cz_status onebit_fill_zero(struct zero *z, void *dst, size_t nbytes)
{
    struct device *d = zero_device(z);
    return nbytes == 0 ? CZ_OK : d->ops->fill_zero(d, z->options.stream, dst, nbytes);
}

/* Element 0 of a group's array that is whole on this rank; of a split state, where it would be.
 */
float *onebit_state(const struct zero *z, size_t group, size_t state_idx);
float *onebit_momentum(const struct zero *z, size_t group);
float *onebit_moved(const struct zero *z, size_t group);
const void *onebit_grads(const struct zero *z, size_t group);
const void *onebit_run_grads(const struct zero *z, const struct onebit_run *run);

struct onebit_mask onebit_mask_of(const struct zero *z, const struct onebit_segment *s,
                                  const struct onebit_run *run);

/* What of a run is in this rank's partition: elements [*begin, *end) of it. */
bool onebit_own_part(const struct zero *z, const struct onebit_run *run, size_t *begin,
                     size_t *end);

/* A run's part of a whole state is about to change. */
cz_status onebit_claim(struct zero *z, const struct onebit_run *run, size_t state_idx);

typedef cz_status (*onebit_run_fn)(struct zero *z, const struct onebit_segment *s,
                                   const struct onebit_run *run);
cz_status onebit_each_run(struct zero *z, onebit_run_fn fn);

/* ---- onebit_masks.c -------------------------------------------------------------------------- */

/* From the variance as it is now. Pure: a resumed run makes the same masks. */
cz_status onebit_make_masks(struct zero *z);

/* The largest value of a tensor, on the host: of this rank's part of it, after
 * onebit_max_over_ranks() of all. */
float *onebit_max_of(const struct zero *z, const struct onebit_run *run);
cz_status onebit_max_over_ranks(struct zero *z);

/* Look at a run's floats on this rank: in onebit_found() once the stream is waited for. squares: as
 * in struct scan_args. */
cz_status onebit_scan(struct zero *z, const struct onebit_run *run, const float *x, size_t numel,
                      uint64_t *squares);
struct scan_result *onebit_found(const struct zero *z, const struct onebit_run *run);

/* ---- onebit_local.c -------------------------------------------------------------------------- */

cz_status onebit_move(struct zero *z);        /* an update of this rank's own */
cz_status onebit_settle(struct zero *z);      /* all ranks' moves become one */
cz_status onebit_place_moved(struct zero *z); /* parameters from masters and moves, after a load */

/* ---- onebit_exchange.c ----------------------------------------------------------------------- */

enum onebit_payload {
    PAYLOAD_MOMENTUM, /* beta1·m + (1 − beta1)·g, scaled per tensor; arrives as the momentum */
    PAYLOAD_GRADIENT, /* g; arrives in the momentum with weight 1 − beta1 */
    PAYLOAD_MOVES     /* ZeroOneAdam's moves; arrive in their place */
};

cz_status onebit_exchange(struct zero *z, enum onebit_payload payload);

/* Bits set by any rank are set on every rank. */
cz_status onebit_masks_join(struct zero *z);

/* ---- onebit_lamb.c --------------------------------------------------------------------------- */

void onebit_lamb_warmed(struct zero *z);      /* after a FULL update */
cz_status onebit_lamb_freeze(struct zero *z); /* after the last of them */
cz_status onebit_lamb_ratios(struct zero *z); /* after an exchange: what apply() takes */

#endif
