/* Escapes for text from files, and a printf that applies them to its string arguments. Formats are
 * the program's own and pass as they are; arguments may hold anything. Escaping at this place means
 * that a message which quotes a name needs no thought, and that no name can be forgotten. */
#include "base/printable.h"

#include "base/utf8.h"

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

/* Controls, marks of direction, line ends, characters without width. */
static bool is_hidden(uint32_t c)
{
    return c < 0x20 || (c >= 0x7f && c < 0xA0) || c == 0x061C || c == 0x200B || c == 0x200E ||
           c == 0x200F || (c >= 0x2028 && c <= 0x202E) || (c >= 0x2060 && c <= 0x206F) ||
           c == 0xFEFF;
}

size_t printable_next(enum printable_form form, const char *text, size_t n,
                      char escape[PRINTABLE_NBYTES])
{
    const unsigned char lead = (unsigned char)text[0];
    escape[0] = '\0';
    if (lead >= 0x20 && lead < 0x7f && (form != PRINTABLE_JSON || !strchr("\"\\", lead)))
        return 1; /* most of them */
    const int len = utf8_length(text, n);
    const uint32_t c = len > 0 ? utf8_decode(text, len) : 0;
    if (len <= 0) {
        if (form == PRINTABLE_JSON)
            memcpy(escape, "\\ufffd", 7);
        else
            snprintf(escape, PRINTABLE_NBYTES, "\\x%02x", lead);
        return 1;
    }
    if (form == PRINTABLE_TEXT && (c == '\n' || c == '\t')) return 1;
    static const char from[] = "\n\r\t\"\\\b\f", to[] = "nrt\"\\bf";
    const char *at =
        c > 0 && c < 0x80 ? memchr(from, (int)c, form == PRINTABLE_JSON ? 7 : 3) : NULL;
    if (at)
        snprintf(escape, PRINTABLE_NBYTES, "\\%c", to[at - from]);
    else if (is_hidden(c))
        snprintf(escape, PRINTABLE_NBYTES,
                 len == 1 && form != PRINTABLE_JSON ? "\\x%02x" : "\\u%04x", (unsigned)c);
    return (size_t)len;
}

void printable_put(FILE *stream, enum printable_form form, const char *text, size_t n)
{
    char escape[PRINTABLE_NBYTES];
    while (n > 0) {
        const size_t len = printable_next(form, text, n, escape);
        if (escape[0])
            fputs(escape, stream);
        else
            fwrite(text, 1, len, stream);
        text += len;
        n -= len;
    }
}

/* ---- formats --------------------------------------------------------------------------------- */

struct output {
    char *dst;
    size_t nbytes, n; /* n: of the whole; beyond nbytes nothing is stored */
    bool full;
};

/* A character or an escape, whole or not at all. */
static void put_unit(struct output *o, const char *unit, size_t len)
{
    if (!o->full && o->n + len < o->nbytes) {
        memcpy(o->dst + o->n, unit, len);
        o->dst[o->n + len] = '\0';
    } else {
        o->full = true;
    }
    o->n += len;
}

/* The program's own text. */
static void put_literal(struct output *o, const char *text, size_t n)
{
    while (n > 0) {
        const int len = utf8_length(text, n);
        put_unit(o, text, len > 0 ? (size_t)len : 1);
        text += len > 0 ? len : 1;
        n -= len > 0 ? (size_t)len : 1;
    }
}

static void put_spaces(struct output *o, size_t n)
{
    while (n-- > 0) put_unit(o, " ", 1);
}

/* Bytes that the n bytes at text take once escaped. */
static size_t escaped_nbytes(const char *text, size_t n)
{
    char escape[PRINTABLE_NBYTES];
    size_t sum = 0;
    for (size_t len; n > 0; text += len, n -= len) {
        len = printable_next(PRINTABLE_LINE, text, n, escape);
        sum += escape[0] ? strlen(escape) : len;
    }
    return sum;
}

/* A long text keeps three quarters of what is allowed from its beginning, and the rest from its
 * end, where paths and keys differ. */
