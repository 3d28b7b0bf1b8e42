/* Preloaded into a command: counts its calls that change or read files, and at the one with the
 * number FAIL_AT kills the process (FAIL_HOW=kill) or fails it with an errno (FAIL_HOW=5, EIO; 28,
 * ENOSPC). FAIL_COUNT names a file to which the number of calls is written at the end. Threads
 * count together. FAIL_READS=1 counts reads (not of /proc), else writes and changes of names. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/vfs.h>
#include <unistd.h>

static atomic_long n_calls;
static long at, how, is_on, counts_reads;

__attribute__((constructor)) static void begin(void)
{
    const char *a = getenv("FAIL_AT"), *h = getenv("FAIL_HOW"), *r = getenv("FAIL_READS");
    at = a ? atol(a) : 0;
    how = h && *h != 'k' ? atol(h) : 0;
    counts_reads = r && *r == '1';
    is_on = 1;
}

__attribute__((destructor)) static void end(void)
{
    const char *path = getenv("FAIL_COUNT");
    FILE *f = path ? fopen(path, "w") : NULL;
    if (f) fprintf(f, "%ld\n", (long)n_calls), fclose(f);
}

/* Whether this call fails; errno is set then. */
static int fails(long is_read)
{
    if (!is_on || is_read != counts_reads) return 0;
    if (atomic_fetch_add(&n_calls, 1) + 1 != at) return 0;
    if (how == 0) kill(getpid(), SIGKILL);
    errno = (int)how;
    return 1;
}

static int is_file(int fd)
{
    struct stat info;
    return fstat(fd, &info) == 0 && (S_ISREG(info.st_mode) || S_ISDIR(info.st_mode));
}

/* Not what the kernel tells of itself: no disk fails to give it. */
static int is_on_disk(int fd)
{
    struct statfs fs;
    return is_file(fd) && fstatfs(fd, &fs) == 0 && fs.f_type != 0x9fa0 && /* proc */
           fs.f_type != 0x62656572 &&                                     /* sysfs */
           fs.f_type != 0x63677270 && fs.f_type != 0x27e0eb;              /* control groups */
}

#define REAL(type, name, ...)                                                                      \
    static type (*real)(__VA_ARGS__);                                                              \
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, #name)

#define ON_FD(type, name, params, args, ...)                                                       \
    type name params                                                                               \
    {                                                                                              \
        REAL(type, name, __VA_ARGS__);                                                             \
        if (is_file(fd) && fails(0)) return -1;                                                    \
        return real args;                                                                          \
    }
#define READS(name, params, args, ...)                                                             \
    ssize_t name params                                                                            \
    {                                                                                              \
        REAL(ssize_t, name, __VA_ARGS__);                                                          \
        if (is_on_disk(fd) && fails(1)) return -1;                                                 \
        return real args;                                                                          \
    }
#define ON_NAME(name, params, args, ...)                                                           \
    int name params                                                                                \
    {                                                                                              \
        REAL(int, name, __VA_ARGS__);                                                              \
        if (fails(0)) return -1;                                                                   \
        return real args;                                                                          \
    }

ON_FD(ssize_t, write, (int fd, const void *b, size_t n), (fd, b, n), int, const void *, size_t)
ON_FD(ssize_t, pwrite, (int fd, const void *b, size_t n, off_t o), (fd, b, n, o), int, const void *,
      size_t, off_t)
ON_FD(ssize_t, pwrite64, (int fd, const void *b, size_t n, off_t o), (fd, b, n, o), int,
      const void *, size_t, off_t)
ON_FD(int, fsync, (int fd), (fd), int)
ON_FD(int, ftruncate, (int fd, off_t o), (fd, o), int, off_t)
ON_FD(int, ftruncate64, (int fd, off_t o), (fd, o), int, off_t)
READS(read, (int fd, void *b, size_t n), (fd, b, n), int, void *, size_t)
READS(pread, (int fd, void *b, size_t n, off_t o), (fd, b, n, o), int, void *, size_t, off_t)
READS(pread64, (int fd, void *b, size_t n, off_t o), (fd, b, n, o), int, void *, size_t, off_t)
ON_NAME(mkdir, (const char *p, mode_t m), (p, m), const char *, mode_t)
ON_NAME(mkdirat, (int d, const char *p, mode_t m), (d, p, m), int, const char *, mode_t)
ON_NAME(rename, (const char *a, const char *b), (a, b), const char *, const char *)
ON_NAME(renameat, (int c, const char *a, int d, const char *b), (c, a, d, b), int, const char *,
        int, const char *)
ON_NAME(renameat2, (int c, const char *a, int d, const char *b, unsigned f), (c, a, d, b, f), int,
        const char *, int, const char *, unsigned)
ON_NAME(linkat, (int c, const char *a, int d, const char *b, int f), (c, a, d, b, f), int,
        const char *, int, const char *, int)
ON_NAME(unlink, (const char *p), (p), const char *)
ON_NAME(unlinkat, (int d, const char *p, int f), (d, p, f), int, const char *, int)
ON_NAME(rmdir, (const char *p), (p), const char *)
