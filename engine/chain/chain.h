/* Walking a model's layers: forward, backward (with recomputation), evaluation, decoding.
 *
 * A training pass takes one micro-batch, or several together: all of them go through a layer before
 * the next layer begins, forward and backward. Their gradients are added in the order of the
 * micro-batches, so the result has the bits of passes one after the other.
 *
 * A chain computes the bytes that a batch shape needs and the place of each layer's buffers in
 * them; the caller provides the memory, so the planner can ask before anything is allocated.
 *
 * Life cycle: chain_create() → chain_sizes() → chain_bind() → chain_forward() / chain_backward() /
 * chain_decode() … → chain_destroy(). Nothing is allocated after chain_create(). Not thread-safe.
 *
 * The chain does not know the owner of parameters and gradients: it has two tables of pointers,
 * indexed by parameter, which the optional hooks may rewrite around each layer (ZeRO stage 3
 * gathers there).
 */
#ifndef CZ_ENGINE_CHAIN_CHAIN_H
#define CZ_ENGINE_CHAIN_CHAIN_H

#include "model/model.h"

CZ_EXTERN_C_BEGIN

struct chain; /* opaque */

struct chain_options {
    struct ops *ops;          /* lent until chain_destroy() */
    int64_t B, T;             /* the largest batch */
    bool unpads;              /* batches may come without padding (batch.texts) */
    enum cz_dtype dtype;      /* of parameters and activations */
    enum cz_dtype grad_dtype; /* of parameter gradients */
    bool training;            /* false: evaluation and decoding only */
    bool keeps_all;           /* layers also keep values that backward could recompute cheaply */
    bool cache;               /* true: chain_decode() will be used */
    /* Keep only the input of every n-th layer and recompute the rest; 0: keep everything. */
    int64_t checkpoint_every;
    /* Keep those inputs in host memory, except the two that are needed first: two buffers on the
     * device are used alternately. No effect if no more than two are kept. */
    bool keep_on_host;
    /* > 1: micro-batches that chain_forward_all() may take. The inputs of all layers are kept for
     * each of them. With checkpoint_every > 0 every layer but the last is recomputed, one
     * micro-batch at a time right before its backward; see also chain_place_saved().
     * keep_on_host then is about these inputs. */
    int64_t n_together;
    /* With n_together > 1, instead of keep_on_host: in a file, chain_memory.file. */
    bool keep_in_file;
};

/* Bytes of the blocks for chain_bind(). Blocks of 0 bytes may be NULL. */
struct chain_sizes {
    size_t activations;   /* layer inputs and values that layers keep from forward to backward */
    size_t workspace;     /* scratch shared by all layers */
    size_t gradients;     /* two buffers, used alternately for gradients of activations; those of
                             the last layers' inputs for each of n_together micro-batches */
    size_t cache;         /* keys and values of chain_decode() */
    size_t kept;          /* host memory, page-locked for a GPU: keep_on_host */
    size_t file;          /* of chain_memory.file: keep_in_file, CHAIN_SAVED_IN_FILE */
    double flops_forward; /* of one forward pass over (B,T) */
};

enum chain_phase { CHAIN_FORWARD = 0, CHAIN_RECOMPUTE, CHAIN_BACKWARD, CHAIN_DECODE };

/* Called around every layer. enter: the layer's entries of `params` (and of `grads`, when gradients
 * will be written) must be valid on return. leave: they may become invalid; after CHAIN_BACKWARD
 * the layer's gradients are complete. Either may be NULL. An error stops the walk. */
struct chain_hooks {
    void *user;
    cz_status (*enter)(void *user, size_t layer_idx, enum chain_phase phase);
    cz_status (*leave)(void *user, size_t layer_idx, enum chain_phase phase);
};

/* A file that moves bytes beside the walk. Offsets, sizes and memory are multiples
 * of CHAIN_FILE_ALIGN. A ticket of 0 is done. */
