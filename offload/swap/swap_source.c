/* Files that a swap reads and never writes. Other programs may change them: each block
 * that was read is followed by a look at the file's size and time, so that a run ends with a
 * sentence instead of training on other weights. They are read, not mapped: a file that is cut
 * makes an error, not a signal. */
#include "offload/swap/swap_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* An opening of its own, of whatever file the descriptor has by now: past the page cache where its
 * system allows that. Without /proc it shares the caller's. */
static int reopen(struct swap_file *f, int fd)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    int opened = open(link, O_RDONLY | O_DIRECT | O_CLOEXEC);
    atomic_store(&f->is_direct, opened >= 0);
    if (opened < 0) opened = open(link, O_RDONLY | O_CLOEXEC);
    return opened >= 0 ? opened : fcntl(fd, F_DUPFD_CLOEXEC, 0);
}

cz_status swap_source_open(struct swap_file *f, const struct swap_source *source)
{
    *f = (struct swap_file){.fd = -1,
                            .lock_fd = -1,
                            .path = strdup(source->path),
                            .is_source = true,
                            .nbytes = source->nbytes,
                            .mtime = source->mtime};
    if (!f->path) return err_set(CZ_NOMEM, 0, "no memory for the name of a file");
    f->fd = reopen(f, source->fd);
    return f->fd >= 0 ? CZ_OK : err_set(CZ_IO, errno, "%s: cannot be opened again", f->path);
}

void swap_source_close(struct swap_file *f)
{
    if (f->fd >= 0) close(f->fd);
    free(f->path);
}

cz_status swap_source_check(const struct swap_file *f)
{
    struct stat now;
    if (fstat(f->fd, &now) != 0) return err_set(CZ_IO, errno, "%s: cannot be examined", f->path);
    if ((uint64_t)now.st_size == f->nbytes && now.st_mtim.tv_sec == f->mtime.tv_sec &&
        now.st_mtim.tv_nsec == f->mtime.tv_nsec)
        return CZ_OK;
    return err_set(CZ_CORRUPT, 0, "%s: changed while the run reads it", f->path);
}
