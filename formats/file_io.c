/* Files: whole reads and writes, and files that become visible complete or not at all.
 *
 * A durable file is written under no name (O_TMPFILE), or a temporary one, synced, and then
 * renamed; a process that is killed leaves at most a temporary name. Large writes go past the page
 * cache where the file system allows: a checkpoint would otherwise push everything else out of
 * memory, and then wait for it to be written anyway. */
#include "formats/file_io.h"

#include "base/host/process_mark.h"
#include "formats/output.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define IO_NBYTES_MAX ((size_t)1 << 30) /* one system call; Linux stops just short of 2 GiB */

/* Less than this is not worth going past the page cache. */
#define DIRECT_NBYTES_MIN  ((size_t)64 << 10)
#define DIRECT_COPY_NBYTES ((size_t)1 << 20)

char *file_join(const char *dir, const char *name)
{
    size_t n_dir = strlen(dir), n_name = strlen(name);
    char *path = malloc(n_dir + n_name + 2);
    if (!path) return NULL;
    memcpy(path, dir, n_dir);
    if (n_dir > 0 && dir[n_dir - 1] != '/') path[n_dir++] = '/';
    memcpy(path + n_dir, name, n_name + 1);
    return path;
}

cz_status file_absolute(const char *path, char **out)
{
    char *here = path[0] == '/' ? NULL : getcwd(NULL, 0);
    *out = NULL;
    if (path[0] != '/' && !here)
        return err_set(errno == ENOMEM ? CZ_NOMEM : CZ_IO, errno,
                       "%s: the working folder cannot be found", path);
    *out = here ? file_join(here, path) : strdup(path);
    free(here);
    return *out ? CZ_OK : err_set(CZ_NOMEM, 0, "%s: no memory for the path", path);
}

cz_status file_take_regular(int opened, const char *path, int *fd, uint64_t *nbytes)
{
    struct stat info;
    *fd = -1;
    if (fstat(opened, &info) != 0) {
        int saved = errno;
        close(opened);
        return err_set(CZ_IO, saved, "%s: cannot be examined", path);
    }
    if (!S_ISREG(info.st_mode)) {
        close(opened);
        return err_set(CZ_IO, 0, "%s: is %s, not a file", path,
                       S_ISDIR(info.st_mode) ? "a folder" : "a special file");
    }
    *fd = opened;
    if (nbytes) *nbytes = (uint64_t)info.st_size;
    return CZ_OK;
}

/* O_NONBLOCK: opening a named pipe would wait for a writer. */
cz_status file_open_read(const char *path, int *fd, uint64_t *nbytes)
{
    *fd = -1;
    int opened = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (opened < 0) {
        cz_status st = errno == ENOENT ? CZ_NOTFOUND : CZ_IO;
        return err_set(st, errno, "%s: cannot be opened", path);
    }
    return file_take_regular(opened, path, fd, nbytes);
}

/* Loops, because a read may be interrupted or cut at Linux's limit. A file that ends early is
 * CZ_CORRUPT: the caller computed the range from the file's own content. */
cz_status file_pread(int fd, const char *path, void *dst, size_t nbytes, uint64_t off)
{
    char *at = dst;
    while (nbytes > 0) {
        size_t want = nbytes < IO_NBYTES_MAX ? nbytes : IO_NBYTES_MAX;
        ssize_t got = pread(fd, at, want, (off_t)off);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0)
            return err_set(CZ_IO, errno, "%s: reading at byte %llu", path, (unsigned long long)off);
        if (got == 0)
            return err_set(CZ_CORRUPT, 0, "%s: the file ends at byte %llu, %zu bytes too early",
                           path, (unsigned long long)off, nbytes);
        at += got;
        off += (uint64_t)got;
        nbytes -= (size_t)got;
    }
    return CZ_OK;
}

cz_status file_stamp_take(int fd, const char *path, struct file_stamp *out)
{
    struct stat info;
    if (fstat(fd, &info) != 0) return err_set(CZ_IO, errno, "%s: cannot be examined", path);
    *out = (struct file_stamp){(uint64_t)info.st_size, info.st_mtim};
    return CZ_OK;
}

