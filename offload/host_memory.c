/* Mapping, first touch and page-locking of host memory. A page is on the node of the thread that
 * touches it first, so each thread faults in the pages that it will work on. */
#include "offload/affinity/affinity_impl.h"

#include "base/arena.h"
#include "base/host/proc.h"
#include "base/size.h"
#include "base/threads.h"
#include "offload/host_memory.h"

#include <errno.h>
#include <limits.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

static size_t page_nbytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* ---- what may be locked ---------------------------------------------------------------------- */

/* CAP_IPC_LOCK lifts the limit, but the kernel asks for it in the first user namespace: where ids
 * map to themselves. */
static bool may_lock_all(void)
{
    const int cap_ipc_lock = 14;
    unsigned long long inside, outside, n;
    if (!(proc_number("/proc/self/status", "CapEff:", 16) >> cap_ipc_lock & 1)) return false;
    FILE *f = fopen("/proc/self/uid_map", "re");
    if (!f) return true; /* a kernel without user namespaces */
    bool is_whole = fscanf(f, "%llu %llu %llu", &inside, &outside, &n) == 3 && inside == 0 &&
                    outside == 0 && n == UINT_MAX;
    fclose(f);
    return is_whole;
}

size_t host_memory_locked(void)
{
    return proc_nbytes("/proc/self/status", "VmLck:");
}

size_t host_memory_lockable(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return 0;
    if (limit.rlim_cur == RLIM_INFINITY || may_lock_all()) return SIZE_MAX;
    size_t locked = host_memory_locked(), whole = limit.rlim_cur / page_nbytes() * page_nbytes();
    return locked < whole ? whole - locked : 0;
}

/* ---- mapping --------------------------------------------------------------------------------- */

cz_status host_memory_map(const struct affinity *affinity, const char *name, size_t nbytes,
                          struct host_memory *out)
{
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "%s", name);
    if (nbytes == 0) return CZ_OK;
    size_t mapped = size_round_up(nbytes, ARENA_PAGE_BYTES);
    errno = ENOMEM; /* also what a size beyond the address space means */
    unsigned char *base = mapped < nbytes ? NULL : arena_map(mapped);
    if (!base) {
        int error = errno;
        char human[24];
        memset(out, 0, sizeof *out);
        return err_set(CZ_NOMEM, error, "host memory for %s: cannot map %s", name,
                       size_human(nbytes, human, sizeof human));
    }
    if (affinity) affinity_bind_memory(affinity, base, mapped);
    out->base = base;
    out->nbytes = mapped;
    out->usable_nbytes = size_round_up(nbytes, page_nbytes());
    return CZ_OK;
}

void host_memory_unmap(struct host_memory *m)
{
    if (m->base) munmap(m->base, m->nbytes); /* which unlocks it, too */
    memset(m, 0, sizeof *m);
}

/* ---- first touch ----------------------------------------------------------------------------- */

/* Fault in the pages of [begin, end) from this thread: in one call, or by writing to each. */
static void fault_in(unsigned char *begin, unsigned char *end, size_t page)
{
    uintptr_t first = (uintptr_t)begin / page * page;
    if (begin >= end) return;
    if (madvise((unsigned char *)first, (uintptr_t)end - first, MADV_POPULATE_WRITE) == 0) return;
    for (volatile unsigned char *p = begin; p < end;) {
        *p = *p;
        p = (unsigned char *)(((uintptr_t)p / page + 1) * page);
    }
}

/* A page that two threads share goes to the one that works on its end: pieces are cut at pages. */
static void touch_tile(unsigned char *base, size_t nbytes, size_t page, int n_parts, int part)
{
    uintptr_t at = (uintptr_t)base, lead = at % page;
    size_t begin, end;
    threads_split(nbytes + lead, page, n_parts, part, &begin, &end);
    begin = begin < lead ? 0 : begin - lead;
    end = end < lead ? 0 : end - lead;
    fault_in(base + begin, base + end, page);
}

/* Parts of a tile as kernels will cut it (threads_split()), by the threads that will work on them.
 */
void host_memory_touch(void *base, size_t nbytes, size_t tile_nbytes)
{
    const size_t page = page_nbytes();
    const int n_parts = threads_count();
    unsigned char *array = base;
    if (tile_nbytes == 0) tile_nbytes = nbytes;
#pragma omp parallel for schedule(static, 1) if (nbytes > ARENA_PAGE_BYTES)
    for (int part = 0; part < n_parts; part++)
        for (size_t off = 0; off < nbytes; off += tile_nbytes) {
            size_t left = nbytes - off;
            touch_tile(array + off, left < tile_nbytes ? left : tile_nbytes, page, n_parts, part);
        }
}

/* ---- locking --------------------------------------------------------------------------------- */

/* Names the limit, what is used of it and the command that would lift it. */
static cz_status refuse(const struct host_memory *m, int error)
{
    struct rlimit limit = {.rlim_cur = 0};
    char need[24], may[24];
    size_human(m->usable_nbytes, need, sizeof need);
    getrlimit(RLIMIT_MEMLOCK, &limit);
    if (m->usable_nbytes <= host_memory_lockable())
        return err_set(CZ_NOMEM, error,
                       "host memory for %s: cannot page-lock %s although "
                       "RLIMIT_MEMLOCK allows it; pin_memory false does without",
                       m->name, need);
    size_human(limit.rlim_cur, may, sizeof may);
    size_t locked = host_memory_locked();
    return err_set(CZ_NOMEM, 0,
                   "host memory for %s: page-locking %s (%zu bytes) exceeds RLIMIT_MEMLOCK, %s, of "
                   "which %zu bytes are in use; `ulimit -l %zu` (in KiB; the limits of a container "
                   "or service are set where it is started) would allow it, pin_memory false does "
                   "without",
                   m->name, need, m->usable_nbytes, may, locked,
                   (locked + m->usable_nbytes + 1023) / 1024);
}

cz_status host_memory_lock(struct host_memory *m)
{
    if (m->is_locked || m->usable_nbytes == 0) return CZ_OK;
    if (m->usable_nbytes > host_memory_lockable()) return refuse(m, 0);
    if (mlock(m->base, m->usable_nbytes) != 0) {
        int error = errno;
        munlock(m->base, m->usable_nbytes); /* the part that may have come through */
        return refuse(m, error);
    }
    m->is_locked = true;
    return CZ_OK;
}
