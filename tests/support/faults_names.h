/* More of faults.h: the calls that make, open, exchange and remove names. Include it instead, in
 * the one .c file of a test program. They count as FAULT_ANY; renameat2 also as FAULT_RENAME,
 * unlinkat as FAULT_UNLINK. */
#ifndef CZ_TESTS_FAULTS_NAMES_H
#define CZ_TESTS_FAULTS_NAMES_H

#include "tests/support/faults.h"

#include <stdarg.h>
#include <stdbool.h>
#include <sys/stat.h>

static bool faults_no_exchange; /* a file system without RENAME_EXCHANGE */

static inline int faults_any(void)
{
    int any = faults_one(FAULT_ANY);
    if (any) errno = any;
    return any;
}

int open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(args, mode_t) : 0;
    va_end(args);
    return faults_any() ? -1 : (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

int openat(int dir, const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(args, mode_t) : 0;
    va_end(args);
    return faults_any() ? -1 : (int)syscall(SYS_openat, dir, path, flags, mode);
}

int mkdir(const char *path, mode_t mode)
{
    return faults_any() ? -1 : (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}

int mkdirat(int dir, const char *path, mode_t mode)
{
    return faults_any() ? -1 : (int)syscall(SYS_mkdirat, dir, path, mode);
}

int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags)
{
    if (faults_hit(FAULT_RENAME)) return -1;
    if ((flags & RENAME_EXCHANGE) && faults_no_exchange) {
        errno = EINVAL;
        return -1;
    }
    return (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, flags);
}

#endif
