/* A file as a stream of bytes; what gzip or zstd has compressed comes out decompressed, and a
 * Parquet file as JSON lines, where its plug-in is.
 *
 * Life cycle: byte_stream_open() → byte_stream_read() until it gives nothing → byte_stream_close().
 * The content decides, not the name. Several gzip members or zstd frames after one another are one
 * stream. Memory is a few hundred KiB, and for zstd the window of the file besides (at most 128
 * MiB), whatever the file says. One thread at a time. */
#ifndef CZ_DATA_SOURCE_BYTE_STREAM_H
#define CZ_DATA_SOURCE_BYTE_STREAM_H

#include "base/status.h"

enum byte_packing { BYTES_PLAIN = 0, BYTES_GZIP, BYTES_ZSTD, BYTES_PARQUET };

struct byte_stream; /* opaque */

/* Read `fd` (a file, or a pipe) from its position on; it stays the caller's and is lent until
 * byte_stream_close(). `path` is for sentences and borrowed as long. *out is released by
 * byte_stream_close(); NULL on error. Errors: CZ_IO, CZ_NOMEM, parquet_open()'s. */
cz_status byte_stream_open(int fd, const char *path, struct byte_stream **out);
void byte_stream_close(struct byte_stream *s); /* accepts NULL */

/* Up to nbytes bytes; *got 0 is the end. Errors: CZ_CORRUPT (damaged, truncated, or followed by
 * something else), CZ_UNSUPPORTED (a zstd dictionary or a window over 128 MiB), CZ_IO, CZ_NOMEM;
 * every later call then returns the same status. */
cz_status byte_stream_read(struct byte_stream *s, void *dst, size_t nbytes, size_t *got);

enum byte_packing byte_stream_packing(const struct byte_stream *s);
/* Of a file's beginning; Parquet is told from its end, too, and is "plain" here. */
enum byte_packing byte_packing_of(const void *head, size_t nbytes);
const char *byte_packing_name(enum byte_packing packing); /* "gzip", "zstd", "Parquet", "plain" */

/* Bytes of the file that have been read so far, compressed ones where it is compressed; 0 of a
 * Parquet file. */
uint64_t byte_stream_n_consumed(const struct byte_stream *s);

/* The length of `path` without the suffix that names its packing: "a.jsonl.gz" → 7. */
size_t byte_packing_stem(const char *path);

#endif
