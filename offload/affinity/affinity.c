/* One rank's affinity: its share of the cores (affinity_share.c), a core for each of its threads
 * (affinity_deal.c), the NUMA nodes of its memory, and a line that describes them. */
#include "offload/affinity/affinity_impl.h"

#include "base/threads.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- one rank -------------------------------------------------------------------------------- */

/* Equal for all ranks that divide the cores: they wait for each other. */
static int fair_threads(const struct affinity *p, const struct affinity_cores *c,
                        const struct affinity_run *run, int n_ranks_host)
{
    int n = c->n / run->n_same, quota = p->is_here ? threads_quota_cores(NULL) : 0;
    if (quota > 0 && quota / n_ranks_host < n) n = quota / n_ranks_host;
    return n > 0 ? n : 1;
}

/* The node where few threads should stay: the GPU's, or the one this process was started on.
 * Several jobs that know nothing of each other would otherwise all choose the same one. */
static int node_to_stay_on(const struct affinity *p, const struct affinity_run *run)
{
    int cpu = p->is_here && run->n_same == 1 ? sched_getcpu() : -1;
    if (run->wants >= 0 || cpu < 0) return run->wants;
    return affinity_node_of(hwloc_get_pu_obj_by_os_index(p->topology, (unsigned)cpu));
}

/* The rank's cores, and one or several of them for each thread. */
static cz_status threads_on(struct affinity *p, const struct affinity_cores *c,
                            const struct affinity_run *run)
{
    bool is_enough;
    p->threads = calloc((size_t)p->n_threads, sizeof *p->threads);
    if (!p->threads) return affinity_no_memory();
    for (int t = 0; t < p->n_threads; t++)
        if (!(p->threads[t] = hwloc_bitmap_alloc())) return affinity_no_memory();
    for (int i = run->begin; i < run->end; i++)
        if (hwloc_bitmap_or(p->share, p->share, c->v[i].cpus) != 0) return affinity_no_memory();
    TRY(affinity_threads(c, run->begin, run->end, node_to_stay_on(p, run), p->n_threads, p->threads,
                         &is_enough));
    p->is_dealt = p->is_dealt && is_enough;
    return CZ_OK;
}

/* The GPU's node, those of the threads, or, where threads go their own ways, those of the share. */
static cz_status choose_nodes(struct affinity *p, const struct affinity_cores *c,
                              const struct affinity_run *run)
{
    int st = 0;
    if (run->wants >= 0)
        return hwloc_bitmap_set(p->nodes, (unsigned)run->wants) == 0 ? CZ_OK : affinity_no_memory();
    for (int t = 0; p->is_dealt && t < p->n_threads; t++)
        st |= hwloc_bitmap_set(p->nodes, (unsigned)affinity_node(p, t));
    for (int i = run->begin; !p->is_dealt && i < run->end; i++)
        st |= hwloc_bitmap_set(p->nodes, (unsigned)c->v[i].node);
    return st == 0 ? CZ_OK : affinity_no_memory();
}

/* "4 threads on cores 0-3 of NUMA node 0", and what is not as usual. A core in use is called by its
 * first hardware thread, as people call it. */
static void describe(struct affinity *p, const struct affinity_cores *c, const char *gpu, int wants)
{
    char core_list[160] = "", node_list[64] = "", memory[128] = "";
    hwloc_bitmap_t cores = hwloc_bitmap_alloc(), nodes = hwloc_bitmap_alloc();
    hwloc_bitmap_t used = hwloc_bitmap_dup(p->share);
    if (cores && nodes && used) {
        if (p->is_dealt) hwloc_bitmap_zero(used);
        for (int t = 0; p->is_dealt && t < p->n_threads; t++)
            hwloc_bitmap_or(used, used, p->threads[t]);
        for (int i = 0; i < c->n; i++) {
            if (!hwloc_bitmap_intersects(c->v[i].cpus, used)) continue;
            hwloc_bitmap_set(cores, (unsigned)hwloc_bitmap_first(c->v[i].cpus));
            hwloc_bitmap_set(nodes, (unsigned)c->v[i].node);
        }
        hwloc_bitmap_list_snprintf(core_list, sizeof core_list, cores);
        hwloc_bitmap_list_snprintf(node_list, sizeof node_list, nodes);
        if (wants >= 0)
            snprintf(memory, sizeof memory, ", memory on node %d near GPU %s", wants, gpu);
        snprintf(p->text, sizeof p->text, "%d thread%s on core%s %s of NUMA node%s %s%s%s",
                 p->n_threads, p->n_threads == 1 ? "" : "s",
                 hwloc_bitmap_weight(cores) == 1 ? "" : "s", core_list,
                 hwloc_bitmap_weight(nodes) == 1 ? "" : "s", node_list, memory,
                 p->is_dealt ? "" : ", not bound");
    }
    hwloc_bitmap_free(used);
    hwloc_bitmap_free(cores);
    hwloc_bitmap_free(nodes);
}

