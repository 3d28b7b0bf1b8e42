/* The engine: a DeepSpeed config and a model in, training steps out.
 *
 *   engine_initialize → per step: engine_train_batch; or, per micro-batch: engine_forward,
 *     engine_backward, engine_step
 *     → engine_save_checkpoint, engine_export_hf → engine_destroy
 *
 * engine_step updates weights only at the gradient accumulation boundary, where
 * (micro_steps + 1) mod gradient_accumulation_steps is 0; call it after every backward.
 * engine_initialize plans and allocates all memory: nothing is allocated after the first step.
 *
 * Threads: one thread uses an engine at a time; the engine has an OpenMP pool and, for offload and
 * saves, threads of its own. Several engines may exist in one process, one per thread.
 * Ranks: unless stated otherwise a call is collective: every rank makes it with the same values.
 * Errors: cz_status or NULL, the sentence in cz_last_error(). After CZ_PEER or CZ_COMM the other
 * ranks are gone: save nothing, destroy the engine. */
#ifndef CZERO_ENGINE_H
#define CZERO_ENGINE_H

#include <czero/batch.h>
#include <czero/data.h>
#include <czero/model.h>

CZ_EXTERN_C_BEGIN

struct cz_engine; /* opaque */
struct cz_world;  /* opaque: the ranks of a run */
struct cz_plan;   /* opaque: czero/plan.h */

/* ---- creation -------------------------------------------------------------------------------- */

/* A parameter group: the parameters whose name matches `name_regex` (as in cz_model_freeze()); the
 * first matching group wins. NAN keeps the config's value. n_groups 0: one group of all parameters,
 * as in DeepSpeed's plain call. Parameters that no group matches form one more group, with the
 * config's values. */
struct cz_engine_group {
    size_t size; /* sizeof(struct cz_engine_group), in every element */
    const char *name_regex;
    double lr, weight_decay, beta1, beta2;
};

/* Receives what the config asks to be printed (wall_clock_breakdown, memory_breakdown, dump_state,
 * flops_profiler without a file), on rank 0: one line per call, ending in a newline. */
typedef void (*cz_engine_print)(const char *text, void *user);

struct cz_engine_options {
    size_t size;             /* sizeof(struct cz_engine_options) */
    const char *config_path; /* a file, or … */
    const char *config_json; /* … the config itself; exactly one of the two */
    const char *device;      /* "cpu" (NULL), "cuda" or "cuda:N" */
    struct cz_world *world;  /* of engine_world_create(), borrowed; NULL: one rank */
    const struct cz_engine_group *groups;
    size_t n_groups;
    bool groups_hf;      /* preset: biases and norms without weight decay */
    uint64_t seed;       /* of dropout; cz_model_init_from() has the weights' */
    const char *compat;  /* "0.19" (default) or "0.16": DeepSpeed's version whose rules apply;
                            NULL: environment variable CZERO_COMPAT */
    bool strict;         /* unknown config keys are errors, and so is a config without an optimizer
                            when option_values has none either */
    int64_t total_steps; /* for progress and schedules that the config leaves open; 0: unknown */
    /* Values for the config's "auto", and values that replace others, as "path=value"
     * ("optimizer.params.lr=1e-4"); NULL-terminated arrays or NULL. */
    const char *const *auto_values;
    const char *const *set_values;
    cz_engine_print print; /* NULL: to the log, at level CZ_LOG_ASKED */
    void *print_user;
    /* What the program's own options ask for, in the same form. They fill "auto" and
     * what the config leaves out ("optimizer.type=Lion", "scheduler.type=cosine",
     * "warmup_ratio=0.1"); a config that says something else is CZ_INVALID, with both in the
     * sentence. */
    const char *const *option_values;
    /* The program trains with engine_train_batch() only, so all micro-batches of a step may go
     * through a layer before the next layer where that saves traffic: czero.accumulation_order.
     * False: only where the config asks for it. */
    bool trains_batches;
};

