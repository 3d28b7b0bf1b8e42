/* DeepSpeed's files of one rank, written from slices of its state, and our own one of errors.
 *
 * ckpt_writer_create() lays out the rank's model_states.pt and optim_states.pt and the 1-bit
 * optimizers' file (whichever it has to write) → ckpt_writer_job()s are done in order, by any
 * thread → ckpt_writer_finish() syncs → ckpt_writer_destroy(). The tensors' bytes come from the
 * caller, job by job: nothing is gathered or copied, extra memory is the pickles.
 *
 * Files, keys, classes and their order: docs/deepspeed-behaviour.md, "Checkpoints" (as 0.19.8
 * writes them).
 */
#ifndef CZ_CHECKPOINT_WRITE_DS_WRITE_H
#define CZ_CHECKPOINT_WRITE_DS_WRITE_H

#include "checkpoint/read/names.h"
#include "checkpoint/store/manifest.h"
#include "formats/pickle/pickle.h"
#include "layout/flat.h"
#include "layout/shard.h"

CZ_EXTERN_C_BEGIN

#define CKPT_DS_VERSION "0.19.8" /* whose keys we write */

/* A hyper-parameter of a param group, under torch's name. */
struct ckpt_setting {
    const char *name; /* "lr", "betas", "eps", "weight_decay", "amsgrad", … */
    enum { CKPT_NUMBER = 0, CKPT_INT, CKPT_BOOL, CKPT_PAIR, CKPT_PAIR_LIST, CKPT_NONE } kind;
    double value[2]; /* PAIR: both, as a tuple (torch.optim), PAIR_LIST as a list (DeepSpeed's CPU
                        optimizers); else the first */
};

struct ckpt_group {
    const struct ckpt_setting *settings;
    size_t n_settings;
    int64_t step; /* updates applied; states are written when > 0, as torch makes them lazily */
    const char *states[CKPT_STATES_MAX]; /* names, in order: "exp_avg", "exp_avg_sq" */
    size_t n_states;
    bool step_is_tensor; /* torch.optim: a 0-d float32 tensor; DeepSpeed's optimizers: an int */
    bool no_step;        /* its states hold no step: SGD */
    const struct flat_group *flat;   /* stages 0-2 */
    const struct shard_group *shard; /* stage 3 */
};

/* What the 1-bit optimizers compress together: parameters one after the other, then padding. */
struct ckpt_segment {
    const size_t *param_idx;
    size_t n_params;
    size_t numel, numel_padded; /* a multiple of the world size; padding has errors, too */
};

struct ckpt_onebit_tensor { /* OneBitLamb's values of one */
    double lamb_coeff_freeze, last_factor, scaling_coeff;
};

/* What they keep beside their states, under the names of DeepSpeed's state keys. */
struct ckpt_onebit {
    const char *optimizer; /* the config's name: "OneBitAdam" */
    bool has_intervals;    /* ZeroOneAdam's counters: */
    int64_t var_interval, var_counter, local_step_interval, local_step_counter;
    const double *lrs;                        /* (n_groups) with has_intervals */
    const struct ckpt_onebit_tensor *tensors; /* (n_params) OneBitLamb; NULL: another */
    bool scaled;                              /* its tensors have their scaling_coeff */
    const struct ckpt_segment *segments; /* 0: there are no errors to save, nor a file per rank */
    size_t n_segments;
    bool moves_alone; /* exp_avg and momentum_accumulator are each rank's own */
};

struct ckpt_scaler { /* LossScaler, or DynamicLossScaler */
    bool dynamic, consecutive_hysteresis;
    double scale, factor, min_scale;
    int64_t iter, last_overflow_iter, window, delayed_shift, hysteresis;
};

/* Whose elements a job writes. */
enum ckpt_source {
    CKPT_FROM_PARAM = 0, /* group's parameters in the model's dtype: element 0 is the first of the
                            whole flat buffer (stages 0-2, rank 0 only) */
    CKPT_FROM_FROZEN,    /* of parameter `param_idx`: whole, at stage 3 this rank's chunk */
    CKPT_FROM_MASTER,    /* group's fp32 masters: element 0 is the first of this rank's partition */
    CKPT_FROM_STATE,     /* the same of state `state_idx` */

