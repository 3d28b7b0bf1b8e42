/* A model at rest: its weights in memory, ready for evaluation, for one backward pass (to compare
 * gradients), or for decoding token by token. No optimizer, no config, one rank. Batches and
 * results are host memory whatever the device.
 *
 * Life cycle: cz_infer_create() plans, allocates and reads the weights → cz_infer_forward(),
 * cz_infer_hidden(), cz_infer_gradients(), cz_infer_decode() → cz_infer_destroy(). Nothing is
 * allocated in between. Not thread-safe. */
#ifndef CZ_ENGINE_INFER_INFER_H
#define CZ_ENGINE_INFER_INFER_H

#include "model/model.h"

CZ_EXTERN_C_BEGIN

struct cz_infer; /* opaque */

struct cz_infer_options {
    size_t size; /* sizeof(struct cz_infer_options) */
    int64_t B, T;        /* the largest batch */
    enum cz_dtype dtype; /* of weights and activations: F32, BF16 or F16 */
    bool gradients;      /* cz_infer_gradients() will be used; gradients are fp32 */
    bool cache;          /* cz_infer_decode() will be used where all layers can */
    const char *device;  /* "cpu" (NULL), "cuda" or "cuda:N" */
};

/* The model is borrowed until cz_infer_destroy(); its t_max does not change. *out is NULL on error:
 * CZ_NOMEM (does not fit in free memory: names both sizes), CZ_INVALID (T beyond the model), and
 * what opening the device and reading weights give. */
CZ_API cz_status cz_infer_create(struct cz_model *model, const struct cz_infer_options *options,
                                 struct cz_infer **out);
CZ_API void cz_infer_destroy(struct cz_infer *in); /* accepts NULL */

/* Evaluation, dropout off. loss: mean over labels, or NULL. logits: fp32 (B,T,V) or (B,n_classes),
 * or NULL. Errors: CZ_INVALID (see batch_check). */
CZ_API cz_status cz_infer_forward(struct cz_infer *in, const struct batch *batch, float *loss,
                                  float *logits);

/* What the head reads, dropout off: fp32 (B,T,C), the encoder's last hidden state. A decoder's is
 * not normalised yet. Errors: as cz_infer_forward(). */
CZ_API cz_status cz_infer_hidden(struct cz_infer *in, const struct batch *batch, float *hidden);

/* Forward and backward of the mean loss, dropout off. The gradients stay until the next call. */
CZ_API cz_status cz_infer_gradients(struct cz_infer *in, const struct batch *batch, float *loss);

/* d loss / d parameter, whole; NULL before the first cz_infer_gradients() and for frozen ones. */
CZ_API const float *cz_infer_gradient(const struct cz_infer *in, size_t param_idx);

/* Whether cz_infer_decode() works: asked for, and every layer has a cache. */
CZ_API bool cz_infer_can_decode(const struct cz_infer *in);

/* The next batch->T tokens of each sequence; `position` of them are in the cache. logits: fp32
 * (B,V) after the last one, or NULL. */
CZ_API cz_status cz_infer_decode(struct cz_infer *in, const struct batch *batch, int64_t position,
                                 float *logits);

/* Bytes that cz_infer_create() allocated, on the device and in host memory. */
CZ_API size_t cz_infer_nbytes(const struct cz_infer *in);

CZ_EXTERN_C_END
#endif
