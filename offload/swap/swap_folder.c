/* The folder of swap files. Opening and closing one holds the folder's lock; a swap file of this
 * user that no process has locked was left by a run that was killed. Folders that czero made hold
 * an empty file, SWAP_MARK: the run that removes the last swap file removes them too.
 *
 * Any user with read access to the folder can hold its lock for as long as they like. So a run
 * waits for it for a moment only, and works without: leftovers and folders then stay for a later
 * run. */
#include "base/clock.h"
#include "base/log.h"
#include "offload/swap/swap_impl.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define TRIES_MAX   100 /* another run may remove the folder that we are about to use */
#define LOCK_NS_MAX (500 * INT64_C(1000000)) /* other ranks hold it for milliseconds */
#define LOCK_NAP_NS (5 * 1000000)

/* ---- named ----------------------------------------------------------------------------------- */

/* One more part of a path that is free of links so far. False: too long. */
static bool resolve_part(char path[PATH_MAX], const char *part, size_t n)
{
    char resolved[PATH_MAX];
    size_t have = strlen(path);
    if (n == 0 || (n == 1 && part[0] == '.')) return true;
    if (n == 2 && part[0] == '.' && part[1] == '.') {
        char *slash = strrchr(path, '/');
        if (slash) *slash = '\0';
        return true;
    }
    if (have + 1 + n >= PATH_MAX) return false;
    snprintf(path + have, PATH_MAX - have, "/%.*s", (int)n, part);
    if (realpath(path, resolved)) memcpy(path, resolved, strlen(resolved) + 1);
    return true;
}

/* Part by part, because realpath() wants all of a path to exist: what is missing is taken as it is
 * named. */
cz_status swap_folder_resolve(const char *dir, char **out)
{
    char path[PATH_MAX] = "";
    *out = NULL;
    if (!dir || !dir[0])
        return err_set(CZ_INVALID, 0, "nvme_path is empty: it names the folder for swap files");
    if (dir[0] != '/' && !getcwd(path, sizeof path))
        return err_set(CZ_IO, errno, "nvme_path \"%s\": the current folder has no name", dir);
    if (!strcmp(path, "/")) path[0] = '\0';
    for (const char *part = dir;;) {
        size_t n = strcspn(part, "/");
        if (!resolve_part(path, part, n))
            return err_set(CZ_INVALID, 0, "nvme_path \"%.200s…\" is longer than the system allows",
                           dir);
        if (!part[n]) break;
        part += n + 1;
    }
    *out = strdup(path[0] ? path : "/");
    return *out ? CZ_OK : err_set(CZ_NOMEM, 0, "no memory for the name of a swap file");
}

/* ---- made and locked ------------------------------------------------------------------------- */

static cz_status folder_error(const char *dir, const char *part, int error)
{
    if (error == ENAMETOOLONG)
        return err_set(CZ_INVALID, 0, "nvme_path \"%.200s…\" is longer than the system allows",
                       dir);
    if (error == ENOTDIR || error == EEXIST)
        return err_set(CZ_INVALID, 0, "nvme_path \"%s\": \"%s\" is a file, not a folder", dir,
                       part);
    return err_set(CZ_IO, error, "nvme_path \"%s\": the folder \"%s\" cannot be used", dir, part);
}

static void mark_path(char out[PATH_MAX + 32], const char *dir)
{
    snprintf(out, PATH_MAX + 32, "%s/" SWAP_MARK, dir);
}

/* Of a folder that czero made for this user: both are the user's, and neither is a link. */
static bool has_mark(const char *dir)
{
    char path[PATH_MAX + 32];
    struct stat mark, folder;
    mark_path(path, dir);
    return lstat(path, &mark) == 0 && S_ISREG(mark.st_mode) && mark.st_uid == geteuid() &&
           lstat(dir, &folder) == 0 && S_ISDIR(folder.st_mode) && folder.st_uid == geteuid();
}