/* The time shows what the size does not: a file that was truncated and written anew. */
cz_status file_stamp_check(int fd, const char *path, const struct file_stamp *stamp)
{
    struct file_stamp now;
    TRY(file_stamp_take(fd, path, &now));
    if (now.nbytes == stamp->nbytes && now.mtime.tv_sec == stamp->mtime.tv_sec &&
        now.mtime.tv_nsec == stamp->mtime.tv_nsec)
        return CZ_OK;
    return err_set(CZ_CORRUPT, 0, "%s: changed while it was read", path);
}

/* 0 bytes written is an error, too: retrying would not end. */
cz_status file_pwrite(int fd, const char *path, const void *src, size_t nbytes, uint64_t off)
{
    const char *at = src;
    while (nbytes > 0) {
        size_t want = nbytes < IO_NBYTES_MAX ? nbytes : IO_NBYTES_MAX;
        ssize_t put = pwrite(fd, at, want, (off_t)off);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0)
            return err_set(CZ_IO, put < 0 ? errno : EIO, "%s: writing at byte %llu", path,
                           (unsigned long long)off);
        at += put;
        off += (uint64_t)put;
        nbytes -= (size_t)put;
    }
    return CZ_OK;
}

/* For small files. The limit is there because the size comes from the file system, not from the
 * user. */
cz_status file_load_opened(int fd, const char *path, uint64_t size, size_t nbytes_max, char **out,
                           size_t *nbytes)
{
    cz_status st = CZ_OK;
    *out = NULL;
    char *text = NULL;
    if (size > nbytes_max)
        st = err_set(CZ_INVALID, 0, "%s: has %llu bytes, more than the %zu allowed here", path,
                     (unsigned long long)size, nbytes_max);
    else if (!(text = malloc((size_t)size + 1)))
        st = err_set(CZ_NOMEM, 0, "%s: no memory for its %llu bytes", path,
                     (unsigned long long)size);
    else
        st = file_pread(fd, path, text, (size_t)size, 0);
    close(fd);
    if (st != CZ_OK) {
        free(text);
        return st;
    }
    text[size] = '\0';
    *out = text;
    if (nbytes) *nbytes = (size_t)size;
    return CZ_OK;
}

cz_status file_load(const char *path, size_t nbytes_max, char **out, size_t *nbytes)
{
    int fd;
    uint64_t size = 0; /* set below; gcc 13 does not see it */
    *out = NULL;
    TRY(file_open_read(path, &fd, &size));
    return file_load_opened(fd, path, size, nbytes_max, out, nbytes);
}

static cz_status too_long(const char *path, size_t nbytes_max)
{
    return err_set(CZ_INVALID, 0, "%s: has more than the %zu bytes allowed here", path, nbytes_max);
}

#define AFTER_SIGNAL_MS 1500

/* Until something can be read, or the end. After a handled signal the wait is short: the program
 * may have been asked to stop, and a pipe that no process opens for writing is waited for
 * endlessly; what is on its way still arrives. */
static cz_status wait_readable(int fd, const char *path)
{
    struct pollfd wanted = {.fd = fd, .events = POLLIN};
    int n = poll(&wanted, 1, -1);
    if (n < 0 && errno == EINTR) n = poll(&wanted, 1, AFTER_SIGNAL_MS);
    if (n > 0) return CZ_OK;
    return err_set(CZ_IO, n == 0 ? EINTR : errno, "%s: waiting for its content", path);
}

