/* czero_state.json: what a run needs beyond DeepSpeed's keys to continue as if it had never
 * stopped. Specification: docs/checkpoint-format.md. */
#ifndef CZ_ENGINE_STATE_RUN_STATE_IMPL_H
#define CZ_ENGINE_STATE_RUN_STATE_IMPL_H

#include "base/status.h"
#include "engine/engine_impl.h"
#include "formats/json/json.h"
#include "formats/json/json_write.h"
#include "optim/onebit.h"
#include <czero/data.h>

#define RUN_STATE_VERSION 1

/* What the 1-bit optimizers count, exactly. */
struct run_onebit_tensor {
    char *name;
    struct onebit_tensor values;
};

struct run_onebit {
    bool present;       /* the run's optimizer is one of them */
    char optimizer[32]; /* its class */
    struct onebit_clock clock;
    bool has_files; /* a file of errors of every rank is there */
    bool has_lrs;   /* ZeroOneAdam: one per group */
    double lrs[OPTIM_GROUPS_MAX];
    struct run_onebit_tensor *tensors; /* OneBitLamb: (n_tensors) */
    size_t n_tensors;
};

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
    enum cz_dtype dtype;
    size_t n_groups;
    double lrs[OPTIM_GROUPS_MAX], betas[OPTIM_GROUPS_MAX][2];
    bool has_cursor;
    struct cz_data_cursor cursor;
    struct run_onebit onebit;
    bool has_base; /* an adapter's: the model that it belongs to */
    uint64_t base_hash;
};

/* Of a run at a boundary. cursor may be NULL; the 1-bit part is save_onebit.c's. */
void run_state_take(const struct cz_engine *e, const struct cz_data_cursor *cursor,
                    struct run_state *out);
void run_state_free(struct run_state *s); /* accepts zeroed */

/* Of a save under `tag` (may be NULL), by which pruning knows it. *text is the caller's to free().
 */
cz_status run_state_to_json(const struct run_state *s, const char *tag, char **text,
                            size_t *nbytes);

/* Errors: CZ_NOTFOUND (no such file in the tag's folder), CZ_CORRUPT, CZ_VERSION; nothing is to be
 * freed then. */
cz_status run_state_load(const char *tag_dir, struct run_state *out);

/* Append a tensor's values; the name is copied. */
cz_status run_onebit_add(struct run_onebit *ob, const char *name,
                         const struct onebit_tensor *values);

#endif
