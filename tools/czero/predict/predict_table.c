/* The output of czero predict as a table: tabs, where a tab or a line end in a text becomes a
 * space, or CSV (RFC 4180), where texts keep both and are quoted. Lines end with a line feed, as
 * programs on Linux write CSV. */
#include "base/printable.h"
#include "tools/czero/predict/predict.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

static bool ends_in(const char *path, const char *end)
{
    const size_t n = strlen(path), n_end = strlen(end);
    return n > n_end && strcasecmp(path + n - n_end, end) == 0;
}

cz_status predict_form_of(const struct predict_options *o, enum predict_form *out)
{
    static const struct {
        const char *name;
        enum predict_form form;
    } forms[] = {{"csv", PREDICT_CSV}, {"tsv", PREDICT_TSV}, {"jsonl", PREDICT_JSONL}},
      suffixes[] = {{".csv", PREDICT_CSV},
                    {".tsv", PREDICT_TSV},
                    {".jsonl", PREDICT_JSONL},
                    {".ndjson", PREDICT_JSONL},
                    {".json", PREDICT_JSONL}};
    *out = PREDICT_PLAIN;
    for (size_t i = 0; i < CZ_ARRAY_LEN(suffixes) && o->output; i++)
        if (ends_in(o->output, suffixes[i].name)) *out = suffixes[i].form;
    for (size_t i = 0; i < CZ_ARRAY_LEN(forms) && o->format; i++)
        if (strcmp(o->format, forms[i].name) == 0) *out = forms[i].form;
    if (o->json && o->format && *out != PREDICT_JSONL)
        return err_set(CZ_INVALID, 0, "--json and --format %s: give one of the two", o->format);
    if (o->json) *out = PREDICT_JSONL;
    return CZ_OK;
}

void predict_put_cell(FILE *out, bool csv, const char *text, size_t nbytes)
{
    const char *breaks = csv ? "\r" : "\t\n\r";
    for (size_t at = 0; at < nbytes;) {
        size_t n = 0;
        while (at + n < nbytes && (text[at + n] == '\0' || !strchr(breaks, text[at + n]))) n++;
        printable_put(out, csv ? PRINTABLE_TEXT : PRINTABLE_LINE, text + at, n);
        at += n;
        if (at >= nbytes) break;
        if (csv)
            fputc('\r', out);
        else
            fputc(' ', out);
        at++;
    }
}

/* ---- cells ----------------------------------------------------------------------------------- */

/* A cell of CSV is quoted as a whole, so it is collected first. */
FILE *predict_cell(struct predict_table *t)
{
    if (t->n_cells > 0 && t->csv) fputc(',', t->out);
    if (t->n_cells++ > 0 && !t->csv) fputc('\t', t->out);
    t->cell = t->csv ? open_memstream(&t->text, &t->nbytes) : t->out;
    return t->cell ? t->cell : t->out;
}

static void put_quoted(FILE *out, const char *text, size_t n)
{
    fputc('"', out);
    for (size_t at = 0; at < n;) {
        const char *quote = memchr(text + at, '"', n - at);
        const size_t end = quote ? (size_t)(quote - text) + 1 : n;
        fwrite(text + at, 1, end - at, out);
        if (quote) fputc('"', out);
        at = end;
    }
    fputc('"', out);
}

void predict_cell_end(struct predict_table *t)
{
    if (!t->cell || t->cell == t->out) return;
    if (fclose(t->cell) == 0) {
        size_t n = 0;
        while (n < t->nbytes && (t->text[n] == '\0' || !strchr(",\"\r\n", t->text[n]))) n++;
        t->has_text |= t->nbytes > 0;
        if (n < t->nbytes)
            put_quoted(t->out, t->text, t->nbytes);
        else
            fwrite(t->text, 1, t->nbytes, t->out);
    }
    free(t->text);
    t->text = NULL;
    t->cell = NULL;
}

void predict_put_cells(struct predict_table *t, const char *text)
{
    predict_put_cell(predict_cell(t), t->csv, text, strlen(text));
    predict_cell_end(t);
}

/* Readers skip a blank line. */
void predict_row_end(struct predict_table *t)
{
    if (t->csv && t->n_cells == 1 && !t->has_text) fputs("\"\"", t->out);
    fputc('\n', t->out);
    t->n_cells = 0;
    t->has_text = false;
}
