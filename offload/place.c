#include "offload/place_impl.h"

#include "base/threads.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

cz_status place_no_memory(void)
{
    return err_set(CZ_NOMEM, 0, "no memory to place threads");
}

/* ---- one rank ---------------------------------------------------------------------------------
 */

/* Equal for all ranks that divide the cores: they wait for each other. */
static int fair_threads(const struct place *p, const struct place_cores *c,
                        const struct place_run *run, int n_ranks_host)
{
    int n = c->n / run->n_same, quota = p->is_here ? threads_quota_cores(NULL) : 0;
    if (quota > 0 && quota / n_ranks_host < n) n = quota / n_ranks_host;
    return n > 0 ? n : 1;
}

/* The node where few threads should stay: the GPU's, or the one this process was started on.
 * Several jobs that know nothing of each other would otherwise all choose the same one. */
static int node_to_stay_on(const struct place *p, const struct place_run *run)
{
    int cpu = p->is_here && run->n_same == 1 ? sched_getcpu() : -1;
    if (run->wants >= 0 || cpu < 0) return run->wants;
    return place_node_of(hwloc_get_pu_obj_by_os_index(p->topology, (unsigned)cpu));
}

static cz_status place_on(struct place *p, const struct place_cores *c, const struct place_run *run)
{
    bool is_enough;
    p->threads = calloc((size_t)p->n_threads, sizeof *p->threads);
    if (!p->threads) return place_no_memory();
    for (int t = 0; t < p->n_threads; t++)
        if (!(p->threads[t] = hwloc_bitmap_alloc())) return place_no_memory();
    for (int i = run->begin; i < run->end; i++)
        if (hwloc_bitmap_or(p->share, p->share, c->v[i].cpus) != 0) return place_no_memory();
    TRY(place_threads(c, run->begin, run->end, node_to_stay_on(p, run), p->n_threads, p->threads,
                      &is_enough));
    p->is_dealt = p->is_dealt && is_enough;
    return CZ_OK;
}

/* The GPU's node, those of the threads, or, where threads go their own ways, those of the share. */
static cz_status choose_nodes(struct place *p, const struct place_cores *c,
                              const struct place_run *run)
{
    int st = 0;
    if (run->wants >= 0)
        return hwloc_bitmap_set(p->nodes, (unsigned)run->wants) == 0 ? CZ_OK : place_no_memory();
    for (int t = 0; p->is_dealt && t < p->n_threads; t++)
        st |= hwloc_bitmap_set(p->nodes, (unsigned)place_node(p, t));
    for (int i = run->begin; !p->is_dealt && i < run->end; i++)
        st |= hwloc_bitmap_set(p->nodes, (unsigned)c->v[i].node);
    return st == 0 ? CZ_OK : place_no_memory();
}

/* Of each core in use its first hardware thread, by which people call it; and the nodes of both. */
static void name_cores(const struct place *p, const struct place_cores *c, hwloc_bitmap_t cores,
                       hwloc_bitmap_t nodes)
{
    hwloc_bitmap_t used = hwloc_bitmap_dup(p->share);
    if (!used) return;
    if (p->is_dealt) hwloc_bitmap_zero(used);
    for (int t = 0; p->is_dealt && t < p->n_threads; t++)
        hwloc_bitmap_or(used, used, p->threads[t]);
    for (int i = 0; i < c->n; i++) {
        if (!hwloc_bitmap_intersects(c->v[i].cpus, used)) continue;
        hwloc_bitmap_set(cores, (unsigned)hwloc_bitmap_first(c->v[i].cpus));
        hwloc_bitmap_set(nodes, (unsigned)c->v[i].node);
    }
    hwloc_bitmap_free(used);
}

