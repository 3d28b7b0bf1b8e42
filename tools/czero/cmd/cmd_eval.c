/* czero eval: how good a model is on given data. Classifiers and language models differ in data and
 * figures; each has its half of this file. */
#include "base/printable.h"
#include "base/size.h"
#include "base/status.h"
#include "tools/czero/args.h"
#include "tools/czero/commands.h"
#include "tools/czero/output.h"
#include "tools/czero/plot/plot.h"
#include "tools/czero/tool.h"
#include "tools/czero/train/adapter.h"
#include "tools/czero/train/score.h"

#include "data/chat/chat_loader.h"
#include "engine/report/class_report.h"
#include "engine/report/entity_report.h"
#include "engine/report/target_report.h"
#include <czero/data.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct eval_options {
    struct score_options score;
    const char *text_column, *pair_column, *label_column, *picture;
    const char *task, *chat_template, *loss_on, *encoding;
    struct arg_list data;
    int64_t digits;
    double mask_probability;
    bool strip_spaces, skip_unlabelled, per_document, json, no_matrix;
};

#define FIELD(member) offsetof(struct eval_options, member)
static const struct arg_spec specs[] = {
    {"--model", ARG_STRING, FIELD(score.model), "DIR", "Hugging Face folder", .required = true},
    ADAPTER_OPTION(FIELD(score.adapter)),
    {"--data", ARG_WORDS, FIELD(data), "PATH",
     "labelled texts (.json, .jsonl, .csv, .tsv; words: .conll, .jsonl); language models: text, "
     ".jsonl or token files; with --task sft chats and instructions",
     .required = true},
    ENCODING_OPTION(FIELD(encoding)),
    {"--tokenizer", ARG_STRING, FIELD(score.tokenizer), "bytes|DIR",
     "tokenizer (default: the one in the model's folder)"},
    {"--seq-len", ARG_INT, FIELD(score.max_len), "T",
     "maximum length of a row in tokens (default: the model's, at most 512)", .min = 1},
    {"--batch", ARG_INT, FIELD(score.batch), "N", "rows per batch (default: 32)", .min = 1},
    {"--dtype", ARG_CHOICE, FIELD(score.dtype), "fp32|bf16|fp16",
     "type of weights and activations (default: fp32)"},
    {"--device", ARG_STRING, FIELD(score.device), "cpu|cuda|cuda:N",
     "device to run on (default: cpu)"},
    {"", ARG_HEADING, 0, NULL, "Labelled texts:"},
    {"--text-column", ARG_STRING, FIELD(text_column), "NAME",
     "column or member with the text (default: text, sentence, …)"},
    {"--pair-column", ARG_STRING, FIELD(pair_column), "NAME",
     "column or member with a second text, if any"},
    {"--label-column", ARG_STRING, FIELD(label_column), "NAME",
     "column or member with the label (default: label)"},
    {"--strip-spaces", ARG_FLAG, FIELD(strip_spaces), NULL, "remove white space inside texts"},
    SKIP_UNLABELLED_OPTION(FIELD(skip_unlabelled)),
    {"", ARG_HEADING, 0, NULL, "Language models:"},
    {"--per-document", ARG_FLAG, FIELD(per_document), NULL,
     "causal ones: attention and positions stay within a document"},
    {"--mask-probability", ARG_DOUBLE, FIELD(mask_probability), "P",
     "masked ones: share of tokens to predict (default: 0.15)"},
    {"--task", ARG_CHOICE, FIELD(task), "sft",
     "causal ones: evaluate answers of chats, as czero train"},
    {"--chat-template", ARG_STRING, FIELD(chat_template), "NAME|FILE",
     "--task sft: chat template (default: that of the tokenizer's folder)"},
    {"--loss-on", ARG_CHOICE, FIELD(loss_on), "assistant|completion|all",
     "--task sft: tokens that count"},
    {"", ARG_HEADING, 0, NULL, "Output:"},
    {"--digits", ARG_INT, FIELD(digits), "N", "decimal places (default: 4)", .min = 2},
    {"--no-matrix", ARG_FLAG, FIELD(no_matrix), NULL, "omit the confusion matrix"},
    {"--confusion", ARG_STRING, FIELD(picture), "FILE.svg|.png",
     "write the confusion matrix as a picture; PNG needs librsvg at run time"},
    {"--json", ARG_FLAG, FIELD(json), NULL, "print one JSON object instead of tables"},
};

