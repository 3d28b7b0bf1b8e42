/* The schedule by which stage 3 gathers and drops parameters, and their places in the window: pure
 * arithmetic. A static form of docs/deepspeed-behaviour.md, "Fetching".
 *
 * A pass visits units (a layer's parameters) in an order that never changes, so the
 * schedule that DeepSpeed learns from a trace is computed once. At a visit, missing parameters are
 * fetched on demand; then parameters of later visits are prefetched, in order of use; after it, its
 * parameters are dropped unless they are used again soon. Each stay of a parameter has a fixed
 * place in one window, so the window's size is known before the run. All counts are elements.
 *
 *   demand     is never refused, even if a single visit needs more than max_live
 *   keep       a parameter stays between two visits when fewer than max_reuse elements (of the
 *              visits in between, resident ones included) pass in between and it fits within
 *              max_live at each of them, the shortest gaps first; if it is used at the next
 *              visit, it always stays
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
    const size_t *param_idx; /* in call order; one parameter may occur twice */
    size_t n;
};

struct fetch_options {
    const size_t *numel;  /* (n_params) */
    const bool *resident; /* (n_params) always gathered: never fetched, never counted */
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

    size_t window_numel;  /* size of the window, including gaps */
    size_t live_max;      /* maximum of live elements (arrived or in flight) at any time */
    size_t fetched_numel; /* elements that one pass gathers, over all ops */
};

/* Reads the options only now. Errors: CZ_INVALID (a parameter index out of range, align 0,
 * overflow), CZ_NOMEM; *s is then zeroed. */
cz_status fetch_schedule_init(struct fetch_schedule *s, const struct fetch_options *options);
void fetch_schedule_free(struct fetch_schedule *s); /* accepts zeroed; idempotent */

CZ_EXTERN_C_END
#endif
