/* Text for people and for programs, from bytes that may come from anywhere. A checkpoint is a
 * stranger's file: its names must neither move a terminal's cursor nor break out of a JSON
 * string. */
#include "checkpoint/inspect/inspect_impl.h"

#include "base/utf8.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Bytes of the character at text that may be shown as they are; 0: not. C1 controls are none. */
static size_t printable(const char *text, size_t n)
{
    const unsigned char c = (unsigned char)text[0];
    if (c < 0x20 || c == 0x7f) return 0;
    const int len = utf8_length(text, n);
    if (len <= 0) return 0;
    return len == 2 && c == 0xC2 && (unsigned char)text[1] < 0xA0 ? 0 : (size_t)len;
}

void inspect_put(struct inspect *in, const char *text, size_t n)
{
    while (n > 0) {
        const size_t len = printable(text, n);
        if (len > 0)
            json_write_format(&in->w, "%.*s", (int)len, text);
        else {
            const unsigned char c = (unsigned char)text[0];
            if (c == '\n')
                json_write_text(&in->w, "\\n");
            else if (c == '\t')
                json_write_text(&in->w, "\\t");
            else
                json_write_format(&in->w, "\\x%02x", c);
        }
        text += len > 0 ? len : 1;
        n -= len > 0 ? len : 1;
    }
}

void inspect_puts(struct inspect *in, const char *text)
{
    inspect_put(in, text, strlen(text));
}

void inspect_indent(struct inspect *in, int n)
{
    json_write_format(&in->w, "%*s", n, "");
}

void inspect_column(struct inspect *in, const char *text, int width)
{
    inspect_puts(in, text);
    const int n = (int)strlen(text);
    inspect_indent(in, n < width ? width - n : 0);
}

const char *inspect_shape(const int64_t *shape, size_t ndim, char text[INSPECT_SHAPE_NBYTES])
{
    size_t used = (size_t)snprintf(text, INSPECT_SHAPE_NBYTES, "(");
    for (size_t i = 0; i < ndim && used < INSPECT_SHAPE_NBYTES; i++)
        used += (size_t)snprintf(text + used, INSPECT_SHAPE_NBYTES - used, "%s%" PRId64,
                                 i > 0 ? ", " : "", shape[i]);
    if (used < INSPECT_SHAPE_NBYTES)
        snprintf(text + used, INSPECT_SHAPE_NBYTES - used, ndim == 1 ? ",)" : ")");
    return text;
}

/* Decimal units, as the sizes of options are read. */
const char *inspect_size(uint64_t nbytes, char text[INSPECT_SIZE_NBYTES])
{
    static const char *const units[] = {"kB", "MB", "GB", "TB", "PB", "EB"};
    if (nbytes < 1000) {
        snprintf(text, INSPECT_SIZE_NBYTES, "%" PRIu64 " byte%s", nbytes, nbytes == 1 ? "" : "s");
        return text;
    }
    double value = (double)nbytes / 1000;
    size_t unit = 0;
    for (; value >= 999.5 && unit + 1 < CZ_ARRAY_LEN(units); unit++) value /= 1000;
    snprintf(text, INSPECT_SIZE_NBYTES, value < 9.95 ? "%.1f %s" : "%.0f %s", value, units[unit]);
    return text;
}

cz_status inspect_count_node(struct inspect *in)
{
    if (in->n_nodes++ < INSPECT_NODES_MAX) return CZ_OK;
    return err_set(CZ_UNSUPPORTED, 0, "%s: its values unfold into more than %d", in->options->path,
                   INSPECT_NODES_MAX);
}

/* Which entries of a long list are shown: the first ones and a few of the last. The line that
 * counts the others takes one place. */
struct inspect_window inspect_window(const struct inspect *in, size_t n, size_t n_max)
{
    if (in->options->all || n <= n_max) return (struct inspect_window){n, n};
    const size_t tail = n_max / 4;
    return (struct inspect_window){n_max - tail - 1, n - tail}; /* one line says what is left out */
}

/* ---- JSON ------------------------------------------------------------------------------------ */

/* Invalid UTF-8 becomes U+FFFD, one for each byte: JSON must be valid. */
static void put_json(struct json_writer *w, const char *text, size_t n)
{
    while (n > 0) {
        const unsigned char c = (unsigned char)text[0];
        const int len = utf8_length(text, n);
        if (len <= 0)
            json_write_text(w, "\\ufffd");
        else if (c == '"' || c == '\\')
            json_write_format(w, "\\%c", c);
        else if (c < 0x20 || c == 0x7f)
            json_write_format(w, "\\u%04x", c);
        else
            json_write_format(w, "%.*s", len, text);
        text += len > 0 ? len : 1;
        n -= len > 0 ? (size_t)len : 1;
    }
}

void inspect_json_text(struct inspect *in, const char *text, size_t n)
{
    json_write_raw(&in->w, "\"");
    put_json(&in->w, text, n);
    json_write_text(&in->w, "\"");
}

void inspect_json_key(struct inspect *in, const char *key, size_t n)
{
    inspect_json_text(in, key, n);
    json_write_text(&in->w, ": ");
    in->w.after_key = true;
}

void inspect_json_string(struct inspect *in, const char *key, const char *value)
{
    json_write_key(&in->w, key);
    if (value)
        inspect_json_text(in, value, strlen(value));
    else
        json_write_null(&in->w);
}

/* A list of numbers takes one line. */
void inspect_json_shape(struct inspect *in, const int64_t *shape, size_t ndim)
{
    const int indent = in->w.indent;
    json_write_key(&in->w, "shape");
    json_begin_array(&in->w);
    in->w.indent = 0;
    for (size_t i = 0; i < ndim; i++) json_write_int(&in->w, shape[i]);
    json_end_array(&in->w);
    in->w.indent = indent;
}

/* JSON has no NaN; strings are what Python's json and pandas take back. */
void inspect_json_double(struct inspect *in, double value)
{
    if (isfinite(value))
        json_write_double(&in->w, value);
    else
        json_write_string(&in->w, isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity");
}
