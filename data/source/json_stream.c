/* JSON's grammar over a stream: one value at a time is held.
 *
 * It is RFC 8259's, but for NaN and Infinity, which Python writes. Halves of surrogate pairs are
 * errors: no UTF-8 expresses them. */
#include "data/source/json_stream.h"

#include "formats/eight.h"

#include <stdlib.h>
#include <string.h>

#define WORD_NBYTES_MAX ((size_t)400) /* of a number or literal */

int json_stream_peek(struct text_source *in)
{
    for (;;) {
        int c = text_source_peek(in);
        if (c != ' ' && c != '\t' && c != '\n' && c != '\r') return c;
        text_source_skip(in);
    }
}

/* An error at a byte that should not be there (c), or at the end of the file (−1). */
cz_status json_stream_fail(struct text_source *in, int c, const char *wanted)
{
    if (c < 0)
        return text_source_fail(in, CZ_CORRUPT, "expected %s, found the end of the file", wanted);
    if (c > ' ' && c < 0x7F)
        return text_source_fail(in, CZ_CORRUPT, "expected %s, found \"%c\"", wanted, c);
    return text_source_fail(in, CZ_CORRUPT, "expected %s, found byte 0x%02x", wanted, (unsigned)c);
}

/* ---- strings --------------------------------------------------------------------------------- */

static cz_status put_code_point(struct text_buf *out, unsigned c)
{
    char s[4];
    size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const unsigned char lead[] = {0, 0, 0xC0, 0xE0, 0xF0};
    for (size_t i = n - 1; i > 0; i--, c >>= 6) s[i] = (char)(0x80 | (c & 0x3F));
    s[0] = (char)(lead[n] | c);
    return text_buf_put(out, s, n);
}

/* Four hexadecimal digits. */
static cz_status read_unit(struct text_source *in, unsigned *unit)
{
    *unit = 0;
    for (int i = 0; i < 4; i++) {
        int c = text_source_peek(in);
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0) return json_stream_fail(in, c, "a hexadecimal digit of \\u");
        text_source_skip(in);
        *unit = *unit * 16 + (unsigned)digit;
    }
    return CZ_OK;
}

static cz_status fail_half(struct text_source *in, unsigned half)
{
    return text_source_fail(in, CZ_CORRUPT,
                            "\\u%04x is half of a surrogate pair and no character; write the whole "
                            "pair, or remove it",
                            half);
}

/* After a backslash. `high`: the first half of a surrogate pair that waits for its second, or 0. */
static cz_status read_escape(struct text_source *in, unsigned *high, struct text_buf *out)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    int c = text_source_peek(in);
    unsigned unit, waiting = *high;
    *high = 0;
    if (waiting && c != 'u') return fail_half(in, waiting);
    if (c == 'u') {
        text_source_skip(in);
        TRY(read_unit(in, &unit));
        bool is_low = unit >= 0xDC00 && unit <= 0xDFFF;
        if (waiting && is_low)
            return put_code_point(out, 0x10000 + ((waiting - 0xD800) << 10) + (unit - 0xDC00));
        if (waiting || is_low) return fail_half(in, waiting ? waiting : unit);
        if (unit >= 0xD800 && unit <= 0xDBFF) {
            *high = unit;
            return CZ_OK;
        }
        return put_code_point(out, unit);
    }
    const char *found = c > 0 ? strchr(from, c) : NULL;
    if (!found)
        return json_stream_fail(in, c, "an escape of JSON (\\\" \\\\ \\/ \\b \\f \\n \\r \\t \\u)");
    text_source_skip(in);
    return text_buf_put_char(out, to[found - from]);
}

/* Most of a string needs no work: it is copied block by block. */
static size_t plain_run(const struct text_source *in)
{
    size_t at = in->at;
    while (at < in->n) {
        unsigned char c = (unsigned char)in->block[at];
        if (c < 0x20 || c == '"' || c == '\\') break;
        at++;
    }
    return at - in->at;
}

/* At the opening quote; replaces what `out` holds. */
static cz_status read_string(struct text_source *in, struct text_buf *out)
{
    unsigned high = 0;
    out->n = 0;
    text_source_skip(in);
    for (;;) {
        int c = text_source_peek(in);
        size_t n = c < 0 ? 0 : plain_run(in);
        if (c == '\\') {
            text_source_skip(in);
            TRY(read_escape(in, &high, out));
            continue;
        }
        if (high) return fail_half(in, high);
        TRY(text_buf_put(out, in->block + in->at, n));
        in->at += n; /* no line ends among them */
        if (n > 0) continue;
        if (c < 0 || c == '\n' || c == '\r')
            return text_source_fail(in, CZ_CORRUPT, "a string has no closing quote");
        if (c != '"')
            return text_source_fail(
                in, CZ_CORRUPT,
                "a string contains control character 0x%02x; JSON writes it \\u%04x", (unsigned)c,
                (unsigned)c);
        text_source_skip(in);
        return CZ_OK;
    }
}

/* ---- other values ---------------------------------------------------------------------------- */

static size_t n_digits(const char *s)
{
    return strspn(s, "0123456789");
}

static bool is_number(const char *s, enum json_type *type)
{
    if (*s == '-') s++;
    size_t n = n_digits(s);
    if (n == 0 || (n > 1 && s[0] == '0')) return false;
    s += n;
    *type = *s ? JSON_FLOAT : JSON_INT;
    if (*s == '.') {
        n = n_digits(++s);
        if (n == 0) return false;
        s += n;
    }
    if (*s == 'e' || *s == 'E') {
        s++;
        if (*s == '+' || *s == '-') s++;
        n = n_digits(s);
        if (n == 0) return false;
        s += n;
    }
    return *s == '\0';
}