static void put_escaped(struct output *o, const char *text, size_t n, size_t max)
{
    char escape[PRINTABLE_NBYTES];
    const size_t whole = max > 0 ? escaped_nbytes(text, n) : 0;
    const bool is_cut = whole > max;
    const size_t head = is_cut ? max / 4 * 3 : 0, tail = is_cut ? whole - max / 4 : 0;
    bool dots = false;
    size_t at = 0;
    for (size_t len; n > 0; text += len, n -= len) {
        len = printable_next(PRINTABLE_LINE, text, n, escape);
        const size_t n_unit = escape[0] ? strlen(escape) : len;
        if (is_cut && at + n_unit > head && at < tail) {
            if (!dots) put_unit(o, "…", strlen("…"));
            dots = true;
        } else {
            put_unit(o, escape[0] ? escape : text, n_unit);
        }
        at += n_unit;
    }
}

/* One conversion of a format. */
struct spec {
    char text[24]; /* "%", flags, width, precision: what snprintf() takes */
    bool left;
    int width, precision; /* precision −1: none */
    bool cuts;            /* the precision is written in the format */
    char length;          /* 'h', 'H' for hh, 'l', 'L' for ll and L, 'j', 'z', 't'; 0: none */
};

static int read_number(const char **at)
{
    int n = 0;
    for (; **at >= '0' && **at <= '9'; ++*at)
        if (n < 100000) n = n * 10 + (**at - '0');
    return n;
}

/* Arguments are fetched in the order of the format; the struct keeps va_list's type out of calls.
 */
struct arguments {
    va_list ap;
};

static void read_spec(const char **at, struct arguments *args, struct spec *s)
{
    size_t n = 1;
    *s = (struct spec){.text = "%", .precision = -1};
    for (; **at && strchr("-+ #0", **at); ++*at) {
        s->left |= **at == '-';
        if (n < 6) s->text[n++] = **at;
    }
    if (**at == '*') {
        ++*at;
        s->width = va_arg(args->ap, int);
        s->left |= s->width < 0;
        if (s->width < 0) s->width = s->width < -100000 ? 100000 : -s->width;
    } else {
        s->width = read_number(at);
    }
    if (**at == '.') {
        ++*at;
        s->cuts = **at != '*';
        if (s->cuts) {
            s->precision = read_number(at);
        } else {
            ++*at;
            s->precision = va_arg(args->ap, int);
        }
    }
    if (s->left) s->text[n++] = '-';
    if (s->width > 0)
        n += (size_t)snprintf(s->text + n, 8, "%d", s->width > 99999 ? 99999 : s->width);
    if (s->precision >= 0)
        snprintf(s->text + n, 8, ".%d", s->precision > 99999 ? 99999 : s->precision);
    for (; **at && strchr("hlLjzt", **at); ++*at)
        s->length = **at == 'h' && s->length == 'h'   ? 'H'
                    : **at == 'l' && s->length == 'l' ? 'L'
                                                      : **at;
}

static intmax_t fetch_signed(struct arguments *args, char length)
{
    switch (length) {
    case 'H': return (signed char)va_arg(args->ap, int);
    case 'h': return (short)va_arg(args->ap, int);
    case 'l': return va_arg(args->ap, long);
    case 'L': return va_arg(args->ap, long long);
    case 'j': return va_arg(args->ap, intmax_t);
    case 'z': return va_arg(args->ap, ssize_t);
    case 't': return va_arg(args->ap, ptrdiff_t);
    default: return va_arg(args->ap, int);
    }
}

static uintmax_t fetch_unsigned(struct arguments *args, char length)
{
    switch (length) {
    case 'H': return (unsigned char)va_arg(args->ap, unsigned);
    case 'h': return (unsigned short)va_arg(args->ap, unsigned);
    case 'l': return va_arg(args->ap, unsigned long);
    case 'L': return va_arg(args->ap, unsigned long long);
    case 'j': return va_arg(args->ap, uintmax_t);
    case 'z': return va_arg(args->ap, size_t);
    case 't': return (uintmax_t)va_arg(args->ap, ptrdiff_t);
    default: return va_arg(args->ap, unsigned);
    }
}

static void put_padded(struct output *o, const struct spec *s, const char *text, size_t n,
                       size_t max)
{
    const size_t width = (size_t)s->width;
    const size_t used = width > 0 ? escaped_nbytes(text, n) : 0;
    if (!s->left && used < width) put_spaces(o, width - used);
    put_escaped(o, text, n, max);
    if (s->left && used < width) put_spaces(o, width - used);
}

