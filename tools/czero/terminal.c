/* What the reader of the output can show. One place asks the environment, for messages, help,
 * tables and plots alike. */
#include "terminal.h"

#include "base/status.h"

#include <stdlib.h>
#include <string.h>
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
