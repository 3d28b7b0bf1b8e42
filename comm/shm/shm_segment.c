/* The shared segment of a host's ranks: its layout, and waking each other. It is an anonymous file
 * (memfd) that the launcher makes and the ranks inherit, sealed against being cut, so no rank can
 * be killed by SIGBUS because another shrank it. Layout: a head, a line per rank, then each rank's
 * slots. */
#include "comm/shm/shm_segment_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

cz_status comm_shm_where(int fd, int world_size, int rank, char *text, size_t text_nbytes)
{
    struct shm_segment seg;
    text[0] = '\0';
    if (rank < 0 || rank >= world_size)
        return err_set(CZ_INVALID, 0, "there is no rank %d in a world of %d", rank, world_size);
    TRY(shm_segment_map(fd, world_size, &seg));
    struct shm_where where = shm_where_is(&seg.ranks[rank], "");
    snprintf(text, text_nbytes, "%s", where.text);
    shm_segment_unmap(&seg);
    return CZ_OK;
}

#define MAGIC   0x6d68736f72657a63u /* "czeroshm" */
#define VERSION 1u
#define PAGE    4096u

/* Every slot of both rounds in flight, read by one core while it is written by another, should stay
 * in the last-level cache next to the tensors that pass: W ranks × (W − 1) peers × 2 rounds, of
 * 8 MiB. Below 4 KiB the bookkeeping of a round would show, above 256 KiB a slot and its share of
 * source and destination no longer fit a core's own cache (1–2 MiB).
 *   W   2: 256 KiB (1 MiB in all)   4: 256 KiB (6 MiB)   8: 72 KiB (8 MiB)
 *      16: 16 KiB (8 MiB)          64:   4 KiB (33 MiB, all touched only by all-to-all) */
#define STAGING_NBYTES  ((size_t)8 << 20)
#define SLOT_NBYTES_MAX ((size_t)256 << 10)

_Static_assert(sizeof(struct slot_head) % SHM_LINE_NBYTES == 0, "payloads start on a line");

static size_t round_up(size_t n, size_t unit)
{
    return (n + unit - 1) / unit * unit;
}

static size_t slot_size(size_t world_size)
{
    if (world_size < 2) return PAGE;
    size_t n = STAGING_NBYTES / (2 * world_size * (world_size - 1)) / PAGE * PAGE;
    return n < PAGE ? PAGE : n > SLOT_NBYTES_MAX ? SLOT_NBYTES_MAX : n;
}

/* Sizes and offsets for a world; base and ranks stay NULL. */
static struct shm_segment shm_segment_layout(int world_size)
{
    size_t w = (size_t)world_size;
    struct shm_segment seg = {.world_size = world_size, .slot_nbytes = slot_size(w)};
    seg.stride_nbytes = seg.slot_nbytes + sizeof(struct slot_head);
    seg.slots_off = round_up(
        round_up(sizeof(struct shm_head), SHM_LINE_NBYTES) + w * sizeof(struct shm_rank), PAGE);
    seg.n_slots = w > 1 ? w - 1 : 1; /* a world of one passes its sums through a slot, too */
    seg.rank_nbytes = round_up(2 * seg.n_slots * seg.stride_nbytes, PAGE);
    seg.nbytes = seg.slots_off + w * seg.rank_nbytes;
    return seg;
}

size_t comm_shm_segment_nbytes(int world_size)
{
    return world_size < 1 ? 0 : shm_segment_layout(world_size).nbytes;
}

/* For the memory plan of a rank: what it touches, not what it maps. */
size_t comm_shm_rank_nbytes(int world_size)
{
    if (world_size < 2) return 0;
    struct shm_segment seg = shm_segment_layout(world_size);
    /* What it fills, and one slot of each peer's in both rounds, which may begin and end inside a
     * page. */
    size_t read = 2 * (size_t)(world_size - 1) * round_up(seg.stride_nbytes + PAGE - 1, PAGE);
    size_t others = seg.nbytes - seg.slots_off - seg.rank_nbytes;
    return seg.slots_off + seg.rank_nbytes + (read < others ? read : others);
}