const struct arg_command eval_command = {
    .name = "czero eval",
    .summary = "Evaluate a model on given data.",
    .specs = specs,
    .n_specs = CZ_ARRAY_LEN(specs),
    .epilogue = "For a classifier czero prints precision, recall, F1 and support of each class,\n"
                "their averages, and the confusion matrix; for a classifier of words (named\n"
                "entities) precision, recall and F1 of entities; for a language model loss,\n"
                "perplexity and, of causal ones, the share of tokens predicted.",
    .examples = "  czero eval --model classifier/ --data test.csv\n"
                "  czero eval --model gpt/ --data test.txt --json",
};

/* ---- classifiers ---------------------------------------------------------------------------- */

struct tally {
    const struct cz_texts *texts;
    double *confusion; /* (n,n) */
    double loss_sum;
    size_t n;
};

/* Called once per example. */
static void count(void *user, size_t example, size_t word, const float *logits)
{
    struct tally *t = user;
    (void)word;
    const size_t label = (size_t)cz_texts_label(t->texts, example);
    t->confusion[label * t->n + class_likeliest(logits, t->n)]++;
    t->loss_sum += class_loss(logits, t->n, label);
}

static void print_json_figures(const char *name, const struct class_figures *f)
{
    tool_put_json_string(stdout, name, strlen(name));
    printf(": {\"precision\": %.9g, \"recall\": %.9g, \"f1\": %.9g, \"support\": %.0f}",
           f->precision, f->recall, f->f1, f->support);
}

/* Class names come from files and are escaped; figures that are not finite become null. */
static cz_status print_json(const struct scorer *s, const struct tally *t)
{
    struct class_figures *each = calloc(t->n, sizeof *each);
    if (!each) return err_set(CZ_NOMEM, 0, "no memory for %zu classes", t->n);
    const struct class_summary all = class_report_compute(t->confusion, t->n, each);
    printf("{\"examples\": %.0f, \"loss\": ", all.n_examples);
    tool_put_json_number(stdout, t->loss_sum / all.n_examples);
    printf(", \"accuracy\": %.9g, ", all.accuracy);
    print_json_figures("macro avg", &all.macro);
    printf(", ");
    print_json_figures("weighted avg", &all.weighted);
    printf(", \"classes\": {");
    for (size_t k = 0; k < t->n; k++) {
        if (k) printf(", ");
        print_json_figures(s->labels[k], &each[k]);
    }
    printf("}, \"confusion\": [");
    for (size_t i = 0; i < t->n * t->n; i++)
        printable_print(stdout, "%s%.0f%s",
                        i % t->n ? ", "
                        : i      ? ", ["
                                 : "[",
                        t->confusion[i], i % t->n == t->n - 1 ? "]" : "");
    printf("]}\n");
    free(each);
    return CZ_OK;
}

static cz_status print_tables(const struct eval_options *o, const struct scorer *s,
                              const struct tally *t)
{
    const struct class_summary all = class_report_compute(t->confusion, t->n, NULL);
    const int digits = o->digits > 0 ? (int)o->digits : 4;
    TRY(class_report_print(stdout, t->confusion, t->n, s->labels, digits, !o->no_matrix));
    printf("loss %.6f over %.0f examples\n", t->loss_sum / all.n_examples, all.n_examples);
    return CZ_OK;
}

/* Drawn to memory first, as czero plot does. */
static cz_status draw_matrix(const struct eval_options *o, const struct scorer *s,
                             const struct tally *t)
{
    char *svg = NULL;
    size_t nbytes;
    FILE *stream = open_memstream(&svg, &nbytes);
    if (!stream) return err_set(CZ_NOMEM, 0, "no memory for the picture");
    plot_draw_matrix(t->confusion, t->n, s->labels, o->score.model, stream);
    bool failed = ferror(stream) != 0;
    failed = fclose(stream) != 0 || failed;
    cz_status st = failed ? err_set(CZ_NOMEM, 0, "no memory for the picture")
                          : plot_write(o->picture, svg, nbytes);
    free(svg);
    return st;
}

