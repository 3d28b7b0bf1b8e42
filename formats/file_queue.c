/* Writing behind: bytes are copied into buffers of a megabyte, and threads write the full ones past
 * the page cache while the caller makes more.
 *
 * Writes come in any order and of any size, mostly in rows of neighbours (tensors of a checkpoint).
 * A buffer stands for one aligned window of the file and is full when every byte of the window is
 * there; when all buffers are open, the oldest is written as it is. So memory is bounded, and
 * almost all writes are whole blocks. */
#include "formats/file_queue.h"

#include "base/host/thread.h"
#include "formats/crc32.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define WINDOW_NBYTES ((size_t)1 << 20)
#define N_BUFFERS     (FILE_QUEUE_NBYTES / WINDOW_NBYTES)
#define N_THREADS     2

struct buffer {
    unsigned char *memory; /* WINDOW_NBYTES, aligned */
    uint64_t window;       /* file offset of its first byte */
    size_t begin, end;     /* which of its bytes are there: one run */
    struct buffer *next;
};

struct list { /* oldest first */
    struct buffer *first, *last;
};

struct file_queue {
    const struct file_durable *file;
    unsigned char *memory;
    struct buffer buffers[N_BUFFERS];
    pthread_t threads[N_THREADS];
    int n_threads;

    pthread_mutex_t lock; /* of all below */
    pthread_cond_t has_full, has_free;
    struct list free, open, full; /* a buffer in none of them is being filled or written */
    int n_writing;                /* full ones and those being written */
    bool closing;
    struct err error; /* the first one */
};

static void list_add(struct list *list, struct buffer *b)
{
    b->next = NULL;
    if (list->first)
        list->last->next = b;
    else
        list->first = b;
    list->last = b;
}

/* The oldest. */
static struct buffer *list_take(struct list *list)
{
    struct buffer *b = list->first;
    if (b) list->first = b->next;
    return b;
}

/* The buffer that [off, off + n) continues, at either side; NULL: none. */
static struct buffer *list_take_neighbour(struct list *list, uint64_t off, size_t n)
{
    struct buffer *before = NULL;
    for (struct buffer *b = list->first; b; before = b, b = b->next) {
        if (off / WINDOW_NBYTES != b->window / WINDOW_NBYTES) continue;
        if (b->window + b->end != off && b->window + b->begin != off + n) continue;
        if (before)
            before->next = b->next;
        else
            list->first = b->next;
        if (list->last == b) list->last = before;
        return b;
    }
    return NULL;
}

/* ---- writing --------------------------------------------------------------------------------- */

/* Called with the lock, which is given up meanwhile. After an error nothing more is written, so
 * that a full disk is not tried a thousand times. */
static void write_buffer(struct file_queue *q, struct buffer *b)
{
    bool failed = q->error.status != CZ_OK;
    pthread_mutex_unlock(&q->lock);
    cz_status st = CZ_OK;
    if (!failed)
        st = file_durable_pwrite(q->file, b->memory + b->begin, b->end - b->begin,
                                 b->window + b->begin);
    pthread_mutex_lock(&q->lock);
    if (st != CZ_OK && q->error.status == CZ_OK) err_capture(&q->error);
    list_add(&q->free, b);
    q->n_writing--;
    pthread_cond_broadcast(&q->has_free);
}

static void *write_behind(void *arg)
{
    struct file_queue *q = arg;
    pthread_mutex_lock(&q->lock);
    for (;;) {
        struct buffer *b = list_take(&q->full);
        if (b)
            write_buffer(q, b);
        else if (q->closing)
            break;
        else
            pthread_cond_wait(&q->has_full, &q->lock);
    }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

/* With the lock. Without threads the caller writes by itself. */
static void submit(struct file_queue *q, struct buffer *b)
{
    q->n_writing++;
    if (q->n_threads == 0) {
        write_buffer(q, b);
        return;
    }
    list_add(&q->full, b);
    pthread_cond_signal(&q->has_full);
}

/* ---- create and destroy ---------------------------------------------------------------------- */

cz_status file_queue_create(const struct file_durable *f, struct file_queue **out)
{
    void *memory = NULL;
    *out = NULL;
    struct file_queue *q = calloc(1, sizeof *q);
    if (!q || posix_memalign(&memory, FILE_DIRECT_ALIGN, FILE_QUEUE_NBYTES) != 0) {
        free(q);
        return err_set(CZ_NOMEM, 0, "%s: no memory to write it", f->path);
    }
    q->file = f;
    q->memory = memory;
    for (size_t i = 0; i < N_BUFFERS; i++) {
        q->buffers[i].memory = q->memory + i * WINDOW_NBYTES;
        list_add(&q->free, &q->buffers[i]);
    }
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->has_full, NULL);
    pthread_cond_init(&q->has_free, NULL);
    while (q->n_threads < N_THREADS &&
           thread_start(&q->threads[q->n_threads], NULL, write_behind, q) == 0)
        q->n_threads++;
    *out = q;
    return CZ_OK;
}

