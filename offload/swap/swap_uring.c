/* Blocks through io_uring. One thread owns the ring; it sleeps in the kernel until a block is
 * through or the eventfd, on which a read of the ring's own waits, says that there is new work. */
#include "base/clock.h"
#include "offload/swap/swap_impl.h"

#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define N_PIECES       512 /* of registered buffers */
#define LOST_NS_MAX    (300 * INT64_C(1000000))
#define REFUSED_NAP_NS 100000

struct uring {
    struct io_uring ring;
    bool has_ring, has_thread, has_file, has_table;
    pthread_t thread;
    int wake_fd;
    uint64_t wake_value; /* where the read of the eventfd puts its count */
    bool is_wake_armed;  /* that read is in the ring */
    int n_pieces;        /* registered so far */
    int table_error;     /* why no buffers can be registered */
    int64_t stuck_ns;    /* since when the kernel puts us off; 0: it does not */
    /* With the queue's lock: */
    bool is_hungry; /* the thread sleeps, or will, with blocks free */
};

/* ---- submit ---------------------------------------------------------------------------------- */

/* Index of the registered buffer that holds all of [buf, buf + n); negative: none does. */
static int registered(struct swap *s, const unsigned char *buf, size_t n)
{
    int n_buffers = atomic_load(&s->n_buffers);
    for (int i = 0; i < n_buffers; i++) {
        const struct swap_buffer *known = &s->buffers[i];
        if (buf < known->base || buf + n > known->base + known->nbytes) continue;
        size_t first = (size_t)(buf - known->base), last = first + n - 1;
        if (first / SWAP_BUFFER_PIECE != last / SWAP_BUFFER_PIECE) return -1;
        return known->first_idx + (int)(first / SWAP_BUFFER_PIECE);
    }
    return -1;
}

/* The ring has an entry for every block and the eventfd. */
static void prepare(struct swap *s, struct uring *u, struct swap_block *b)
{
    unsigned char *buf;
    uint64_t off;
    size_t n = swap_block_ask(s, b, &buf, &off);
    bool is_fixed = u->has_file && b->file == &s->file;
    int idx = registered(s, buf, n), fd = is_fixed ? 0 : b->file->fd;
    struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);
    if (idx >= 0 && b->is_write)
        io_uring_prep_write_fixed(sqe, fd, buf, (unsigned)n, off, idx);
    else if (idx >= 0)
        io_uring_prep_read_fixed(sqe, fd, buf, (unsigned)n, off, idx);
    else if (b->is_write)
        io_uring_prep_write(sqe, fd, buf, (unsigned)n, off);
    else
        io_uring_prep_read(sqe, fd, buf, (unsigned)n, off);
    if (is_fixed) io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
    io_uring_sqe_set_data(sqe, b);
    if (s->single_submit) io_uring_submit(&u->ring);
}

/* ---- complete -------------------------------------------------------------------------------- */

static void list_add(struct swap_block **list, struct swap_block *b)
{
    b->next = *list;
    *list = b;
}

/* All completions there are. Blocks that are not through go into the ring again; returns those that
 * are. */
static struct swap_block *reap(struct swap *s, struct uring *u)
{
    struct swap_block *done = NULL, *again = NULL;
    struct io_uring_cqe *cqe;
    while (io_uring_peek_cqe(&u->ring, &cqe) == 0) {
        struct swap_block *b = io_uring_cqe_get_data(cqe);
        long result = cqe->res;
        io_uring_cqe_seen(&u->ring, cqe);
        if (!b)
            u->is_wake_armed = false;
        else
            list_add(swap_block_result(s, b, result) ? &done : &again, b);
    }
    for (struct swap_block *next; again; again = next) {
        next = again->next;
        prepare(s, u, again);
    }
    return done;
}

struct turn {
    bool goes_on;  /* false: the swap closes and nothing is left */
    bool has_news; /* for waiters */
};

/* Blocks that are through become free for new work, which goes into the ring. */
static struct turn turn_over(struct swap *s, struct uring *u, struct swap_block *done)
{
    struct swap_queue *q = &s->queue;
    struct swap_block *taken = NULL, **end = &taken, *b, *next;
    pthread_mutex_lock(&q->lock);
    for (; done; done = next) {
        next = done->next;
        swap_queue_finish(q, done);
    }
    for (; (b = swap_queue_take(s)); end = &b->next) *end = b;
    *end = NULL;
    u->is_hungry = q->free != NULL;
    struct turn turn = {!q->is_closing || q->n_flying > 0, swap_queue_has_news(q)};
    pthread_mutex_unlock(&q->lock);
    for (; taken; taken = next) {
        next = taken->next;
        prepare(s, u, taken);
    }
    return turn;
}

