/* What a chat template does where its source does not say it plainly: found by rendering small
 * conversations whose texts are known, once for each template and only when a row asks.
 *
 * Threads may ask at the same time. Errors: CZ_NOMEM; a conversation that the template refuses is
 * an answer. */
#ifndef CZ_DATA_CHAT_CHAT_PROBE_H
#define CZ_DATA_CHAT_CHAT_PROBE_H

#include "data/chat/chat_template.h"

/* What a template takes as the content of a message. */
enum chat_takes {
    CHAT_TAKES_LISTS = 1,   /* parts of text, {"type": "text", "text": …}, each is written */
    CHAT_TAKES_OBJECTS = 2, /* any object, which is written as JSON */
    CHAT_TAKES_TEXTS = 4,   /* a text is written */
    CHAT_TAKES_PART = 8     /* a list of one part of text */
};

/* What the template of conversations with or without tools takes as the content of a role's
 * messages. Python's way to write lists and objects does not count. for_text: asked for a text, so
 * that lists are looked at only where the template writes no text. */
cz_status chat_probe_takes(const struct chat_template *t, bool has_tools, const char *role,
                           bool for_text, unsigned *takes);

/* The text that the template writes before an answer inside a conversation,
 * "<|im_start|>assistant\n"; "" where that cannot be found. Owned by the template. */
cz_status chat_probe_head(const struct chat_template *t, bool has_tools, const char **head);

#endif
