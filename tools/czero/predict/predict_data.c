/* What czero predict reads of files besides the texts: columns that are copied to the output, so
 * that predictions can be joined with their rows, and true labels beside the predicted ones. */
#include "base/log.h"
#include "base/printable.h"
#include "data/labelled/labels.h"
#include "formats/json/json.h"
#include "tools/czero/predict/predict.h"
#include "tools/czero/tool.h"

#include <stdlib.h>
#include <string.h>

/* ---- names ----------------------------------------------------------------------------------- */

cz_status predict_names_read(const char *option, const char *value, struct predict_names *out)
{
    *out = (struct predict_names){0};
    if (!value) return CZ_OK;
    TRY(tool_check_text(option, value));
    size_t n = 1;
    for (const char *at = value; *at; at++) n += *at == ',';
    if (n > PREDICT_NAMES_MAX)
        return err_set(CZ_INVALID, 0, "%s: more than %d names", option, PREDICT_NAMES_MAX);
    out->text = strdup(value);
    out->items = calloc(n, sizeof *out->items);
    if (!out->text || !out->items) return err_set(CZ_NOMEM, 0, "no memory for %zu names", n);
    for (char *at = out->text; out->n < n; out->n++) {
        char *end = at + strcspn(at, ",");
        char *last = end;
        *end = '\0';
        while (*at == ' ') at++;
        while (last > at && last[-1] == ' ') *--last = '\0';
        if (!*at)
            return err_set(CZ_INVALID, 0, "%s %s: name %zu is empty", option, value, out->n + 1);
        for (size_t i = 0; i < out->n; i++)
            if (strcmp(out->items[i], at) == 0)
                return err_set(CZ_INVALID, 0, "%s %s: \"%s\" stands there twice", option, value,
                               at);
        out->items[out->n] = at;
        at = end + 1;
    }
    return CZ_OK;
}

void predict_names_free(struct predict_names *names)
{
    free(names->items);
    free(names->text);
    *names = (struct predict_names){0};
}

/* ---- texts ----------------------------------------------------------------------------------- */

/* Labels are optional. If the files' labels do not form one set of classes, the files are read
 * again without labels, and a warning says why. */
cz_status predict_texts_open(const struct predict_options *o, const struct predict_names *keep,
                             bool words, struct cz_texts **out)
{
    const char *paths[2 * ARG_LIST_MAX];
    bool has_input = false;
    size_t n_paths = 0;
    for (size_t i = 0; i < o->files.n; i++) paths[n_paths++] = o->files.items[i];
    for (size_t i = 0; i < o->data.n; i++) paths[n_paths++] = o->data.items[i];
    for (size_t i = 0; i < n_paths; i++) has_input = has_input || strcmp(paths[i], "-") == 0;
    struct cz_texts_options options = {
        .size = sizeof options,
        .paths = paths,
        .n_paths = n_paths,
        .encoding = o->encoding,
        .text_column = o->text_column,
        .pair_column = o->pair_column,
        .label_column = o->label_column,
        .strip_spaces = o->strip_spaces,
        .labels_optional = true,
        .labels_ignored = has_input, /* lines have none, and are read once */
        .keep = keep->items,
        .n_keep = keep->n,
        .words = words,
    };
    cz_status st = cz_texts_open(&options, out);
    if (st != CZ_INVALID || has_input) return st;
    struct err why;
    err_capture(&why);
    options.labels_ignored = true;
    st = cz_texts_open(&options, out);
    if (st != CZ_OK) return err_restore(&why);
    LOGV(LOG_WARN, SUB_DATA, "the labels of the data are left out: %s", why.text);
    return CZ_OK;
}

bool predict_has_labels(const struct cz_texts *texts)
{
    for (size_t i = 0; i < cz_texts_count(texts); i++) {
        size_t n = 0;
        const struct cz_text_word *words = cz_texts_words(texts, i, &n);
        if (!words && cz_texts_label(texts, i) >= 0) return true;
        for (size_t k = 0; k < n; k++)
            if (words[k].label >= 0) return true;
    }
    return false;
}

