/* What the library's other modules and the tools need of a tokenizer besides <czero/data.h>. */
#ifndef CZ_DATA_TOKENIZER_TOKENIZER_H
#define CZ_DATA_TOKENIZER_TOKENIZER_H

#include <czero/data.h>

CZ_EXTERN_C_BEGIN

/* The row that cz_tokenizer_encode_input() makes of one text, special tokens included and nothing
 * cut. *ids is the caller's, released by free(). Errors: as those of cz_tokenizer_encode(). */
cz_status tokenizer_encode_whole(const struct cz_tokenizer *tok, const char *text, size_t nbytes,
                                 int32_t **ids, size_t *n_ids);

CZ_EXTERN_C_END
#endif