/* A number, true, false, null; NaN counts as null. The word stays in `out`, terminated. */
static cz_status read_word(struct text_source *in, struct text_buf *out, enum json_type *type)
{
    int c;
    out->n = 0;
    while ((c = text_source_peek(in)) > ' ' && !strchr(",:]}[{\"", c)) {
        if (out->n == WORD_NBYTES_MAX) return json_stream_fail(in, c, "the end of a number");
        TRY(text_buf_put_char(out, (char)c));
        text_source_skip(in);
    }
    if (out->n == 0) return json_stream_fail(in, c, "a value");
    TRY(text_buf_put_char(out, '\0'));
    out->n--;
    const char *s = out->s;
    *type = JSON_NULL;
    if (strcmp(s, "null") == 0 || strcmp(s, "NaN") == 0) return CZ_OK;
    *type = JSON_BOOL;
    if (strcmp(s, "true") == 0 || strcmp(s, "false") == 0) return CZ_OK;
    *type = JSON_FLOAT;
    if (strcmp(s, "Infinity") == 0 || strcmp(s, "-Infinity") == 0) return CZ_OK;
    if (is_number(s, type)) return CZ_OK;
    return text_source_fail(in, CZ_CORRUPT, "\"%.32s\" is not a JSON value", s);
}

/* Reads a value without parts into `out`; of lists and objects only the type, and they stay
 * unread. */
cz_status json_stream_scalar(struct text_source *in, struct text_buf *out, enum json_type *type)
{
    int c = json_stream_peek(in);
    *type = c == '"' ? JSON_STRING : c == '[' ? JSON_ARRAY : JSON_OBJECT;
    if (c == '"') return read_string(in, out);
    if (c == '[' || c == '{') return CZ_OK;
    return read_word(in, out, type);
}

/* After an item: "," (another follows) or the end. */
cz_status json_stream_separator(struct text_source *in, char close, bool *done)
{
    int c = json_stream_peek(in);
    *done = c == close;
    if (c != ',' && !*done)
        return json_stream_fail(in, c, close == ']' ? "\",\" or \"]\"" : "\",\" or \"}\"");
    text_source_skip(in);
    if (!*done && json_stream_peek(in) == close)
        return json_stream_fail(in, close, "another value");
    return CZ_OK;
}

cz_status json_stream_key(struct text_source *in, struct text_buf *out)
{
    int c = json_stream_peek(in);
    if (c != '"') return json_stream_fail(in, c, "a name in double quotes");
    TRY(read_string(in, out));
    c = json_stream_peek(in);
    if (c != ':') return json_stream_fail(in, c, "\":\"");
    text_source_skip(in);
    return CZ_OK;
}

/* Reads over a value that is not needed. */
cz_status json_stream_skip(struct text_source *in, struct text_buf *scratch, int depth)
{
    enum json_type type;
    TRY(json_stream_scalar(in, scratch, &type));
    if (type != JSON_ARRAY && type != JSON_OBJECT) return CZ_OK;
    if (depth == JSON_DEPTH_MAX)
        return text_source_fail(in, CZ_CORRUPT, "more than %d levels of nesting", JSON_DEPTH_MAX);
    char close = type == JSON_ARRAY ? ']' : '}';
    text_source_skip(in);
    bool done = json_stream_peek(in) == close;
    if (done) text_source_skip(in);
    while (!done) {
        if (type == JSON_OBJECT) TRY(json_stream_key(in, scratch));
        TRY(json_stream_skip(in, scratch, depth + 1));
        TRY(json_stream_separator(in, close, &done));
    }
    return CZ_OK;
}

/* Where the scan of an object is. */
struct object_scan {
    size_t depth;
    bool in_string, escaped, done;
};

/* Bytes of s that belong to the object: all n, or up to its end. One thread does this for all. */
static size_t scan_object(struct object_scan *o, const char *s, size_t n)
{
    size_t i = 0;
    while (i < n && !o->done) {
        if (o->escaped) {
            o->escaped = false;
            i++;
            continue;
        }
        if (o->in_string) {
            for (uint64_t v; n - i >= 8; i += 8) {
                v = eight_at(s + i);
                if (eight_have(v, '"') || eight_have(v, '\\')) break;
            }
            while (i < n && s[i] != '"' && s[i] != '\\') i++;
        }
        if (i == n) break;
        const char c = s[i++];
        if (o->in_string) {
            o->in_string = c != '"';
            o->escaped = c == '\\';
        } else if (c == '"') {
            o->in_string = true;
        } else if (c == '{' || c == '[') {
            o->depth++;
        } else if (c == '}' || c == ']') {
            o->done = --o->depth == 0;
        }
    }
    return i;
}

cz_status json_stream_object(struct text_source *in, size_t nbytes_max, struct text_buf *out)
{
    struct object_scan scan = {0};
    const size_t before = out->n;
    const uint64_t first_line = in->line;
    while (!scan.done) {
        if (text_source_peek(in) < 0) {
            if (in->status != CZ_OK) return in->status;
            in->line = first_line;
            return text_source_fail(in, CZ_CORRUPT,
                                    "a row does not end: is a quote or a brace missing?");
        }
        const char *s = in->block + in->at, *line_end = s;
        const size_t n = scan_object(&scan, s, in->n - in->at);
        if (n > nbytes_max - (out->n - before))
            return text_source_fail(in, CZ_CORRUPT, "a row has more than %zu MiB",
                                    nbytes_max >> 20);
        while ((line_end = memchr(line_end, '\n', n - (size_t)(line_end - s)))) {
            in->line++;
            line_end++;
        }
        TRY(text_buf_put(out, s, n));
        in->at += n;
    }
    return CZ_OK;
}
