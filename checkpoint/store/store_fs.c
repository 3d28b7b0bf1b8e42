/* System calls of durable saves, each with its sentence. What file systems differ in is decided
 * here: which errors mean "not supported" and lead to another way, and which are failures. */
#include "checkpoint/store/store_impl.h"

#include "checkpoint/store/manifest.h"
#include "formats/file_io.h"
#include "formats/output.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DEPTH_MAX 32 /* of folders in a tag; DeepSpeed's NVMe copies have 2 */

char *store_hidden_path(const char *dir, const char *tag, const char *suffix)
{
    size_t n = strlen(tag) + strlen(suffix) + 2;
    char *name = malloc(n);
    if (name) snprintf(name, n, ".%s%s", tag, suffix);
    char *path = name ? file_join(dir, name) : NULL;
    free(name);
    return path;
}

cz_status store_sync_dir(const char *dir)
{
    return file_sync_folder(AT_FDCWD, dir);
}

cz_status store_make_dirs(const char *dir)
{
    if (!*dir) return err_set(CZ_INVALID, 0, "the folder for checkpoints has no name");
    return file_make_dirs(dir);
}

/* The staging folder, which is in the user's. */
static cz_status open_staging(const char *path, struct out_folder *f)
{
    const char *slash = strrchr(path, '/');
    char *dir = strndup(path, slash ? (size_t)(slash - path) + (slash == path) : 0);
    struct out_folder above;
    cz_status st = dir ? out_folder_open(dir, &above) : err_set(CZ_NOMEM, 0, "%s: no memory", path);
    free(dir);
    TRY(st);
    st = out_folder_below(&above, slash ? slash + 1 : path, false, f);
    out_folder_close(&above);
    return st;
}

/* EINTR of close() is no failure: on Linux the descriptor is closed then, and the data was synced
 * before. */
cz_status store_write_synced(const char *path, const char *name, const void *bytes, size_t nbytes)
{
    struct out_folder f;
    int fd = -1;
    TRY(open_staging(path, &f));
    cz_status st = out_open(&f, name, O_WRONLY | O_TRUNC, &fd);
    if (st == CZ_OK) st = file_pwrite(fd, name, bytes, nbytes, 0);
    if (st == CZ_OK && fsync(fd) != 0)
        st = err_set(CZ_IO, errno, "%s/%s: cannot be synced to disk", path, name);
    if (fd >= 0 && close(fd) != 0 && st == CZ_OK && errno != EINTR)
        st = err_set(CZ_IO, errno, "%s/%s: cannot be closed", path, name);
    out_folder_close(&f);
    return st;
}

/* ---- removing -------------------------------------------------------------------------------- */

/* What is being removed: the path for sentences, and the first failure. Removal continues after a
 * failure, so as much space as possible is freed. */
struct removal {
    const char *path;
    int failed;
};

/* A name that is gone was removed by another process, which is just as good. */
static void note_failure(struct removal *r)
{
    if (errno != ENOENT && !r->failed) r->failed = errno; /* another process may remove it, too */
}

static void remove_at(struct removal *r, int parent, const char *name, int depth);

static void remove_children(struct removal *r, int fd, int depth)
{
    DIR *handle = fdopendir(fd); /* takes over fd */
    if (!handle) {
        note_failure(r);
        close(fd);
        return;
    }
    for (;;) {
        errno = 0;
        const struct dirent *entry = readdir(handle);
        if (!entry) break;
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            remove_at(r, fd, entry->d_name, depth + 1);
    }
    if (errno) note_failure(r);
    closedir(handle);
}

/* Relative to an open folder, and links are not followed: nothing outside can be reached. A tag's
 * folder may have been replaced by a link to somewhere else. unlink() is tried first because most
 * entries are files, and the answer tells folders apart without a stat(). */
static void remove_at(struct removal *r, int parent, const char *name, int depth)
{
    if (unlinkat(parent, name, 0) == 0 || errno == ENOENT) return;
    if (errno != EISDIR && errno != EPERM) {
        note_failure(r);
        return;
    }
    int saved = errno; /* EPERM: POSIX's word for a folder, or a file that must stay */
    int fd = depth < DEPTH_MAX
                 ? openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
                 : -1;
    if (fd < 0) {
        if (errno == ENOTDIR || depth >= DEPTH_MAX) errno = saved;
        note_failure(r);
        return;
    }
    remove_children(r, fd, depth);
    if (unlinkat(parent, name, AT_REMOVEDIR) != 0) note_failure(r);
}

cz_status store_remove_tree(const char *path)
{
    struct removal r = {.path = path};
    remove_at(&r, AT_FDCWD, path, 0);
    if (!r.failed) return CZ_OK;
    return err_set(CZ_IO, r.failed, "%s: cannot be removed completely", path);
}

