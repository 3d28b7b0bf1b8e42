/* What the reader of the output can show. One place asks the environment, for messages, help,
 * tables and plots alike. */
#include "terminal.h"

#include "base/status.h"

#include "base/text/text_width.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

bool terminal_has_colours(FILE *out)
{
    const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM");
    if (!term || !*term || strcmp(term, "dumb") == 0 || (no_color && *no_color)) return false;
    return isatty(fileno(out)) == 1;
}

/* setlocale() is not enough: it answers "C" in containers that lack the locale files. */
bool terminal_is_utf8(void)
{
    static const char *const names[] = {"LC_ALL", "LC_CTYPE", "LANG"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(names); i++) {
        const char *value = getenv(names[i]);
        if (value && *value) return strcasestr(value, "utf-8") || strcasestr(value, "utf8");
    }
    return false;
}

const char *terminal_colour(FILE *out, enum terminal_colour colour)
{
    static const char *const sequences[] = {[TERMINAL_PLAIN] = "\033[0m",
                                            [TERMINAL_RED] = "\033[1;31m",
                                            [TERMINAL_YELLOW] = "\033[1;33m"};
    return terminal_has_colours(out) ? sequences[colour] : "";
}

/* None of the replacements is longer than what it replaces. */
static char *to_ascii(char *text)
{
    static const struct {
        const char *utf8, *ascii;
    } rows[] = {{"…", "..."}, {"×", "x"}, {"·", "*"}, {"−", "-"}, {"→", "->"}};
    char *to = text;
    for (const char *from = text; *from;) {
        size_t i = 0;
        while (i < CZ_ARRAY_LEN(rows) && strncmp(from, rows[i].utf8, strlen(rows[i].utf8)) != 0)
            i++;
        if (i < CZ_ARRAY_LEN(rows)) {
            from += strlen(rows[i].utf8);
            to = mempcpy(to, rows[i].ascii, strlen(rows[i].ascii));
        } else {
            *to++ = *from++;
        }
    }
    *to = '\0';
    return text;
}

char *terminal_text(char *text)
{
    return terminal_is_utf8() ? text : to_ascii(text);
}

void terminal_put(FILE *out, const char *text)
{
    if (terminal_is_utf8())
        fputs(text, out);
    else
        terminal_put_ascii(out, text);
}

void terminal_put_ascii(FILE *out, const char *text)
{
    char *copy = strdup(text);
    fputs(copy ? to_ascii(copy) : text, out);
    free(copy);
}

/* ---- width and height ------------------------------------------------------------------------ */

#define SIDE_MIN 20 /* a narrower terminal is none to write for */
#define SIDE_MAX 1000

static int in_bounds(long n)
{
    return n >= SIDE_MIN && n <= SIDE_MAX ? (int)n : 0;
}

int terminal_side(FILE *out, enum terminal_side side, int otherwise)
{
    struct winsize size = {0};
    const char *text = getenv(side == TERMINAL_COLUMNS ? "COLUMNS" : "LINES");
    int n = in_bounds(text ? strtol(text, NULL, 10) : 0);
    if (n == 0 && isatty(fileno(out)) == 1 && ioctl(fileno(out), TIOCGWINSZ, &size) == 0)
        n = in_bounds(side == TERMINAL_COLUMNS ? size.ws_col : size.ws_row);
    return n > 0 ? n : otherwise;
}

int terminal_columns(FILE *out)
{
    return isatty(fileno(out)) == 1 ? terminal_side(out, TERMINAL_COLUMNS, 0) : 0;
}

/* ---- lines that are too long ----------------------------------------------------------------- */

/* Colours take no column. */
static size_t width_of(const char *text, size_t n)
{
    size_t wide = 0;
    for (size_t i = 0; i < n;) {
        char escape[PRINTABLE_NBYTES];
        size_t columns = 0;
        if (text[i] == '\033') {
            const char *end = memchr(text + i, 'm', n - i);
            i = end ? (size_t)(end - text) + 1 : n;
            continue;
        }
        i += text_char(text + i, &columns, escape);
        wide += columns;
    }
    return wide;
}

/* Where the rest of a line goes: under what follows the last gap of two spaces in its first two
 * thirds, or a little further in than the line. */
static size_t indent_of(const char *line, size_t n, size_t columns)
{
    size_t lead = 0, at = 0;
    while (lead < n && line[lead] == ' ') lead++;
    for (size_t i = lead; i + 2 < n; i++) {
        const bool is_gap = line[i] == ' ' && line[i + 1] == ' ' && line[i + 2] != ' ';
        const size_t column = is_gap ? width_of(line, i + 2) : 0;
        if (is_gap && column <= columns * 2 / 3) at = column;
    }
    return at > 0 ? at : lead + 2 <= columns / 2 ? lead + 2 : 0;
}

void terminal_put_words(FILE *out, const char *text, size_t n, size_t column, size_t indent,
                        size_t columns)
{
    for (size_t i = 0; i < n;) {
        size_t gap = 0, word = 0;
        while (i + gap < n && text[i + gap] == ' ') gap++;
        while (i + gap + word < n && text[i + gap + word] != ' ') word++;
        const size_t wide = width_of(text + i + gap, word);
        if (i > 0 && column > indent && column + gap + wide > columns) {
            fprintf(out, "\n%*s", (int)indent, "");
            column = indent;
        } else {
            fprintf(out, "%*s", (int)gap, "");
            column += gap;
        }
        fwrite(text + i + gap, 1, word, out);
        column += wide;
        i += gap + word;
    }
}

/* A line goes out in one piece with its end: lines of several ranks must not mix in a pipe. */
void terminal_wrap(FILE *out, const char *text, int columns)
{
    while (*text) {
        const size_t n = strcspn(text, "\n"), whole = n + (text[n] == '\n');
        if (columns < SIDE_MIN || width_of(text, n) <= (size_t)columns) {
            fwrite(text, 1, whole, out);
        } else {
            terminal_put_words(out, text, n, 0, indent_of(text, n, (size_t)columns),
                               (size_t)columns);
            if (whole > n) fputc('\n', out);
        }
        text += whole;
    }
}

void terminal_put_wrapped(FILE *out, const char *text)
{
    char *copy = strdup(text);
    terminal_wrap(out, copy ? terminal_text(copy) : text, terminal_columns(out));
    free(copy);
}
