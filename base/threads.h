/* The one OpenMP pool of a rank: how many threads, on which cores.
 *
 * Threads = OMP_NUM_THREADS if set, else (cores in the affinity mask, limited by the cgroup CPU
 * quota, rounded up) / ranks on this host, at least 1. oneDNN uses the same pool. */
#ifndef CZ_BASE_THREADS_H
#define CZ_BASE_THREADS_H

#include "base/status.h"

CZ_EXTERN_C_BEGIN

/* Size the pool; call once, before the first parallel region (later calls change nothing unless
 * n_ranks_host differs). Waits are made passive when ranks × threads exceed the allowed cores.
 * n_ranks_host ≥ 1. Not thread-safe. */
void threads_init(int n_ranks_host);

/* The same for ranks whose share of the cores is known: n_threads ≥ 1, for each of the ranks on
 * this host, unless OMP_NUM_THREADS is set. threads_init() then changes nothing for as many. */
void threads_init_share(int n_threads, int n_ranks_host);

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
