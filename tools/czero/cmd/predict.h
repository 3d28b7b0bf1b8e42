/* czero predict, in parts: what they share.
 *
 * cmd_predict.c     the options, classes of texts
 * predict_words.c   classes of words, and the entities that they are */
#ifndef CZ_TOOLS_CZERO_CMD_PREDICT_H
#define CZ_TOOLS_CZERO_CMD_PREDICT_H

#include "tools/czero/args.h"
#include "tools/czero/train/score.h"

#include <stdio.h>

struct predict_options {
    struct score_options score;
    const char *text, *pair, *output, *text_column, *pair_column, *encoding;
    struct arg_list data;
    double threshold; /* NAN: not given */
    bool strip_spaces, json;
};

cz_status predict_words(const struct predict_options *o, struct scorer *s);

/* Standard output, or -o FILE, which is emptied: call when there are results. NULL: the error is
 * set. */
FILE *predict_output_open(const struct predict_options *o);
cz_status predict_output_close(const struct predict_options *o, FILE *out);

/* A cell of a table: tabs and line ends, which would be others' cells, become spaces. */
void predict_put_cell(FILE *out, const char *text, size_t nbytes);

#endif
