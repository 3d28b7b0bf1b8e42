/* The calls of offload/swap.h: options, the choice of a backend, memory, buffers, requests. */
#include "offload/swap.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/size.h"
#include "offload/swap/swap_impl.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

/* A block in huge pages is one piece for the disk, not one of hundreds. */
#define HUGE_NBYTES ((size_t)2 << 20)

/* ---- options --------------------------------------------------------------------------------- */

/* What the options come down to; `s` is zeroed. */
static cz_status take_options(struct swap *s, const struct swap_options *o)
{
    if (o->queue_depth < 0 || o->queue_depth > SWAP_QUEUE_DEPTH_MAX)
        return err_set(CZ_INVALID, 0, "aio.queue_depth: %d is outside 1..%d", o->queue_depth,
                       SWAP_QUEUE_DEPTH_MAX);
    if (o->block_nbytes > SWAP_BLOCK_NBYTES_MAX)
        return err_set(CZ_INVALID, 0, "aio.block_size: %zu is above %zu", o->block_nbytes,
                       SWAP_BLOCK_NBYTES_MAX);
    if (o->n_threads < 0)
        return err_set(CZ_INVALID, 0, "aio.intra_op_parallelism: %d is below 1", o->n_threads);
    if (o->n_sources > SWAP_SOURCES_MAX)
        return err_set(CZ_INVALID, 0, "a swap of more than %zu files to read", SWAP_SOURCES_MAX);
    if (o->nbytes >= (uint64_t)1 << SWAP_SOURCE_SHIFT)
        return err_set(CZ_INVALID, 0, "a swap file of %zu bytes is too large", o->nbytes);
    s->nbytes = size_round_up(o->nbytes, SWAP_ALIGN);
    s->queue_depth = o->queue_depth ? o->queue_depth : SWAP_QUEUE_DEPTH;
    s->block_nbytes =
        size_round_up(o->block_nbytes ? o->block_nbytes : SWAP_BLOCK_NBYTES, SWAP_ALIGN);
    s->n_threads = s->queue_depth < 8 ? s->queue_depth : 8;
    if (o->n_threads > s->n_threads) s->n_threads = o->n_threads;
    if (s->n_threads > SWAP_THREADS_MAX) s->n_threads = SWAP_THREADS_MAX;
    TRY(swap_stripes_make(o, s->block_nbytes, &s->stripes));
    s->queue_depth *= (int)s->stripes.n_paths; /* each disk's */
    if (s->queue_depth > SWAP_QUEUE_DEPTH_MAX) s->queue_depth = SWAP_QUEUE_DEPTH_MAX;
    s->single_submit = o->single_submit;
    s->bounce_nbytes = swap_bounce_nbytes(s->block_nbytes);
    return CZ_OK;
}

/* CZERO_IO stands for the user's wish where the caller has none. */
static cz_status choose_engine(enum swap_engine asked, enum swap_engine *out)
{
    const char *wish = getenv("CZERO_IO");
    *out = asked;
    if (!wish || !wish[0]) return CZ_OK;
    enum swap_engine wished = SWAP_ENGINE_URING;
    if (!strcmp(wish, "threads"))
        wished = SWAP_ENGINE_THREADS;
    else if (strcmp(wish, "uring") != 0)
        return err_set(CZ_INVALID, 0, "CZERO_IO=%s: there is uring and threads", wish);
    if (asked == SWAP_ENGINE_AUTO) *out = wished;
    return CZ_OK;
}

size_t swap_memory_nbytes(const struct swap_options *options)
{
    struct swap s = {0};
    if (take_options(&s, options) != CZ_OK) return 0;
    size_t uring = swap_backend_uring.memory_nbytes(s.queue_depth, s.n_threads);
    size_t threads = swap_backend_threads.memory_nbytes(s.queue_depth, s.n_threads);
    size_t nbytes = sizeof s + SWAP_REQUESTS * sizeof(struct swap_request) +
                    (size_t)s.queue_depth * sizeof(struct swap_block) +
                    SWAP_BOUNCES * s.bounce_nbytes + (uring > threads ? uring : threads);
    nbytes += options->n_sources * sizeof(struct swap_file);
    if (options->checksums) nbytes += (options->nbytes / SWAP_ALIGN + 2) * sizeof(uint32_t);
    return nbytes;
}

/* ---- open and close -------------------------------------------------------------------------- */

/* Also of one that has started in part. What is in line is dropped; what is in flight ends first.
 */
