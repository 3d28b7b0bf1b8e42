/* czero train up to its first step: options, inputs, model, config, engine, resume. Each stage ends
 * with an agreement of all ranks: one that failed alone (a missing file on its host) would leave
 * the others waiting in the next collective operation. */
#include "tools/czero/output.h"
#include "tools/czero/train/adapter.h"
#include "tools/czero/train/train.h"

#include "base/clock.h"
#include "base/log.h"
#include "checkpoint/store/store.h"
#include "formats/beneath.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Reverse order of opening; any half-built state is fine. */
void run_close(struct run *r)
{
    curve_close(r->curve);
    metrics_close(r->metrics);
    resume_free(&r->resume);
    if (r->task) r->task->close(r);
    cz_tokenizer_close(r->tokenizer);
    engine_destroy(r->engine);
    cz_model_destroy(r->model);
    folder_lock_release(&r->export_lock);
    folder_lock_release(&r->save_lock);
    engine_world_destroy(r->world);
}

/* ---- inputs --------------------------------------------------------------------------------- */

/* What the run would write over. */
static cz_status check_outputs(const struct train_options *o)
{
    struct output_inputs in = {.n = 0};
    output_add_input(&in, o->config);
    output_add_inputs(&in, &o->data);
    output_add_inputs(&in, &o->eval_data);
    output_add_inputs(&in, &o->test_data);
    TRY(output_check_file("--curve", o->curve, OUTPUT_CURVE, &in));
    TRY(output_check_file("--metrics", o->metrics, OUTPUT_METRICS, &in));
    if (o->curve && o->metrics && strcmp(o->curve, o->metrics) == 0)
        return err_set(CZ_INVALID, 0, "--curve and --metrics need files of their own, not both %s",
                       o->curve);
    TRY(output_check_folder("--save", o->save));
    TRY(output_check_folder("--export", o->export_dir));
    TRY(output_check_folder("--token-cache", o->token_cache));
    return output_check_folder("--tensorboard", o->tensorboard);
}

/* Combinations that make no sense are refused before any file is opened. */
static cz_status check_options(const struct train_options *o)
{
    /* What a shell's <(…) or | hands over has been read when the engine wants it; a named pipe may
     * be written again. */
    struct stat info;
    const bool is_descriptor =
        strncmp(o->config, "/dev/", 5) == 0 || strncmp(o->config, "/proc/", 6) == 0;
    if (is_descriptor && stat(o->config, &info) == 0 && S_ISFIFO(info.st_mode))
        return err_set(CZ_INVALID, 0,
                       "--config %s: czero reads the config more than once, but a pipe can be read "
                       "only once: use a file, or --set",
                       o->config);
    if (!o->save && (o->save_interval > 0 || o->save_keep > 0 || o->save_weights_only))
        return err_set(CZ_INVALID, 0, "%s needs --save, the folder for checkpoints",
                       o->save_interval > 0 ? "--save-interval"
                       : o->save_keep > 0   ? "--save-keep"
                                            : "--save-weights-only");
    if (o->best_keep > 0 && !o->best_metric)
        return err_set(CZ_INVALID, 0,
                       "--best-keep needs --best-metric, which says what is best, such as loss");
    if (o->best_keep > ENGINE_BEST_MAX)
        return err_set(CZ_INVALID, 0, "--best-keep %lld: at most %d are kept",
                       (long long)o->best_keep, ENGINE_BEST_MAX);
    if (!isnan(o->eval_split) && !(o->eval_split > 0 && o->eval_split < 1))
        return err_set(CZ_INVALID, 0,
                       "--eval-split %g: a share between 0 and 1 is needed, such as 0.1",
                       o->eval_split);
    if (!isnan(o->eval_split) && o->eval_data.n > 0)
        return err_set(CZ_INVALID, 0, "--eval-split and --eval-data: give one of the two");
    const bool evaluates = o->eval_data.n > 0 || !isnan(o->eval_split);
    if (!evaluates && (o->eval_interval || o->best_metric || o->early_stopping > 0))
        return err_set(CZ_INVALID, 0,
                       "%s needs --eval-data or --eval-split, the data to evaluate on",
                       o->eval_interval ? "--eval-interval"
                       : o->best_metric ? "--best-metric"
                                        : "--early-stopping");
    if (o->best_metric && !o->save)
        return err_set(CZ_INVALID, 0, "--best-metric needs --save: the best is kept in DIR/best");
    if (!isnan(o->epochs) && !(o->epochs > 0))
        return err_set(CZ_INVALID, 0, "--epochs %g: a number above 0 is needed", o->epochs);
    if (o->resume && strcmp(o->resume, "auto") == 0 && !o->save)
        return err_set(CZ_INVALID, 0,
                       "--resume auto needs --save, the folder whose newest state it continues");
    if (o->resume && strcmp(o->resume, "auto") == 0 && o->save_weights_only)
        return err_set(
            CZ_INVALID, 0,
            "--resume auto and --save-weights-only: no run continues from weights alone; "
            "give one of them");
    if (o->renames.n > 0 && !o->resume && !o->init)
        return err_set(CZ_INVALID, 0, "--rename needs --resume or --init, whose names it changes");
    if (o->adapter && o->values.lora)
        return err_set(CZ_INVALID, 0,
                       "--adapter trains an adapter further, --lora begins one: give one of them");
    if ((o->steps > 0) == !isnan(o->epochs))
        return err_set(CZ_INVALID, 0, "%s",
                       o->steps > 0 ? "--steps and --epochs exclude each other: give one"
                                    : "--steps or --epochs is missing");
    return CZ_OK;
}

