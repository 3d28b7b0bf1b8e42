/* A disk that loses power: what is on it when only what was synced is sure to be there.
 *
 * Include it in the one .c file of a test program: it replaces the system calls through which czero
 * makes, renames, links, removes and syncs names. While power_watch(root) is on, each of them is
 * noted. A folder's changes are pending until that folder is synced, a file's bytes until the file
 * is. power_cut(to, choice) writes into the new folder `to` what a power cut now could leave of
 * root: a file that was never synced is empty, and of each folder's pending changes there is none,
 * all, the first few or any selection, by choice. A rename or an exchange happens whole or not at
 * all, as journals and POSIX promise.
 *
 * power_before_change, if set, is called before every change: the moments to cut at. */
#ifndef CZ_TESTS_POWER_CUT_H
#define CZ_TESTS_POWER_CUT_H

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <check.h>
#include <dirent.h>

#define POWER_NODES   512
#define POWER_ENTRIES 64
#define POWER_PENDING 256

struct power_entry {
    char name[256];
    int node;
};

/* One change of a folder: up to two names get a node (-1: they go). */
struct power_change {
    struct power_entry set[2];
    int n;
};

struct power_node {
    ino_t ino;
    bool is_dir;
    char *bytes; /* of a file, as last synced */
    size_t nbytes;
    struct power_entry entries[POWER_ENTRIES]; /* of a folder, as last synced */
    int n_entries;
    struct power_change pending[POWER_PENDING];
    int n_pending;
};

static struct {
    char root[PATH_MAX];
    bool on;
    bool no_exchange;
    struct power_node *nodes;
    int n_nodes;
    uint32_t seed;
} power;

static void (*power_before_change)(void);

/* ---- the model ------------------------------------------------------------------------------- */

static inline int power_node_new(ino_t ino, bool is_dir)
{
    ck_assert_int_lt(power.n_nodes, POWER_NODES);
    for (int i = 0; i < power.n_nodes; i++)
        if (power.nodes[i].ino == ino) power.nodes[i].ino = 0; /* its number is used again */
    power.nodes[power.n_nodes] = (struct power_node){.ino = ino, .is_dir = is_dir};
    return power.n_nodes++;
}

static inline int power_node_of(const char *path)
{
    struct stat info;
    if (lstat(path, &info) != 0) return -1;
    for (int i = 0; i < power.n_nodes; i++)
        if (power.nodes[i].ino == info.st_ino) return i;
    return -1;
}

static inline void power_set(struct power_node *dir, const struct power_entry *entry)
{
    for (int i = 0; i < dir->n_entries; i++) {
        if (strcmp(dir->entries[i].name, entry->name) != 0) continue;
        dir->entries[i].node = entry->node;
        return;
    }
    ck_assert_int_lt(dir->n_entries, POWER_ENTRIES);
    dir->entries[dir->n_entries++] = *entry;
}

static inline void power_apply(struct power_node *dir, const struct power_change *change)
{
    for (int i = 0; i < change->n; i++) power_set(dir, &change->set[i]);
}

/* The folder that holds path, and the name in it; NULL if nothing is watched. */
static inline struct power_node *power_parent(const char *path, const char **name)
{
    char dir[PATH_MAX];
    size_t n = strlen(power.root);
    if (!power.on || strncmp(path, power.root, n) != 0 || path[n] != '/') return NULL;
    const char *slash = strrchr(path, '/');
    snprintf(dir, sizeof dir, "%.*s", (int)(slash - path), path);
    int node = power_node_of(dir);
    ck_assert_msg(node >= 0, "%s is not known", dir);
    *name = slash + 1;
    return &power.nodes[node];
}

static inline void power_note(const char *path, int node, const char *path2, int node2)
{
    const char *name, *name2 = "";
    struct power_node *dir = power_parent(path, &name);
    if (!dir) return;
    if (path2) ck_assert_ptr_eq(power_parent(path2, &name2), dir);
    ck_assert_int_lt(dir->n_pending, POWER_PENDING);
    struct power_change *change = &dir->pending[dir->n_pending++];
    change->n = path2 ? 2 : 1;
    snprintf(change->set[0].name, 256, "%s", name);
    snprintf(change->set[1].name, 256, "%s", name2);
    change->set[0].node = node;
    change->set[1].node = node2;
}

