/* Disks that fail on demand: the system calls through which czero writes, replaced in this test.
 *
 * Include it in the one .c file of a test program. What the program links statically (czero_static)
 * then calls the functions below instead of the C library's; they do the real thing unless told
 * otherwise. Children of fork() inherit the plan and continue by themselves.
 *
 *   faults_plan(FAULT_PWRITE, 3, EIO);    the fourth pwrite from now fails, later ones work
 *   faults_plan(FAULT_FSYNC, 0, ENOSPC);  the next fsync fails
 *   faults_plan(FAULT_RENAME, 1, FAULT_KILL);  SIGKILL instead of the second rename
 *   faults_disk_full(1 << 20);            pwrites beyond a MiB in all: short ones, then ENOSPC
 *   faults_short_writes(7);               every pwrite moves a random part, at least 1 byte
 *   faults_clear();                       a healthy disk; counters restart
 *   faults_count(FAULT_ANY)               calls since the last clear: how many moments there are
 *
 * FAULT_ANY counts every kind of call, so a loop over [0, count) fails, or kills, at every moment.
 * Threads: calls may come from any; plans are set while nothing else runs. */
#ifndef CZ_TESTS_FAULTS_H
#define CZ_TESTS_FAULTS_H

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

enum fault_call {
    FAULT_PWRITE = 0,
    FAULT_FSYNC,
    FAULT_RENAME,  /* rename */
    FAULT_LINK,    /* linkat: a nameless file gets a name */
    FAULT_RESERVE, /* fallocate */
    FAULT_UNLINK,
    FAULT_ANY,
    FAULT_COUNT
};

#define FAULT_KILL (-1) /* in place of an errno: SIGKILL to this process, before the call acts */

static struct {
    atomic_long n_calls[FAULT_COUNT];
    atomic_long at[FAULT_COUNT]; /* which call fails; -1: none */
    int error[FAULT_COUNT];
    atomic_llong room;           /* bytes until the disk is full; negative: endless */
    _Atomic uint32_t short_seed; /* 0: whole writes */
} faults = {.at = {-1, -1, -1, -1, -1, -1, -1}, .room = -1};

static inline void faults_clear(void)
{
    for (int c = 0; c < FAULT_COUNT; c++) {
        atomic_store(&faults.n_calls[c], 0);
        atomic_store(&faults.at[c], -1);
    }
    atomic_store(&faults.room, -1);
    atomic_store(&faults.short_seed, 0);
}

/* Call number `nth` from now (0: the next one) fails with `error`, or kills. */
static inline void faults_plan(enum fault_call call, long nth, int error)
{
    faults.error[call] = error;
    atomic_store(&faults.at[call], atomic_load(&faults.n_calls[call]) + nth);
}

static inline void faults_disk_full(long long nbytes)
{
    atomic_store(&faults.room, nbytes);
}

static inline void faults_short_writes(uint32_t seed)
{
    atomic_store(&faults.short_seed, seed | 1);
}

static inline long faults_count(enum fault_call call)
{
    return atomic_load(&faults.n_calls[call]);
}

static inline int faults_one(enum fault_call call)
{
    if (atomic_fetch_add(&faults.n_calls[call], 1) != atomic_load(&faults.at[call])) return 0;
    if (faults.error[call] == FAULT_KILL) kill(getpid(), SIGKILL);
    return faults.error[call];
}

/* Whether this call has to fail; errno is then set. */
static inline int faults_hit(enum fault_call call)
{
    int any = faults_one(FAULT_ANY), own = faults_one(call);
    if (any || own) errno = any ? any : own;
    return any || own;
}

/* What a short or full disk lets through of n bytes; negative: nothing, errno is set. */
static inline ssize_t faults_let(size_t n)
{
    uint32_t seed = atomic_load(&faults.short_seed);
    if (seed != 0 && n > 1) {
        seed = seed * 1664525u + 1013904223u;
        atomic_store(&faults.short_seed, seed | 1);
        n = 1 + (size_t)(seed >> 4) % n;
    }
    long long room = atomic_load(&faults.room), part;
    do {
        if (room < 0) return (ssize_t)n;
        part = (long long)n < room ? (long long)n : room;
    } while (!atomic_compare_exchange_weak(&faults.room, &room, room - part));
    if (part == 0) errno = ENOSPC;
    return part == 0 ? -1 : (ssize_t)part;
}

ssize_t pwrite(int fd, const void *src, size_t n, off_t off)
{
    if (faults_hit(FAULT_PWRITE)) return -1;
    ssize_t part = n > 0 ? faults_let(n) : 0;
    return part < 0 ? part : (ssize_t)syscall(SYS_pwrite64, fd, src, (size_t)part, off);
}

int fsync(int fd)
{
    return faults_hit(FAULT_FSYNC) ? -1 : (int)syscall(SYS_fsync, fd);
}

int rename(const char *from, const char *to)
{
    if (faults_hit(FAULT_RENAME)) return -1;
    return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

int renameat(int from_dir, const char *from, int to_dir, const char *to)
{
    if (faults_hit(FAULT_RENAME)) return -1;
    return (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, 0);
}

int linkat(int from_dir, const char *from, int to_dir, const char *to, int flags)
{
    if (faults_hit(FAULT_LINK)) return -1;
    return (int)syscall(SYS_linkat, from_dir, from, to_dir, to, flags);
}

int fallocate(int fd, int mode, off_t off, off_t n)
{
    if (faults_hit(FAULT_RESERVE)) return -1;
    return (int)syscall(SYS_fallocate, fd, mode, off, n);
}

int unlink(const char *path)
{
    return faults_hit(FAULT_UNLINK) ? -1 : (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}

int unlinkat(int dir, const char *path, int flags)
{
    return faults_hit(FAULT_UNLINK) ? -1 : (int)syscall(SYS_unlinkat, dir, path, flags);
}

#endif
