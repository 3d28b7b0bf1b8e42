/* Unaligned access: aligned requests to bounce buffers, several in flight, in the queue that all
 * others use. One caller at a time. */
#include "offload/swap/swap_impl.h"

#include <string.h>

#define BOUNCE_NBYTES_MAX SWAP_BLOCK_NBYTES

size_t swap_bounce_nbytes(size_t block_nbytes)
{
    return block_nbytes < BOUNCE_NBYTES_MAX ? block_nbytes : BOUNCE_NBYTES_MAX;
}

/* A bounce buffer's worth of a range [begin, end) of the file. */
struct piece {
    unsigned char *bounce;
    uint64_t off; /* of the bounce buffer's first byte */
    size_t nbytes;
    size_t begin, end; /* which of them belong to the range */
};

static struct piece piece_at(const struct swap *s, uint64_t begin, uint64_t end, size_t i)
{
    struct piece p;
    p.bounce = s->bounce + i % SWAP_BOUNCES * s->bounce_nbytes;
    p.off = begin - begin % SWAP_ALIGN + i * s->bounce_nbytes;
    uint64_t to = p.off + s->bounce_nbytes < end ? p.off + s->bounce_nbytes : end;
    p.begin = p.off < begin ? (size_t)(begin - p.off) : 0;
    p.end = (size_t)(to - p.off);
    p.nbytes = (p.end + SWAP_ALIGN - 1) / SWAP_ALIGN * SWAP_ALIGN;
    return p;
}

static size_t n_pieces(const struct swap *s, uint64_t begin, uint64_t end)
{
    uint64_t first = begin - begin % SWAP_ALIGN;
    return (size_t)((end - first + s->bounce_nbytes - 1) / s->bounce_nbytes);
}

/* All requests of the buffers that were begun. */
static cz_status wait_all(struct swap *s, const uint64_t tickets[SWAP_BOUNCES], cz_status st)
{
    for (int i = 0; i < SWAP_BOUNCES; i++) {
        cz_status waited = swap_queue_wait(&s->queue, tickets[i]);
        if (st == CZ_OK) st = waited;
    }
    return st;
}

static cz_status begin_piece(struct swap *s, const struct piece *p, bool is_write, uint64_t *ticket)
{
    return swap_queue_begin(s, p->bounce, p->off, p->nbytes, is_write, ticket);
}

/* Reads are begun as far ahead as there are bounce buffers. A failure still waits for what was
 * begun: the buffers are used again. */
static cz_status read_range(struct swap *s, uint64_t begin, uint64_t end, unsigned char *dst)
{
    uint64_t tickets[SWAP_BOUNCES] = {0};
    size_t n = n_pieces(s, begin, end), begun = 0;
    cz_status st = CZ_OK;
    for (size_t i = 0; i < n && st == CZ_OK; i++) {
        for (; begun < n && begun < i + SWAP_BOUNCES && st == CZ_OK; begun++) {
            struct piece p = piece_at(s, begin, end, begun);
            st = begin_piece(s, &p, false, &tickets[begun % SWAP_BOUNCES]);
        }
        if (st == CZ_OK) st = swap_queue_wait(&s->queue, tickets[i % SWAP_BOUNCES]);
        if (st != CZ_OK) break;
        struct piece p = piece_at(s, begin, end, i);
        memcpy(dst, p.bounce + p.begin, p.end - p.begin);
        dst += p.end - p.begin;
    }
    return wait_all(s, tickets, st);
}

static cz_status read_edge(struct swap *s, const struct piece *p, size_t at)
{
    uint64_t ticket;
    TRY(swap_queue_begin(s, p->bounce + at, p->off + at, SWAP_ALIGN, false, &ticket));
    return swap_queue_wait(&s->queue, ticket);
}

/* What the range leaves as it is in the piece's first and last SWAP_ALIGN bytes. */
static cz_status read_edges(struct swap *s, const struct piece *p)
{
    size_t last = p->nbytes - SWAP_ALIGN;
    bool first_too = p->begin > 0, last_too = p->end < p->nbytes && !(first_too && last == 0);
    if (first_too) TRY(read_edge(s, p, 0));
    if (last_too) TRY(read_edge(s, p, last));
    return CZ_OK;
}

/* Reads of edges are waited for one by one: only a range's two ends have any. */
static cz_status write_range(struct swap *s, uint64_t begin, uint64_t end, const unsigned char *src)
{
    uint64_t tickets[SWAP_BOUNCES] = {0};
    size_t n = n_pieces(s, begin, end);
    cz_status st = CZ_OK;
    for (size_t i = 0; i < n && st == CZ_OK; i++) {
        struct piece p = piece_at(s, begin, end, i);
        st = swap_queue_wait(&s->queue, tickets[i % SWAP_BOUNCES]);
        if (st == CZ_OK) st = read_edges(s, &p);
        if (st != CZ_OK) break;
        memcpy(p.bounce + p.begin, src, p.end - p.begin);
        src += p.end - p.begin;
        st = begin_piece(s, &p, true, &tickets[i % SWAP_BOUNCES]);
    }
    return wait_all(s, tickets, st);
}

cz_status swap_read(struct swap *s, uint64_t off, size_t nbytes, void *dst)
{
    TRY(swap_check_range(s, off, nbytes, false));
    pthread_mutex_lock(&s->sync_lock);
    cz_status st = read_range(s, off, off + nbytes, dst);
    pthread_mutex_unlock(&s->sync_lock);
    return st;
}

cz_status swap_write(struct swap *s, uint64_t off, size_t nbytes, const void *src)
{
    TRY(swap_check_range(s, off, nbytes, true));
    pthread_mutex_lock(&s->sync_lock);
    cz_status st = write_range(s, off, off + nbytes, src);
    pthread_mutex_unlock(&s->sync_lock);
    return st;
}
