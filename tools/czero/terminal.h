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

/* Columns or lines to lay out for: COLUMNS or LINES from 20 to 1000, else those of the terminal
 * that `out` is, else `otherwise`. */
enum terminal_side { TERMINAL_COLUMNS, TERMINAL_LINES };
int terminal_side(FILE *out, enum terminal_side side, int otherwise);

/* Columns of a terminal; 0: `out` is none, or its columns are not known. */
int terminal_columns(FILE *out);

/* Print text whose lines are broken between words at `columns` (0: never). In a table's row, the
 * rest continues under the last column; in other lines it is indented by two more columns. */
void terminal_wrap(FILE *out, const char *text, int columns);

/* Print the words of n bytes from `column` on; lines after the first begin at `indent`. */
void terminal_put_words(FILE *out, const char *text, size_t n, size_t column, size_t indent,
                        size_t columns);

/* The same at the width of the terminal, with terminal_put()'s replacements. */
void terminal_put_wrapped(FILE *out, const char *text);

/* Print a help text or a table. Where UTF-8 cannot be shown, the characters that czero's own texts
 * use ("…", "×", "·") become ASCII; those of names stay as they are. */
void terminal_put(FILE *out, const char *text);

/* The same whatever the locale. */
void terminal_put_ascii(FILE *out, const char *text);

#endif
