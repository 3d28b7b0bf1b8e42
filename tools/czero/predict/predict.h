/* czero predict, in parts: what they share.
 *
 * cmd_predict.c     the options, classes of texts
 * predict_data.c    texts of files, what is kept of them, their true labels
 * predict_words.c   classes of words, and the entities that they are */
#ifndef CZ_TOOLS_CZERO_PREDICT_H
#define CZ_TOOLS_CZERO_PREDICT_H

#include "tools/czero/args.h"
#include "tools/czero/train/score.h"

#include <stdio.h>

struct predict_options {
    struct score_options score;
    const char *text, *pair, *output, *text_column, *pair_column, *label_column, *encoding;
    const char *keep, *fields; /* names between commas */
    struct arg_list data, files;
    double threshold; /* NAN: not given */
    bool strip_spaces, json;
};

/* Names between commas, at most PREDICT_NAMES_MAX. */
#define PREDICT_NAMES_MAX 32
struct predict_names {
    char *text;
    const char **items; /* (n) */
    size_t n;
};
/* Errors: CZ_INVALID (an empty name, one twice, too many), CZ_NOMEM. */
cz_status predict_names_read(const char *option, const char *value, struct predict_names *out);
void predict_names_free(struct predict_names *names); /* accepts a zeroed one */

/* The texts of FILE and --data with what is kept of them, and with their labels where all files
 * have some that can be read. */
cz_status predict_texts_open(const struct predict_options *o, const struct predict_names *keep,
                             bool words, struct cz_texts **out);

/* Whether any example, or any word, has a label. */
bool predict_has_labels(const struct cz_texts *texts);

/* What the file calls label k of `texts`, by the model's name where it is the number of a class. */
const char *predict_label_name(const struct scorer *s, const struct cz_texts *texts, int32_t k);

/* Kept value k of example i in a table, or as JSON. */
void predict_put_kept_cell(FILE *out, const struct cz_texts *texts, size_t i, size_t k);
void predict_put_kept_json(FILE *out, const struct cz_texts *texts, size_t i, size_t k);

cz_status predict_words(const struct predict_options *o, struct scorer *s);

/* A cell of a table: tabs and line ends, which would be others' cells, become spaces. */
void predict_put_cell(FILE *out, const char *text, size_t nbytes);

#endif
