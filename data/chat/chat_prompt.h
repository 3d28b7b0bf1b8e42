/* Conversations that wait for an answer: a file of them, or messages of texts.
 *
 * A file holds JSON: a list of messages (one conversation), or rows as chat_row.h has them, one
 * after the other or as a list. */
#ifndef CZ_DATA_CHAT_CHAT_PROMPT_H
#define CZ_DATA_CHAT_CHAT_PROMPT_H

#include "data/chat/chat_row.h"

#define CHAT_PROMPTS_NBYTES_MAX ((size_t)256 << 20)

struct chat_prompts {
    struct chat_row *rows;
    uint64_t *lines;       /* (n) from 1 */
    struct text_buf *json; /* (n) as they were read */
    char *shown;           /* the file, for messages */
    size_t n, cap;
};

/* Read a file, "-" for standard input; encoding: as text_source_open(). Rows are checked, and are
 * to be bound to a template before they are encoded. To be released by
 * chat_prompts_free(), also after an error. Errors: chat_row_read()'s, the file's, CZ_INVALID (no
 * conversation), CZ_CORRUPT (no JSON, too long), CZ_NOMEM. */
cz_status chat_prompts_read(const char *path, const char *encoding, struct chat_prompts *out);
void chat_prompts_free(struct chat_prompts *p); /* accepts a zeroed one */

/* Read the rows as a template takes them, and name the members that nothing uses, once. Errors:
 * chat_row_read()'s; CZ_INVALID (such members, where the process is strict). */
cz_status chat_prompts_bind(struct chat_prompts *p, const struct chat_template *chat);

struct chat_message {
    const char *role, *content;
};

/* Adds one conversation made of n messages in memory. Errors: as chat_prompts_read(). */
cz_status chat_prompts_add(struct chat_prompts *p, const struct chat_message *messages, size_t n);

#endif
