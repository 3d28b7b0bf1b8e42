/* Running a trained classifier over texts, for eval and predict. Rows are sorted by length into
 * batches, so results arrive in another order than the texts; the callback gets the index of the
 * text. */
#include "tools/czero/train/score.h"

#include "base/dtype.h"
#include "base/log.h"
#include "base/status.h"
#include "engine/report/class_report.h"
#include "tools/czero/args.h"
#include "tools/czero/tool.h"
#include "tools/czero/train/adapter.h"
#include <czero/data.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH_USUAL = 32, LENGTH_USUAL = 512 };

/* What rows are made of: tokens of the model's tokenizer. */
static cz_status open_texts(struct scorer *s, const struct score_options *o)
{
    if (!cz_model_has_weights(s->model))
        return err_set(CZ_NOTFOUND, 0, "%s has no weights: train it first", o->model);
    const int64_t t_max = cz_model_t_max(s->model),
                  usual = t_max < LENGTH_USUAL ? t_max : LENGTH_USUAL;
    s->max_len = o->max_len > 0 ? o->max_len : usual;
    s->batch = o->batch > 0 ? o->batch : BATCH_USUAL;
    TRY(cz_model_set_shape(s->model, s->max_len));
    /* A tokenizer of another vocabulary would give ids out of range, or wrong ones silently. */
    const char *tokens = adapter_tokenizer(o->tokenizer, o->model, o->adapter);
    if (!o->tokenizer && strcmp(tokens, "bytes") == 0)
        return err_set(CZ_NOTFOUND, 0,
                       "%s has no tokenizer: name the one it was trained with by --tokenizer",
                       o->model);
    TRY(cz_tokenizer_open(tokens, &s->tokenizer));
    TRY(cz_tokenizer_check_vocab(s->tokenizer, cz_model_vocab_size(s->model), o->model));
    s->starts = calloc((size_t)s->max_len, sizeof *s->starts);
    s->ids = calloc((size_t)s->max_len, sizeof *s->ids);
    s->types = calloc((size_t)s->max_len, sizeof *s->types);
    return s->ids && s->types && s->starts
               ? CZ_OK
               : err_set(CZ_NOMEM, 0, "no memory for a row of %lld tokens", (long long)s->max_len);
}

static cz_status open_infer(struct scorer *s, const struct score_options *o)
{
    const struct cz_infer_options options = {.size = sizeof options,
                                             .B = s->batch,
                                             .T = s->max_len,
                                             .dtype = args_dtype(o->dtype, DTYPE_F32),
                                             .device = o->device};
    return cz_infer_create(s->model, &options, &s->infer);
}

/* The model's classes and where its logits go. */
static cz_status open_classes(struct scorer *s)
{
    const size_t n = (size_t)cz_model_n_classes(s->model);
    const size_t n_rows = (size_t)s->batch * (s->words ? (size_t)s->max_len : 1);
    s->n_classes = (int64_t)n;
    s->labels = calloc(n, sizeof *s->labels);
    s->logits = malloc(n_rows * n * sizeof *s->logits);
    if (!s->labels || !s->logits) return err_set(CZ_NOMEM, 0, "no memory for %zu classes", n);
    for (size_t k = 0; k < n; k++) s->labels[k] = cz_model_label_name(s->model, (int64_t)k);
    return CZ_OK;
}

/* Everything is refused before the weights are read: wrong kind of model, no weights, a tokenizer
 * that does not fit. Only a trained classifier has scores. */
cz_status score_open(struct scorer *s, const struct score_options *o, struct cz_model *model)
{
    *s = (struct scorer){.model = model};
    if (!model) return cz_last_status();
    const enum cz_labels labels = cz_model_labels(s->model);
    s->words = labels == CZ_LABELS_TOKEN_CLASS;
    s->problem = labels == CZ_LABELS_VALUES  ? CZ_PROBLEM_REGRESSION
                 : labels == CZ_LABELS_MULTI ? CZ_PROBLEM_MULTI_LABEL
                                             : CZ_PROBLEM_SINGLE_LABEL;
    if (!s->words && s->problem == CZ_PROBLEM_SINGLE_LABEL && labels != CZ_LABELS_CLASS)
        return err_set(CZ_INVALID, 0, "%s is not a classifier: its config.json names another head",
                       o->model);
    TRY(open_texts(s, o));
    TRY(open_classes(s));
    return open_infer(s, o);
}

cz_status score_open_any(struct scorer *s, const struct score_options *o, struct cz_model *model)
{
    *s = (struct scorer){.model = model};
    if (!model) return cz_last_status();
    TRY(open_texts(s, o));
    return open_infer(s, o);
}