/* 0 or an errno. Something else of that name is left as it is: then the folder has no mark. */
static int put_mark(const char *dir)
{
    char path[PATH_MAX + 32];
    mark_path(path, dir);
    int fd = open(path, O_CREAT | O_EXCL | O_NOFOLLOW | O_WRONLY | O_CLOEXEC, 0600);
    if (fd < 0) return errno == EEXIST ? 0 : errno;
    close(fd);
    return 0;
}

/* One folder; its parent is there. 0 or an errno. */
static int make_one(const char *dir)
{
    struct stat info;
    if (stat(dir, &info) == 0) return S_ISDIR(info.st_mode) ? 0 : ENOTDIR;
    if (mkdir(dir, 0777) != 0) return errno == EEXIST ? 0 : errno;
    int error = put_mark(dir);
    if (error != 0) rmdir(dir);
    return error;
}

/* The folder and all above it. 0 or an errno; `part` (PATH_MAX) then names where, and what was made
 * on the way goes again. */
static int make_all(const char *dir, char *part)
{
    size_t n = strlen(dir);
    part[0] = '\0';
    if (n >= PATH_MAX) return ENAMETOOLONG;
    for (size_t i = 1; i <= n; i++) {
        if (dir[i] != '/' && dir[i] != '\0') continue;
        memcpy(part, dir, i);
        part[i] = '\0';
        int error = make_one(part);
        if (error != 0) {
            char above[PATH_MAX];
            const char *slash = strrchr(part, '/');
            snprintf(above, sizeof above, "%.*s", slash ? (int)(slash - part) : 0, part);
            if (above[0]) swap_folder_leave(above);
            return error;
        }
    }
    return 0;
}

/* False: another process has it and does not give it back in time. A process that was kept waiting
 * once waits no more until it has had the lock again, so that all of its files together take no
 * longer than one. File systems without such locks are no reason to do without: names are tried
 * again where it matters. */
static bool take_lock(int fd, const char *dir)
{
    static _Atomic bool is_kept_waiting;
    const int64_t until = clock_now_ns() + (is_kept_waiting ? 0 : LOCK_NS_MAX);
    for (;;) {
        const bool is_held = flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
        if (!is_held) is_kept_waiting = false;
        if (!is_held) return true;
        if (clock_now_ns() >= until) break;
        nanosleep(&(struct timespec){.tv_nsec = LOCK_NAP_NS}, NULL);
    }
    if (!atomic_exchange(&is_kept_waiting, true))
        LOGV(LOG_WARN, SUB_SWAP,
             "nvme_path \"%s\": another process keeps the folder locked; the run continues, but "
             "what "
             "killed runs left there is not removed",
             dir);
    return false;
}

/* While this waited for the lock another run may have removed the folder and made a new one: then
 * the path does not name what is open. */
int swap_folder_lock(const char *dir, bool *is_locked)
{
    struct stat here, there;
    *is_locked = false;
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return -1;
    *is_locked = take_lock(fd, dir);
    if (fstat(fd, &here) == 0 && stat(dir, &there) == 0 && here.st_ino == there.st_ino &&
        here.st_dev == there.st_dev)
        return fd;
    close(fd);
    *is_locked = false;
    errno = ENOENT;
    return -1;
}

/* Between making and locking it, another run that ends may remove the folder: then once more. */
cz_status swap_folder_make(const char *dir, int *dir_fd, bool *is_locked)
{
    char part[PATH_MAX];
    int error = ENOENT;
    for (int i = 0; i < TRIES_MAX && error == ENOENT; i++) {
        error = make_all(dir, part);
        if (error != 0) continue;
        *dir_fd = swap_folder_lock(dir, is_locked);
        if (*dir_fd >= 0) return CZ_OK;
        error = errno;
    }
    return folder_error(dir, part, error);
}

void swap_folder_unlock(int dir_fd)
{
    if (dir_fd >= 0) close(dir_fd);
}

