/* czero train, in parts: what they share.
 *
 * cmd_train.c      the options, signals, and the run from opening to closing
 * train_open.c     inputs, model, config, engine, resume
 * train_config.c   what the run needs to know of its config; its learning rates
 * train_epochs.c   passes over the data, in rows and in steps
 * train_loop.c     steps, evaluations, saves
 * train_say.c      what a run says of itself at its beginning and its end
 * train_best.c     the best evaluation, its checkpoint
 * task_tokens.c    language models on text; task_classes.c: classifiers of labelled texts or words
 * task_sft.c       language models on instructions and chats */
#ifndef CZ_TOOLS_CZERO_TRAIN_TRAIN_H
#define CZ_TOOLS_CZERO_TRAIN_TRAIN_H

#include "base/status.h"
#include "tools/czero/args.h"
#include "tools/czero/config_args.h"
#include "tools/czero/train/curve.h"
#include "tools/czero/train/metrics.h"
#include "tools/czero/train/progress.h"
#include "tools/czero/train/saver.h"

#include "data/chat/chat_loader.h"
#include "engine/engine.h"
#include "engine/report/best.h"
#include "engine/report/class_report.h"
#include "engine/report/entity_report.h"
#include "engine/report/target_report.h"
#include "formats/folder_lock.h"
#include <czero/data.h>

#include <limits.h>
#include <math.h>

struct train_options {
    const char *adapter;
    const char *config, *model, *init, *task, *tokenizer, *shuffle, *bucket, *freeze, *device;
    const char *text_column, *pair_column, *label_column, *chat_template, *loss_on;
    const char *token_cache, *encoding, *class_names;
    const char *save, *resume, *export_dir, *export_dtype, *curve, *groups;
    const char *metrics, *tensorboard, *eval_interval, *best_metric;
    struct config_args values; /* for the config */
    struct arg_list data, eval_data, test_data, renames;
    int64_t seq_len, steps, seed, save_interval, save_keep, best_keep, early_stopping;
    double epochs, mask_probability, eval_split; /* NAN: not given */
    bool log_json, quiet, strip_spaces, skip_unlabelled, packing, per_document, drop_last,
        dry_run_lr, force;
    bool save_weights_only;
};

/* What an evaluation found, the same on every rank. NAN: not measured. */
struct evaluation {
    double loss;
    bool has_classes;               /* of texts, or of words */
    struct class_summary classes;   /* of words: their accuracy, and the averages over entities */
    bool has_entities;              /* or sets of classes */
    struct entity_summary entities; /* of sets: over classes; accuracy is that of whole sets */
    bool has_values;
    struct value_summary values;
    bool has_tokens; /* of causal language models */
    double token_accuracy;
};

/* Training steps in sum. Steps without classes have no examples, and count as one each. */
struct run_means {
    double loss, weight; /* of all steps */
    double n_hits, n_examples;
    bool evaluation_is_owed; /* a signal came at a step that was to be evaluated */
};

struct run;

/* What is learnt from what. All calls on every rank. */
struct train_task {
    const char *name; /* of --task */
    enum cz_task model_task;
    /* Files that the model depends on, before it is opened. */
    cz_status (*open_inputs)(struct run *r);
    /* Rows in their order; r->micro, r->accumulation and the model are known. */
    cz_status (*open_data)(struct run *r);
    uint64_t (*rows_per_epoch)(const struct run *r);
    /* Steps continue with rows of the next epoch; otherwise the last step of each epoch is short.
     */
    bool crosses_epochs;
    cz_status (*train_step)(struct run *r); /* all of its micro-batches, and the update */
    cz_status (*evaluate)(struct run *r, struct evaluation *out);
    void (*tell)(const struct run *r, struct cz_data_cursor *out);
    /* result: what was loaded, with or without a cursor. */
    cz_status (*seek)(struct run *r, const struct cz_load_result *result);
    void (*close)(struct run *r);
};

extern const struct train_task train_task_tokens, train_task_masked, train_task_replaced,
    train_task_classes, train_task_words, train_task_sft;

/* Everything a run holds; run_close() accepts any half-built state. */
struct run {
    const struct train_options *options;
    const struct train_task *task;
    struct cz_world *world;
    bool speaks;            /* whether this rank prints its error */
    struct cz_model *model; /* NULL once the engine owns it */
    struct cz_engine *engine;
    struct cz_tokenizer *tokenizer;
    struct curve *curve;
    struct metrics *metrics;
    struct saver saver;
    struct folder_lock save_lock, export_lock; /* on the first rank */
    struct resume_point resume;
    struct engine_best best;
    struct evaluation last;      /* the newest, and the step it was made at */
    int64_t last_step;           /* −1: none */
    bool went_back;              /* to the weights of the best evaluation */
    struct config_wanted wanted; /* of the config, by options->values */
    uint64_t seed, data_hash;
    bool shuffle;
    bool init_from_checkpoint;
    bool adapts;                  /* an adapter is trained: --lora, the config's, or --adapter */
    bool is_random;               /* weights are not those of any file */
    bool finished;                /* a resumed run that has made all its steps already */
    int64_t first_step;           /* what it resumed at; 0 */
    double step_loss;             /* of the newest step */
    int64_t first_skipped;        /* of these, steps that were skipped */
    int64_t T;                    /* longest row */
    int64_t steps, eval_interval; /* 0: no evaluation but the last … */
    bool eval_epochs;             /* … or one at the end of each epoch */
    int64_t micro, accumulation;  /* from the config … */
    bool fp16, drop_last;         /* … and these */
    int64_t start_ns;

    struct cz_data_loader *data, *eval_data, *test_data; /* token tasks */

    struct chat_encoder chat; /* instructions */
    struct chat_set *chats, *eval_chats, *test_chats;
    struct chat_loader *chat_loader;

