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
    /* The text that the template writes directly after the last answer: a token that is never part
     * of a word ("<|im_end|>"), or without such a token a word ("###"). "": none. turn_id: the
     * token, or the one that begins the next message; −1: none. */
    char turn_end[256];
    int64_t turn_id;
};

/* The encoder of a tokenizer (lent until close) with the chat template of its folder, or `given`
 * (chat_template_open()). A folder without one will do for plain texts. loss: "assistant",
 * "completion", "all", or NULL for what the form of a row has. To be closed, also after an error.
 */
cz_status chat_encoder_open(struct chat_encoder *e, const struct cz_tokenizer *tokenizer,
                            const char *given, const char *loss);

/* The same; without `given` the template is that of the folder `dir` (NULL: the tokenizer's). */
cz_status chat_encoder_open_in(struct chat_encoder *e, const struct cz_tokenizer *tokenizer,
                               const char *dir, const char *given, const char *loss);
void chat_encoder_close(struct chat_encoder *e); /* accepts a zeroed one */

/* The prompt that asks for the next answer of a conversation: the template's text with the
 * beginning of an answer (add_generation_prompt), and its ids, as transformers'
 * apply_chat_template() gives them. Answers at the conversation's end, or a completion, are left
 * out. text and *ids are the caller's, also after an error. Errors: as chat_encode(); CZ_INVALID
 * (plain text, no message is left). */
cz_status chat_encode_prompt(const struct chat_encoder *e, const struct chat_row *row,
                             const char *where, struct text_buf *text, int32_t **ids, size_t *n);

/* Whether there is a template: without one an error says where czero looked. */
cz_status chat_need_template(const struct chat_encoder *e);

/* How many messages of a conversation its prompt has. */
size_t chat_n_asked(const struct chat_row *row);

/* Why a row is not trained. The first three come with a sentence of their own. */
enum chat_fault {
    CHAT_REFUSED,   /* by the template, or by --loss-on */
    CHAT_UNFOUND,   /* an answer is not where the template's other renderings have it */
    CHAT_UNSEEN,    /* images, or other parts that the model cannot read (chat_row.is_unseen) */
    CHAT_UNTRAINED, /* no answer, or flags exclude all */
    CHAT_CUT_AWAY,  /* by --seq-len */
    CHAT_N_FAULTS
};

/* Where a template marks no answers, they are searched for in further renderings of a row. The
 * search ends, and the row is refused, after CHAT_SEARCH_TIMES the work of writing the row once (a
 * step of Jinja, and one for each byte), or CHAT_SEARCH_STEPS_MAX. That is enough for every
 * conversation of at most CHAT_SEARCH_TIMES / 3 answers that is not very long. */
#define CHAT_SEARCH_TIMES     512u
#define CHAT_SEARCH_STEPS_MAX ((uint64_t)1 << 25) /* of about 60 ns */

/* Tokens of a row. trained[i]: whether the loss counts it. */
struct chat_tokens {
    int32_t *ids;
    uint8_t *trained;
    size_t n, n_trained; /* n_trained: of those after the first, which nothing predicts */
    bool lacks_end;      /* an answer is followed by the end-of-text token, which is not trained */
    bool has_empty;      /* an answer that is trained says nothing */
    bool is_excluded;    /* flags take out all that would be trained */
    enum chat_fault fault; /* CZ_INVALID: CHAT_REFUSED or CHAT_UNFOUND */
    /* Whether the last message is an answer whose beginning was compared with the generation
     * prompt. Where they differ: the text before the answer and the prompt, each ended by NUL. */
    bool has_start;
    struct text_buf start;
};

/* Encode. To be released by chat_tokens_free(), also after an error. Errors: CZ_INVALID (fault),
 * the tokenizer's, CZ_NOMEM. */
cz_status chat_encode(const struct chat_encoder *e, const struct chat_row *row, const char *where,
                      struct chat_tokens *out);

/* The same with memory that a thread keeps from row to row. Zero it first. */
struct chat_scratch {
    struct jinja_text text, part, before, last;
    int32_t *ends;
    size_t ends_cap;
    bool skips_start; /* compare no beginning for which the row has to be rendered once more */
};
cz_status chat_encode_in(struct chat_scratch *scratch, const struct chat_encoder *e,
                         const struct chat_row *row, const char *where, struct chat_tokens *out);
void chat_scratch_free(struct chat_scratch *scratch); /* accepts a zeroed one */
void chat_tokens_free(struct chat_tokens *t);         /* accepts a zeroed one */

#endif