/* By reading until the end, because a pipe has no size. */
static cz_status read_stream(int fd, const char *path, size_t nbytes_max, char **out,
                             size_t *nbytes)
{
    size_t capacity = 4096, n = 0;
    char *text = malloc(capacity + 1);
    while (text) {
        cz_status st = wait_readable(fd, path);
        ssize_t got = st == CZ_OK ? read(fd, text + n, capacity - n) : 0;
        if (st == CZ_OK && got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (st == CZ_OK && got < 0) st = err_set(CZ_IO, errno, "%s: reading at byte %zu", path, n);
        if (st != CZ_OK) {
            free(text);
            return st;
        }
        n += (size_t)got;
        if (got == 0 || n > nbytes_max) break;
        if (n < capacity) continue;
        capacity *= 2;
        char *grown = realloc(text, capacity + 1);
        if (!grown) free(text);
        text = grown;
    }
    if (!text) return err_set(CZ_NOMEM, 0, "%s: no memory for more than %zu bytes", path, n);
    if (n > nbytes_max) {
        free(text);
        return too_long(path, nbytes_max);
    }
    text[n] = '\0';
    *out = text;
    if (nbytes) *nbytes = n;
    return CZ_OK;
}

cz_status file_load_named(const char *path, size_t nbytes_max, char **out, size_t *nbytes)
{
    struct stat info;
    *out = NULL;
    if (stat(path, &info) != 0 || S_ISREG(info.st_mode) || S_ISDIR(info.st_mode))
        return file_load(path, nbytes_max, out, nbytes);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return err_set(CZ_IO, errno, "%s: cannot be opened", path);
    cz_status st = read_stream(fd, path, nbytes_max, out, nbytes);
    close(fd);
    return st;
}

/* EINVAL: a file system that does not sync folders has nothing to sync. */
cz_status file_sync_folder(int at, const char *path)
{
    cz_status st = CZ_OK;
    const int fd = openat(at, at == AT_FDCWD ? path : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || (fsync(fd) != 0 && errno != EINVAL))
        st = err_set(CZ_IO, errno, "%s: cannot be synced to disk", path);
    if (fd >= 0) close(fd);
    return st;
}

/* The folder that `path` is in; free() it. */
static char *folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return !slash ? strdup(".") : strndup(path, slash == path ? 1 : (size_t)(slash - path));
}

/* A new folder is durable once the folder that it is in is synced. */
static cz_status sync_above(const char *path)
{
    char *dir = folder_of(path);
    if (!dir) return err_set(CZ_NOMEM, 0, "%s: no memory for its folder's name", path);
    /* One that lets files in but cannot be read cannot be synced. */
    cz_status st = access(dir, R_OK) == 0 ? file_sync_folder(AT_FDCWD, dir) : CZ_OK;
    free(dir);
    return st;
}

/* Like mkdir -p for one level. Creating first and examining then leaves no moment in which another
 * process could create it between. */
static cz_status make_dir(const char *dir)
{
    struct stat info;
    if (mkdir(dir, 0777) == 0) return sync_above(dir);
    int saved = errno; /* EEXIST, but EROFS or EACCES come first on some systems */
    if (stat(dir, &info) == 0 && S_ISDIR(info.st_mode)) return CZ_OK;
    if (saved == EEXIST) saved = ENOTDIR; /* a file, or a link to nothing */
    return err_set(CZ_IO, saved, "%s: cannot be created as a folder", dir);
}

cz_status file_make_dirs(const char *dir)
{
    char *path = strdup(dir);
    if (!path) return err_set(CZ_NOMEM, 0, "%s: no memory for its name", dir);
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') path[--n] = '\0';
    cz_status st = CZ_OK;
    for (char *c = path + 1; *path && *c && st == CZ_OK; c++) {
        if (*c != '/' || c[-1] == '/') continue;
        *c = '\0';
        st = make_dir(path);
        *c = '/';
    }
    if (st == CZ_OK && *path) st = make_dir(path);
    free(path);
    return st;
}

bool file_exists(const char *path)
{
    return access(path, F_OK) == 0;
}

/* A file that is gone is as good as removed. */
cz_status file_remove(const char *path)
{
    if (unlink(path) == 0 || errno == ENOENT) return CZ_OK;
    return err_set(CZ_IO, errno, "%s: cannot be removed", path);
}

/* Reserves the space on disk, so that a full disk shows now and not after an hour of writing. File
 * systems that cannot are left alone. */
