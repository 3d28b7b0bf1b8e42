/* One row of instruction data to tokens, each of which is trained or not. */
#ifndef CZ_DATA_CHAT_CHAT_ENCODE_H
#define CZ_DATA_CHAT_CHAT_ENCODE_H

#include "data/chat/chat_row.h"

#include <czero/data.h>

/* What the loss is on. */
enum chat_loss {
    CHAT_LOSS_FORM = 0,   /* as the row's form has it: answers, the completion, a whole text */
    CHAT_LOSS_ASSISTANT,  /* all that the assistant writes, with the end of each turn */
    CHAT_LOSS_COMPLETION, /* the completion; of a conversation the last answer */
    CHAT_LOSS_ALL
};

struct chat_encoder {
    const struct cz_tokenizer *tokenizer;
    struct chat_template *chat; /* NULL: plain texts only */
    enum chat_loss loss;
    int64_t now;   /* for strftime_now() */
    char end[256]; /* the end-of-text token, put behind plain texts; "": none */
    /* What the template writes directly after the last answer: a token that is never part of a word
     * ("<|im_end|>"), or without one a word ("###"). "": nothing. turn_id: the token, or the one
     * that begins the next message; −1: none. */
    char turn_end[256];
    int64_t turn_id;
};

/* The encoder of a tokenizer (lent until close) with the chat template of its folder, or `given`
 * (chat_template_open()). A folder without one will do for plain texts. loss: "assistant",
 * "completion", "all", or NULL for what the form of a row has. To be closed, also after an error.
 */
cz_status chat_encoder_open(struct chat_encoder *e, const struct cz_tokenizer *tokenizer,
                            const char *given, const char *loss);
void chat_encoder_close(struct chat_encoder *e); /* accepts a zeroed one */

/* The prompt that asks for the next answer of a conversation: the template's text with the
 * beginning of an answer (add_generation_prompt), and its ids, as transformers'
 * apply_chat_template() gives them. Answers at the conversation's end, or a completion, are left
 * out. text and *ids are the caller's, also after an error. Errors: as chat_encode(); CZ_INVALID
 * (plain text, no message is left). */
cz_status chat_encode_prompt(const struct chat_encoder *e, const struct chat_row *row,
                             const char *where, struct text_buf *text, int32_t **ids, size_t *n);

/* How many messages of a conversation its prompt has. */
size_t chat_n_asked(const struct chat_row *row);

/* Tokens of a row. trained[i]: whether the loss counts it. */
struct chat_tokens {
    int32_t *ids;
    uint8_t *trained;
    size_t n, n_trained; /* n_trained: of those behind the first, which nothing predicts */
    bool lacks_end;      /* an answer is followed by the end-of-text token, which is not trained */
};

/* Encode. To be released by chat_tokens_free(), also after an error. Errors: what a template
 * refuses (CZ_INVALID), CZ_INVALID (an answer cannot be found in the text), the tokenizer's,
 * CZ_NOMEM. */
cz_status chat_encode(const struct chat_encoder *e, const struct chat_row *row, const char *where,
                      struct chat_tokens *out);

/* The same with memory that a thread keeps from row to row. Zero it first. */
struct chat_scratch {
    struct jinja_text text, part;
    int32_t *ends;
    size_t ends_cap;
};
cz_status chat_encode_in(struct chat_scratch *scratch, const struct chat_encoder *e,
                         const struct chat_row *row, const char *where, struct chat_tokens *out);
void chat_scratch_free(struct chat_scratch *scratch); /* accepts a zeroed one */
void chat_tokens_free(struct chat_tokens *t);         /* accepts a zeroed one */

#endif
