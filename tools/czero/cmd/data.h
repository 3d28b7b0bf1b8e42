/* czero data, in parts: what they share.
 *
 * cmd_data.c      the options; chats and instructions
 * data_texts.c    labelled texts, words with a class each, and plain texts */
#ifndef CZ_TOOLS_CZERO_CMD_DATA_H
#define CZ_TOOLS_CZERO_CMD_DATA_H

#include "base/status.h"

struct data_words {
    const char *file;
    const char *model, *tokenizer, *chat_template, *loss_on, *encoding;
    const char *text_column, *pair_column, *label_column;
    int64_t seq_len, rows, line; /* seq_len 0: not given */
    bool packing, left_out, json;
};

/* Whether the file's first row is no chat: data_show_texts() shows it then. */
bool data_is_texts(const struct data_words *o);

/* Rows as a classifier or a language model on text sees them, and what they have in sum. */
cz_status data_show_texts(const struct data_words *o);

/* "12.5" of 1 and 8; 0 where the whole is 0. */
double data_percent(double part, double whole);

#endif