static cz_status reserve(struct file_durable *f, uint64_t nbytes)
{
    if (nbytes == 0) return CZ_OK;
    int failed;
    do failed = fallocate(f->fd, 0, 0, (off_t)nbytes) != 0 ? errno : 0;
    while (failed == EINTR);
    if (failed == EOPNOTSUPP || failed == ENOSYS || failed == EINVAL) return CZ_OK;
    if (failed)
        return err_set(CZ_IO, failed, "%s: cannot reserve %llu bytes on disk", f->path,
                       (unsigned long long)nbytes);
    return CZ_OK;
}

#define TEMPORARY ".tmp" /* and the mark of the process that writes it */

const char *file_temporary_mark(const char *name, size_t *n_final)
{
    const char *last = NULL;
    for (const char *at = strstr(name, TEMPORARY); at; at = strstr(at + 1, TEMPORARY)) last = at;
    if (!last || !process_mark_is_mark(last + strlen(TEMPORARY))) return NULL;
    *n_final = (size_t)(last - name);
    return last + strlen(TEMPORARY);
}

/* Of processes that were killed between naming such a file and the rename. A folder that cannot be
 * listed keeps them: they are no reason to fail. */
static void remove_left(const char *path)
{
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    const size_t n_base = strlen(base);
    char *dir = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
    DIR *listing = dir ? opendir(dir) : NULL;
    free(dir);
    for (struct dirent *d; listing && (d = readdir(listing));) {
        size_t n;
        const char *mark = file_temporary_mark(d->d_name, &n);
        if (mark && n == n_base && strncmp(d->d_name, base, n) == 0 &&
            process_mark_fate(mark) == PROCESS_ENDED)
            (void)unlinkat(dirfd(listing), d->d_name, 0);
    }
    if (listing) closedir(listing);
}

/* A file without a name vanishes with its process. Where the file system has none (mostly network
 * file systems), it gets a temporary name. /proc is needed to give the file its name later, so it
 * is looked for first. */
