/* Figures of training runs: panels of curves, made from tables, drawn as SVG or as text.
 *
 * Life cycle: plot_build() → plot_draw_svg() / plot_draw_text() → plot_figure_free(). */
#ifndef CZ_TOOLS_CZERO_PLOT_PLOT_H
#define CZ_TOOLS_CZERO_PLOT_PLOT_H

#include "tools/czero/plot/plot_table.h"

#include <stdio.h>

#define PLOT_FILES_MAX  8 /* as many colours can be told apart */
#define PLOT_PANELS_MAX 6

struct plot_series {
    size_t file_idx;
    bool is_eval;    /* measured now and then: points */
    bool has_splits; /* the file tells train from eval */
    const char *split;
    size_t n;
    double *x, *y;   /* (n) y may be NAN: a gap */
    double *smooth;  /* (n) a running mean of y; NULL: none */
    size_t best_idx; /* of eval; SIZE_MAX: none */
};

struct plot_range {
    double lo, hi; /* lo < hi; equal where doubles are too coarse to differ (1e20 and 1e20 + 1) */
    bool is_log;   /* lo > 0 */
    bool is_whole; /* counts: no ticks between whole numbers */
};

struct plot_panel {
    const char *name; /* the column */
    struct plot_series series[PLOT_FILES_MAX * PLOT_SPLITS_MAX];
    size_t n_series;
    struct plot_range x, y;
    char best[160]; /* "best eval 0.87 at step 1200"; "": nothing to tell */
};

struct plot_figure {
    const char *title; /* NULL: none */
    char x_label[32];
    char *labels[PLOT_FILES_MAX]; /* of the files, told apart */
    size_t n_files;
    struct plot_panel panels[PLOT_PANELS_MAX];
    size_t n_panels;
    const char *empty[PLOT_PANELS_MAX]; /* columns that have nothing to draw */
    size_t n_empty;
    bool has_train, has_eval, has_smooth;
};

struct plot_options {
    const char *x;     /* "step", "epoch", "seconds" */
    const char *ys;    /* "loss,accuracy"; NULL: those two, or what there is */
    const char *title; /* NULL: none; borrowed by the figure */
    bool log_y;        /* for all but scores in 0 … 1 */
    int64_t smooth;    /* rows of the running mean; 0: as the number of rows suggests; 1: none */
};

/* The tables are borrowed as long as the figure is used. Errors: CZ_INVALID (a column that no table
 * has: the sentence lists those there are; a cell that is no number; nothing to draw), CZ_NOMEM. */
cz_status plot_build(const struct plot_table *tables, size_t n_tables,
                     const struct plot_options *options, struct plot_figure *out);
void plot_figure_free(struct plot_figure *f); /* accepts zeroed or half-built */

/* Whether the column is a score: higher is better, 1 is all there is. */
bool plot_is_score(const char *column);

/* The panel's ranges over what will be drawn: every row, or without them the running means. False:
 * nothing finite. */
bool plot_find_ranges(struct plot_panel *p, bool with_raw);

/* Pixels; 0: a size that suits the panels. The stream's error flag tells of failures. */
void plot_draw_svg(const struct plot_figure *f, FILE *out, int width, int height);

struct plot_text_style {
    int width, height;   /* columns; rows of a panel */
    bool utf8, coloured; /* what the terminal can show */
};

/* Errors: CZ_NOMEM. */
cz_status plot_draw_text(const struct plot_figure *f, FILE *out,
                         const struct plot_text_style *style);

/* A confusion matrix (n,n) with n ≥ 1 classes: rows are true, columns predicted. title NULL: none.
 */
void plot_draw_matrix(const double *confusion, size_t n, const char *const *labels,
                      const char *title, FILE *out);

/* ---- files ---------------------------------------------------------------------------------- */

/* Whether the name's ending is one that plot_write() knows; else CZ_INVALID. `option` begins the
 * sentence. */
cz_status plot_check_name(const char *option, const char *path);

/* Write an SVG under its own form, or as PNG when `path` ends in .png. PNG is drawn by librsvg,
 * which is looked for at run time. Nothing is written when drawing fails. Errors: CZ_UNSUPPORTED
 * (no librsvg; the sentence names the package), CZ_NOMEM (a picture too large), CZ_IO. */
cz_status plot_write(const char *path, const char *svg, size_t nbytes);

/* ---- axes ----------------------------------------------------------------------------------- */

#define PLOT_TICKS_MAX 24

struct plot_ticks {
    double at[PLOT_TICKS_MAX];
    char text[PLOT_TICKS_MAX][24];
    size_t n;
};

/* At most about `wanted` round values within the range, ascending. */
void plot_ticks_make(const struct plot_range *range, int wanted, struct plot_ticks *out);

/* Where a value is: 0 at lo, 1 at hi; the middle if the range is empty. */
double plot_place(const struct plot_range *range, double value);

/* A column of pixels holds the first, lowest, highest and last of the points in it, in the order
 * they came: what drawing all of them would show. */
struct plot_walk {
    const double *x, *y;
    size_t n, at;
    const struct plot_range *x_range;
    double n_columns; /* of pixels over the range */
};

/* The next points to join (at most 4, ascending indices); 0: the end. *is_gap: do not join them to
 * the ones before. */
size_t plot_walk_next(struct plot_walk *w, size_t idx[4], bool *is_gap);

/* A figure as people write it: "0.873", "1.2e-05". */
const char *plot_number(double value, char *text, size_t nbytes);

#endif