void score_close(struct scorer *s)
{
    cz_infer_destroy(s->infer);
    cz_tokenizer_close(s->tokenizer);
    cz_model_destroy(s->model);
    free(s->labels);
    free(s->logits);
    free(s->ids);
    free(s->types);
    free(s->starts);
}

cz_status score_check_loss(float loss, uint64_t first, int64_t n_rows)
{
    if (isfinite(loss)) return CZ_OK;
    return err_set(CZ_CORRUPT, 0,
                   "rows %llu to %llu: the model's loss is %s: its weights or activations are not "
                   "finite",
                   (unsigned long long)first + 1, (unsigned long long)first + (uint64_t)n_rows,
                   isnan(loss) ? "nan" : "infinite");
}

/* The likeliest of NaNs would be the first class. */
static cz_status check_logits(const struct scorer *s, const float *logits, size_t example)
{
    const size_t n = (size_t)s->n_classes, k = dtype_first_nonfinite(logits, n, DTYPE_F32);
    if (k == n) return CZ_OK;
    return err_set(CZ_CORRUPT, 0, "text %zu: the model gives the logit %s for class %s",
                   example + 1, dtype_nonfinite_name((double)logits[k]), s->labels[k]);
}

/* Row b of a batch of T tokens per row: its text, or its words. */
static cz_status take_row(const struct scorer *s, int64_t b, int64_t T, const int32_t *starts,
                          size_t example, score_take take, void *user)
{
    const int64_t n = s->n_classes;
    if (!s->words) {
        TRY(check_logits(s, s->logits + b * n, example));
        take(user, example, 0, s->logits + b * n);
    }
    for (int64_t t = 0; s->words && t < T; t++) {
        if (starts[t] < 0) continue;
        TRY(check_logits(s, s->logits + (b * T + t) * n, example));
        take(user, example, (size_t)starts[t], s->logits + (b * T + t) * n);
    }
    return CZ_OK;
}

/* The tokens of one text, or of its words, as a batch of one row; B is 0 without any. */
static cz_status encode_one(struct scorer *s, const struct cz_tokenizer_input *text,
                            const struct cz_text_word *words, size_t n_words,
                            struct cz_batch *batch)
{
    int64_t n = 0;
    size_t n_cut = 0;
    if (s->words)
        TRY(cz_tokenizer_encode_words(s->tokenizer, text->text, words, n_words, s->max_len, s->ids,
                                      s->types, s->starts, &n, &n_cut));
    else
        TRY(cz_tokenizer_encode_input(s->tokenizer, text, s->max_len, s->ids, s->types, &n, NULL));
    *batch = (struct cz_batch){
        .size = sizeof *batch, .B = n > 0, .T = n, .ids = s->ids, .types = s->types};
    if (n_cut > 0)
        LOGV(LOG_WARN, SUB_DATA, "%zu of %zu word%s behind the first %lld tokens (--seq-len)",
             n_cut, n_words, n_words == 1 ? " is" : "s are", (long long)s->max_len);
    return CZ_OK;
}

cz_status score_one(struct scorer *s, const struct cz_tokenizer_input *text,
                    const struct cz_text_word *words, size_t n_words, score_take take, void *user)
{
    struct cz_batch batch;
    TRY(encode_one(s, text, words, n_words, &batch));
    if (batch.B == 0) return CZ_OK; /* no words, and a tokenizer without special tokens */
    TRY(cz_infer_forward(s->infer, &batch, NULL, s->logits));
    return take_row(s, 0, batch.T, s->starts, 0, take, user);
}

cz_status score_visit_one(struct scorer *s, const struct cz_tokenizer_input *text,
                          score_visit visit, void *user)
{
    const size_t row = 0;
    struct cz_batch batch;
    TRY(encode_one(s, text, NULL, 0, &batch));
    return batch.B > 0 ? visit(user, &batch, &row, NULL) : CZ_OK;
}

static cz_status visit_batches(struct cz_text_loader *loader, score_visit visit, void *user)
{
    for (;;) {
        struct cz_batch batch = {.size = sizeof batch};
        TRY(cz_text_loader_next(loader, &batch));
        if (batch.B == 0) return CZ_OK;
        batch.labels = NULL;
        batch.targets = NULL;
        TRY(visit(user, &batch, cz_text_loader_rows(loader), cz_text_loader_words(loader)));
    }
}