static inline void power_moment(const char *path)
{
    const char *name;
    if (power.on && power_before_change && power_parent(path, &name)) power_before_change();
}

static inline void power_synced(int fd)
{
    struct stat info;
    if (!power.on || fstat(fd, &info) != 0) return;
    for (int i = 0; i < power.n_nodes; i++) {
        struct power_node *node = &power.nodes[i];
        if (node->ino != info.st_ino) continue;
        for (int k = 0; k < node->n_pending; k++) power_apply(node, &node->pending[k]);
        node->n_pending = 0;
        if (node->is_dir) continue;
        node->bytes = realloc(node->bytes, (size_t)info.st_size + 1);
        node->nbytes = (size_t)info.st_size;
        char self[64];
        snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
        int again = (int)syscall(SYS_openat, AT_FDCWD, self, O_RDONLY, 0);
        ck_assert_int_eq(syscall(SYS_pread64, again, node->bytes, node->nbytes, 0), info.st_size);
        close(again);
    }
}

/* All that is under `path` now is on disk. */
static inline int power_scan(const char *path)
{
    struct stat info;
    ck_assert_int_eq(lstat(path, &info), 0);
    int id = power_node_new(info.st_ino, S_ISDIR(info.st_mode));
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY, 0);
    power_synced(fd);
    close(fd);
    DIR *dir = power.nodes[id].is_dir ? opendir(path) : NULL;
    for (struct dirent *e = dir ? readdir(dir) : NULL; e; e = readdir(dir)) {
        char child[PATH_MAX];
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        snprintf(child, sizeof child, "%s/%s", path, e->d_name);
        struct power_entry entry = {.node = power_scan(child)};
        snprintf(entry.name, sizeof entry.name, "%s", e->d_name);
        power_set(&power.nodes[id], &entry);
    }
    if (dir) closedir(dir);
    return id;
}

/* End watching and forget the disk. */
static inline void power_unwatch(void)
{
    for (int i = 0; i < power.n_nodes; i++) free(power.nodes[i].bytes);
    free(power.nodes);
    power.nodes = NULL;
    power.n_nodes = 0;
    power.on = false;
}

static inline void power_watch(const char *root)
{
    snprintf(power.root, sizeof power.root, "%s", root);
    power_unwatch();
    power.nodes = calloc(POWER_NODES, sizeof *power.nodes);
    power.on = true;
    power_scan(root);
}

/* ---- the cut --------------------------------------------------------------------------------- */

static inline uint32_t power_random(void)
{
    power.seed = power.seed * 1664525u + 1013904223u;
    return power.seed >> 8;
}

static inline void power_write_node(int id, const char *path, int choice);

/* choice 0: nothing that is pending; 1: all; 2: the first few; others: any. */
static inline void power_write_dir(const struct power_node *dir, const char *path, int choice)
{
    struct power_node *left = malloc(sizeof *left);
    *left = *dir;
    int first = choice == 2 ? (int)(power_random() % (uint32_t)(dir->n_pending + 1)) : 0;
    for (int i = 0; i < dir->n_pending; i++)
        if (choice == 1 || (choice == 2 && i < first) || (choice > 2 && power_random() % 2))
            power_apply(left, &dir->pending[i]);
    ck_assert_int_eq(syscall(SYS_mkdirat, AT_FDCWD, path, 0777), 0);
    for (int i = 0; i < left->n_entries; i++) {
        char child[PATH_MAX];
        snprintf(child, sizeof child, "%s/%s", path, left->entries[i].name);
        if (left->entries[i].node >= 0) power_write_node(left->entries[i].node, child, choice);
    }
    free(left);
}

static inline void power_write_node(int id, const char *path, int choice)
{
    const struct power_node *node = &power.nodes[id];
    if (node->is_dir) {
        power_write_dir(node, path, choice);
        return;
    }
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(syscall(SYS_pwrite64, fd, node->bytes, node->nbytes, 0), (long)node->nbytes);
    close(fd);
}

