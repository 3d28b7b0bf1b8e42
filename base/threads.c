#include "base/threads.h"

#include <limits.h>
#include <omp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PATH_NBYTES 2048

/* A quota of CPU time per period as a number of cores, rounded up; 0: no limit. */
static int cores(long long quota, long long period)
{
    if (quota <= 0 || period <= 0) return 0;
    long long n = (quota - 1) / period + 1;
    return n <= INT_MAX ? (int)n : 0;
}

/* Version 2: "cpu.max" holds both; "max 100000" has no limit and reads as no number. */
static int quota_v2(const char *dir)
{
    char path[PATH_NBYTES];
    long long quota = 0, period = 0;
    snprintf(path, sizeof path, "%s/cpu.max", dir);
    FILE *f = fopen(path, "re");
    if (!f) return 0;
    int n_read = fscanf(f, "%lld %lld", &quota, &period);
    fclose(f);
    return n_read == 2 ? cores(quota, period) : 0;
}

static long long read_number(const char *dir, const char *name)
{
    char path[PATH_NBYTES];
    long long number = 0;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "re");
    if (!f) return 0;
    if (fscanf(f, "%lld", &number) != 1) number = 0;
    fclose(f);
    return number;
}

/* Version 1: two files; the quota is -1 without a limit. */
static int quota_v1(const char *dir)
{
    return cores(read_number(dir, "cpu.cfs_quota_us"), read_number(dir, "cpu.cfs_period_us"));
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

/* Our own group's path in the hierarchy of `controller`, below its mount: the part after the second
 * colon of "4:cpu,cpuacct:/user.slice"; "" when unknown. */
static void cgroup_self(const char *controller, char *out, size_t out_nbytes)
{
    char line[PATH_NBYTES / 2];
    out[0] = '\0';
    FILE *f = fopen("/proc/self/cgroup", "re");
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

/* The tightest quota from our group up to the mount; 0 when there is none. */
static int cgroup_limit_cores(const char *mount, const char *controller,
                              int (*quota_of)(const char *dir))
{
    char self[PATH_NBYTES / 2], dir[PATH_NBYTES - 32];
    cgroup_self(controller, self, sizeof self);
    int limit = quota_of(mount);
    for (;;) {
        snprintf(dir, sizeof dir, "%s%s", mount, self);
        int quota = quota_of(dir);
        if (quota > 0 && (limit == 0 || quota < limit)) limit = quota;
        char *slash = strrchr(self, '/');
        if (!slash) return limit;
        *slash = '\0';
    }
}

/* Cores in the affinity mask, however many the kernel was built for. */
static int affinity_cores(void)
{
    for (int n_cpus = CPU_SETSIZE; n_cpus <= 1 << 20; n_cpus *= 2) {
        size_t nbytes = CPU_ALLOC_SIZE((size_t)n_cpus);
        cpu_set_t *set = CPU_ALLOC((size_t)n_cpus);
        if (!set) return 1;
        int n = sched_getaffinity(0, nbytes, set) == 0 ? CPU_COUNT_S(nbytes, set) : 0;
        CPU_FREE(set);
        if (n > 0) return n;
    }
    return 1;
}

int threads_allowed_cores(const char *cgroup_dir)
{
    const char *mount = cgroup_dir ? cgroup_dir : "/sys/fs/cgroup";
    char cpu[PATH_NBYTES / 2];
    snprintf(cpu, sizeof cpu, "%s/cpu", mount);
    int n_cores = affinity_cores();
    const int limits[] = {cgroup_limit_cores(mount, "", quota_v2),
                          cgroup_limit_cores(cpu, "cpu", quota_v1)};
    for (size_t i = 0; i < CZ_ARRAY_LEN(limits); i++)
        if (limits[i] > 0 && limits[i] < n_cores) n_cores = limits[i];
    return n_cores;
}

void threads_init(int n_ranks_host)
{
    static int done_for;
    if (done_for == n_ranks_host) return;
    done_for = n_ranks_host;
    int allowed = threads_allowed_cores(NULL);
    int n_threads = allowed / n_ranks_host > 0 ? allowed / n_ranks_host : 1;
    const char *asked = getenv("OMP_NUM_THREADS");
    if (asked && atoi(asked) > 0) n_threads = atoi(asked);
    /* libgomp reads the wait policy when it is loaded, so only a child started by us sees this. */
    if (n_threads * n_ranks_host > allowed) setenv("OMP_WAIT_POLICY", "passive", 0);
    omp_set_dynamic(0);
    omp_set_num_threads(n_threads);
}

int threads_count(void)
{
    return omp_get_max_threads();
}
