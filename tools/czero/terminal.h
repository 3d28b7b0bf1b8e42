/* What the reader of stdout or stderr can show: colours, and characters beyond ASCII. The
 * environment decides, so that tests and pipes can ask for either. */
#ifndef CZ_TOOLS_TERMINAL_H
#define CZ_TOOLS_TERMINAL_H

#include <stdbool.h>
#include <stdio.h>

/* A stream that is a terminal, unless TERM is "dumb" or empty, or NO_COLOR is set. */
bool terminal_has_colours(FILE *out);

/* LC_ALL, LC_CTYPE or LANG, the first that is set, names UTF-8. */
bool terminal_is_utf8(void);

enum terminal_colour { TERMINAL_PLAIN, TERMINAL_RED, TERMINAL_YELLOW };

/* The sequence from which on text is plain, or bold and red or yellow; "" without colours. */
const char *terminal_colour(FILE *out, enum terminal_colour colour);

/* A message to be shown: where UTF-8 cannot be, `text` is changed as terminal_put() does. Returns
 * `text`. */
char *terminal_text(char *text);

/* Columns and lines of a terminal; 0: `out` is none, or does not tell, and neither do COLUMNS and
 * LINES. */
int terminal_columns(FILE *out);
int terminal_lines(FILE *out);

/* Print text whose lines are broken between words at `columns` (0: never). Of a table's row, what
 * was broken off stands under its last column; of other lines, two columns further in. */
void terminal_wrap(FILE *out, const char *text, int columns);

/* The same at the width of the terminal, with terminal_put()'s replacements. */
void terminal_put_wrapped(FILE *out, const char *text);

/* Print a help text or a table. Where UTF-8 cannot be shown, the characters that czero's own texts
 * use ("…", "×", "·") become ASCII; those of names stay as they are. */
void terminal_put(FILE *out, const char *text);

/* The same whatever the locale. */
void terminal_put_ascii(FILE *out, const char *text);

#endif
