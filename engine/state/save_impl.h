/* A save in progress: what is written, by which rank, and how far it is. */
#ifndef CZ_ENGINE_STATE_SAVE_IMPL_H
#define CZ_ENGINE_STATE_SAVE_IMPL_H

#include "base/status.h"
#include "checkpoint/write/ds_write.h"
#include "engine/engine.h"
#include "engine/engine_impl.h"
#include "engine/state/run_state_impl.h"
#include "formats/output.h"
#include <czero/engine.h>

#include <pthread.h>

#define SAVE_SETTINGS_MAX 24 /* of a param group */

/* ---- save_describe.c: the engine as the checkpoint module describes it -------------------- */

struct save_description {
    struct ckpt_write_options options; /* points into what follows */
    struct ckpt_group *groups;         /* (n_groups) */
    struct ckpt_setting *settings;     /* (n_groups · SAVE_SETTINGS_MAX) */
    size_t *group_of;                  /* (n_params) n_groups for frozen ones */
    char *config_json;
    struct ckpt_onebit onebit;
    struct ckpt_segment *segments;
    struct ckpt_onebit_tensor *tensors; /* (n_params) */
};

/* dir and the client state are borrowed. */
cz_status save_describe(const struct cz_engine *e, const char *dir, const struct cz_save_options *o,
                        bool exclude_frozen, struct save_description *out);
void save_description_free(struct save_description *d); /* accepts zeroed */

/* ---- save_schedule.c: the schedules that are torch's ---------------------------------------- */

/* Pairs of the dictionary that torch's state_dict() gives; of a struct cz_engine. */
void save_put_schedule(struct pickle_writer *p, const void *engine);

/* What the schedule keeps in a param group, behind g's settings; `room` is theirs. */
void save_describe_kept(const struct schedule *s, size_t group, struct ckpt_group *g,
                        struct ckpt_setting room[SAVE_SETTINGS_MAX]);

/* ---- save_onebit.c: the 1-bit optimizers ---------------------------------------------------- */

cz_status save_take_onebit(const struct cz_engine *e,
                           struct run_state *s); /* after run_state_take() */

/* d->onebit, and the groups' steps: of DeepSpeed's classes those count calls. */
cz_status save_describe_onebit(const struct cz_engine *e, struct save_description *d);

/* Where the elements of a job of the ranks' own file are. */
size_t save_find_onebit(const struct cz_engine *e, const struct ckpt_job *job,
                        struct zero_range *out);

/* ---- save_groups.c: what DeepSpeed's and torch's optimizer classes keep --------------------- */

/* CZ_UNSUPPORTED where save_describe_class() would be: a run that cannot be saved does not begin.
 */
cz_status save_check_class(const struct optim_group *group);

/* The settings (into `room`), the names of g->n_states states and the kind of step, as the class
 * that DeepSpeed would build from the config writes them. Errors: CZ_UNSUPPORTED (no such form is
 * known for the group's class). */
cz_status save_describe_class(const struct optim_group *group, struct ckpt_group *g,
                              struct ckpt_setting room[SAVE_SETTINGS_MAX]);

/* ---- save_writer.c: the thread that writes one rank's files --------------------------------- */

/* Where the elements of one job are: in memory, in the swap file, or the first here and the others
 * there. */
struct save_job {
    struct zero_range ranges[2];
    size_t n_ranges;
    enum cz_dtype rounded_to; /* F32: as stored; else fp32 there, and 16 bits in the file */
};

struct save_writer {
    struct ckpt_writer *files; /* borrowed */
    const struct zero *zero;   /* borrowed */
    struct save_job *jobs;
    size_t n_jobs;
    unsigned char *bounce; /* what comes from a GPU or the swap file, or is rounded; NULL: nothing
                              is */
    pthread_t thread;
    bool has_thread;
    pthread_mutex_t mutex;
    pthread_cond_t moved;
    size_t n_done; /* jobs, in order; under the mutex */
    bool ended;    /* under the mutex */
    const struct manifest *manifest;
    struct err error; /* CZ_OK: all written and synced */
};

/* background false: writes everything before it returns. Otherwise save_writer_finish() must
 * follow. Errors: CZ_NOMEM; failures to write are in `error`. */
cz_status save_writer_start(struct save_writer *w, const struct cz_engine *e,
                            struct ckpt_writer *files, bool background);

bool save_writer_has_ended(struct save_writer *w);

/* Wait until nothing of the range is to be read any more. */
void save_writer_claim(struct save_writer *w, const struct zero_range *range);
void save_writer_settle(struct save_writer *w); /* of everything */

/* Wait for its end and release it; the result as this thread's error. Accepts zeroed. */
cz_status save_writer_finish(struct save_writer *w);

/* ---- save.c --------------------------------------------------------------------------------- */

struct save {
    char *dir, *tag, *staging; /* dir and staging are from the root */
    char *shown_dir;           /* as the caller named it */
    struct out_folder folder;  /* the staging folder */
    struct save_description description;
    struct ckpt_writer *files;
    struct save_writer writer;
    char *state_json;
    size_t state_nbytes;
    bool keep_latest;
    int64_t keep;
    char **keep_tags; /* ends with NULL; NULL: `keep` counts */
};

/* At a boundary: complete the save when all ranks have written their part. Collective while a save
 * is in work, else free. Errors: CZ_PEER, CZ_COMM; a failed save is a warning. */
cz_status engine_save_poll(struct cz_engine *e);

/* The save in work, if any, comes to its end before something else begins. Collective. */
void engine_save_end(struct cz_engine *e);

/* Wait (this rank alone) until the save in work reads the run's memory no more. */
void engine_save_settle(struct cz_engine *e);

#endif
