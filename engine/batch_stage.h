/* The micro-batch between the loader and the layers: checked, and copied to the layers' memory.
 * Valid from forward to backward.
 *
 * A batch whose rows end in padding is copied without it where the model's layers and what is asked
 * for allow that (batch.texts): its tokens follow each other in one row. Products whose shape takes
 * memory of its own (ops_matmul_is_by_shape()) get one of few numbers of tokens then.
 *
 * On the host layers read the copy itself. A GPU's is filled from page-locked host memory by one
 * asynchronous copy; there are two such places, so that the next batch is written while this one
 * may still be on its way. Losses come back through page-locked memory, too: the host waits for
 * them when a caller asks.
 *
 * Life cycle: batch_stage_nbytes(), batch_stage_host_nbytes() → batch_stage_bind() →
 * batch_stage_copy() and batch_stage_loss() per pass → batch_stage_free(). Not thread-safe. */
#ifndef CZ_ENGINE_BATCH_STAGE_H
#define CZ_ENGINE_BATCH_STAGE_H

#include "model/model.h"

CZ_EXTERN_C_BEGIN

#define STAGE_LOSSES_MAX 64 /* not read by a caller yet */

struct batch_stage {
    int64_t B, T; /* capacity */
    struct device *device;
    struct dev_stream *stream;
    unsigned char *memory;       /* what layers read */
    unsigned char *host[2];      /* a GPU's: what is copied there, in turn */
    struct dev_event *copied[2]; /* and has been */
    int turn;
    float *loss; /* device: where the chain puts the mean loss, and hits behind it */
    float
        *log_probs; /* device: (2,B,T) for layer_args.log_probs; NULL: the model is a classifier */
    float *values;  /* space for 2·n values of objectives (model/objective.h), and for log_probs on
                       their way to a caller; a GPU's, in page-locked memory */
    float *losses;  /* (STAGE_LOSSES_MAX) of passes that are not read yet; a GPU's */
    size_t n_losses;
    struct batch batch, host_batch;
    struct batch_labelled labelled;
    struct batch_texts texts;
    bool unpads, fills_sizes; /* see batch_stage_unpad() */
    bool lacks_labels;        /* no label of the last batch counts, and it is no part of several
                                 that share a divisor */
};

/* What a pass over a batch gives back. */
enum batch_results {
    BATCH_LOSS = 1 << 0,    /* the loss, or gradients: labels are needed */
    BATCH_LOGITS = 1 << 1,  /* logits: where each position has its own, padding stays */
    BATCH_EVAL = 1 << 2,    /* figures to the bit those of cz_infer, which computes padding */
    BATCH_AS_GIVEN = 1 << 3 /* the program looks at it once more: padding stays */
};

/* Bytes for batches of up to B×T tokens: on the device, and, for a GPU, of page-locked host memory.
 * A GPU's hold a list of the labelled rows besides. */
size_t batch_stage_nbytes(enum device_kind kind, const struct cz_model *model, int64_t B,
                          int64_t T);
size_t batch_stage_host_nbytes(enum device_kind kind, const struct cz_model *model, int64_t B,
                               int64_t T);

/* Lend the memory until batch_stage_free(); host_memory NULL when that takes 0 bytes. Copies and
 * losses are in the stream's order. Errors: what making events gives. */
cz_status batch_stage_bind(struct batch_stage *s, const struct cz_model *model, int64_t B,
                           int64_t T, struct device *device, struct dev_stream *stream,
                           void *memory, void *host_memory);
void batch_stage_free(struct batch_stage *s); /* accepts zeroed */

/* From now on batches are copied without padding where that is possible; fills_sizes: their tokens
 * are filled up to matmul_rows_filled(). For models that model_unpads(), on the host. */
void batch_stage_unpad(struct batch_stage *s, bool fills_sizes);

/* Check a batch against the model and copy it: s->batch is for the layers, until the call after
 * the next one. `results`: bits of enum batch_results. CZ_INVALID names the row, position and
 * value. */
cz_status batch_stage_copy(struct batch_stage *s, const struct cz_model *model,
                           const struct cz_batch *batch, unsigned results);

/* After a pass that put its loss at s->loss: add it to *sum, and give it to `loss`. With `loss`
 * NULL a GPU's is added later. Either NULL: not wanted. */
cz_status batch_stage_loss(struct batch_stage *s, float *loss, double *sum);

/* After batch_stage_loss() with a place for the loss: what the pass put behind s->loss. */
cz_status batch_stage_hits(struct batch_stage *s, float *hits);

/* Give the (B,T) log-probabilities of the last pass. The host may read them until the next one. */
cz_status batch_stage_log_probs(struct batch_stage *s, const float **out);

/* Add the losses that are still on their way, in the order of their passes. */
cz_status batch_stage_losses(struct batch_stage *s, double *sum);

CZ_EXTERN_C_END
#endif
