/* The memory plan: every byte of a run, before any of it is allocated (docs/design.md §5).
 *
 * Life cycle: plan_create() → plan_table() / plan_json() → plan_destroy(); or engine_get_plan() of
 * a running engine, which allocates exactly these rows. Not thread-safe. */
#ifndef CZ_ENGINE_PLAN_H
#define CZ_ENGINE_PLAN_H

#include "engine/engine.h"

CZ_EXTERN_C_BEGIN

enum plan_place { PLAN_HOST = 0, PLAN_DEVICE, PLAN_PINNED, PLAN_NVME };
#define PLAN_N_PLACES 4

#define PLAN_ROWS_MAX 16

struct plan_row {
    const char *name; /* "master weights" */
    enum plan_place place;
    size_t nbytes; /* as allocated, gaps included; rows of a place lie one after the other */
    char how[112]; /* what it is made of */
};

struct plan {
    struct plan_row rows[PLAN_ROWS_MAX];
    size_t n_rows;
    size_t baseline_nbytes; /* program and libraries: measured in this process */
    size_t comm_nbytes;     /* slots between the ranks of a host, as if all of them shared one */

    /* Per rank. host_peak includes the baseline and pinned memory. */
    size_t host_peak_nbytes, device_peak_nbytes, pinned_nbytes, nvme_nbytes;
    size_t sent_nbytes_per_step; /* by one rank to the others, per optimizer step (docs/zero.md) */
    size_t n_collectives_per_step;
    size_t live_numel_max; /* stage 3: most parameters whole in memory at any time */

    /* What the plan is for. */
    char model_name[64];
    size_t numel, numel_trainable;
    int stage;
    enum dtype dtype;
    int64_t world_size, B, T, accumulation;
    int64_t t_limit;          /* what the sequence length was bounded to: model_t_max() */
    int64_t checkpoint_every; /* 0: no activation checkpointing */

    size_t host_free_nbytes; /* what may still be allocated here: memory, cgroup and rlimits */
    const char *host_limit;  /* which of them binds: "available memory", … */
};

/* Plan a run of `model` (borrowed) under options' config, for rank 0 of world_size ≥ 1 ranks.
 * options->comm is ignored. *out is the caller's. Errors as engine_initialize_ex(), but a plan that
 * does not fit is a result: see plan_check(). */
CZ_API cz_status plan_create(const struct engine_options *options, int64_t world_size,
                             struct model *model, struct plan **out);
CZ_API void plan_destroy(struct plan *plan); /* accepts NULL */

/* CZ_NOMEM, with the table in the sentence, when the rows do not fit into what this machine, its
 * container or this process may still allocate. */
CZ_API cz_status plan_check(const struct plan *plan);

/* A table for people, lines ending in newlines; and one JSON object (docs/design.md §7). *out is
 * the caller's, released by free(). */
CZ_API cz_status plan_table(const struct plan *plan, char **out);
CZ_API cz_status plan_json(const struct plan *plan, char **out);

CZ_EXTERN_C_END
#endif
