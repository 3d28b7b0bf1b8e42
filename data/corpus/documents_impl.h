/* The text of a file as it comes, in one of two forms: text as it is, or the texts of JSON's rows.
 *
 * Life cycle: document_feed_open() → document_feed_read() until `ended` → document_feed_close(). */
#ifndef CZ_DATA_CORPUS_DOCUMENTS_IMPL_H
#define CZ_DATA_CORPUS_DOCUMENTS_IMPL_H

#include "data/source/json_stream.h"
#include "data/source/text_source.h"

struct document_feed {
    const char *path;
    bool is_rows, ended;
    struct text_source in; /* rows … */
    struct text_buf row, key, scratch, names;
    bool is_list, started;
    uint64_t n_rows;
    struct utf8_stream *stream; /* … or text */
    uint64_t n_text;            /* bytes of text so far */
};

/* Texts that wait to be encoded, one after the other. */
struct documents {
    struct text_buf text;
    size_t *ends; /* (n_ends) where documents end in it, ascending; none is empty */
    size_t n_ends, cap;
};

/* Read fd, a file of nbytes, from its position on; it and `path` are lent until close. is_rows:
 * JSON lines or a JSON list of objects, whose member "text" is a document; else text without
 * documents. `encoding`: iconv's name, or NULL, lent as well. Errors: CZ_UNSUPPORTED (it is no
 * text), those of reading. After an error, too, it is to be closed. */
cz_status document_feed_open(struct document_feed *f, int fd, const char *path, uint64_t nbytes,
                             bool is_rows, const char *encoding);
void document_feed_close(struct document_feed *f); /* accepts a zeroed one */

/* Append until d->text has `want` bytes or the file has ended. Errors: CZ_CORRUPT (JSON or
 * compressed data; it became shorter), CZ_INVALID (a row without a text), CZ_IO, CZ_NOMEM. */
cz_status document_feed_read(struct document_feed *f, size_t want, struct documents *d);

/* Bytes of the file that have been read. */
uint64_t document_feed_n_consumed(const struct document_feed *f);

/* Whether the bytes are compressed, so that their number says nothing of the text's. */
bool document_feed_is_packed(const struct document_feed *f);

/* Leave out the first n bytes, which end no document in the middle. */
void documents_drop(struct documents *d, size_t n);
void documents_free(struct documents *d); /* accepts a zeroed one */

#endif
