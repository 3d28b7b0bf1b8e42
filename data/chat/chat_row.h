/* One example of instruction data: an object of JSON in one of the forms that people keep such data
 * in, read to one form.
 *
 *   {"messages": […], "tools": […]}             a conversation; roles and contents as they are
 *   {"prompt": […], "completion": […]}          the same in two parts
 *   {"prompt": "…", "completion": "…"}          plain texts
 *   {"conversations": [{"from", "value"}]}      ShareGPT
 *   {"instruction", "input", "output"}          Alpaca; "system" and "history" may stand beside
 *   {"text": "…"}                               plain text
 *
 * Members that are null are left out, and reasoning gets the names that templates read, as
 * transformers does before rendering. */
#ifndef CZ_DATA_CHAT_CHAT_ROW_H
#define CZ_DATA_CHAT_CHAT_ROW_H

#include "data/chat/chat_template.h"

enum chat_form { CHAT_MESSAGES, CHAT_TEXTS, CHAT_TEXT };

struct chat_row {
    struct json_doc *doc;
    enum chat_form form;
    bool has_prompt;       /* prompt and completion were apart */
    struct chat_view chat; /* CHAT_MESSAGES */
    size_t n_messages;     /* CHAT_MESSAGES */
    size_t n_prompt;       /* has_prompt: those of the prompt */
    const char *prompt;    /* CHAT_TEXTS */
    const char *text;      /* CHAT_TEXTS: the completion; CHAT_TEXT */
};

/* Read n bytes of JSON, an object. `where` stands in front of sentences. To be released by
 * chat_row_free(), also after an error. Errors: CZ_CORRUPT (no JSON), CZ_INVALID (no form that is
 * known: names the members that there are), CZ_NOMEM. */
cz_status chat_row_read(const char *json, size_t n, const char *where, struct chat_row *out);
void chat_row_free(struct chat_row *row); /* accepts a zeroed one */

/* Whether messages[i] is the assistant's. */
bool chat_row_is_answer(const struct chat_row *row, size_t i);

#endif
