/* Widths of text in columns of a terminal. Class names and file names come from outside: they are
 * escaped (base/printable.h), and an escape takes as many columns as it has characters. */
#include "base/text/text_width.h"

#include "base/printable.h"
#include "base/utf8.h"

#include <string.h>
#include <utf8proc.h>

/* An escape has a column per byte. */
size_t text_char(const char *text, size_t *width, char escape[PRINTABLE_NBYTES])
{
    const size_t len = printable_next(PRINTABLE_LINE, text, strnlen(text, 4), escape);
    *width = escape[0] ? strlen(escape)
                       : (size_t)utf8proc_charwidth((utf8proc_int32_t)utf8_decode(text, (int)len));
    return len;
}

size_t text_width(const char *text)
{
    char escape[PRINTABLE_NBYTES];
    size_t sum = 0, width;
    while (*text) {
        text += text_char(text, &width, escape);
        sum += width;
    }
    return sum;
}

static void print_spaces(FILE *stream, const char *text, size_t width)
{
    for (size_t at = text_width(text); at < width; at++) putc(' ', stream);
}

void text_print_right(FILE *stream, const char *text, size_t width)
{
    print_spaces(stream, text, width);
    printable_put(stream, PRINTABLE_LINE, text, strlen(text));
}

void text_print_left(FILE *stream, const char *text, size_t width)
{
    printable_put(stream, PRINTABLE_LINE, text, strlen(text));
    print_spaces(stream, text, width);
}
