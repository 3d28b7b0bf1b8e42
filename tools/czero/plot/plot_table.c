/* CSV files of figures as columns of doubles. It is lenient where runs are: a last line that is
 * still being written, a repeated header of appended runs, empty cells. Anything else that is no
 * number is remembered with its line, and reported only if that column is plotted. */
#include "tools/czero/plot/plot_table.h"

#include "base/utf8.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINE_NBYTES_MAX ((size_t)1 << 20)  /* a longer line is no row of figures */
#define FILE_NBYTES_MAX ((size_t)64 << 20) /* of a pipe or device, too, which may never end */

struct reader {
    struct plot_table *table;
    FILE *file;
    char *line; /* without its end, terminated */
    size_t len, room, line_no;
    size_t n_read;                     /* bytes of the file so far */
    bool has_end;                      /* the line's own, not the file's */
    char *cells[PLOT_COLUMNS_MAX + 1]; /* into line */
    size_t n_cells;
    size_t split_idx; /* column of splits; SIZE_MAX: none */
};

static cz_status damaged(const struct reader *r, const char *what)
{
    return err_set(CZ_CORRUPT, 0, "%s: line %zu: %s", r->table->path, r->line_no, what);
}

static cz_status no_memory_for(const struct plot_table *t)
{
    return err_set(CZ_NOMEM, 0, "%s: no memory for its rows", t->path);
}

/* ---- lines and cells ------------------------------------------------------------------------ */

/* Doubling, up to 1 MiB: a longer line means that the file is no CSV of figures. */
static cz_status put_byte(struct reader *r, char c)
{
    if (r->len + 1 >= r->room) {
        size_t room = r->room ? 2 * r->room : 256;
        char *grown = room <= LINE_NBYTES_MAX ? realloc(r->line, room) : NULL;
        if (!grown && room <= LINE_NBYTES_MAX) return no_memory_for(r->table);
        if (!grown) return damaged(r, "too long for a CSV of numbers");
        r->line = grown;
        r->room = room;
    }
    r->line[r->len++] = c;
    r->line[r->len] = '\0';
    return CZ_OK;
}

/* The next line; *more becomes false at the end of the file. Zero bytes mean a binary file. */
static cz_status read_line(struct reader *r, bool *more)
{
    int c;
    r->len = 0;
    r->has_end = false;
    r->line_no++;
    while ((c = getc_unlocked(r->file)) != EOF && c != '\n') {
        if (c == '\0') return damaged(r, "contains a zero byte: not a CSV");
        TRY(put_byte(r, (char)c));
    }
    if (ferror(r->file)) return err_set(CZ_IO, errno, "%s: cannot be read", r->table->path);
    r->n_read += r->len + 1;
    if (r->n_read > FILE_NBYTES_MAX)
        return err_set(CZ_INVALID, 0, "%s: has more than the %zu bytes that are read",
                       r->table->path, FILE_NBYTES_MAX);
    r->has_end = c == '\n';
    *more = r->has_end || r->len > 0;
    while (r->len > 0 && r->line[r->len - 1] == '\r') r->line[--r->len] = '\0';
    if (r->len == 0 && *more) TRY(put_byte(r, ' ')); /* a line of nothing: one blank cell */
    return CZ_OK;
}

/* Cut a cell out of *at, quotes taken off in place; *at moves behind its comma, or is NULL. */
static char *take_cell(char **at)
{
    char *cell = *at, *to = *at, *from = *at;
    bool quoted = *from == '"';
    if (quoted) from++;
    for (; *from && (quoted || *from != ','); from++) {
        if (quoted && *from == '"') {
            if (from[1] != '"') {
                quoted = false;
                continue;
            }
            from++;
        }
        *to++ = *from;
    }
    *at = *from ? from + 1 : NULL;
    *to = '\0';
    return cell;
}

/* In place, no allocation per cell. */
static cz_status cut_cells(struct reader *r)
{
    char *at = r->line;
    r->n_cells = 0;
    while (at) {
        if (r->n_cells == PLOT_COLUMNS_MAX) return damaged(r, "more columns than 64");
        r->cells[r->n_cells++] = take_cell(&at);
    }
    return CZ_OK;
}

static bool is_blank(const char *text)
{
    return text[strspn(text, " \t")] == '\0';
}

/* ---- the table ------------------------------------------------------------------------------ */

/* strtod() also takes "nan" and "inf", which runs write. */
static bool is_number(const char *text)
{
    char *end;
    strtod(text, &end);
    return end != text && is_blank(end);
}

/* A first row of numbers would be a file without names of columns: refused. */
static cz_status read_header(struct reader *r)
{
    struct plot_table *t = r->table;
    bool more;
    TRY(read_line(r, &more));
    if (!more) return err_set(CZ_CORRUPT, 0, "%s: the file is empty", t->path);
    if (r->len >= 3 && memcmp(r->line, "\xEF\xBB\xBF", 3) == 0)
        memmove(r->line, r->line + 3, r->len - 3 + 1);
    if (!utf8_is_valid(r->line, strlen(r->line))) return damaged(r, "not UTF-8: not a CSV");
    TRY(cut_cells(r));
    if (r->n_cells < 2)
        return damaged(r, "names no columns, such as step,loss: not a CSV of numbers");
    r->split_idx = SIZE_MAX;
    for (size_t i = 0; i < r->n_cells; i++) {
        if (is_number(r->cells[i])) return damaged(r, "contains numbers instead of column names");
        if (!(t->columns[i].name = strdup(r->cells[i]))) return no_memory_for(t);
        t->n_columns++;
        if (strcmp(r->cells[i], "split") == 0) r->split_idx = i;
    }
    return CZ_OK;
}