/* ---- leftovers ------------------------------------------------------------------------------- */

/* Open a swap file of this user that no process holds; negative: it is not one. Its lock is ours
 * until close(). The lock tells for all processes under this kernel, in whatever container. Network
 * file systems may keep locks to each host: there, other hosts' files are left alone. */
static int open_leftover(int dir_fd, const char *name, struct stat *info)
{
    if (!swap_name_is_ours(name)) return -1;
    if (!swap_name_is_of_this_host(name) && !swap_folder_is_local(dir_fd)) return -1;
    int fd = openat(dir_fd, name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return -1;
    if (fstat(fd, info) == 0 && S_ISREG(info->st_mode) && info->st_uid == geteuid() &&
        info->st_nlink == 1 && flock(fd, LOCK_EX | LOCK_NB) == 0)
        return fd;
    close(fd);
    return -1;
}

static DIR *list(int dir_fd)
{
    int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = fd < 0 ? NULL : fdopendir(fd);
    if (fd >= 0 && !entries) close(fd);
    return entries;
}

void swap_folder_reclaim(int dir_fd, const char *dir)
{
    DIR *entries = list(dir_fd);
    if (!entries) return;
    for (struct dirent *e; (e = readdir(entries));) {
        struct stat info;
        int fd = open_leftover(dir_fd, e->d_name, &info);
        if (fd < 0) continue;
        if (unlinkat(dir_fd, e->d_name, 0) == 0)
            LOGV(LOG_INFO, SUB_SWAP, "removed %s/%s, the swap file of a run that was killed", dir,
                 e->d_name);
        close(fd);
    }
    closedir(entries);
}

uint64_t swap_folder_leftovers(int dir_fd)
{
    DIR *entries = list(dir_fd);
    uint64_t nbytes = 0;
    if (!entries) return 0;
    for (struct dirent *e; (e = readdir(entries));) {
        struct stat info;
        int fd = open_leftover(dir_fd, e->d_name, &info);
        if (fd < 0) continue;
        nbytes += (uint64_t)info.st_blocks * 512;
        close(fd);
    }
    closedir(entries);
    return nbytes;
}

/* ---- removed --------------------------------------------------------------------------------- */

struct contents {
    bool has_ours; /* swap files, or folders made for them */
    bool has_other;
};

static struct contents look_into(const char *dir)
{
    struct contents c = {.has_ours = true}; /* nothing is removed that could not be seen */
    DIR *entries = opendir(dir);
    if (!entries) return c;
    c.has_ours = false;
    for (struct dirent *e; (e = readdir(entries));) {
        char inside[NAME_MAX + 32];
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..") || !strcmp(e->d_name, SWAP_MARK))
            continue;
        snprintf(inside, sizeof inside, "%s/" SWAP_MARK, e->d_name);
        if (swap_name_is_ours(e->d_name) || faccessat(dirfd(entries), inside, F_OK, 0) == 0)
            c.has_ours = true;
        else
            c.has_other = true;
    }
    closedir(entries);
    return c;
}

/* A folder that czero made, if nothing else is in it. False: it stays. A user's file in it makes
 * the folder the user's: then only the mark goes. */
static bool remove_one(const char *dir)
{
    char mark[PATH_MAX + 32];
    if (!has_mark(dir)) return false;
    mark_path(mark, dir);
    struct contents c = look_into(dir);
    if (c.has_ours) return false;
    unlink(mark);
    if (c.has_other) return false;
    if (rmdir(dir) == 0) return true;
    if (look_into(dir).has_ours) put_mark(dir); /* a run has come this very moment */
    return false;
}

void swap_folder_leave(const char *dir)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s", dir) >= (int)sizeof path) return;
    while (remove_one(path)) {
        char *slash = strrchr(path, '/');
        if (!slash || slash == path) return;
        *slash = '\0';
    }
}