/* Create an engine from a config file. What the config leaves to a trainer ("auto", the optimizer,
 * its schedule) is filled in as Hugging Face's Trainer does, and one log line says with what:
 * docs/compatibility.md, "Configs of trainers". On success the engine owns `model`; on failure NULL
 * is returned and the caller keeps it. cz_last_status(): CZ_INVALID or CZ_UNSUPPORTED (config),
 * CZ_NOMEM (does not fit; the sentence holds the plan's table), CZ_CORRUPT, CZ_IO, CZ_CUDA. */
CZ_API struct cz_engine *engine_initialize(const char *config_path, struct cz_model *model);
CZ_API struct cz_engine *engine_initialize_ex(const struct cz_engine_options *options,
                                              struct cz_model *model);
CZ_API void engine_destroy(struct cz_engine *engine); /* accepts NULL; waits for a running save */

/* ---- training -------------------------------------------------------------------------------- */

/* One micro-batch, B ≤ the config's micro-batch, T ≤ cz_model_t_max(). *loss: mean loss over this
 * rank's micro-batch, unscaled; NULL: do not wait for it. engine_eval only computes a loss.
 * A forward without engine_backward is dropped by the next one, with a warning. If earlier
 * micro-batches of its step have gradients, these are dropped as well. The same holds for the first
 * engine_backward without engine_step; the second is CZ_INVALID.
 * CZ_INVALID: a shape beyond the plan; a token or label outside the vocabulary (names its place).
 */
CZ_API cz_status engine_forward(struct cz_engine *engine, const struct cz_batch *batch,
                                float *loss);

/* The same, with the fp32 logits of a classifier, dropout applied, into the caller's memory, for a
 * running accuracy: (B,n_classes) of rows, (B,T,n_classes) of tokens. CZ_UNSUPPORTED: a language
 * model. */
CZ_API cz_status engine_forward_logits(struct cz_engine *engine, const struct cz_batch *batch,
                                       float *loss, float *logits);

/* Gradients of the last forward's loss, added to those of the step's earlier micro-batches. After
 * an error the step is forgotten, as by engine_discard_step(). Errors: CZ_INVALID (no forward
 * before it), CZ_COMM, CZ_PEER, CZ_IO (swap file), CZ_CUDA. */
CZ_API cz_status engine_backward(struct cz_engine *engine);

/* Count a micro-step; at the boundary reduce, clip and apply the gradients. A step that an overflow
 * skips is CZ_OK: see engine_was_step_applied(). CZ_DIVERGED: the loss scale cannot shrink further,
 * or czero.max_consecutive_skips (50) steps in a row had gradients that are not finite, as weights
 * that are NaN give them. */
CZ_API cz_status engine_step(struct cz_engine *engine);

/* Forget the step that has begun: a forward that waits for its backward, and the gradients and
 * micro-steps of its earlier micro-batches. Without one nothing changes. CZ_COMM, CZ_PEER, CZ_IO.
 */
CZ_API cz_status engine_discard_step(struct cz_engine *engine);

/* Gives the next micro-batch of this rank: fills *batch (zeroed, its size set) with arrays that
 * stay unchanged until the call after this one. Any status but CZ_OK, such as CZ_NOTFOUND at the
 * end of the data, ends engine_train_batch() with it. */
typedef cz_status (*cz_next_batch)(void *user, struct cz_batch *batch);

/* A whole step, DeepSpeed's train_batch: gradient_accumulation_steps micro-batches forward and
 * backward, then the update. *loss, unless NULL: their mean loss over all ranks. The result has the
 * bits of engine_forward, engine_backward and engine_step for each of them; at stages 2 and 3 on
 * several ranks, those of stages 0 and 1 where the plan goes by layer (docs/zero.md). Micro-batches
 * may differ in shape.
 * When `next` or a micro-batch fails on a rank, no rank makes the step: that one returns the error,
 * the others CZ_PEER. Micro-batches already taken are lost; otherwise everything is as before.
 * CZ_INVALID: some but not all micro-batches of a step were run by engine_forward. A forward
 * without engine_backward is dropped, as by engine_forward. Errors otherwise: those of the three.
 */
