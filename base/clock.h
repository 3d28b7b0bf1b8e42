/* Time. */
#ifndef CZ_BASE_CLOCK_H
#define CZ_BASE_CLOCK_H

#include "base/compiler.h"

#include <time.h>

/* Nanoseconds of the monotonic clock. */
static inline int64_t clock_now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

#endif