/* A resumed run has its seed and order already. */
static cz_status find_resume_point(struct run *r)
{
    const struct train_options *o = r->options;
    const bool is_auto = o->resume && strcmp(o->resume, "auto") == 0;
    if (o->resume && !is_auto) TRY(resume_parse(o->resume, &r->resume));
    bool found = false;
    if (is_auto) TRY(find_checkpoint(o->save, &found));
    if (found) TRY(resume_parse(o->save, &r->resume));
    bool has_cursor = r->resume.has_run && r->resume.run.has_cursor;
    r->seed = 42;
    r->shuffle = has_cursor ? r->resume.run.cursor.shuffle : true;
    if (r->resume.has_run) r->seed = has_cursor ? r->resume.run.cursor.seed : r->resume.run.seed;
    if (o->seed >= 0 && r->resume.has_run && r->seed != (uint64_t)o->seed)
        return err_set(CZ_INVALID, 0, "--seed %lld: the resumed run has seed %llu; omit the option",
                       (long long)o->seed, (unsigned long long)r->seed);
    if (o->seed >= 0) r->seed = (uint64_t)o->seed;
    if (o->shuffle) r->shuffle = strcmp(o->shuffle, "on") == 0;
    return CZ_OK;
}

/* What --task says; without it, what the model is for. */
static cz_status choose_task(struct run *r)
{
    static const struct train_task *const tasks[] = {
        [CZ_LABELS_NEXT] = &train_task_tokens,       [CZ_LABELS_SAME] = &train_task_masked,
        [CZ_LABELS_CLASS] = &train_task_classes,     [CZ_LABELS_REPLACED] = &train_task_replaced,
        [CZ_LABELS_TOKEN_CLASS] = &train_task_words, [CZ_LABELS_VALUES] = &train_task_classes,
        [CZ_LABELS_MULTI] = &train_task_classes,
    };
    const char *name = r->options->task;
    for (size_t i = 0; name && i < CZ_ARRAY_LEN(tasks); i++)
        if (strcmp(tasks[i]->name, name) == 0) r->task = tasks[i];
    if (name && strcmp(train_task_sft.name, name) == 0) r->task = &train_task_sft;
    if (r->task) return CZ_OK;
    const struct cz_model_options look = {.size = sizeof look, .config_only = true};
    struct cz_model *probe = cz_model_open_ex(r->options->model, &look);
    if (!probe) return cz_last_status();
    r->task = tasks[cz_model_labels(probe)];
    cz_model_destroy(probe);
    return CZ_OK;
}

static bool is_one_of(const char *name, const char *const *names)
{
    for (; *names; names++)
        if (strcmp(*names, name) == 0) return true;
    return false;
}

/* What "best" means; early stopping alone looks at the loss. Which figures there are depends on the
 * labels, so this comes behind the data. */
