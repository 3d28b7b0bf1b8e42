/* Classifiers of texts, and of the words of texts: the classes in the model's config, accuracy and
 * related figures, entities of words.
 * The classes come from the data or, when a trained classifier is trained further, from the model:
 * ids of labels must stay what the weights learnt. */
#include "base/size.h"
#include "tools/czero/tool.h"
#include "tools/czero/train/train.h"

#include "base/log.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- labels --------------------------------------------------------------------------------- */

static cz_status texts_read(const struct run *r, const struct arg_list *paths,
                            const char *const *labels, size_t n_labels, enum cz_problem problem,
                            int split_part, struct cz_texts **out)
{
    const struct train_options *o = r->options;
    const bool splits = paths == &o->data && !isnan(o->eval_split);
    const struct cz_texts_options options = {
        .size = sizeof options,
        .paths = paths->items,
        .n_paths = paths->n,
        .text_column = o->text_column,
        .pair_column = o->pair_column,
        .label_column = o->label_column,
        .strip_spaces = o->strip_spaces,
        .labels = labels,
        .n_labels = n_labels,
        .words = r->task == &train_task_words,
        .problem = problem,
        .encoding = o->encoding,
        .split_share = splits ? o->eval_split : 0,
        .split_seed = r->seed,
        .split_part = split_part,
        .skip_unlabelled = o->skip_unlabelled,
    };
    return cz_texts_open(&options, out);
}

static enum cz_problem problem_of(const struct cz_model *m)
{
    const enum cz_labels labels = cz_model_labels(m);
    return labels == CZ_LABELS_VALUES  ? CZ_PROBLEM_REGRESSION
           : labels == CZ_LABELS_MULTI ? CZ_PROBLEM_MULTI_LABEL
                                       : CZ_PROBLEM_SINGLE_LABEL;
}

/* A classifier that continues to train keeps its classes, if they are all that the data have. One
 * that is refused as it stands may do with the data's. */
