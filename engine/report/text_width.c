/* Widths of text in columns of a terminal. Class names and file names come from outside: control
 * characters and direction marks are shown as "?", so that a name cannot repaint the screen. */
#include "engine/report/text_width.h"

#include "base/utf8.h"

#include <string.h>
#include <utf8proc.h>

/* Line and paragraph separators would break a table. */
static bool is_control(utf8proc_int32_t c)
{
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return true;
    default: break;
    }
    /* Marks that turn the direction of what follows. */
    return (c >= 0x202A && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069);
}

/* A byte that is no UTF-8 counts as one character, one column wide. */
size_t text_char(const char *text, size_t *width, bool *is_shown)
{
    utf8proc_int32_t c;
    int len = utf8_length(text, strnlen(text, 4));
    *width = 1;
    *is_shown = false;
    if (len <= 0) return 1;
    utf8proc_iterate((const utf8proc_uint8_t *)text, len, &c);
    if (is_control(c)) return (size_t)len;
    *width = (size_t)utf8proc_charwidth(c);
    *is_shown = true;
    return (size_t)len;
}

size_t text_width(const char *text)
{
    size_t sum = 0, width;
    bool is_shown;
    while (*text) {
        text += text_char(text, &width, &is_shown);
        sum += width;
    }
    return sum;
}

static void print_chars(FILE *stream, const char *text)
{
    size_t width, len;
    bool is_shown;
    for (; *text; text += len) {
        len = text_char(text, &width, &is_shown);
        if (is_shown)
            fwrite(text, 1, len, stream);
        else
            putc('?', stream);
    }
}

static void print_spaces(FILE *stream, const char *text, size_t width)
{
    for (size_t at = text_width(text); at < width; at++) putc(' ', stream);
}

void text_print_right(FILE *stream, const char *text, size_t width)
{
    print_spaces(stream, text, width);
    print_chars(stream, text);
}

void text_print_left(FILE *stream, const char *text, size_t width)
{
    print_chars(stream, text);
    print_spaces(stream, text, width);
}