CZ_API cz_status engine_train_batch(struct cz_engine *engine, cz_next_batch next, void *user,
                                    float *loss);

/* The same, with the fp32 logits of a classifier into the caller's memory: those of micro-batch k
 * from element k·B·n_classes (of tokens k·B·T·n_classes) on, with the B and T that the engine
 * planned for. CZ_UNSUPPORTED: a language model. */
CZ_API cz_status engine_train_batch_logits(struct cz_engine *engine, cz_next_batch next, void *user,
                                           float *loss, float *logits);

/* A loss of the program's own. The engine calls it once for each training micro-batch, in the
 * thread that trains, before the gradients of that micro-batch are made. Arrays are borrowed until
 * it returns; gradients begin as zeros. */
struct cz_loss_call {
    size_t size;                  /* sizeof(struct cz_loss_call) in the library */
    const struct cz_batch *batch; /* the micro-batch, as it was given */
    int64_t n, k;
    const float *values; /* (n,k). A language model: log p(label) of each position, n = B·T, k = 1,
                            0 where the label is CZ_IGNORE_LABEL. A classifier: its logits, n = B
                            rows (of tokens B·T), k = n_classes */
    float *gradients; /* (n,k): d loss / d value. Those of positions without a label are not used */
    float loss;       /* what engine_forward() gives, and the boundary's mean is taken of */
};
typedef cz_status (*cz_loss)(void *user, struct cz_loss_call *call);

/* Train with `loss` in the place of the model's own from the next micro-batch on; NULL: the model's
 * own again. Logits of a whole batch never exist: the gradient of the logits z of a position with
 * label y is gradients·(onehot(y) − softmax(z)), and their head is computed once more. A
 * language model's batches need labels, a classifier's do not. Evaluations keep the model's own
 * loss. The divisor and weights of a batch are for `loss` to heed. A status other than CZ_OK ends
 * the training call with it (cz_error() sets the sentence). `loss` must not call this engine.
 * Collective. CZ_INVALID: a micro-batch has begun; CZ_UNSUPPORTED: a loss layer of the program's
 * own. */
CZ_API cz_status engine_set_loss(struct cz_engine *engine, cz_loss loss, void *user);

/* Mean loss without dropout, gradients or any change of state. This and the calls below drop a
 * forward that waits for its backward, with a warning; CZ_INVALID if its step has gradients. */
CZ_API cz_status engine_eval(struct cz_engine *engine, const struct cz_batch *batch, float *loss);

/* The same, and how many labels of the batch have the largest logit of their position: with the
 * number of labels, the accuracy of tokens. CZ_UNSUPPORTED: the model is no causal language model.
 */
CZ_API cz_status engine_eval_tokens(struct cz_engine *engine, const struct cz_batch *batch,
                                    float *loss, int64_t *n_right);

/* log p(label) of each position of a language model, fp32 (B,T), 0 where the label is
 * CZ_IGNORE_LABEL; and their sums over each row, (B). Loss weights have no influence. What
 * preference training and the ranking of answers compare. CZ_UNSUPPORTED: a classifier (use
 * engine_predict()), or a loss layer of the program's own. */
CZ_API cz_status engine_eval_log_probs(struct cz_engine *engine, const struct cz_batch *batch,
                                       float *log_probs);
CZ_API cz_status engine_eval_rows(struct cz_engine *engine, const struct cz_batch *batch,
                                  double *sums);

/* Whether the calls above and below that evaluate compute the model's adapter. Off, they see the
 * model that the adapter began with: the reference of preference training. Training needs it on
 * (CZ_INVALID). On at first. CZ_UNSUPPORTED: no adapter, or more than its low-rank matrices is
 * trained (modules_to_save). */