/* Sizes are in the head, so that ranks of another build notice. */
static cz_status write_head(int fd, const struct shm_segment *seg)
{
    const struct shm_head head = {.magic = MAGIC,
                                  .version = VERSION,
                                  .world_size = (uint32_t)seg->world_size,
                                  .slot_nbytes = seg->slot_nbytes,
                                  .nbytes = seg->nbytes};
    if (ftruncate(fd, (off_t)seg->nbytes) != 0 ||
        pwrite(fd, &head, sizeof head, 0) != (ssize_t)sizeof head ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        return err_set(CZ_NOMEM, errno, "a segment of %zu bytes for %d ranks cannot be made",
                       seg->nbytes, seg->world_size);
    return CZ_OK;
}

cz_status comm_shm_segment_create(int world_size, int *fd)
{
    *fd = -1;
    if (world_size < 1 || world_size > COMM_SHM_WORLD_MAX)
        return err_set(CZ_INVALID, 0, "one host supports 1 to %d ranks, not %d", COMM_SHM_WORLD_MAX,
                       world_size);
    const struct shm_segment seg = shm_segment_layout(world_size);
    int made = memfd_create("czero-ranks", MFD_ALLOW_SEALING);
    if (made < 0) return err_set(CZ_IO, errno, "no anonymous file for the ranks' shared memory");
    cz_status st = write_head(made, &seg);
    if (st != CZ_OK) {
        close(made);
        return err_trace(st, __func__, __LINE__);
    }
    *fd = made;
    return CZ_OK;
}

static cz_status check_head(const struct shm_head *head, int fd, const struct shm_segment *want)
{
    if (head->magic != MAGIC)
        return err_set(CZ_COMM, 0, "descriptor %d is not a segment of czero launch", fd);
    if (head->version != VERSION)
        return err_set(CZ_COMM, 0,
                       "the shared segment has version %" PRIu32 ", this build reads %u: launcher "
                       "and ranks must be of one build",
                       head->version, VERSION);
    if (head->world_size != (uint32_t)want->world_size)
        return err_set(CZ_COMM, 0, "the shared segment is for %" PRIu32 " ranks, not for %d",
                       head->world_size, want->world_size);
    if (head->slot_nbytes != want->slot_nbytes || head->nbytes != want->nbytes)
        return err_set(CZ_COMM, 0,
                       "the shared segment has slots of %" PRIu64 " bytes where this build has %zu",
                       head->slot_nbytes, want->slot_nbytes);
    return CZ_OK;
}

cz_status shm_segment_map(int fd, int world_size, struct shm_segment *seg)
{
    memset(seg, 0, sizeof *seg);
    if (world_size < 1 || world_size > COMM_SHM_WORLD_MAX)
        return err_set(CZ_INVALID, 0, "one host supports 1 to %d ranks, not %d", COMM_SHM_WORLD_MAX,
                       world_size);
    struct shm_segment s = shm_segment_layout(world_size);
    /* A sealed file cannot be truncated while it is mapped, and only a memfd has seals. */
    struct stat status;
    struct shm_head head = {0};
    if (fstat(fd, &status) != 0)
        return err_set(CZ_COMM, errno, "descriptor %d, the ranks' shared segment, is not open", fd);
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || !(seals & F_SEAL_SHRINK) ||
        pread(fd, &head, sizeof head, 0) != (ssize_t)sizeof head)
        return err_set(CZ_COMM, 0, "descriptor %d is not a segment of czero launch", fd);
    TRY(check_head(&head, fd, &s));
    if ((uint64_t)status.st_size != s.nbytes)
        return err_set(CZ_COMM, 0, "the shared segment has %lld bytes instead of %zu",
                       (long long)status.st_size, s.nbytes);
    s.base = mmap(NULL, s.nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (s.base == MAP_FAILED)
        return err_set(CZ_NOMEM, errno, "the shared segment of %zu bytes cannot be mapped",
                       s.nbytes);
    s.ranks = (struct shm_rank *)(s.base + round_up(sizeof(struct shm_head), SHM_LINE_NBYTES));
    *seg = s;
    return CZ_OK;
}

void shm_segment_unmap(struct shm_segment *seg)
{
    if (seg->base) munmap(seg->base, seg->nbytes);
    memset(seg, 0, sizeof *seg);
}

void *shm_slot(const struct shm_segment *seg, uint64_t round, int from, int to)
{
    size_t idx = to == COMM_ALL ? 0 : (size_t)(to < from ? to : to - 1);
    idx += (round & 1) * seg->n_slots;
    return seg->base + seg->slots_off + (size_t)from * seg->rank_nbytes + idx * seg->stride_nbytes;
}

/* ---- sleeping and waking ----------------------------------------------------------------------
 * The sleeper counts itself, then the kernel compares events with what it saw; the waker changes
 * events, then looks for sleepers. Both in one total order, so one of them notices the other. */

/* Wakes the ranks that sleep on this one's events. */
void shm_ring(struct shm_rank *rank)
{
    atomic_fetch_add(&rank->events, 1);
    if (atomic_load(&rank->n_sleepers) > 0)
        syscall(SYS_futex, &rank->events, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

/* Sleeps until the rank's events differ from `seen`. */
void shm_listen(struct shm_rank *rank, uint32_t seen, int64_t timeout_ns)
{
    const struct timespec t = {.tv_sec = timeout_ns / 1000000000,
                               .tv_nsec = timeout_ns % 1000000000};
    atomic_fetch_add(&rank->n_sleepers, 1);
    /* Changed already, interrupted, timed out: the caller looks again in every case. */
    syscall(SYS_futex, &rank->events, FUTEX_WAIT, seen, &t, NULL, 0);
    atomic_fetch_sub(&rank->n_sleepers, 1);
}

/* ---- a rank's progress ----------------------------------------------------------------------- */

/* Two places in turn: a reader gets the old or the new one, at worst words of both, which are
 * printable either way. */
void shm_place_set(struct shm_rank *rank, int64_t step, const char *phase)
{
    uint64_t words[SHM_PHASE_WORDS] = {0};
    size_t len = strnlen(phase, sizeof words - 1);
    memcpy(words, phase, len);
    uint32_t idx = !atomic_load_explicit(&rank->place_idx, memory_order_relaxed);
    struct shm_place *place = &rank->places[idx];
    atomic_store_explicit(&place->step, step, memory_order_relaxed);
    for (size_t i = 0; i < SHM_PHASE_WORDS; i++)
        atomic_store_explicit(&place->phase[i], words[i], memory_order_relaxed);
    atomic_store_explicit(&rank->place_idx, idx, memory_order_release);
}

struct shm_where shm_where_is(const struct shm_rank *rank, const char *before)
{
    struct shm_where where = {""};
    char phase[COMM_PHASE_NBYTES];
    uint64_t words[SHM_PHASE_WORDS];
    uint32_t idx = atomic_load_explicit(&rank->place_idx, memory_order_acquire) & 1;
    const struct shm_place *place = &rank->places[idx];
    for (size_t i = 0; i < SHM_PHASE_WORDS; i++)
        words[i] = atomic_load_explicit(&place->phase[i], memory_order_relaxed);
    memcpy(phase, words, sizeof words);
    phase[sizeof words - 1] = '\0';
    int64_t step = atomic_load_explicit(&place->step, memory_order_relaxed);
    if (*phase)
        snprintf(where.text, sizeof where.text, "%sstep %" PRId64 " (%s)", before, step, phase);
    return where;
}
