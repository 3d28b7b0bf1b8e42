/* A CRC-32 for each SWAP_ALIGN bytes of the file. A disk or driver that returns other bytes than
 * were written would otherwise change the training without a sign. */
#include "offload/swap/swap_impl.h"

#include <libdeflate.h>
#include <stdlib.h>

#include <inttypes.h>

/* Kept xor this, so that a zeroed table says that all blocks are zero. */
#define CRC_OF_ZEROS UINT32_C(0xc71c0011)

static uint32_t crc_of(const unsigned char *block)
{
    return libdeflate_crc32(0, block, SWAP_ALIGN) ^ CRC_OF_ZEROS;
}

uint32_t *swap_checksums_create(uint64_t file_nbytes)
{
    return calloc((size_t)(file_nbytes / SWAP_ALIGN) + 1, sizeof(uint32_t));
}

void swap_checksums_note(uint32_t *sums, const struct swap_block *b)
{
    uint32_t *sum = sums + b->at / SWAP_ALIGN;
    for (size_t i = 0; i < b->nbytes; i += SWAP_ALIGN) *sum++ = crc_of(b->buf + i);
}

cz_status swap_checksums_check(const uint32_t *sums, const char *path, const struct swap_block *b)
{
    const uint32_t *sum = sums + b->at / SWAP_ALIGN;
    for (size_t i = 0; i < b->nbytes; i += SWAP_ALIGN, sum++)
        if (crc_of(b->buf + i) != *sum)
            return err_set(CZ_CORRUPT, 0,
                           "swap file %s: the %zu bytes at offset %" PRIu64
                           " are not those that were written there (checksums differ)",
                           path, SWAP_ALIGN, b->off + i);
    return CZ_OK;
}
