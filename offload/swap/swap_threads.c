/* Blocks by threads with pread and pwrite: where io_uring is not to be had. Readable specification
 * of a backend. */
#include "offload/swap/swap_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

struct threads {
    pthread_cond_t has_work;
    int n_started;
    pthread_t threads[SWAP_THREADS_MAX];
};

static long transfer(struct swap *s, struct swap_block *b)
{
    unsigned char *buf;
    uint64_t off;
    size_t n = swap_block_ask(s, b, &buf, &off);
    ssize_t moved = b->is_write ? pwrite(b->file->fd, buf, n, (off_t)off)
                                : pread(b->file->fd, buf, n, (off_t)off);
    return moved < 0 ? -errno : moved;
}

/* With the lock: the next block, waited for; NULL: the swap closes. */
static struct swap_block *next_block(struct swap *s, struct threads *t)
{
    struct swap_block *b;
    while (!(b = swap_queue_take(s)) && !s->queue.is_closing)
        pthread_cond_wait(&t->has_work, &s->queue.lock);
    return b;
}

/* Each thread takes one block at a time and keeps asking until it is through. */
static void *threads_run(void *arg)
{
    struct swap *s = arg;
    struct swap_queue *q = &s->queue;
    swap_thread_settle();
    pthread_mutex_lock(&q->lock);
    struct swap_block *b = next_block(s, s->backend_state);
    while (b) {
        pthread_mutex_unlock(&q->lock);
        while (!swap_block_result(s, b, transfer(s, b))) {
        }
        pthread_mutex_lock(&q->lock);
        swap_queue_finish(q, b);
        if (swap_queue_has_news(q)) {
            swap_queue_announce(q);
            s->backend->wake(s); /* reads may have waited for this one's end */
        }
        b = next_block(s, s->backend_state);
    }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

static void threads_wake(struct swap *s)
{
    struct threads *t = s->backend_state;
    pthread_cond_broadcast(&t->has_work);
}

/* The queue is closing and was woken: threads end when they find nothing to take. */
static void threads_stop(struct swap *s)
{
    struct threads *t = s->backend_state;
    if (!t) return;
    for (int i = 0; i < t->n_started; i++) pthread_join(t->threads[i], NULL);
    pthread_cond_destroy(&t->has_work);
    free(t);
    s->backend_state = NULL;
}

static cz_status threads_start(struct swap *s)
{
    struct threads *t = s->backend_state = calloc(1, sizeof *t);
    if (!t) return err_set(CZ_NOMEM, 0, "no memory for a swap file's threads");
    pthread_cond_init(&t->has_work, NULL);
    while (t->n_started < s->n_threads &&
           swap_thread_start(&t->threads[t->n_started], threads_run, s) == 0)
        t->n_started++;
    if (t->n_started == 0)
        return err_set(CZ_NOMEM, 0, "the system starts no thread to read and write swap files");
    return CZ_OK;
}

static size_t threads_memory(int queue_depth, int n_threads)
{
    (void)queue_depth;
    return sizeof(struct threads) + (size_t)n_threads * 16384; /* of a stack that are touched */
}

const struct swap_backend swap_backend_threads = {
    .name = "threads",
    .memory_nbytes = threads_memory,
    .start = threads_start,
    .wake = threads_wake,
    .stop = threads_stop,
};
