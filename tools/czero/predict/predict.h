/* czero predict, in parts: what they share.
 *
 * cmd_predict.c     the options, classes of texts
 * predict_data.c    texts of files, what is kept of them, their true labels
 * predict_table.c   tables of tabs and of CSV
 * predict_words.c   classes of words, and the entities that they are */
#ifndef CZ_TOOLS_CZERO_PREDICT_H
#define CZ_TOOLS_CZERO_PREDICT_H

#include "tools/czero/args.h"
#include "tools/czero/train/score.h"

#include <stdio.h>

/* PREDICT_PLAIN: tabs for files, and for --text lines for people. */
enum predict_form { PREDICT_PLAIN = 0, PREDICT_TSV, PREDICT_CSV, PREDICT_JSONL };

struct predict_options {
    struct score_options score;
    const char *text, *pair, *output, *text_column, *pair_column, *label_column, *encoding;
    const char *keep, *fields; /* names between commas */
    const char *format;        /* NULL: by the name of the output */
    enum predict_form form;
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

/* Whether all labels of the files are classes of the model, or numbers of them; warns otherwise. */
bool predict_labels_are_known(const struct scorer *s, const struct cz_texts *texts);

/* What the file calls label k of `texts`; if are_known, by the model's name of the class. */
const char *predict_label_name(const struct scorer *s, const struct cz_texts *texts, bool are_known,
                               int32_t k);

/* The form that --format and --json ask for, else that of -o's name. CZ_INVALID: they differ. */
cz_status predict_form_of(const struct predict_options *o, enum predict_form *out);

/* Kept value k of example i in a table, or as JSON. */
void predict_put_kept_cell(FILE *out, bool csv, const struct cz_texts *texts, size_t i, size_t k);
void predict_put_kept_json(FILE *out, const struct cz_texts *texts, size_t i, size_t k);

cz_status predict_words(const struct predict_options *o, struct scorer *s);

/* Text of a cell: without `csv` tabs and line ends, which would be others' cells, become spaces. */
void predict_put_cell(FILE *out, bool csv, const char *text, size_t nbytes);

/* Rows of cells: predict_cell() begins one and returns the stream for its text. */
struct predict_table {
    FILE *out;
    bool csv;
    FILE *cell;
    char *text;
    size_t nbytes, n_cells;
    bool has_text; /* of CSV: any cell of the row */
};
FILE *predict_cell(struct predict_table *t);
void predict_cell_end(struct predict_table *t);
void predict_put_cells(struct predict_table *t, const char *text); /* a whole cell */
void predict_row_end(struct predict_table *t);

#endif
