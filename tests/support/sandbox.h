/* A folder in which a command runs on files that may be hostile, and what is looked at afterwards:
 *
 *   in/      what the command reads          common/  configs, models and texts that are sound
 *   out/     the only place it may write to  victim/  files that it may neither read nor write
 *
 * Everything but out/ must be afterwards what it was before; files in victim/ are watched, so that
 * even opening one is seen. */
#ifndef CZ_TESTS_SANDBOX_H
#define CZ_TESTS_SANDBOX_H

#include "base/utf8.h"
#include "formats/crc32.h"
#include "formats/file_io.h"
#include "tests/support/check_main.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

/* ---- files ----------------------------------------------------------------------------------- */

static inline void box_folders_of(char *path) /* mkdir -p of all but the last part */
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        ck_assert_msg(mkdir(path, 0755) == 0 || errno == EEXIST, "%s: %s", path, strerror(errno));
        *slash = '/';
    }
}

static inline void box_copy_file(const char *from, const char *to)
{
    char *bytes;
    size_t nbytes;
    ck_ok(file_load(from, (size_t)1 << 32, &bytes, &nbytes));
    FILE *f = fopen(to, "wb");
    ck_assert_msg(f && fwrite(bytes, 1, nbytes, f) == nbytes && fclose(f) == 0, "%s: %s", to,
                  strerror(errno));
    free(bytes);
}

/* Files and folders of `from` into `to`, over what is there. */
static inline void box_copy(const char *from, const char *to)
{
    struct stat info;
    ck_assert_msg(stat(from, &info) == 0, "%s: %s", from, strerror(errno));
    if (!S_ISDIR(info.st_mode)) {
        box_copy_file(from, to);
        return;
    }
    ck_assert_msg(mkdir(to, 0755) == 0 || errno == EEXIST, "%s: %s", to, strerror(errno));
    DIR *dir = opendir(from);
    ck_assert_ptr_nonnull(dir);
    for (struct dirent *e; (e = readdir(dir));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        char *a = file_join(from, e->d_name), *b = file_join(to, e->d_name);
        box_copy(a, b);
        free(a);
        free(b);
    }
    closedir(dir);
}

static inline int box_remove_one(const char *path, const struct stat *info, int kind,
                                 struct FTW *level)
{
    (void)info, (void)kind, (void)level;
    return remove(path);
}

static inline void box_remove(const char *path)
{
    ck_assert_msg(nftw(path, box_remove_one, 16, FTW_DEPTH | FTW_PHYS) == 0 || errno == ENOENT,
                  "%s: %s", path, strerror(errno));
}

/* ---- what is there --------------------------------------------------------------------------- */

static int box_by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* A line per file below `path`: name, kind, permissions, bytes, CRC-32 or a link's target. */
static inline void box_list(FILE *to, const char *path, const char *except)
{
    struct stat info;
    if (strcmp(path, except) == 0 || lstat(path, &info) != 0) return;
    char target[4096] = "";
    uint32_t sum = 0;
    if (S_ISLNK(info.st_mode)) {
        ssize_t n = readlink(path, target, sizeof target - 1);
        target[n < 0 ? 0 : n] = '\0';
    } else if (S_ISREG(info.st_mode) && info.st_size <= 64 << 20) { /* larger ones are holes */
        char *bytes;
        size_t nbytes;
        ck_ok(file_load(path, (size_t)1 << 32, &bytes, &nbytes));
        sum = crc32_update(0, bytes, nbytes);
        free(bytes);
    }
    fprintf(to, "%s %o %lld %08x %s\n", path, (unsigned)info.st_mode,
            S_ISDIR(info.st_mode) ? 0 : (long long)info.st_size, sum, target);
    if (!S_ISDIR(info.st_mode)) return;
    char **names = NULL;
    size_t n = 0;
    DIR *dir = opendir(path);
    ck_assert_ptr_nonnull(dir);
    for (struct dirent *e; (e = readdir(dir));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        names = realloc(names, (n + 1) * sizeof *names);
        names[n++] = file_join(path, e->d_name);
    }
    closedir(dir);
    if (n > 1) qsort(names, n, sizeof *names, box_by_name);
    for (size_t i = 0; i < n; i++) {
        box_list(to, names[i], except);
        free(names[i]);
    }
    free(names);
}

static inline char *box_listing(const char *path, const char *except)
{
    char *text = NULL;
    size_t n;
    FILE *to = open_memstream(&text, &n);
    box_list(to, path, except);
    fclose(to);
    return text;
}

/* The first file below `path` that holds `mark`; the caller frees the name. NULL: none does. */
static inline char *box_find(const char *path, const char *mark)
{
    struct stat info;
    char *found = NULL;
    if (lstat(path, &info) != 0) return NULL;
    if (S_ISREG(info.st_mode)) {
        char *bytes;
        size_t nbytes;
        ck_ok(file_load(path, (size_t)1 << 32, &bytes, &nbytes));
        if (memmem(bytes, nbytes, mark, strlen(mark))) found = strdup(path);
        free(bytes);
    } else if (S_ISDIR(info.st_mode)) {
        DIR *dir = opendir(path);
        ck_assert_ptr_nonnull(dir);
        for (struct dirent *e; !found && (e = readdir(dir));) {
            if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
            char *name = file_join(path, e->d_name);
            found = box_find(name, mark);
            free(name);
        }
        closedir(dir);
    }
    return found;
}

