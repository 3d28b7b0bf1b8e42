/* The work of a consolidation: pieces of tensors, dealt to threads in the order of the output
 * files. Pieces end at multiples of PIECE_NBYTES in the file, so that direct I/O writes whole
 * blocks, and a piece is small enough for all threads' buffers to fit in little memory. */
#include "checkpoint/consolidate/consolidate_impl.h"
#include "formats/file_io.h"

#include "base/host/thread.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* A thread that writes past the page cache waits for the disk most of the time. So their number is
 * what keeps a disk busy, however few cores there are. */
enum { THREADS_MAX = 8 };

#define PIECE_NBYTES ((uint64_t)2 << 20)
#define BUF_NBYTES   (PIECE_NBYTES + FILE_DIRECT_ALIGN)
#define STACK_NBYTES ((size_t)512 << 10)

/* A consolidation under way. A failure stops the dealing; pieces under way are finished. */
struct work {
    const struct cons_plan *plan;
    const struct cons_tensor **order; /* by file, then by place in it */
    cons_piece piece;
    void *user;
    bool second_buf;

    pthread_mutex_t lock; /* over what follows */
    size_t next;          /* in order */
    uint64_t next_off;    /* elements of it that were dealt */
    uint64_t done, total; /* bytes */
    struct err err;       /* the first failure */
};

static int by_place(const void *left, const void *right)
{
    const struct cons_tensor *a = *(const struct cons_tensor *const *)left;
    const struct cons_tensor *b = *(const struct cons_tensor *const *)right;
    if (a->file_idx != b->file_idx) return a->file_idx < b->file_idx ? -1 : 1;
    return a->file_off < b->file_off ? -1 : a->file_off > b->file_off;
}

/* The next piece: up to the next multiple of PIECE_NBYTES in the output file. An element larger
 * than what is left goes whole. */
static bool deal(struct work *w, const struct cons_tensor **t, uint64_t *elem_off, size_t *numel)
{
    bool dealt = false;
    pthread_mutex_lock(&w->lock);
    while (w->next < w->plan->n && w->next_off == w->order[w->next]->tensor->numel) {
        w->next++;
        w->next_off = 0;
    }
    if (w->next < w->plan->n && w->err.status == CZ_OK) {
        *t = w->order[w->next];
        *elem_off = w->next_off;
        uint64_t size = (*t)->dtype->size, place = (*t)->file_off + *elem_off * size;
        uint64_t n = (PIECE_NBYTES - place % PIECE_NBYTES) / size;
        uint64_t left = (*t)->tensor->numel - *elem_off;
        *numel = (size_t)(n == 0 ? 1 : n < left ? n : left);
        w->next_off += *numel;
        dealt = true;
    }
    pthread_mutex_unlock(&w->lock);
    return dealt;
}

struct worker {
    struct work *work;
    char *buf, *buf2; /* BUF_NBYTES each; buf2 may be NULL */
};

static void *work_on(void *arg)
{
    const struct worker *me = arg;
    struct work *w = me->work;
    const struct cons_tensor *t;
    uint64_t elem_off;
    size_t numel;
    while (deal(w, &t, &elem_off, &numel)) {
        uint64_t place = t->file_off + elem_off * t->dtype->size;
        cz_status st =
            w->piece(w->user, t, elem_off, numel, me->buf + place % FILE_DIRECT_ALIGN, me->buf2);
        const struct cz_consolidate_options *o = w->plan->options;
        pthread_mutex_lock(&w->lock);
        if (st != CZ_OK && w->err.status == CZ_OK) err_capture(&w->err);
        w->done += numel * t->dtype->size;
        if (st == CZ_OK && o->progress) o->progress(w->done, w->total, o->user);
        pthread_mutex_unlock(&w->lock);
    }
    return NULL;
}

/* All buffers are allocated at once, before there are threads: a limit on memory then refuses the
 * run as a whole, and not in its middle. */
static cz_status run(struct work *w)
{
    struct worker workers[THREADS_MAX];
    /* No more threads than pieces. */
    int n = w->plan->options->n_threads;
    if (n <= 0 || n > THREADS_MAX) n = THREADS_MAX;
    uint64_t n_pieces = w->plan->nbytes / PIECE_NBYTES + 1;
    const int n_threads = (uint64_t)n < n_pieces ? n : (int)n_pieces;
    const size_t buf_nbytes = (w->second_buf ? 2 : 1) * BUF_NBYTES;
    void *memory = NULL;
    if (posix_memalign(&memory, FILE_DIRECT_ALIGN, (size_t)n_threads * buf_nbytes) != 0)
        return err_set(CZ_NOMEM, 0, "no memory for %zu bytes of buffers",
                       (size_t)n_threads * buf_nbytes);
    for (int i = 0; i < n_threads; i++) {
        char *buf = (char *)memory + (size_t)i * buf_nbytes;
        workers[i] = (struct worker){w, buf, w->second_buf ? buf + BUF_NBYTES : NULL};
    }
    /* The calling thread works too, so fewer threads than wanted are no failure. */
    pthread_t threads[THREADS_MAX];
    pthread_attr_t attr;
    int n_started = 0;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_NBYTES);
    while (n_started < n_threads - 1 &&
           thread_start(&threads[n_started], &attr, work_on, &workers[n_started]) == 0)
        n_started++;
    pthread_attr_destroy(&attr);
    work_on(&workers[n_started]);
    for (int i = 0; i < n_started; i++) pthread_join(threads[i], NULL);
    free(memory);
    return w->err.status == CZ_OK ? CZ_OK : err_restore(&w->err);
}

/* base and total are for the caller's progress: copying and verifying are reported as one run. */
cz_status cons_for_each_piece(const struct cons_plan *plan, cons_piece piece, void *user,
                              bool second_buf, uint64_t base, uint64_t total)
{
    struct work w = {.plan = plan,
                     .piece = piece,
                     .user = user,
                     .second_buf = second_buf,
                     .done = base,
                     .total = total};
    w.order = malloc((plan->n + 1) * sizeof *w.order);
    if (!w.order) return err_set(CZ_NOMEM, 0, "no memory for a list of %zu tensors", plan->n);
    for (size_t i = 0; i < plan->n; i++) w.order[i] = &plan->tensors[i];
    qsort(w.order, plan->n, sizeof *w.order, by_place);
    pthread_mutex_init(&w.lock, NULL);
    cz_status st = run(&w);
    pthread_mutex_destroy(&w.lock);
    free(w.order);
    return st;
}