/* "4 threads on cores 0-3 of NUMA node 0", and what is not as usual. */
static void describe(struct place *p, const struct place_cores *c, const char *gpu, int wants)
{
    char core_list[160] = "", node_list[64] = "", memory[128] = "";
    hwloc_bitmap_t cores = hwloc_bitmap_alloc(), nodes = hwloc_bitmap_alloc();
    if (cores && nodes) {
        name_cores(p, c, cores, nodes);
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
    hwloc_bitmap_free(cores);
    hwloc_bitmap_free(nodes);
}

static cz_status settle(struct place *p, const struct place_options *o, struct place_cores *c)
{
    struct place_run run;
    TRY(place_share_choose(p, o, c, &run));
    p->n_threads = o->n_threads > 0 ? o->n_threads : fair_threads(p, c, &run, o->n_ranks_host);
    p->is_dealt = run.is_certain && !(p->is_here && place_user_binds());
    TRY(place_on(p, c, &run));
    TRY(choose_nodes(p, c, &run));
    describe(p, c, o->ranks ? o->ranks[o->rank_host].pci_bus_id : o->pci_bus_id, run.wants);
    return CZ_OK;
}

static bool any_gpu(const struct place_options *o)
{
    bool any = !o->ranks && o->pci_bus_id;
    for (int r = 0; o->ranks && r < o->n_ranks_host; r++) any |= o->ranks[r].pci_bus_id != NULL;
    return any;
}

static cz_status fill(struct place *p, const struct place_options *o)
{
    static atomic_uint n_places;
    struct place_cores cores = {.v = NULL};
    p->id = ++n_places;
    p->share = hwloc_bitmap_alloc();
    p->nodes = hwloc_bitmap_alloc();
    if (!p->share || !p->nodes) return place_no_memory();
    TRY(place_topology_open(o->topology, any_gpu(o), &p->topology));
    p->is_here = !o->topology && hwloc_topology_is_thissystem(p->topology);
    cz_status st = settle(p, o, &cores);
    place_cores_free(&cores);
    return st;
}

cz_status place_create(const struct place_options *options, struct place **out)
{
    *out = NULL;
    if (options->n_ranks_host < 1 || options->rank_host < 0 ||
        options->rank_host >= options->n_ranks_host || options->n_threads < 0)
        return err_set(CZ_INVALID, 0,
                       "rank %d of %d ranks on a host, with %d threads, has no place",
                       options->rank_host, options->n_ranks_host, options->n_threads);
    struct place *p = calloc(1, sizeof *p);
    if (!p) return place_no_memory();
    cz_status st = fill(p, options);
    if (st == CZ_OK)
        *out = p;
    else
        place_destroy(p);
    return st;
}

void place_destroy(struct place *p)
{
    if (!p) return;
    place_unbind_threads(p);
    for (int t = 0; p->threads && t < p->n_threads; t++) hwloc_bitmap_free(p->threads[t]);
    free(p->threads);
    hwloc_bitmap_free(p->share);
    hwloc_bitmap_free(p->nodes);
    if (p->topology) hwloc_topology_destroy(p->topology);
    free(p);
}

/* ---- what came out ----------------------------------------------------------------------------
 */

int place_n_threads(const struct place *p)
{
    return p->n_threads;
}

int place_cpu(const struct place *p, int thread)
{
    return hwloc_bitmap_first(p->threads[thread]);
}

int place_node(const struct place *p, int thread)
{
    hwloc_obj_t pu = hwloc_get_pu_obj_by_os_index(p->topology, (unsigned)place_cpu(p, thread));
    return place_node_of(pu);
}

static size_t list_bits(hwloc_const_bitmap_t set, int *out, size_t n_max)
{
    size_t n = 0;
    for (int i = hwloc_bitmap_first(set); i >= 0; i = hwloc_bitmap_next(set, i), n++)
        if (n < n_max) out[n] = i;
    return n;
}

size_t place_cpus(const struct place *p, int thread, int *cpus, size_t n_max)
{
    return list_bits(p->threads[thread], cpus, n_max);
}

size_t place_share(const struct place *p, int *cpus, size_t n_max)
{
    return list_bits(p->share, cpus, n_max);
}

size_t place_nodes(const struct place *p, int *nodes, size_t n_max)
{
    return list_bits(p->nodes, nodes, n_max);
}

bool place_can_bind(const struct place *p)
{
    return p->is_dealt && p->is_here;
}

const char *place_describe(const struct place *p)
{
    return p->text;
}
