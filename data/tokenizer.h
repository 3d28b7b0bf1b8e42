/* Tokenizers: text to token ids and back.
 *
 * Life cycle: tokenizer_open() → encode; tokenizer_decoder_create() per generated text →
 * tokenizer_decode() token by token → tokenizer_decoder_end() → destroy → tokenizer_close().
 * A tokenizer is immutable: threads may share it. A decoder belongs to one text. */
#ifndef CZ_DATA_TOKENIZER_H
#define CZ_DATA_TOKENIZER_H

#include "base/status.h"

CZ_EXTERN_C_BEGIN

struct tokenizer;         /* opaque */
struct tokenizer_decoder; /* opaque */

/* "bytes": a token is a byte, its id the byte's value (vocabulary 256). Folders with a trained
 * tokenizer are CZ_UNSUPPORTED so far. *out is released by tokenizer_close(); NULL on error. */
CZ_API cz_status tokenizer_open(const char *name, struct tokenizer **out);
CZ_API void tokenizer_close(struct tokenizer *tok); /* accepts NULL */

CZ_API const char *tokenizer_name(const struct tokenizer *tok);
CZ_API int64_t tokenizer_vocab_size(const struct tokenizer *tok);

/* The id that ends a text, or -1 when the vocabulary has none. */
CZ_API int64_t tokenizer_end_id(const struct tokenizer *tok);

/* The ids of a whole text, as a block to free(). Errors: CZ_NOMEM, CZ_INVALID (text that the
 * tokenizer cannot express; names the byte). */
CZ_API cz_status tokenizer_encode(const struct tokenizer *tok, const char *text, size_t nbytes,
                                  int32_t **ids, size_t *n_ids);

/* Decoding as it streams: bytes of a character that is not complete yet are held back, bytes that
 * are no UTF-8 become U+FFFD, one for each longest part that could have begun a character. */
CZ_API cz_status tokenizer_decoder_create(const struct tokenizer *tok,
                                          struct tokenizer_decoder **out);
CZ_API void tokenizer_decoder_destroy(struct tokenizer_decoder *dec); /* accepts NULL */

/* Add one token. *text: the characters that are complete now, valid UTF-8, nbytes long (may be 0)
 * and terminated; the decoder's, until its next call. CZ_INVALID: no such id. */
CZ_API cz_status tokenizer_decode(struct tokenizer_decoder *dec, int64_t id, const char **text,
                                  size_t *nbytes);

/* The end of the text: what was held back, as U+FFFD. The decoder can start another text. */
CZ_API void tokenizer_decoder_end(struct tokenizer_decoder *dec, const char **text, size_t *nbytes);

CZ_EXTERN_C_END
#endif
