/* Generating text: choose the next token, feed it back, repeat. */
#ifndef CZ_ENGINE_INFER_GENERATE_H
#define CZ_ENGINE_INFER_GENERATE_H

#include "model/model.h"

#include <czero/infer.h>

CZ_EXTERN_C_BEGIN

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
cz_status generate_read_ends(const char *dir, const char *name, struct generate_ends *out);

/* Divide or multiply, in place, the logits (V) of tokens that are marked in seen (V). */
void generate_penalize(const struct cz_generate_options *options, const uint8_t *seen, int64_t V,
                       float *logits);

/* The next token from logits (V), draw number `idx`. scratch: V floats. CZ_CORRUPT: no finite
 * logit. */
cz_status generate_pick(const struct cz_generate_options *options, const float *logits, int64_t V,
                        uint64_t idx, float *scratch, int32_t *token);

CZ_EXTERN_C_END
#endif