static inline void power_cut(const char *to, int choice)
{
    bool on = power.on;
    power.on = false;
    power_write_node(0, to, choice);
    power.on = on;
}

/* ---- the calls ------------------------------------------------------------------------------- */

static inline const char *power_path_at(int dir, const char *path)
{
    static char whole[PATH_MAX];
    char self[64], folder[PATH_MAX / 2];
    if (dir == AT_FDCWD || path[0] == '/') return path;
    snprintf(self, sizeof self, "/proc/self/fd/%d", dir);
    ssize_t n = readlink(self, folder, sizeof folder - 1);
    snprintf(whole, sizeof whole, "%.*s/%s", n > 0 ? (int)n : 0, folder, path);
    return whole;
}

static int power_open(int dir, const char *name, int flags, mode_t mode)
{
    const char *path = power_path_at(dir, name);
    if ((flags & O_TMPFILE) == O_TMPFILE && power.on) { /* files with names, so that they show */
        errno = EOPNOTSUPP;
        return -1;
    }
    struct stat info;
    bool is_new = (flags & O_CREAT) && lstat(path, &info) != 0;
    if (is_new) power_moment(path);
    int fd = (int)syscall(SYS_openat, dir, name, flags, mode);
    if (power.on && is_new && fd >= 0 && fstat(fd, &info) == 0)
        power_note(power_path_at(dir, name), power_node_new(info.st_ino, false), NULL, 0);
    return fd;
}

int open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(args, mode_t) : 0;
    va_end(args);
    return power_open(AT_FDCWD, path, flags, mode);
}

int openat(int dir, const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(args, mode_t) : 0;
    va_end(args);
    return power_open(dir, path, flags, mode);
}

int mkdirat(int dir, const char *name, mode_t mode)
{
    struct stat info;
    power_moment(power_path_at(dir, name));
    int failed = (int)syscall(SYS_mkdirat, dir, name, mode);
    if (power.on && failed == 0 && fstatat(dir, name, &info, 0) == 0)
        power_note(power_path_at(dir, name), power_node_new(info.st_ino, true), NULL, 0);
    return failed;
}

int mkdir(const char *path, mode_t mode)
{
    return mkdirat(AT_FDCWD, path, mode);
}

int fsync(int fd)
{
    if (power.on && power_before_change) power_before_change();
    power_synced(fd);
    return 0;
}

int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags)
{
    char source[PATH_MAX];
    if (power.no_exchange && (flags & RENAME_EXCHANGE)) {
        errno = EINVAL;
        return -1;
    }
    snprintf(source, sizeof source, "%s", power_path_at(from_dir, from));
    power_moment(source);
    int node = power_node_of(source);
    int node2 = flags & RENAME_EXCHANGE ? power_node_of(power_path_at(to_dir, to)) : -1;
    int failed = (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, flags);
    if (failed == 0) power_note(source, node2, power_path_at(to_dir, to), node);
    return failed;
}

int renameat(int from_dir, const char *from, int to_dir, const char *to)
{
    return renameat2(from_dir, from, to_dir, to, 0);
}

int rename(const char *from, const char *to)
{
    return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0);
}

int linkat(int from_dir, const char *from, int to_dir, const char *to, int flags)
{
    char source[PATH_MAX];
    snprintf(source, sizeof source, "%s", power_path_at(from_dir, from));
    power_moment(power_path_at(to_dir, to));
    int failed = (int)syscall(SYS_linkat, from_dir, from, to_dir, to, flags);
    if (failed == 0) power_note(power_path_at(to_dir, to), power_node_of(source), NULL, 0);
    return failed;
}

int unlinkat(int dir, const char *path, int flags)
{
    power_moment(power_path_at(dir, path));
    int failed = (int)syscall(SYS_unlinkat, dir, path, flags);
    if (failed == 0) power_note(power_path_at(dir, path), -1, NULL, 0);
    return failed;
}

int unlink(const char *path)
{
    return unlinkat(AT_FDCWD, path, 0);
}

#endif
