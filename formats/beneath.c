/* Opening files below a folder without leaving it (the rule is in beneath.h).
 *
 * A path that is checked first and opened afterwards could change in between, so nothing here
 * checks strings and then trusts them: either the kernel resolves the whole name under
 * RESOLVE_BENEATH, or the name is walked with a descriptor for every folder on the way, where no
 * single step follows a link by itself. Both refuse the same names. */
#include "formats/beneath.h"

#include "formats/file_io.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LINKS_MAX   40 /* as the kernel */
#define FOLDERS_MAX 64 /* deeper than any checkpoint, and few enough descriptors */
#define RETRIES_MAX 32 /* openat2() gives up when a folder is renamed meanwhile */

const char *beneath_fault(const char *name)
{
    if (name[0] == '\0') return "it is empty";
    if (name[0] == '/') return "it is absolute and leads out of the folder";
    for (const char *part = name; part; part = strchr(part, '/')) {
        if (*part == '/') part++;
        if (strncmp(part, "..", 2) == 0 && (part[2] == '/' || part[2] == '\0'))
            return "it leads out of the folder";
    }
    return NULL;
}

/* ---- the walk -------------------------------------------------------------------------------- */

/* The folders from the root to where the walk is, and the name that is left to walk. */
struct walk {
    int fds[FOLDERS_MAX]; /* fds[0] is the caller's */
    size_t depth;
    int n_links;
    char rest[PATH_MAX];
};

/* A link is replaced by what it says. `left`, part of w->rest, is empty or begins with a slash. */
static bool expand(struct walk *w, const char *target, const char *left)
{
    const size_t n_target = strlen(target), n_left = strlen(left);
    errno = EXDEV;
    if (target[0] == '/') return false;
    errno = ELOOP;
    if (++w->n_links > LINKS_MAX) return false;
    errno = ENAMETOOLONG;
    if (n_target + n_left >= sizeof w->rest) return false;
    memmove(w->rest + n_target, left, n_left + 1);
    memcpy(w->rest, target, n_target);
    return true;
}

