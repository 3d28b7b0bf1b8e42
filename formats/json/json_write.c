/* JSON text as Python's json.dumps lays it out, so that files of czero and DeepSpeed can be
 * compared line by line. Failures are remembered and reported once, by json_writer_take(): hundreds
 * of put calls in a row stay readable. */
#include "formats/json/json_write.h"

#include "base/printable.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void json_writer_init(struct json_writer *w, int indent)
{
    *w = (struct json_writer){.indent = indent, .fresh = true};
}

void json_writer_free(struct json_writer *w)
{
    free(w->buf);
    json_writer_init(w, w->indent);
}

/* The buffer goes to the caller, and the writer can be used again with the same indent. */
cz_status json_writer_take(struct json_writer *w, char **out, size_t *nbytes)
{
    *out = NULL;
    if (w->failed || !w->buf) {
        bool failed = w->failed;
        json_writer_free(w);
        return failed ? err_set(CZ_NOMEM, 0, "no memory to write JSON")
                      : err_set(CZ_INVALID, 0, "no JSON was written");
    }
    *out = w->buf;
    if (nbytes) *nbytes = w->nbytes;
    json_writer_init(w, w->indent);
    return CZ_OK;
}

/* The buffer is kept terminated, for callers that look at it while it grows. Doubling keeps the
 * number of copies logarithmic in the text's length. After a failure nothing more is written, so a
 * later success cannot hide a gap. */
static void put(struct json_writer *w, const char *bytes, size_t n)
{
    if (w->failed) return;
    if (w->nbytes + n + 1 > w->capacity) {
        size_t capacity = w->capacity ? w->capacity : 256;
        while (capacity < w->nbytes + n + 1) capacity *= 2;
        char *grown = realloc(w->buf, capacity);
        if (!grown) {
            w->failed = true;
            return;
        }
        w->buf = grown;
        w->capacity = capacity;
    }
    memcpy(w->buf + w->nbytes, bytes, n);
    w->nbytes += n;
    w->buf[w->nbytes] = '\0';
}

static void put_text(struct json_writer *w, const char *text)
{
    put(w, text, strlen(text));
}

void json_write_text(struct json_writer *w, const char *text)
{
    put_text(w, text);
}

void json_write_bytes(struct json_writer *w, const char *bytes, size_t n)
{
    put(w, bytes, n);
}

void json_write_printable(struct json_writer *w, const char *text, size_t n)
{
    char escape[PRINTABLE_NBYTES];
    for (size_t len; n > 0; text += len, n -= len) {
        len = printable_next(PRINTABLE_LINE, text, n, escape);
        if (escape[0])
            put_text(w, escape);
        else
            put(w, text, len);
    }
}

/* Short texts go over the stack; longer ones are formatted again into memory of their size. */
void json_write_format(struct json_writer *w, const char *fmt, ...)
{
    char small[512], *text = small;
    va_list args;
    va_start(args, fmt);
    const size_t n = printable_vformat(small, sizeof small, 0, fmt, args);
    if (n >= sizeof small) {
        text = malloc(n + 1);
        if (text) printable_vformat(text, n + 1, 0, fmt, args);
    }
    va_end(args);
    if (text) put(w, text, n);
    w->failed |= !text;
    if (text != small) free(text);
}

static void new_line(struct json_writer *w)
{
    put(w, "\n", 1);
    for (int i = 0; i < w->depth * w->indent; i++) put(w, " ", 1);
}

/* Whatever separates the next value from the one before: with indent ",
 * " and spaces, else ", ", as json.dumps has them for indent=N and indent=None. */
static void separate(struct json_writer *w)
{
    bool first = w->fresh;
    w->fresh = false;
    if (w->after_key) {
        w->after_key = false;
        return;
    }
    if (!first) put(w, ",", 1);
    if (w->depth == 0) return;
    if (w->indent > 0) {
        new_line(w);
    } else if (!first) {
        put(w, " ", 1);
    }
}

static void open_level(struct json_writer *w, const char *bracket)
{
    separate(w);
    put_text(w, bracket);
    w->depth++;
    w->fresh = true;
}

/* An empty container stays on one line, as in json.dumps. */
static void close_level(struct json_writer *w, const char *bracket)
{
    w->depth--;
    if (w->indent > 0 && !w->fresh) new_line(w);
    put_text(w, bracket);
    w->fresh = false;
}

void json_begin_object(struct json_writer *w)
{
    open_level(w, "{");
}

void json_end_object(struct json_writer *w)
{
    close_level(w, "}");
}

void json_begin_array(struct json_writer *w)
{
    open_level(w, "[");
}

void json_end_array(struct json_writer *w)
{
    close_level(w, "]");
}