static cz_status choose_metric(struct run *r)
{
    static const char *const values[] = {"mse", "mae", "pearson", "spearman", "r2", NULL};
    static const char *const small[] = {"loss", "mse", "mae", NULL};
    static const char *const micro[] = {"f1", "precision", "recall", NULL};
    const struct train_options *o = r->options;
    const char *metric = o->best_metric ? o->best_metric : o->early_stopping > 0 ? "loss" : NULL;
    engine_best_init(&r->best, metric, metric && is_one_of(metric, small),
                     o->best_keep > 0 ? (size_t)o->best_keep : 1);
    if (!metric || strcmp(metric, "loss") == 0) return CZ_OK;
    const bool has_tokens = r->task == &train_task_sft || r->task == &train_task_tokens;
    if (has_tokens && strcmp(metric, "accuracy") == 0) return CZ_OK;
    if (!run_has_classes(r))
        return err_set(CZ_INVALID, 0, "--best-metric %s is for classification; this run has loss%s",
                       metric, has_tokens ? " and accuracy" : "");
    const enum cz_problem problem = cz_texts_problem(r->texts);
    if (is_one_of(metric, values) != (problem == CZ_PROBLEM_REGRESSION))
        return err_set(CZ_INVALID, 0, "--best-metric %s is for %s; the labels of this run are %s",
                       metric, problem == CZ_PROBLEM_REGRESSION ? "classes" : "values",
                       problem == CZ_PROBLEM_REGRESSION ? "values" : "classes");
    if (!is_one_of(metric, micro) || r->task == &train_task_words ||
        problem == CZ_PROBLEM_MULTI_LABEL)
        return CZ_OK;
    return err_set(CZ_INVALID, 0,
                   "--best-metric %s is for token classification; classification has accuracy, "
                   "macro_f1 and weighted_f1",
                   metric);
}

/* An option of another task would be ignored silently; it is refused. */
static cz_status check_task_options(const struct run *r)
{
    const struct train_options *o = r->options;
    const struct {
        const char *name;
        bool is_given;
        const struct train_task *task, *other; /* that it is for; other may be NULL */
    } options[] = {
        {"--mask-probability", !isnan(o->mask_probability), &train_task_masked,
         &train_task_replaced},
        {"--text-column", o->text_column != NULL, &train_task_classes, &train_task_words},
        {"--pair-column", o->pair_column != NULL, &train_task_classes, NULL},
        {"--label-column", o->label_column != NULL, &train_task_classes, &train_task_words},
        {"--strip-spaces", o->strip_spaces, &train_task_classes, NULL},
        {"--skip-unlabelled", o->skip_unlabelled, &train_task_classes, &train_task_words},
        {"--class-names", o->class_names != NULL, &train_task_classes, &train_task_words},
        {"--bucket", o->bucket != NULL, &train_task_classes, &train_task_words},
        {"--chat-template", o->chat_template != NULL, &train_task_sft, NULL},
        {"--loss-on", o->loss_on != NULL, &train_task_sft, NULL},
        {"--packing", o->packing, &train_task_sft, NULL},
        {"--token-cache", o->token_cache != NULL, &train_task_sft, NULL},
        {"--per-document", o->per_document, &train_task_tokens, NULL},
    };
    for (size_t i = 0; i < CZ_ARRAY_LEN(options); i++)
        if (options[i].is_given && options[i].task != r->task && options[i].other != r->task)
            return err_set(CZ_INVALID, 0, "%s needs --task %s; the task of this run is %s",
                           options[i].name, options[i].task->name, r->task->name);
    return CZ_OK;
}

/* The model's own unless told; bytes for folders without one. */
static cz_status open_tokenizer(struct run *r)
{
    const struct train_options *o = r->options;
    return cz_tokenizer_open(adapter_tokenizer(o->tokenizer, o->model, o->adapter), &r->tokenizer);
}

/* ---- the model ------------------------------------------------------------------------------ */

/* As cz_model_open_ex() decides: a folder without config.json may have a preset's name. */
static bool is_model_folder(const char *path)
{
    return beneath_is_there(path, "config.json");
}

