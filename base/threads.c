#include "base/threads.h"

#include <omp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Quota of one cgroup v2 directory in cores, rounded up; 0 when unlimited or unreadable. */
static int cgroup_quota_cores(const char *dir)
{
    char path[512];
    snprintf(path, sizeof path, "%s/cpu.max", dir);
    FILE *f = fopen(path, "re");
    if (!f) return 0;
    long long quota = 0, period = 0;
    int n_read = fscanf(f, "%lld %lld", &quota, &period);
    fclose(f);
    if (n_read != 2 || quota <= 0 || period <= 0) return 0; /* "max 100000" reads as 0 fields */
    return (int)((quota + period - 1) / period);
}

/* The path of our own cgroup below the mount ("0::/user.slice/…"), "" when unknown. */
static void cgroup_self(char *out, size_t out_nbytes)
{
    out[0] = '\0';
    FILE *f = fopen("/proc/self/cgroup", "re");
    if (!f) return;
    char line[384];
    while (fgets(line, sizeof line, f))
        if (strncmp(line, "0::", 3) == 0) {
            line[strcspn(line, "\n")] = '\0';
            snprintf(out, out_nbytes, "%s", line + 3);
        }
    fclose(f);
}

/* The tightest quota from our cgroup up to the mount; 0 when there is none. */
static int cgroup_limit_cores(const char *mount)
{
    char self[384], dir[480];
    cgroup_self(self, sizeof self);
    int limit = cgroup_quota_cores(mount);
    for (;;) {
        snprintf(dir, sizeof dir, "%s%s", mount, self);
        int quota = cgroup_quota_cores(dir);
        if (quota > 0 && (limit == 0 || quota < limit)) limit = quota;
        char *slash = strrchr(self, '/');
        if (!slash) return limit;
        *slash = '\0';
    }
}

int threads_allowed_cores(const char *cgroup_dir)
{
    cpu_set_t set;
    int n_cores = 1;
    if (sched_getaffinity(0, sizeof set, &set) == 0) n_cores = CPU_COUNT(&set);
    int limit = cgroup_limit_cores(cgroup_dir ? cgroup_dir : "/sys/fs/cgroup");
    if (limit > 0 && limit < n_cores) n_cores = limit;
    return n_cores > 0 ? n_cores : 1;
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
