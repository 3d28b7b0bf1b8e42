/* Tables with named columns (.csv as RFC 4180 has it, .tsv without quoting), and plain lines. */
#include "data/labelled/texts_impl.h"

#include "base/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- records --------------------------------------------------------------------------------- */

/* All fields of a record are in one buffer; a field is the bytes between two ends. */
static cz_status end_field(struct texts_reader *r)
{
    if (r->n_fields == r->fields_cap) {
        size_t cap = r->fields_cap ? 2 * r->fields_cap : 16;
        size_t *grown = realloc(r->field_ends, cap * sizeof *grown);
        if (!grown) return err_set(CZ_NOMEM, 0, "%s: no memory for %zu fields", r->in.path, cap);
        r->field_ends = grown;
        r->fields_cap = cap;
    }
    r->field_ends[r->n_fields++] = r->value.n;
    return CZ_OK;
}

/* Field idx of the record (idx < n_fields). */
static const char *field(const struct texts_reader *r, size_t idx, size_t *nbytes)
{
    size_t begin = idx ? r->field_ends[idx - 1] : 0;
    *nbytes = r->field_ends[idx] - begin;
    return *nbytes ? r->value.s + begin : "";
}

/* Without spaces and tabs around it. For names in the header only: texts keep their spaces. */
static const char *trimmed_field(const struct texts_reader *r, size_t idx, size_t *nbytes)
{
    const char *s = field(r, idx, nbytes);
    while (*nbytes > 0 && (s[0] == ' ' || s[0] == '\t')) {
        s++;
        --*nbytes;
    }
    while (*nbytes > 0 && (s[*nbytes - 1] == ' ' || s[*nbytes - 1] == '\t')) --*nbytes;
    return s;
}

/* A quoted field, at its opening quote; what follows the closing one is not read. An error names
 * the line where the quote opened, since the end of the file tells nothing. */
static cz_status read_quoted(struct texts_reader *r)
{
    uint64_t line = r->in.line;
    text_source_skip(&r->in);
    for (;;) {
        int c = text_source_take(&r->in);
        if (c < 0 && r->in.status != CZ_OK) return r->in.status;
        if (c < 0) {
            r->in.line = line;
            return text_source_fail(&r->in, CZ_CORRUPT,
                                    "the quote that opens here is never closed");
        }
        if (c == '"') {
            if (text_source_peek(&r->in) != '"') return CZ_OK;
            text_source_skip(&r->in);
        }
        TRY(text_buf_put_char(&r->value, (char)c));
    }
}

static bool ends_field(int c, char delimiter)
{
    return c < 0 || c == '\n' || c == (unsigned char)delimiter;
}

/* Up to a delimiter or a line end; the CR of a CR LF is dropped. A CR elsewhere belongs to the
 * text. */
static cz_status read_bare(struct texts_reader *r, char delimiter)
{
    for (int c; !ends_field(c = text_source_peek(&r->in), delimiter);) {
        text_source_skip(&r->in);
        int next = c == '\r' ? text_source_peek(&r->in) : 0;
        if (next == '\n' || next < 0) break;
        TRY(text_buf_put_char(&r->value, (char)c));
    }
    return CZ_OK;
}

/* A quote inside an unquoted field is text, as most writers mean it. */
static cz_status read_field(struct texts_reader *r, char delimiter, bool quoted)
{
    if (!quoted || text_source_peek(&r->in) != '"') {
        TRY(read_bare(r, delimiter));
        return end_field(r);
    }
    const uint64_t line = r->in.line;
    TRY(read_quoted(r));
    if (text_source_peek(&r->in) == '\r') text_source_skip(&r->in);
    if (!ends_field(text_source_peek(&r->in), delimiter)) {
        /* A quote that was not closed ends at the next one, rows later. */
        const uint64_t end = r->in.line;
        char closes[64] = "a closing quote";
        if (end > line)
            snprintf(closes, sizeof closes,
                     "the quote that opens here closes on line %" PRIu64 ", and", end);
        r->in.line = line;
        return text_source_fail(&r->in, CZ_CORRUPT,
                                "%s is followed by more text; a quote inside a quoted field is "
                                "written \"\"",
                                closes);
    }
    return end_field(r);
}

/* The next record that is not a blank line; *end: there is none. A quoted empty field is not
 * blank. */