CZ_API cz_status engine_use_adapter(struct cz_engine *engine, bool on);

/* The fp32 logits (B,T,V), (B,n_classes) or (B,T,n_classes) into the caller's memory; labels may be
 * absent. */
CZ_API cz_status engine_predict(struct cz_engine *engine, const struct cz_batch *batch,
                                float *logits);

/* The last hidden state: fp32 (B,T,C) into the caller's memory, C being cz_model_hidden_size(), as
 * cz_infer_hidden() gives it; labels may be absent. */
CZ_API cz_status engine_hidden(struct cz_engine *engine, const struct cz_batch *batch,
                               float *hidden);

/* ---- state of the run: not collective, never fails ----------------------------------------------
 * Values are those of DeepSpeed's getters: lr is the one that the next step uses. */

CZ_API double engine_get_lr(const struct cz_engine *engine); /* of group 0 */
CZ_API cz_status engine_get_lrs(const struct cz_engine *engine, double *lrs, size_t n_lrs);

/* Set the rate of all groups until the schedule's next step. CZ_INVALID, and nothing changes:
 * negative or not finite. */
CZ_API cz_status engine_set_lr(struct cz_engine *engine, double lr);

/* Global gradient norm of the last boundary, unscaled, before clipping. NAN: none yet; infinity:
 * that step was skipped. */
CZ_API double engine_get_global_grad_norm(const struct cz_engine *engine);
CZ_API double engine_get_loss_scale(const struct cz_engine *engine); /* 1 without fp16 */

/* Boundaries so far, skipped steps included. */
CZ_API int64_t engine_get_global_steps(const struct cz_engine *engine);
CZ_API int64_t engine_get_global_samples(const struct cz_engine *engine);
CZ_API int64_t engine_get_skipped_steps(const struct cz_engine *engine);
CZ_API int64_t engine_get_micro_steps(const struct cz_engine *engine);
CZ_API bool engine_was_step_applied(const struct cz_engine *engine);

/* As DeepSpeed: whether the coming engine_step() is the one that updates weights. Ask it before
 * that call. */
CZ_API bool engine_is_gradient_accumulation_boundary(const struct cz_engine *engine);

/* No step has begun: after the engine_step() that ended one, and before the first micro-batch.
 * Programs that report or save every few steps ask it after engine_step(). */
CZ_API bool engine_is_between_steps(const struct cz_engine *engine);

/* Mean loss over the micro-steps and ranks of the last boundary; NAN before the first. */
CZ_API double engine_get_boundary_loss(const struct cz_engine *engine);
CZ_API int64_t engine_get_micro_batch(const struct cz_engine *engine);
CZ_API int64_t engine_get_accumulation(const struct cz_engine *engine);
CZ_API int64_t engine_get_train_batch(const struct cz_engine *engine);
CZ_API int64_t engine_get_world_size(const struct cz_engine *engine);
CZ_API int64_t engine_get_rank(const struct cz_engine *engine);

/* Payload bytes that this rank sent to the others during the last step: gradients or signs,
 * parameters, and the few bytes by which ranks agree. */
CZ_API int64_t engine_get_sent_bytes(const struct cz_engine *engine);

/* What this rank moved between memory and its swap file during the last optimizer step, its
 * micro-batches included. All zero without a swap file. */
struct cz_swap_traffic {
    size_t size; /* sizeof(struct cz_swap_traffic), set by the caller */
    double read_nbytes, written_nbytes;
    double waited_s; /* the run waited for the disk */
    double step_s;   /* from the end of the previous step */
};
CZ_API cz_status engine_get_swap_traffic(const struct cz_engine *engine,
                                         struct cz_swap_traffic *out);

/* Owned by the engine. The weights of this model are still those of its source: engine_export_hf()
 * writes the trained ones, for cz_generate() and cz_infer_create(). */
