/* How many threads a rank may use: its share of the cores that this process is allowed, within the
 * container's quota. Too many threads are worse than too few: they wait for each other at every
 * barrier. */
#include "base/threads.h"

#include "base/host/cgroup.h"
#include "base/host/entry.h"
#include "base/host/processors.h"
#include "base/log.h"

#include <errno.h>
#include <limits.h>
#include <omp.h>
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

/* Version 1: two files; the quota is -1 without a limit. */
static int quota_v1(const char *dir)
{
    return cores(cgroup_number(dir, "cpu.cfs_quota_us", 0),
                 cgroup_number(dir, "cpu.cfs_period_us", 0));
}

struct tightest {
    int (*quota_of)(const char *dir);
    int limit; /* 0: none yet */
};

/* The tightest quota on the path counts. */
static void take_tightest(const char *dir, void *user)
{
    struct tightest *t = user;
    int quota = t->quota_of(dir);
    if (quota > 0 && (t->limit == 0 || quota < t->limit)) t->limit = quota;
}

/* The tightest quota from our group up to the mount; 0 when there is none. */
static int cgroup_limit_cores(const char *mount, const char *controller,
                              int (*quota_of)(const char *dir))
{
    struct tightest t = {.quota_of = quota_of};
    cgroup_visit(mount, controller, take_tightest, &t);
    return t.limit;
}

/* Both versions of control groups may be mounted at once. */
int threads_quota_cores(const char *cgroup_dir)
{
    const char *mount = cgroup_dir ? cgroup_dir : CGROUP_MOUNT;
    char cpu[PATH_NBYTES / 2];
    snprintf(cpu, sizeof cpu, "%s/cpu", mount);
    int v2 = cgroup_limit_cores(mount, "", quota_v2);
    int v1 = cgroup_limit_cores(cpu, "cpu", quota_v1);
    if (v1 == 0 || v2 == 0) return v1 + v2;
    return v1 < v2 ? v1 : v2;
}

int threads_allowed_cores(const char *cgroup_dir)
{
    struct processors allowed;
    processors_allowed(&allowed);
    processors_keep_cores(&allowed, NULL);
    int n_cores = processors_count(&allowed), quota = threads_quota_cores(cgroup_dir);
    return quota > 0 && quota < n_cores ? quota : n_cores;
}

static int sized_for; /* ranks on this host; 0: not yet */

int threads_asked(void)
{
    const char *text = getenv("OMP_NUM_THREADS");
    char *end;
    if (!text || text[strspn(text, " ")] == '\0') return 0;
    errno = 0;
    const long n = strtol(text, &end, 10);
    end += strspn(end, " ");
    return errno == 0 && n > 0 && n <= INT_MAX && (*end == '\0' || *end == ',') ? (int)n : -1;
}

/* OMP_NUM_THREADS is the user's word and is kept. */
void threads_init_share(int n_threads, int n_ranks_host)
{
    sized_for = n_ranks_host;
    const int asked = threads_asked();
    if (asked > 0) n_threads = asked;
    if (asked < 0)
        LOGV(LOG_WARN, SUB_ENGINE, "OMP_NUM_THREADS=%s is not a number of threads: using %d",
             getenv("OMP_NUM_THREADS"), n_threads);
    if (entry_lost_workers()) {
        LOGV(LOG_WARN, SUB_ENGINE,
             "this process was forked after its parent had used threads: it computes with one");
        n_threads = 1;
    }
    omp_set_dynamic(0);
    omp_set_num_threads(n_threads);
}

/* Once for a given number of ranks: a second communicator must not change the threads of a running
 * engine. */
void threads_init(int n_ranks_host)
{
    if (sized_for == n_ranks_host) return;
    int allowed = threads_allowed_cores(NULL);
    threads_init_share(allowed / n_ranks_host > 0 ? allowed / n_ranks_host : 1, n_ranks_host);
    /* libgomp reads the wait policy when it is loaded, so only a child started by us sees this. */
    if (omp_get_max_threads() * n_ranks_host > allowed) setenv("OMP_WAIT_POLICY", "passive", 0);
}

bool threads_spin_is_free(void)
{
    return !getenv(THREADS_SPIN_VARIABLE) && !getenv("OMP_WAIT_POLICY");
}

int threads_count(void)
{
    const int n = omp_get_max_threads();
    if (n > 1) entry_use_workers();
    return n;
}
