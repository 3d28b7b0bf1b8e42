/* Tokens of instruction data on disk, so that a run that is resumed or repeated need not tokenize
 * again what has been tokenized, and one that was interrupted while it tokenized continues.
 *
 * A file holds one block of rows and is named by a hash of the rows' text and of all that their
 * tokens depend on: the tokenizer's files, the chat templates, special tokens, and what the loss is
 * on. So nothing stale can be found, whatever became of the data's files; a damaged file counts as
 * none. Files are independent of each other: any may be deleted at any time. Ranks and runs may
 * share a folder.
 *
 * Life cycle: chat_cache_open() → chat_cache_get(), chat_cache_put() per block →
 * chat_cache_close(). One thread at a time. */
#ifndef CZ_DATA_CHAT_CHAT_CACHE_H
#define CZ_DATA_CHAT_CHAT_CACHE_H

#include "data/chat/chat_encode.h"

struct chat_cache; /* opaque */

/* The folder is made where it is missing. *out NULL without an error: the template writes the time,
 * so that tokens cannot be kept. Errors: CZ_IO, CZ_NOMEM, those of reading the tokenizer's files.
 */
cz_status chat_cache_open(const char *dir, const struct chat_encoder *e, struct chat_cache **out);
void chat_cache_close(struct chat_cache *c); /* accepts NULL */

/* What was kept for n_rows rows of n bytes in all; *kept NULL: nothing. A file that is longer than
 * such rows can need is not read. Released by free(). Errors: CZ_NOMEM. */
cz_status chat_cache_get(const struct chat_cache *c, const char *rows, size_t n, size_t n_rows,
                         char **kept, size_t *nbytes);

/* Keep it. A failure, as of a full disk, is a warning, and nothing is kept from then on. */
void chat_cache_put(struct chat_cache *c, const char *rows, size_t n, size_t n_rows,
                    const char *kept, size_t nbytes);

#endif
