/* Writing JSON: values appended to a growing buffer, laid out as Python's json.dumps does.
 *
 * Life cycle: json_writer_init(); begin/end and values in document order; json_writer_take() hands
 * the text out. The first failure (no memory) is kept and reported by json_writer_take(), so the
 * calls in between need no checks. Characters that a terminal must not get (base/printable.h) are
 * written as \\u escapes. One writer, one thread. */
#ifndef CZ_FORMATS_JSON_JSON_WRITE_H
#define CZ_FORMATS_JSON_JSON_WRITE_H

#include "base/status.h"

CZ_EXTERN_C_BEGIN

#define JSON_FLOAT_NBYTES 32

struct json_writer {
    char *buf;
    size_t nbytes, capacity;
    int indent; /* spaces per level; 0: one line, ", " and ": " between */
    int depth;
    bool fresh;     /* nothing written yet at this level */
    bool after_key; /* the next value follows its key on the same line */
    bool failed;
};

void json_writer_init(struct json_writer *w, int indent);

/* The text, terminated by NUL, released by free(); the writer is empty again.
 * Errors: CZ_NOMEM. nbytes may be NULL. */
cz_status json_writer_take(struct json_writer *w, char **out, size_t *nbytes);

/* Drop what was written. Accepts a zeroed writer. */
void json_writer_free(struct json_writer *w);

void json_begin_object(struct json_writer *w);
void json_end_object(struct json_writer *w);
void json_begin_array(struct json_writer *w);
void json_end_array(struct json_writer *w);
void json_write_key(struct json_writer *w, const char *key);
void json_write_null(struct json_writer *w);
void json_write_bool(struct json_writer *w, bool value);
void json_write_int(struct json_writer *w, int64_t value);
void json_write_double(struct json_writer *w, double value); /* shortest round trip */
void json_write_string(struct json_writer *w, const char *utf8);
/* The same for n bytes, which may contain NUL; a byte that is not UTF-8 becomes U+FFFD. */
void json_write_key_n(struct json_writer *w, const char *key, size_t n);
void json_write_string_n(struct json_writer *w, const char *utf8, size_t n);
void json_write_raw(struct json_writer *w, const char *json); /* already JSON */

/* A member of an object: key and value in one. A string that is NULL becomes null, and so does a
 * figure that is NAN. */
void json_put_bool(struct json_writer *w, const char *key, bool value);
void json_put_int(struct json_writer *w, const char *key, int64_t value);
void json_put_size(struct json_writer *w, const char *key, size_t value);
void json_put_double(struct json_writer *w, const char *key, double value);
void json_put_figure(struct json_writer *w, const char *key, double value);
void json_put_string(struct json_writer *w, const char *key, const char *utf8);

/* Append to the writer as a growing buffer of text, JSON or not. Bytes go in as they are; the
 * strings of a format, and n bytes of text for people, are escaped for one line
 * (base/printable.h). */
void json_write_text(struct json_writer *w, const char *text);
void json_write_bytes(struct json_writer *w, const char *bytes, size_t n);
void json_write_printable(struct json_writer *w, const char *text, size_t n);
void json_write_format(struct json_writer *w, const char *fmt, ...) CZ_PRINTF(2, 3);

/* Shortest text that reads back as `value`, spelled as Python's repr: "0.001", "1e-05", "1.0",
 * "1e+16"; "NaN", "Infinity", "-Infinity". Returns buf. */
const char *json_float_text(double value, char buf[JSON_FLOAT_NBYTES]);

CZ_EXTERN_C_END
#endif
