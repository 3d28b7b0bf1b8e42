/* One example of instruction data: an object of JSON in one of the forms that people keep such data
 * in, read to one form.
 *
 *   {"messages": […], "tools": […]}             a conversation
 *   {"conversations": [{"from", "value"}]}      ShareGPT; "conversation" is the same
 *   {"prompt": […], "completion": […]}          a conversation in two parts
 *   {"prompt": "…", "completion": "…"}          plain texts
 *   {"instruction", "input", "output"}          Alpaca; "system" and "history" may stand beside
 *   {"text": "…"}                               plain text
 *
 * Any list of messages may have role and content, or from and value. Contents become texts, or
 * lists of parts where the template takes these (chat_probe.h). Members that are null are left out,
 * and reasoning gets the names that templates read, as transformers does before rendering.
 *
 * Every member of a row and of its messages is used, obeyed, known to be harmless, refused by name,
 * or noted as unread. Time is linear in the row. */
#ifndef CZ_DATA_CHAT_CHAT_ROW_H
#define CZ_DATA_CHAT_CHAT_ROW_H

#include "data/chat/chat_template.h"

enum chat_form { CHAT_MESSAGES, CHAT_TEXTS, CHAT_TEXT };

enum chat_turn { CHAT_ANSWER = 1, CHAT_EXCLUDED = 2 };

struct chat_row {
    struct json_doc *doc;
    enum chat_form form;
    bool has_prompt;  /* prompt and completion were apart */
    bool is_excluded; /* by its own flag: nothing of it is trained */
    /* chat_row_read() gave CZ_INVALID for something that the model cannot read, such as an image:
     * the row is sound and can be left out. */
    bool is_unseen;
    struct chat_view chat;  /* CHAT_MESSAGES */
    size_t n_messages;      /* CHAT_MESSAGES */
    size_t n_prompt;        /* has_prompt: those of the prompt */
    uint8_t *turns;         /* (n_messages) enum chat_turn */
    size_t n_excluded;      /* messages that flags take out of training */
    const char *prompt;     /* CHAT_TEXTS */
    const char *text;       /* CHAT_TEXTS: the completion; CHAT_TEXT */
    struct text_buf unread; /* names of members that nothing uses, each ended by NUL */
};

/* What a row is read for. */
struct chat_reading {
    const struct chat_template *chat; /* NULL: none, so that only plain texts can be encoded */
    bool trains_all;                  /* a flag may ask for turns that are not the assistant's */
};

/* Read n bytes of JSON, an object. `where` stands in front of sentences. To be released by
 * chat_row_free(), also after an error. Errors: CZ_CORRUPT (no JSON), CZ_INVALID (no form that is
 * known: names the members that there are; a flag, content or member of another type than it has to
 * have; is_unseen), CZ_NOMEM. */
cz_status chat_row_read(const char *json, size_t n, const char *where,
                        const struct chat_reading *reading, struct chat_row *out);
void chat_row_free(struct chat_row *row); /* accepts a zeroed one */

/* Whether messages[i] is the assistant's. */
static inline bool chat_row_is_answer(const struct chat_row *row, size_t i)
{
    return row->turns[i] & CHAT_ANSWER;
}

#endif
