/* Claims of systems that this one is not: a file system that reserves nothing is written full,
 * through short and interrupted writes; one that refuses O_DIRECT when a file is opened, or at the
 * first transfer, is used through the page cache, and nothing else makes it so; a failure while the
 * file is made leaves neither file nor descriptor; descriptor 0 is one like others; without /proc
 * transfers run all the same. */
#include "tests/unit/offload/swap_rig.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/syscall.h>

/* ---- system calls in place of the C library's ------------------------------------------------ */

enum { NONE = -1 };

static struct {
    int fallocate_error, direct_error; /* errno, 0: works */
    int pread_error, pwrite_error;     /* of a first transfer: one aligned block */
    bool short_writes, no_proc, no_lists;
    int n_opened, zero_at; /* which opening gets descriptor 0 */
    int n_interrupted;
} odd = {.zero_at = NONE};

static int open_now(int dir, const char *path, int flags, mode_t mode)
{
    if (odd.n_opened++ == odd.zero_at) close(0); /* the lowest is taken */
    int fd = (int)syscall(SYS_openat, dir, path, flags, mode);
    if (fd == 0) errno = EINVAL; /* of something else, before */
    return fd;
}

int openat(int dir, const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
    va_end(args);
    if ((flags & O_DIRECT) && odd.direct_error) {
        errno = odd.direct_error;
        return -1;
    }
    return open_now(dir, path, flags, mode);
}

int open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
    va_end(args);
    return open_now(AT_FDCWD, path, flags, mode);
}

int fallocate(int fd, int mode, off_t off, off_t nbytes)
{
    if (odd.fallocate_error) {
        errno = odd.fallocate_error;
        return -1;
    }
    return (int)syscall(SYS_fallocate, fd, mode, off, nbytes);
}

static bool is_first_transfer(const void *buf, size_t nbytes)
{
    return nbytes == SWAP_ALIGN && (uintptr_t)buf > SWAP_ALIGN && (uintptr_t)buf % SWAP_ALIGN == 0;
}

ssize_t pwrite(int fd, const void *buf, size_t nbytes, off_t off)
{
    if (odd.pwrite_error && is_first_transfer(buf, nbytes)) {
        errno = odd.pwrite_error;
        return -1;
    }
    if (odd.short_writes && nbytes > SWAP_ALIGN) {
        if (odd.n_interrupted++ % 2 == 0) {
            errno = EINTR;
            return -1;
        }
        nbytes = nbytes / 2 / 512 * 512;
    }
    return (ssize_t)syscall(SYS_pwrite64, fd, buf, nbytes, off);
}

ssize_t pread(int fd, void *buf, size_t nbytes, off_t off)
{
    if (odd.pread_error && is_first_transfer(buf, nbytes)) {
        errno = odd.pread_error;
        return -1;
    }
    return (ssize_t)syscall(SYS_pread64, fd, buf, nbytes, off);
}

DIR *fdopendir(int fd)
{
    static DIR *(*real)(int);
    if (!real) {
        void *found = dlsym(RTLD_NEXT, "fdopendir");
        memcpy(&real, &found, sizeof real);
    }
    if (odd.no_lists) {
        errno = ENOMEM;
        return NULL;
    }
    return real(fd);
}

