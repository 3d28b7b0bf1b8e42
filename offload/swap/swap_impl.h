/* Inside the swap: which file does what.
 *
 *   swap.c            the public calls, options, memory
 *   swap_file.c       the file: name, lock, space, preallocation, O_DIRECT
 *   swap_source.c     files that are only read
 *   swap_stripes.c    a swap of several files
 *   swap_name.c       names of swap files, and whose they are
 *   swap_folder.c     the folder: made, locked, searched for leftovers, removed
 *   swap_queue.c      requests, cut into blocks; waits; the first failure
 *   swap_block.c      what a transfer's result means for its block; faults for tests
 *   swap_uring.c      blocks through io_uring            (backend)
 *   swap_threads.c    blocks by threads, pread, pwrite   (backend)
 *   swap_thread.c     the threads of both
 *   swap_sync.c       unaligned access through a buffer of the swap's own
 *   swap_checksums.c  a CRC-32 per SWAP_ALIGN bytes
 *
 * One lock, swap_queue.lock, guards requests, blocks and counts. A block in flight belongs to the
 * backend alone. */
#ifndef CZ_OFFLOAD_SWAP_IMPL_H
#define CZ_OFFLOAD_SWAP_IMPL_H

#include "offload/swap.h"

#include <pthread.h>
#include <stdatomic.h>

#define SWAP_BLOCK_NBYTES ((size_t)1 << 20) /* defaults, DeepSpeed's */
#define SWAP_QUEUE_DEPTH  8
#define SWAP_THREADS_MAX  64
#define SWAP_REQUESTS     1024 /* open at a time; beginning one more waits */
#define SWAP_BUFFERS_MAX  16   /* swap_register() */
#define SWAP_BOUNCES      4    /* buffers of swap_read() and swap_write() */

/* ---- swap_name.c ----------------------------------------------------------------------------- */

#define SWAP_NAME_NBYTES 64

void swap_name_make(char out[SWAP_NAME_NBYTES], int rank); /* different at each call */

/* Whether swap_name_make() gives such names; on this host. */
bool swap_name_is_ours(const char *name);
bool swap_name_is_of_this_host(const char *name);

/* Whether locks in this folder are known to all processes that can reach it. */
bool swap_folder_is_local(int dir_fd);

/* ---- swap_folder.c --------------------------------------------------------------------------- */

#define SWAP_MARK ".czero-swap-made" /* in a folder that goes when its last swap file does */

/* The folder's path from the root, free of links, "." and ".."; what is missing is taken at its
 * word. free() it. Errors: CZ_INVALID (empty, too long), CZ_IO, CZ_NOMEM. */
cz_status swap_folder_resolve(const char *dir, char **out);

/* Make `dir` and the folders above it where they are missing, open and lock it: no other process
 * looks for leftovers or removes it until swap_folder_unlock(). *is_locked false: another process
 * has the lock and did not give it back within half a second (a warning has said so); files can
 * come and go all the same. Errors: CZ_INVALID, CZ_IO. */
cz_status swap_folder_make(const char *dir, int *dir_fd, bool *is_locked);
int swap_folder_lock(const char *dir, bool *is_locked); /* one that is there; −1: it is not */
void swap_folder_unlock(int dir_fd);                    /* accepts −1 */

/* With the lock: remove what killed runs left; or only say how many bytes it takes. */
void swap_folder_reclaim(int dir_fd, const char *dir);
uint64_t swap_folder_leftovers(int dir_fd);

/* With the lock: remove the folders made for swap files if this was the last one. */
void swap_folder_leave(const char *dir);

/* ---- swap_file.c ----------------------------------------------------------------------------- */

struct swap_file {
    int fd;      /* -1: none */
    int lock_fd; /* an opening of its own: io_uring may keep `fd` for a while after a kill */
    char *dir, *path;
    const char *name; /* in path */
    uint64_t nbytes;
    _Atomic bool is_direct; /* past the page cache */
    struct swap_file *next; /* of those that are open */
    unsigned generation;    /* of the process that made it (base/host/entry.h) */
    /* Of a source, which has neither folder nor lock: */
    bool is_source;
    struct timespec mtime;
};

/* Errors: CZ_INVALID, CZ_IO, CZ_NOMEM; nothing stays behind, *f is for swap_file_close(). */
cz_status swap_file_open(struct swap_file *f, const char *dir, int rank, uint64_t nbytes);
void swap_file_close(struct swap_file *f); /* idempotent */

/* Continue through the page cache; from any thread. */
void swap_file_leave_direct(struct swap_file *f);

/* Bytes free where an existing folder is; UINT64_MAX: the system does not tell. */
uint64_t swap_file_system_free(const char *dir);

/* Whether the system has failed to write cached pages since the last call: 0 or an errno. What is
 * then read back may be old. */
int swap_file_writeback_error(const struct swap_file *f);

