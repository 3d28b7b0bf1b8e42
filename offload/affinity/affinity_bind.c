/* Threads are bound to their cores and memory to its node: the only part of affinity that changes
 * anything. Where the system refuses, training continues unbound: it is slower, not wrong. */
#include "offload/affinity/affinity_impl.h"

#include "base/log.h"

#include <errno.h>
#include <omp.h>
#include <stdatomic.h>

/* The affinity that bound this thread last; 0: none. Threads of a pool come and go. */
static _Thread_local unsigned bound_by;

static int bind_thread(const struct affinity *p, hwloc_const_cpuset_t set)
{
    return hwloc_set_cpubind(p->topology, set, HWLOC_CPUBIND_THREAD) == 0 ? 0 : errno;
}

/* Where the caller, and what it starts, may run: wherever its threads do. */
static int widen_caller(const struct affinity *p)
{
    hwloc_bitmap_t all = hwloc_bitmap_dup(p->threads[0]);
    if (!all) return ENOMEM;
    for (int t = 1; t < p->n_threads; t++) hwloc_bitmap_or(all, all, p->threads[t]);
    int error = bind_thread(p, all);
    hwloc_bitmap_free(all);
    return error;
}

/* What the caller could use before any affinity bound it; the last one that is destroyed gives it
 * back. */
static hwloc_bitmap_t original;
static int n_bound;

bool affinity_can_bind(const struct affinity *p)
{
    return p->is_dealt && p->is_here;
}

void affinity_bind_threads(struct affinity *p)
{
    static atomic_bool was_said;
    atomic_int error = 0;
    if (!affinity_can_bind(p)) return;
    if (!p->is_bound) {
        if (n_bound == 0) original = hwloc_bitmap_alloc();
        if (n_bound == 0 && original)
            hwloc_get_cpubind(p->topology, original, HWLOC_CPUBIND_THREAD);
        p->is_bound = true;
        n_bound++;
    }
#pragma omp parallel num_threads(p->n_threads)
    {
        int thread = omp_get_thread_num();
        if (bound_by != p->id) {
            int mine = bind_thread(p, p->threads[thread]);
            if (mine == 0 && thread == 0) mine = widen_caller(p);
            if (mine != 0) error = mine;
            bound_by = p->id; /* also when it was refused: once is enough */
        }
    }
    if (error != 0 && !atomic_exchange(&was_said, true))
        LOGV(LOG_INFO, SUB_ENGINE, "threads stay unbound: the system refused (%s)",
             strerrordesc_np(error));
}

/* Affinities may overlap in time (a measurement beside an engine): only the last one that goes
 * gives threads their old masks back. */
void affinity_unbind_threads(struct affinity *p)
{
    if (!p->is_bound || --n_bound > 0) return;
    if (original && !hwloc_bitmap_iszero(original)) {
#pragma omp parallel num_threads(p->n_threads)
        {
            bind_thread(p, original);
            bound_by = 0;
        }
    }
    hwloc_bitmap_free(original);
    original = NULL;
}

/* The user's own policy (numactl) stays. Without a policy of ours pages come from the node of the
 * thread that touches them, which is right for a rank on several nodes. */
void affinity_bind_memory(const struct affinity *p, void *base, size_t nbytes)
{
    hwloc_membind_policy_t policy = HWLOC_MEMBIND_MIXED;
    hwloc_bitmap_t nodes = hwloc_bitmap_alloc();
    if (!nodes) return;
    if (p->is_here && hwloc_bitmap_weight(p->nodes) == 1 &&
        hwloc_get_nbobjs_by_type(p->topology, HWLOC_OBJ_NUMANODE) > 1 &&
        hwloc_get_membind(p->topology, nodes, &policy,
                          HWLOC_MEMBIND_THREAD | HWLOC_MEMBIND_BYNODESET) == 0 &&
        (policy == HWLOC_MEMBIND_FIRSTTOUCH || policy == HWLOC_MEMBIND_DEFAULT))
        hwloc_set_area_membind(
            p->topology, base, nbytes, p->nodes, HWLOC_MEMBIND_BIND,
            HWLOC_MEMBIND_BYNODESET); /* not STRICT: a full node has neighbours */
    hwloc_bitmap_free(nodes);
}