/* ---- watching a folder that nothing may touch ------------------------------------------------ */

/* Watches for its files and folders being opened, changed or listed; the descriptor. */
static inline int box_watch(const char *path)
{
    int fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    const uint32_t what = IN_OPEN | IN_MODIFY | IN_ATTRIB | IN_CREATE | IN_DELETE | IN_MOVE;
    ck_assert_int_ge(inotify_add_watch(fd, path, what), 0);
    DIR *dir = opendir(path);
    ck_assert_ptr_nonnull(dir);
    for (struct dirent *e; (e = readdir(dir));) {
        if (e->d_type != DT_DIR || e->d_name[0] == '.') continue;
        char *name = file_join(path, e->d_name);
        ck_assert_int_ge(inotify_add_watch(fd, name, what), 0);
        free(name);
    }
    closedir(dir);
    char events[4096];
    while (read(fd, events, sizeof events) > 0) {
    } /* our own opendir() */
    return fd;
}

/* What happened since: the name of a file, "its folder", or NULL: nothing. Closes fd. */
static inline const char *box_touched(int fd)
{
    static char name[256];
    union {
        struct inotify_event event;
        char bytes[4096];
    } u;
    ssize_t n = read(fd, &u, sizeof u);
    close(fd);
    if (n <= 0) return NULL;
    snprintf(name, sizeof name, "%s", u.event.len > 0 ? u.event.name : "its folder");
    return name;
}

/* ---- a command ------------------------------------------------------------------------------- */

struct box_run {
    int code;        /* exit code; 128 + signal when one ended it */
    double seconds;  /* of processor time */
    long peak_kib;   /* largest resident size */
    char *out, *err; /* what it printed, terminated; the caller's to free */
    size_t n_out, n_err;
};

/* Limits far beyond what is asserted, for a command that would otherwise not end. */
#define BOX_WALL_SECONDS 240
#define BOX_FILE_NBYTES  ((rlim_t)256 << 20)

static inline void box_child(const char *dir, char *const argv[], int out, int err)
{
    const struct rlimit file = {BOX_FILE_NBYTES, BOX_FILE_NBYTES}, no_core = {0, 0};
    char path[512];
    char *const env[] = {(char *)"PATH=/usr/bin:/bin",
                         (char *)"HOME=user",
                         (char *)"TMPDIR=tmp",
                         (char *)"LC_ALL=C.UTF-8",
                         (char *)"OMP_NUM_THREADS=2",
                         (char *)"OMP_WAIT_POLICY=passive",
                         (char *)"ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1",
                         NULL};
    snprintf(path, sizeof path, "%s/%s", CZ_BINARY_DIR, argv[0]);
    setpgid(0, 0);
    setrlimit(RLIMIT_FSIZE, &file);
    setrlimit(RLIMIT_CORE, &no_core);
    int null = open("/dev/null", O_RDONLY);
    if (null < 0 || dup2(null, 0) < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0) _exit(126);
    alarm(BOX_WALL_SECONDS);
    if (chdir(dir) == 0) execve(path, argv, env);
    _exit(127);
}

static inline char *box_printed(int fd, size_t *n)
{
    struct stat info;
    ck_assert_int_eq(fstat(fd, &info), 0);
    *n = (size_t)info.st_size;
    char *text = calloc(1, *n + 1);
    ck_assert_ptr_nonnull(text);
    ck_assert_int_eq(pread(fd, text, *n, 0), (ssize_t)*n);
    close(fd);
    return text;
}

/* argv[0]: czero or zero_to_fp32, of this build; runs in `dir`. */
static inline struct box_run box_execute(const char *dir, char *const argv[])
{
    struct box_run run;
    struct rusage usage;
    int status, out = memfd_create("out", MFD_CLOEXEC), err = memfd_create("err", MFD_CLOEXEC);
    ck_assert(out >= 0 && err >= 0);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) box_child(dir, argv, out, err);
    ck_assert_int_eq(wait4(child, &status, 0, &usage), child);
    kill(-child, SIGKILL); /* what it may have left */
    run.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    run.seconds = (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                  (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
    run.peak_kib = usage.ru_maxrss;
    run.out = box_printed(out, &run.n_out);
    run.err = box_printed(err, &run.n_err);
    return run;
}

/* ---- what a terminal would be sent ----------------------------------------------------------- */

/* Text for people: UTF-8 without characters that a terminal obeys or that reorder a line. Gives
 * the offset of the first byte that is not; n: there is none. */
static inline size_t box_fault(const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        int len = utf8_length(s + i, n - i);
        if (len <= 0) return i;
        uint32_t c = utf8_decode(s + i, len);
        bool is_control = (c < 0x20 && c != '\n' && c != '\t') || (c >= 0x7f && c < 0xa0);
        bool is_bidi = (c >= 0x200e && c <= 0x200f) || (c >= 0x2028 && c <= 0x202e) ||
                       (c >= 0x2066 && c <= 0x2069) || c == 0x61c;
        if (is_control || is_bidi) return i;
        i += (size_t)len;
    }
    return n;
}

#endif
