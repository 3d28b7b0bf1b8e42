/* Text in columns: how wide names are on a terminal, and names printed to a width.
 *
 * East Asian wide characters and emoji take two columns, combining marks none (utf8proc's widths).
 * What base/printable.h escapes counts and prints as its escape. Pure functions. */
#ifndef CZ_BASE_TEXT_TEXT_WIDTH_H
#define CZ_BASE_TEXT_TEXT_WIDTH_H

#include "base/printable.h"

#include <stdio.h>

CZ_EXTERN_C_BEGIN

/* Columns that `text` takes. */
size_t text_width(const char *text);

/* Bytes of the character at `text` (≥ 1; not at the end) and its columns; escape: what stands for
 * it, "" when it is shown as it is. */
size_t text_char(const char *text, size_t *width, char escape[PRINTABLE_NBYTES]);

/* Print `text` and spaces up to `width` columns, the text at the right or at the left end; a longer
 * text is not cut. The stream's error flag tells of failures. */
void text_print_right(FILE *stream, const char *text, size_t width);
void text_print_left(FILE *stream, const char *text, size_t width);

CZ_EXTERN_C_END
#endif