/* The kernel takes no more work from this ring. What it has is given a little time; then the
 * blocks are given up, as failed ones. */
static void break_down(struct swap *s, struct uring *u, int error)
{
    struct swap_queue *q = &s->queue;
    err_set(CZ_IO, error, "swap file %s: io_uring accepts no more requests", s->file.path);
    swap_queue_fail(q);
    int64_t since = clock_now_ns();
    pthread_mutex_lock(&q->lock);
    while (q->n_flying > 0) {
        pthread_mutex_unlock(&q->lock);
        bool gave_up = clock_now_ns() - since > LOST_NS_MAX;
        struct swap_block *done = gave_up ? NULL : reap(s, u);
        for (int i = 0; gave_up && i < s->queue_depth; i++)
            if (q->blocks[i].request) list_add(&done, &q->blocks[i]);
        if (!done) nanosleep(&(struct timespec){.tv_nsec = REFUSED_NAP_NS}, NULL);
        turn_over(s, u, done);
        pthread_mutex_lock(&q->lock);
    }
    pthread_mutex_unlock(&q->lock);
    swap_queue_announce(q);
}

/* Whether to continue after what submitting returned. Short of memory, the kernel may refuse a
 * while.
 */
static bool survives(struct uring *u, int n)
{
    if (n >= 0 || n == -EINTR) {
        u->stuck_ns = 0;
        return true;
    }
    int64_t now = clock_now_ns();
    if (u->stuck_ns == 0) u->stuck_ns = now;
    if (n != -EAGAIN && n != -EBUSY && n != -ENOMEM) return false;
    nanosleep(&(struct timespec){.tv_nsec = REFUSED_NAP_NS}, NULL);
    return now - u->stuck_ns < LOST_NS_MAX;
}

/* The disk gets its new work before waiters are woken: they may take the processor. */
static int submit(struct swap *s, struct uring *u, bool has_news)
{
    if (!has_news) return io_uring_submit_and_wait(&u->ring, 1);
    int n = io_uring_submit(&u->ring);
    swap_queue_announce(&s->queue);
    return n < 0 ? n : io_uring_submit_and_wait(&u->ring, 1);
}

/* The ring's thread: take new work, submit, sleep until something is through, and again. */
static void *uring_run(void *arg)
{
    struct swap *s = arg;
    struct uring *u = s->backend_state;
    swap_thread_settle();
    for (struct swap_block *done = NULL;; done = reap(s, u)) {
        struct turn turn = turn_over(s, u, done);
        if (!turn.goes_on) break;
        if (!u->is_wake_armed) {
            struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);
            io_uring_prep_read(sqe, u->wake_fd, &u->wake_value, sizeof u->wake_value, 0);
            io_uring_sqe_set_data(sqe, NULL);
            u->is_wake_armed = true;
        }
        int n = submit(s, u, turn.has_news);
        if (!survives(u, n)) {
            break_down(s, u, -n);
            break;
        }
    }
    swap_queue_announce(&s->queue);
    return NULL;
}

/* A write to the eventfd is a system call: it is spared while the thread is awake anyway, or has no
 * block free. */
static void uring_wake(struct swap *s)
{
    struct uring *u = s->backend_state;
    if (!u->is_hungry) return;
    u->is_hungry = false;
    uint64_t one = 1;
    ssize_t n;
    do {
        n = write(u->wake_fd, &one, sizeof one);
    } while (n < 0 && errno == EINTR);
}

/* ---- start and stop -------------------------------------------------------------------------- */

/* One empty operation through the whole ring: a sandbox may allow to make rings, not to use them.
 */
static int ring_try(struct io_uring *ring)
{
    struct io_uring_cqe *cqe;
    io_uring_prep_nop(io_uring_get_sqe(ring));
    int n = io_uring_submit_and_wait(ring, 1);
    if (n < 0) return n;
    n = io_uring_peek_cqe(ring, &cqe);
    if (n == 0) io_uring_cqe_seen(ring, cqe);
    return n;
}

