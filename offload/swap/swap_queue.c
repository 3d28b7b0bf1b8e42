/* Requests and their blocks. Callers put requests in line and wait for tickets; backends take
 * blocks from the lines and give them back. The first failure ends it: what is in line is dropped,
 * and every later call returns the error, so that nothing hangs. */
#include "base/clock.h"
#include "offload/swap/swap_impl.h"

#include <inttypes.h>
#include <stdlib.h>

/* While both reads and writes wait, that many blocks in flight are reads for each one that is a
 * write: a reader mostly waits meanwhile, a writer does not. Where a device (or its limit) moves
 * both ways independently, neither then waits for the other. A queue too short to be divided takes
 * them in turn. */
#define READS_IN_TURN 3

enum { LINE_READS = 0, LINE_WRITES, LINE_AFTER, N_LINES };

void swap_queue_init(struct swap_queue *q)
{
    q->owner = pthread_self();
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->is_done, NULL);
}

cz_status swap_queue_allocate(struct swap_queue *q, int queue_depth)
{
    q->requests = calloc(SWAP_REQUESTS, sizeof *q->requests);
    q->blocks = calloc((size_t)queue_depth, sizeof *q->blocks);
    if (!q->requests || !q->blocks)
        return err_set(CZ_NOMEM, 0, "no memory for a swap file's queue");
    for (int i = 0; i < queue_depth; i++) {
        q->blocks[i].next = q->free;
        q->free = &q->blocks[i];
    }
    return CZ_OK;
}

void swap_queue_free(struct swap_queue *q)
{
    free(q->requests);
    free(q->blocks);
    pthread_cond_destroy(&q->is_done);
    pthread_mutex_destroy(&q->lock);
}

/* ---- requests: with the lock ----------------------------------------------------------------- */

static void line_add(struct swap_line *line, struct swap_request *r)
{
    r->next = NULL;
    if (line->first)
        line->last->next = r;
    else
        line->first = r;
    line->last = r;
}

/* A request is through: those that waited for it are the next reads. */
static void request_close(struct swap_queue *q, struct swap_request *r)
{
    struct swap_request *waiting = q->lines[LINE_AFTER].first;
    r->is_open = false;
    q->has_news = true;
    q->lines[LINE_AFTER].first = NULL;
    while (waiting) {
        struct swap_request *next = waiting->next;
        line_add(&q->lines[waiting->after == r->ticket ? LINE_READS : LINE_AFTER], waiting);
        waiting = next;
    }
}

/* Requests in line will not be begun any more. */
static void drop_lines(struct swap_queue *q)
{
    for (int i = N_LINES - 1; i >= 0; i--) {
        struct swap_request *next, *r = q->lines[i].first;
        q->lines[i].first = NULL;
        for (; r; r = next) {
            next = r->next;
            r->nbytes = r->n_cut;
            if (r->n_flying == 0) request_close(q, r);
        }
    }
}

/* ---- callers --------------------------------------------------------------------------------- */

/* The slot of the next ticket, once the request that had it before is through. */
static cz_status slot_take(struct swap_queue *q, struct swap_request **out)
{
    for (;;) {
        if (q->has_failed) return err_restore(&q->error);
        struct swap_request *r = &q->requests[(q->newest + 1) % SWAP_REQUESTS];
        if (!r->is_open) {
            r->ticket = ++q->newest;
            *out = r;
            return CZ_OK;
        }
        pthread_cond_wait(&q->is_done, &q->lock);
    }
}

/* Tickets ascend; slots are used in turn, so that a ticket finds its slot without a search. A
 * caller that is SWAP_REQUESTS requests ahead of the disk waits here. */
cz_status swap_queue_begin_after(struct swap *s, void *buf, uint64_t off, size_t nbytes,
                                 bool is_write, uint64_t after, uint64_t *ticket)
{
    struct swap_queue *q = &s->queue;
    struct swap_request *r = NULL;
    *ticket = 0;
    if (nbytes == 0) return swap_queue_wait(q, after);
    pthread_mutex_lock(&q->lock);
    cz_status st = slot_take(q, &r);
    if (st == CZ_OK) {
        const struct swap_request *first = &q->requests[after % SWAP_REQUESTS];
        bool waits = after != 0 && first->ticket == after && first->is_open;
        *ticket = r->ticket;
        r->buf = buf;
        r->off = off;
        r->nbytes = nbytes;
        r->n_cut = 0;
        r->n_flying = 0;
        r->is_write = is_write;
        r->after = after;
        r->is_open = true;
        line_add(&q->lines[waits ? LINE_AFTER : is_write ? LINE_WRITES : LINE_READS], r);
        s->backend->wake(s);
    }
    pthread_mutex_unlock(&q->lock);
    return st;
}

cz_status swap_queue_begin(struct swap *s, void *buf, uint64_t off, size_t nbytes, bool is_write,
                           uint64_t *ticket)
{
    return swap_queue_begin_after(s, buf, off, nbytes, is_write, 0, ticket);
}

