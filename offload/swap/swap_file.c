/* The file. Its space is reserved when it is made, so that a full disk shows then; it is locked as
 * long as it is used, so that what a killed run left behind can be told from it; transfers go past
 * the page cache where the file system lets them. */
#include "base/clock.h"
#include "base/host/entry.h"
#include "base/log.h"
#include "base/size.h"
#include "offload/swap/swap_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#define NAME_TRIES   100
#define ZEROS_NBYTES ((size_t)1 << 20)
#define FREED_NS_MAX (1000 * INT64_C(1000000)) /* for the disk to give back what was removed */
#define FREED_NAP_NS (10 * 1000000)

/* ---- space ----------------------------------------------------------------------------------- */

/* Some file systems (ramfs, some FUSE ones) do not tell. */
uint64_t swap_file_system_free(const char *dir)
{
    struct statvfs fs;
    if (statvfs(dir, &fs) != 0 || fs.f_blocks == 0) return UINT64_MAX;
    return (uint64_t)fs.f_bavail * fs.f_frsize;
}

static cz_status too_small(const char *dir, uint64_t nbytes)
{
    char need[24], have[24];
    uint64_t n_free = swap_file_system_free(dir);
    return err_set(CZ_IO, 0,
                   "nvme_path \"%s\": a swap file of %s (%" PRIu64
                   " bytes) does not fit, %s (%" PRIu64 " bytes) are free there",
                   dir, size_human(nbytes, need, sizeof need), nbytes,
                   size_human(n_free, have, sizeof have), n_free);
}

/* What was just removed may take a moment to come back: a killed run's transfers end first. */
static cz_status check_space(const char *dir, uint64_t nbytes)
{
    int64_t since = clock_now_ns();
    while (swap_file_system_free(dir) < nbytes) {
        if (clock_now_ns() - since > FREED_NS_MAX) return too_small(dir, nbytes);
        nanosleep(&(struct timespec){.tv_nsec = FREED_NAP_NS}, NULL);
    }
    return CZ_OK;
}

/* For file systems that cannot reserve. 0 or an errno. */
static int write_zeros(int fd, uint64_t nbytes)
{
    unsigned char *zeros = calloc(1, ZEROS_NBYTES);
    if (!zeros) return ENOMEM;
    int error = 0;
    for (uint64_t at = 0; at < nbytes && error == 0;) {
        size_t n = nbytes - at < ZEROS_NBYTES ? (size_t)(nbytes - at) : ZEROS_NBYTES;
        ssize_t done = pwrite(fd, zeros, n, (off_t)at);
        if (done > 0)
            at += (uint64_t)done;
        else if (done == 0 || errno != EINTR)
            error = done == 0 ? ENOSPC : errno;
    }
    free(zeros);
    if (error == 0 && fdatasync(fd) != 0) error = errno;
    return error;
}

/* Real blocks, not a hole: nothing fails for want of space later. RLIMIT_FSIZE is looked at first,
 * since the kernel ends a process that goes beyond it, by a signal. */
static cz_status preallocate(struct swap_file *f)
{
    struct rlimit limit;
    char need[24], have[24];
    int error;
    if (f->nbytes > INT64_MAX) return too_small(f->dir, f->nbytes);
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        f->nbytes > limit.rlim_cur)
        return err_set(CZ_IO, 0,
                       "nvme_path \"%s\": a swap file of %s is larger than the %s that files of "
                       "this process may have (ulimit -f)",
                       f->dir, size_human(f->nbytes, need, sizeof need),
                       size_human((size_t)limit.rlim_cur, have, sizeof have));
    do {
        error = fallocate(f->lock_fd, 0, 0, (off_t)f->nbytes) == 0 ? 0 : errno;
    } while (error == EINTR);
    if (error == EOPNOTSUPP || error == ENOSYS || error == EINVAL)
        error = write_zeros(f->lock_fd, f->nbytes);
    if (error == ENOSPC) return too_small(f->dir, f->nbytes);
    if (error != 0)
        return err_set(CZ_IO, error, "swap file %s: cannot be given %" PRIu64 " bytes", f->path,
                       f->nbytes);
    return CZ_OK;
}

/* ---- name and lock --------------------------------------------------------------------------- */

/* A new file under a new name, locked. Without the folder's lock another process may take it for a
 * leftover before this one has locked it: then that process has its lock, or it has no name any
 * more. 0 or an errno. */
static int create_one(struct swap_file *f, int dir_fd)
{
    struct stat info;
    int fd = openat(dir_fd, f->name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) return errno;
    const bool is_taken = flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (!is_taken && fstat(fd, &info) == 0 && info.st_nlink > 0) {
        f->lock_fd = fd;
        return 0;
    }
    if (is_taken) unlinkat(dir_fd, f->name, 0);
    close(fd);
    return EEXIST;
}

/* Names carry a random number; a taken one is not an error, a few tries are enough. */
static cz_status create_named(struct swap_file *f, int dir_fd, int rank)
{
    int error = EEXIST;
    char name[SWAP_NAME_NBYTES];
    for (int i = 0; i < NAME_TRIES && error == EEXIST; i++) {
        free(f->path);
        swap_name_make(name, rank);
        if (asprintf(&f->path, "%s/%s", f->dir, name) < 0) {
            f->path = NULL;
            return err_set(CZ_NOMEM, 0, "no memory for the name of a swap file");
        }
        f->name = strrchr(f->path, '/') + 1;
        error = create_one(f, dir_fd);
    }
    if (error == ENAMETOOLONG)
        return err_set(CZ_INVALID, 0, "nvme_path \"%.200s…\" is longer than the system allows",
                       f->dir);
    if (error == ENOSPC || error == EDQUOT) return too_small(f->dir, f->nbytes);
    if (error != 0)
        return err_set(CZ_IO, error, "nvme_path \"%s\": no swap file can be made there", f->dir);
    return CZ_OK;
}