/* One part of the name. 1: continue; 0: *fd is the opened file, or -1 with errno. */
static int step(struct walk *w, int flags, int *fd)
{
    char part[NAME_MAX + 1], target[PATH_MAX];
    const char *begin = w->rest + strspn(w->rest, "/");
    const size_t n = strcspn(begin, "/");
    const int here = w->fds[w->depth];
    *fd = -1;
    if (n == 0) { /* the folder itself */
        *fd = openat(here, ".", flags);
        return 0;
    }
    errno = ENAMETOOLONG;
    if (n > NAME_MAX) return 0;
    memcpy(part, begin, n);
    part[n] = '\0';
    const char *left = begin + n;
    if (strcmp(part, "..") == 0) { /* of a link: names have none */
        errno = EXDEV;
        if (w->depth == 0) return 0;
        close(w->fds[w->depth--]);
    } else if (strcmp(part, ".") != 0) {
        const ssize_t n_target = readlinkat(here, part, target, sizeof target);
        if (n_target == (ssize_t)sizeof target) {
            errno = ENAMETOOLONG;
            return 0;
        }
        if (n_target >= 0) {
            target[n_target] = '\0';
            return expand(w, target, left);
        }
        if (errno != EINVAL) return 0; /* EINVAL: it is no link */
        if (*left == '\0') {
            *fd = openat(here, part, flags | O_NOFOLLOW);
            return 0;
        }
        errno = ENAMETOOLONG;
        if (w->depth + 1 == FOLDERS_MAX) return 0;
        const int folder = openat(here, part, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (folder < 0) return 0;
        w->fds[++w->depth] = folder;
    }
    memmove(w->rest, left, strlen(left) + 1);
    return 1;
}

static int walk_open(int root, const char *name, int flags)
{
    struct walk w = {.fds = {root}};
    int fd = -1;
    errno = ENAMETOOLONG;
    if (strlen(name) >= sizeof w.rest) return -1;
    strcpy(w.rest, name);
    while (step(&w, flags, &fd)) continue;
    const int saved = errno;
    while (w.depth > 0) close(w.fds[w.depth--]);
    errno = saved;
    return fd;
}

/* ---- opening --------------------------------------------------------------------------------- */

/* The file `name` below root, or -1 with errno; EXDEV: it leads out. */
static int open_below(int root, const char *name, int flags)
{
    const struct open_how how = {.flags = (unsigned)flags,
                                 .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
    for (int i = 0; i < RETRIES_MAX; i++) {
        const long fd = syscall(SYS_openat2, root, name, &how, sizeof how);
        if (fd >= 0) return (int)fd;
        if (errno == ENOSYS || errno == EPERM) break; /* an older kernel; a sandbox */
        if (errno != EAGAIN && errno != EINTR) return -1;
    }
    return walk_open(root, name, flags);
}

/* "models--NAME" or "datasets--NAME", n bytes. */
static bool is_cached_repository(const char *name, size_t n)
{
    static const char *const kinds[] = {"models--", "datasets--"};
    for (size_t i = 0; i < CZ_ARRAY_LEN(kinds); i++)
        if (n > strlen(kinds[i]) && strncmp(name, kinds[i], strlen(kinds[i])) == 0) return true;
    return false;
}

/* The bytes of ".../models--NAME" in ".../models--NAME/snapshots/REVISION[/...]", a real path.
 * 0: it is not in such a cache. */
static size_t cache_nbytes(const char *real)
{
    static const char snapshots[] = "/snapshots/";
    for (const char *at = real + strlen(real); at-- > real;) {
        if (strncmp(at, snapshots, sizeof snapshots - 1) != 0) continue;
        const char *name = at;
        while (name > real && name[-1] != '/') name--;
        if (is_cached_repository(name, (size_t)(at - name))) return (size_t)(at - real);
    }
    return 0;
}

/* A name whose link leads out of dir, once more with the cache's folder as the root. errno is EXDEV
 * where dir is in no cache. */
static int open_in_cache(const char *dir, const char *name, int flags)
{
    char *real = realpath(dir, NULL), *inside = NULL;
    const size_t n = real ? cache_nbytes(real) : 0;
    int fd = -1, saved = real ? EXDEV : errno;
    if (n > 0) {
        real[n] = '\0';
        const int root = open(real, O_PATH | O_DIRECTORY | O_CLOEXEC);
        inside = file_join(real + n + 1, name);
        saved = inside ? errno : ENOMEM;
        if (root >= 0 && inside) {
            fd = open_below(root, inside, flags);
            saved = errno;
        }
        if (root >= 0) close(root);
    }
    free(inside);
    free(real);
    errno = saved;
    return fd;
}

static int open_in(const char *dir, const char *name, int flags)
{
    if (!dir) return open(name, flags);
    if (*dir == '\0') dir = ".";
    const int root = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (root < 0) return -1;
    const int fd = open_below(root, name, flags);
    const int saved = errno;
    close(root);
    errno = saved;
    return fd < 0 && saved == EXDEV ? open_in_cache(dir, name, flags) : fd;
}

/* *path: dir/name for sentences, the caller's to free(), also on errors. */
static cz_status open_named(const char *dir, const char *name, int flags, int *fd, char **path)
{
    *fd = -1;
    *path = dir ? file_join(dir, name) : strdup(name);
    if (!*path) return err_set(CZ_NOMEM, 0, "%s: no memory for its name", name);
    const char *fault = dir ? beneath_fault(name) : NULL;
    if (fault)
        return err_set(CZ_CORRUPT, 0, "%s: the name \"%s\" of a file in it is refused: %s", dir,
                       name, fault);
    *fd = open_in(dir, name, flags | O_CLOEXEC);
    if (*fd >= 0) return CZ_OK;
    if (dir && errno == EXDEV)
        return err_set(
            CZ_CORRUPT, 0,
            "%s: a link leads out of %s, or is absolute, and is not followed; replace it with "
            "a copy of its target",
            *path, *dir ? dir : ".");
    return err_set(errno == ENOENT ? CZ_NOTFOUND : CZ_IO, errno, "%s: cannot be opened", *path);
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* O_NONBLOCK: opening a named pipe would wait for a writer. */
cz_status beneath_open(const char *dir, const char *name, int *fd, uint64_t *nbytes)
{
    char *path;
    int opened;
    *fd = -1;
    cz_status st = open_named(dir, name, O_RDONLY | O_NONBLOCK, &opened, &path);
    if (st == CZ_OK) st = file_take_regular(opened, path, fd, nbytes);
    free(path);
    return st;
}

cz_status beneath_load(const char *dir, const char *name, size_t nbytes_max, char **out,
                       size_t *nbytes)
{
    char *path;
    int opened, fd;
    uint64_t size = 0;
    *out = NULL;
    cz_status st = open_named(dir, name, O_RDONLY | O_NONBLOCK, &opened, &path);
    if (st == CZ_OK) st = file_take_regular(opened, path, &fd, &size);
    if (st == CZ_OK) st = file_load_opened(fd, path, size, nbytes_max, out, nbytes);
    free(path);
    return st;
}

cz_status beneath_open_folder(const char *dir, const char *name, int *fd)
{
    char *path;
    cz_status st = open_named(dir, name, O_RDONLY | O_DIRECTORY, fd, &path);
    free(path);
    return st;
}

cz_status beneath_stat(const char *dir, const char *name, struct stat *out)
{
    char *path;
    int fd;
    cz_status st = open_named(dir, name, O_PATH, &fd, &path);
    if (st == CZ_OK && fstat(fd, out) != 0)
        st = err_set(CZ_IO, errno, "%s: cannot be examined", path);
    if (fd >= 0) close(fd);
    free(path);
    return st;
}

bool beneath_is_folder(const char *dir, const char *name)
{
    struct stat info;
    const int fd = dir && beneath_fault(name) ? -1 : open_in(dir, name, O_PATH | O_CLOEXEC);
    const bool yes = fd >= 0 && fstat(fd, &info) == 0 && S_ISDIR(info.st_mode);
    if (fd >= 0) close(fd);
    return yes;
}

bool beneath_is_there(const char *dir, const char *name)
{
    if (dir && beneath_fault(name)) return true;
    const int fd = open_in(dir, name, O_PATH | O_CLOEXEC);
    if (fd < 0) return errno != ENOENT && errno != ENOTDIR && errno != ENAMETOOLONG;
    close(fd);
    return true;
}
