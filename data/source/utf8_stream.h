/* A file of text as a stream of valid UTF-8: decompressed, converted from another encoding where
 * the caller names one, without a byte order mark.
 *
 * Life cycle: utf8_stream_open() → utf8_stream_read() until it gives nothing → utf8_stream_close().
 * Bytes that are not text of the encoding are an error with file, line and offset; what stands in
 * front of them is given first. Memory is that of byte_stream.h and 64 KiB. One thread at a time.
 */
#ifndef CZ_DATA_SOURCE_UTF8_STREAM_H
#define CZ_DATA_SOURCE_UTF8_STREAM_H

#include "base/status.h"
#include "data/source/byte_stream.h"

#define UTF8_STREAM_NBYTES_MIN ((size_t)16) /* of a call's space */

struct utf8_stream; /* opaque */

struct utf8_stream_options {
    const char *path;     /* for messages; borrowed until close */
    const char *encoding; /* iconv(3)'s name or Python's, borrowed until close; NULL: UTF-8 */
    uint64_t n_raw;       /* bytes that a plain file has: the end; UINT64_MAX: read to the end */
    bool refuses_nul;     /* a NUL in the first 64 KiB is CZ_UNSUPPORTED: tokens or weights */
};

/* Read fd from its position on; it stays the caller's. *out is released by utf8_stream_close();
 * NULL on error. Errors: CZ_INVALID (an encoding that this host does not have),
 * byte_stream_open()'s. */
cz_status utf8_stream_open(int fd, const struct utf8_stream_options *options,
                           struct utf8_stream **out);
void utf8_stream_close(struct utf8_stream *s); /* accepts NULL */

/* Whole characters, at most nbytes (≥ UTF8_STREAM_NBYTES_MIN) bytes; *got 0 is the end. Errors:
 * CZ_CORRUPT (not of the encoding; shorter than n_raw), CZ_UNSUPPORTED (a format that is no text),
 * byte_stream_read()'s; every later call then returns the same status. */
cz_status utf8_stream_read(struct utf8_stream *s, void *dst, size_t nbytes, size_t *got);

/* Whether options.encoding means UTF-8; NULL does. */
bool utf8_stream_is_utf8(const char *encoding);

const struct byte_stream *utf8_stream_bytes(const struct utf8_stream *s);

#endif