static int ring_open(struct uring *u, int queue_depth)
{
    struct io_uring_params p = {.flags = IORING_SETUP_COOP_TASKRUN};
    unsigned n_entries = (unsigned)queue_depth + 1;
    int n = io_uring_queue_init_params(n_entries, &u->ring, &p);
    if (n == -EINVAL) n = io_uring_queue_init(n_entries, &u->ring, 0); /* an older kernel */
    if (n < 0) return n;
    u->has_ring = true;
    struct io_uring_probe *probe = io_uring_get_probe_ring(&u->ring);
    bool is_able = probe && io_uring_opcode_supported(probe, IORING_OP_READ) &&
                   io_uring_opcode_supported(probe, IORING_OP_WRITE);
    if (probe) io_uring_free_probe(probe);
    return is_able ? ring_try(&u->ring) : -ENOSYS;
}

/* Page by page pinned once, instead of at each transfer. The kernel's table takes pieces of at most
 * SWAP_BUFFER_PIECE bytes, as far as RLIMIT_MEMLOCK allows. */
static size_t uring_register(struct swap *s, unsigned char *base, size_t nbytes, int *first_idx)
{
    struct uring *u = s->backend_state;
    size_t at = 0;
    *first_idx = u->n_pieces;
    errno = u->has_table ? ENOSPC : u->table_error;
    while (u->has_table && at < nbytes && u->n_pieces < N_PIECES) {
        size_t n = nbytes - at < SWAP_BUFFER_PIECE ? nbytes - at : SWAP_BUFFER_PIECE;
        struct iovec piece = {.iov_base = base + at, .iov_len = n};
        int n_done =
            io_uring_register_buffers_update_tag(&u->ring, (unsigned)u->n_pieces, &piece, NULL, 1);
        if (n_done < 0) {
            errno = -n_done;
            break;
        }
        u->n_pieces++;
        at += n;
    }
    return at;
}

static void uring_stop(struct swap *s)
{
    struct uring *u = s->backend_state;
    if (!u) return;
    if (u->has_thread) pthread_join(u->thread, NULL);
    /* Unregistered, file and memory are free at once; the ring itself ends later. */
    if (u->has_file) io_uring_unregister_files(&u->ring);
    if (u->has_table) io_uring_unregister_buffers(&u->ring);
    if (u->has_ring) io_uring_queue_exit(&u->ring);
    if (u->wake_fd >= 0) close(u->wake_fd);
    free(u);
    s->backend_state = NULL;
}

/* Registering the file and a table for buffers only saves time; a kernel that refuses either
 * still gets a ring. */
static cz_status uring_start(struct swap *s)
{
    struct uring *u = s->backend_state = calloc(1, sizeof *u);
    if (!u) return err_set(CZ_NOMEM, 0, "no memory for a swap file's ring");
    u->wake_fd = eventfd(0, EFD_CLOEXEC);
    if (u->wake_fd < 0) return err_set(CZ_UNSUPPORTED, errno, "eventfd");
    int n = ring_open(u, s->queue_depth);
    if (n < 0) return err_set(CZ_UNSUPPORTED, -n, "io_uring");
    u->has_file = io_uring_register_files(&u->ring, &s->file.fd, 1) == 0;
    u->table_error = -io_uring_register_buffers_sparse(&u->ring, N_PIECES);
    u->has_table = u->table_error == 0;
    int error = swap_thread_start(&u->thread, uring_run, s);
    if (error != 0) return err_set(CZ_UNSUPPORTED, error, "a thread for io_uring");
    u->has_thread = true;
    return CZ_OK;
}

/* What the kernel keeps for a ring, roughly: for plans. */
static size_t uring_memory(int queue_depth, int n_threads)
{
    (void)n_threads;
    size_t n_entries = 64; /* the kernel rounds up to a power of two; twice as many results */
    while (n_entries < (size_t)queue_depth + 1) n_entries *= 2;
    return sizeof(struct uring) + n_entries * (sizeof(struct io_uring_sqe) + 2 * 16) +
           N_PIECES * 16 + 32768;
}

const struct swap_backend swap_backend_uring = {
    .name = "io_uring",
    .memory_nbytes = uring_memory,
    .start = uring_start,
    .wake = uring_wake,
    .stop = uring_stop,
    .register_buffer = uring_register,
};