DIR *opendir(const char *path)
{
    if (odd.no_proc && strncmp(path, "/proc", 5) == 0) {
        errno = ENOENT;
        return NULL;
    }
    int fd = open_now(AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    DIR *entries = fd < 0 ? NULL : fdopendir(fd);
    if (fd >= 0 && !entries) close(fd);
    return entries;
}

/* ---- cases ----------------------------------------------------------------------------------- */

static const struct swap_way threads = {SWAP_ENGINE_THREADS, false};

static void round_trip(struct swap *s, size_t nbytes)
{
    unsigned char *src = swap_rig_memory(nbytes), *dst = swap_rig_memory(nbytes);
    swap_rig_fill(src, nbytes, 5);
    ck_ok(swap_write(s, 0, nbytes, src));
    ck_ok(swap_read(s, 0, nbytes, dst));
    ck_assert_mem_eq(src, dst, nbytes);
    free(src);
    free(dst);
}

START_TEST(what_cannot_be_reserved_is_written)
{
    static const int errors[] = {EOPNOTSUPP, ENOSYS, EINVAL};
    const size_t nbytes = ((size_t)5 << 20) / 2; /* two pieces and a half */
    const char *dir = test_tmp_make();
    for (int i = 0; i < 6; i++) {
        struct stat file;
        odd.fallocate_error = errors[i % 3];
        odd.short_writes = i >= 3;
        struct swap *s = swap_rig_open(dir, &threads, nbytes, 0, 0);
        odd.fallocate_error = 0;
        odd.short_writes = false;
        ck_assert_int_eq(stat(swap_path(s), &file), 0);
        ck_assert_uint_eq((size_t)file.st_size, nbytes);
        ck_assert_uint_ge((size_t)file.st_blocks * 512, nbytes); /* no hole */
        round_trip(s, 65536);
        swap_close(s);
    }
    ck_assert_int_eq(swap_rig_entries(dir), 0);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(what_cannot_be_given_leaves_nothing)
{
    static const struct {
        int error;
        const char *says;
    } cases[] = {{EIO, "cannot be given"}, {ENOSPC, "nvme_path"}, {EFBIG, "cannot be given"}};
    const char *dir = test_tmp_make();
    for (size_t i = 0; i < CZ_ARRAY_LEN(cases); i++) {
        const struct swap_options o = {.dir = dir, .nbytes = 65536, .engine = SWAP_ENGINE_THREADS};
        struct swap *s;
        odd.fallocate_error = cases[i].error;
        ck_fails(swap_open(&o, &s), CZ_IO);
        odd.fallocate_error = 0;
        ck_assert_msg(strstr(cz_last_error(), cases[i].says), "%s", cz_last_error());
        ck_assert_int_eq(swap_rig_entries(dir), 0);
    }
    test_tmp_remove(dir);
}
END_TEST

static bool is_cached(const char *dir)
{
    struct swap *s = swap_rig_open(dir, &threads, 65536, 0, 0);
    bool is = strstr(swap_describe(s), "page cache") != NULL;
    ck_assert_int_eq(fcntl(s->file.fd, F_GETFL) & O_DIRECT, is ? 0 : O_DIRECT);
    round_trip(s, 65536);
    swap_close(s);
    return is;
}

START_TEST(direct_transfers_may_be_refused_early_or_late)
{
    const char *dir = test_tmp_make();
    const bool always = is_cached(dir);
    odd.direct_error = EINVAL;
    ck_assert(is_cached(dir));
    odd.direct_error = 0;
    odd.pwrite_error = EINVAL;
    ck_assert(is_cached(dir));
    odd.pwrite_error = 0;
    odd.pread_error = EINVAL;
    ck_assert(is_cached(dir));
    odd.pread_error = EAGAIN; /* says nothing of O_DIRECT */
    ck_assert(is_cached(dir) == always);
    odd.pread_error = 0;
    odd.direct_error = EMFILE;
    struct swap *s;
    const struct swap_options o = {.dir = dir, .nbytes = 65536, .engine = SWAP_ENGINE_THREADS};
    ck_fails(swap_open(&o, &s), CZ_IO);
    odd.direct_error = 0;
    test_tmp_remove(dir);
}
END_TEST

/* Of all that opening and closing opens, each in turn is descriptor 0; and folders that cannot be
 * listed. What stays open, 0 among it, fails the case. */
START_TEST(descriptor_0_is_one_like_others)
{
    const char *dir = test_tmp_make();
    const bool always = is_cached(dir);
    const int in = dup(0);
    for (int k = 0; k < 2; k++) {
        bool was_opened = true;
        for (int nth = 0; was_opened; nth++) {
            odd.n_opened = 0;
            odd.zero_at = nth;
            odd.no_lists = k == 1;
            ck_assert_int_eq(is_cached(dir), always);
            was_opened = odd.n_opened > nth;
            odd.zero_at = NONE;
            odd.no_lists = false;
            ck_assert_msg(!was_opened || fcntl(0, F_GETFD) < 0, "opening %d stays open", nth);
            dup2(in, 0);
        }
    }
    close(in);
    test_tmp_remove(dir);
}
END_TEST

START_TEST(without_proc_threads_run_where_they_may)
{
    const char *dir = test_tmp_make();
    odd.no_proc = true;
    (void)is_cached(dir);
    odd.no_proc = false;
    test_tmp_remove(dir);
}
END_TEST

TEST_MAIN("offload/swap_odd_disks", what_cannot_be_reserved_is_written,
          what_cannot_be_given_leaves_nothing, direct_transfers_may_be_refused_early_or_late,
          descriptor_0_is_one_like_others, without_proc_threads_run_where_they_may)
