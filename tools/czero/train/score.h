/* Texts through a model at rest: what czero eval, czero predict and czero embed share.
 * One process. */
#ifndef CZ_TOOLS_CZERO_TRAIN_SCORE_H
#define CZ_TOOLS_CZERO_TRAIN_SCORE_H

#include "base/status.h"
#include "model/model.h"
#include <czero/data.h>
#include <czero/infer.h>

struct score_options {
    const char *model, *adapter;   /* adapter NULL: none */
    const char *tokenizer, *dtype; /* NULL: the model's, fp32 */
    const char *device;            /* as in infer_options */
    int64_t max_len, batch;        /* 0: the model's longest up to 512; 32 */
};

struct scorer {
    struct cz_model *model;
    struct cz_tokenizer *tokenizer;
    struct cz_infer *infer;
    const char **labels; /* (n_classes) the model's names */
    int64_t n_classes, max_len, batch;
    bool words; /* classes are those of words */
    enum cz_problem problem;
    int32_t *ids, *types, *starts; /* (max_len) of one text */
    float *logits;                 /* (batch,n_classes); of words (batch,max_len,n_classes) */
};

/* Take over cz_model_open(options->model)'s result (NULL: its error) and open the tokenizer;
 * score_close() releases both, also after an error. Errors: those of opening; CZ_INVALID: no
 * classifier; CZ_NOTFOUND: no weights, no tokenizer. */
cz_status score_open(struct scorer *s, const struct score_options *options, struct cz_model *model);
void score_close(struct scorer *s);

/* Called once per example, in any order; of words (texts opened with `words`) once for each that
 * has a token in its row, those of an example in their order. logits: fp32 (n_classes). */
typedef void (*score_take)(void *user, size_t example, size_t word, const float *logits);
cz_status score_texts(struct scorer *s, const struct cz_texts *texts, score_take take, void *user);

/* The same of one text, or of its words. */
cz_status score_one(struct scorer *s, const struct cz_tokenizer_input *text,
                    const struct cz_text_word *words, size_t n_words, score_take take, void *user);

/* A model of any kind, for its hidden states: no classes, no logits. */
cz_status score_open_any(struct scorer *s, const struct score_options *options,
                         struct cz_model *model);

/* Called with each batch, which has no labels: rows (B) are numbers of texts, SIZE_MAX for a row
 * that only fills the batch; starts as cz_text_loader_words(). In the order of the texts, or sorted
 * by length, which is faster. */
typedef cz_status (*score_visit)(void *user, const struct cz_batch *batch, const size_t *rows,
                                 const int32_t *starts);
cz_status score_visit_texts(struct scorer *s, const struct cz_texts *texts, bool in_order,
                            score_visit visit, void *user);

/* The same of one text; not called if it has no tokens. */
cz_status score_visit_one(struct scorer *s, const struct cz_tokenizer_input *text,
                          score_visit visit, void *user);

/* What a classifier of words says of each: its class, -1 of words behind the row's end and of those
 * without a token, and the class's probability. Example i's begin at word_scores_at(). */
struct word_scores {
    int32_t *classes;
    double *p;
};
cz_status score_words(struct scorer *s, const struct cz_texts *texts, struct word_scores *out);
cz_status score_words_of(struct scorer *s, const struct cz_tokenizer_input *text,
                         const struct cz_text_word *words, size_t n_words, struct word_scores *out);
void word_scores_free(struct word_scores *w);
size_t word_scores_at(const struct cz_texts *texts, size_t example);

/* CZ_CORRUPT where a loss over rows from `first` on (from 0) is not finite. */
cz_status score_check_loss(float loss, uint64_t first, int64_t n_rows);

/* p (n) = softmax(logits), in double. */
void score_probabilities(const float *logits, size_t n, double *p);

#endif
