/* Text for people and for programs, from bytes that may come from anywhere. A checkpoint is a
 * stranger's file: its names must neither move a terminal's cursor nor break out of a JSON
 * string. */
#include "checkpoint/inspect/inspect_impl.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

void inspect_put(struct inspect *in, const char *text, size_t n)
{
    json_write_printable(&in->w, text, n);
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

void inspect_json_text(struct inspect *in, const char *text, size_t n)
{
    json_write_string_n(&in->w, text, n);
}

void inspect_json_key(struct inspect *in, const char *key, size_t n)
{
    json_write_key_n(&in->w, key, n);
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
