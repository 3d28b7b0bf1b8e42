/* Which staging folders this process is saving into: locks that end with the process. */
#include "checkpoint/store/store_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

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

static void drop(struct held *held)
{
    if (!held) return;
    if (held->fd >= 0) close(held->fd);
    free(held->path);
    free(held);
}

/* -1 with EWOULDBLOCK: another process has it. Locks that a file system does not know, or not for
 * folders (NFS), count as taken: there is nothing to wait for. */
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
    drop(held);
}

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
