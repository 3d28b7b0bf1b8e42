/* A micro-batch: the arrays that one forward pass reads.
 *
 * Loaders fill it (cz_data_next(), cz_text_loader_next()), or you do. */
#ifndef CZERO_BATCH_H
#define CZERO_BATCH_H

#include <czero/status.h>

CZ_EXTERN_C_BEGIN

/* A label that takes no part in the loss (PyTorch's default). */
#define CZ_IGNORE_LABEL (-100)

/* What a classifier of rows learns of each: one class, a value (or several), or which of the
 * classes it has. config.json's problem_type. */
enum cz_problem {
    CZ_PROBLEM_AUTO = 0,
    CZ_PROBLEM_SINGLE_LABEL, /* labels (B), cross-entropy */
    CZ_PROBLEM_REGRESSION,   /* targets (B,K), mean squared error */
    CZ_PROBLEM_MULTI_LABEL   /* targets (B,K) of 0 and 1, binary cross-entropy */
};

/* B rows of T tokens, row-major, in host memory. The arrays are borrowed: they must stay unchanged
 * until the engine call returns; a loader's own stay until its next batch. NULL means absent.
 * Set `size` before the batch is passed to a loader, too, and the rest to zero. */
struct cz_batch {
    size_t size; /* sizeof(struct cz_batch) */
    int64_t B, T;
    const int32_t *ids;        /* (B,T) token ids */
    const int32_t *labels;     /* (B,T) the target of each position, already shifted, or
                                  CZ_IGNORE_LABEL; for classification (B) class numbers */
    const int32_t *types;      /* (B,T) token types (segments) of encoders */
    const int32_t *positions;  /* (B,T) rows of the model's table, or rotary ones; NULL: those that
                                  the model counts, 0 … T-1 in each row for most */
    const uint8_t *key_mask;   /* (B,T) 1 = token, 0 = padding; NULL: no padding. Rows that end in
                                  padding may be computed without it */
    const float *loss_weights; /* per label, finite; NULL: all 1. A negative one makes its label
                                  less likely: set loss_divisor then, their sum may be 0 or less */
    float loss_divisor;        /* the weighted sum of losses is divided by it: when this batch is
                                  one of several of unequal size, their mean number of labels;
                                  0: the sum of this batch's weights */
    uint64_t sample;           /* global index of the first row: part of every random key, so that
                                  dropout differs from sample to sample and repeats in a resumed
                                  run */
    const int32_t *documents;  /* (B,T) for rows that hold several texts: attention stays within
                                  equal numbers, which do not decrease in a row (positions should
                                  begin anew with each text); NULL: a row is one text */
    const float *targets; /* (B,K) of models of CZ_LABELS_VALUES and CZ_LABELS_MULTI, which have
                             no labels; a NaN in front: the row has none. loss_weights are
                             then per row */
};

CZ_EXTERN_C_END
#endif