void file_queue_destroy(struct file_queue *q)
{
    if (!q) return;
    pthread_mutex_lock(&q->lock);
    q->closing = true;
    pthread_cond_broadcast(&q->has_full);
    pthread_mutex_unlock(&q->lock);
    while (q->n_threads > 0) pthread_join(q->threads[--q->n_threads], NULL);
    pthread_cond_destroy(&q->has_full);
    pthread_cond_destroy(&q->has_free);
    pthread_mutex_destroy(&q->lock);
    free(q->memory);
    free(q);
}

/* ---- put and drain --------------------------------------------------------------------------- */

/* With the lock: a buffer that bytes [off, off + n) continue, or an empty one; NULL after an
 * error. */
static struct buffer *take_buffer(struct file_queue *q, uint64_t off, size_t n)
{
    while (q->error.status == CZ_OK) {
        struct buffer *b = list_take_neighbour(&q->open, off, n);
        if (b) return b;
        if ((b = list_take(&q->free))) {
            b->window = off / WINDOW_NBYTES * WINDOW_NBYTES;
            b->begin = b->end = (size_t)(off % WINDOW_NBYTES);
            return b;
        }
        if ((b = list_take(&q->open)))
            submit(q, b);
        else
            pthread_cond_wait(&q->has_free, &q->lock);
    }
    return NULL;
}

/* Bytes of one window. They are copied and summed without the lock: a buffer that is in no list
 * belongs to whichever thread took it. */
static cz_status put_part(struct file_queue *q, const void *src, size_t nbytes, uint64_t off,
                          uint32_t *crc)
{
    cz_status st = CZ_OK;
    pthread_mutex_lock(&q->lock);
    struct buffer *b = take_buffer(q, off, nbytes);
    if (!b) st = err_restore(&q->error);
    pthread_mutex_unlock(&q->lock);
    TRY(st);
    size_t begin = (size_t)(off % WINDOW_NBYTES);
    memcpy(b->memory + begin, src, nbytes);
    *crc = crc32_update(*crc, b->memory + begin, nbytes); /* of what will be written, cached */
    pthread_mutex_lock(&q->lock);
    if (begin < b->begin) b->begin = begin;
    if (begin + nbytes > b->end) b->end = begin + nbytes;
    if (b->end - b->begin == WINDOW_NBYTES) {
        submit(q, b);
    } else {
        list_add(&q->open, b);
        pthread_cond_broadcast(&q->has_free); /* a waiting put may submit it */
    }
    pthread_mutex_unlock(&q->lock);
    return CZ_OK;
}

cz_status file_queue_put(struct file_queue *q, const void *src, size_t nbytes, uint64_t off,
                         uint32_t *crc)
{
    const char *bytes = src;
    for (size_t at = 0; at < nbytes;) {
        size_t n = WINDOW_NBYTES - (size_t)((off + at) % WINDOW_NBYTES);
        if (n > nbytes - at) n = nbytes - at;
        TRY(put_part(q, bytes + at, n, off + at, crc));
        at += n;
    }
    return CZ_OK;
}

/* Open buffers are written as they are. Afterwards every byte that was put has been written, or the
 * first error is returned. */
cz_status file_queue_drain(struct file_queue *q)
{
    cz_status st = CZ_OK;
    pthread_mutex_lock(&q->lock);
    for (struct buffer *b; (b = list_take(&q->open));) submit(q, b);
    while (q->n_writing > 0) pthread_cond_wait(&q->has_free, &q->lock);
    if (q->error.status != CZ_OK) st = err_restore(&q->error);
    pthread_mutex_unlock(&q->lock);
    return st;
}
