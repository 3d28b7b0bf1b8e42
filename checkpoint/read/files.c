/* The files of an open checkpoint. A large run has thousands of shards, and a process may have
 * 1,024 descriptors, so at most CKPT_FILES_IDLE_MAX stay open; the least recently used one is
 * closed when another is needed. A file is remembered by device, inode, size and time: reopening it
 * after another save has replaced it is noticed, and so is reading what was changed in place. */
#include "checkpoint/read/checkpoint_impl.h"
#include "formats/beneath.h"
#include "formats/file_io.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct ckpt_file {
    char *path;
    const char *name; /* in path: what it is called in the tag's folder */
    struct file_stamp stamp;
    dev_t dev;
    ino_t ino;
    int fd; /* -1: closed */
    size_t n_users;
    uint64_t last_use;
};

struct ckpt_files {
    struct ckpt_file *files;
    size_t n, cap;
    pthread_mutex_t lock; /* of what follows, and of fd, n_users, last_use */
    size_t *open;         /* (n_open) indexes of files that have a descriptor */
    size_t n_open, cap_open;
    uint64_t clock;
};

cz_status ckpt_files_create(struct ckpt_files **out)
{
    struct ckpt_files *fs = calloc(1, sizeof *fs);
    *out = fs;
    if (!fs) return err_set(CZ_NOMEM, 0, "out of memory");
    pthread_mutex_init(&fs->lock, NULL);
    return CZ_OK;
}

void ckpt_files_destroy(struct ckpt_files *fs)
{
    if (!fs) return;
    for (size_t i = 0; i < fs->n; i++) {
        if (fs->files[i].fd >= 0) close(fs->files[i].fd);
        free(fs->files[i].path);
    }
    pthread_mutex_destroy(&fs->lock);
    free(fs->files);
    free(fs->open);
    free(fs);
}

/* Capacity for one more. Indexes stay valid when the array moves; pointers into it do not, and none
 * is kept. */
static cz_status files_reserve(struct ckpt_files *fs)
{
    if (fs->n < fs->cap) return CZ_OK;
    size_t cap = fs->cap ? fs->cap * 2 : 16;
    struct ckpt_file *files = realloc(fs->files, cap * sizeof *files);
    if (!files) return err_set(CZ_NOMEM, 0, "out of memory");
    fs->files = files;
    fs->cap = cap;
    return CZ_OK;
}

/* The file is examined but not opened: shards are opened one at a time when their pickles are
 * read. */
cz_status ckpt_file_add(struct ckpt *ck, const char *name, uint32_t *file_idx)
{
    struct ckpt_files *fs = ck->files;
    TRY(files_reserve(fs));
    if (fs->n == CKPT_NO_FILE) return err_set(CZ_UNSUPPORTED, 0, "%s: too many files", ck->tag_dir);
    char *path = file_join(ck->tag_dir, name);
    if (!path) return err_set(CZ_NOMEM, 0, "out of memory");
    struct stat info;
    cz_status st = beneath_stat(ck->tag_dir, name, &info);
    if (st != CZ_OK) {
        free(path);
        return st;
    }
    fs->files[fs->n] = (struct ckpt_file){.path = path,
                                          .name = path + strlen(path) - strlen(name),
                                          .stamp = {(uint64_t)info.st_size, info.st_mtim},
                                          .dev = info.st_dev,
                                          .ino = info.st_ino,
                                          .fd = -1};
    *file_idx = (uint32_t)fs->n++;
    ck->info.n_files = fs->n;
    ck->info.nbytes += (uint64_t)info.st_size;
    return CZ_OK;
}

cz_status ckpt_pt_add(struct ckpt *ck, const char *name, uint32_t *file_idx, struct pt **pt)
{
    *pt = NULL;
    TRY(ckpt_file_add(ck, name, file_idx));
    return ckpt_file_open_pt(ck, *file_idx, pt);
}

cz_status ckpt_file_open_pt(const struct ckpt *ck, size_t file_idx, struct pt **pt)
{
    return pt_open_in(ck->tag_dir, ck->files->files[file_idx].name, pt);
}

