/* Generating text: choose the next token, feed it back, repeat. */
#ifndef CZ_ENGINE_INFER_GENERATE_H
#define CZ_ENGINE_INFER_GENERATE_H

#include "model/model.h"

CZ_EXTERN_C_BEGIN

struct cz_generate_options {
    size_t size;            /* sizeof(struct cz_generate_options) */
    int64_t max_new_tokens; /* at least 0 */
    float temperature;      /* 0: greedy, the likeliest token; else logits are divided by it */
    int64_t top_k;          /* keep the k likeliest (and what ties with the last); 0: all */
    uint64_t seed;          /* of the draws: (seed, number of the token) decides one */
    int64_t end_id;         /* stop before emitting it; -1: never */
    const int64_t *end_ids; /* others that end a text; n_end_ids, may be 0 */
    size_t n_end_ids;
    int64_t n_vocab;     /* ids from here on are never chosen; 0: the model's vocabulary */
    enum cz_dtype dtype; /* of weights and activations */
    bool no_cache;       /* recompute the whole prefix for each token */
    const char *device;  /* as in infer_options */
};

/* The tokens that end a text as a Hugging Face folder names them: eos_token_id, a number or
 * several.
 */
#define GENERATE_ENDS_MAX 16
struct generate_ends {
    int64_t ids[GENERATE_ENDS_MAX + 1]; /* space for the tokenizer's */
    size_t n;
};

/* Those of a JSON file of the folder; none without such a file, or for a preset. Ids after the
 * first GENERATE_ENDS_MAX are left out. Errors: CZ_IO, CZ_CORRUPT (no integer, or no JSON; with
 * file and place). */
CZ_API cz_status generate_read_ends(const char *dir, const char *name, struct generate_ends *out);

/* Receives each new token; an error stops the generation and is returned. */
typedef cz_status (*cz_generate_emit)(void *user, int32_t token);

/* Continue `prompt` (1 … t_max tokens). When the model's context is full, its older half is
 * forgotten: the rest is read again from position 0.
 * Errors: CZ_INVALID (prompt empty, too long, or outside the vocabulary; options), CZ_CORRUPT (the
 * model gives no finite logits), CZ_NOMEM, what reading weights gives. */
CZ_API cz_status cz_generate(struct cz_model *model, const struct cz_generate_options *options,
                             const int32_t *prompt, size_t n_prompt, cz_generate_emit emit,
                             void *user);

/* The next token from logits (V), draw number `idx`. scratch: V floats. CZ_CORRUPT: no finite
 * logit. */
CZ_API cz_status generate_pick(const struct cz_generate_options *options, const float *logits,
                               int64_t V, uint64_t idx, float *scratch, int32_t *token);

CZ_EXTERN_C_END
#endif