static cz_status eval_texts(const struct eval_options *o, struct scorer *s)
{
    const size_t n = (size_t)s->n_classes;
    const struct cz_texts_options options = {
        .size = sizeof options,
        .paths = o->data.items,
        .n_paths = o->data.n,
        .encoding = o->encoding,
        .text_column = o->text_column,
        .pair_column = o->pair_column,
        .label_column = o->label_column,
        .skip_unlabelled = o->skip_unlabelled,
        .strip_spaces = o->strip_spaces,
        .labels = s->labels,
        .n_labels = n,
    };
    struct cz_texts *texts = NULL;
    struct tally t = {.n = n, .confusion = calloc(n * n, sizeof *t.confusion)};
    cz_status st = t.confusion ? CZ_OK : err_set(CZ_NOMEM, 0, "no memory for %zu classes", n);
    if (st == CZ_OK) st = cz_texts_open(&options, &texts);
    t.texts = texts;
    if (st == CZ_OK) st = score_texts(s, texts, count, &t);
    if (st == CZ_OK) st = o->json ? print_json(s, &t) : print_tables(o, s, &t);
    if (st == CZ_OK && o->picture) st = draw_matrix(o, s, &t);
    cz_texts_close(texts);
    free(t.confusion);
    return st;
}

/* ---- values, and sets of classes ------------------------------------------------------------ */

struct target_tally {
    const struct cz_texts *texts;
    size_t n;       /* classes; 0: values */
    double *pairs;  /* predicted, then targets */
    float *targets; /* (n) of one example */
    double right, loss_sum;
    struct entity_counts *counts; /* (n) */
};

static void count_targets(void *user, size_t example, size_t word, const float *logits)
{
    struct target_tally *t = user;
    (void)word;
    cz_texts_targets(t->texts, example, t->targets);
    if (t->n == 0) {
        t->pairs[example] = (double)logits[0];
        t->pairs[cz_texts_count(t->texts) + example] = (double)t->targets[0];
        return;
    }
    t->right += set_report_count(logits, t->targets, t->n, 0.5, t->counts);
    t->loss_sum += set_report_loss(logits, t->targets, t->n);
}

static cz_status print_values(const struct eval_options *o, const struct target_tally *t)
{
    static const char *const names[] = {"mse", "mae", "pearson", "spearman", "r2"};
    const size_t n = cz_texts_count(t->texts);
    struct value_summary s;
    TRY(value_report_compute(t->pairs, t->pairs + n, n, &s));
    if (!o->json) {
        TRY(value_report_print(stdout, &s, o->digits > 0 ? (int)o->digits : 6));
        printable_print(stdout, "over %zu example%s\n", n, plural(n));
        return CZ_OK;
    }
    printf("{\"examples\": %zu", n);
    for (size_t i = 0; i < CZ_ARRAY_LEN(names); i++) {
        printable_print(stdout, ", \"%s\": ", names[i]);
        tool_put_json_number(stdout, value_report_metric(&s, names[i]));
    }
    printf("}\n");
    return CZ_OK;
}

static cz_status print_sets(const struct eval_options *o, const struct scorer *s,
                            const struct target_tally *t)
{
    const double n = (double)cz_texts_count(t->texts);
    const int digits = o->digits > 0 ? (int)o->digits : 4;
    const struct entity_summary all = set_report_compute(t->counts, t->n, NULL);
    if (!o->json) {
        TRY(set_report_print(stdout, t->counts, t->n, s->labels, digits));
        printf("\nsubset accuracy %.*f\nloss %.6f over %.0f examples\n", digits, t->right / n,
               t->loss_sum / n, n);
        return CZ_OK;
    }
    printf("{\"examples\": %.0f, \"loss\": ", n);
    tool_put_json_number(stdout, t->loss_sum / n);
    printf(", \"accuracy\": %.9g, ", t->right / n);
    print_json_figures("micro avg", &all.micro);
    printf(", ");
    print_json_figures("macro avg", &all.macro);
    printf(", ");
    print_json_figures("weighted avg", &all.weighted);
    printf(", \"classes\": {");
    for (size_t k = 0; k < t->n; k++) {
        struct class_figures each;
        if (k) printf(", ");
        set_report_compute(&t->counts[k], 1, &each);
        print_json_figures(s->labels[k], &each);
    }
    printf("}}\n");
    return CZ_OK;
}

