/* swap: one file per rank for data that do not fit into memory, read and written with O_DIRECT
 * while the rank computes.
 *
 * The file is preallocated, so a full disk is detected at the start, and named
 * czero-swap-… in the folder it is given. swap_close() removes it. A killed run
 * leaves its file without a lock; the next swap_open() in that folder removes such files, and
 * folders that were created for them.
 *
 * Requests are cut into blocks, of which up to `queue_depth` are in flight: through io_uring with
 * O_DIRECT, the file and swap_register()ed buffers registered; by threads with pread and pwrite
 * if io_uring is not available; through the page cache if O_DIRECT is not. Each fallback is
 * logged once, at LOG_INFO. A thread of its own keeps the queue full: no polling is needed.
 * Interrupted, short and deferred transfers are completed. The first failure is permanent: every
 * later call returns it, and nothing hangs.
 *
 * Beside its own file a swap reads others, its sources, which it never writes: the files of a
 * model, for one. They have offsets of their own (swap_source_off()); their last block may be
 * shorter than SWAP_ALIGN, and what a buffer then holds behind it is undefined. A source that is
 * changed or cut while it is in use is an error of the read that meets it.
 *
 * Life cycle: swap_open() → swap_register() → swap_read_begin / swap_write_begin / swap_wait …
 * → swap_close(). The asynchronous calls belong to one thread; swap_read(), swap_write() and
 * swap_counts() may be called from any. Wait for a write before a request that overlaps it, or
 * begin that one with swap_read_after(): requests in flight have no other order. */
#ifndef CZ_OFFLOAD_SWAP_H
#define CZ_OFFLOAD_SWAP_H

#include "base/status.h"

#include <limits.h>
#include <time.h>

CZ_EXTERN_C_BEGIN

#define SWAP_ALIGN ((size_t)4096) /* of addresses, offsets and sizes of asynchronous requests */

#define SWAP_BLOCK_NBYTES_MAX ((size_t)1 << 30) /* a system call moves less than 2 GiB */
#define SWAP_QUEUE_DEPTH_MAX  4096

/* A file that is only read. Opened by its descriptor, which the caller may close after swap_open().
 */
struct swap_source {
    int fd;
    const char *path;      /* for messages */
    uint64_t nbytes;       /* when the caller looked what is in it … */
    struct timespec mtime; /* … and when it was changed last before */
};

#define SWAP_SOURCES_MAX  ((size_t)1 << 12)
#define SWAP_SOURCE_SHIFT 48

/* Byte `off` of a source, as an offset of requests. */
static inline uint64_t swap_source_off(size_t source_idx, uint64_t off)
{
    return ((uint64_t)(source_idx + 1) << SWAP_SOURCE_SHIFT) + off;
}

/* Whether an offset of requests is one of a source. */
static inline bool swap_is_source(uint64_t off)
{
    return off >> SWAP_SOURCE_SHIFT != 0;
}

enum swap_engine { SWAP_ENGINE_AUTO = 0, SWAP_ENGINE_URING, SWAP_ENGINE_THREADS };

#define SWAP_PATHS_MAX 8

struct swap_options {
    const char *dir; /* nvme_path; created if missing, with the folders above it */
    int rank;        /* part of the file's name, for users */
    size_t nbytes;   /* of the file; rounded up to SWAP_ALIGN. Never-written bytes read as zero */
    size_t block_nbytes; /* aio.block_size: rounded up to SWAP_ALIGN; 0: 1 MiB */
    int queue_depth;     /* aio.queue_depth: blocks in flight; 0: 8 */
    int n_threads;       /* aio.intra_op_parallelism: threads if io_uring is not available, at least
                            queue_depth's worth of 1 … 8 are used; 0: by queue_depth */
    bool single_submit;  /* aio.single_submit: one system call per block */
    bool checksums;      /* keep a CRC-32 per SWAP_ALIGN bytes written and compare it when read */
    enum swap_engine engine;
    const char *const *more_dirs; /* folders on other disks: blocks are divided among a file in each
                                     folder; lent */
    size_t n_more_dirs;           /* up to SWAP_PATHS_MAX − 1 */
    const double *rates;          /* of dir and more_dirs, relative to each other; NULL: alike */
    const struct swap_source *sources; /* lent until swap_open() returns */
    size_t n_sources;                  /* up to SWAP_SOURCES_MAX */
};