/* With --init or --resume only config.json is read: the weights come from elsewhere. */
static cz_status model_make(struct run *r)
{
    const struct train_options *o = r->options;
    const bool weights_come_later =
        r->resume.dir || o->init; /* those in the folder are not asked for */
    struct cz_model_options options = {.size = sizeof options,
                                       .task = r->task->model_task,
                                       .config_only = weights_come_later,
                                       .tied_by_config = o->init != NULL};
    if (r->texts) {
        options.labels = cz_texts_labels(r->texts);
        options.n_labels = cz_texts_n_labels(r->texts);
        options.problem = cz_texts_problem(r->texts);
        options.has_padding_id = true;
        options.padding_id = cz_tokenizer_padding_id(r->tokenizer);
    }
    if (!is_model_folder(o->model) && strcmp(cz_tokenizer_name(r->tokenizer), "bytes") != 0)
        options.vocab_size = cz_tokenizer_vocab_size(r->tokenizer);
    r->model = cz_model_open_ex(o->model, &options);
    if (!r->model) return cz_last_status();
    /* A preset takes the tokenizer's vocabulary; a folder has its own, which must hold it. */
    if (strcmp(cz_tokenizer_name(r->tokenizer), "bytes") == 0) return CZ_OK;
    return cz_tokenizer_check_vocab(r->tokenizer, cz_model_vocab_size(r->model), r->options->model);
}

/* A folder without weights is an error unless --init random says it is meant: training from noise
 * by accident costs days. */
static cz_status open_model(struct run *r)
{
    const struct train_options *o = r->options;
    TRY(model_make(r));
    cz_model_set_seed(r->model, r->seed); /* of what a folder's files lack, such as a new head */
    bool random = o->init && strcmp(o->init, "random") == 0;
    const bool resumes = r->resume.dir != NULL;
    if (o->init && !random) TRY(find_checkpoint(o->init, &r->init_from_checkpoint));
    if (!o->init && !resumes && is_model_folder(o->model) && !cz_model_has_weights(r->model))
        return err_set(CZ_NOTFOUND, 0, "%s has no weights; --init random starts without", o->model);
    const bool lacks_weights = !cz_model_has_weights(r->model);
    r->is_random = !resumes && (random || (!o->init && lacks_weights));
    if (random || r->init_from_checkpoint || lacks_weights)
        TRY(cz_model_init_from(r->model, NULL, r->seed));
    if (o->init && !random && !r->init_from_checkpoint)
        TRY(cz_model_init_from(r->model, o->init, r->seed));
    /* A language model has no natural length; texts of a classifier rarely need more than 128
     * tokens, those of an instruction model 1024. */
    const bool is_sft = r->task == &train_task_sft;
    const int64_t usual = is_sft ? 1024 : 128, t_max = cz_model_t_max(r->model);
    r->T = r->options->seq_len;
    if (r->T == 0 && !run_has_classes(r) && !is_sft)
        return err_set(CZ_INVALID, 0, "--seq-len, the number of tokens per row, is missing");
    if (r->T == 0) r->T = t_max < usual ? t_max : usual;
    TRY(cz_model_set_shape(r->model, r->T));
    if (o->adapter) TRY(cz_model_add_adapter(r->model, o->adapter, true));
    return o->freeze ? cz_model_freeze(r->model, o->freeze, NULL) : CZ_OK;
}

/* ---- config, data, engine ------------------------------------------------------------------- */

/* The end of --epochs. A resumed run has taken rows already, maybe in other steps than these. */
static cz_status steps_of_epochs(struct run *r)
{
    const double epochs = r->options->epochs;
    const struct cz_saved_run *saved = &r->resume.run;
    const bool continues = r->resume.has_run && saved->has_cursor;
    const double left = run_steps_left(r, epochs, continues ? &saved->cursor : NULL);
    if (left > 1e15) return err_set(CZ_INVALID, 0, "--epochs %g: too many steps", epochs);
    r->steps = (int64_t)left + (continues ? saved->global_steps : 0);
    return CZ_OK;
}

/* How long the run is, and when it evaluates. */
static cz_status choose_steps(struct run *r)
{
    const struct train_options *o = r->options;
    r->steps = o->steps;
    if (o->steps <= 0) TRY(steps_of_epochs(r));
    if (!run_evaluates(r)) return CZ_OK;
    const char *text = o->eval_interval;
    if (!text && !run_has_classes(r) && !o->best_metric && o->early_stopping == 0)
        return CZ_OK; /* at the end alone */
    r->eval_epochs = !text || strcmp(text, "epoch") == 0;
    if (r->eval_epochs) return CZ_OK;
    char *end;
    errno = 0;
    r->eval_interval = strtoll(text, &end, 10);
    if (*end || end == text || errno || r->eval_interval < 1)
        return err_set(CZ_INVALID, 0, "--eval-interval %s: a number of steps, or \"epoch\"", text);
    return CZ_OK;
}

