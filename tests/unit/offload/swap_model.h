/* A swap beside plain memory: random requests, aligned and not, several open at a time, and what
 * comes back is compared with what the memory holds. */
#ifndef CZ_TESTS_SWAP_MODEL_H
#define CZ_TESTS_SWAP_MODEL_H

#include "tests/unit/offload/swap_rig.h"

#define SWAP_MODEL_NBYTES ((size_t)512 << 10)
#define SWAP_MODEL_OPEN   6

struct model_request {
    uint64_t off, ticket;
    size_t nbytes;
    bool is_write;
    unsigned char *buf; /* SWAP_MODEL_NBYTES / 4 */
};

struct swap_model {
    struct swap *swap;
    uint64_t state;
    unsigned char *memory, *bufs, *bytes;
    struct model_request open[SWAP_MODEL_OPEN];
};

static inline uint64_t model_below(struct swap_model *m, uint64_t n)
{
    m->state = m->state * 6364136223846793005u + 1442695040888963407u;
    return (m->state >> 33) % n;
}

/* What a wait gives out as read must be right, whatever fails later. */
static inline cz_status model_end(struct swap_model *m, struct model_request *r)
{
    uint64_t ticket = r->ticket;
    r->ticket = 0;
    if (ticket == 0) return CZ_OK;
    TRY(swap_wait(m->swap, ticket));
    if (!r->is_write) ck_assert_mem_eq(r->buf, m->memory + r->off, r->nbytes);
    return CZ_OK;
}

/* Those that overlap [off, off + nbytes) are waited for when one of the two writes. */
static inline cz_status model_clear(struct swap_model *m, uint64_t off, size_t nbytes,
                                    bool is_write)
{
    for (int i = 0; i < SWAP_MODEL_OPEN; i++) {
        struct model_request *r = &m->open[i];
        if ((r->is_write || is_write) && r->off < off + nbytes && off < r->off + r->nbytes)
            TRY(model_end(m, r));
    }
    return CZ_OK;
}

static inline cz_status model_async(struct swap_model *m)
{
    struct model_request *r = &m->open[model_below(m, SWAP_MODEL_OPEN)];
    size_t nbytes = (1 + model_below(m, 20)) * SWAP_ALIGN;
    uint64_t off = model_below(m, (SWAP_MODEL_NBYTES - nbytes) / SWAP_ALIGN + 1) * SWAP_ALIGN;
    bool is_write = model_below(m, 2);
    TRY(model_end(m, r));
    TRY(model_clear(m, off, nbytes, is_write));
    r->off = off;
    r->nbytes = nbytes;
    r->is_write = is_write;
    if (!is_write) return swap_read_begin(m->swap, r->buf, off, nbytes, &r->ticket);
    swap_rig_fill(r->buf, nbytes, m->state);
    memcpy(m->memory + off, r->buf, nbytes);
    return swap_write_begin(m->swap, r->buf, off, nbytes, &r->ticket);
}

static inline cz_status model_sync(struct swap_model *m)
{
    uint64_t off = model_below(m, SWAP_MODEL_NBYTES);
    size_t nbytes = 1 + model_below(m, 50000);
    if (nbytes > SWAP_MODEL_NBYTES - off) nbytes = SWAP_MODEL_NBYTES - off;
    bool is_write = model_below(m, 2);
    uint64_t first = off / SWAP_ALIGN * SWAP_ALIGN;
    uint64_t end = (off + nbytes + SWAP_ALIGN - 1) / SWAP_ALIGN * SWAP_ALIGN;
    TRY(model_clear(m, first, end - first, is_write));
    if (is_write) {
        swap_rig_fill(m->bytes, nbytes, m->state);
        memcpy(m->memory + off, m->bytes, nbytes);
        return swap_write(m->swap, off, nbytes, m->bytes);
    }
    TRY(swap_read(m->swap, off, nbytes, m->bytes));
    ck_assert_mem_eq(m->bytes, m->memory + off, nbytes);
    return CZ_OK;
}

static inline cz_status model_calls(struct swap_model *m, int n_calls)
{
    for (int i = 0; i < n_calls; i++) TRY(model_below(m, 4) == 0 ? model_sync(m) : model_async(m));
    for (int i = 0; i < SWAP_MODEL_OPEN; i++) TRY(model_end(m, &m->open[i]));
    TRY(swap_read(m->swap, 0, SWAP_MODEL_NBYTES, m->bytes));
    ck_assert_mem_eq(m->bytes, m->memory, SWAP_MODEL_NBYTES);
    return CZ_OK;
}

/* On a fresh swap of SWAP_MODEL_NBYTES. Returns the first error of a call, after which nothing is
 * under way. */
static inline cz_status swap_model_run(struct swap *s, int n_calls, uint64_t seed)
{
    struct swap_model m = {.swap = s, .state = seed};
    m.memory = swap_rig_memory(SWAP_MODEL_NBYTES);
    m.bytes = swap_rig_memory(SWAP_MODEL_NBYTES);
    m.bufs = swap_rig_memory(SWAP_MODEL_OPEN * SWAP_MODEL_NBYTES / 4);
    cz_status st = swap_register(s, m.bufs, 2 * SWAP_MODEL_NBYTES / 4); /* not the others */
    for (int i = 0; i < SWAP_MODEL_OPEN; i++)
        m.open[i].buf = m.bufs + (size_t)i * SWAP_MODEL_NBYTES / 4;
    if (st == CZ_OK) st = model_calls(&m, n_calls);
    cz_status drained = swap_drain(s);
    ck_assert_int_eq(drained, st);
    free(m.memory);
    free(m.bytes);
    free(m.bufs);
    return st;
}

#endif
