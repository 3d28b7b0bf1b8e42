/* Inside the text loader: the order of examples, apart from tokens and threads.
 *
 * text_order.c   which examples a micro-batch holds: arithmetic, and one window of an epoch
 * text_loader.c  rows of tokens, made by a thread that runs ahead */
#ifndef CZ_DATA_LABELLED_TEXT_LOADER_IMPL_H
#define CZ_DATA_LABELLED_TEXT_LOADER_IMPL_H

#include "base/status.h"
#include <czero/data.h>

#define TEXT_LOADER_WINDOW 64 /* steps that are sorted by length together */
#define TEXT_LOADER_ROUND  8  /* a batch is a multiple of so many tokens wide */

struct text_order_entry {
    uint32_t length; /* estimate in eighths of a token */
    size_t at;       /* place in the window before sorting: makes lengths differ */
    size_t example;
};

struct text_order {
    const struct cz_texts *texts;
    uint64_t n;           /* examples */
    uint64_t micro_batch; /* rows of one part of a full step */
    uint64_t n_parts;     /* micro-batches of a step, over accumulation and ranks */
    uint64_t step_size;   /* examples of a full step */
    uint64_t n_steps;     /* of an epoch */
    uint64_t window_size; /* steps that are sorted together */
    bool shuffle, bucket, drop_last;
    uint64_t seed;
    uint32_t letter_cost,
        wide_cost; /* eighths of a token: a letter in a word, a Chinese character */
    struct text_order_entry *entries; /* the window held, its steps one after the other */
    uint64_t epoch, window;           /* which one; epoch UINT64_MAX: none */
    uint64_t counted_step;            /* whose labels were counted, UINT64_MAX: none */
    float counted;
    /* Of texts with words: labels that their rows have, by the tokenizer; NULL otherwise. */
    const struct cz_tokenizer *tokenizer;
    int64_t max_len;
    uint32_t *n_labels;    /* (n) UINT32_MAX: not known yet */
    int32_t *ids, *starts; /* (max_len) */
};

/* The row of example `example` of texts with words, as cz_tokenizer_encode_words() makes it. */
cz_status text_words_encode(const struct cz_texts *texts, const struct cz_tokenizer *tokenizer,
                            size_t example, int64_t max_len, int32_t *ids, int32_t *types,
                            int32_t *starts, int64_t *n_ids, size_t *n_cut);

/* Sizes in the options are checked. Errors: CZ_INVALID (drop_last leaves nothing), CZ_NOMEM, the
 * tokenizer's. */
cz_status text_order_init(struct text_order *o, const struct cz_text_loader_options *options);
void text_order_free(struct text_order *o); /* accepts a zeroed one */

/* Part `part` (< n_parts) of a step, counted over all epochs. */
struct text_part {
    const struct text_order_entry *entries; /* (n), good until the next call */
    size_t n;
    float divisor;   /* the step's labels / n_parts */
    uint64_t sample; /* running number of the first row, over all epochs */
};
/* Errors: the tokenizer's, of texts with words. */
cz_status text_order_part(struct text_order *o, uint64_t step, uint64_t part,
                          struct text_part *out);

#endif
