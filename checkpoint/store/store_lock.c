/* Which staging folders this process is saving into, as flock() locks on the folders: they end with
 * the process, however it ends, so a crash leaves no stale lock. flock() locks belong to an open
 * file, so a second lock of the same process on the same folder would succeed or fail by chance of
 * descriptors; therefore the process also keeps a list of its own. */
#include "checkpoint/store/store_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

/* A lock that this process holds. The descriptor keeps it. */
struct held {
    char *path;
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

/* -1 with EWOULDBLOCK: another process has it. Locks that a file system does not support, or not
 * for folders (NFS), count as taken by us: there is nothing to wait for, and refusing to save would
 * be worse. */
static int open_locked(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return -1;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return fd;
    close(fd);
    errno = EWOULDBLOCK;
    return -1;
}

cz_status store_lock(const char *path)
{
    store_unlock(path);
    int fd = open_locked(path);
    if (fd < 0 && errno == EWOULDBLOCK)
        return err_set(CZ_BUSY, 0, "%s: another process is saving under this tag", path);
    if (fd < 0) return err_set(CZ_IO, errno, "%s: cannot be opened", path);
    struct held *held = malloc(sizeof *held);
    char *copy = strdup(path);
    if (!held || !copy) {
        free(held);
        free(copy);
        close(fd);
        return err_set(CZ_NOMEM, 0, "%s: out of memory", path);
    }
    pthread_mutex_lock(&guard);
    *held = (struct held){copy, fd, first};
    first = held;
    pthread_mutex_unlock(&guard);
    return CZ_OK;
}

void store_unlock(const char *path)
{
    pthread_mutex_lock(&guard);
    struct held *held = take_out(path);
    pthread_mutex_unlock(&guard);
    if (!held) return;
    if (held->fd >= 0) close(held->fd);
    free(held->path);
    free(held);
}

/* Takes the lock for a moment to find out. Another process that tries in just this moment sees the
 * folder as busy and leaves it alone, which is harmless: it only removes leftovers. */
bool store_is_locked_elsewhere(const char *path)
{
    pthread_mutex_lock(&guard);
    bool ours = false;
    for (const struct held *at = first; at && !ours; at = at->next)
        ours = strcmp(at->path, path) == 0;
    pthread_mutex_unlock(&guard);
    if (ours) return false;
    int fd = open_locked(path);
    bool elsewhere = fd < 0 && errno == EWOULDBLOCK;
    if (fd >= 0) close(fd);
    return elsewhere;
}