static cz_status read_record(struct texts_reader *r, char delimiter, bool quoted, bool *end)
{
    bool blank = true;
    for (*end = false; blank;) {
        int c = text_source_peek(&r->in);
        *end = c < 0;
        if (*end) return r->in.status;
        blank = c != '"' || !quoted;
        r->value.n = r->n_fields = 0;
        r->row_line = r->in.line;
        do {
            TRY(read_field(r, delimiter, quoted));
            c = text_source_peek(&r->in);
            if (c >= 0) text_source_skip(&r->in);
        } while (c == (unsigned char)delimiter);
        blank = blank && r->n_fields == 1 && r->value.n == 0;
    }
    return r->in.status;
}

/* ---- columns --------------------------------------------------------------------------------- */

#define NO_COLUMN SIZE_MAX

struct columns {
    size_t of[TEXT_N_ROLES];
    size_t n;
    uint64_t line;
};

/* Exact: "Text" and "text" may both be columns. */
static bool column_is(const struct texts_reader *r, size_t idx, const char *name)
{
    size_t n;
    const char *s = trimmed_field(r, idx, &n);
    return strlen(name) == n && memcmp(name, s, n) == 0;
}

/* Column names are tried in the order of the usual names, the best first. A role whose name the
 * caller gave is needed; usual names may be absent. */
static cz_status find_column(struct texts_reader *r, enum text_role role, size_t *column)
{
    const char *names[TEXT_NAMES_MAX];
    size_t n_names = texts_names_of(r->o, role, names);
    *column = NO_COLUMN;
    for (size_t k = 0; k < n_names && *column == NO_COLUMN; k++)
        for (size_t i = 0; i < r->n_fields; i++) {
            if (!column_is(r, i, names[k])) continue;
            if (*column != NO_COLUMN)
                return text_source_fail(&r->in, CZ_INVALID, "two columns are named \"%s\"",
                                        names[k]);
            *column = i;
        }
    bool needed = role == TEXT_ROLE_TEXT || texts_is_given(r->o, role) ||
                  (role == TEXT_ROLE_LABEL && !r->o->labels_optional);
    return *column != NO_COLUMN || !needed ? CZ_OK : texts_fail_missing(r, role, "column");
}

static cz_status find_kept(struct texts_reader *r, size_t k)
{
    size_t *column = &r->kept[k].column;
    for (*column = 0; *column < r->n_fields; ++*column)
        if (column_is(r, *column, r->o->keep[k])) return CZ_OK;
    return text_source_fail(&r->in, CZ_INVALID, "no column \"%s\" to keep; found: %.*s",
                            r->o->keep[k], (int)(r->names.n - 2), r->names.s + 2);
}

/* The names are kept, cut, for the message about a missing column. */
static cz_status read_header(struct texts_reader *r, char delimiter, bool quoted,
                             struct columns *columns)
{
    bool end;
    TRY(read_record(r, delimiter, quoted, &end));
    if (end)
        return text_source_fail(&r->in, CZ_INVALID,
                                "a table needs a first line that names columns");
    uint64_t next = r->in.line;
    r->in.line = r->row_line;
    r->names.n = 0;
    for (size_t i = 0; i < r->n_fields && r->names.n < 300; i++) {
        size_t n;
        const char *s = trimmed_field(r, i, &n);
        TRY(text_buf_put(&r->names, ", ", 2));
        TRY(text_buf_put(&r->names, s, text_cut(s, n, 100)));
    }
    for (int k = 0; k < TEXT_N_ROLES; k++) TRY(find_column(r, (enum text_role)k, &columns->of[k]));
    for (size_t k = 0; k < r->o->n_keep; k++) TRY(find_kept(r, k));
    for (size_t i = 0; i < r->n_fields; i++) {
        size_t n;
        const char *s = trimmed_field(r, i, &n);
        bool is_used = false;
        for (int k = 0; k < TEXT_N_ROLES; k++) is_used = is_used || columns->of[k] == i;
        for (size_t k = 0; k < r->o->n_keep; k++) is_used = is_used || r->kept[k].column == i;
        if (!is_used) texts_note_unread(r, s, n);
    }
    columns->n = r->n_fields;
    r->in.line = next;
    return CZ_OK;
}

static cz_status copy_field(struct texts_reader *r, size_t column, struct text_buf *out)
{
    size_t n;
    const char *s = field(r, column, &n);
    out->n = 0;
    return text_buf_put(out, s, n);
}

