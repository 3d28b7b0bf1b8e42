/* Arenas: one planned allocation, handed out piece by piece.
 *
 * Life cycle: the planner adds up arena_piece() sizes; arena_init() maps exactly that; arena_take()
 * hands pieces out in the planned order; arena_free() unmaps all at once. Pieces are never returned
 * one by one. With AddressSanitizer the gap after each piece is poisoned. Not thread-safe. */
#ifndef CZ_BASE_ARENA_H
#define CZ_BASE_ARENA_H

#include "base/status.h"

CZ_EXTERN_C_BEGIN

#define ARENA_ALIGN      ((size_t)256)     /* every piece starts at a multiple of this */
#define ARENA_PAGE_BYTES ((size_t)2 << 20) /* arenas are rounded up to huge pages */

struct arena {
    unsigned char *base;
    size_t nbytes; /* mapped, a multiple of ARENA_PAGE_BYTES */
    size_t used;
    char name[32];
};

/* Large pieces are kept more than a page apart. Otherwise pieces of an equal size of 2^k bytes make
 * the streams of one kernel meet in the same memory bank: an Adam step over 64 Mi elements took 2
 * to 3 times as long (EPYC 9004). */
#define ARENA_LARGE ((size_t)1 << 20)
#define ARENA_SKEW  ((size_t)4096)

/* Bytes that a piece of `nbytes` takes out of an arena (its red zone and alignment included). */
static inline size_t arena_piece(size_t nbytes)
{
    size_t gap = nbytes >= ARENA_LARGE ? ARENA_SKEW + ARENA_ALIGN : ARENA_ALIGN;
    return (nbytes + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN + gap;
}

/* Zeroed anonymous memory, still untouched, starting on a huge page, huge pages advised.
 * nbytes: a multiple of ARENA_PAGE_BYTES; released by munmap(). NULL and errno when there is none.
 */
void *arena_map(size_t nbytes);

/* Map at least `nbytes` of zeroed anonymous memory and advise huge pages. nbytes 0 is fine. Errors:
 * CZ_NOMEM with the name and size. On error *a is zeroed. */
cz_status arena_init(struct arena *a, const char *name, size_t nbytes);

/* The next piece, ARENA_ALIGN-aligned and zeroed, touched (arena_touch). Errors: CZ_NOMEM when the
 * plan was too small (a defect of the planner: the sentence names the arena and the piece). */
cz_status arena_take(struct arena *a, size_t nbytes, const char *what, void **out);

/* First touch of one zeroed array: a byte of every page, in the even split over the OpenMP threads
 * that kernels use, so that its pages are near their threads. */
void arena_touch(void *memory, size_t nbytes);

/* Unmap. Accepts a zeroed or half-built arena; idempotent. */
void arena_free(struct arena *a);

CZ_EXTERN_C_END
#endif
