/* Files of text, read as they stream: a buffer and the line for error messages; texts that grow.
 * All that a stream gives is valid UTF-8. */
#ifndef CZ_DATA_SOURCE_TEXT_SOURCE_H
#define CZ_DATA_SOURCE_TEXT_SOURCE_H

#include "base/status.h"
#include "data/source/utf8_stream.h"

/* ---- bytes that grow ------------------------------------------------------------------------- */

struct text_buf {
    char *s;
    size_t n, cap;
};

/* Space for n more. CZ_NOMEM, also where a single text would take more than half of the memory that
 * the host has left. */
cz_status text_buf_reserve(struct text_buf *b, size_t n);
cz_status text_buf_put(struct text_buf *b, const char *src, size_t n);
static inline cz_status text_buf_put_char(struct text_buf *b, char c)
{
    if (b->n == b->cap) TRY(text_buf_reserve(b, 1));
    b->s[b->n++] = c;
    return CZ_OK;
}
void text_buf_free(struct text_buf *b); /* accepts a zeroed one */
void text_buf_swap(struct text_buf *a, struct text_buf *b);

/* Bytes of whole characters at the beginning of s, at most n_max. */
static inline size_t text_cut(const char *s, size_t n, size_t n_max)
{
    if (n <= n_max) return n;
    while (n_max > 0 && ((unsigned char)s[n_max] & 0xC0) == 0x80) n_max--;
    return n_max;
}

/* Append s, valid UTF-8, without Unicode's white space. */
cz_status text_put_stripped(const char *s, size_t n, struct text_buf *out);

/* ---- a file as a stream ---------------------------------------------------------------------- */

struct text_source {
    const char *path;
    int fd;
    struct utf8_stream *stream;
    char *block;
    size_t at, n;      /* place in the block */
    uint64_t n_before; /* bytes of the text before the block */
    uint64_t n_max;    /* bytes that a text may have, UINT64_MAX: any number */
    uint64_t line;
    uint64_t item;         /* of a JSON list, from 1; 0: sentences name lines only */
    struct text_buf *copy; /* what is read from copy_at on goes here, too; NULL: nowhere */
    size_t copy_at;
    bool is_lent;     /* fd stays open: the caller's, or the process's standard input */
    bool is_input;    /* it is the latter */
    cz_status status; /* reading failed, with its sentence; the stream then seems to end */
};

/* `path` is "-" for standard input, else a path of the user's, or with `dir` a name below that
 * folder (formats/beneath.h). `shown` stands for it in sentences; both are borrowed until close.
 * What gzip or zstd has compressed is decompressed, up to half of the memory that the host has
 * left: the texts are going to be kept. A byte order mark is skipped. `encoding`: iconv's name,
 * borrowed until close; NULL means UTF-8. Errors: CZ_NOTFOUND, CZ_IO, CZ_NOMEM, CZ_UNSUPPORTED (a
 * format that is no text), CZ_CORRUPT (the first bytes are not of the encoding), CZ_INVALID (no
 * such encoding), byte_stream_read()'s. After an error, too, it is to be closed. */
cz_status text_source_open(struct text_source *s, const char *dir, const char *path,
                           const char *shown, const char *encoding);
/* The same of an open file, which is lent until close; of any length. */
cz_status text_source_open_fd(struct text_source *s, int fd, const char *shown,
                              const char *encoding);
void text_source_close(struct text_source *s); /* accepts a zeroed one */

/* Bytes that may be kept of what was compressed: half of the memory that the host has left. A file
 * of a megabyte may stand for a terabyte. Tests set text_packed_limit instead (0: unset). */
size_t text_packed_nbytes_max(void);
extern size_t text_packed_limit;

bool text_source_fill(struct text_source *s); /* false: the end */

/* The next byte, −1 at the end. */
static inline int text_source_peek(struct text_source *s)
{
    if (s->at == s->n && !text_source_fill(s)) return -1;
    return (unsigned char)s->block[s->at];
}

/* Step over the byte that text_source_peek() saw. */
static inline void text_source_skip(struct text_source *s)
{
    if (s->block[s->at++] == '\n') s->line++;
}

static inline int text_source_take(struct text_source *s)
{
    int c = text_source_peek(s);
    if (c >= 0) text_source_skip(s);
    return c;
}

/* Between the two calls, what is read is copied as it stands, behind what `copy` holds. Errors of
 * the second: CZ_NOMEM. */
static inline void text_source_copy_begin(struct text_source *s, struct text_buf *copy)
{
    s->copy = copy;
    s->copy_at = s->at;
}
cz_status text_source_copy_end(struct text_source *s);

/* err_set with "FILE:LINE: " (and "item N: ") in front; when reading failed, that failure. */
cz_status text_source_fail(const struct text_source *s, cz_status status, const char *fmt, ...)
    CZ_PRINTF(3, 4);

#endif