static void put_string(struct output *o, const struct spec *s, const char *text, size_t max)
{
    if (!text) text = "(null)";
    size_t n = s->precision >= 0 ? strnlen(text, (size_t)s->precision) : strlen(text);
    if (s->cuts && n == (size_t)s->precision) { /* not in the middle of a character */
        size_t whole = 0;
        for (int len; whole<n; whole += len> 0 ? (size_t)len : 1) {
            len = utf8_length(text + whole, n - whole);
            if (len < 0) break;
        }
        n = whole;
    }
    put_padded(o, s, text, n, max);
}

/* false: not a conversion that this knows, and the arguments after it cannot be found. */
static bool put_conversion(struct output *o, const struct spec *s, char conversion,
                           struct arguments *args, size_t max)
{
    char spec[32], number[512]; /* the largest double has 309 digits */
    char letter;
    int n = -1;
    switch (conversion) {
    case '%': put_unit(o, "%", 1); return true;
    case 's':
        if (s->length) return false;
        put_string(o, s, va_arg(args->ap, const char *), max);
        return true;
    case 'c':
        if (s->length) return false;
        letter = (char)va_arg(args->ap, int);
        put_padded(o, s, &letter, 1, 0);
        return true;
    case 'd':
    case 'i':
        snprintf(spec, sizeof spec, "%sjd", s->text);
        n = snprintf(number, sizeof number, spec, fetch_signed(args, s->length));
        break;
    case 'u':
    case 'x':
    case 'X':
    case 'o':
        snprintf(spec, sizeof spec, "%sj%c", s->text, conversion);
        n = snprintf(number, sizeof number, spec, fetch_unsigned(args, s->length));
        break;
    case 'p':
        snprintf(spec, sizeof spec, "%sp", s->text);
        n = snprintf(number, sizeof number, spec, va_arg(args->ap, void *));
        break;
    default:
        if (!conversion || !strchr("fFeEgGaA", conversion)) return false;
        snprintf(spec, sizeof spec, "%s%s%c", s->text, s->length == 'L' ? "L" : "", conversion);
        n = s->length == 'L' ? snprintf(number, sizeof number, spec, va_arg(args->ap, long double))
                             : snprintf(number, sizeof number, spec, va_arg(args->ap, double));
        break;
    }
    if (n > 0) put_literal(o, number, (size_t)n < sizeof number ? (size_t)n : sizeof number - 1);
    return true;
}

size_t printable_vformat(char *dst, size_t dst_nbytes, size_t arg_max, const char *fmt, va_list ap)
{
    struct output o = {.dst = dst, .nbytes = dst_nbytes};
    struct arguments args;
    struct spec spec;
    if (dst_nbytes > 0) dst[0] = '\0';
    va_copy(args.ap, ap);
    while (*fmt) {
        const size_t n = strcspn(fmt, "%");
        put_literal(&o, fmt, n);
        fmt += n;
        if (!*fmt) break;
        fmt++;
        read_spec(&fmt, &args, &spec);
        if (!put_conversion(&o, &spec, *fmt, &args, arg_max)) break;
        fmt++;
    }
    va_end(args.ap);
    return o.n;
}

size_t printable_format(char *dst, size_t dst_nbytes, size_t arg_max, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const size_t n = printable_vformat(dst, dst_nbytes, arg_max, fmt, ap);
    va_end(ap);
    return n;
}

/* stderr is unbuffered, and other ranks write to it: a line goes out in one piece. */
void printable_vprint(FILE *stream, const char *fmt, va_list ap)
{
    char small[1024], *text = small;
    size_t n = printable_vformat(small, sizeof small, 0, fmt, ap);
    if (n >= sizeof small) {
        text = malloc(n + 1);
        if (text) printable_vformat(text, n + 1, 0, fmt, ap);
        if (!text) text = small, n = strlen(small);
    }
    fwrite(text, 1, n, stream);
    if (text != small) free(text);
}

void printable_print(FILE *stream, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    printable_vprint(stream, fmt, ap);
    va_end(ap);
}