/* PCI devices are looked for only where a rank has a GPU: that takes ten times as long. */
static cz_status fill(struct affinity *p, const struct affinity_options *o)
{
    static atomic_uint n_affinities;
    struct affinity_cores cores = {.v = NULL};
    struct affinity_run run;
    cz_status st;
    bool any_gpu = !o->ranks && o->pci_bus_id;
    for (int r = 0; o->ranks && r < o->n_ranks_host; r++) any_gpu |= o->ranks[r].pci_bus_id != NULL;
    p->id = ++n_affinities;
    p->share = hwloc_bitmap_alloc();
    p->nodes = hwloc_bitmap_alloc();
    if (!p->share || !p->nodes) return affinity_no_memory();
    TRY(affinity_topology_open(o->topology, any_gpu, &p->topology));
    p->is_here = !o->topology && hwloc_topology_is_thissystem(p->topology);
    TRY_GOTO(affinity_share_choose(p, o, &cores, &run), end);
    p->n_threads = o->n_threads > 0 ? o->n_threads : fair_threads(p, &cores, &run, o->n_ranks_host);
    p->is_dealt = run.is_certain && !(p->is_here && affinity_user_binds());
    TRY_GOTO(threads_on(p, &cores, &run), end);
    TRY_GOTO(choose_nodes(p, &cores, &run), end);
    describe(p, &cores, o->ranks ? o->ranks[o->rank_host].pci_bus_id : o->pci_bus_id, run.wants);
    st = CZ_OK;
end:
    affinity_cores_free(&cores);
    return st;
}

cz_status affinity_create(const struct affinity_options *options, struct affinity **out)
{
    *out = NULL;
    if (options->n_ranks_host < 1 || options->rank_host < 0 ||
        options->rank_host >= options->n_ranks_host || options->n_threads < 0)
        return err_set(CZ_INVALID, 0,
                       "rank %d of %d ranks on a host, with %d threads, has no place",
                       options->rank_host, options->n_ranks_host, options->n_threads);
    struct affinity *p = calloc(1, sizeof *p);
    if (!p) return affinity_no_memory();
    cz_status st = fill(p, options);
    if (st == CZ_OK)
        *out = p;
    else
        affinity_destroy(p);
    return st;
}

void affinity_destroy(struct affinity *p)
{
    if (!p) return;
    affinity_unbind_threads(p);
    for (int t = 0; p->threads && t < p->n_threads; t++) hwloc_bitmap_free(p->threads[t]);
    free(p->threads);
    hwloc_bitmap_free(p->share);
    hwloc_bitmap_free(p->nodes);
    if (p->topology) hwloc_topology_destroy(p->topology);
    free(p);
}

/* ---- what came out --------------------------------------------------------------------------- */

int affinity_n_threads(const struct affinity *p)
{
    return p->n_threads;
}

int affinity_cpu(const struct affinity *p, int thread)
{
    return hwloc_bitmap_first(p->threads[thread]);
}

int affinity_node(const struct affinity *p, int thread)
{
    hwloc_obj_t pu = hwloc_get_pu_obj_by_os_index(p->topology, (unsigned)affinity_cpu(p, thread));
    return affinity_node_of(pu);
}

static size_t list_bits(hwloc_const_bitmap_t set, int *out, size_t n_max)
{
    size_t n = 0;
    for (int i = hwloc_bitmap_first(set); i >= 0; i = hwloc_bitmap_next(set, i), n++)
        if (n < n_max) out[n] = i;
    return n;
}

size_t affinity_cpus(const struct affinity *p, int thread, int *cpus, size_t n_max)
{
    return list_bits(p->threads[thread], cpus, n_max);
}

size_t affinity_share(const struct affinity *p, int *cpus, size_t n_max)
{
    return list_bits(p->share, cpus, n_max);
}

size_t affinity_nodes(const struct affinity *p, int *nodes, size_t n_max)
{
    return list_bits(p->nodes, nodes, n_max);
}

const char *affinity_describe(const struct affinity *p)
{
    return p->text;
}