CZ_API const struct cz_plan *engine_get_plan(const struct cz_engine *engine);
CZ_API const struct cz_model *engine_get_model(const struct cz_engine *engine);

/* ---- single tensors -------------------------------------------------------------------------- */

/* A whole tensor by parameter name (or alias), gathered from all ranks, fp32. what: "weight" (the
 * master), "grad" (accumulated so far: of each micro-batch divided by the accumulation steps,
 * without the loss scale, not clipped; between backward and the boundary's step), or an optimizer
 * state by its name ("exp_avg"). numel must be the parameter's. Setting a weight also sets its
 * 16-bit copy. Values that are not finite are a warning. CZ_NOTFOUND: no such parameter or state.
 * CZ_INVALID: another numel; between engine_forward and engine_backward, reading gradients. Setting
 * there drops the forward, as engine_eval() does. */
CZ_API cz_status engine_param_get(struct cz_engine *engine, const char *name, const char *what,
                                  float *dst, size_t numel);
CZ_API cz_status engine_param_set(struct cz_engine *engine, const char *name, const char *what,
                                  const float *src, size_t numel);

/* ---- checkpoints -------------------------------------------------------------------------------
 * In DeepSpeed's format, so that DeepSpeed loads what is saved here and the other way round, at any
 * stage and world size. A save happens between steps; inside an accumulation window it is
 * CZ_INVALID. A save or export drops a forward that waits, as engine_eval() does. */

/* Save to dir/TAG; durable on return. tag NULL: "global_step{N}". */
CZ_API cz_status engine_save_checkpoint(struct cz_engine *engine, const char *dir, const char *tag);

/* Resume from dir/TAG with default options. tag NULL: the one named by dir/latest. */
CZ_API cz_status engine_load_checkpoint(struct cz_engine *engine, const char *dir, const char *tag);

struct cz_save_options {
    size_t size;                         /* sizeof(struct cz_save_options) */
    const char *tag;                     /* NULL: "global_step{N}" */
    const struct cz_data_cursor *cursor; /* the place in the data; NULL: not saved */
    const char *client_state_json; /* a JSON object that is merged into DeepSpeed's dictionary;
                                      NULL: none */
    bool exclude_frozen;           /* DeepSpeed's exclude_frozen_parameters */
    bool keep_latest;              /* save_latest=False: `latest` does not change */
    int64_t keep;                  /* > 0: afterwards remove all but the newest `keep` tags
                                      that czero wrote */
    /* For programs in Python, instead of JSON: the same as a pickle (protocol 2) of a dictionary,
     * in which a tensor is the call czero.client_state.tensor(dtype, shape, elements). NULL: none.
     * Nothing in it is executed. */
    const void *client_state_pickle;
    size_t client_state_nbytes;
    /* Instead of `keep`: afterwards remove all tags that czero wrote there, except these and the
     * one that `latest` names. Ends with NULL; NULL: see `keep`. */
    const char *const *keep_tags;
    bool weights_only; /* no optimizer states: it loads with module_only or no_optimizer_states */
};

/* Start to write a checkpoint into dir/TAG. A thread of the engine writes the files straight from
 * the run's memory, without a copy: the optimizer waits before it changes what is not yet written.
 * engine_step() checks at boundaries whether all ranks have finished; then the tag gets its name,
 * and `latest` is changed last. Until then nothing under dir/TAG has changed. A save that fails
 * later is a warning, and an error of engine_save_wait(). There is one save at a time: a second one
 * waits for the first. With "czero": {"async_save": false} it is complete on return.
 * Errors: CZ_INVALID (inside an accumulation window; a bad tag; ranks' tags differ under
 * checkpoint.tag_validation "Fail"), CZ_IO (the folder cannot be written, disk full), CZ_PEER. The
 * run can continue after any of them but CZ_PEER and CZ_COMM. options may be NULL. */