static void stop_backend(struct swap *s)
{
    if (!s->backend) return;
    pthread_mutex_lock(&s->queue.lock);
    s->queue.is_closing = true;
    if (s->backend_state) s->backend->wake(s);
    pthread_mutex_unlock(&s->queue.lock);
    s->backend->stop(s);
    s->queue.is_closing = false;
    s->backend = NULL;
}

static cz_status start_backend(struct swap *s, const struct swap_backend *backend)
{
    s->backend = backend;
    cz_status st = backend->start(s);
    if (st != CZ_OK) stop_backend(s);
    return st;
}

/* io_uring where the system allows it (containers often do not), else threads. */
static cz_status start(struct swap *s, enum swap_engine engine)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;
    if (engine == SWAP_ENGINE_THREADS) return start_backend(s, &swap_backend_threads);
    cz_status st = start_backend(s, &swap_backend_uring);
    if (st != CZ_UNSUPPORTED) return st;
    if (engine == SWAP_ENGINE_URING)
        return err_prefix("CZERO_IO=uring asks for io_uring, which is not to be had here");
    if (!atomic_flag_test_and_set(&said))
        LOGV(LOG_INFO, SUB_SWAP, "io_uring is not to be had here (%s): %d threads read and write",
             cz_last_error(), s->n_threads);
    err_clear();
    return start_backend(s, &swap_backend_threads);
}

/* Everything that the swap will ever need beside registered buffers: no transfer allocates. */
static cz_status allocate(struct swap *s, const struct swap_options *o)
{
    size_t file_nbytes = size_round_up(o->nbytes, SWAP_ALIGN);
    void *bounce = NULL;
    TRY(swap_queue_allocate(&s->queue, s->queue_depth));
    size_t bounce_nbytes = SWAP_BOUNCES * s->bounce_nbytes;
    size_t align = bounce_nbytes < HUGE_NBYTES ? SWAP_ALIGN : HUGE_NBYTES;
    if (posix_memalign(&bounce, align, bounce_nbytes) == 0) s->bounce = bounce;
    if (align == HUGE_NBYTES && bounce) madvise(bounce, bounce_nbytes, MADV_HUGEPAGE);
    if (o->checksums) s->checksums = swap_checksums_create(file_nbytes);
    s->sources = calloc(o->n_sources + 1, sizeof *s->sources);
    if (!s->bounce || !s->sources || (o->checksums && !s->checksums))
        return err_set(CZ_NOMEM, 0, "no memory for a swap file's buffers and checksums");
    return CZ_OK;
}

static cz_status open_files(struct swap *s, const struct swap_options *o)
{
    TRY(swap_file_open(&s->file, o->dir, o->rank, swap_stripes_nbytes(&s->stripes, s->nbytes, 0)));
    for (size_t i = 1; i <= o->n_more_dirs; i++) {
        s->n_more = i; /* to be closed, also if it was opened in part */
        TRY(swap_file_open(&s->more[i - 1], o->more_dirs[i - 1], o->rank,
                           swap_stripes_nbytes(&s->stripes, s->nbytes, i)));
    }
    return CZ_OK;
}

cz_status swap_open(const struct swap_options *options, struct swap **out)
{
    enum swap_engine engine;
    cz_status st;
    *out = NULL;
    struct swap *s = calloc(1, sizeof *s);
    if (!s) return err_set(CZ_NOMEM, 0, "no memory for a swap file");
    s->file.fd = s->file.lock_fd = -1;
    pthread_mutex_init(&s->sync_lock, NULL);
    swap_queue_init(&s->queue);
    TRY_GOTO(take_options(s, options), fail);
    TRY_GOTO(choose_engine(options->engine, &engine), fail);
    TRY_GOTO(allocate(s, options), fail);
    TRY_GOTO(open_files(s, options), fail);
    for (; s->n_sources < options->n_sources; s->n_sources++)
        TRY_GOTO(swap_source_open(&s->sources[s->n_sources], &options->sources[s->n_sources]),
                 fail);
    TRY_GOTO(start(s, engine), fail);
    TRY_GOTO(swap_register(s, s->bounce, SWAP_BOUNCES * s->bounce_nbytes), fail);
    *out = s;
    return CZ_OK;
fail:
    swap_close(s);
    return st;
}

void swap_close(struct swap *s)
{
    if (!s) return;
    stop_backend(s);
    swap_file_close(&s->file);
    for (size_t i = 0; i < s->n_more; i++) swap_file_close(&s->more[i]);
    for (size_t i = 0; i < s->n_sources; i++) swap_source_close(&s->sources[i]);
    free(s->sources);
    swap_queue_free(&s->queue);
    pthread_mutex_destroy(&s->sync_lock);
    free(s->checksums);
    free(s->bounce);
    free(s);
}

