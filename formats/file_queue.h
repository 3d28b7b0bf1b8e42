/* Writing behind the caller's back: bytes are copied and checksummed into a few buffers, which the
 * queue's threads bring to disk past the page cache. The caller's processor works while the disk
 * does, and its memory is free again at once.
 *
 * A buffer is a window of the file, 1 MiB at a multiple of 1 MiB. Puts that continue each other
 * share it, whatever their size and alignment, so that the disk sees whole windows; what stays
 * incomplete is written when a buffer is needed, or by the drain.
 *
 * file_queue_create() → file_queue_put() from any thread → file_queue_drain() → destroy. */
#ifndef CZ_FORMATS_FILE_QUEUE_H
#define CZ_FORMATS_FILE_QUEUE_H

#include "formats/file_io.h"

CZ_EXTERN_C_BEGIN

struct file_queue;

/* `f` is lent until destroy. Takes FILE_QUEUE_NBYTES of memory and two threads; where there are
 * none, puts write. Errors: CZ_NOMEM. */
cz_status file_queue_create(const struct file_durable *f, struct file_queue **out);

#define FILE_QUEUE_NBYTES ((size_t)8 << 20)

/* Bytes [off, off + nbytes) of the file, each by one put. *crc: continued over them (crc32_update).
 * Errors: CZ_IO, of any write so far; then nothing more is written. */
cz_status file_queue_put(struct file_queue *q, const void *src, size_t nbytes, uint64_t off,
                         uint32_t *crc);

/* Wait until everything was written (not synced). Errors: CZ_IO, the first of all writes. */
cz_status file_queue_drain(struct file_queue *q);

void file_queue_destroy(struct file_queue *q); /* drops what was not drained; accepts NULL */

CZ_EXTERN_C_END
#endif
