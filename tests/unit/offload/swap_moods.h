/* A disk with moods: transfers that are short, put off or fail, by number or by chance. */
#ifndef CZ_TESTS_SWAP_MOODS_H
#define CZ_TESTS_SWAP_MOODS_H

#include "tests/unit/offload/swap_rig.h"

#include <errno.h>

struct moods {
    atomic_int n;      /* transfers so far */
    int nth;           /* the one that gets `error`; −1: by chance */
    int error;         /* an errno */
    bool is_short;     /* every transfer moves a part only */
    bool is_short_odd; /* parts of odd lengths */
    bool is_for_ever;  /* from the nth on, all of them */
    bool only_writes, only_reads;
};

static inline uint32_t moods_scramble(uint32_t x)
{
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x ^ (x >> 16);
}

static inline size_t moods_ask(void *user, const struct swap_block *b, size_t nbytes)
{
    struct moods *m = user;
    (void)b;
    if (!m->is_short || nbytes <= SWAP_ALIGN) return nbytes;
    uint32_t x = moods_scramble((uint32_t)atomic_load(&m->n) + 1);
    return (1 + x % (nbytes / SWAP_ALIGN)) * SWAP_ALIGN;
}

static inline long moods_result(void *user, const struct swap_block *b, long result)
{
    struct moods *m = user;
    int n = atomic_fetch_add(&m->n, 1);
    if ((m->only_writes && !b->is_write) || (m->only_reads && b->is_write)) return result;
    bool hit = m->nth < 0 ? moods_scramble((uint32_t)n) % 3 == 0
                          : n == m->nth || (m->is_for_ever && n > m->nth);
    if (hit && m->error != 0) return -m->error;
    if (m->is_short_odd && result > 5000 && moods_scramble((uint32_t)n) % 2) {
        long part = 4097 + moods_scramble((uint32_t)n) % 900;
        if (part >= result) return result;
        if (!b->is_write) memset(b->buf + b->done + part, 0xBB, (size_t)(result - part));
        return part;
    }
    return result;
}

#endif