    /* For the file of this rank, under the 1-bit optimizers: */
    CKPT_FROM_WORKER_ERROR, /* of segment `segment_idx`: numel_padded elements */
    CKPT_FROM_SERVER_ERROR, /* the same of the chunk that this rank serves */
    CKPT_FROM_MOMENTUM,     /* parameter `param_idx`, whole */
    CKPT_FROM_MOVES         /* its momentum_accumulator, whole */
};

struct ckpt_job {
    enum ckpt_source source;
    size_t group, state_idx, param_idx, segment_idx;
    size_t off, numel; /* elements in the source: at most CKPT_JOB_NUMEL */
    enum cz_dtype dtype;
};

#define CKPT_JOB_NUMEL ((size_t)1 << 20)

struct out_folder;
struct ckpt_write_options {
    const char *dir; /* existing folder to write into (the staging folder of a save) */
    const struct out_folder *folder; /* the same, open (formats/output.h); NULL: a user's folder */
    const struct param_table *table;
    const size_t *group_of; /* (n_params) n_groups for frozen ones */
    const struct ckpt_group *groups;
    size_t n_groups;
    int stage, rank, world_size;
    enum cz_dtype dtype;       /* of parameters; BF16 prefixes optim files */
    enum cz_dtype state_dtype; /* F32 */
    bool fp16;                 /* the config's fp16 section is on: the scaler counts */
    bool fused; /* stage 0, 16 bit: as DeepSpeed wraps FusedAdam (Adam and AdamW without
                   torch_adam): masters and states flat per group; else per parameter */
    enum cz_dtype master_dtype; /* F32, or dtype: 16-bit masters */
    bool exclude_frozen;        /* exclude_frozen_parameters */
    double clip_grad;
    bool overflow; /* the last boundary was skipped */
    struct ckpt_scaler scaler;
    int64_t global_steps, global_samples, skipped_steps;
    bool has_scheduler;
    int64_t last_batch_iteration;
    /* The pairs of `lr_scheduler` of a schedule that is torch's; NULL: one of DeepSpeed's, whose
     * state is last_batch_iteration */
    void (*put_schedule)(struct pickle_writer *p, const void *schedule);
    const void *schedule;
    const struct ckpt_onebit *onebit; /* NULL: another optimizer */
    const char *ds_config_json;       /* becomes the dict `ds_config` */
    const char *client_state_json;    /* an object merged in last, as DeepSpeed does; NULL: none.
                                         CZ_INVALID when it is not an object, or holds a key of
                                         ckpt_is_own_key() */
    const void *client_state_pickle;  /* the same as a pickle of a dictionary, whose tensors are
                                         calls (struct pickle_part); NULL: none. One of the two */
    size_t client_state_nbytes;
};

struct ckpt_writer;

/* The client state alone, before a folder is made for it: CZ_INVALID, CZ_NOMEM. */
cz_status ckpt_client_check(const struct ckpt_write_options *options);

/* Everything in options is borrowed until destroy. Errors: CZ_INVALID, CZ_IO, CZ_NOMEM. A rank that
 * has nothing to write (stage 0, rank > 0, no errors) gets a writer without jobs. */
cz_status ckpt_writer_create(const struct ckpt_write_options *options, struct ckpt_writer **out);

/* What has to be written, in the order to do it: errors, which an exchange changes first, then
 * parameters and frozen ones, then master and states tile by tile, so that the part of a partition
 * that an optimizer sweep updates first is free first. */
size_t ckpt_writer_n_jobs(const struct ckpt_writer *w);
const struct ckpt_job *ckpt_writer_job(const struct ckpt_writer *w, size_t job_idx);

/* Write one job's elements from `src` (job->numel of job->dtype). Threads: different jobs may be
 * written by different threads. Errors: CZ_INVALID, CZ_IO. */
cz_status ckpt_writer_put(struct ckpt_writer *w, size_t job_idx, const void *src);

/* Sync the files and give their manifest entries (owned by the writer until destroy). Errors:
 * CZ_IO, CZ_INVALID (a job was not done). */
cz_status ckpt_writer_finish(struct ckpt_writer *w, const struct manifest **out);
void ckpt_writer_destroy(struct ckpt_writer *w); /* accepts NULL; before the finish it
                                                           removes what it wrote */

CZ_EXTERN_C_END
#endif