/* One pass. */
cz_status score_visit_texts(struct scorer *s, const struct cz_texts *texts, bool in_order,
                            score_visit visit, void *user)
{
    const struct cz_text_loader_options options = {.size = sizeof options,
                                                   .texts = texts,
                                                   .tokenizer = s->tokenizer,
                                                   .max_len = s->max_len,
                                                   .micro_batch = s->batch,
                                                   .accumulation = 1,
                                                   .bucket = !in_order,
                                                   .once = true};
    struct cz_text_loader *loader = NULL;
    char cut[TOOL_CUT_NBYTES];
    TRY(cz_text_loader_open(&options, &loader));
    cz_status st = visit_batches(loader, visit, user);
    if (st == CZ_OK && cz_text_loader_n_cut(loader) > 0)
        LOGV(LOG_WARN, SUB_DATA, "%s",
             tool_cut_sentence(cut, cz_text_loader_n_cut(loader), cz_texts_count(texts), "text",
                               s->max_len));
    cz_text_loader_close(loader);
    return st;
}

struct taker {
    struct scorer *s;
    score_take take;
    void *user;
};

static cz_status score_batch(void *user, const struct cz_batch *batch, const size_t *rows,
                             const int32_t *starts)
{
    const struct taker *t = user;
    TRY(cz_infer_forward(t->s->infer, batch, NULL, t->s->logits));
    for (int64_t b = 0; b < batch->B; b++)
        if (rows[b] != SIZE_MAX)
            TRY(take_row(t->s, b, batch->T, starts ? starts + b * batch->T : NULL, rows[b], t->take,
                         t->user));
    return CZ_OK;
}

/* Buckets of similar length: padding costs as much as tokens. */
cz_status score_texts(struct scorer *s, const struct cz_texts *texts, score_take take, void *user)
{
    struct taker taker = {s, take, user};
    return score_visit_texts(s, texts, false, score_batch, &taker);
}

/* Softmax in double after subtracting the largest logit: exp() cannot overflow. */
void score_probabilities(const float *logits, size_t n, double *p)
{
    const double largest = (double)logits[class_likeliest(logits, n)];
    double sum = 0;
    for (size_t k = 0; k < n; k++) sum += p[k] = exp((double)logits[k] - largest);
    for (size_t k = 0; k < n; k++) p[k] /= sum;
}

/* ---- words ---------------------------------------------------------------------------------- */

static cz_status word_scores_init(struct word_scores *w, size_t n_words)
{
    w->classes = malloc((n_words + 1) * sizeof *w->classes);
    w->p = calloc(n_words + 1, sizeof *w->p);
    if (!w->classes || !w->p)
        return err_set(CZ_NOMEM, 0, "no memory for the classes of %zu words", n_words);
    for (size_t i = 0; i < n_words; i++) w->classes[i] = -1;
    return CZ_OK;
}

void word_scores_free(struct word_scores *w)
{
    free(w->classes);
    free(w->p);
    *w = (struct word_scores){0};
}

/* The words of all examples are one array. */
size_t word_scores_at(const struct cz_texts *texts, size_t example)
{
    size_t n;
    const struct cz_text_word *first = cz_texts_words(texts, 0, &n);
    return (size_t)(cz_texts_words(texts, example, &n) - first);
}

struct word_taker {
    const struct scorer *scorer;
    const struct cz_texts *texts; /* NULL: one example */
    struct word_scores *out;
};

static void take_word(void *user, size_t example, size_t word, const float *logits)
{
    struct word_taker *t = user;
    const size_t n = (size_t)t->scorer->n_classes;
    const size_t at = (t->texts ? word_scores_at(t->texts, example) : 0) + word;
    const size_t cls = class_likeliest(logits, n);
    t->out->classes[at] = (int32_t)cls;
    t->out->p[at] = exp(-class_loss(logits, n, cls));
}

cz_status score_words(struct scorer *s, const struct cz_texts *texts, struct word_scores *out)
{
    const size_t n = cz_texts_count(texts);
    size_t n_last;
    struct word_taker taker = {s, texts, out};
    cz_texts_words(texts, n - 1, &n_last);
    TRY(word_scores_init(out, word_scores_at(texts, n - 1) + n_last));
    return score_texts(s, texts, take_word, &taker);
}

cz_status score_words_of(struct scorer *s, const struct cz_tokenizer_input *text,
                         const struct cz_text_word *words, size_t n_words, struct word_scores *out)
{
    struct word_taker taker = {s, NULL, out};
    TRY(word_scores_init(out, n_words));
    return score_one(s, text, words, n_words, take_word, &taker);
}
