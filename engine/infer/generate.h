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

/* Answers of one conversation: the key/value cache keeps the tokens that two prompts begin with.
 *
 * Life cycle: generate_session_open() → generate_session_answer() → generate_session_close(). */
struct generate_session;

/* T: positions of the longest prompt with its answer. options->max_new_tokens bounds each answer.
 * The model and what options point to are lent until close. Errors: cz_generate()'s. */
cz_status generate_session_open(struct cz_model *model, const struct cz_generate_options *options,
                                int64_t T, struct generate_session **out);
void generate_session_close(struct generate_session *s); /* accepts NULL */

/* Continue a prompt of up to T tokens. *is_full: the answer met the end of the T positions.
 * Errors: cz_generate()'s. */
cz_status generate_session_answer(struct generate_session *s, const struct cz_prompt *prompt,
                                  cz_generate_emit_of emit, void *user, bool *is_full);

/* How many tokens of the last prompt were in the cache already. */
int64_t generate_session_n_kept(const struct generate_session *s);

CZ_EXTERN_C_END
#endif