/* The names come from a manifest: none leads out of the folder. */
static cz_status remove_files(const char *path, int fd, const struct manifest *m)
{
    struct stat info;
    struct removal r = {.path = path};
    for (size_t i = 0; i <= m->n_files; i++) {
        const char *name = i < m->n_files ? m->files[i].name : CKPT_MANIFEST; /* it goes last */
        if (fstatat(fd, name, &info, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(info.st_mode)) continue;
        if (unlinkat(fd, name, 0) != 0) note_failure(&r);
        if (r.failed && i + 1 >= m->n_files) break; /* it still lists what is there */
    }
    if (!r.failed) return CZ_OK;
    return err_set(CZ_IO, r.failed, "%s: cannot be removed completely", path);
}

cz_status store_remove_listed(const char *path, bool *is_left)
{
    *is_left = false;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) return CZ_OK;
    if (fd < 0) return err_set(CZ_IO, errno, "%s: cannot be opened", path);
    struct manifest m;
    cz_status st = manifest_load(path, &m);
    if (st == CZ_OK) st = remove_files(path, fd, &m);
    manifest_free(&m);
    close(fd);
    if (st == CZ_NOTFOUND) {
        err_clear();
        st = CZ_OK;
    }
    if (st != CZ_OK || rmdir(path) == 0 || errno == ENOENT) return st;
    *is_left = errno == ENOTEMPTY || errno == EEXIST;
    return *is_left ? CZ_OK : err_set(CZ_IO, errno, "%s: cannot be removed", path);
}

/* ---- names ----------------------------------------------------------------------------------- */

/* Overlay file systems (containers) do not rename a folder that the image brought along. */
static cz_status in_lower_layer(const char *path)
{
    return err_set(CZ_IO, EXDEV,
                   "%s: is part of a container's image and cannot be renamed: remove it yourself, "
                   "or save into another folder",
                   path);
}

cz_status store_rename(const char *from, const char *to)
{
    if (rename(from, to) == 0) return CZ_OK;
    if (errno == EXDEV) return in_lower_layer(from);
    return err_set(CZ_IO, errno, "%s: cannot be renamed to %s", from, to);
}

/* *done false: this file system cannot exchange. NFS and FUSE answer EINVAL or ENOSYS. */
cz_status store_exchange(const char *a, const char *b, bool *done)
{
    *done = renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE) == 0;
    if (*done || errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP) return CZ_OK;
    if (errno == EXDEV) return in_lower_layer(b);
    return err_set(CZ_IO, errno, "%s: cannot change places with %s", a, b);
}

/* 1 linked, 0 there are no hard links here (errno says why), -1 another failure. */
static int link_at(int from, int to, const char *name)
{
    if (linkat(from, name, to, name, 0) == 0) return 1;
    bool cannot = errno == EPERM || errno == EOPNOTSUPP || errno == ENOSYS || errno == EMLINK ||
                  errno == EXDEV || errno == EISDIR;
    return cannot ? 0 : -1;
}

static cz_status link_all(const struct ckpt_list *list, const char *from, const char *to,
                          bool *done)
{
    cz_status st = CZ_OK;
    int from_fd = open(from, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int to_fd = open(to, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (from_fd < 0 || to_fd < 0) st = err_set(CZ_IO, errno, "%s: cannot be opened", to);
    *done = true;
    for (size_t i = 0; i < list->n && st == CZ_OK && *done; i++) {
        int linked = link_at(from_fd, to_fd, list->names[i]);
        if (linked < 0)
            st = err_set(CZ_IO, errno, "%s/%s: cannot be linked into %s", from, list->names[i], to);
        *done = linked > 0;
    }
    if (from_fd >= 0) close(from_fd);
    if (to_fd >= 0) close(to_fd);
    return st;
}

/* A copy of a folder by hard links, or none at all: a half-made one is removed. Only files are
 * linked; a tag has no folders, except those of DeepSpeed's NVMe copies, for which the answer is
 * *done = false. */
cz_status store_link_tree(const char *from, const char *to, bool *done)
{
    struct ckpt_list list;
    *done = false;
    TRY(ckpt_list_files(from, "", &list));
    cz_status st = CZ_OK;
    if (mkdir(to, 0777) != 0) st = err_set(CZ_IO, errno, "%s: cannot be created", to);
    if (st == CZ_OK) st = link_all(&list, from, to, done);
    if (st == CZ_OK && *done) st = store_sync_dir(to);
    ckpt_list_free(&list);
    if (st != CZ_OK || !*done) {
        struct err first;
        err_capture(&first);
        (void)store_remove_tree(to); /* half a copy: the next save removes it if this cannot */
        if (st != CZ_OK) return err_restore(&first);
        err_clear();
    }
    return CZ_OK;
}
