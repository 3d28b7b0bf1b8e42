/* Locks of folders by flock(). The kernel unlocks the file of a killed process. Some file systems
 * have no locks, or keep them to each host: there the mark in the file decides. It shows whether a
 * process of this host still runs. A run of another host cannot be seen from here: a free lock
 * means that it ended, because jobs move between hosts after a failure. */
#include "formats/folder_lock.h"

#include "base/host/process_mark.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define TRIES_MAX   100 /* another process may remove the file that was just opened */
#define TEXT_NBYTES 512
/* Without locks, a run of another host counts as ended when its file is this many seconds old. */
#define QUIET_S_MAX 3600

/* First line: the mark. Second line: the process, for people. */
struct text {
    char mark[PROCESS_MARK_NBYTES];
    char owner[TEXT_NBYTES];
};

static struct text read_text(int fd)
{
    struct text t = {.owner = "another process"};
    char text[TEXT_NBYTES] = "";
    const ssize_t n = pread(fd, text, sizeof text - 1, 0);
    char *line = n > 0 ? strchr(text, '\n') : NULL;
    if (!line) return t;
    *line = '\0';
    snprintf(t.mark, sizeof t.mark, "%s", text);
    line[1 + strcspn(line + 1, "\n")] = '\0';
    if (line[1]) snprintf(t.owner, sizeof t.owner, "%s", line + 1);
    return t;
}

static void write_text(int fd, const char *dir)
{
    char text[TEXT_NBYTES], mark[PROCESS_MARK_NBYTES], host[256] = "";
    process_mark(mark);
    gethostname(host, sizeof host - 1);
    const int n =
        snprintf(text, sizeof text, "%s\nprocess %ld on %s\n", mark, (long)getpid(), host);
    errno = 0;
    if (ftruncate(fd, 0) != 0 || pwrite(fd, text, (size_t)n, 0) != n)
        LOGV(LOG_WARN, SUB_ENGINE, "%s/" FOLDER_LOCK_NAME ": cannot be written: %s", dir,
             strerror(errno ? errno : ENOSPC));
}

static cz_status busy(const char *dir, const struct text *t)
{
    return err_set(CZ_BUSY, 0,
                   "%s: is in use by %s: wait for it or stop it, or choose another folder", dir,
                   t->owner);
}

/* Whether the text is of a process that may still run, although the lock was not in the way. */
static bool may_run(const struct text *t, int fd, bool is_locked)
{
    char own[PROCESS_MARK_NBYTES];
    struct stat info;
    process_mark(own);
    if (strcmp(t->mark, own) == 0 || !process_mark_is_mark(t->mark)) return false;
    if (is_locked && process_mark_is_of_this_boot(t->mark)) return false;
    const enum process_fate fate = process_mark_fate(t->mark);
    if (fate != PROCESS_UNKNOWN) return fate == PROCESS_RUNS;
    return !is_locked && fstat(fd, &info) == 0 &&
           difftime(time(NULL), info.st_mtime) <= QUIET_S_MAX;
}

/* *fd -1 with CZ_OK: the file was removed meanwhile, so look again. */
static cz_status take_file(const struct out_folder *in, int *fd)
{
    struct stat own, named;
    TRY(out_open(in, FOLDER_LOCK_NAME, O_RDWR, fd));
    const bool is_locked = flock(*fd, LOCK_EX | LOCK_NB) == 0;
    const bool is_busy = !is_locked && errno == EWOULDBLOCK;
    const struct text t = read_text(*fd);
    cz_status st = CZ_OK;
    if (is_busy || may_run(&t, *fd, is_locked)) {
        st = busy(in->path, &t);
    } else if (fstat(*fd, &own) == 0 &&
               fstatat(in->fd, FOLDER_LOCK_NAME, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
               own.st_ino == named.st_ino && own.st_dev == named.st_dev) {
        write_text(*fd, in->path);
        return CZ_OK;
    }
    close(*fd);
    *fd = -1;
    return st;
}

cz_status folder_lock_take(struct folder_lock *lock, const char *dir)
{
    *lock = (struct folder_lock){.fd = -1};
    TRY(out_folder_open(dir, &lock->folder));
    cz_status st = CZ_OK;
    for (int i = 0; i < TRIES_MAX && st == CZ_OK && lock->fd < 0; i++)
        st = take_file(&lock->folder, &lock->fd);
    if (st == CZ_OK && lock->fd < 0)
        st = err_set(CZ_BUSY, 0, "%s: %s changes hands all the time", dir, FOLDER_LOCK_NAME);
    if (st != CZ_OK) out_folder_abandon(&lock->folder);
    return st;
}

void folder_lock_release(struct folder_lock *lock)
{
    if (!lock->folder.path) return;
    (void)out_remove(&lock->folder, FOLDER_LOCK_NAME);
    close(lock->fd);
    out_folder_abandon(&lock->folder);
}
