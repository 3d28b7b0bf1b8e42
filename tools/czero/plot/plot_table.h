/* A CSV of numbers under named columns, as training writes them: --metrics, --curve, csv_monitor.
 *
 * Life cycle: plot_table_read() → plot_table_column() → plot_table_free(). */
#ifndef CZ_TOOLS_CZERO_PLOT_PLOT_TABLE_H
#define CZ_TOOLS_CZERO_PLOT_PLOT_TABLE_H

#include "base/status.h"

#define PLOT_COLUMNS_MAX 64
#define PLOT_SPLITS_MAX  8

struct plot_column {
    char *name;
    double *values;      /* (n_rows) NAN: an empty cell, or no number; INFINITY: not finite */
    size_t first_bad;    /* line of the first cell that is no number; 0: none */
    size_t n_not_finite; /* cells that say nan or inf */
};

struct plot_table {
    const char *path; /* borrowed */
    struct plot_column columns[PLOT_COLUMNS_MAX];
    size_t n_columns, n_rows, capacity;
    unsigned char *splits; /* (n_rows) index into split_names; NULL: no "split" column */
    char split_names[PLOT_SPLITS_MAX][32]; /* "train", "eval" */
    size_t n_splits;
    size_t n_cut; /* bytes of a last line that is still being written, and left out */
};

/* The first line names the columns; a later line that repeats it is skipped. Errors: CZ_IO,
 * CZ_NOTFOUND, CZ_CORRUPT (not such a file: the sentence says where), CZ_NOMEM. */
cz_status plot_table_read(const char *path, struct plot_table *out);
void plot_table_free(struct plot_table *t); /* accepts zeroed or half-read */

/* NULL: there is none of that name. */
const struct plot_column *plot_table_column(const struct plot_table *t, const char *name);

/* Whether a column holds any finite value. */
bool plot_table_has_values(const struct plot_table *t, const struct plot_column *column);

#endif