static cz_status eval_targets(const struct eval_options *o, struct scorer *s)
{
    const bool values = s->problem == CZ_PROBLEM_REGRESSION;
    const size_t K = (size_t)s->n_classes;
    const struct cz_texts_options options = {
        .size = sizeof options,
        .paths = o->data.items,
        .n_paths = o->data.n,
        .encoding = o->encoding,
        .text_column = o->text_column,
        .pair_column = o->pair_column,
        .label_column = o->label_column,
        .skip_unlabelled = o->skip_unlabelled,
        .strip_spaces = o->strip_spaces,
        .labels = values ? NULL : s->labels,
        .n_labels = values ? 0 : K,
        .problem = s->problem,
    };
    struct cz_texts *texts = NULL;
    struct target_tally t = {.n = values ? 0 : K};
    if (values && K > 1)
        return err_set(CZ_UNSUPPORTED, 0, "%s has %zu values for a text: eval compares one",
                       o->score.model, K);
    if (o->picture || o->no_matrix)
        return err_set(CZ_INVALID, 0, "%s is for models of one class per text",
                       o->picture ? "--confusion" : "--no-matrix");
    TRY(cz_texts_open(&options, &texts));
    t.texts = texts;
    t.targets = calloc(K, sizeof *t.targets);
    t.counts = calloc(K, sizeof *t.counts);
    t.pairs = calloc(2 * cz_texts_count(texts), sizeof *t.pairs);
    cz_status st = t.targets && t.counts && t.pairs
                       ? CZ_OK
                       : err_set(CZ_NOMEM, 0, "no memory for %zu examples", cz_texts_count(texts));
    if (st == CZ_OK) st = score_texts(s, texts, count_targets, &t);
    if (st == CZ_OK) st = values ? print_values(o, &t) : print_sets(o, s, &t);
    cz_texts_close(texts);
    free(t.targets);
    free(t.counts);
    free(t.pairs);
    return st;
}

/* ---- classifiers of words -------------------------------------------------------------------- */

struct word_tally {
    struct tally t; /* loss and confusion of words */
    struct entity_scheme *scheme;
    struct entity_counts *counts;
    int32_t *predicted; /* as word_scores, of all texts */
};

static void count_word(void *user, size_t example, size_t word, const float *logits)
{
    struct word_tally *w = user;
    size_t n;
    const int32_t label = cz_texts_words(w->t.texts, example, &n)[word].label;
    const size_t cls = class_likeliest(logits, w->t.n);
    if (label < 0) return;
    w->predicted[word_scores_at(w->t.texts, example) + word] = (int32_t)cls;
    w->t.confusion[(size_t)label * w->t.n + cls]++;
    w->t.loss_sum += class_loss(logits, w->t.n, (size_t)label);
}

/* Words behind the end of a row, and those without a token, count for nothing, as in other
 * evaluations of this task. */
static cz_status count_sentence(struct word_tally *w, size_t example, int32_t *labels)
{
    size_t n, n_counted = 0;
    const struct cz_text_word *words = cz_texts_words(w->t.texts, example, &n);
    int32_t *predicted = w->predicted + word_scores_at(w->t.texts, example);
    for (size_t i = 0; i < n; i++) {
        if (predicted[i] < 0) continue;
        labels[n_counted] = words[i].label;
        predicted[n_counted++] = predicted[i];
    }
    return entity_count(w->scheme, labels, predicted, n_counted, w->counts);
}

