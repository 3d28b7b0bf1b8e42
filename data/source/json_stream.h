/* Reading JSON as it streams, for files of any length whose rows are wanted one after the other.
 * (formats/json/json.h holds whole documents.) Errors of all calls: CZ_CORRUPT with file and line;
 * CZ_NOMEM; the stream's own. */
#ifndef CZ_DATA_SOURCE_JSON_STREAM_H
#define CZ_DATA_SOURCE_JSON_STREAM_H

#include "data/source/text_source.h"
#include "formats/json/json.h"

/* The first byte of the next value or sign, −1 at the end. White space before it is taken. */
int json_stream_peek(struct text_source *in);

/* CZ_CORRUPT: the byte c should not be there (−1: the end) where `wanted` is expected. */
cz_status json_stream_fail(struct text_source *in, int c, const char *wanted);

/* A value without parts replaces what `out` holds: a string's characters, or the word that stands
 * there, terminated; NaN counts as null. Of lists and objects only the type is told, and they stay
 * unread. */
cz_status json_stream_scalar(struct text_source *in, struct text_buf *out, enum json_type *type);

/* A member's name and its ":". */
cz_status json_stream_key(struct text_source *in, struct text_buf *out);

/* After an item: "," (another follows) or `close`. */
cz_status json_stream_separator(struct text_source *in, char close, bool *done);

/* Reads over a value that is not needed, `depth` levels below the document. */
cz_status json_stream_skip(struct text_source *in, struct text_buf *scratch, int depth);

/* Appends an object, or a list, as it stands in the file; its grammar is not checked. CZ_CORRUPT:
 * it does not end (the line is the one where it begins), or has more than nbytes_max bytes. */
cz_status json_stream_object(struct text_source *in, size_t nbytes_max, struct text_buf *out);

#endif
