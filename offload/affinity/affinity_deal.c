/* Dealing cores: pure arithmetic. A share is a run of cores, so that all there is to decide is
 * where to cut. */
#include "offload/affinity/affinity_impl.h"

#include <math.h>
#include <stdlib.h>

/* ---- cuts between ranks ---------------------------------------------------------------------- */

/* What the cuts are made for. */
struct deal {
    const struct affinity_cores *c;
    int n_each; /* no share is smaller */
    int *cuts;
};

/* Whether cores i−1 and i belong to different nodes (or last-level caches). */
static bool is_edge(const struct affinity_cores *c, int i, bool of_caches)
{
    const struct affinity_core *a = &c->v[i - 1], *b = &c->v[i];
    return of_caches ? a->cache != b->cache : a->node != b->node;
}

/* How many shares fit into [begin, end) without crossing edges; of_caches −1: edges do not matter.
 */
static int capacity(const struct deal *d, int begin, int end, int of_caches)
{
    int n = 0, from = begin;
    for (int at = begin + 1; at <= end; at++) {
        if (at < end && (of_caches < 0 || !is_edge(d->c, at, of_caches))) continue;
        n += (at - from) / d->n_each;
        from = at;
    }
    return n;
}

/* How many of `n_ranks` ranks over [begin, end) go before core `at`: as many as is fair, as far as
 * both sides have enough cores; −1: at cannot be a cut. 0 and n_ranks leave one side to a
 * neighbour. */
static int ranks_before(const struct deal *d, int begin, int at, int end, int n_ranks,
                        int of_caches)
{
    int fair = (int)lround((double)(at - begin) * n_ranks / (end - begin));
    int least = n_ranks - capacity(d, at, end, of_caches);
    int most = capacity(d, begin, at, of_caches);
    if (least > most) return -1;
    if (most > n_ranks) most = n_ranks;
    if (fair < least) return least;
    return fair < most ? fair : most;
}

/* Greedy from the left: an edge becomes a cut if, with as many ranks on either side as is fair,
 * both sides still hold theirs. What has no edge left is cut one level finer.
 *
 * Cut [begin, end) for ranks first … first + n_ranks − 1 at edges where that may be: of nodes at
 * level 0, of caches at 1; evenly at 2. cuts[first] and cuts[first + n_ranks] are decided. */
static void cut(struct deal *d, int begin, int end, int first, int n_ranks, int level)
{
    /* Where not every share fits, edges that happen to suit are used all the same. */
    int edges = level < 2 && capacity(d, begin, end, level) >= n_ranks ? level : -1;
    for (int at = begin + 1; level < 2 && n_ranks > 1 && at < end; at++) {
        if (!is_edge(d->c, at, level == 1)) continue;
        int n_before = ranks_before(d, begin, at, end, n_ranks, edges);
        if (n_before < 0) continue;
        if (n_before > 0) cut(d, begin, at, first, n_before, level + 1);
        if (n_before == n_ranks) return;
        if (n_before > 0) d->cuts[first + n_before] = at;
        begin = at;
        first += n_before;
        n_ranks -= n_before;
    }
    if (level < 2 && n_ranks > 1) {
        cut(d, begin, end, first, n_ranks, level + 1);
        return;
    }
    for (int i = 1; i < n_ranks; i++)
        d->cuts[first + i] = begin + (int)((int64_t)(end - begin) * i / n_ranks);
}

void affinity_deal(const struct affinity_cores *c, int n_ranks, int *cuts)
{
    struct deal d = {.c = c, .n_each = c->n / n_ranks, .cuts = cuts};
    cuts[0] = 0;
    cuts[n_ranks] = c->n;
    cut(&d, 0, c->n, 0, n_ranks, 0);
}

void affinity_match(const struct affinity_cores *c, const int *cuts, const int *wants, int n_ranks,
                    int *runs)
{
    for (int r = 0; r < n_ranks; r++) runs[r] = -1;
    for (int pass = 0; pass < 2; pass++) /* first those that would like something */
        for (int r = 0; r < n_ranks; r++)
            for (int run = 0; run < n_ranks && runs[r] < 0; run++) {
                bool is_taken = false;
                for (int other = 0; other < n_ranks; other++) is_taken |= runs[other] == run;
                if (!is_taken && (pass == 1 || c->v[cuts[run]].node == wants[r])) runs[r] = run;
            }
}

/* ---- threads on cores ------------------------------------------------------------------------ */

/* Narrow [*begin, *end) to one node if n_threads have a core each there: to `near`, or the largest.
 */
static void stay_on_a_node(const struct affinity_cores *c, int n_threads, int near, int *begin,
                           int *end)
{
    int best_begin = *begin, best_end = *end;
    bool has_best = false, is_near = false;
    for (int i = *begin, next; i < *end && !is_near; i = next) {
        for (next = i + 1; next < *end && !is_edge(c, next, false);) next++;
        if (next - i < n_threads) continue;
        is_near = c->v[i].node == near;
        if (has_best && !is_near && next - i <= best_end - best_begin) continue;
        has_best = true;
        best_begin = i;
        best_end = next;
    }
    *begin = best_begin;
    *end = best_end;
}

/* How many hardware threads of each core n_threads need: round after round over the cores. Returns
 * how many there are. */
static int spread(const struct affinity_cores *c, int begin, int end, int n_threads, int *n_of)
{
    int n = 0;
    for (int round = 1, before = -1; n < n_threads && n > before; round++) {
        before = n;
        for (int i = begin; i < end && n < n_threads; i++)
            if (hwloc_bitmap_weight(c->v[i].cpus) >= round) {
                n_of[i - begin]++;
                n++;
            }
    }
    return n;
}

/* Cores have run out: a hardware thread each, in the order of the cores. */
static cz_status take_hardware_threads(const struct affinity_cores *c, int begin, int end,
                                       int n_threads, hwloc_cpuset_t *sets, bool *is_enough)
{
    int *n_of = calloc((size_t)(end - begin), sizeof *n_of), thread = 0;
    if (!n_of) return err_set(CZ_NOMEM, 0, "no memory for %d cores", end - begin);
    int n = spread(c, begin, end, n_threads, n_of);
    *is_enough = n == n_threads;
    for (int i = begin; i < end; i++)
        for (int k = 0, cpu = -1; k < n_of[i - begin]; k++) {
            cpu = hwloc_bitmap_next(c->v[i].cpus, cpu);
            hwloc_bitmap_set(sets[thread++], (unsigned)cpu);
        }
    for (; thread < n_threads; thread++) hwloc_bitmap_copy(sets[thread], sets[thread % n]);
    free(n_of);
    return CZ_OK;
}

cz_status affinity_threads(const struct affinity_cores *c, int begin, int end, int near,
                           int n_threads, hwloc_cpuset_t *sets, bool *is_enough)
{
    *is_enough = true;
    if (n_threads > end - begin)
        return take_hardware_threads(c, begin, end, n_threads, sets, is_enough);
    stay_on_a_node(c, n_threads, near, &begin, &end);
    int64_t n = end - begin;
    for (int t = 0; t < n_threads; t++) { /* neighbouring cores, all on the node of the first */
        int first = begin + (int)(n * t / n_threads), next = begin + (int)(n * (t + 1) / n_threads);
        for (int i = first; i < next && c->v[i].node == c->v[first].node; i++)
            if (hwloc_bitmap_or(sets[t], sets[t], c->v[i].cpus) != 0)
                return err_set(CZ_NOMEM, 0, "no memory for sets of processors");
    }
    return CZ_OK;
}