static cz_status word_tally_make(struct word_tally *w, struct scorer *s)
{
    const size_t n_texts = cz_texts_count(w->t.texts);
    size_t n, n_longest = 0;
    for (size_t i = 0; i < n_texts; i++) {
        cz_texts_words(w->t.texts, i, &n);
        if (n > n_longest) n_longest = n;
    }
    cz_texts_words(w->t.texts, n_texts - 1, &n);
    const size_t n_words = word_scores_at(w->t.texts, n_texts - 1) + n;
    TRY(entity_scheme_create(s->labels, w->t.n, &w->scheme));
    w->counts = calloc(entity_scheme_n_types(w->scheme), sizeof *w->counts);
    w->predicted = malloc((n_words + 1) * sizeof *w->predicted);
    int32_t *labels = malloc((n_longest + 1) * sizeof *labels);
    cz_status st = CZ_OK;
    if (!w->counts || !w->predicted || !labels)
        st = err_set(CZ_NOMEM, 0, "no memory for the figures of %zu words", n_words);
    for (size_t i = 0; i < n_words && st == CZ_OK; i++) w->predicted[i] = -1;
    if (st == CZ_OK) st = score_texts(s, w->t.texts, count_word, w);
    for (size_t i = 0; i < n_texts && st == CZ_OK; i++) st = count_sentence(w, i, labels);
    free(labels);
    return st;
}

static cz_status print_word_json(const struct word_tally *w)
{
    const size_t n_types = entity_scheme_n_types(w->scheme);
    struct class_figures *each = calloc(n_types, sizeof *each);
    if (!each) return err_set(CZ_NOMEM, 0, "no memory for %zu types", n_types);
    const struct class_summary words = class_report_compute(w->t.confusion, w->t.n, NULL);
    const struct entity_summary all = entity_report_compute(w->counts, n_types, each);
    size_t n_printed = 0;
    printf("{\"examples\": %zu, \"words\": %.0f, \"loss\": ", cz_texts_count(w->t.texts),
           words.n_examples);
    tool_put_json_number(stdout, w->t.loss_sum / words.n_examples);
    printf(", \"accuracy\": %.9g, ", words.accuracy);
    print_json_figures("micro avg", &all.micro);
    printf(", ");
    print_json_figures("macro avg", &all.macro);
    printf(", ");
    print_json_figures("weighted avg", &all.weighted);
    printf(", \"types\": {");
    for (size_t i = 0; i < n_types; i++) {
        if (w->counts[i].there + w->counts[i].found == 0) continue;
        if (n_printed++) printf(", ");
        print_json_figures(entity_scheme_type(w->scheme, i), &each[i]);
    }
    printf("}}\n");
    free(each);
    return CZ_OK;
}

static cz_status print_word_tables(const struct eval_options *o, const struct word_tally *w)
{
    const struct class_summary words = class_report_compute(w->t.confusion, w->t.n, NULL);
    const int digits = o->digits > 0 ? (int)o->digits : 4;
    TRY(entity_report_print(stdout, w->scheme, w->counts, digits));
    printable_print(stdout,
                    "\naccuracy of words %.*f\nloss %.6f over %.0f words of %zu example%s\n",
                    digits, words.accuracy, w->t.loss_sum / words.n_examples, words.n_examples,
                    cz_texts_count(w->t.texts), plural(cz_texts_count(w->t.texts)));
    return CZ_OK;
}

static cz_status eval_words(const struct eval_options *o, struct scorer *s)
{
    const size_t n = (size_t)s->n_classes;
    const struct cz_texts_options options = {.size = sizeof options,
                                             .paths = o->data.items,
                                             .n_paths = o->data.n,
                                             .encoding = o->encoding,
                                             .text_column = o->text_column,
                                             .label_column = o->label_column,
                                             .skip_unlabelled = o->skip_unlabelled,
                                             .labels = s->labels,
                                             .n_labels = n,
                                             .words = true};
    struct cz_texts *texts = NULL;
    struct word_tally w = {.t = {.n = n, .confusion = calloc(n * n, sizeof *w.t.confusion)}};
    cz_status st = w.t.confusion ? CZ_OK : err_set(CZ_NOMEM, 0, "no memory for %zu classes", n);
    if (st == CZ_OK) st = cz_texts_open(&options, &texts);
    w.t.texts = texts;
    if (st == CZ_OK) st = word_tally_make(&w, s);
    if (st == CZ_OK) st = o->json ? print_word_json(&w) : print_word_tables(o, &w);
    if (st == CZ_OK && o->picture) st = draw_matrix(o, s, &w.t);
    cz_texts_close(texts);
    entity_scheme_destroy(w.scheme);
    free(w.t.confusion);
    free(w.counts);
    free(w.predicted);
    return st;
}

