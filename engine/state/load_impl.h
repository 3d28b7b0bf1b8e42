/* A checkpoint being loaded: load_match.c finds its tensors, load.c restores them, load_run.c the
 * rest of the run, load_onebit.c the 1-bit optimizers'. */
#ifndef CZ_ENGINE_STATE_LOAD_IMPL_H
#define CZ_ENGINE_STATE_LOAD_IMPL_H

#include "checkpoint/read/checkpoint.h"
#include "engine/engine.h"
#include "engine/engine_impl.h"
#include "engine/state/run_state_impl.h"
#include <czero/engine.h>

/* A checkpoint being loaded. */
struct load {
    struct cz_engine *e;
    const struct cz_load_options *options;
    struct ckpt *ck;
    struct load_name *names; /* (n_names) by name; NULL: those of the checkpoint */
    size_t n_names;
    struct load_rename *renames; /* (n_renames) options->renames */
    size_t n_renames;
    size_t *tensor_of; /* (n_params) index in the checkpoint; ckpt_count(): missing */
    int weight_what;   /* CKPT_MASTER or CKPT_MODULE */
    bool *weights;     /* (n_params) restore this one */
    size_t state_of[OPTIM_GROUPS_MAX][OPTIM_STATES_MAX]; /* the checkpoint's number of each state */
    bool with_states;                                    /* restore the optimizer's states */
    bool fresh_states; /* they were saved before the first update: none are there */
    bool drops_states; /* the optimizer keeps none of those that are there */
    bool has_run_state;
    struct run_state run; /* ours, when there is one */
    size_t n_restored;
    bool saved_onebit; /* the same 1-bit optimizer of czero's saved it */
    bool keeps_moves;  /* and what its ranks have moved alone since an exchange counts */
};

#define LOAD_NO_STATE SIZE_MAX /* state_of: begins as in a new run */

/* load_names.c: the names that options->renames make; with `lacks_some`, also without a wrapper's
 * prefix. Local. Errors: CZ_INVALID (no substitution, one that matches nothing, two tensors of one
 * name), CZ_NOMEM. */
cz_status load_names(struct load *l, bool lacks_some);
size_t load_find(const struct load *l, const char *name); /* ckpt_count(): none */
bool load_param_of(const struct load *l, const char *name, size_t *param_idx);
void load_names_free(struct load *l);

/* Before the calls above: read options->renames. Errors: CZ_INVALID, CZ_NOMEM. */
cz_status load_renames_open(struct load *l);
void load_renames_free(struct load *l); /* accepts a zeroed one */

/* Find a tensor for every parameter and a state for every one that the optimizer keeps. Local.
 * Errors: CZ_INVALID: something is missing, left over, of another shape or of another optimizer. */
cz_status load_match(struct load *l);

/* Counters, schedule, constants of the groups, loss scale, seed: what the options ask for. Local.
 * Errors: CZ_UNSUPPORTED (groups that have seen different numbers of updates). */
cz_status load_run(struct load *l);

/* load_compare.c: say in what the saved run differs from this one. Local, of rank 0 alone. Errors:
 * CZ_NOMEM. */
cz_status load_compare(const struct load *l);

/* load_onebit.c. Before the states are restored: what of them counts. After load_run(): the 1-bit
 * optimizers' schedule and errors; zero_onebit_restored() must follow. Local. Errors: CZ_CORRUPT,
 * CZ_VERSION, CZ_IO: of the ranks' own files. */
void load_onebit_plan(struct load *l);
cz_status load_onebit(struct load *l);

#endif