/* Checkpoints of an adapter do not hold its model. */
static cz_status open_base(struct run *r)
{
    const struct train_options *o = r->options;
    if (r->adapts && r->init_from_checkpoint)
        return err_set(CZ_INVALID, 0,
                       "--init %s: an adapter needs its model in a folder of its own: czero export "
                       "writes one of the checkpoint",
                       o->init);
    if (!r->resume.dir) return CZ_OK;
    if (r->adapts && !o->init && is_model_folder(o->model))
        TRY(cz_model_init_from(r->model, o->model, r->seed));
    model_trained_come_later(r->model);
    return CZ_OK;
}

/* The config's batch sizes decide how many steps an epoch needs. */
static cz_status open_rows(struct run *r)
{
    TRY(config_args_wanted(&r->options->values, &r->wanted));
    TRY(config_look(r));
    TRY(open_base(r));
    TRY(r->task->open_data(r));
    TRY(choose_steps(r));
    if (r->options->dry_run_lr) return CZ_OK;
    TRY(run_hash_data(r));
    return config_say_rates(r);
}

/* The config was parsed before for its batch sizes; the engine parses it with the same values for
 * "auto". */
static cz_status open_engine(struct run *r)
{
    const struct train_options *o = r->options;
    const struct cz_engine_group all = {.size = sizeof all, .name_regex = "", NAN, NAN, NAN, NAN};
    struct cz_engine_options options = {
        .size = sizeof options,
        .trains_batches = true,
        .config_path = o->config,
        .world = r->world,
        .device = o->device,
        .groups = &all,
        .n_groups = o->groups && strcmp(o->groups, "one") == 0,
        .groups_hf = o->groups && strcmp(o->groups, "hf") == 0,
        .seed = r->seed,
        .compat = o->values.compat,
        .strict = o->values.strict,
        .total_steps = r->steps,
        .auto_values = o->values.autos.items,
        .set_values = o->values.sets.items,
        .option_values = r->wanted.items,
    };
    r->engine = engine_initialize_ex(&options, r->model);
    if (!r->engine) return cz_last_status();
    r->model = NULL;
    return CZ_OK;
}

/* ---- together ------------------------------------------------------------------------------- */

/* What can fail on one rank alone. */
static cz_status open_inputs(struct run *r)
{
    const struct train_options *o = r->options;
    TRY(check_options(o));
    TRY(check_outputs(o));
    TRY(find_resume_point(r));
    TRY(choose_task(r));
    TRY(check_task_options(r));
    TRY(open_tokenizer(r));
    TRY(r->task->open_inputs(r));
    TRY(choose_metric(r));
    TRY(open_model(r));
    TRY(run_check_origin(r));
    return open_rows(r);
}

/* An export replaces a model only when it is meant: a resumed run may write its own again, but not
 * over the model that it began with. */
static cz_status check_export(const struct run *r)
{
    const struct train_options *o = r->options;
    const bool begins_here =
        output_is_same(o->export_dir, o->model) || output_is_same(o->export_dir, o->adapter);
    const struct output_model out = {"--export", o->export_dir, o->model, o->adapter,
                                     .force = o->force || (r->resume.dir && !begins_here)};
    return output_check_model(&out);
}

/* Whether --save holds the run that this one continues: --resume names the folder, or its best or
 * a tag in it, and not an earlier run that was moved aside there. */
static bool continues_here(const struct run *r)
{
    static const char aside[] = "/" STORE_EARLIER;
    char save[PATH_MAX], from[PATH_MAX];
    if (!r->resume.dir || !realpath(r->options->save, save) || !realpath(r->resume.dir, from))
        return false;
    const char *below = from + strlen(save);
    if (strncmp(from, save, strlen(save)) != 0 || (*below && *below != '/')) return false;
    return strncmp(below, aside, sizeof aside - 1) != 0;
}

/* --resume auto without a state begins a run, also where one was killed before its first save. */
static bool takes_over(const struct run *r)
{
    const bool is_new = r->options->resume && !r->resume.dir;
    return is_new || continues_here(r);
}

/* Files that a resumed run continues hold rows of another run when this one begins. */
static cz_status check_logs(const struct train_options *o)
{
    TRY(output_check_rows("--curve", o->curve));
    TRY(output_check_rows("--metrics", o->metrics));
    return output_check_events("--tensorboard", o->tensorboard);
}

/* Find out now, not after hours of training, that a checkpoint or the export has nowhere to go, or
 * that another run writes there. */