/* ---- language models ------------------------------------------------------------------------ */

struct token_eval {
    struct cz_model *model;
    struct cz_tokenizer *tokenizer;
    struct cz_data_loader *data;
    struct cz_infer *infer;
    double loss_sum, n, n_right;
};

static void token_eval_close(struct token_eval *t)
{
    cz_infer_destroy(t->infer);
    cz_data_close(t->data);
    cz_tokenizer_close(t->tokenizer);
    cz_model_destroy(t->model);
}

static cz_status token_eval_open(struct token_eval *t, const struct eval_options *o, int64_t T)
{
    const struct score_options *s = &o->score;
    TRY(cz_tokenizer_open(adapter_tokenizer(s->tokenizer, s->model, s->adapter), &t->tokenizer));
    struct cz_data_options options = {.size = sizeof options,
                                      .paths = o->data.items,
                                      .n_paths = o->data.n,
                                      .encoding = o->encoding,
                                      .tokenizer = t->tokenizer,
                                      .seq_len = T,
                                      .micro_batch = s->batch > 0 ? s->batch : 32,
                                      .once = true,
                                      .per_document = o->per_document};
    struct cz_masking masking = {.size = sizeof masking};
    const enum cz_labels labels = cz_model_labels(t->model);
    if (labels != CZ_LABELS_NEXT) {
        TRY(cz_masking_init(&masking, t->tokenizer,
                            isnan(o->mask_probability) ? 0.15f : (float)o->mask_probability));
        masking.detects = labels == CZ_LABELS_REPLACED;
        options.masking = &masking;
    }
    TRY(cz_data_open(&options, &t->data));
    TRY(cz_data_check_vocab(t->data, cz_model_vocab_size(t->model)));
    const struct cz_infer_options infer = {.size = sizeof infer,
                                           .B = options.micro_batch,
                                           .T = T,
                                           .dtype = args_dtype(s->dtype, DTYPE_F32),
                                           .device = s->device};
    return cz_infer_create(t->model, &infer, &t->infer);
}

static bool token_eval_has_accuracy(const struct token_eval *t)
{
    return cz_model_labels(t->model) == CZ_LABELS_NEXT;
}

/* Batch losses are means over labels: weighted with their number, the total does not depend on the
 * batch size. */
static cz_status token_eval_rows(struct token_eval *t)
{
    while (!cz_data_is_done(t->data)) {
        struct cz_batch batch = {.size = sizeof batch};
        float loss;
        double n = 0;
        int64_t n_right = 0;
        TRY(cz_data_next(t->data, &batch));
        if (batch.B == 0) continue;
        TRY(token_eval_has_accuracy(t) ? cz_infer_tokens(t->infer, &batch, &loss, &n_right)
                                       : cz_infer_forward(t->infer, &batch, &loss, NULL));
        for (int64_t i = 0; i < batch.B * batch.T; i++) n += batch.labels[i] != CZ_IGNORE_LABEL;
        if (n > 0) TRY(score_check_loss(loss, batch.sample, batch.B));
        t->loss_sum += (double)loss * n;
        t->n += n;
        t->n_right += (double)n_right;
    }
    return CZ_OK;
}

/* Infinity and NaN have no JSON form, hence the helper. */
static void print_token_eval(const struct eval_options *o, const struct token_eval *t)
{
    const double loss = t->loss_sum / t->n;
    if (o->json) {
        printf("{\"tokens\": %.0f, \"loss\": ", t->n);
        tool_put_json_number(stdout, loss);
        printf(", \"perplexity\": ");
        tool_put_json_number(stdout, exp(loss));
        if (token_eval_has_accuracy(t)) printf(", \"accuracy\": %.9g", t->n_right / t->n);
        printf("}\n");
        return;
    }
    printf("loss %.6f, perplexity %.4f", loss, exp(loss));
    if (token_eval_has_accuracy(t)) printf(", accuracy %.4f", t->n_right / t->n);
    printf(" over %.0f tokens\n", t->n);
}

