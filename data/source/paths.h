/* The files of training data: paths of the user's, where a folder stands for the files in it. */
#ifndef CZ_DATA_SOURCE_PATHS_H
#define CZ_DATA_SOURCE_PATHS_H

#include "base/status.h"

struct data_path {
    const char *dir;   /* a folder of the user's that holds it (formats/beneath.h), or NULL */
    const char *name;  /* below that folder, or a path */
    const char *shown; /* for sentences */
};

struct data_paths {
    struct data_path *items; /* names and shown are theirs, dir is the caller's */
    size_t n, cap;
};

/* Each path that is a folder becomes its files with one of these suffixes ("*.gz" and "*.zst" of
 * them, too), and those of the folders in it, in the order of their names as bytes; other paths
 * stay as they are. Names that begin with a dot and links to folders are left out. `suffixes` ends
 * with NULL. `paths` is lent until data_paths_free(), which is to be called after an error, too.
 * Errors: CZ_INVALID (a folder without such files: names what it has), CZ_CORRUPT (a link leads out
 * of the folder), CZ_IO, CZ_NOMEM. */
cz_status data_paths_expand(const char *const *paths, size_t n_paths, const char *const *suffixes,
                            struct data_paths *out);
void data_paths_free(struct data_paths *p); /* accepts a zeroed one */

/* Whether `path`, without .gz or .zst, ends in `suffix`; small and capital letters are equal. */
bool data_path_has_suffix(const char *path, const char *suffix);

/* Rows with members: JSON and .parquet. The list is for data_paths_expand(). */
extern const char *const data_row_suffixes[];
bool data_path_is_rows(const char *path);
bool data_path_is_table(const char *path); /* .csv, .tsv */
bool data_path_is_words(const char *path); /* a word and its tag in a line: .conll and its like */

#endif
