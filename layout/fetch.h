/* When stage 3 gathers which parameters, and where they are meanwhile: pure arithmetic
 * (docs/deepspeed-behaviour.md, "Fetching", made static).
 *
 * A pass visits units (a layer's parameters) in an order that never changes, so what DeepSpeed
 * learns from a trace is computed once. At a visit: parameters it needs that are not there yet are
 * fetched on demand; then parameters of later visits are prefetched, in order of use; after it, its
 * parameters are dropped unless they come back soon. Each stay of a parameter has a fixed place in
 * one window, so the window's size is known before anything runs. All counts are elements.
 *
 *   demand     is never refused: a visit that alone needs more than max_live gets it
 *   keep       a parameter stays between two visits when fewer than max_reuse elements (of the
 *              visits in between, resident ones included) pass meanwhile and it fits within
 *              max_live at each of them, the shortest gaps first; used at once again, it fits
 *   prefetch   takes the next parameters that are neither live nor under way until
 *              prefetch_numel elements are chosen in this round (the last may go beyond) or one
 *              does not fit within max_live
 *
 * So no more than max(max_live, what the visit needs) is ever live; DeepSpeed bounds prefetch only.
 *
 * Life cycle: fetch_schedule_init() → read → fetch_schedule_free(). */
#ifndef CZ_LAYOUT_FETCH_H
#define CZ_LAYOUT_FETCH_H

#include "base/status.h"

CZ_EXTERN_C_BEGIN

struct fetch_visit {
    const size_t *param_idx; /* in call order; one parameter may stand twice */
    size_t n;
};

struct fetch_options {
    const size_t *numel;  /* (n_params) */
    const bool *resident; /* (n_params) always there: never fetched, never counted */
    size_t n_params;
    const struct fetch_visit *visits; /* forward, then backward with what it recomputes */
    size_t n_visits;
    size_t max_live;       /* stage3_max_live_parameters */
    size_t prefetch_numel; /* stage3_prefetch_bucket_size; 0: no prefetch */
    size_t max_reuse;      /* stage3_max_reuse_distance */
    size_t align;          /* every stay begins at a multiple of this many elements; ≥ 1 */
};

/* A parameter in the window, from the begin of its op to the end of its last visit. Stays that
 * overlap in time never overlap in the window. */
struct fetch_stay {
    size_t param_idx;
    size_t off;                     /* in the window */
    size_t first_visit, last_visit; /* the first and last visit that use it */
};

/* One gather of several parameters: stays [first, first + n). Ops are in the order of begins. */
struct fetch_op {
    size_t visit; /* begun when this visit starts, demand before prefetch */
    size_t first, n;
    size_t numel; /* sum over its parameters */
    bool demand;  /* waited for at once */
};

struct fetch_schedule {
    struct fetch_stay *stays;
    size_t n_stays;
    struct fetch_op *ops;
    size_t n_ops;
    /* Per visit v: */
    size_t *op_begin;   /* (n_visits + 1) ops [op_begin[v], op_begin[v + 1]) begin at v */
    size_t *ops_needed; /* (n_visits) ops [0, ops_needed[v]) must have arrived before v runs */
    size_t
        *drop_begin; /* (n_visits + 1) stays drops[drop_begin[v] … drop_begin[v + 1]) end with v */
    size_t *drops;   /* indices of stays */
    size_t n_visits;

    size_t window_numel;  /* what the window must hold, gaps included */
    size_t live_max;      /* most elements live (arrived or under way) at any time */
    size_t fetched_numel; /* over all ops: what one pass gathers */
};

/* Reads the options only now. Errors: CZ_INVALID (a parameter index out of range, align 0,
 * overflow), CZ_NOMEM; *s is then zeroed. */
cz_status fetch_schedule_init(struct fetch_schedule *s, const struct fetch_options *options);
void fetch_schedule_free(struct fetch_schedule *s); /* accepts zeroed; idempotent */

CZ_EXTERN_C_END
#endif
