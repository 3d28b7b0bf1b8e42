/* Text from files made safe to show: names, labels and values of a stranger's file must not move a
 * terminal's cursor, reverse the direction of what follows, forge a line of their own, or break out
 * of a JSON string.
 *
 * Shown as they are: all characters of valid UTF-8 except those below. A backslash stays, so that
 * escaped text stays as it is when it is escaped again; the form is for eyes, not for parsers (JSON
 * is exact).
 *
 *   \n \r \t     line feed, carriage return, tab
 *   \xNN         the other control characters of ASCII (00 … 1f, 7f), and each byte that is not
 *                valid UTF-8 (also overlong forms and surrogates)
 *   \uNNNN       control characters U+0080 … U+009F; marks that turn the direction of text (U+061C,
 *                U+200E, U+200F, U+202A … U+202E, U+2066 … U+2069); line ends (U+2028, U+2029);
 *                characters without width that no word needs (U+200B, U+2060 … U+206F, U+FEFF). The
 *                joiners U+200C and U+200D stay: words of many languages and emoji need them.
 *
 * Every err_set(), log_line() and printable_print() escapes its string arguments this way and
 * leaves its format alone. tests/lint/test_printable.sh finds prints of strings that do not. */
#ifndef CZ_BASE_PRINTABLE_H
#define CZ_BASE_PRINTABLE_H

#include "base/compiler.h"

#include <stdarg.h>
#include <stdio.h>

CZ_EXTERN_C_BEGIN

enum printable_form {
    PRINTABLE_LINE, /* one line: line feeds and tabs are escaped */
    PRINTABLE_TEXT, /* running text: line feeds and tabs stay */
    PRINTABLE_JSON  /* inside a JSON string: its escapes for the same characters, for " and for \;
                       U+FFFD for a byte that is not valid UTF-8 */
};

#define PRINTABLE_NBYTES 8 /* of an escape, with its NUL */

/* Look at the next of the n > 0 bytes at text: returns how many it takes, and the text that stands
 * for them in `escape`; "": they are shown as they are. */
size_t printable_next(enum printable_form form, const char *text, size_t n,
                      char escape[PRINTABLE_NBYTES]);

/* snprintf() whose strings and characters (%s, %c) are escaped for one line. Returns the bytes of
 * the whole; what does not fit dst is cut between characters. A string of more than arg_max bytes,
 * 0 for no limit, loses its middle: "…" stands there, so that the sentence after it fits. A
 * precision counts bytes of the string before escapes; one that is written in the format ("%.40s")
 * cuts between characters. Not supported: %n, %ls, %lc, positions ("%1$s"); the format ends there.
 */
size_t printable_format(char *dst, size_t dst_nbytes, size_t arg_max, const char *fmt, ...)
    CZ_PRINTF(4, 5);
size_t printable_vformat(char *dst, size_t dst_nbytes, size_t arg_max, const char *fmt, va_list ap)
    CZ_PRINTF(4, 0);

/* fprintf() whose strings are escaped for one line, in one piece. The stream's error flag tells of
 * failures. */
void printable_print(FILE *stream, const char *fmt, ...) CZ_PRINTF(2, 3);
void printable_vprint(FILE *stream, const char *fmt, va_list ap) CZ_PRINTF(2, 0);

/* Print n bytes in a form. */
void printable_put(FILE *stream, enum printable_form form, const char *text, size_t n);

CZ_EXTERN_C_END
#endif