static bool is_class(const struct scorer *s, const char *name)
{
    for (int64_t k = 0; k < s->n_classes; k++)
        if (strcmp(s->labels[k], name) == 0) return true;
    return label_place(s->labels, (size_t)s->n_classes, name) >= 0;
}

/* A label that is no class of the model shows that the file's numbers are not the model's. */
static const char *first_unknown(const struct scorer *s, const struct cz_texts *texts)
{
    if (cz_texts_problem(texts) == CZ_PROBLEM_REGRESSION) return NULL;
    for (size_t k = 0; k < cz_texts_n_labels(texts); k++)
        if (!is_class(s, cz_texts_labels(texts)[k])) return cz_texts_labels(texts)[k];
    return NULL;
}

bool predict_labels_are_known(const struct scorer *s, const struct cz_texts *texts)
{
    const char *name = first_unknown(s, texts);
    if (!name) return true;
    if (s->problem != CZ_PROBLEM_REGRESSION)
        LOGV(LOG_WARN, SUB_DATA,
             "the label \"%s\" of the data is no class of the model: true labels are written as "
             "the data have them",
             name);
    return false;
}

const char *predict_label_name(const struct scorer *s, const struct cz_texts *texts, bool are_known,
                               int32_t k)
{
    const char *name = cz_texts_labels(texts)[k];
    const int64_t place = are_known ? label_place(s->labels, (size_t)s->n_classes, name) : -1;
    return place >= 0 ? s->labels[place] : name;
}

/* ---- what is kept ---------------------------------------------------------------------------- */

/* NaN, Infinity and -Infinity are Python's, not JSON's. */
static size_t not_finite_nbytes(const char *s, size_t n)
{
    static const char *const names[] = {"NaN", "Infinity", "-Infinity"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(names); i++) {
        const size_t n_name = strlen(names[i]);
        if (n >= n_name && memcmp(s, names[i], n_name) == 0) return n_name;
    }
    return 0;
}

/* A value as it is written in the file: printable_put() would escape its escapes again. */
static void put_raw_json(FILE *out, const char *s, size_t n)
{
    bool in_string = false;
    for (size_t at = 0, len; at < n; at += len) {
        const size_t n_bad = in_string ? 0 : not_finite_nbytes(s + at, n - at);
        len = 1;
        if (n_bad > 0) {
            fputs("null", out);
            len = n_bad;
        } else if (s[at] == '"') {
            fputc('"', out);
            in_string = !in_string;
        } else if (n - at >= 2 && memcmp(s + at, "\\\"", 2) == 0) {
            fputs("\\\"", out);
            len = 2;
        } else if (n - at >= 2 && memcmp(s + at, "\\\\", 2) == 0) {
            fputs("\\\\", out);
            len = 2;
        } else if (s[at] == '\\') {
            fputc('\\', out);
        } else {
            while (in_string && at + len < n && s[at + len] != '"' && s[at + len] != '\\') len++;
            printable_put(out, PRINTABLE_JSON, s + at, len);
        }
    }
}

void predict_put_kept_json(FILE *out, const struct cz_texts *texts, size_t i, size_t k)
{
    size_t n;
    bool is_json;
    const char *s = cz_texts_kept(texts, i, k, &n, &is_json);
    if (!s)
        fputs("null", out);
    else if (is_json)
        put_raw_json(out, s, n);
    else
        tool_put_json_string(out, s, n);
}

/* A string of JSON as its characters; one with a NUL, and other values, as they are written;
 * nothing for null. */
void predict_put_kept_cell(FILE *out, bool csv, const struct cz_texts *texts, size_t i, size_t k)
{
    size_t n;
    bool is_json;
    const char *s = cz_texts_kept(texts, i, k, &n, &is_json), *decoded;
    struct json_doc *doc = NULL;
    if (s && is_json && s[0] == '"' && json_parse(s, n, "", JSON_STRICT, &doc) == CZ_OK &&
        json_as_string(json_root(doc), &decoded) == CZ_OK) {
        s = decoded;
        n = strlen(s);
    }
    err_clear();
    if (s && !(is_json && strcmp(s, "null") == 0)) predict_put_cell(out, csv, s, n);
    json_free(doc);
}