static const char *separator_name(char c)
{
    return c == '\t' ? "tabs" : c == ';' ? "\";\"" : c == '|' ? "\"|\"" : "commas";
}

/* In many countries spreadsheets separate the columns of .csv files by ";" or tabs, and some write
 * a first line "sep=;". A first line without `*delimiter` outside of quotes selects the separator
 * that it has. */
static void find_separator(struct texts_reader *r, char *delimiter, bool *quoted)
{
    static const char others[] = ";\t,|";
    struct text_source *in = &r->in;
    if (text_source_peek(in) < 0) return;
    const char *line = in->block + in->at, *end = memchr(line, '\n', in->n - in->at);
    size_t n = end ? (size_t)(end - line) : in->n - in->at, n_of[sizeof others] = {0};
    if (n > 0 && line[n - 1] == '\r') n--;
    if (n == 5 && memcmp(line, "sep=", 4) == 0 && line[4] && strchr(others, line[4])) {
        *delimiter = line[4];
        *quoted = true;
        for (int c = 0; c >= 0 && c != '\n';) c = text_source_take(in);
        return;
    }
    bool is_quoted = false;
    for (size_t i = 0; i < n; i++) {
        is_quoted = is_quoted != (line[i] == '"');
        for (size_t k = 0; others[k] && !is_quoted; k++) n_of[k] += line[i] == others[k];
    }
    for (size_t k = 0; others[k]; k++)
        if (others[k] == *delimiter && n_of[k] > 0) return;
    for (size_t k = 0; others[k]; k++) {
        if (n_of[k] == 0) continue;
        *delimiter = others[k];
        *quoted = true;
        LOGV(LOG_INFO, SUB_DATA, "data: %s: columns are separated by %s", in->path,
             separator_name(others[k]));
        return;
    }
}

static cz_status fail_fields(const struct texts_reader *r, const struct columns *columns,
                             char delimiter, bool quoted)
{
    char advice[64] = "";
    if (quoted && r->n_fields > columns->n)
        snprintf(advice, sizeof advice, "; a text with %s needs double quotes",
                 separator_name(delimiter));
    return text_source_fail(&r->in, CZ_CORRUPT, "%zu fields where the header names %zu columns%s",
                            r->n_fields, columns->n, advice);
}

cz_status texts_read_table(struct texts_reader *r, char delimiter, bool quoted)
{
    struct columns columns = {0};
    find_separator(r, &delimiter, &quoted);
    TRY(read_header(r, delimiter, quoted, &columns));
    for (;;) {
        bool end;
        TRY(read_record(r, delimiter, quoted, &end));
        if (end) return CZ_OK;
        uint64_t next = r->in.line;
        r->in.line = r->row_line;
        if (r->n_fields != columns.n) return fail_fields(r, &columns, delimiter, quoted);
        struct text_row *row = &r->row;
        size_t pair = columns.of[TEXT_ROLE_PAIR], label = columns.of[TEXT_ROLE_LABEL], n;
        TRY(copy_field(r, columns.of[TEXT_ROLE_TEXT], &row->text));
        row->has_pair = pair != NO_COLUMN;
        if (row->has_pair) TRY(copy_field(r, pair, &row->pair));
        row->label.n = 0;
        if (label != NO_COLUMN) {
            const char *s = trimmed_field(r, label, &n);
            TRY(text_buf_put(&row->label, s, n));
        }
        bool is_list;
        TRY(texts_read_cell_list(r, &is_list));
        row->label_kind = is_list ? LABEL_SET : row->label.n ? LABEL_CELL : LABEL_NONE;
        for (size_t k = 0; k < r->o->n_keep; k++) {
            TRY(copy_field(r, r->kept[k].column, &r->kept[k].text));
            r->kept[k].is_there = true;
        }
        TRY(texts_take_row(r));
        r->in.line = next;
    }
}

cz_status texts_read_plain(struct texts_reader *r)
{
    struct text_row *row = &r->row;
    row->has_pair = false;
    row->label_kind = LABEL_NONE;
    for (int c = text_source_peek(&r->in); c >= 0; c = text_source_peek(&r->in)) {
        r->value.n = 0;
        TRY(read_bare(r, '\n'));
        text_buf_swap(&r->value, &row->text);
        TRY(texts_take_row(r));
        if (text_source_peek(&r->in) >= 0) text_source_skip(&r->in);
    }
    return r->in.status;
}
