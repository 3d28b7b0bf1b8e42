/* Whether page-locking can be seen at all. */
#ifndef CZ_TESTS_SUPPORT_MLOCK_H
#define CZ_TESTS_SUPPORT_MLOCK_H

#include "offload/host_memory.h"

#include <sys/mman.h>

/* Sanitizers make mlock() a call that does nothing. */
static inline bool mlock_is_real(void)
{
    const size_t page = 4096;
    void *p = mmap(NULL, page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    size_t before = host_memory_locked();
    bool is_real = mlock(p, page) != 0 || host_memory_locked() > before;
    munmap(p, page);
    return is_real;
}

#endif
