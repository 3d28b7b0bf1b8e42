/* Generating text: choose the next token, feed it back, repeat. */
#ifndef CZ_ENGINE_INFER_GENERATE_H
#define CZ_ENGINE_INFER_GENERATE_H

#include "model/model.h"

#include <czero/infer.h>

CZ_EXTERN_C_BEGIN

/* Divide or multiply, in place, the logits (V) of tokens that are marked in seen (V). */
void generate_penalize(const struct cz_generate_options *options, const uint8_t *seen, int64_t V,
                       float *logits);

/* The next token from logits (V), draw number `idx`. scratch: V floats. CZ_CORRUPT: no finite
 * logit. */
cz_status generate_pick(const struct cz_generate_options *options, const float *logits, int64_t V,
                        uint64_t idx, float *scratch, int32_t *token);

CZ_EXTERN_C_END
#endif