static cz_status eval_chat_rows(struct token_eval *t, struct chat_loader *loader)
{
    while (!chat_loader_is_done(loader)) {
        struct cz_batch batch;
        float loss;
        double n = 0;
        int64_t n_right;
        chat_loader_next(loader, &batch);
        for (int64_t i = 0; i < batch.B * batch.T; i++) n += batch.labels[i] != CZ_IGNORE_LABEL;
        batch.loss_divisor = n > 0 ? (float)n : 1.0f;
        TRY(cz_infer_tokens(t->infer, &batch, &loss, &n_right));
        if (n > 0) TRY(score_check_loss(loss, batch.sample, batch.B));
        t->loss_sum += (double)loss * n;
        t->n += n;
        t->n_right += (double)n_right;
    }
    return CZ_OK;
}

static cz_status eval_chats(const struct eval_options *o, struct cz_model *model)
{
    const struct score_options *s = &o->score;
    const int64_t t_max = cz_model_t_max(model), usual = t_max < 1024 ? t_max : 1024;
    const int64_t T = s->max_len > 0 ? s->max_len : usual, B = s->batch > 0 ? s->batch : 32;
    const struct cz_infer_options infer = {.size = sizeof infer,
                                           .B = B,
                                           .T = T,
                                           .dtype = args_dtype(s->dtype, DTYPE_F32),
                                           .device = s->device};
    struct token_eval t = {.model = model};
    struct chat_encoder encoder = {0};
    struct chat_set *set = NULL;
    struct chat_loader *loader = NULL;
    cz_status st;
    TRY_GOTO(cz_model_set_shape(model, T), done);
    TRY_GOTO(cz_tokenizer_open(adapter_tokenizer(s->tokenizer, s->model, s->adapter), &t.tokenizer),
             done);
    TRY_GOTO(chat_encoder_open_in(&encoder, t.tokenizer, adapter_template(s->model, s->adapter),
                                  o->chat_template, o->loss_on),
             done);
    const struct chat_set_options options = {.paths = o->data.items,
                                             .n_paths = o->data.n,
                                             .encoding = o->encoding,
                                             .encoder = encoder,
                                             .max_len = T};
    TRY_GOTO(chat_set_open(&options, &set), done);
    const struct chat_loader_options rows = {.set = set,
                                             .max_len = T,
                                             .micro_batch = B,
                                             .accumulation = 1,
                                             .world_size = 1,
                                             .pad_id = cz_tokenizer_padding_id(t.tokenizer),
                                             .once = true};
    TRY_GOTO(chat_loader_open(&rows, &loader), done);
    TRY_GOTO(cz_infer_create(model, &infer, &t.infer), done);
    TRY_GOTO(eval_chat_rows(&t, loader), done);
    print_token_eval(o, &t);
done:
    chat_loader_close(loader);
    chat_set_close(set);
    chat_encoder_close(&encoder);
    token_eval_close(&t);
    return st;
}

static cz_status eval_tokens(const struct eval_options *o, struct cz_model *model)
{
    struct token_eval t = {.model = model};
    const int64_t t_max = cz_model_t_max(model), T = o->score.max_len > 0 ? o->score.max_len
                                                     : t_max < 512        ? t_max
                                                                          : 512;
    cz_status st = cz_model_set_shape(model, T);
    if (st == CZ_OK) st = token_eval_open(&t, o, T);
    if (st == CZ_OK) st = token_eval_rows(&t);
    if (st == CZ_OK) print_token_eval(o, &t);
    token_eval_close(&t);
    return st;
}

/* ---- the command ---------------------------------------------------------------------------- */

