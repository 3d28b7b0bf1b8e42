/* What a transfer's result means for its block. The kernel may move less than it was asked to, put
 * a transfer off or refuse O_DIRECT: then the rest is asked for again, and only what makes no
 * progress for a while has failed. Both backends come here, and so do the faults of tests. */
#include "base/clock.h"
#include "base/size.h"
#include "offload/swap/swap_impl.h"

#include <errno.h>
#include <inttypes.h>
#include <time.h>

/* A transfer that was put off (EINTR, EAGAIN, nothing moved) so long and so often has failed. Time
 * alone would blame the disk for a busy processor. */
#define STUCK_NS_MAX    (300 * INT64_C(1000000))
#define STUCK_TRIES_MAX 20
#define STUCK_NAP_NS    100000

void swap_set_fault(struct swap *s, const struct swap_fault *fault)
{
    s->fault = *fault;
}

size_t swap_block_ask(struct swap *s, struct swap_block *b, unsigned char **buf, uint64_t *off)
{
    if (s->checksums && b->is_write && b->done == 0) swap_checksums_note(s->checksums, b);
    *buf = b->buf + b->done;
    *off = b->off + b->done;
    b->n_asked = b->nbytes - b->done;
    b->was_direct = atomic_load(&b->file->is_direct);
    if (s->fault.ask) b->n_asked = s->fault.ask(s->fault.user, b, b->n_asked);
    return b->n_asked;
}

/* The error names file, direction, bytes and offset; the first one is what all callers will get. */
static void block_fail(struct swap *s, const struct swap_block *b, cz_status status, int error,
                       const char *why)
{
    char size[24];
    err_set(status, error, "%s%s: %s %s at offset %" PRIu64 "%s",
            b->file->is_source ? "" : "swap file ", b->file->path,
            b->is_write ? "writing" : "reading", size_human(b->nbytes - b->done, size, sizeof size),
            b->off + b->done, why);
    swap_queue_fail(&s->queue);
}

/* Nothing moved, but may if asked again. True: it was asked long enough, the block has failed. */
static bool block_stuck(struct swap *s, struct swap_block *b, int error)
{
    int64_t now = clock_now_ns();
    if (b->n_stuck++ == 0) {
        b->stuck_ns = now;
        return false;
    }
    if (now - b->stuck_ns > STUCK_NS_MAX && b->n_stuck > STUCK_TRIES_MAX) {
        block_fail(s, b, CZ_IO, error, "");
        return true;
    }
    nanosleep(&(struct timespec){.tv_nsec = STUCK_NAP_NS}, NULL);
    return false;
}

/* All bytes have moved. Through the page cache that is not all: writes stay there until memory is
 * short, and may fail then, unseen. So write-back is begun at once, and each read asks whether any
 * write has failed since. */
static bool block_complete(struct swap *s, struct swap_block *b)
{
    int error = 0;
    if (b->file->is_source) {
        if (swap_source_check(b->file) != CZ_OK) swap_queue_fail(&s->queue);
        return true;
    }
    if (!b->was_direct && b->is_write)
        swap_file_writeback_begin(b->file, b->off, b->nbytes);
    else if (!b->was_direct)
        error = swap_file_writeback_error(b->file);
    if (error != 0)
        block_fail(s, b, CZ_IO, error, ": what was written before did not reach the disk");
    else if (s->checksums && !b->is_write &&
             swap_checksums_check(s->checksums, b->file->path, b) != CZ_OK)
        swap_queue_fail(&s->queue);
    return true;
}

/* Past the page cache only whole multiples of SWAP_ALIGN can be asked for again. */
static bool block_progress(struct swap *s, struct swap_block *b, size_t nbytes)
{
    size_t left = b->nbytes - b->done;
    bool is_end = b->file->is_source && b->off + b->done + nbytes >= b->file->nbytes;
    if (nbytes >= left || is_end) {
        b->done = b->nbytes;
        return block_complete(s, b);
    }
    if (b->was_direct) nbytes -= nbytes % SWAP_ALIGN;
    if (nbytes == 0) return block_stuck(s, b, EIO);
    b->done += nbytes;
    b->n_stuck = 0;
    return false;
}

/* EINVAL from a file that was opened with O_DIRECT means that this file system refuses it after
 * all: the same block goes again through the page cache. A read of 0 bytes means that the file was
 * cut. */
bool swap_block_result(struct swap *s, struct swap_block *b, long result)
{
    if (s->fault.result) result = s->fault.result(s->fault.user, b, result);
    if (result > 0) return block_progress(s, b, (size_t)result);
    if (result == -EINTR || result == -EAGAIN) return block_stuck(s, b, (int)-result);
    if (result == -EINVAL && b->was_direct) {
        swap_file_leave_direct(b->file);
        return false;
    }
    if (result == 0 && b->is_write) return block_stuck(s, b, EIO);
    if (result == 0 && b->file->is_source && swap_source_check(b->file) != CZ_OK)
        swap_queue_fail(&s->queue);
    else if (result == 0)
        block_fail(s, b, CZ_IO, 0, ": the file has become shorter");
    else
        block_fail(s, b, CZ_IO, (int)-result, "");
    return true;
}