CZ_API cz_status engine_save_begin(struct cz_engine *engine, const char *dir,
                                   const struct cz_save_options *options);

/* Wait until the running save, if any, is durable, or has failed: its error. */
CZ_API cz_status engine_save_wait(struct cz_engine *engine);

/* engine_save_begin() and engine_save_wait(). */
CZ_API cz_status engine_save_checkpoint_ex(struct cz_engine *engine, const char *dir,
                                           const struct cz_save_options *options);

/* The weights in the model's dtype as one file dir/filename (NULL: "pytorch_model.bin"), tied names
 * included, for torch.load. *saved false: stage 3 without
 * zero_optimization.stage3_gather_16bit_weights_on_model_save; no file is written then. */
CZ_API cz_status engine_save_16bit_model(struct cz_engine *engine, const char *dir,
                                         const char *filename, bool exclude_frozen, bool *saved);

/* Write the current fp32 weights, or their rounding to CZ_DTYPE_BF16 or CZ_DTYPE_F16, as a Hugging
 * Face folder that transformers loads; of a model with an adapter the adapter alone, as a folder
 * that PEFT loads. Existing files of the same names are replaced when the new ones are complete.
 * Errors: CZ_IO, CZ_UNSUPPORTED (a model of your own layers). */
CZ_API cz_status engine_export_hf(struct cz_engine *engine, const char *dir, enum cz_dtype dtype);

struct cz_load_options {
    size_t size;               /* sizeof(struct cz_load_options) */
    const char *tag;           /* NULL: latest */
    bool lenient;              /* load_module_strict=False: missing parameters keep their weights,
                                  unknown ones are ignored */
    bool no_optimizer_states;  /* load_optimizer_states=False */
    bool no_lr_scheduler;      /* load_lr_scheduler_states=False */
    bool module_only;          /* load_module_only: weights and nothing else of the run */
    bool no_verify;            /* do not compare checksums first */
    bool pickles_client_state; /* give cz_load_result.client_state_pickle */
    /* Substitutions for the checkpoint's names, applied in order: "s/REGEX/REPLACEMENT/", with
     * POSIX extended expressions, \1 to \9 and &, any delimiter, and g at the end for all matches.
     * Ends with NULL; NULL: none. Prefixes of wrappers ("module.") are taken off without them. */
    const char *const *renames;
};

struct cz_load_result {
    size_t size;             /* sizeof(struct cz_load_result), set by the caller */
    char *tag_dir;           /* what was loaded */
    char *client_state_json; /* the dictionary's keys that are not the engine's own, as an object;
                                values without a JSON form (tensors, objects) are left out */
    size_t n_restored, n_tensors; /* of the model's tensors */
    bool has_states;              /* the optimizer's states were restored */
    bool has_cursor;
    struct cz_data_cursor cursor;
    /* The same dictionary as a pickle, for programs in Python. Tensors are such calls (None for
     * elements beyond 1 GiB in all); bare storages and attributes of classes are left out. NULL:
     * not asked for. */
    void *client_state_pickle;
    size_t client_state_nbytes;
};

/* Weights, optimizer states, counters, loss scale, schedule and dropout's seed, from a checkpoint
 * of czero or of DeepSpeed (0.16, 0.19), of any stage, precision and world size. Weights come from
 * the saved fp32 masters where there are any. Checksums are compared first (a flipped bit is
 * CZ_CORRUPT). Errors: CZ_NOTFOUND (no such folder, tag or `latest`: nothing to load), CZ_INVALID
 * (a missing parameter, another shape), CZ_CORRUPT, CZ_UNSUPPORTED, CZ_IO. States of another
 * optimizer are dropped with a warning. After an error while tensors are being read, weights are a
 * mixture: load again or stop. A step that has begun is forgotten. options and result may be NULL;
 * cz_load_result_free() releases what the result holds. */
CZ_API cz_status engine_load_checkpoint_ex(struct cz_engine *engine, const char *dir,
                                           const struct cz_load_options *options,
                                           struct cz_load_result *result);