/* ---- O_DIRECT -------------------------------------------------------------------------------- */

void swap_file_leave_direct(struct swap_file *f)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;
    if (!atomic_exchange(&f->is_direct, false)) return;
    fcntl(f->fd, F_SETFL, fcntl(f->fd, F_GETFL) & ~O_DIRECT);
    if (f->is_source)
        LOGV(LOG_STEP, SUB_SWAP, "%s is read through the page cache", f->path);
    else if (!atomic_flag_test_and_set(&said))
        LOGV(LOG_INFO, SUB_SWAP,
             "nvme_path \"%s\": O_DIRECT is not supported there; swapping uses the page cache",
             f->dir);
}

/* Some file systems take O_DIRECT when a file is opened and refuse it when it is used. Write a
 * block of zeros, which is what the file holds, and read it. */
static int try_transfer(const struct swap_file *f)
{
    void *block;
    if (posix_memalign(&block, SWAP_ALIGN, SWAP_ALIGN) != 0) return ENOMEM;
    memset(block, 0, SWAP_ALIGN);
    int error = pwrite(f->fd, block, SWAP_ALIGN, 0) < 0 || pread(f->fd, block, SWAP_ALIGN, 0) < 0
                    ? errno
                    : 0;
    free(block);
    return error;
}

/* A second opening, for transfers: the first one keeps the lock, and io_uring may hold this one
 * open for a while after a kill. */
static cz_status open_for_transfers(struct swap_file *f, int dir_fd)
{
    atomic_store(&f->is_direct, true);
    f->fd = openat(dir_fd, f->name, O_RDWR | O_DIRECT | O_NOFOLLOW | O_CLOEXEC);
    if (f->fd < 0 && errno == EINVAL) {
        f->fd = openat(dir_fd, f->name, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
        if (f->fd >= 0) swap_file_leave_direct(f);
    }
    if (f->fd < 0) return err_set(CZ_IO, errno, "swap file %s: cannot be opened", f->path);
    return CZ_OK;
}

int swap_file_writeback_error(const struct swap_file *f)
{
    /* Waits for nothing, as nothing is behind the end; reports what the whole file met. */
    int n = sync_file_range(f->fd, (off_t)f->nbytes, 1, SYNC_FILE_RANGE_WAIT_BEFORE);
    return n != 0 && (errno == EIO || errno == ENOSPC || errno == EDQUOT) ? errno : 0;
}

void swap_file_writeback_begin(const struct swap_file *f, uint64_t off, size_t nbytes)
{
    sync_file_range(f->fd, (off_t)off, (off_t)nbytes, SYNC_FILE_RANGE_WRITE);
}

/* ---- open and close -------------------------------------------------------------------------- */

/* Files that have a name: swap_remove_files() removes them all. The lock is held while a name comes
 * or goes. */
static pthread_mutex_t named_lock = PTHREAD_MUTEX_INITIALIZER;
static struct swap_file *open_files;

cz_status swap_file_open(struct swap_file *f, const char *dir, int rank, uint64_t nbytes)
{
    memset(f, 0, sizeof *f);
    f->fd = f->lock_fd = -1;
    f->nbytes = nbytes;
    f->generation = entry_generation();
    TRY(swap_folder_resolve(dir, &f->dir));
    pthread_mutex_lock(&named_lock);
    f->next = open_files;
    open_files = f;
    int dir_fd;
    bool is_locked;
    cz_status st = swap_folder_make(f->dir, &dir_fd, &is_locked);
    if (st == CZ_OK) {
        if (is_locked) swap_folder_reclaim(dir_fd, f->dir);
        st = create_named(f, dir_fd, rank);
        if (st == CZ_OK) st = open_for_transfers(f, dir_fd);
        swap_folder_unlock(dir_fd);
    }
    pthread_mutex_unlock(&named_lock);
    TRY(st);
    TRY(check_space(f->dir, nbytes));
    TRY(preallocate(f));
    if (nbytes > 0 && try_transfer(f) == EINVAL) swap_file_leave_direct(f);
    return CZ_OK;
}

/* With named_lock. The name goes unless it has been given to another file meanwhile, or the process
 * is a forked child and the file is its parent's. */
static void remove_name(const struct swap_file *f)
{
    if (f->generation != entry_generation()) return;
    struct stat own, named;
    bool is_locked;
    int dir_fd = f->dir ? swap_folder_lock(f->dir, &is_locked) : -1;
    if (dir_fd < 0) return;
    if (f->lock_fd >= 0 && fstat(f->lock_fd, &own) == 0 &&
        fstatat(dir_fd, f->name, &named, AT_SYMLINK_NOFOLLOW) == 0 && own.st_ino == named.st_ino &&
        own.st_dev == named.st_dev)
        unlinkat(dir_fd, f->name, 0);
    if (is_locked) swap_folder_leave(f->dir);
    swap_folder_unlock(dir_fd);
}

void swap_remove_files(void)
{
    pthread_mutex_lock(&named_lock);
    for (const struct swap_file *f = open_files; f; f = f->next) remove_name(f);
    pthread_mutex_unlock(&named_lock);
}

void swap_file_close(struct swap_file *f)
{
    pthread_mutex_lock(&named_lock);
    remove_name(f);
    struct swap_file **at = &open_files;
    while (*at && *at != f) at = &(*at)->next;
    if (*at) *at = f->next;
    pthread_mutex_unlock(&named_lock);
    if (f->fd >= 0) close(f->fd);
    if (f->lock_fd >= 0) close(f->lock_fd);
    free(f->path);
    free(f->dir);
    f->fd = f->lock_fd = -1;
    f->path = f->dir = NULL;
}
