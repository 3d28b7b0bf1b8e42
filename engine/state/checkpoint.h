/* Checkpoints of a run: save, resume, 16-bit weights. In DeepSpeed's format (checkpoint/), so that
 * DeepSpeed loads what is saved here and the other way round, at any stage and world size.
 *
 *   engine_save_checkpoint()                 everything is on disk when it returns
 *   engine_save_begin() … engine_save_wait() the same in the background, while training goes on
 *   engine_load_checkpoint_ex()              resume, or take the weights alone
 *
 * All calls are collective over ranks: every rank passes the same values. A save happens between
 * steps; inside an accumulation window it is CZ_INVALID. */
#ifndef CZ_ENGINE_STATE_CHECKPOINT_H
#define CZ_ENGINE_STATE_CHECKPOINT_H

#include "data/data.h"
#include "engine/engine.h"

CZ_EXTERN_C_BEGIN

/* ---- saving -----------------------------------------------------------------------------------
 */

struct cz_save_options {
    size_t size; /* sizeof(struct cz_save_options) */
    const char *tag;                     /* NULL: "global_step{N}" */
    const struct cz_data_cursor *cursor; /* where the data stands; NULL: not saved */
    const char *client_state_json; /* an object: merged into DeepSpeed's dictionary; NULL: none */
    bool exclude_frozen;           /* exclude_frozen_parameters */
    bool keep_latest;              /* save_latest=False: `latest` stays as it is */
    int64_t keep;                  /* > 0: remove all but so many of our newest tags afterwards */
};

/* Begin to write a checkpoint into dir/TAG. Files are written by a thread of their own straight
 * from the run's memory, without a copy: the optimizer's next sweep waits for what has not been
 * written yet. engine_step() looks at boundaries whether all ranks have finished; then the tag gets
 * its name, and `latest` last. Until then nothing under dir/TAG has changed. A save that fails
 * later is a warning, and an error of engine_save_wait(). One save at a time: begins by waiting for
 * the one before. With "czero": {"async_save": false} it is complete on return. Errors: CZ_INVALID
 * (inside an accumulation window, a bad tag; ranks' tags differ under checkpoint.tag_validation
 * "Fail"), CZ_IO (the folder cannot be written, disk full), CZ_PEER. The run can go on after any of
 * them but CZ_PEER and CZ_COMM. options may be NULL. */
CZ_API cz_status engine_save_begin(struct cz_engine *engine, const char *dir,
                                   const struct cz_save_options *options);

/* Wait until the save in work, if any, is durable, or has failed: its error. */
CZ_API cz_status engine_save_wait(struct cz_engine *engine);

/* Both in one. */
CZ_API cz_status engine_save_checkpoint_ex(struct cz_engine *engine, const char *dir,
                                           const struct cz_save_options *options);

/* The weights in the model's dtype as one file dir/filename (NULL: "pytorch_model.bin"), tied names
 * included, for torch.load. *saved false: stage 3 without
 * zero_optimization.stage3_gather_16bit_weights_on_model_save; nothing is written then. */
CZ_API cz_status engine_save_16bit_model(struct cz_engine *engine, const char *dir,
                                         const char *filename, bool exclude_frozen, bool *saved);

/* ---- loading ----------------------------------------------------------------------------------
 */

struct cz_load_options {
    size_t size; /* sizeof(struct cz_load_options) */
    const char *tag;          /* NULL: latest */
    bool lenient;             /* load_module_strict=False: parameters that are missing keep their
                                 weights, unknown ones are left out */
    bool no_optimizer_states; /* load_optimizer_states=False */
    bool no_lr_scheduler;     /* load_lr_scheduler_states=False */
    bool module_only;         /* load_module_only: weights, and nothing else of the run */
    bool no_verify;           /* trust the files: do not compare checksums first */
};

struct cz_load_result {
    char *tag_dir;           /* what was loaded */
    char *client_state_json; /* the dictionary's keys that are not the engine's own, as an object;
                                values without a JSON form (tensors, objects) are left out */
    size_t n_restored, n_tensors; /* of the model's */
    bool has_states;              /* the optimizer's states were restored */
    bool has_cursor;
    struct cz_data_cursor cursor;
};

/* Weights, optimizer states, counters, loss scale, schedule and dropout's RNG, from a checkpoint of
 * czero or of DeepSpeed (0.16, 0.19), of any stage, precision and world size. Weights are the saved
 * fp32 masters wherever there are any. Checksums are compared first (a flipped bit is CZ_CORRUPT).
 * Errors: CZ_NOTFOUND (there is no such folder, tag or `latest`: nothing to load), CZ_INVALID (a
 * parameter is missing or of another shape, another optimizer's states; inside an accumulation
 * window), CZ_CORRUPT, CZ_UNSUPPORTED, CZ_IO. After an error while tensors are being read, weights
 * are a mixture: load again or give up.
 * options and result may be NULL; cz_load_result_free() releases the result. */
CZ_API cz_status engine_load_checkpoint_ex(struct cz_engine *engine, const char *dir,
                                           const struct cz_load_options *options,
                                           struct cz_load_result *result);
CZ_API void cz_load_result_free(struct cz_load_result *result); /* accepts zeroed */

/* What a run's seed was, looked up before there is an engine: for programs that must open data and
 * model with it. CZ_NOTFOUND: the checkpoint has none (DeepSpeed's). tag NULL: latest. */
struct cz_saved_run {
    uint64_t seed;
    bool has_cursor;
    struct cz_data_cursor cursor;
    int64_t global_steps;
};
CZ_API cz_status cz_saved_run_read(const char *dir, const char *tag, struct cz_saved_run *out);

CZ_EXTERN_C_END
#endif