static cz_status open_temp(struct file_durable *f)
{
    if (access("/proc/self/fd", X_OK) == 0) /* the way to a name later */
        f->fd = openat(f->dir_fd, ".", O_RDWR | O_TMPFILE | O_CLOEXEC, 0666);
    f->unnamed = f->fd >= 0;
    if (f->unnamed) return CZ_OK;
    unlinkat(f->dir_fd, f->temp, 0); /* of our own, from a try that failed */
    f->fd = openat(f->dir_fd, f->temp, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (f->fd < 0) return err_set(CZ_IO, errno, "%s: cannot be created", f->path);
    return CZ_OK;
}

/* in NULL: the folder is the one in the path that the user gave. */
static cz_status open_folder(struct file_durable *f, const struct out_folder *in)
{
    f->owns_dir = !in;
    if (in) f->dir_fd = in->fd;
    if (in) return CZ_OK;
    char *dir = folder_of(f->path);
    if (!dir) return err_set(CZ_NOMEM, 0, "%s: no memory for its folder's name", f->path);
    f->dir_fd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    free(dir);
    return f->dir_fd >= 0 ? CZ_OK : err_set(CZ_IO, errno, "%s: cannot be created", f->path);
}

/* The descriptor for direct I/O is opened through /proc/self/fd, because the file may have no name.
 * Without it everything goes through the page cache. */
static cz_status create(struct file_durable *f, const struct out_folder *in, uint64_t nbytes)
{
    char mark[PROCESS_MARK_NBYTES];
    char *slash = f->path ? strrchr(f->path, '/') : NULL;
    f->name = slash ? slash + 1 : f->path;
    size_t temp_nbytes = (f->path ? strlen(f->name) : 0) + sizeof TEMPORARY + PROCESS_MARK_NBYTES;
    f->temp = malloc(temp_nbytes);
    if (!f->path || !f->temp) return err_set(CZ_NOMEM, 0, "no memory for a file's name");
    process_mark(mark);
    snprintf(f->temp, temp_nbytes, "%s" TEMPORARY "%s", f->name, mark);
    TRY(open_folder(f, in));
    TRY(open_temp(f));
    TRY(reserve(f, nbytes));
    if (nbytes >= DIRECT_NBYTES_MIN) {
        char self[64];
        snprintf(self, sizeof self, "/proc/self/fd/%d", f->fd);
        f->direct_fd = open(self, O_WRONLY | O_DIRECT | O_CLOEXEC);
    }
    return CZ_OK;
}

cz_status file_durable_create_in(struct file_durable *f, const struct out_folder *in,
                                 const char *name, uint64_t nbytes)
{
    *f = (struct file_durable){.fd = -1, .direct_fd = -1, .dir_fd = -1};
    f->path = in ? file_join(in->path, name) : strdup(name);
    if (in) out_remove_left(in, name);
    cz_status st = create(f, in, nbytes);
    if (st != CZ_OK) file_durable_abort(f);
    return st;
}

cz_status file_durable_create(struct file_durable *f, const char *path, uint64_t nbytes)
{
    return file_durable_create_in(f, NULL, path, nbytes);
}

/* Whole blocks past the page cache, from aligned memory. *done: how many bytes of it were written;
 * short of nbytes when the file system refuses (the caller continues through the cache). */
static cz_status write_blocks(const struct file_durable *f, const char *src, size_t nbytes,
                              uint64_t off, size_t *done)
{
    *done = 0;
    while (*done < nbytes) {
        size_t want = nbytes - *done < IO_NBYTES_MAX ? nbytes - *done : IO_NBYTES_MAX;
        ssize_t put = pwrite(f->direct_fd, src + *done, want, (off_t)(off + *done));
        if (put < 0 && errno == EINTR) continue;
        if (put < 0 && (errno == EINVAL || errno == EOPNOTSUPP)) return CZ_OK;
        if (put <= 0)
            return err_set(CZ_IO, put < 0 ? errno : EIO, "%s: writing at byte %llu", f->path,
                           (unsigned long long)(off + *done));
        *done += (size_t)put;
        if (put % FILE_DIRECT_ALIGN != 0) return CZ_OK;
    }
    return CZ_OK;
}

/* The same from memory that is not aligned: by way of a buffer that is. If there is no memory for
 * it, nothing is written and the caller continues through the page cache. */
static cz_status write_blocks_copied(const struct file_durable *f, const char *src, size_t nbytes,
                                     uint64_t off, size_t *done)
{
    size_t cap = nbytes < DIRECT_COPY_NBYTES ? nbytes : DIRECT_COPY_NBYTES;
    void *copy = NULL;
    *done = 0;
    if (posix_memalign(&copy, FILE_DIRECT_ALIGN, cap) != 0) return CZ_OK;
    cz_status st = CZ_OK;
    while (*done < nbytes && st == CZ_OK) {
        size_t want = nbytes - *done < cap ? nbytes - *done : cap, put;
        memcpy(copy, src + *done, want);
        st = write_blocks(f, copy, want, off + *done, &put);
        *done += put;
        if (put < want) break;
    }
    free(copy);
    return st;
}

/* Through the cache, but on its way to disk at once: left to the kernel, a long save runs into the
 * limit on unwritten memory and waits (a tenth of the disk's speed was seen). */
static cz_status write_cached(const struct file_durable *f, const char *src, size_t nbytes,
                              uint64_t off)
{
    TRY(file_pwrite(f->fd, f->path, src, nbytes, off));
    if (nbytes >= DIRECT_NBYTES_MIN) /* a hint: the sync at the end reports what fails */
        (void)sync_file_range(f->fd, (off_t)off, (off_t)nbytes, SYNC_FILE_RANGE_WRITE);
    return CZ_OK;
}

/* Three parts: up to the first block border, whole blocks, the rest. Both ends go through the page
 * cache; ends of neighbouring writes may share a block, which direct I/O could not handle. */
cz_status file_durable_pwrite(const struct file_durable *f, const void *src, size_t nbytes,
                              uint64_t off)
{
    const char *at = src;
    if (f->direct_fd < 0 || nbytes < DIRECT_NBYTES_MIN) return write_cached(f, src, nbytes, off);
    size_t head = (size_t)(-off % FILE_DIRECT_ALIGN);
    size_t blocks = (nbytes - head) / FILE_DIRECT_ALIGN * FILE_DIRECT_ALIGN, done;
    bool aligned = (uintptr_t)(at + head) % FILE_DIRECT_ALIGN == 0;
    TRY(file_pwrite(f->fd, f->path, at, head, off));
    TRY((aligned ? write_blocks : write_blocks_copied)(f, at + head, blocks, off + head, &done));
    done += head;
    return write_cached(f, at + done, nbytes - done, off + done);
}

static void close_fds(struct file_durable *f)
{
    if (f->fd >= 0) close(f->fd);
    if (f->direct_fd >= 0) close(f->direct_fd);
    f->fd = f->direct_fd = -1;
}

/* fsync() of one descriptor covers what was written through the other: it is the same file. */
cz_status file_durable_sync(struct file_durable *f)
{
    if (f->fd >= 0 && fsync(f->fd) != 0)
        return err_set(CZ_IO, errno, "%s: cannot be synced to disk", f->path);
    return CZ_OK;
}

/* Until the rename the old file of that name, if there is one, stays as it is. */
cz_status file_durable_rename(struct file_durable *f)
{
    if (f->unnamed) {
        /* Give a nameless file its temporary name: only a rename can replace an older file. */
        char self[64];
        snprintf(self, sizeof self, "/proc/self/fd/%d", f->fd);
        unlinkat(f->dir_fd, f->temp, 0);
        if (linkat(AT_FDCWD, self, f->dir_fd, f->temp, AT_SYMLINK_FOLLOW) != 0)
            return err_set(CZ_IO, errno, "%s: cannot be named", f->path);
        f->unnamed = false;
    }
    if (renameat(f->dir_fd, f->temp, f->dir_fd, f->name) != 0)
        return err_set(CZ_IO, errno, "%s: cannot be put into place", f->path);
    f->renamed = true;
    remove_left(f->path);
    int failed = f->fd >= 0 && close(f->fd) != 0 && errno != EINTR ? errno : 0;
    f->fd = -1;
    close_fds(f);
    if (failed) return err_set(CZ_IO, failed, "%s: cannot be closed", f->path);
    return CZ_OK;
}

cz_status file_durable_sync_folder(const struct file_durable *f)
{
    return file_sync_folder(f->dir_fd, f->path);
}

void file_durable_take_back(struct file_durable *f)
{
    if (f->renamed) unlinkat(f->dir_fd, f->name, 0);
}

/* The folder is synced last: only then does the new name survive a power cut. */
cz_status file_durable_commit(struct file_durable *f)
{
    cz_status st;
    TRY_GOTO(file_durable_sync(f), fail);
    TRY_GOTO(file_durable_rename(f), fail);
    TRY_GOTO(file_durable_sync_folder(f), fail);
fail:
    file_durable_abort(f);
    return st;
}

/* Accepts a file that was renamed already, or never created. */
void file_durable_abort(struct file_durable *f)
{
    if (f->temp) {
        close_fds(f);
        if (!f->renamed && !f->unnamed && f->dir_fd >= 0) unlinkat(f->dir_fd, f->temp, 0);
        if (f->owns_dir && f->dir_fd >= 0) close(f->dir_fd);
    }
    free(f->path);
    free(f->temp);
    *f = (struct file_durable){.fd = -1, .direct_fd = -1, .dir_fd = -1};
}

cz_status file_save_in(const struct out_folder *in, const char *name, const void *src,
                       size_t nbytes)
{
    struct file_durable f;
    TRY(file_durable_create_in(&f, in, name, nbytes));
    cz_status st = file_pwrite(f.fd, f.path, src, nbytes, 0);
    if (st != CZ_OK) {
        file_durable_abort(&f);
        return st;
    }
    return file_durable_commit(&f);
}

cz_status file_save(const char *path, const void *src, size_t nbytes)
{
    return file_save_in(NULL, path, src, nbytes);
}