struct swap; /* opaque */

/* Bytes of memory that the swap needs in addition to registered buffers, as in the plan: bounce
 * buffers, checksums, queue. */
size_t swap_memory_nbytes(const struct swap_options *options);

/* Bytes free in the file system that holds `dir`, or in that of its nearest existing parent,
 * including the space of files that killed runs left; SIZE_MAX if the file system does
 * not report it. Creates nothing. Errors: CZ_INVALID (no name, too long), CZ_IO, CZ_NOMEM. */
cz_status swap_dir_free(const char *dir, size_t *nbytes);

/* "DIR is in memory (tmpfs), so a swap file there saves no memory. Name a folder on a disk." of the
 * first folder whose file system, or that of its nearest existing parent, is in memory; "" where
 * none is, or where that is not known. Into buf; returns it. */
#define SWAP_WARNING_NBYTES (PATH_MAX + 128)
const char *swap_warn_of_memory(const struct swap_options *options, char buf[SWAP_WARNING_NBYTES]);

/* The same for a swap of several folders: as large as it could be with the shares that they have.
 */
cz_status swap_free_nbytes(const struct swap_options *options, size_t *nbytes);

/* Bytes of the file in `dir` (0) or in more_dirs[path − 1]. */
uint64_t swap_path_nbytes(const struct swap_options *options, size_t path);

/* Create and preallocate the file, or one in each folder. Errors: CZ_IO with folder, bytes needed
 * and bytes free if the disk is too small (nothing is left); CZ_INVALID (dir is not a folder, name
 * too long). */
cz_status swap_open(const struct swap_options *options, struct swap **out);

/* End all requests, remove the file and the folders made for it; accepts NULL. */
void swap_close(struct swap *s);

/* Remove the files of all open swaps of this process, and the folders made for them, although they
 * are in use: for a program that a signal is about to end. Transfers continue to work. Any thread,
 * but not a signal handler. */
void swap_remove_files(void);

/* Buffers that requests will use, for good: at most 16 calls, aligned to SWAP_ALIGN. Where the
 * kernel refuses to register them (RLIMIT_MEMLOCK) they work all the same. */
cz_status swap_register(struct swap *s, void *base, size_t nbytes);

/* Begin to move [off, off + nbytes) of the file, or read them of a source; all aligned to
 * SWAP_ALIGN and inside the file, rounded up to whole blocks. The buffer is lent until swap_wait()
 * of the ticket (0 for nothing to do). Errors: CZ_INVALID, and what failed before. */
cz_status swap_read_begin(struct swap *s, void *buf, uint64_t off, size_t nbytes, uint64_t *ticket);
cz_status swap_write_begin(struct swap *s, const void *buf, uint64_t off, size_t nbytes,
                           uint64_t *ticket);

/* A read that begins once the request `after` is done (0: at once), whose buffer it may use again.
 */
cz_status swap_read_after(struct swap *s, void *buf, uint64_t off, size_t nbytes, uint64_t after,
                          uint64_t *ticket);

/* Until that request is done (its memory is free, its bytes are there for the next read).
 * Errors: CZ_IO naming file, offset and cause; CZ_CORRUPT when a checksum differs. */
cz_status swap_wait(struct swap *s, uint64_t ticket);

/* Until everything begun is done, whether it failed or not. */
cz_status swap_drain(struct swap *s);

/* Any bytes of the file, unaligned too, done on return; through a buffer of its own. */
cz_status swap_read(struct swap *s, uint64_t off, size_t nbytes, void *dst);
cz_status swap_write(struct swap *s, uint64_t off, size_t nbytes, const void *src);

struct swap_counts {
    uint64_t read_nbytes, written_nbytes; /* since swap_open() */
    int64_t waited_ns; /* the thread that opened the swap stood still: in swap_wait, swap_drain,
                          swap_read and swap_write */
    int64_t busy_ns;   /* at least one block in flight */
};
struct swap_counts swap_counts(const struct swap *s);

/* How it works here: "io_uring, O_DIRECT, registered buffers", for the log and the plan. */
const char *swap_describe(const struct swap *s);

/* The file's path, for messages and tests; of several the first one's, or that of number `i`, NULL
 * behind the last. */
const char *swap_path(const struct swap *s);
const char *swap_path_at(const struct swap *s, size_t i);

CZ_EXTERN_C_END
#endif