/* ---- buffers --------------------------------------------------------------------------------- */

/* Where the kernel takes only a part of a buffer, transfers from the rest work all the same: it
 * pins their pages each time. */
cz_status swap_register(struct swap *s, void *base, size_t nbytes)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;
    int n = atomic_load(&s->n_buffers);
    if ((uintptr_t)base % SWAP_ALIGN != 0)
        return err_set(CZ_INVALID, 0, "swap: a buffer at %p is not aligned to %zu bytes", base,
                       SWAP_ALIGN);
    if (n > SWAP_BUFFERS_MAX)
        return err_set(CZ_INVALID, 0, "swap: more than %d buffers", SWAP_BUFFERS_MAX);
    if (nbytes == 0 || !s->backend->register_buffer) return CZ_OK;
    struct swap_buffer *known = &s->buffers[n];
    known->base = base;
    known->nbytes = s->backend->register_buffer(s, base, nbytes, &known->first_idx);
    atomic_store(&s->n_buffers, n + 1);
    if (known->nbytes == nbytes) return CZ_OK;
    atomic_store(&s->has_unknown, true);
    if (!atomic_flag_test_and_set(&said))
        LOGV(LOG_INFO, SUB_SWAP,
             "the kernel registers no buffers of %zu bytes for swapping (%s; see ulimit -l): "
             "it pins pages at each transfer instead",
             nbytes, strerror(errno));
    return CZ_OK;
}

/* ---- requests -------------------------------------------------------------------------------- */

/* The last block of a source may be asked for whole. */
cz_status swap_check_range(struct swap *s, uint64_t off, size_t nbytes, bool is_write)
{
    uint64_t at, end;
    if (off <= s->nbytes && nbytes <= s->nbytes - off) return CZ_OK;
    if (off >> SWAP_SOURCE_SHIFT > s->n_sources)
        return err_set(CZ_INVALID, 0, "swap: offset %" PRIu64 " is in no file", off);
    if (!swap_is_source(off))
        return err_set(CZ_INVALID, 0,
                       "swap file %s: %zu bytes at offset %" PRIu64 " go beyond its %" PRIu64
                       " bytes",
                       s->file.path, nbytes, off, s->nbytes);
    const struct swap_file *f = swap_file_of(s, off, &at);
    if (is_write) return err_set(CZ_INVALID, 0, "%s is only read", f->path);
    end = size_round_up(f->nbytes, SWAP_ALIGN);
    if (at <= end && nbytes <= end - at) return CZ_OK;
    return err_set(CZ_INVALID, 0,
                   "%s: %zu bytes at offset %" PRIu64 " go beyond its %" PRIu64 " bytes", f->path,
                   nbytes, at, f->nbytes);
}

static cz_status check_request(struct swap *s, const void *buf, uint64_t off, size_t nbytes,
                               bool is_write)
{
    if (((uintptr_t)buf | off | nbytes) % SWAP_ALIGN != 0)
        return err_set(CZ_INVALID, 0,
                       "swap: %zu bytes at offset %" PRIu64 " from %p are not aligned to %zu",
                       nbytes, off, buf, SWAP_ALIGN);
    return swap_check_range(s, off, nbytes, is_write);
}

cz_status swap_read_after(struct swap *s, void *buf, uint64_t off, size_t nbytes, uint64_t after,
                          uint64_t *ticket)
{
    *ticket = 0;
    TRY(check_request(s, buf, off, nbytes, false));
    return swap_queue_begin_after(s, buf, off, nbytes, false, after, ticket);
}

cz_status swap_read_begin(struct swap *s, void *buf, uint64_t off, size_t nbytes, uint64_t *ticket)
{
    return swap_read_after(s, buf, off, nbytes, 0, ticket);
}

cz_status swap_write_begin(struct swap *s, const void *buf, uint64_t off, size_t nbytes,
                           uint64_t *ticket)
{
    *ticket = 0;
    TRY(check_request(s, buf, off, nbytes, true));
    return swap_queue_begin(s, (void *)(uintptr_t)buf, off, nbytes, true, ticket);
}

cz_status swap_wait(struct swap *s, uint64_t ticket)
{
    return swap_queue_wait(&s->queue, ticket);
}

cz_status swap_drain(struct swap *s)
{
    return swap_queue_drain(&s->queue);
}

/* ---- what it is and did ---------------------------------------------------------------------- */