static cz_status current_error(struct swap_queue *q)
{
    return q->has_failed ? err_restore(&q->error) : CZ_OK;
}

/* With the lock: until what `ticket` stood for is through; its slot may be another's by then. */
static void wait_for(struct swap_queue *q, uint64_t ticket)
{
    struct swap_request *r = &q->requests[ticket % SWAP_REQUESTS];
    if (r->ticket != ticket || !r->is_open) return;
    int64_t since = clock_now_ns();
    while (r->ticket == ticket && r->is_open) pthread_cond_wait(&q->is_done, &q->lock);
    if (pthread_equal(pthread_self(), q->owner)) q->counts.waited_ns += clock_now_ns() - since;
}

cz_status swap_queue_wait(struct swap_queue *q, uint64_t ticket)
{
    pthread_mutex_lock(&q->lock);
    cz_status st = CZ_OK;
    if (ticket > q->newest)
        st = err_set(CZ_INVALID, 0, "swap: ticket %" PRIu64 " was never given out", ticket);
    else if (ticket != 0)
        wait_for(q, ticket);
    if (st == CZ_OK) st = current_error(q);
    pthread_mutex_unlock(&q->lock);
    return st;
}

/* What was begun before this call. Older tickets than the table has slots are through already. */
cz_status swap_queue_drain(struct swap_queue *q)
{
    pthread_mutex_lock(&q->lock);
    uint64_t newest = q->newest;
    uint64_t oldest = newest < SWAP_REQUESTS ? 1 : newest - SWAP_REQUESTS + 1;
    for (uint64_t t = oldest; t <= newest; t++) wait_for(q, t);
    cz_status st = current_error(q);
    pthread_mutex_unlock(&q->lock);
    return st;
}

/* ---- backends -------------------------------------------------------------------------------- */

/* Reads and writes both get through, whatever stands in the other line. */
static struct swap_line *next_line(struct swap_queue *q, int queue_depth)
{
    struct swap_line *reads = &q->lines[LINE_READS], *writes = &q->lines[LINE_WRITES];
    int n_writes = queue_depth / (READS_IN_TURN + 1);
    bool is_turn = n_writes > 0 ? q->n_writing < n_writes : q->n_reads_in_turn >= READS_IN_TURN;
    bool is_write = writes->first && (!reads->first || is_turn);
    if (!is_write && !reads->first) return NULL;
    q->n_reads_in_turn = is_write ? 0 : q->n_reads_in_turn + 1;
    return is_write ? writes : reads;
}

/* The next block_nbytes of the oldest request of a line. Large requests are cut so that the queue
 * is full however few they are. */
struct swap_block *swap_queue_take(struct swap *s)
{
    struct swap_queue *q = &s->queue;
    if (q->is_closing) drop_lines(q);
    if (!q->free) return NULL;
    struct swap_line *line = next_line(q, s->queue_depth);
    if (!line) return NULL;
    struct swap_block *b = q->free;
    struct swap_request *r = line->first;
    size_t left = r->nbytes - r->n_cut;
    q->free = b->next;
    b->request = r;
    b->buf = r->buf + r->n_cut;
    b->at = r->off + r->n_cut;
    b->file = swap_file_of(s, b->at, &b->off);
    b->nbytes = left < s->block_nbytes ? left : s->block_nbytes;
    if (s->n_more > 0 && !b->file->is_source) { /* no further than its stripe */
        size_t end = s->stripes.unit - b->at % s->stripes.unit;
        if (b->nbytes > end) b->nbytes = end;
    }
    b->done = 0;
    b->is_write = r->is_write;
    b->n_stuck = 0;
    r->n_cut += b->nbytes;
    r->n_flying++;
    q->n_writing += b->is_write;
    if (r->n_cut == r->nbytes) line->first = r->next;
    if (q->n_flying++ == 0) q->busy_since_ns = clock_now_ns();
    return b;
}

void swap_queue_finish(struct swap_queue *q, struct swap_block *b)
{
    struct swap_request *r = b->request;
    if (b->done == b->nbytes)
        *(b->is_write ? &q->counts.written_nbytes : &q->counts.read_nbytes) += b->nbytes;
    if (--r->n_flying == 0 && r->n_cut == r->nbytes) request_close(q, r);
    q->n_writing -= b->is_write;
    b->request = NULL;
    b->next = q->free;
    q->free = b;
    if (--q->n_flying == 0) q->counts.busy_ns += clock_now_ns() - q->busy_since_ns;
}

bool swap_queue_has_news(struct swap_queue *q)
{
    bool has_news = q->has_news;
    q->has_news = false;
    return has_news;
}

void swap_queue_announce(struct swap_queue *q)
{
    pthread_cond_broadcast(&q->is_done);
}

/* Only the first error is kept: later ones mostly follow from it. */
void swap_queue_fail(struct swap_queue *q)
{
    pthread_mutex_lock(&q->lock);
    if (!q->has_failed) err_capture(&q->error);
    q->has_failed = true;
    drop_lines(q);
    pthread_mutex_unlock(&q->lock);
    swap_queue_announce(q);
}
