/* Labelled texts: the examples of a classification task, read whole.
 *
 * Life cycle: cz_texts_open() → reading → cz_texts_close(). Immutable in between: threads may share
 * it.
 *
 * What a file is shows in its first character and its name:
 *   NAME.csv, NAME.tsv   rows under a header line; RFC 4180 quoting in .csv, none in .tsv; a UTF-8
 *                        byte order mark is skipped; CR LF or LF
 *   "["                  a JSON list, of [text, label] or [text, pair, label] or of objects
 *   "{"                  JSON lines: an object, or [..] in which case "[" rules, per line
 *   NAME.txt, or texts_options.plain      one text per line, no labels
 *   NAME "-"             standard input, the same
 * In objects and tables, members have names: text_column, pair_column, label_column. */
#ifndef CZ_DATA_LABELLED_TEXTS_H
#define CZ_DATA_LABELLED_TEXTS_H

#include "base/status.h"
#include "data/tokenizer/tokenizer.h"

CZ_EXTERN_C_BEGIN

struct cz_texts; /* opaque */

struct cz_texts_options {
    size_t size; /* sizeof(struct cz_texts_options) */
    const char *const *paths;
    size_t n_paths;
    /* Names of members or columns. NULL: the first of "text", "sentence", "sentence1", "content",
     * "review" that is there; for the pair the first of "pair", "sentence2", "text_pair", or none;
     * "label", "labels", "class", "target", "category". A name that is given must be there. */
    const char *text_column, *pair_column, *label_column;
    bool strip_spaces; /* drop all white space inside texts (texts segmented into words) */
    bool plain;        /* every file is one text per line */
    /* The classes that are known (a model's), in order: another label is CZ_INVALID. n_labels 0:
     * they are collected from the data: integers in numeric order, other labels in the order of
     * their bytes. A JSON integer k also names class k when the known names are LABEL_0, LABEL_1,
     * … or 0, 1, … */
    const char *const *labels;
    size_t n_labels;
    bool labels_optional; /* rows without a label are taken (label −1) */
    bool labels_ignored;  /* with labels_optional: no label is looked at, all are −1 */
};

/* *out is released by cz_texts_close(); NULL on error. Errors: CZ_NOTFOUND, CZ_IO; CZ_CORRUPT (not
 * the format it seems to be; the sentence has file and line), CZ_INVALID (no example at all, a
 * label that is not known, fewer than two classes, a column that is not there: lists those that
 * are), CZ_NOMEM. */
CZ_API cz_status cz_texts_open(const struct cz_texts_options *options, struct cz_texts **out);
CZ_API void cz_texts_close(struct cz_texts *t); /* accepts NULL */

CZ_API size_t cz_texts_count(const struct cz_texts *t);

/* Example i: its texts (the list's), and its class or −1. */
CZ_API struct cz_tokenizer_input cz_texts_at(const struct cz_texts *t, size_t i);
CZ_API int32_t cz_texts_label(const struct cz_texts *t, size_t i);

/* The classes: known, or collected. */
CZ_API size_t cz_texts_n_labels(const struct cz_texts *t);
CZ_API const char *const *cz_texts_labels(const struct cz_texts *t);

/* Examples of class k. */
CZ_API size_t cz_texts_n_of_label(const struct cz_texts *t, size_t k);

CZ_EXTERN_C_END
#endif
