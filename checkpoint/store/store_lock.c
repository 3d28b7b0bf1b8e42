/* Which staging folders are in use, and by which process. Beside each is its mark,
 * ".TAG.saving.by": a file with the process_mark() of the process that saves, locked by it. It
 * proves that the folder is a save's, and tells whether that save may still be under way: the lock
 * within one kernel, whatever the container; the text elsewhere, and where a file system has no
 * locks. Other users can neither open nor lock it (0600). Marks are on disk before their folders,
 * and go after them.
 *
 * flock() locks belong to an open file, so a second lock of the same process on the same file would
 * fail; therefore the process keeps a list of its own. */
#include "checkpoint/store/store_impl.h"

#include "base/host/process_mark.h"
#include "formats/file_io.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define TRIES_MAX 100 /* another process may remove the mark that was just opened */
/* A save of another host in which nothing changes for so many seconds has ended. */
#define QUIET_S_MAX 3600

/* A mark that this process holds. */
struct held {
    char *path; /* of the staging folder */
    int fd;
    struct held *next;
};

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static struct held *first;

/* The lock on path taken out of the list; NULL when it is not ours. */
static struct held *take_out(const char *path)
{
    for (struct held **at = &first; *at; at = &(*at)->next) {
        if (strcmp((*at)->path, path) != 0) continue;
        struct held *found = *at;
        *at = found->next;
        return found;
    }
    return NULL;
}

static bool is_held(const char *path)
{
    pthread_mutex_lock(&guard);
    const struct held *at = first;
    while (at && strcmp(at->path, path) != 0) at = at->next;
    pthread_mutex_unlock(&guard);
    return at != NULL;
}

static char *mark_path(const char *path)
{
    char *mark = malloc(strlen(path) + sizeof STORE_MARK);
    if (mark) strcat(strcpy(mark, path), STORE_MARK);
    return mark;
}

/* ---- whose it is ----------------------------------------------------------------------------- */

/* Seconds since the folder, or a file in it, or its mark, was changed. */
static double quiet_s(const char *path, int mark_fd)
{
    struct stat info;
    struct timespec now;
    time_t newest = fstat(mark_fd, &info) == 0 ? info.st_mtime : 0;
    if (lstat(path, &info) == 0 && info.st_mtime > newest) newest = info.st_mtime;
    DIR *entries = opendir(path);
    for (struct dirent *e; entries && (e = readdir(entries));)
        if (fstatat(dirfd(entries), e->d_name, &info, AT_SYMLINK_NOFOLLOW) == 0 &&
            strcmp(e->d_name, "..") != 0 && info.st_mtime > newest)
            newest = info.st_mtime;
    if (entries) closedir(entries);
    clock_gettime(CLOCK_REALTIME, &now);
    return difftime(now.tv_sec, newest);
}

/* Whether the process that wrote the mark cannot be saving any more, or is this one. is_locked: the
 * file's lock is ours now. An empty mark is that of a process that ended before it wrote it, if
 * locks work; else it may be about to. */
static bool has_ended(const char *path, int fd, bool is_locked)
{
    char text[PROCESS_MARK_NBYTES] = "", own[PROCESS_MARK_NBYTES];
    const ssize_t n = pread(fd, text, sizeof text - 1, 0);
    process_mark(own);
    if (is_locked && !process_mark_is_mark(text)) return true;
    if (n > 0 && strcmp(text, own) == 0) return true;
    if (is_locked && process_mark_is_of_this_boot(text)) return true;
    const enum process_fate fate = process_mark_fate(text);
    return fate == PROCESS_ENDED || (fate == PROCESS_UNKNOWN && quiet_s(path, fd) > QUIET_S_MAX);
}

/* ---- claiming -------------------------------------------------------------------------------- */

/* The mark's file, made if there is none and `create`. *fd -1 with CZ_OK: another process made it
 * just now, so look again. CZ_NOTFOUND: there is none; CZ_IO. */
