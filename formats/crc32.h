/* CRC-32 (the zip container's, reflected 0xEDB88320) of pieces that are seen in any order. */
#ifndef CZ_FORMATS_CRC32_H
#define CZ_FORMATS_CRC32_H

#include "base/status.h"

CZ_EXTERN_C_BEGIN

/* Continue `crc` (0 at the start) over nbytes. */
uint32_t crc32_update(uint32_t crc, const void *data, size_t nbytes);

/* CRC of A followed by B, from both CRCs and B's length; O(log nbytes_b). (zlib has a crc32_combine
 * of other types, and programs may be linked with both.) */
uint32_t crc32_concat(uint32_t crc_a, uint32_t crc_b, uint64_t nbytes_b);

/* The CRC of a run of bytes that is written piece by piece, in any order, each byte once. */
struct crc32_pieces {
    struct crc32_piece *pieces; /* sorted, neighbours merged */
    size_t n, cap;
};

/* Bytes [off, off + nbytes) have this CRC. Errors: CZ_INVALID (some of them were there before),
 * CZ_NOMEM. Not thread-safe. */
cz_status crc32_pieces_add(struct crc32_pieces *p, uint64_t off, uint64_t nbytes, uint32_t crc);

/* The CRC of [0, nbytes). CZ_INVALID with the first missing byte when not all of it was there. */
cz_status crc32_pieces_total(const struct crc32_pieces *p, uint64_t nbytes, uint32_t *crc);
void crc32_pieces_free(struct crc32_pieces *p); /* accepts zeroed */

CZ_EXTERN_C_END
#endif