CZ_API void cz_load_result_free(struct cz_load_result *result); /* accepts zeroed */

/* The seed and place of a saved run, readable before an engine exists: for programs that open data
 * and model with them. Not collective. CZ_NOTFOUND: the checkpoint has none (DeepSpeed's). tag
 * NULL: latest. */
struct cz_saved_run {
    size_t size; /* sizeof(struct cz_saved_run), set by the caller */
    uint64_t seed;
    bool has_cursor;
    struct cz_data_cursor cursor;
    int64_t global_steps;
};
CZ_API cz_status cz_saved_run_read(const char *dir, const char *tag, struct cz_saved_run *out);

/* ---- several ranks -----------------------------------------------------------------------------
 * One process per rank, started by `czero launch -n N -- ./program`, `mpirun -n N ./program` or
 * srun; a program that was started plainly is a world of one rank.
 *
 *   engine_world_create → cz_engine_options.world → … → engine_destroy → engine_world_destroy */

/* Join the ranks that this process was started with; collective. Call it before any other call: it
 * decides the number of threads, the same on every rank, from the cores that ranks share. MPI is
 * initialised only for several ranks that `czero launch` did not start. *out is released by
 * engine_world_destroy(); NULL on error. CZ_COMM, CZ_PEER (one of them failed), CZ_NOMEM. */
CZ_API cz_status engine_world_create(struct cz_world **out);
CZ_API void engine_world_destroy(struct cz_world *world); /* accepts NULL */

CZ_API int engine_world_rank(const struct cz_world *world); /* NULL: 0 */
CZ_API int engine_world_size(const struct cz_world *world); /* NULL: 1 */

/* Combine the local results of all ranks; collective. CZ_OK when all ranks pass CZ_OK; otherwise
 * the failed ranks keep their own error and the others get CZ_PEER with the sentence of the lowest
 * failed one. *reports (all ranks pass it, or none): false if a lower rank has the same sentence to
 * report, numbers aside; rank 0 alone repeats that of another rank. */
CZ_API cz_status engine_world_agree(struct cz_world *world, cz_status mine, bool *reports);

/* All ranks must pass the same text (lines, such as "rows 100\n", of what each has read).
 * Otherwise CZ_INVALID on every rank: the message names `what`, each rank that differs from rank 0,
 * and the first line in which it does. Collective; NULL is a world of one. CZ_PEER. */
CZ_API cz_status engine_world_same(struct cz_world *world, const char *what, const char *text);

/* This rank gives up: ranks that wait for it get CZ_PEER with its reason instead of hanging. For a
 * failure that the others do not know of; cz_last_error() stays. Accepts NULL. */
CZ_API void engine_world_leave(struct cz_world *world, const char *reason);

/* Call it from the program's SIGTERM handler (it is async-signal-safe): a rank whose peers are dead
 * then stops waiting for them. */
CZ_API void engine_world_interrupt(void);

/* All ranks have agreed on the request to stop: from now on they wait for each other as long as
 * before, so that a last save may take its time. */
CZ_API void engine_world_interrupt_over(void);

/* The rank that the environment gives this process, without joining a world; 0 if there is none.
 * For what one rank does on behalf of all. */
CZ_API int engine_world_started_as(void);

/* sums[i] = Σ over ranks, in rank order, of their mine[i]; the same bits on every rank. Collective,
 * allocates nothing. */
CZ_API cz_status engine_gather_metrics(struct cz_engine *engine, const double *mine, size_t n,
                                       double *sums);

/* ---- the end of a process
 * ------------------------------------------------------------------------ */

/* For a program that a signal is about to end: remove the swap files of all engines of this
 * process, and the folders made for them, as engine_destroy() would. Any thread, at any time, but
 * not from a signal handler. */
CZ_API void engine_remove_swap_files(void);

CZ_EXTERN_C_END
#endif
