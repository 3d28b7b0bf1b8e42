/* Limits that a container sets, from the files of control groups, versions 1 and 2. Limits hold
 * along the whole path from the process's group to the mount, so each level is visited; inside a
 * container the mount itself may be all that is visible. */
#include "base/host/cgroup.h"

#include "base/host/proc.h"

#include <stdio.h>
#include <string.h>

#define PATH_NBYTES 2048

/* A file with one number; `missing` where there is none, or it says "max". */
long long cgroup_number(const char *dir, const char *name, long long missing)
{
    char path[PATH_NBYTES];
    long long number = missing;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "re");
    if (!f) return missing;
    if (fscanf(f, "%lld", &number) != 1) number = missing;
    fclose(f);
    return number;
}

/* Whether a comma-separated list of controllers holds `name`; version 2 has an empty list. */
static bool lists(const char *controllers, const char *name)
{
    size_t len = strlen(name);
    if (len == 0) return *controllers == '\0';
    for (const char *at = controllers; at; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, name, len) == 0 && (at[len] == ',' || at[len] == '\0')) return true;
    }
    return false;
}

/* The part after the second colon of "4:cpu,cpuacct:/user.slice". */
void cgroup_group(const char *list, const char *controller, char *out, size_t out_nbytes)
{
    char line[PATH_NBYTES / 2];
    out[0] = '\0';
    FILE *f = fopen(list, "re");
    if (!f) return;
    while (fgets(line, sizeof line, f)) {
        char *controllers = strchr(line, ':');
        char *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path) continue;
        *path++ = '\0';
        path[strcspn(path, "\n")] = '\0';
        if (lists(controllers + 1, controller)) snprintf(out, out_nbytes, "%s", path);
    }
    fclose(f);
}

/* The mount, then the process's own group, then its parents. */
void cgroup_visit(const char *mount, const char *controller,
                  void (*visit)(const char *dir, void *user), void *user)
{
    char self[PATH_NBYTES / 2], dir[PATH_NBYTES - 32];
    cgroup_group("/proc/self/cgroup", controller, self, sizeof self);
    visit(mount, user);
    for (;;) {
        char *slash = strrchr(self, '/');
        if (!slash) return;
        snprintf(dir, sizeof dir, "%s%s", mount, self);
        visit(dir, user);
        *slash = '\0';
    }
}

/* ---- memory ---------------------------------------------------------------------------------- */

struct memory_files {
    const char *limit, *usage, *inactive;
};

static const struct memory_files version_2 = {"memory.max", "memory.current", "inactive_file"};
static const struct memory_files version_1 = {"memory.limit_in_bytes", "memory.usage_in_bytes",
                                              "total_inactive_file"};

struct tightest {
    const struct memory_files *files;
    size_t left, limit;
};

/* A counter by name in dir/file; `missing` when it is not there. */
static long long counter(const char *dir, const char *file, const char *name, long long missing)
{
    char path[PATH_NBYTES], key[64];
    long long value, found = missing;
    snprintf(path, sizeof path, "%s/%s", dir, file);
    FILE *f = fopen(path, "re");
    if (!f) return missing;
    while (fscanf(f, "%63s %lld", key, &value) == 2)
        if (strcmp(key, name) == 0) found = value;
    fclose(f);
    return found;
}

/* Page cache that the kernel can drop counts as free: a run that reads its data through the cache
 * would otherwise seem to be out of memory. */
static void take_tightest(const char *dir, void *user)
{
    struct tightest *t = user;
    long long limit = cgroup_number(dir, t->files->limit, -1);
    if (limit < 0) return;
    long long used =
        cgroup_number(dir, t->files->usage, 0) - counter(dir, "memory.stat", t->files->inactive, 0);
    long long left = used < 0 ? limit : used < limit ? limit - used : 0;
    if ((size_t)left >= t->left) return;
    t->left = (size_t)left;
    t->limit = (size_t)limit;
}

size_t cgroup_memory_left(const char *mount, size_t *limit_nbytes)
{
    char memory[PATH_NBYTES / 2];
    if (!mount) mount = CGROUP_MOUNT;
    snprintf(memory, sizeof memory, "%s/memory", mount);
    struct tightest t = {.files = &version_2, .left = SIZE_MAX, .limit = SIZE_MAX};
    cgroup_visit(mount, "", take_tightest, &t);
    t.files = &version_1;
    cgroup_visit(memory, "memory", take_tightest, &t);
    *limit_nbytes = t.limit;
    return t.left;
}

size_t host_memory_left(void)
{
    size_t limit, left = cgroup_memory_left(NULL, &limit);
    size_t available = proc_nbytes("/proc/meminfo", "MemAvailable:");
    return available > 0 && available < left ? available : left;
}

/* The group that is visited first after the mount is our own; the mount answers where it is all
 * that a container shows. */
struct kills {
    const char *file;
    int n_visited;
    long long n; /* −1: unknown */
};

static void take_kills(const char *dir, void *user)
{
    struct kills *k = user;
    if (k->n_visited++ < 2) k->n = counter(dir, k->file, "oom_kill", k->n);
}

/* Tells an out-of-memory kill from other deaths of a rank. The hybrid layout has both versions; the
 * one that counts is the larger. */
long long cgroup_oom_kills(const char *mount)
{
    char memory[PATH_NBYTES / 2];
    if (!mount) mount = CGROUP_MOUNT;
    snprintf(memory, sizeof memory, "%s/memory", mount);
    struct kills v1 = {.file = "memory.oom_control", .n = -1};
    struct kills v2 = {.file = "memory.events", .n = -1};
    cgroup_visit(memory, "memory", take_kills, &v1);
    cgroup_visit(mount, "", take_kills, &v2);
    return v1.n > v2.n ? v1.n : v2.n;
}