/* Have cached pages written now: left alone they wait until memory is short, then come all at once.
 */
void swap_file_writeback_begin(const struct swap_file *f, uint64_t off, size_t nbytes);

/* ---- swap_source.c --------------------------------------------------------------------------- */

/* Errors: CZ_IO, CZ_NOMEM; *f is for swap_source_close() in any case. */
cz_status swap_source_open(struct swap_file *f, const struct swap_source *source);
void swap_source_close(struct swap_file *f);

/* CZ_CORRUPT when it is not what its opener saw. */
cz_status swap_source_check(const struct swap_file *f);

/* ---- swap_stripes.c -------------------------------------------------------------------------- */

#define SWAP_PERIOD 64

struct swap_stripes {
    size_t unit; /* bytes of a stripe: a block's */
    size_t n_paths;
    int n_of[SWAP_PATHS_MAX];            /* stripes of a file in a period */
    unsigned char path_of[SWAP_PERIOD];  /* a stripe's file … */
    unsigned char place_of[SWAP_PERIOD]; /* … and its place among that one's in the period */
};

/* Errors: CZ_INVALID (too many folders, a rate that is none). */
cz_status swap_stripes_make(const struct swap_options *o, size_t unit, struct swap_stripes *s);

/* The file that byte `off` of the swap is in, and the offset there. */
size_t swap_stripes_find(const struct swap_stripes *s, uint64_t off, uint64_t *file_off);

/* Of a swap of `nbytes`, those in one of its files. */
uint64_t swap_stripes_nbytes(const struct swap_stripes *s, uint64_t nbytes, size_t path);

/* ---- swap_queue.c ---------------------------------------------------------------------------- */

struct swap_request {
    uint64_t ticket; /* the slot's current or last one */
    unsigned char *buf;
    uint64_t off;
    size_t nbytes, n_cut; /* of them given to blocks */
    int n_flying;         /* blocks */
    bool is_write, is_open;
    uint64_t after;            /* the ticket that it waits for; 0: none */
    struct swap_request *next; /* in line */
};

struct swap_block {
    struct swap_request *request; /* NULL: not in flight */
    struct swap_file *file;
    unsigned char *buf;
    uint64_t off; /* in the file */
    uint64_t at;  /* in the swap */
    size_t nbytes, done;
    size_t n_asked; /* of the transfer under way */
    bool is_write, was_direct;
    int n_stuck;      /* transfers since anything moved */
    int64_t stuck_ns; /* the first of them */
    struct swap_block *next;
};

struct swap_line { /* requests that are not cut up yet, oldest first */
    struct swap_request *first, *last;
};

struct swap_queue {
    pthread_mutex_t lock;
    pthread_cond_t is_done;        /* some request is */
    bool has_news;                 /* and it was not announced yet */
    struct swap_line lines[3];     /* reads, writes, and reads that wait for another request */
    int n_reads_in_turn;           /* blocks of reads since the last of a write */
    struct swap_request *requests; /* SWAP_REQUESTS; ticket t uses slot t % SWAP_REQUESTS */
    uint64_t newest;               /* ticket given out last */
    struct swap_block *blocks;     /* memory of all */
    struct swap_block *free;       /* not in flight */
    int n_flying, n_writing;       /* blocks in flight; writes among them */
    bool is_closing;
    bool has_failed;
    struct err error; /* the first one */
    struct swap_counts counts;
    int64_t busy_since_ns;
    pthread_t owner; /* the thread that opened the swap: its waits are counted */
};

void swap_queue_init(struct swap_queue *q); /* of a zeroed one */
cz_status swap_queue_allocate(struct swap_queue *q, int queue_depth);
void swap_queue_free(struct swap_queue *q);

/* Any thread, without the lock. `wake` is called with it. after: of a read, the ticket that it
 * waits for. */
cz_status swap_queue_begin(struct swap *s, void *buf, uint64_t off, size_t nbytes, bool is_write,
                           uint64_t *ticket);
cz_status swap_queue_begin_after(struct swap *s, void *buf, uint64_t off, size_t nbytes,
                                 bool is_write, uint64_t after, uint64_t *ticket);
cz_status swap_queue_wait(struct swap_queue *q, uint64_t ticket);
cz_status swap_queue_drain(struct swap_queue *q);

/* Backends, with the lock: the next block to move, NULL when there is none or all are in flight;
 * and a block that is done or failed. */
struct swap_block *swap_queue_take(struct swap *s);
void swap_queue_finish(struct swap_queue *q, struct swap_block *b);

/* With the lock: whether requests ended since the last call; then, once the lock is given up and
 * the disk has new work, wake the waiters. */
bool swap_queue_has_news(struct swap_queue *q);
void swap_queue_announce(struct swap_queue *q);

/* Without the lock: the thread's current error becomes the swap's, if it is the first. */
void swap_queue_fail(struct swap_queue *q);