static cz_status texts_read_known(struct run *r)
{
    const struct cz_model_options options = {
        .size = sizeof options, .task = r->task->model_task, .config_only = true};
    char origin[PATH_MAX];
    struct cz_model *m =
        cz_model_open_ex(run_origin(r, origin) ? origin : r->options->model, &options);
    if (!m) return cz_last_status() == CZ_UNSUPPORTED ? CZ_INVALID : cz_last_status();
    const enum cz_problem problem = problem_of(m);
    const bool is_value = problem == CZ_PROBLEM_REGRESSION;
    const size_t n = is_value ? 0 : (size_t)cz_model_n_classes(m);
    const char **names = calloc(n + 1, sizeof *names);
    cz_status st = names ? CZ_OK : err_set(CZ_NOMEM, 0, "no memory for %zu classes", n);
    for (size_t k = 0; names && k < n; k++) names[k] = cz_model_label_name(m, (int64_t)k);
    if (st == CZ_OK && is_value && cz_model_n_classes(m) > 1)
        st = err_set(CZ_INVALID, 0, "%s has several values for a text", r->options->model);
    if (st == CZ_OK) st = texts_read(r, &r->options->data, names, n, problem, 0, &r->texts);
    free(names);
    cz_model_destroy(m);
    return st;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

/* The names of --class-names: between commas, or the lines of a file. names (n + 1) and `text`,
 * which holds them, are freed by the caller. */
static cz_status class_names_read(const char *option, const char *encoding, char **text,
                                  const char ***names, size_t *n)
{
    struct cz_texts *lines = NULL;
    const struct cz_texts_options file = {.size = sizeof file,
                                          .paths = &option,
                                          .n_paths = 1,
                                          .plain = true,
                                          .labels_optional = true,
                                          .encoding = encoding};
    const bool is_file = access(option, R_OK) == 0;
    if (!is_file && !strchr(option, ','))
        return err_set(CZ_INVALID, 0,
                       "--class-names %s: no such file; give names between commas, as in neg,pos",
                       option);
    TRY(tool_check_text("--class-names", option));
    if (is_file) TRY(cz_texts_open(&file, &lines));
    size_t n_max = is_file ? cz_texts_count(lines) : 1, nbytes = strlen(option) + 1;
    for (const char *at = option; !is_file && *at; at++) n_max += *at == ',';
    for (size_t i = 0; is_file && i < n_max; i++) nbytes += cz_texts_at(lines, i).nbytes + 1;
    *text = malloc(nbytes);
    *names = calloc(n_max + 1, sizeof **names);
    cz_status st = *text && *names ? CZ_OK : err_set(CZ_NOMEM, 0, "no memory for %zu names", n_max);
    char *end = *text;
    for (size_t i = 0, at = 0; st == CZ_OK && i < n_max; i++) {
        const struct cz_tokenizer_input line = {.text = option + at,
                                                .nbytes = strcspn(option + at, ",")};
        const struct cz_tokenizer_input name = is_file ? cz_texts_at(lines, i) : line;
        size_t from = 0, to = name.nbytes;
        at += line.nbytes + 1;
        while (from < to && is_blank(name.text[from])) from++;
        while (to > from && is_blank(name.text[to - 1])) to--;
        if (from == to)
            st = err_set(CZ_INVALID, 0, "--class-names %s: name %zu is empty", option, i + 1);
        else if (memchr(name.text, '\0', to))
            st = err_set(CZ_INVALID, 0, "--class-names %s: name %zu contains a NUL", option, i + 1);
        (*names)[i] = end;
        memcpy(end, name.text + from, to - from);
        end += to - from;
        *end++ = '\0';
    }
    *n = n_max;
    cz_texts_close(lines);
    return st;
}

/* The classes are those that the caller names. */
static cz_status texts_read_named(struct run *r)
{
    const struct train_options *o = r->options;
    const char **names = NULL;
    char *text = NULL;
    size_t n = 0;
    cz_status st = class_names_read(o->class_names, o->encoding, &text, &names, &n);
    if (st == CZ_OK) {
        st = texts_read(r, &o->data, names, n, CZ_PROBLEM_AUTO, 0, &r->texts);
        if (st == CZ_INVALID) err_prefix("with --class-names %s", o->class_names);
    }
    free(names);
    free(text);
    return st;
}

/* Evaluation texts use the training data's labels: an unknown label there is an error. */
static cz_status classes_open_inputs(struct run *r)
{
    const struct train_options *o = r->options;
    cz_status st = o->class_names ? texts_read_named(r) : texts_read_known(r);
    if (st == CZ_INVALID &&
        !o->class_names) { /* other classes than the model's: a new head for them */
        err_clear();
        st = texts_read(r, &o->data, NULL, 0, CZ_PROBLEM_AUTO, 0, &r->texts);
    }
    TRY(st);
    const char *const *labels = cz_texts_labels(r->texts);
    const size_t n = cz_texts_n_labels(r->texts);
    const enum cz_problem problem = cz_texts_problem(r->texts);
    const struct arg_list *eval_data = isnan(o->eval_split) ? &o->eval_data : &o->data;
    if (run_evaluates(r)) TRY(texts_read(r, eval_data, labels, n, problem, 1, &r->eval_texts));
    if (o->test_data.n == 0) return CZ_OK;
    return texts_read(r, &o->test_data, labels, n, problem, 0, &r->test_texts);
}

/* The share of the largest class is the accuracy of guessing, which a result should be compared
 * with. */
static void say_classes(const struct run *r)
{
    const size_t n = cz_texts_n_labels(r->texts);
    size_t largest = 0, n_all = 0;
    if (cz_texts_problem(r->texts) != CZ_PROBLEM_SINGLE_LABEL) {
        LOGV(LOG_INFO, SUB_DATA, "data: %zu text%s, %s", cz_texts_count(r->texts),
             plural(cz_texts_count(r->texts)),
             cz_texts_problem(r->texts) == CZ_PROBLEM_REGRESSION ? "with values"
                                                                 : "with sets of classes");
        return;
    }
    for (size_t k = 0; k < n; k++) {
        n_all += cz_texts_n_of_label(r->texts, k);
        if (cz_texts_n_of_label(r->texts, k) > cz_texts_n_of_label(r->texts, largest)) largest = k;
    }
    for (size_t k = 0; k < n && r->options->class_names; k++)
        if (cz_texts_n_of_label(r->texts, k) == 0)
            LOGV(LOG_WARN, SUB_DATA, "data: no example has the class \"%s\" of --class-names",
                 cz_texts_labels(r->texts)[k]);
    char words[48] = "";
    if (r->scheme) snprintf(words, sizeof words, " of %zu word%s", n_all, plural(n_all));
    LOGV(LOG_INFO, SUB_DATA, "data: %zu text%s%s in %zu class%s; the largest, \"%s\", has %.1f %%",
         cz_texts_count(r->texts), plural(cz_texts_count(r->texts)), words, n, n == 1 ? "" : "es",
         cz_texts_labels(r->texts)[largest],
         100.0 * (double)cz_texts_n_of_label(r->texts, largest) / (double)(n_all ? n_all : 1));
}

/* ---- rows ----------------------------------------------------------------------------------- */

static struct cz_text_loader_options loader_options(const struct run *r,
                                                    const struct cz_texts *texts, bool once)
{
    return (struct cz_text_loader_options){
        .size = sizeof(struct cz_text_loader_options),
        .texts = texts,
        .tokenizer = r->tokenizer,
        .max_len = r->T,
        .micro_batch = r->micro,
        .accumulation = once ? 1 : r->accumulation,
        .rank = engine_world_rank(r->world),
        .world_size = engine_world_size(r->world),
        .shuffle = !once && r->shuffle,
        .seed = r->seed,
        .bucket = once || !r->options->bucket || strcmp(r->options->bucket, "on") == 0,
        .drop_last = !once && r->drop_last,
        .once = once,
    };
}

/* Find out now, not after an epoch, that rows cannot be made of the evaluation's texts. */
static cz_status check_eval_rows(const struct run *r)
{
    struct cz_text_loader *loader;
    const struct cz_texts *const texts[] = {r->eval_texts, r->test_texts};
    for (size_t i = 0; i < CZ_ARRAY_LEN(texts); i++) {
        if (!texts[i]) continue;
        const struct cz_text_loader_options options = loader_options(r, texts[i], true);
        TRY(cz_text_loader_open(&options, &loader));
        cz_text_loader_close(loader);
    }
    return CZ_OK;
}

/* Entities are found by the names of classes. */
static cz_status open_entities(struct run *r, size_t n_classes)
{
    const size_t T = (size_t)r->T;
    TRY(entity_scheme_create(cz_texts_labels(r->texts), n_classes, &r->scheme));
    r->entities = malloc(2 * entity_scheme_n_types(r->scheme) * sizeof *r->entities);
    r->tags = malloc(2 * T * sizeof *r->tags);
    return r->entities && r->tags ? CZ_OK
                                  : err_set(CZ_NOMEM, 0, "no memory for tags of %zu words", T);
}

/* Two confusion matrices: this rank's counts and the sum over ranks. */
static cz_status classes_open_data(struct run *r)
{
    const size_t n = (size_t)cz_model_n_classes(r->model);
    const bool words = r->task == &train_task_words;
    const size_t n_rows = (size_t)r->micro * (size_t)(words ? r->T : 1);
    const struct cz_text_loader_options options = loader_options(r, r->texts, false);
    r->logits = malloc((size_t)r->accumulation * n_rows * n * sizeof *r->logits);
    r->labels = malloc((size_t)r->accumulation * n_rows * sizeof *r->labels);
    r->confusion = malloc(2 * n * n * sizeof *r->confusion);
    if (!r->logits || !r->labels || !r->confusion)
        return err_set(CZ_NOMEM, 0, "no memory for the figures of %zu classes", n);
    if (words) TRY(open_entities(r, n));
    if (cz_texts_problem(r->texts) == CZ_PROBLEM_MULTI_LABEL &&
        !(r->entities = malloc(2 * n * sizeof *r->entities)))
        return err_set(CZ_NOMEM, 0, "no memory for the figures of %zu classes", n);
    if (run_is_first_rank(r)) say_classes(r);
    TRY(check_eval_rows(r));
    return cz_text_loader_open(&options, &r->loader);
}

static uint64_t classes_rows_per_epoch(const struct run *r)
{
    return cz_text_loader_rows_per_epoch(r->loader);
}

/* One label per row, or one per token. */
static size_t n_labels_of(const struct run *r, const struct cz_batch *batch)
{
    return (size_t)(r->scheme ? batch->B * batch->T : batch->B);
}

/* The micro-batches of a step. */
struct step_rows {
    struct run *run;
    size_t stride; /* labels from one micro-batch to the next */
    size_t n_taken;
};

/* Labels stay for the logits that the step gives: elsewhere CZ_IGNORE_LABEL. */
static cz_status classes_next(void *user, struct cz_batch *batch)
{
    struct step_rows *s = user;
    int32_t *labels = s->run->labels + s->stride * s->n_taken++;
    TRY(cz_text_loader_next(s->run->loader, batch));
    const size_t n = batch->targets ? 0 : n_labels_of(s->run, batch);
    for (size_t i = 0; i < s->stride; i++) labels[i] = i < n ? batch->labels[i] : CZ_IGNORE_LABEL;
    return CZ_OK;
}

/* The forward's logits give accuracy of training at no cost. */
static cz_status classes_train_step(struct run *r)
{
    const size_t n = (size_t)cz_model_n_classes(run_model(r));
    const size_t n_rows = (size_t)r->micro * (size_t)(r->scheme ? r->T : 1);
    struct step_rows s = {.run = r, .stride = n_rows};
    TRY(engine_train_batch_logits(r->engine, classes_next, &s, NULL, r->logits));
    for (size_t i = 0; i < n_rows * s.n_taken; i++) {
        if (r->labels[i] == CZ_IGNORE_LABEL) continue;
        r->n_hits += class_likeliest(r->logits + i * n, n) == (size_t)r->labels[i];
        r->n_examples++;
    }
    return CZ_OK;
}

/* ---- evaluation ----------------------------------------------------------------------------- */

/* The entities of row b: of its labelled words alone, as published results count them. */
static cz_status count_entities(struct run *r, const struct cz_batch *batch, int64_t b)
{
    const size_t n = (size_t)cz_model_n_classes(run_model(r));
    int32_t *labels = r->tags, *predicted = r->tags + r->T;
    size_t n_words = 0;
    for (int64_t i = b * batch->T; i < (b + 1) * batch->T; i++) {
        if (batch->labels[i] == CZ_IGNORE_LABEL) continue;
        labels[n_words] = batch->labels[i];
        predicted[n_words++] = (int32_t)class_likeliest(r->logits + (size_t)i * n, n);
    }
    return entity_count(r->scheme, labels, predicted, n_words, r->entities);
}

/* Every example counts on exactly one rank. Rows with an ignored label only fill a batch, because
 * all ranks must run the same number of them. */
static cz_status evaluate_rows(struct run *r, struct cz_text_loader *loader, double *loss_sum)
{
    const size_t n = (size_t)cz_model_n_classes(run_model(r));
    for (;;) {
        struct cz_batch batch = {.size = sizeof batch};
        TRY(cz_text_loader_next(loader, &batch));
        if (batch.B == 0) return CZ_OK;
        TRY(engine_predict(r->engine, &batch, r->logits));
        for (size_t i = 0; i < n_labels_of(r, &batch); i++) {
            if (batch.labels[i] == CZ_IGNORE_LABEL) continue; /* keeps others company */
            const float *logits = r->logits + i * n;
            const size_t label = (size_t)batch.labels[i];
            *loss_sum += class_loss(logits, n, label);
            r->confusion[label * n + class_likeliest(logits, n)]++;
        }
        for (int64_t b = 0; r->scheme && b < batch.B; b++) TRY(count_entities(r, &batch, b));
    }
}

/* Accuracy is that of words, averages are those over entities. */
static cz_status gather_entities(struct run *r, struct evaluation *out)
{
    const size_t n = entity_scheme_n_types(r->scheme);
    const size_t n_numbers = n * sizeof *r->entities / sizeof(double);
    TRY(engine_gather_metrics(r->engine, &r->entities[0].there, n_numbers, &r->entities[n].there));
    out->has_entities = true;
    out->entities = entity_report_compute(r->entities + n, n, NULL);
    out->classes.macro = out->entities.macro;
    out->classes.weighted = out->entities.weighted;
    return CZ_OK;
}

/* ---- values, and sets of classes ------------------------------------------------------------ */

enum { SUM_RIGHT = 0, SUM_LOSS, SUM_EXAMPLES, N_SUMS };

/* What a pass over the evaluation's rows fills: pairs (2n) of the n examples, each on one rank. */
struct target_pass {
    double *pairs; /* values: predicted (n), targets (n) */
    double sums[N_SUMS];
};

static cz_status target_rows(struct run *r, struct cz_text_loader *loader, struct target_pass *p)
{
    const size_t K = (size_t)cz_model_n_classes(run_model(r)), n = cz_texts_count(r->eval_texts);
    for (;;) {
        struct cz_batch batch = {.size = sizeof batch};
        TRY(cz_text_loader_next(loader, &batch));
        if (batch.B == 0) return CZ_OK;
        const size_t *rows = cz_text_loader_rows(loader);
        TRY(engine_predict(r->engine, &batch, r->logits));
        for (size_t b = 0; b < (size_t)batch.B; b++) {
            const float *logits = r->logits + b * K, *targets = batch.targets + b * K;
            if (batch.labels[b] == CZ_IGNORE_LABEL) continue;
            p->sums[SUM_EXAMPLES]++;
            if (p->pairs) {
                p->pairs[rows[b]] = (double)logits[0];
                p->pairs[n + rows[b]] = (double)targets[0];
                continue;
            }
            p->sums[SUM_RIGHT] += set_report_count(logits, targets, K, 0.5, r->entities);
            p->sums[SUM_LOSS] += set_report_loss(logits, targets, K);
        }
    }
}

static cz_status summarize_values(struct run *r, const double *mine, struct evaluation *out)
{
    const size_t n = cz_texts_count(r->eval_texts);
    double *all = malloc(2 * n * sizeof *all);
    if (!all) return err_set(CZ_NOMEM, 0, "no memory for %zu values", n);
    cz_status st = engine_gather_metrics(r->engine, mine, 2 * n, all);
    if (st == CZ_OK) st = value_report_compute(all, all + n, n, &out->values);
    free(all);
    out->has_values = true;
    out->loss = out->values.mse;
    return st;
}

static cz_status summarize_sets(struct run *r, const double *mine, struct evaluation *out)
{
    const size_t K = (size_t)cz_model_n_classes(run_model(r));
    const size_t n_numbers = K * sizeof *r->entities / sizeof(double);
    double sums[N_SUMS];
    TRY(engine_gather_metrics(r->engine, &r->entities[0].there, n_numbers, &r->entities[K].there));
    TRY(engine_gather_metrics(r->engine, mine, N_SUMS, sums));
    out->has_classes = out->has_entities = true;
    out->entities = set_report_compute(r->entities + K, K, NULL);
    out->loss = sums[SUM_LOSS] / sums[SUM_EXAMPLES];
    out->classes = (struct class_summary){.accuracy = sums[SUM_RIGHT] / sums[SUM_EXAMPLES],
                                          .macro = out->entities.macro,
                                          .weighted = out->entities.weighted,
                                          .n_examples = sums[SUM_EXAMPLES]};
    return CZ_OK;
}

static cz_status targets_evaluate(struct run *r, struct evaluation *out)
{
    const struct cz_text_loader_options options = loader_options(r, r->eval_texts, true);
    const size_t n = cz_texts_count(r->eval_texts);
    const bool values = cz_texts_problem(r->eval_texts) == CZ_PROBLEM_REGRESSION;
    struct cz_text_loader *loader = NULL;
    struct target_pass pass = {.pairs = values ? calloc(2 * n, sizeof *pass.pairs) : NULL};
    cz_status st = CZ_OK;
    *out = (struct evaluation){.loss = NAN};
    if (values && !pass.pairs) return err_set(CZ_NOMEM, 0, "no memory for %zu values", n);
    if (!values)
        memset(r->entities, 0, (size_t)cz_model_n_classes(run_model(r)) * sizeof *r->entities);
    st = cz_text_loader_open(&options, &loader);
    if (st == CZ_OK) st = target_rows(r, loader, &pass);
    if (st == CZ_OK)
        st = values ? summarize_values(r, pass.pairs, out) : summarize_sets(r, pass.sums, out);
    cz_text_loader_close(loader);
    free(pass.pairs);
    return st;
}

/* Counts and losses are summed over ranks, so every rank has the same result and decides the same
 * (best, stop). */
static cz_status classes_evaluate(struct run *r, struct evaluation *out)
{
    const size_t n = (size_t)cz_model_n_classes(run_model(r));
    const struct cz_text_loader_options options = loader_options(r, r->eval_texts, true);
    struct cz_text_loader *loader = NULL;
    double mine = 0, loss, *all = r->confusion + n * n;
    cz_status st;
    if (cz_texts_problem(r->eval_texts) != CZ_PROBLEM_SINGLE_LABEL) return targets_evaluate(r, out);
    memset(r->confusion, 0, n * n * sizeof *r->confusion);
    if (r->scheme) memset(r->entities, 0, entity_scheme_n_types(r->scheme) * sizeof *r->entities);
    TRY_GOTO(cz_text_loader_open(&options, &loader), done);
    TRY_GOTO(evaluate_rows(r, loader, &mine), done);
    TRY_GOTO(engine_gather_metrics(r->engine, r->confusion, n * n, all), done);
    TRY_GOTO(engine_gather_metrics(r->engine, &mine, 1, &loss), done);
    *out = (struct evaluation){.has_classes = true, .classes = class_report_compute(all, n, NULL)};
    out->loss = loss / out->classes.n_examples;
    if (r->scheme) TRY_GOTO(gather_entities(r, out), done);
done:
    cz_text_loader_close(loader);
    return st;
}

/* ---- the place ------------------------------------------------------------------------------ */

static void classes_tell(const struct run *r, struct cz_data_cursor *out)
{
    cz_text_loader_tell(r->loader, out);
}

static cz_status classes_seek(struct run *r, const struct cz_load_result *result)
{
    if (result->has_cursor) return cz_text_loader_seek(r->loader, &result->cursor);
    struct cz_data_cursor cursor;
    cz_text_loader_tell(r->loader, &cursor);
    run_count_epochs(r, &cursor);
    return cz_text_loader_seek(r->loader, &cursor);
}

static void classes_close(struct run *r)
{
    cz_text_loader_close(r->loader);
    cz_texts_close(r->texts);
    cz_texts_close(r->eval_texts);
    cz_texts_close(r->test_texts);
    free(r->logits);
    free(r->labels);
    free(r->confusion);
    free(r->entities);
    free(r->tags);
    entity_scheme_destroy(r->scheme);
}

const struct train_task train_task_classes = {
    .name = "classification",
    .model_task = CZ_TASK_CLASSIFICATION,
    .open_inputs = classes_open_inputs,
    .open_data = classes_open_data,
    .rows_per_epoch = classes_rows_per_epoch,
    .train_step = classes_train_step,
    .evaluate = classes_evaluate,
    .tell = classes_tell,
    .seek = classes_seek,
    .close = classes_close,
};

const struct train_task train_task_words = {
    .name = "token-classification",
    .model_task = CZ_TASK_TOKEN_CLASSIFICATION,
    .open_inputs = classes_open_inputs,
    .open_data = classes_open_data,
    .rows_per_epoch = classes_rows_per_epoch,
    .train_step = classes_train_step,
    .evaluate = classes_evaluate,
    .tell = classes_tell,
    .seek = classes_seek,
    .close = classes_close,
};