/* Appended runs (`cat a.csv b.csv`) repeat it. */
static bool repeats_header(const struct reader *r)
{
    for (size_t i = 0; i < r->n_cells; i++)
        if (strcmp(r->cells[i], r->table->columns[i].name) != 0) return false;
    return true;
}

static cz_status grow(struct plot_table *t, bool with_splits)
{
    size_t capacity = t->capacity ? 2 * t->capacity : 256;
    for (size_t i = 0; i < t->n_columns; i++) {
        double *values = realloc(t->columns[i].values, capacity * sizeof *values);
        if (!values) return no_memory_for(t);
        t->columns[i].values = values;
    }
    if (with_splits) {
        unsigned char *splits = realloc(t->splits, capacity);
        if (!splits) return no_memory_for(t);
        t->splits = splits;
    }
    t->capacity = capacity;
    return CZ_OK;
}

/* train, eval: few names, so a byte per row. */
static cz_status find_split(struct reader *r, const char *name, unsigned char *idx)
{
    struct plot_table *t = r->table;
    size_t i = 0;
    while (i < t->n_splits && strcmp(t->split_names[i], name) != 0) i++;
    *idx = (unsigned char)i;
    if (i < t->n_splits) return CZ_OK;
    if (i == PLOT_SPLITS_MAX || strlen(name) >= sizeof t->split_names[0] ||
        !utf8_is_valid(name, strlen(name)))
        return damaged(r, "the column split contains a value other than train and eval");
    strcpy(t->split_names[t->n_splits++], name);
    return CZ_OK;
}

/* An unreadable cell is an error only where its column is plotted. */
static void put_value(struct reader *r, struct plot_column *column, const char *cell)
{
    double *value = &column->values[r->table->n_rows];
    char *end;
    *value = NAN;
    if (is_blank(cell)) return;
    double x = strtod(cell, &end);
    if (end == cell || !is_blank(end)) {
        if (column->first_bad == 0) column->first_bad = r->line_no;
        return;
    }
    /* Axes need space around their values. */
    bool is_usable = isfinite(x) && fabs(x) < 1e300;
    *value = !is_usable ? INFINITY : fabs(x) < 1e-300 ? 0 : x;
    if (!is_usable) column->n_not_finite++;
}

/* A last line without its end is left out and counted: the run is still writing it. */
static cz_status read_rows(struct reader *r)
{
    for (;;) {
        bool more;
        TRY(read_line(r, &more));
        if (!more) return CZ_OK;
        if (is_blank(r->line)) continue;
        if (!r->has_end) { /* a run is writing it */
            r->table->n_cut = r->len;
            return CZ_OK;
        }
        TRY(cut_cells(r));
        if (r->n_cells == r->table->n_columns && repeats_header(r)) continue;
        struct plot_table *t = r->table;
        if (r->n_cells != t->n_columns)
            return err_set(CZ_CORRUPT, 0, "%s: line %zu: %zu cells under %zu columns", t->path,
                           r->line_no, r->n_cells, t->n_columns);
        if (t->n_rows == t->capacity) TRY(grow(t, r->split_idx != SIZE_MAX));
        for (size_t i = 0; i < t->n_columns; i++)
            if (i == r->split_idx) {
                t->columns[i].values[t->n_rows] = NAN;
                TRY(find_split(r, r->cells[i], &t->splits[t->n_rows]));
            } else
                put_value(r, &t->columns[i], r->cells[i]);
        t->n_rows++;
    }
}

cz_status plot_table_read(const char *path, struct plot_table *out)
{
    struct reader r = {.table = out};
    memset(out, 0, sizeof *out);
    out->path = path;
    r.file = fopen(path, "re");
    if (!r.file)
        return err_set(errno == ENOENT ? CZ_NOTFOUND : CZ_IO, errno, "%s: cannot be opened", path);
    cz_status st = read_header(&r);
    if (st == CZ_OK) st = read_rows(&r);
    fclose(r.file);
    free(r.line);
    return st;
}

void plot_table_free(struct plot_table *t)
{
    for (size_t i = 0; i < PLOT_COLUMNS_MAX; i++) {
        free(t->columns[i].name);
        free(t->columns[i].values);
    }
    free(t->splits);
    memset(t, 0, sizeof *t);
}

const struct plot_column *plot_table_column(const struct plot_table *t, const char *name)
{
    for (size_t i = 0; i < t->n_columns; i++)
        if (strcmp(t->columns[i].name, name) == 0) return &t->columns[i];
    return NULL;
}

bool plot_table_has_values(const struct plot_table *t, const struct plot_column *column)
{
    if (!column->values) return false;
    for (size_t i = 0; i < t->n_rows; i++)
        if (isfinite(column->values[i])) return true;
    return false;
}
