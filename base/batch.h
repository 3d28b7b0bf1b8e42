/* A micro-batch as it travels from the data loader through the engine to the layers. */
#ifndef CZ_BASE_BATCH_H
#define CZ_BASE_BATCH_H

#include "base/compiler.h"

#include <czero/batch.h>

#include <string.h>

/* The rows that have a label, for layers that leave out the others; N = B·T, in device memory. */
struct batch_labelled {
    int64_t n;
    const int32_t *rows; /* (N) the n rows in order, then 0 */
    const int32_t
        *places; /* (N) where each row stands in that order; N − 1 of one without a label */
    const int32_t *labels;     /* (N) of the n rows, then CZ_IGNORE_LABEL */
    const float *loss_weights; /* (N) likewise, then 0; NULL: all 1 */
};

/* The rows of a batch without padding: one row of tokens, in which the caller's follow each other.
 * Fillers may stand behind the last: tokens of no row, without labels. */
struct batch_texts {
    int64_t n;
    const int32_t *starts;  /* (n+1), for the host: row i is tokens [starts[i], starts[i+1]) */
    const int32_t *numbers; /* (n) 0 … n − 1, the documents of rows; in device memory */
};

/* What layers get: a caller's struct cz_batch, which has the meaning of each array, and what the
 * engine adds. */
struct batch {
    int64_t B, T;
    const int32_t *ids;        /* (B,T) token ids */
    const int32_t *labels;     /* (B,T) the target of each position, already shifted, or
                                  CZ_IGNORE_LABEL; for classification (B) class numbers */
    const int32_t *types;      /* (B,T) segment ids (BERT) */
    const int32_t *positions;  /* (B,T); NULL: 0 … T-1 in each row */
    const uint8_t *key_mask;   /* (B,T) 1 = token, 0 = padding; NULL: no padding */
    const int32_t *documents;  /* (B,T) attention stays within equal numbers; NULL: a row is one */
    const float *loss_weights; /* per label; NULL: all 1 */
    float loss_divisor;        /* what the weighted sum of losses is divided by: when this batch is
                                  one of several of unequal size, their mean number of labels; 0:
                                  the weights of this batch's labels, added up */
    const float *targets;      /* (B,K) instead of labels; a NaN in front: the row has none */
    uint64_t sample;           /* global index of the first row: part of every random key */

    /* What the engine adds for layers on a device that does not share the host's memory: the
     * arrays above are the device's then, and `host` is the same batch for the host to read. */
    const struct batch *host;              /* NULL: the arrays above are the host's to read */
    const struct batch_labelled *labelled; /* NULL: not known, or a label for every row */
    /* The batch is without padding: B is 1, T is N, and `documents` keeps the rows apart. What
     * there is one of for each row (labels of classes, targets, their weights) is in the order of
     * texts. NULL: as the caller gave it. */
    const struct batch_texts *texts;
};

/* The members that both structs have. */
#define BATCH_COPY(to, from)                                                                       \
    ((to)->B = (from)->B, (to)->T = (from)->T, (to)->ids = (from)->ids,                            \
     (to)->labels = (from)->labels, (to)->types = (from)->types,                                   \
     (to)->positions = (from)->positions, (to)->key_mask = (from)->key_mask,                       \
     (to)->documents = (from)->documents, (to)->loss_weights = (from)->loss_weights,               \
     (to)->loss_divisor = (from)->loss_divisor, (to)->targets = (from)->targets,                   \
     (to)->sample = (from)->sample)

/* A caller's batch, whose arrays are in host memory. */
static inline struct batch batch_of(const struct cz_batch *b)
{
    struct batch own;
    memset(&own, 0, sizeof own);
    BATCH_COPY(&own, b);
    return own;
}

/* The reverse, for a batch in host memory that keeps the caller's rows (no texts). */
static inline struct cz_batch batch_given(const struct batch *b)
{
    struct cz_batch theirs;
    memset(&theirs, 0, sizeof theirs);
    theirs.size = sizeof theirs;
    BATCH_COPY(&theirs, b);
    return theirs;
}

/* The caller's rows, and where row b begins and how many tokens it has: with texts, its padding
 * does not count. */
static inline int64_t batch_n_rows(const struct batch *b)
{
    return b->texts ? b->texts->n : b->B;
}

static inline int64_t batch_row_start(const struct batch *b, int64_t row)
{
    return b->texts ? b->texts->starts[row] : row * b->T;
}

static inline int64_t batch_row_length(const struct batch *b, int64_t row)
{
    return b->texts ? b->texts->starts[row + 1] - b->texts->starts[row] : b->T;
}

/* The batch whose arrays the host may read. */
static inline const struct batch *batch_on_host(const struct batch *b)
{
    return b->host ? b->host : b;
}

#endif
