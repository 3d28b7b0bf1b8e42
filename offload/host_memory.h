/* host_memory: the host tier: memory near the rank's cores, in huge pages where they are to be had,
 * page-locked where that is asked for and allowed.
 *
 * Life cycle: host_memory_lockable() (before anything is allocated) → host_memory_map() →
 * host_memory_touch() of every array in it → host_memory_lock() → host_memory_unmap(). */
#ifndef CZ_OFFLOAD_HOST_MEMORY_H
#define CZ_OFFLOAD_HOST_MEMORY_H

#include "offload/affinity.h"

CZ_EXTERN_C_BEGIN

struct host_memory {
    unsigned char *base;  /* aligned to 2 MiB */
    size_t nbytes;        /* mapped: a multiple of 2 MiB */
    size_t usable_nbytes; /* as asked for, rounded up to whole pages: what is locked */
    bool is_locked;
    char name[32];
};

/* Bytes that this process may still page-lock: RLIMIT_MEMLOCK less what is locked already (VmLck);
 * SIZE_MAX without a limit or with CAP_IPC_LOCK (which counts only outside user namespaces: root of
 * a rootless container is held to the limit). */
size_t host_memory_lockable(void);

/* What the kernel says is locked now (VmLck of /proc/self/status). */
size_t host_memory_locked(void);

/* Map zeroed anonymous memory, still untouched, on the node of `affinity` if it has one
 * (when that is full, on its neighbours), otherwise wherever it is touched; huge pages advised. A
 * memory policy that the user has set (numactl) is left alone. nbytes 0 is fine. The affinity is
 * not needed afterwards. Errors: CZ_NOMEM with name and size. On error *out is zeroed. */
cz_status host_memory_map(const struct affinity *affinity, const char *name, size_t nbytes,
                          struct host_memory *out);

/* First touch of one array, so that each page is near the thread that will work on it: kernels
 * run over tiles of tile_nbytes, each split evenly over the threads (threads_split). tile_nbytes 0:
 * the whole array is one tile. Contents stay as they are. Call after affinity_bind_threads(). */
void host_memory_touch(void *base, size_t nbytes, size_t tile_nbytes);

/* Page-lock what was asked for (touched first: what was not is faulted in here, by the caller).
 * Errors: CZ_NOMEM, naming RLIMIT_MEMLOCK, the bytes allowed and needed, and what would help;
 * nothing is locked then and the memory works all the same. */
cz_status host_memory_lock(struct host_memory *m);

void host_memory_unmap(struct host_memory *m); /* accepts zeroed; idempotent */

CZ_EXTERN_C_END
#endif
