/* czero_state.json: what a run needs beyond DeepSpeed's keys to go on as if it had never stopped.
 * Specification: docs/checkpoint-format.md. */
#ifndef CZ_ENGINE_RUN_STATE_IMPL_H
#define CZ_ENGINE_RUN_STATE_IMPL_H

#include "data/data.h"
#include "engine/engine_impl.h"

#define RUN_STATE_VERSION 1

struct run_state {
    int64_t global_steps, global_samples, skipped_steps, micro_steps;
    uint64_t n_updates;
    int64_t n_skipped_in_a_row, n_scales;
    double scale_history[SCALE_HISTORY];
    struct loss_scale scale;
    bool has_schedule;
    int64_t last_batch_iteration;
    uint64_t seed;
    int stage, world_size;
    enum dtype dtype;
    size_t n_groups;
    double lrs[OPTIM_GROUPS_MAX], betas[OPTIM_GROUPS_MAX][2];
    bool has_cursor;
    struct data_cursor cursor;
};

/* Of a run at a boundary. cursor may be NULL. */
void run_state_take(const struct engine *e, const struct data_cursor *cursor,
                    struct run_state *out);

/* *text is the caller's to free(). */
cz_status run_state_to_json(const struct run_state *s, char **text, size_t *nbytes);

/* Errors: CZ_NOTFOUND (no such file in the tag's folder), CZ_CORRUPT, CZ_VERSION. */
cz_status run_state_load(const char *tag_dir, struct run_state *out);

#endif