static cz_status claim_folders(struct run *r)
{
    const struct train_options *o = r->options;
    r->saver = (struct saver){.dir = o->save,
                              .interval = o->save_interval,
                              .keep = o->save_keep,
                              .weights_only = o->save_weights_only,
                              .saved_step = -1};
    if (!run_is_first_rank(r)) return CZ_OK;
    if (!o->force && !o->resume) TRY(check_logs(o));
    if (o->save) {
        if (folder_lock_take(&r->save_lock, o->save) != CZ_OK) return err_prefix("--save");
        TRY(saver_check(&r->saver));
        if (o->best_metric) TRY(run_check_best(r));
        if (!o->force && !takes_over(r)) TRY(saver_check_unused(&r->saver));
    }
    struct stat info;
    if (!o->export_dir) return CZ_OK;
    if (stat(o->export_dir, &info) == 0 && !S_ISDIR(info.st_mode))
        return err_set(CZ_INVALID, 0, "--export %s: is a file; a folder is needed", o->export_dir);
    if (output_is_same(o->save, o->export_dir)) return check_export(r);
    if (folder_lock_take(&r->export_lock, o->export_dir) != CZ_OK) return err_prefix("--export");
    return check_export(r);
}

/* DeepSpeed's checkpoints say how many samples they have seen once they are loaded. */
static void steps_from_here(struct run *r)
{
    struct cz_data_cursor at;
    r->task->tell(r, &at);
    r->steps = r->first_step + (int64_t)run_steps_left(r, r->options->epochs, &at);
}

/* The engine first: a checkpoint that cannot be loaded should not leave a started curve behind. */
static cz_status resume(struct run *r)
{
    struct cz_load_result result = {.size = sizeof result};
    if (r->init_from_checkpoint)
        TRY(init_weights(r->options->init, r->options->renames.items, r->engine));
    if (!r->resume.dir) return CZ_OK;
    r->resume.renames = r->options->renames.items;
    TRY(resume_load(&r->resume, r->engine, &result));
    cz_status st = saver_resumed(&r->saver, r->engine, result.tag_dir);
    if (st == CZ_OK) st = r->task->seek(r, &result);
    if (st == CZ_OK) st = run_resume_best(r, result.client_state_json);
    cz_load_result_free(&result);
    r->first_step = engine_get_global_steps(r->engine);
    r->first_skipped = engine_get_skipped_steps(r->engine);
    if (!isnan(r->options->epochs) && !result.has_cursor) steps_from_here(r);
    r->finished = r->first_step >= r->steps;
    return st;
}

/* After resume, which may read what is moved aside. */
static cz_status begin_saving(struct run *r)
{
    if (!run_is_first_rank(r)) return CZ_OK;
    if (!continues_here(r)) TRY(saver_set_aside(&r->saver));
    return saver_describe(&r->saver, run_model(r), r->tokenizer, r->chat.chat);
}

/* After resume, since the files continue at the checkpoint's step. */
static cz_status open_logs(struct run *r)
{
    const struct train_options *o = r->options;
    const int64_t step = engine_get_global_steps(r->engine);
    r->start_ns = clock_now_ns();
    if (!run_is_first_rank(r)) return CZ_OK;
    if (o->resume && !r->resume.dir &&
        !o->force) { /* rows of a run that was killed before a save */
        TRY(output_set_rows_aside("--curve", o->curve));
        TRY(output_set_rows_aside("--metrics", o->metrics));
    }
    if (o->curve) TRY(curve_open(o->curve, step, &r->curve));
    if (!o->metrics && !o->tensorboard) return CZ_OK;
    return metrics_open(o->metrics, o->tensorboard, step, &r->metrics);
}

/* Each stage is agreed on by all ranks. */
cz_status run_open(struct run *r)
{
    log_set_common(true); /* run_check_same() proves it */
    const cz_status opened = open_inputs(r);
    log_set_common(false);
    TRY(engine_world_agree(r->world, opened, &r->speaks));
    if (r->options->dry_run_lr) return CZ_OK;
    TRY(engine_world_agree(r->world, run_check_same(r), &r->speaks));
    TRY(engine_world_agree(r->world, claim_folders(r), &r->speaks));
    TRY(engine_world_agree(r->world, open_engine(r), &r->speaks));
    TRY(engine_world_agree(r->world, resume(r), &r->speaks));
    TRY(engine_world_agree(r->world, begin_saving(r), &r->speaks));
    return engine_world_agree(r->world, open_logs(r), &r->speaks);
}