struct chain_file {
    void *user;
    cz_status (*write_begin)(void *user, uint64_t off, size_t nbytes, const void *src,
                             uint64_t *ticket);
    cz_status (*read_begin)(void *user, uint64_t off, size_t nbytes, void *dst, uint64_t *ticket);
    cz_status (*wait)(void *user, uint64_t ticket);
};
#define CHAIN_FILE_ALIGN ((size_t)4096)

/* Everything is lent until the next chain_bind() or chain_destroy(). */
struct chain_memory {
    void *activations, *workspace, *gradients, *cache, *kept; /* aligned to CHAIN_ALIGN */
    struct dev_stream *copies; /* on which `kept` is filled and read; NULL: the run's own */
    struct chain_file file;    /* of chain_sizes.file bytes */
    const void *const *params; /* by parameter index */
    void *const *grads;        /* by parameter index; NULL entries: frozen. NULL: no training */
    const size_t *grad_numel;  /* elements of each gradient; NULL: all of the parameter */
    struct chain_hooks hooks;
};
#define CHAIN_ALIGN ((size_t)256)

/* What the sizes of a pass depend on; n_texts as in struct batch_shape. */
struct chain_shape {
    int64_t B, T, n_texts;
};

static inline struct chain_shape chain_shape_of(const struct batch *batch)
{
    return (struct chain_shape){batch->B, batch->T, batch->texts ? batch->texts->n : 0};
}

/* One pass over the chain. */
struct chain_run {
    struct dev_stream *stream;
    const struct batch *batch; /* device memory; rows and their lengths at most the chain's; a TRAIN
                                  batch is lent until chain_backward() returns */
    enum layer_mode mode;      /* LAYER_TRAIN or LAYER_EVAL */
    struct rng_key rng;        /* the chain sets its site */
    float dloss;               /* TRAIN: gradient of the loss */
    float *loss;               /* one fp32 in device memory, or NULL */
    float *hits;               /* the same, EVAL only: labels that have the largest logit */
    float *log_probs; /* device fp32 (B,T), or NULL: as in layer_args, and so is the next */
    const struct objective *objective;
    bool no_branches; /* EVAL: the model without its adapter */
    float *logits;    /* fp32 (B,T,V), EVAL only, or a classifier's; or NULL. Host or device
                        memory, filled in the stream's order */
    float *hidden;   /* fp32 (B,T,C), EVAL only: the last hidden state, which the head reads (behind
                        its norm, if it has one); or NULL. If it is the only result requested, the
                        head does not run */
    bool accumulate; /* TRAIN: add to grads; false: the first use overwrites them */
    bool no_dropout; /* TRAIN without dropout: to compare gradients */
};

/* A chain over the model's layers (the model is borrowed until chain_destroy()).
 * Errors: CZ_INVALID (the shape cannot run, a size overflows), CZ_NOMEM. */
cz_status chain_create(const struct cz_model *model, const struct chain_options *options,
                       struct chain **out);

/* The same over layers without a model: `layers` is copied, the arrays in it are borrowed.
 * n_params: one more than the largest parameter index. */
cz_status chain_create_layers(const struct model_layer *layers, size_t n_layers, size_t n_params,
                              const struct chain_options *options, struct chain **out);
void chain_destroy(struct chain *chain); /* accepts NULL */

/* Why micro-batches cannot go through these layers together with the same sums: two layers in front
 * of the loss layer share a parameter, or more than one of them does with the loss layer; NULL:
 * they can. */
const char *chain_together_obstacle(const struct cz_model *model);

/* Where what a layer saves beside its input is between its forward and its backward: nowhere (it is
 * recomputed), in memory, or in chain_memory.file, through memory for two micro-batches of one
 * layer. */
enum chain_saved { CHAIN_SAVED_NOWHERE = 0, CHAIN_SAVED_IN_MEMORY, CHAIN_SAVED_IN_FILE };
#define CHAIN_N_SAVED 3

