/* The engine: a DeepSpeed config and a model go in, training steps come out.
 *
 *   engine_initialize → per micro-batch: engine_forward, engine_backward, engine_step →
 * engine_destroy
 *
 * engine_step acts only at the accumulation boundary, (micro_steps + 1) mod gas == 0; call
 * it after every backward. All memory is planned and allocated by engine_initialize: nothing is
 * allocated after the first step. One engine per process and thread; calls are collective over
 * ranks. Every call that fails leaves a sentence in cz_last_error(). */
#ifndef CZ_ENGINE_ENGINE_H
#define CZ_ENGINE_ENGINE_H

#include "base/batch.h"
#include "base/status.h"
#include "model/model.h"

CZ_EXTERN_C_BEGIN

struct cz_engine; /* opaque */
struct comm;      /* comm/comm.h */
struct cz_plan;   /* engine/plan/plan.h */
struct ops;       /* ops/ops.h */

/* Parameter group: parameters whose name matches `name_regex` (first match wins). NAN keeps the
 * config's value. With n_groups 0 there is one group of all parameters, as DeepSpeed's plain call.
 */
struct cz_engine_group {
    const char *name_regex;
    double lr, weight_decay, beta1, beta2;
};

/* Receives what the config asks to be printed (wall_clock_breakdown, memory_breakdown, dump_state,
 * flops_profiler without a file), on rank 0: one line per call, ending in a newline. */
typedef void (*engine_print)(const char *text, void *user);

struct cz_engine_options {
    size_t size; /* sizeof(struct cz_engine_options) */
    const char *config_path; /* a file, or … */
    const char *config_json; /* … the config itself; exactly one of the two */
    const char *device;      /* "cpu" (default when NULL), "cuda" or "cuda:N" */
    struct comm *comm;       /* engine_world_create()'s, borrowed; NULL: world size 1 */
    const struct cz_engine_group *groups;
    size_t n_groups;
    bool groups_hf;      /* preset: biases and norms without weight decay */
    uint64_t seed;       /* dropout; weights' seed is the model's */
    const char *compat;  /* "0.19" (default) or "0.16"; NULL: environment CZERO_COMPAT */
    bool strict;         /* unknown config keys are errors */
    int64_t total_steps; /* for progress and "auto" schedules; 0: unknown */
    /* --auto / --set of the command line, as "path=value"; NULL-terminated arrays or NULL */
    const char *const *auto_values;
    const char *const *set_values;
    engine_print print; /* NULL: the log, at every level (LOG_ASKED) */
    void *print_user;
};

/* The plain call. On success the engine owns `model`; on failure NULL is returned and the caller
 * still does. cz_last_status(): CZ_INVALID or CZ_UNSUPPORTED (config; exit code 2), CZ_NOMEM (does
 * not fit, the sentence holds the plan's table; exit code 3), CZ_CORRUPT, CZ_IO. */
CZ_API struct cz_engine *engine_initialize(const char *config_path, struct cz_model *model);
CZ_API struct cz_engine *engine_initialize_ex(const struct cz_engine_options *options,
                                              struct cz_model *model);
CZ_API void engine_destroy(struct cz_engine *engine); /* accepts NULL */

/* One micro-batch, B ≤ the config's micro-batch, T ≤ cz_model_t_max. *loss (may be NULL: do not
 * wait for it): mean loss over this rank's micro-batch, unscaled. Each engine_forward must be
 * followed by engine_backward before the next one (CZ_INVALID): use engine_eval to look at a loss
 * only. CZ_INVALID: shape beyond the plan, token or label outside the vocabulary (names the place).
 */
CZ_API cz_status engine_forward(struct cz_engine *engine, const struct batch *batch, float *loss);

/* The same, with the fp32 logits (B,n_classes) of a classifier, dropout and all, into caller's
 * memory: for a running accuracy. CZ_UNSUPPORTED: the model's labels are tokens. */
CZ_API cz_status engine_forward_logits(struct cz_engine *engine, const struct batch *batch,
                                       float *loss, float *logits);
CZ_API cz_status engine_backward(struct cz_engine *engine);
CZ_API cz_status engine_step(struct cz_engine *engine);

/* Mean loss without dropout, gradients or any change of state. */
CZ_API cz_status engine_eval(struct cz_engine *engine, const struct batch *batch, float *loss);

/* The same, with fp32 logits (B,T,V) or (B,n_classes) into caller's memory. labels may be absent.
 */
CZ_API cz_status engine_predict(struct cz_engine *engine, const struct batch *batch, float *logits);

/* Checkpoints in DeepSpeed's format; tag NULL: "global_step{N}" / the latest. The save is durable
 * when it returns; engine/state/checkpoint.h has the background save, client state and partial
 * loads. */
CZ_API cz_status engine_save_checkpoint(struct cz_engine *engine, const char *dir, const char *tag);
CZ_API cz_status engine_load_checkpoint(struct cz_engine *engine, const char *dir, const char *tag);

/* Write the current fp32 weights (or, dtype BF16/F16, their rounding) as a Hugging Face folder. */
CZ_API cz_status engine_export_hf(struct cz_engine *engine, const char *dir, enum cz_dtype dtype);

/* What a step reports. Values as DeepSpeed's getters: lr is the one the *next* step uses. */
CZ_API double engine_get_lr(const struct cz_engine *engine); /* group 0 */
CZ_API cz_status engine_get_lrs(const struct cz_engine *engine, double *lrs, size_t n_lrs);
CZ_API void engine_set_lr(struct cz_engine *engine,
                          double lr); /* all groups, until the schedule acts */
CZ_API double
engine_get_global_grad_norm(const struct cz_engine *engine); /* unscaled; NAN: none yet;
                                                             infinity: step skipped */
