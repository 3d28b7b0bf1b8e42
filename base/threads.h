/* The one OpenMP pool of a rank: how many threads, on which cores.
 *
 * Threads = OMP_NUM_THREADS if set, else (cores in the affinity mask, limited by the cgroup CPU
 * quota, rounded up) / ranks on this host, at least 1. oneDNN uses the same pool. */
#ifndef CZ_BASE_THREADS_H
#define CZ_BASE_THREADS_H

#include "base/status.h"

#include <stdbool.h>

CZ_EXTERN_C_BEGIN

/* Size the pool; call once, before the first parallel region (later calls change nothing unless
 * n_ranks_host differs). Waits are made passive when ranks × threads exceed the allowed cores.
 * n_ranks_host ≥ 1. Not thread-safe. */
void threads_init(int n_ranks_host);

/* The same for ranks whose share of the cores is known: n_threads ≥ 1, for each of the ranks on
 * this host, unless OMP_NUM_THREADS is set. threads_init() then changes nothing for as many. */
void threads_init_share(int n_threads, int n_ranks_host);

/* OMP_NUM_THREADS, of a list its first number; 0: not set, or empty; −1: no number of threads. */
int threads_asked(void);

/* How often a waiting thread of GNU OpenMP looks before it sleeps: some ten microseconds. Its own
 * default, milliseconds, takes the cores from the threads that are waited for when others run on
 * them too. The runtime reads the variable when it is loaded, so that only a program's start can
 * set it: czero starts itself again with it, czero launch gives it to ranks. */
#define THREADS_SPIN_VARIABLE "GOMP_SPINCOUNT"
#define THREADS_SPIN          "1000"

/* Whether the variable is to be set: the user has said nothing about waiting. */
bool threads_spin_is_free(void);

/* Threads that a parallel region will use (≥ 1). Every region that computes asks before: the
 * workers get the floating-point settings of the entry (base/host/entry.h). */
int threads_count(void);

/* Cores this process may use, not hardware threads: affinity ∩ CPU quota (≥ 1), the tightest of our
 * control group and those above it, version 1 (in cgroup_dir/cpu) or 2. `cgroup_dir` NULL:
 * /sys/fs/cgroup. */
int threads_allowed_cores(const char *cgroup_dir);

/* The CPU quota alone, in cores rounded up; 0 without one. */
int threads_quota_cores(const char *cgroup_dir);

/* Split [0, n) into `n_parts` nearly equal pieces, each a multiple of `unit` but the last; gives
 * piece `part` as [*begin, *end). Independent of timing, so reductions over parts repeat. */
static inline void threads_split(size_t n, size_t unit, int n_parts, int part, size_t *begin,
                                 size_t *end)
{
    size_t n_units = (n + unit - 1) / unit;
    size_t lo = n_units * (size_t)part / (size_t)n_parts * unit;
    size_t hi = n_units * ((size_t)part + 1) / (size_t)n_parts * unit;
    *begin = lo < n ? lo : n;
    *end = hi < n ? hi : n;
}

CZ_EXTERN_C_END
#endif