/* Before chain_bind(), with n_together > 1: one for each layer. The last one uses up what it saves
 * at once; where it shares a parameter (chain_tied_layer()), its own says whether the gradients of
 * logits are kept in memory until that parameter's are made, or else are made again. In memory at
 * first; with checkpoint_every nowhere, whatever is asked for here. Changes chain_sizes(). */
cz_status chain_place_saved(struct chain *chain, const enum chain_saved *where);
enum chain_saved chain_saved_at(const struct chain *chain, size_t layer_idx);

/* The layer whose backward together (n_together > 1) also needs the loss layer's parameters,
 * because they share one: the loss layer's gradient of it is made there, so that each micro-batch
 * adds to it what it adds one after the other. SIZE_MAX: none. */
size_t chain_tied_layer(const struct chain *chain);

/* Bytes of all micro-batches' gradients of logits that are, or would be, kept for that layer; 0: no
 * such layer, the parameter is frozen, or the loss layer has no use for them. */
size_t chain_put_off_nbytes(const struct chain *chain);
bool chain_keeps_put_off(const struct chain *chain);

/* Bytes in which a layer's weights may be kept in the order that products read, from the first
 * micro-batch of a visit to the last (ops_matmul_keep()), both for y = x·w and for dx = dy·wᵀ: of
 * the largest layer but the last, which keeps what fits. 0: products have no such order, or there
 * are no micro-batches together. Not kept at first; before chain_bind(), changes chain_sizes(). */
size_t chain_packed_nbytes(const struct chain *chain);
cz_status chain_keep_packed(struct chain *chain, bool keep);
bool chain_keeps_packed(const struct chain *chain);

struct chain_sizes chain_sizes(const struct chain *chain);
size_t chain_n_layers(const struct chain *chain);
const struct model_layer *chain_layer(const struct chain *chain, size_t layer_idx);

/* The sizes of one layer for the planned shape. */
struct layer_sizes chain_layer_sizes(const struct chain *chain, size_t layer_idx);

/* Whether a TRAIN pass will run the layer's forward a second time during backward. */
bool chain_is_recomputed(const struct chain *chain, size_t layer_idx);

/* The k-th visit of a TRAIN pass: every layer forward, then backward with what it recomputes (with
 * n_together > 1 a layer is recomputed within its backward). An EVAL pass makes the forward visits
 * only. */
struct chain_visit {
    size_t layer_idx;
    enum chain_phase phase;
};
size_t chain_n_visits(const struct chain *chain);
struct chain_visit chain_visit_at(const struct chain *chain, size_t k);

/* After chain_backward(): the first trained parameter for which, in one of the micro-batches, every
 * layer that uses it reported `none`; SIZE_MAX if there is none. That micro-batch added nothing to
 * its gradient. */
size_t chain_param_unused(const struct chain *chain);

void chain_bind(struct chain *chain, const struct chain_memory *memory);

/* Errors: CZ_INVALID (batch larger than planned, a mode for which the chain was not created), and
 * errors of layers and hooks (prefixed with the layer's number and class). */
cz_status chain_forward(struct chain *chain, const struct chain_run *run);

/* A TRAIN pass over n ≤ n_together micro-batches together; their batches are lent until
 * chain_backward() returns. runs[0].accumulate counts for all of them. The same errors. */
cz_status chain_forward_all(struct chain *chain, const struct chain_run *runs, size_t n);

/* Backward of the last TRAIN pass. CZ_INVALID if there was none. */
cz_status chain_backward(struct chain *chain);

/* Whether every layer can decode with a cache. */
bool chain_can_decode(const struct chain *chain);

/* Feed the next batch->T tokens of each sequence (one when generating, or a whole prompt): ids
 * (B,T), `position` tokens are already in the cache, position + T at most the chain's T. logits:
 * fp32 (B,V) of the last token, or NULL; as in chain_run. CZ_UNSUPPORTED when a layer cannot
 * decode. */
cz_status chain_decode(struct chain *chain, struct dev_stream *stream, const struct batch *batch,
                       int64_t position, float *logits);

CZ_EXTERN_C_END
#endif
