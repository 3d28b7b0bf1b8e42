/* Inference: evaluation, gradients of one batch, decoding token by token, generating text. No
 * optimizer, no config, one rank.
 *
 *   cz_infer_create → cz_infer_forward, cz_infer_hidden, cz_infer_gradients, cz_infer_decode
 *     → cz_infer_destroy
 *
 * Batches and results are in host memory whatever the device. Nothing is allocated between create
 * and destroy. Not thread-safe. */
#ifndef CZERO_INFER_H
#define CZERO_INFER_H

#include <czero/batch.h>
#include <czero/model.h>

CZ_EXTERN_C_BEGIN

struct cz_infer; /* opaque */

struct cz_infer_options {
    size_t size;         /* sizeof(struct cz_infer_options) */
    int64_t B, T;        /* the largest batch */
    enum cz_dtype dtype; /* of weights and activations: F32, BF16 or F16 */
    bool gradients;      /* cz_infer_gradients() will be used; gradients are fp32 */
    bool cache;          /* cz_infer_decode() will be used where all layers can */
    const char *device;  /* "cpu" (NULL), "cuda" or "cuda:N" */
};

/* Plan, allocate and read the weights. The model is borrowed until cz_infer_destroy(); its t_max
 * must not change. *out is NULL on error: CZ_NOMEM (does not fit in free memory; names both sizes),
 * CZ_INVALID (T beyond the model), and what opening the device and reading weights report. */
CZ_API cz_status cz_infer_create(struct cz_model *model, const struct cz_infer_options *options,
                                 struct cz_infer **out);
CZ_API void cz_infer_destroy(struct cz_infer *in); /* accepts NULL */

/* Evaluation without dropout. loss: mean over labels, or NULL. logits: fp32 (B,T,V),
 * (B,n_classes) or (B,T,n_classes), or NULL. Errors: CZ_INVALID (shape; ids or labels out of
 * range). */
CZ_API cz_status cz_infer_forward(struct cz_infer *in, const struct cz_batch *batch, float *loss,
                                  float *logits);

/* The same without logits, and how many labels have the largest logit of their position.
 * CZ_UNSUPPORTED: the model is no causal language model. */
CZ_API cz_status cz_infer_tokens(struct cz_infer *in, const struct cz_batch *batch, float *loss,
                                 int64_t *n_right);

/* The last hidden state, without dropout: fp32 (B,T,C), as transformers' last_hidden_state; a
 * decoder's is behind the last norm. Errors: as cz_infer_forward(). */
CZ_API cz_status cz_infer_hidden(struct cz_infer *in, const struct cz_batch *batch, float *hidden);

/* Forward and backward of the mean loss, without dropout. The gradients stay until the next call.
 */
CZ_API cz_status cz_infer_gradients(struct cz_infer *in, const struct cz_batch *batch, float *loss);

/* d loss / d parameter, whole, fp32; NULL before the first cz_infer_gradients() and for frozen
 * parameters. param_idx as in cz_model_param(). Owned by `in`. */
CZ_API const float *cz_infer_gradient(const struct cz_infer *in, size_t param_idx);

/* Whether cz_infer_decode() works: requested, and every layer has a cache. */
CZ_API bool cz_infer_can_decode(const struct cz_infer *in);

/* The next batch->T tokens of each sequence; `position` tokens are in the cache. logits: fp32 (B,V)
 * after the last one, or NULL. */
CZ_API cz_status cz_infer_decode(struct cz_infer *in, const struct cz_batch *batch,
                                 int64_t position, float *logits);

/* Bytes that cz_infer_create() allocated, on the device and in host memory. */
CZ_API size_t cz_infer_nbytes(const struct cz_infer *in);

/* ---- generating text ----------------------------------------------------------------------------
 */

struct cz_generate_options {
    size_t size;            /* sizeof(struct cz_generate_options) */
    int64_t max_new_tokens; /* at least 0 */
    float temperature;      /* 0: greedy, the likeliest token; else logits are divided by it */
    int64_t top_k;          /* keep the k likeliest (and ties with the last); 0: all */
    uint64_t seed;          /* of the draws: (seed, number of the token) decides one */
    int64_t end_id; /* stop before emitting it. 0: at eos_token_id of the model's files, where
                       they have one; -1: at none of them */
    const int64_t *end_ids; /* further ids that end a text (also token 0); n_end_ids may be 0 */
    size_t n_end_ids;
    int64_t n_vocab;     /* larger ids are never chosen; 0: the model's vocabulary */
    enum cz_dtype dtype; /* of weights and activations */
    bool no_cache;       /* recompute the whole prefix for each token */
    const char *device;  /* as in cz_infer_options */
    /* Of those that top_k keeps, keep the likeliest whose probabilities, after the division by the
     * temperature, reach top_p together (and ties with the last); 0 or 1: all. */
    float top_p;
    /* Before all else: logits of tokens that the text holds already, its prompt included, are
     * divided by it where they are positive and multiplied where they are not; above 0. 0 or 1:
     * none. */
    float repetition_penalty;
};

/* Receives each new token; an error stops the generation and is returned. */
typedef cz_status (*cz_generate_emit)(void *user, int32_t token);

/* Of cz_generate_all(): a new token of prompt number `prompt`. Setting *ends ends that prompt's
 * text, as a stop word does. */
typedef cz_status (*cz_generate_emit_of)(void *user, size_t prompt, int32_t token, bool *ends);

struct cz_prompt {
    const int32_t *ids;
    size_t n_ids;
};

/* Continue `prompt` (1 … t_max tokens). When the model's context is full, its older half is dropped
 * and the rest is read again from position 0.
 * Errors: CZ_INVALID (prompt empty, too long, or outside the vocabulary; options), CZ_CORRUPT (no
 * finite logits), CZ_NOMEM, and what reading weights reports. */
CZ_API cz_status cz_generate(struct cz_model *model, const struct cz_generate_options *options,
                             const int32_t *prompt, size_t n_prompt, cz_generate_emit emit,
                             void *user);

/* Continue several prompts, in their order, with weights that are read once. No prompt is padded:
 * each text is the one that cz_generate() gives for it alone, with the same seed. n_prompts may be
 * 0. Errors: the same; CZ_INVALID for a prompt before any text is made. */
CZ_API cz_status cz_generate_all(struct cz_model *model, const struct cz_generate_options *options,
                                 const struct cz_prompt *prompts, size_t n_prompts,
                                 cz_generate_emit_of emit, void *user);

CZ_EXTERN_C_END
#endif