/* Options that this kind of model has no use for are refused. */
static cz_status check_options(const struct eval_options *o, enum cz_labels labels)
{
    const bool is_words = labels == CZ_LABELS_TOKEN_CLASS;
    const bool is_classifier = labels == CZ_LABELS_CLASS || labels == CZ_LABELS_VALUES ||
                               labels == CZ_LABELS_MULTI || is_words;
    const char *for_texts = o->pair_column    ? "--pair-column"
                            : o->strip_spaces ? "--strip-spaces"
                            : o->no_matrix    ? "--no-matrix"
                                              : NULL;
    const char *for_classes = o->text_column       ? "--text-column"
                              : o->pair_column     ? "--pair-column"
                              : o->label_column    ? "--label-column"
                              : o->strip_spaces    ? "--strip-spaces"
                              : o->skip_unlabelled ? "--skip-unlabelled"
                              : o->no_matrix       ? "--no-matrix"
                              : o->digits > 0      ? "--digits"
                              : o->picture         ? "--confusion"
                                                   : NULL;
    if (!is_classifier && for_classes)
        return err_set(CZ_INVALID, 0, "%s applies to classifiers only; %s is a language model",
                       for_classes, o->score.model);
    if (labels != CZ_LABELS_NEXT && o->task)
        return err_set(CZ_INVALID, 0, "--task sft is for causal language models; %s is not one",
                       o->score.model);
    if (!o->task && (o->chat_template || o->loss_on))
        return err_set(CZ_INVALID, 0, "%s needs --task sft",
                       o->chat_template ? "--chat-template" : "--loss-on");
    if (o->task && o->per_document)
        return err_set(CZ_INVALID, 0, "--per-document is for text, not for --task sft");
    if (labels != CZ_LABELS_NEXT && o->per_document)
        return err_set(CZ_INVALID, 0, "--per-document is for causal language models; %s is not one",
                       o->score.model);
    if (is_words && for_texts)
        return err_set(CZ_INVALID, 0, "%s is for classifiers of texts; %s classifies words",
                       for_texts, o->score.model);
    struct output_inputs inputs = {.n = 0};
    output_add_inputs(&inputs, &o->data);
    if (o->picture) TRY(plot_check_name("--confusion", o->picture));
    TRY(output_check_file("--confusion", o->picture, OUTPUT_PICTURE, &inputs));
    if (o->json && (o->no_matrix || o->digits > 0))
        return err_set(CZ_INVALID, 0, "%s applies to tables only; --json always writes everything",
                       o->no_matrix ? "--no-matrix" : "--digits");
    if (labels != CZ_LABELS_SAME && labels != CZ_LABELS_REPLACED && !isnan(o->mask_probability))
        return err_set(CZ_INVALID, 0,
                       "--mask-probability is for masked language models; %s is not one",
                       o->score.model);
    return CZ_OK;
}

static cz_status eval_classifier(const struct eval_options *o, struct cz_model *model)
{
    struct scorer scorer;
    cz_status st = score_open(&scorer, &o->score, model);
    if (st == CZ_OK)
        st = scorer.words                                ? eval_words(o, &scorer)
             : scorer.problem != CZ_PROBLEM_SINGLE_LABEL ? eval_targets(o, &scorer)
                                                         : eval_texts(o, &scorer);
    score_close(&scorer);
    return st;
}

static cz_status run(const struct eval_options *o)
{
    struct cz_model *model = adapter_open(o->score.model, o->score.adapter);
    if (!model) return cz_last_status();
    cz_status st = check_options(o, cz_model_labels(model));
    if (st == CZ_OK && !cz_model_has_weights(model))
        st = err_set(CZ_NOTFOUND, 0, "%s has no weights to evaluate", o->score.model);
    if (st != CZ_OK) {
        cz_model_destroy(model);
        return st;
    }
    const bool is_classifier = cz_model_n_classes(model) > 0;
    return is_classifier ? eval_classifier(o, model)
           : o->task     ? eval_chats(o, model)
                         : eval_tokens(o, model);
}

int cmd_eval(int argc, char **argv)
{
    struct eval_options o = {.mask_probability = NAN};
    enum args_result parsed = args_parse(&eval_command, argc, argv, &o);
    if (parsed != ARGS_OK) return parsed == ARGS_HELP ? EXIT_OK : EXIT_USAGE;
    tool_log_init(true);
    if (adapter_find_base(&o.score.model, &o.score.adapter) != CZ_OK) return tool_fail();
    return run(&o) == CZ_OK ? EXIT_OK : tool_fail();
}