const char *ckpt_file_path(const struct ckpt *ck, size_t file_idx)
{
    return ck->files->files[file_idx].path;
}

uint64_t ckpt_file_nbytes(const struct ckpt *ck, size_t file_idx)
{
    return ck->files->files[file_idx].stamp.nbytes;
}

/* ---- descriptors ----------------------------------------------------------------------------- */

/* Closes the file that was not used for the longest time. If all are in use, more than the limit
 * stay open; the limit is for idle ones. The lock is held. */
static void close_idle(struct ckpt_files *fs)
{
    size_t oldest = fs->n_open;
    for (size_t pos = 0; pos < fs->n_open; pos++) {
        const struct ckpt_file *file = &fs->files[fs->open[pos]];
        if (file->n_users > 0) continue;
        if (oldest == fs->n_open || file->last_use < fs->files[fs->open[oldest]].last_use)
            oldest = pos;
    }
    if (oldest < fs->n_open) {
        struct ckpt_file *file = &fs->files[fs->open[oldest]];
        close(file->fd);
        file->fd = -1;
        fs->open[oldest] = fs->open[--fs->n_open];
    }
}

/* A tag may be saved again while it is read. Offsets of the old content would then point into the
 * new one, and nothing else would notice. */
static cz_status check_same(const struct ckpt_file *file, int fd)
{
    struct stat info;
    if (fstat(fd, &info) != 0) return err_set(CZ_IO, errno, "%s: cannot be examined", file->path);
    if (info.st_dev == file->dev && info.st_ino == file->ino &&
        (uint64_t)info.st_size == file->stamp.nbytes)
        return file_stamp_check(fd, file->path, &file->stamp);
    return err_set(CZ_CORRUPT, 0, "%s: was replaced while the checkpoint was being read",
                   file->path);
}

/* The lock is held, also while the file is opened: several threads often want the same shard
 * first. */
static cz_status open_file(const struct ckpt *ck, size_t file_idx)
{
    struct ckpt_files *fs = ck->files;
    struct ckpt_file *file = &fs->files[file_idx];
    if (fs->n_open >= CKPT_FILES_IDLE_MAX) close_idle(fs);
    if (fs->n_open == fs->cap_open) {
        size_t cap = fs->cap_open ? fs->cap_open * 2 : CKPT_FILES_IDLE_MAX;
        size_t *open = realloc(fs->open, cap * sizeof *open);
        if (!open) return err_set(CZ_NOMEM, 0, "out of memory");
        fs->open = open;
        fs->cap_open = cap;
    }
    int fd;
    TRY(beneath_open(ck->tag_dir, file->name, &fd, NULL));
    cz_status st = check_same(file, fd);
    if (st != CZ_OK) {
        close(fd);
        return st;
    }
    file->fd = fd;
    fs->open[fs->n_open++] = file_idx;
    return CZ_OK;
}

/* Threads: any. The descriptor stays open until ckpt_file_release(); reads use pread(), so that
 * several users of it do not disturb each other. */
cz_status ckpt_file_acquire(const struct ckpt *ck, size_t file_idx, int *fd)
{
    struct ckpt_files *fs = ck->files;
    struct ckpt_file *file = &fs->files[file_idx];
    pthread_mutex_lock(&fs->lock);
    cz_status st = file->fd >= 0 ? CZ_OK : open_file(ck, file_idx);
    if (st == CZ_OK) {
        file->n_users++;
        file->last_use = ++fs->clock;
    }
    *fd = file->fd;
    pthread_mutex_unlock(&fs->lock);
    return st;
}

cz_status ckpt_file_check(const struct ckpt *ck, size_t file_idx, int fd)
{
    const struct ckpt_file *file = &ck->files->files[file_idx];
    return file_stamp_check(fd, file->path, &file->stamp);
}

void ckpt_file_release(const struct ckpt *ck, size_t file_idx)
{
    struct ckpt_files *fs = ck->files;
    pthread_mutex_lock(&fs->lock);
    fs->files[file_idx].n_users--;
    if (fs->n_open > CKPT_FILES_IDLE_MAX) close_idle(fs);
    pthread_mutex_unlock(&fs->lock);
}