/* Runs without escapes are copied at once. Characters above 0x7f are written as they are, as
 * json.dumps(ensure_ascii=False) writes them, except those that a terminal must not get
 * (base/printable.h): a JSON reader sees no difference. */
static void put_quoted(struct json_writer *w, const char *s, size_t n)
{
    char escape[PRINTABLE_NBYTES];
    put(w, "\"", 1);
    const char *run = s, *end = s + n;
    while (s < end) {
        const unsigned char ch = (unsigned char)*s;
        if (ch >= 0x20 && ch < 0x7f && ch != '"' && ch != '\\') {
            s++;
            continue;
        }
        const size_t len = printable_next(PRINTABLE_JSON, s, (size_t)(end - s), escape);
        s += len;
        if (!escape[0]) continue;
        put(w, run, (size_t)(s - len - run));
        put_text(w, escape);
        run = s;
    }
    put(w, run, (size_t)(end - run));
    put(w, "\"", 1);
}

void json_write_key(struct json_writer *w, const char *key)
{
    json_write_key_n(w, key, strlen(key));
}

void json_write_key_n(struct json_writer *w, const char *key, size_t n)
{
    separate(w);
    put_quoted(w, key, n);
    put(w, ": ", 2);
    w->after_key = true;
}

void json_write_raw(struct json_writer *w, const char *json)
{
    separate(w);
    put_text(w, json);
}

void json_write_null(struct json_writer *w)
{
    json_write_raw(w, "null");
}

void json_write_bool(struct json_writer *w, bool value)
{
    json_write_raw(w, value ? "true" : "false");
}

void json_write_int(struct json_writer *w, int64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRId64, value);
    json_write_raw(w, text);
}

void json_write_double(struct json_writer *w, double value)
{
    char text[JSON_FLOAT_NBYTES];
    json_write_raw(w, json_float_text(value, text));
}

void json_write_string(struct json_writer *w, const char *utf8)
{
    json_write_string_n(w, utf8, strlen(utf8));
}

void json_write_string_n(struct json_writer *w, const char *utf8, size_t n)
{
    separate(w);
    put_quoted(w, utf8, n);
}

void json_put_bool(struct json_writer *w, const char *key, bool value)
{
    json_write_key(w, key);
    json_write_bool(w, value);
}

void json_put_int(struct json_writer *w, const char *key, int64_t value)
{
    json_write_key(w, key);
    json_write_int(w, value);
}

void json_put_size(struct json_writer *w, const char *key, size_t value)
{
    json_put_int(w, key, (int64_t)value);
}

void json_put_double(struct json_writer *w, const char *key, double value)
{
    json_write_key(w, key);
    json_write_double(w, value);
}

/* NaN, a figure that could not be had, becomes null: NaN is not JSON, and strict parsers refuse the
 * whole file. */
void json_put_figure(struct json_writer *w, const char *key, double value)
{
    json_write_key(w, key);
    if (isnan(value))
        json_write_null(w);
    else
        json_write_double(w, value);
}

/* NULL becomes null. */
void json_put_string(struct json_writer *w, const char *key, const char *utf8)
{
    json_write_key(w, key);
    if (utf8)
        json_write_string(w, utf8);
    else
        json_write_null(w);
}

/* Fewest significant digits that read back as `value`, as "d.ddde±xx": what Python's repr() gives.
 * 17 digits identify every double, so the loop always ends with a return. */
static void shortest_scientific(double value, char *buf, size_t buf_nbytes)
{
    for (int precision = 0; precision < 17; precision++) {
        snprintf(buf, buf_nbytes, "%.*e", precision, value);
        if (strtod(buf, NULL) == value) return;
    }
}

/* repr() switches to exponents below 1e-4 and from 1e16 on, and always shows a point or an
 * exponent. */
const char *json_float_text(double value, char buf[JSON_FLOAT_NBYTES])
{
    if (isnan(value)) return strcpy(buf, "NaN");
    if (isinf(value)) return strcpy(buf, value > 0 ? "Infinity" : "-Infinity");
    char sci[JSON_FLOAT_NBYTES];
    shortest_scientific(value, sci, sizeof sci);
    char *e = strchr(sci, 'e');
    int exponent = atoi(e + 1);
    *e = '\0';
    if (exponent < -4 || exponent >= 16) {
        snprintf(buf, JSON_FLOAT_NBYTES, "%se%c%02d", sci, exponent < 0 ? '-' : '+', abs(exponent));
        return buf;
    }
    int n_digits = (int)strlen(sci) - (sci[0] == '-') - (strchr(sci, '.') != NULL);
    int decimals = n_digits - 1 - exponent;
    snprintf(buf, JSON_FLOAT_NBYTES, "%.*f", decimals > 1 ? decimals : 1, value);
    return buf;
}