struct swap_counts swap_counts(const struct swap *s)
{
    struct swap_queue *q = (struct swap_queue *)(uintptr_t)&s->queue;
    pthread_mutex_lock(&q->lock);
    struct swap_counts counts = q->counts;
    if (q->n_flying > 0) counts.busy_ns += clock_now_ns() - q->busy_since_ns;
    pthread_mutex_unlock(&q->lock);
    return counts;
}

const char *swap_describe(const struct swap *s)
{
    bool is_direct = atomic_load(&s->file.is_direct);
    for (size_t i = 0; i < s->n_more; i++) is_direct &= atomic_load(&s->more[i].is_direct);
    if (s->backend == &swap_backend_threads)
        return is_direct ? "threads, O_DIRECT" : "threads, page cache";
    if (atomic_load(&s->has_unknown))
        return is_direct ? "io_uring, O_DIRECT" : "io_uring, page cache";
    return is_direct ? "io_uring, O_DIRECT, registered buffers"
                     : "io_uring, page cache, registered buffers";
}

const char *swap_path(const struct swap *s)
{
    return s->file.path;
}

const char *swap_path_at(const struct swap *s, size_t i)
{
    return i == 0 ? s->file.path : i <= s->n_more ? s->more[i - 1].path : NULL;
}

/* The nearest folder on an absolute path that exists. */
static void cut_to_parent(char *path)
{
    while (access(path, F_OK) != 0 && (errno == ENOENT || errno == ENOTDIR) && path[1]) {
        char *slash = strrchr(path, '/');
        slash[slash == path] = '\0';
    }
}

/* "tmpfs" or "ramfs"; NULL: no, or not known. */
static const char *find_memory(const char *dir)
{
    char *path;
    struct statfs fs;
    if (swap_folder_resolve(dir, &path) != CZ_OK) {
        err_clear();
        return NULL;
    }
    cut_to_parent(path);
    const bool is_known = statfs(path, &fs) == 0;
    free(path);
    if (!is_known) return NULL;
    return (uint32_t)fs.f_type == TMPFS_MAGIC   ? "tmpfs"
           : (uint32_t)fs.f_type == RAMFS_MAGIC ? "ramfs"
                                                : NULL;
}

const char *swap_warn_of_memory(const struct swap_options *o, char buf[SWAP_WARNING_NBYTES])
{
    buf[0] = '\0';
    for (size_t i = 0; i <= o->n_more_dirs; i++) {
        const char *dir = i == 0 ? o->dir : o->more_dirs[i - 1], *kind = find_memory(dir);
        if (!kind) continue;
        snprintf(buf, SWAP_WARNING_NBYTES,
                 "%s is in memory (%s), so a swap file there saves no memory. Name a folder on a "
                 "disk.",
                 dir, kind);
        break;
    }
    return buf;
}

/* For a plan, before the folder exists: its nearest parent is asked. Leftovers of killed runs count
 * as free, because swap_open() removes them first. */
cz_status swap_dir_free(const char *dir, size_t *nbytes)
{
    char *path;
    *nbytes = 0;
    TRY(swap_folder_resolve(dir, &path));
    bool is_locked;
    int dir_fd = swap_folder_lock(path, &is_locked);
    uint64_t leftovers = is_locked ? swap_folder_leftovers(dir_fd) : 0;
    swap_folder_unlock(dir_fd);
    cut_to_parent(path);
    uint64_t n_free = swap_file_system_free(path);
    free(path);
    *nbytes = n_free > SIZE_MAX - leftovers ? SIZE_MAX : n_free + leftovers;
    return CZ_OK;
}

uint64_t swap_path_nbytes(const struct swap_options *options, size_t path)
{
    struct swap s = {0};
    if (take_options(&s, options) != CZ_OK) return 0;
    return swap_stripes_nbytes(&s.stripes, s.nbytes, path);
}

cz_status swap_free_nbytes(const struct swap_options *options, size_t *nbytes)
{
    struct swap s = {0};
    TRY(take_options(&s, options));
    TRY(swap_dir_free(options->dir, nbytes));
    if (s.stripes.n_paths == 1) return CZ_OK;
    for (size_t i = 0; i < s.stripes.n_paths; i++) {
        size_t here = *nbytes;
        if (i > 0) TRY(swap_dir_free(options->more_dirs[i - 1], &here));
        if (here != SIZE_MAX)
            here = here / s.stripes.unit / (size_t)s.stripes.n_of[i] * SWAP_PERIOD * s.stripes.unit;
        if (i == 0 || here < *nbytes) *nbytes = here;
    }
    return CZ_OK;
}
