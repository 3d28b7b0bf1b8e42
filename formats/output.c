/* Creating below a folder without leaving it (the rule is in output.h). Every part of a name is
 * opened with O_NOFOLLOW from the descriptor of the folder before it: no path is checked first and
 * used afterwards. */
#include "formats/output.h"

#include "base/host/process_mark.h"
#include "formats/beneath.h"
#include "formats/file_io.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FOLDER_FLAGS (O_PATH | O_DIRECTORY | O_CLOEXEC)

/* ---- the user's folder ----------------------------------------------------------------------- */

cz_status out_folder_open(const char *dir, struct out_folder *f)
{
    *f = (struct out_folder){.fd = -1, .is_made = *dir && !file_exists(dir)};
    TRY(file_make_dirs(dir));
    f->fd = open(*dir ? dir : ".", FOLDER_FLAGS);
    if (f->fd < 0) return err_set(CZ_IO, errno, "%s: cannot be opened", dir);
    f->path = strdup(dir);
    if (f->path) return CZ_OK;
    close(f->fd);
    return err_set(CZ_NOMEM, 0, "%s: no memory for its name", dir);
}

void out_folder_close(struct out_folder *f)
{
    if (f->path) close(f->fd);
    free(f->path);
    *f = (struct out_folder){.fd = -1};
}

/* By the folder above it, as it is now: the process may have gone elsewhere. What is in the folder
 * stays, with it. */
void out_folder_abandon(struct out_folder *f)
{
    const int above = f->path && f->is_made ? openat(f->fd, "..", FOLDER_FLAGS) : -1;
    if (above >= 0) {
        size_t n = strlen(f->path);
        while (n > 1 && f->path[n - 1] == '/') f->path[--n] = '\0';
        const char *slash = strrchr(f->path, '/');
        (void)unlinkat(above, slash ? slash + 1 : f->path, AT_REMOVEDIR);
        close(above);
    }
    out_folder_close(f);
}

cz_status out_folder_sync(const struct out_folder *f)
{
    return file_sync_folder(f->fd, *f->path ? f->path : ".");
}

DIR *out_folder_list(const struct out_folder *f)
{
    const int fd = openat(f->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *list = fd < 0 ? NULL : fdopendir(fd);
    if (fd >= 0 && !list) close(fd);
    return list;
}

/* ---- below it -------------------------------------------------------------------------------- */

static cz_status in_the_way(const struct out_folder *in, const char *name, const char *wanted)
{
    struct stat info;
    const bool is_link =
        fstatat(in->fd, name, &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(info.st_mode);
    if (is_link)
        return err_set(CZ_INVALID, 0,
                       "%s%s%s: is a link, and czero writes through no link below the folder that "
                       "you named: remove it, or replace it with %s",
                       in->path, *in->path ? "/" : "", name, wanted);
    return err_set(CZ_INVALID, 0, "%s%s%s: is not %s: remove or rename it", in->path,
                   *in->path ? "/" : "", name, wanted);
}

/* One part. O_PATH with O_NOFOLLOW opens a link itself, but O_DIRECTORY refuses it. */
static cz_status enter(const struct out_folder *in, const char *part, bool make,
                       struct out_folder *f)
{
    *f = (struct out_folder){.fd = -1};
    char *path = file_join(in->path, part);
    if (!path) return err_set(CZ_NOMEM, 0, "%s: no memory for a name in it", in->path);
    const bool is_made = make && mkdirat(in->fd, part, 0777) == 0;
    const int saved = make && !is_made ? errno : ENOENT;
    cz_status st = is_made ? out_folder_sync(in) : CZ_OK;
    const int fd = openat(in->fd, part, FOLDER_FLAGS | O_NOFOLLOW);
    if (st == CZ_OK && fd < 0 && (errno == ENOTDIR || errno == ELOOP))
        st = in_the_way(in, part, "a folder");
    else if (st == CZ_OK && fd < 0 && errno == ENOENT)
        st = err_set(make ? CZ_IO : CZ_NOTFOUND, saved, "%s: cannot be opened as a folder", path);
    else if (st == CZ_OK && fd < 0)
        st = err_set(CZ_IO, errno, "%s: cannot be opened as a folder", path);
    if (st == CZ_OK) {
        *f = (struct out_folder){.fd = fd, .path = path, .is_made = is_made};
        return CZ_OK;
    }
    if (fd >= 0) close(fd);
    free(path);
    return st;
}

cz_status out_folder_below(const struct out_folder *in, const char *name, bool make,
                           struct out_folder *f)
{
    const char *fault = beneath_fault(name);
    *f = (struct out_folder){.fd = -1};
    if (fault)
        return err_set(CZ_INVALID, 0, "%s: the name \"%s\" of a folder in it is refused: %s",
                       in->path, name, fault);
    struct out_folder here = {.fd = in->fd, .path = in->path};
    for (const char *at = name + strspn(name, "/"); *at;) {
        char part[NAME_MAX + 1];
        const size_t n = strcspn(at, "/");
        cz_status st =
            n > NAME_MAX ? err_set(CZ_INVALID, ENAMETOOLONG, "%s: %s", in->path, name) : CZ_OK;
        if (st == CZ_OK) {
            memcpy(part, at, n);
            part[n] = '\0';
            st = enter(&here, part, make, f);
        }
        if (here.path != in->path) out_folder_close(&here);
        TRY(st);
        here = *f;
        at += n + strspn(at + n, "/");
    }
    return CZ_OK;
}

cz_status out_open(const struct out_folder *in, const char *name, int flags, int *fd)
{
    struct stat info;
    *fd = openat(in->fd, name, flags | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
    if (*fd >= 0 && fstat(*fd, &info) == 0 && S_ISREG(info.st_mode)) return CZ_OK;
    const int saved = *fd < 0 ? errno : EINVAL;
    if (*fd >= 0) close(*fd);
    *fd = -1;
    if (saved == ELOOP || saved == EINVAL || saved == ENXIO || saved == EISDIR)
        return in_the_way(in, name, "a file");
    return err_set(CZ_IO, saved, "%s%s%s: cannot be opened for writing", in->path,
                   *in->path ? "/" : "", name);
}

cz_status out_remove(const struct out_folder *in, const char *name)
{
    if (unlinkat(in->fd, name, 0) == 0 || errno == ENOENT) return CZ_OK;
    return err_set(CZ_IO, errno, "%s%s%s: cannot be removed", in->path, *in->path ? "/" : "", name);
}

void out_remove_left(const struct out_folder *in, const char *name)
{
    size_t n;
    DIR *list = out_folder_list(in);
    for (struct dirent *e; list && (e = readdir(list));) {
        const char *mark = file_temporary_mark(e->d_name, &n);
        if (mark && n == strlen(name) && strncmp(e->d_name, name, n) == 0 &&
            process_mark_fate(mark) == PROCESS_ENDED)
            (void)unlinkat(in->fd, e->d_name, 0); /* one that stays does no harm */
    }
    if (list) closedir(list);
}

bool out_is_there(const struct out_folder *in, const char *name)
{
    struct stat info;
    return fstatat(in->fd, name, &info, AT_SYMLINK_NOFOLLOW) == 0;
}

cz_status out_rename(const char *from, const char *to)
{
    if (rename(from, to) == 0) return CZ_OK;
    return err_set(CZ_IO, errno, "%s: cannot be renamed to %s", from, to);
}

FILE *out_fopen(const char *path, const char *mode)
{
    return fopen(path, mode);
}