CZ_API double
engine_get_loss_scale(const struct cz_engine *engine); /* after the step; 1 without fp16 */
CZ_API int64_t
engine_get_global_steps(const struct cz_engine *engine); /* boundaries, skipped included */
CZ_API int64_t engine_get_global_samples(const struct cz_engine *engine);
CZ_API int64_t engine_get_skipped_steps(const struct cz_engine *engine);
CZ_API int64_t engine_get_micro_steps(const struct cz_engine *engine);
CZ_API bool engine_was_step_applied(const struct cz_engine *engine);
CZ_API bool engine_is_gradient_accumulation_boundary(const struct cz_engine *engine);
CZ_API double
engine_get_boundary_loss(const struct cz_engine *engine); /* mean over micro steps and
                                                          ranks of the last boundary */
CZ_API int64_t engine_get_micro_batch(const struct cz_engine *engine);
CZ_API int64_t engine_get_accumulation(const struct cz_engine *engine);
CZ_API int64_t engine_get_train_batch(const struct cz_engine *engine);
CZ_API int64_t engine_get_world_size(const struct cz_engine *engine);
CZ_API int64_t engine_get_rank(const struct cz_engine *engine);

/* Payload that this rank sent to the others since the boundary before the last: gradients or signs,
 * parameters, and the few bytes by which ranks agree. */
CZ_API int64_t engine_get_sent_bytes(const struct cz_engine *engine);

/* What this rank moved between memory and its swap file during the last optimizer step, its
 * micro-batches included. All zero without a swap file. */
struct cz_swap_traffic {
    double read_nbytes, written_nbytes;
    double waited_s; /* the run stood still for the disk */
    double step_s;   /* from the end of the step before */
};
CZ_API struct cz_swap_traffic engine_get_swap_traffic(const struct cz_engine *engine);

/* For a program that a signal is about to end: remove the swap files of all engines of this
 * process, and the folders made for them, as engine_destroy() would. Any thread, at any time, but
 * not a signal handler. */
CZ_API void engine_remove_swap_files(void);
CZ_API const struct cz_plan *engine_get_plan(const struct cz_engine *engine);
CZ_API const struct cz_model *engine_get_model(const struct cz_engine *engine);

/* The kernels that layers and the optimizer call, and through them the device. Who wants to watch
 * a step may put calls of his own into their slots that go on to the old ones
 * (bench/gpu/step_cuda.c).
 */
CZ_API struct ops *engine_get_ops(struct cz_engine *engine);

/* A whole tensor by parameter name (or alias), gathered, fp32. what: "weight" (the master), "grad"
 * (accumulated so far, loss scale taken out; between backward and the boundary's step), or an
 * optimizer state by its name ("exp_avg"). numel must equal the parameter's. A weight that is set
 * is rounded to the parameter's dtype as well. CZ_NOTFOUND: no such parameter or state. CZ_INVALID:
 * another numel; between engine_forward and engine_backward, setting anything and reading
 * gradients. */
CZ_API cz_status engine_param_get(struct cz_engine *engine, const char *name, const char *what,
                                  float *dst, size_t numel);
CZ_API cz_status engine_param_set(struct cz_engine *engine, const char *name, const char *what,
                                  const float *src, size_t numel);

/* ---- several ranks ----------------------------------------------------------------------------
 * One process a rank, started by `czero launch -n N -- ./program`, `mpirun -n N ./program` or srun;
 * a program that was started plainly is a world of one.
 *
 *   engine_world_create → engine_options.comm → … → engine_destroy → engine_world_destroy
 */

/* Join the ranks that this process was started with; collective. Call it first of all: it decides
 * the number of threads, the same on every rank, from the cores that ranks share. MPI is
 * initialised for several ranks without `czero launch` only. *out is released by
 * engine_world_destroy(); NULL on error. CZ_COMM, CZ_PEER (one of them failed), CZ_NOMEM. */
CZ_API cz_status engine_world_create(struct comm **out);
CZ_API void engine_world_destroy(struct comm *world); /* accepts NULL */

CZ_API int engine_world_rank(const struct comm *world); /* NULL: 0 */
CZ_API int engine_world_size(const struct comm *world); /* NULL: 1 */

/* Turn a local result into everyone's; collective. CZ_OK when all ranks pass CZ_OK; otherwise the
 * ranks that failed keep their own error and the others get CZ_PEER with the sentence of the lowest
 * one. *speaks (all ranks pass it, or none): whether no lower rank has the same sentence to say,
 * figures aside. */
CZ_API cz_status engine_world_agree(struct comm *world, cz_status mine, bool *speaks);

/* This rank gives up: others that wait for it get CZ_PEER with its reason instead of hanging. For a
 * failure that the others do not know of; cz_last_error() stays. Accepts NULL. */
CZ_API void engine_world_leave(struct comm *world, const char *reason);

/* For the program's SIGTERM handler, so that a rank whose peers are dead gives up waiting. */
CZ_API void engine_world_interrupt(void);

/* All ranks have agreed since that it was a request to stop: they wait for each other as patiently
 * as before, so that a last save may take its time. */
CZ_API void engine_world_interrupt_over(void);

/* The rank this process was started as, by its environment, without joining a world; 0 if alone.
 * For what one rank does for all. */
CZ_API int engine_world_started_as(void);

/* sums[i] = Σ over ranks, in rank order, of their mine[i]; the same bits on every rank. Collective,
 * allocates nothing. */
CZ_API cz_status engine_gather_metrics(struct cz_engine *engine, const double *mine, size_t n,
                                       double *sums);

CZ_EXTERN_C_END
#endif