/* ---- swap_block.c ---------------------------------------------------------------------------- */

/* Called before and after each transfer of a block, from the backend's threads. For tests. */
struct swap_fault {
    /* How many of the bytes to ask for, at least 1. */
    size_t (*ask)(void *user, const struct swap_block *b, size_t nbytes);
    /* The result (bytes moved or −errno) to continue with. */
    long (*result)(void *user, const struct swap_block *b, long result);
    void *user;
};
void swap_set_fault(struct swap *s, const struct swap_fault *fault); /* nothing under way */

/* What to transfer next of a block: *buf and *off; returns the bytes, never 0. */
size_t swap_block_ask(struct swap *s, struct swap_block *b, unsigned char **buf, uint64_t *off);

/* Take in a transfer's result. True: the block is through (if it failed, the queue knows). False:
 * ask again. */
bool swap_block_result(struct swap *s, struct swap_block *b, long result);

/* ---- swap_checksums.c ------------------------------------------------------------------------ */

/* One for each SWAP_ALIGN bytes of a file, so that never-written ones are known to be zero. */
uint32_t *swap_checksums_create(uint64_t file_nbytes); /* zeroed; free() */
void swap_checksums_note(uint32_t *sums, const struct swap_block *b);
cz_status swap_checksums_check(const uint32_t *sums, const char *path, const struct swap_block *b);

/* ---- backends -------------------------------------------------------------------------------- */

struct swap_backend {
    const char *name;
    size_t (*memory_nbytes)(int queue_depth, int n_threads);
    /* Threads run when it returns. Errors: CZ_UNSUPPORTED (refused here), CZ_NOMEM. */
    cz_status (*start)(struct swap *s);
    void (*wake)(struct swap *s); /* with the lock: swap_queue_take() has something new */
    void (*stop)(struct swap *s); /* queue.is_closing is set and awake; accepts half-started */
    /* Make the kernel know a buffer: how many bytes of it were taken. NULL: it makes no use. */
    size_t (*register_buffer)(struct swap *s, unsigned char *base, size_t nbytes, int *first_idx);
};
extern const struct swap_backend swap_backend_uring, swap_backend_threads;

/* ---- swap_thread.c --------------------------------------------------------------------------- */

/* A thread on any of the process's cores that takes no signals; returns an errno. */
int swap_thread_start(pthread_t *thread, void *(*run)(void *), void *arg);

/* What such a thread calls first: when it has something to do it gets a processor soon. */
void swap_thread_settle(void);

/* ---- the swap -------------------------------------------------------------------------------- */

struct swap_buffer { /* known to the kernel, in pieces of SWAP_BUFFER_PIECE */
    unsigned char *base;
    size_t nbytes;
    int first_idx;
};
#define SWAP_BUFFER_PIECE ((size_t)1 << 30) /* the kernel's limit */

struct swap {
    size_t block_nbytes;
    int queue_depth, n_threads;
    bool single_submit;
    uint64_t nbytes;
    struct swap_file file;
    struct swap_file more[SWAP_PATHS_MAX - 1]; /* of further folders */
    size_t n_more;
    struct swap_stripes stripes; /* with n_more > 0 */
    struct swap_file *sources;   /* (n_sources) */
    size_t n_sources;
    struct swap_queue queue;
    const struct swap_backend *backend;
    void *backend_state;
    uint32_t *checksums; /* NULL: none are kept */
    struct swap_fault fault;

    struct swap_buffer buffers[SWAP_BUFFERS_MAX + 1]; /* the first: the bounce memory */
    _Atomic int n_buffers;                            /* raised when an entry is complete */
    _Atomic bool has_unknown; /* the kernel refused to register some buffer */

    pthread_mutex_t sync_lock; /* of the bounce memory */
    unsigned char *bounce;     /* SWAP_BOUNCES × bounce_nbytes */
    size_t bounce_nbytes;
};

/* swap.c: the file that an offset of requests is in, and the offset there. */
static inline struct swap_file *swap_file_of(struct swap *s, uint64_t off, uint64_t *file_off)
{
    *file_off = off & (((uint64_t)1 << SWAP_SOURCE_SHIFT) - 1);
    if (swap_is_source(off)) return &s->sources[(off >> SWAP_SOURCE_SHIFT) - 1];
    if (s->n_more == 0) return &s->file;
    size_t path = swap_stripes_find(&s->stripes, off, file_off);
    return path == 0 ? &s->file : &s->more[path - 1];
}

/* swap.c: CZ_INVALID unless the bytes are in a file, and in one that may be written. */
cz_status swap_check_range(struct swap *s, uint64_t off, size_t nbytes, bool is_write);

/* swap_sync.c: how large one bounce buffer is. */
size_t swap_bounce_nbytes(size_t block_nbytes);

#endif