    struct cz_texts *texts, *eval_texts, *test_texts; /* classification, of texts or words */
    struct cz_text_loader *loader;
    float *logits;                /* (accumulation, rows of a batch, n_classes); of words:
                                     (accumulation, rows, T, n_classes) */
    int32_t *labels;              /* of these */
    double *confusion;            /* (n_classes,n_classes), twice: of this rank and of all ranks */
    struct entity_scheme *scheme; /* of words; NULL otherwise */
    struct entity_counts *entities; /* (n_types), twice, as confusion */
    int32_t *tags;                  /* (T) of a sentence, twice: labels and what was predicted */
    double n_hits, n_examples;      /* of the step under way, on this rank */
    bool is_cut_told;               /* how many texts were longer than the rows */
    struct run_means since;         /* the last evaluation, of all ranks */
};

/* Whether the run evaluates: on --eval-data, or on a share of --data. */
static inline bool run_evaluates(const struct run *r)
{
    return r->options->eval_data.n > 0 || !isnan(r->options->eval_split);
}

/* Whether the run learns classes of labelled texts, or of their words. */
static inline bool run_has_classes(const struct run *r)
{
    return r->task == &train_task_classes || r->task == &train_task_words;
}

/* Tokens of a row without its padding: the mean of chats that are not packed; 0: rows of labelled
 * texts, which are not counted beforehand. */
static inline double run_row_tokens(const struct run *r)
{
    if (r->loader) return 0;
    return r->chats ? (double)r->chats->n_tokens / (double)r->chats->n_bins : (double)r->T;
}

/* Rank 0 prints and writes what belongs to the whole run. */
static inline bool run_is_first_rank(const struct run *r)
{
    return engine_world_rank(r->world) == 0;
}

/* The run's, or the engine's once it exists: the engine owns the model from then on. */
static inline const struct cz_model *run_model(const struct run *r)
{
    return r->engine ? engine_get_model(r->engine) : r->model;
}

/* ---- train_epochs.c --------------------------------------------------------------------------
 * Epochs are counted here only, by the rows that the data's cursor says were taken. The length of a
 * run, its schedule, its evaluations and every epoch in its output use this count. */

/* Epochs trained so far, with a fraction; whole ones. */
double run_epoch(const struct run *r);
uint64_t run_epochs_over(const struct run *r);

/* Returns the steps from the cursor (NULL: the beginning) to the end of `epochs` passes. A step
 * that they need only in part counts as one. */
double run_steps_left(const struct run *r, double epochs, const struct cz_data_cursor *from);

/* Where a run stands whose checkpoint has no cursor (DeepSpeed's): every step has taken its share
 * of an epoch. */
void run_count_epochs(const struct run *r, struct cz_data_cursor *cursor);

/* ---- train_open.c --------------------------------------------------------------------------- */

/* Open everything, in steps between which ranks learn of each other's failures; for --dry-run-lr
 * the inputs alone. */
cz_status run_open(struct run *r);
void run_close(struct run *r);

/* ---- train_same.c --------------------------------------------------------------------------- */

/* CZ_INVALID where ranks have other data, classes, tokenizers, steps or seeds. Collective, once the
 * data are open. */
cz_status run_check_same(const struct run *r);

/* Set r->data_hash once the data are open: a resumed run has to continue in the same rows. */
cz_status run_hash_data(struct run *r);

/* The folder that describes the weights which the run begins with: a checkpoint's model of --resume
 * or --init, a folder of --init or --model. False: there is none. */
bool run_origin(const struct run *r, char path[PATH_MAX]);

/* Whether its classes and tokens are those of the run. Others are CZ_INVALID under --resume, and a
 * warning under --init and --model. */
cz_status run_check_origin(const struct run *r);

/* ---- train_config.c ------------------------------------------------------------------------- */

/* Load the config once on its own for what data and progress need. */
cz_status config_look(struct run *r);

/* Say which steps have a rate of 0, and how many follow the end of the schedule; steps are known.
 */
cz_status config_say_rates(const struct run *r);

/* The learning rate of every step on standard output, as CSV; steps are known. */
cz_status config_print_rates(const struct run *r);

/* ---- train_loop.c --------------------------------------------------------------------------- */

/* A stop was asked for by a signal of this process. Signal handlers call it. */
void run_ask_to_stop(void);

cz_status run_train(struct run *r);

/* ---- train_say.c ---------------------------------------------------------------------------- */

/* One line on the model, how it is trained and where results go; another one after the last step,
 * with the time it took, the memory, and the next command. On the first rank, unless --quiet. */
void run_say_start(const struct run *r);
void run_say_end(const struct run *r, bool stopped);

/* ---- train_best.c --------------------------------------------------------------------------- */

/* What a checkpoint says of the run besides the engine's state: the data's place, the best so far.
 */
struct run_place {
    struct cz_data_cursor cursor;
    char state_json[ENGINE_BEST_NBYTES + 384];
};
struct run_place run_tell(const struct run *r);

/* Take the evaluation of r->last_step in: its place among the best so far, from 0; -1 for none. */
int run_place_best(struct run *r, const struct evaluation *e);

/* Begin to save these weights in SAVE/best, at this place; a failure is a warning. */
cz_status run_check_best(const struct run *r); /* CZ_INVALID: SAVE/best is a link or a file */
void run_keep_best(struct run *r, int place);

/* The best evaluations so far, from a checkpoint's client state; forgotten when SAVE/best does not
 * hold their weights. All ranks together. */
cz_status run_resume_best(struct run *r, const char *state_json);

/* Go back to the weights of the best evaluation, when they are kept and are not these. */
cz_status run_take_best(struct run *r);

#endif
