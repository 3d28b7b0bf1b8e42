/* A model at rest: its weights in memory, ready for evaluation, for one backward pass (to compare
 * gradients), or for decoding token by token. No optimizer, no config, one rank. Batches and
 * results are host memory whatever the device.
 *
 * Life cycle: infer_create() plans, allocates and reads the weights → infer_forward(),
 * infer_hidden(), infer_gradients(), infer_decode() → infer_destroy(). Nothing is allocated in
 * between. Not thread-safe. */
#ifndef CZ_ENGINE_INFER_H
#define CZ_ENGINE_INFER_H

#include "model/model.h"

CZ_EXTERN_C_BEGIN

struct infer; /* opaque */

struct infer_options {
    int64_t B, T;       /* the largest batch */
    enum dtype dtype;   /* of weights and activations: F32, BF16 or F16 */
    bool gradients;     /* infer_gradients() will be used; gradients are fp32 */
    bool cache;         /* infer_decode() will be used where all layers can */
    const char *device; /* "cpu" (NULL), "cuda" or "cuda:N" */
};

/* The model is borrowed until infer_destroy(); its t_max does not change. *out is NULL on error:
 * CZ_NOMEM (does not fit in free memory: names both sizes), CZ_INVALID (T beyond the model), and
 * what opening the device and reading weights give. */
CZ_API cz_status infer_create(struct model *model, const struct infer_options *options,
                              struct infer **out);
CZ_API void infer_destroy(struct infer *in); /* accepts NULL */

/* Evaluation, dropout off. loss: mean over labels, or NULL. logits: fp32 (B,T,V) or (B,n_classes),
 * or NULL. Errors: CZ_INVALID (see batch_check). */
CZ_API cz_status infer_forward(struct infer *in, const struct batch *batch, float *loss,
                               float *logits);

/* What the head reads, dropout off: fp32 (B,T,C), the encoder's last hidden state. A decoder's is
 * not normalised yet. Errors: as infer_forward(). */
CZ_API cz_status infer_hidden(struct infer *in, const struct batch *batch, float *hidden);

/* Forward and backward of the mean loss, dropout off. The gradients stay until the next call. */
CZ_API cz_status infer_gradients(struct infer *in, const struct batch *batch, float *loss);

/* d loss / d parameter, whole; NULL before the first infer_gradients() and for frozen ones. */
CZ_API const float *infer_gradient(const struct infer *in, size_t param_idx);

/* Whether infer_decode() works: asked for, and every layer has a cache. */
CZ_API bool infer_can_decode(const struct infer *in);

/* The next batch->T tokens of each sequence; `position` of them are in the cache. logits: fp32
 * (B,V) after the last one, or NULL. */
CZ_API cz_status infer_decode(struct infer *in, const struct batch *batch, int64_t position,
                              float *logits);

/* Bytes that infer_create() allocated, on the device and in host memory. */
CZ_API size_t infer_nbytes(const struct infer *in);

CZ_EXTERN_C_END
#endif
