/* Arenas: one mapping that is handed out in pieces and never grows. All memory of a run is planned
 * and mapped before the first step, so it cannot run out later; pieces are touched at once, by the
 * threads that will use them, which places pages on their NUMA node and finds out now whether they
 * exist. */
#include "base/arena.h"

#include "base/size.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

/* One write per page, plus the last byte. */
void arena_touch(void *memory, size_t nbytes)
{
    volatile unsigned char *base = memory;
    const size_t page = 4096;
    const size_t n_pages = (nbytes + page - 1) / page;
#pragma omp parallel for schedule(static) if (n_pages > 1024)
    for (size_t i = 0; i < n_pages; i++) base[i * page] = 0;
    if (nbytes > 0) base[nbytes - 1] = 0;
}

/* Maps one huge page more than needed and trims both ends, so that the block is aligned for huge
 * pages. */
void *arena_map(size_t nbytes)
{
    size_t slack = nbytes + ARENA_PAGE_BYTES;
    errno = ENOMEM; /* also what a size beyond the address space means */
    if (slack < nbytes) return NULL;
    unsigned char *raw =
        mmap(NULL, slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED) return NULL;
    size_t lead = size_round_up((uintptr_t)raw, ARENA_PAGE_BYTES) - (uintptr_t)raw;
    if (lead > 0) munmap(raw, lead);
    munmap(raw + lead + nbytes, ARENA_PAGE_BYTES - lead);
    /* only advice: a kernel without huge pages is no error */
    madvise(raw + lead, nbytes, MADV_HUGEPAGE);
    return raw + lead;
}

/* The whole block is poisoned for the address sanitizer until it is handed out. */
cz_status arena_init(struct arena *a, const char *name, size_t nbytes)
{
    memset(a, 0, sizeof *a);
    snprintf(a->name, sizeof a->name, "%s", name);
    if (nbytes == 0) return CZ_OK;
    size_t mapped = size_round_up(nbytes, ARENA_PAGE_BYTES);
    errno = ENOMEM; /* also what a size beyond the address space means */
    unsigned char *base = mapped < nbytes ? NULL : arena_map(mapped);
    if (!base) {
        char human[24];
        return err_set(CZ_NOMEM, errno, "arena %s: cannot map %s", name,
                       size_human(nbytes, human, sizeof human));
    }
    CZ_POISON(base, mapped);
    a->base = base;
    a->nbytes = mapped;
    return CZ_OK;
}

/* Pieces are never given back one by one: a plan knows all of them. */
cz_status arena_take(struct arena *a, size_t nbytes, const char *what, void **out)
{
    size_t piece = arena_piece(nbytes), left = a->nbytes - a->used;
    if (nbytes > left || piece > left) /* a huge nbytes makes the piece wrap around */
        return err_set(CZ_NOMEM, 0, "arena %s: the plan left %zu bytes for %s, which needs %zu",
                       a->name, left, what, nbytes > left ? nbytes : piece);
    unsigned char *p = a->base + a->used;
    a->used += piece;
    CZ_UNPOISON(p, nbytes);
    arena_touch(p, nbytes);
    *out = p;
    return CZ_OK;
}

void arena_free(struct arena *a)
{
    if (a->base) {
        CZ_UNPOISON(a->base, a->nbytes);
        munmap(a->base, a->nbytes);
    }
    memset(a, 0, sizeof *a);
}