static cz_status open_mark(const char *path, const char *mark, bool create, int *fd, bool *is_new)
{
    *fd = open(mark, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    *is_new = *fd < 0 && errno == ENOENT;
    if (*is_new && create) {
        *fd = open(mark, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (*fd < 0 && errno == EEXIST) return CZ_OK;
    }
    if (*fd >= 0) return CZ_OK;
    return create ? err_set(CZ_IO, errno, "%s: cannot be created", path)
                  : err_set(CZ_NOTFOUND, errno, "%s: is not a mark", mark);
}

static bool is_file_of_this_user(const struct stat *info)
{
    return S_ISREG(info->st_mode) && info->st_uid == geteuid() && info->st_nlink <= 1;
}

/* Whether the file still has its name: its last owner removes it when it lets go. */
static bool is_still_there(const char *mark, const struct stat *info)
{
    struct stat named;
    return info->st_nlink == 1 && lstat(mark, &named) == 0 && named.st_ino == info->st_ino &&
           named.st_dev == info->st_dev;
}

/* The open mark becomes ours, by its lock. *is_taken false with CZ_OK: it was removed meanwhile, so
 * look again. CZ_BUSY: of a process that may still be saving; CZ_NOTFOUND: not a mark of this
 * user. */
static cz_status take_mark(const char *path, const char *mark, int fd, bool is_new, bool *is_taken)
{
    struct stat info;
    *is_taken = false;
    const bool is_locked = flock(fd, LOCK_EX | LOCK_NB) == 0;
    if (!is_locked && errno == EWOULDBLOCK)
        return err_set(CZ_BUSY, 0, "%s: another process is saving under this tag", path);
    if (fstat(fd, &info) != 0 || !is_file_of_this_user(&info))
        return err_set(CZ_NOTFOUND, 0, "%s: is not a file of this user", mark);
    if (!is_still_there(mark, &info)) return CZ_OK;
    if (!is_new && !has_ended(path, fd, is_locked))
        return err_set(CZ_BUSY, 0,
                       "%s: another process is saving under this tag, perhaps on another host; "
                       "if it has ended, remove the folder and %s",
                       path, mark);
    *is_taken = true;
    return CZ_OK;
}

/* The mark of the folder at `path`, opened and locked. CZ_NOTFOUND: there is none and `create` is
 * false, or what has its name is not a mark of this user. CZ_BUSY: of a process that may still be
 * saving. *is_new: it was made. CZ_IO, CZ_NOMEM. */
static cz_status claim(const char *path, bool create, int *fd, bool *is_new)
{
    char *mark = mark_path(path);
    cz_status st = CZ_OK;
    *fd = -1;
    *is_new = false;
    if (!mark) return err_set(CZ_NOMEM, 0, "%s: out of memory", path);
    for (int i = 0; i < TRIES_MAX && *fd < 0 && st == CZ_OK; i++) {
        int opened;
        bool is_taken = false;
        st = open_mark(path, mark, create, &opened, is_new);
        if (opened < 0) continue;
        st = take_mark(path, mark, opened, *is_new, &is_taken);
        if (is_taken)
            *fd = opened;
        else
            close(opened);
    }
    if (st == CZ_OK && *fd < 0) st = err_set(CZ_BUSY, 0, "%s: comes and goes", mark);
    free(mark);
    return st;
}

/* ---- held by this process -------------------------------------------------------------------- */

static cz_status write_mark(const char *path, int fd)
{
    char text[PROCESS_MARK_NBYTES];
    process_mark(text);
    if (ftruncate(fd, 0) != 0)
        return err_set(CZ_IO, errno, "%s" STORE_MARK ": cannot be written", path);
    TRY(file_pwrite(fd, path, text, strlen(text), 0));
    if (fsync(fd) != 0) return err_set(CZ_IO, errno, "%s" STORE_MARK ": cannot be synced", path);
    return CZ_OK;
}

/* The name goes while the lock is held, so that no other process's mark is removed. */
static void release(const char *path, int fd)
{
    char *mark = mark_path(path);
    if (mark) unlink(mark);
    free(mark);
    close(fd);
}

cz_status store_lock(const char *path, bool *was_marked)
{
    int fd;
    bool is_new;
    *was_marked = true;
    if (is_held(path)) return CZ_OK;
    cz_status st = claim(path, true, &fd, &is_new);
    if (st == CZ_NOTFOUND) st = err_set(CZ_IO, 0, "%s: remove or rename it", cz_last_error());
    TRY(st);
    *was_marked = !is_new;
    struct held *held = malloc(sizeof *held);
    char *copy = strdup(path);
    st = held && copy ? write_mark(path, fd) : err_set(CZ_NOMEM, 0, "%s: out of memory", path);
    if (st != CZ_OK) {
        free(held);
        free(copy);
        if (is_new)
            release(path, fd);
        else
            close(fd); /* what is there keeps its mark */
        return st;
    }
    pthread_mutex_lock(&guard);
    *held = (struct held){copy, fd, first};
    first = held;
    pthread_mutex_unlock(&guard);
    return CZ_OK;
}

void store_unlock(const char *path, bool is_gone)
{
    pthread_mutex_lock(&guard);
    struct held *held = take_out(path);
    pthread_mutex_unlock(&guard);
    if (!held) return;
    if (is_gone)
        release(path, held->fd);
    else
        close(held->fd);
    free(held->path);
    free(held);
}

bool store_has_mark(const char *path)
{
    struct stat info;
    char *mark = mark_path(path);
    const bool has_one = mark && lstat(mark, &info) == 0;
    free(mark);
    return has_one;
}

bool store_is_ours(const char *path)
{
    return is_held(path);
}

cz_status store_remove_left(const char *dir, const char *path)
{
    int fd;
    bool is_new;
    if (is_held(path)) return CZ_OK;
    cz_status st = claim(path, false, &fd, &is_new);
    if (st != CZ_OK) {
        const bool is_other = st == CZ_BUSY || st == CZ_NOTFOUND; /* alive, or not a save's */
        if (is_other) err_clear();
        return is_other ? CZ_OK : st;
    }
    st = store_remove_tree(path);
    if (st == CZ_OK) st = store_sync_dir(dir);
    if (st == CZ_OK)
        release(path, fd);
    else
        close(fd);
    return st;
}
