#include "offload/place_impl.h"

#include "base/threads.h"

#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static cz_status no_memory(void)
{
    return err_set(CZ_NOMEM, 0, "no memory to place threads");
}

/* ---- whose cores are whose --------------------------------------------------------------------
 */

/* What a rank brings to the deal. */
struct bidder {
    hwloc_bitmap_t allowed; /* within the topology */
    int wants;              /* the node of its GPU; −1: none */
};

/* How the ranks of a host stand to this one. */
struct deal {
    struct bidder *v; /* (n_ranks) */
    int n_ranks;
    int *same;        /* ranks with our mask, in order */
    int n_same, ours; /* which of those we are */
    bool is_muddled;  /* another mask overlaps ours in part */
};

static void deal_free(struct deal *d)
{
    for (int r = 0; d->v && r < d->n_ranks; r++) hwloc_bitmap_free(d->v[r].allowed);
    free(d->v);
    free(d->same);
}

/* list NULL: what this process may use, or all there is. */
static cz_status read_mask(struct place *p, const char *list, hwloc_bitmap_t out)
{
    hwloc_const_cpuset_t all = hwloc_topology_get_topology_cpuset(p->topology);
    if (list) {
        if (hwloc_bitmap_list_sscanf(out, list) != 0)
            return err_set(CZ_INVALID, 0, "\"%s\" is no list of processors; \"0-3,8\" would be one",
                           list);
    } else if (p->is_here) {
        TRY(place_allowed_here(out));
    } else if (hwloc_bitmap_copy(out, all) != 0) {
        return no_memory();
    }
    if (hwloc_bitmap_and(out, out, all) != 0) return no_memory();
    if (hwloc_bitmap_iszero(out))
        return err_set(CZ_INVALID, 0, "none of the processors %s is there",
                       list ? list : "allowed");
    return CZ_OK;
}

static cz_status deal_read(struct place *p, const struct place_options *o, struct deal *d)
{
    const struct place_rank mine = {.allowed = o->allowed, .pci_bus_id = o->pci_bus_id};
    d->n_ranks = o->n_ranks_host;
    d->v = calloc((size_t)d->n_ranks, sizeof *d->v);
    d->same = calloc((size_t)d->n_ranks, sizeof *d->same);
    if (!d->v || !d->same) return no_memory();
    for (int r = 0; r < d->n_ranks; r++) {
        const struct place_rank *rank = o->ranks ? &o->ranks[r] : &mine;
        d->v[r].allowed = hwloc_bitmap_alloc();
        if (!d->v[r].allowed) return no_memory();
        TRY(read_mask(p, rank->allowed, d->v[r].allowed));
        d->v[r].wants = place_gpu_node(p->topology, rank->pci_bus_id);
    }
    for (int r = 0; r < d->n_ranks; r++) {
        hwloc_const_bitmap_t ours = d->v[o->rank_host].allowed, other = d->v[r].allowed;
        bool is_same = hwloc_bitmap_isequal(ours, other);
        if (is_same && r == o->rank_host) d->ours = d->n_same;
        if (is_same) d->same[d->n_same++] = r;
        d->is_muddled |= !is_same && hwloc_bitmap_intersects(ours, other);
    }
    return CZ_OK;
}

/* The run of cores [*begin, *end) that is ours. More ranks than cores take turns. */
static cz_status choose_run(const struct place_cores *c, const struct deal *d, int *begin, int *end)
{
    int n = d->n_same;
    if (n > c->n) {
        *begin = d->ours % c->n;
        *end = *begin + 1;
        return CZ_OK;
    }
    int *cuts = calloc(3 * (size_t)n + 1, sizeof *cuts), *wants = cuts + n + 1, *runs = wants + n;
    if (!cuts) return no_memory();
    for (int i = 0; i < n; i++) wants[i] = d->v[d->same[i]].wants;
    place_deal(c, n, cuts);
    place_match(c, cuts, wants, n, runs);
    *begin = cuts[runs[d->ours]];
    *end = cuts[runs[d->ours] + 1];
    free(cuts);
    return CZ_OK;
}

/* ---- one rank ---------------------------------------------------------------------------------
 */

/* Equal for all ranks that divide the cores: they wait for each other. */
static int fair_threads(const struct place *p, const struct place_cores *c, const struct deal *d,
                        int n_ranks_host)
{
    int n = c->n / d->n_same, quota = p->is_here ? threads_quota_cores(NULL) : 0;
    if (quota > 0 && quota / n_ranks_host < n) n = quota / n_ranks_host;
    return n > 0 ? n : 1;
}

static cz_status place_on(struct place *p, const struct place_cores *c, int begin, int end,
                          int near)
{
    bool is_enough;
    p->threads = calloc((size_t)p->n_threads, sizeof *p->threads);
    if (!p->threads) return no_memory();
    for (int t = 0; t < p->n_threads; t++)
        if (!(p->threads[t] = hwloc_bitmap_alloc())) return no_memory();
    for (int i = begin; i < end; i++)
        if (hwloc_bitmap_or(p->share, p->share, c->v[i].cpus) != 0) return no_memory();
    TRY(place_threads(c, begin, end, near, p->n_threads, p->threads, &is_enough));
    p->is_dealt = p->is_dealt && is_enough;
    return CZ_OK;
}

/* The node where few threads should stay: the GPU's, or the one this process was started on.
 * Several jobs that know nothing of each other would otherwise all choose the same one. */
static int node_to_stay_on(const struct place *p, const struct deal *d, int wants)
{
    int cpu = p->is_here && d->n_same == 1 ? sched_getcpu() : -1;
    if (wants >= 0 || cpu < 0) return wants;
    return place_node_of(hwloc_get_pu_obj_by_os_index(p->topology, (unsigned)cpu));
}

/* The GPU's node, those of the threads, or, where threads go their own ways, those of the share. */
static cz_status choose_nodes(struct place *p, const struct place_cores *c, int begin, int end,
                              int wants)
{
    int st = 0;
    if (wants >= 0) st = hwloc_bitmap_set(p->nodes, (unsigned)wants);
    for (int t = 0; wants < 0 && p->is_dealt && t < p->n_threads; t++)
        st |= hwloc_bitmap_set(p->nodes, (unsigned)place_node(p, t));
    for (int i = begin; wants < 0 && !p->is_dealt && i < end; i++)
        st |= hwloc_bitmap_set(p->nodes, (unsigned)c->v[i].node);
    return st == 0 ? CZ_OK : no_memory();
}

static void add(char *text, size_t nbytes, const char *fmt, ...) CZ_PRINTF(3, 4);
static void add(char *text, size_t nbytes, const char *fmt, ...)
{
    size_t n = strlen(text);
    va_list args;
    va_start(args, fmt);
    vsnprintf(text + n, nbytes - n, fmt, args);
    va_end(args);
}

/* "4 threads on cores 0-3 of NUMA node 0", and what is not as usual. */
static void describe(struct place *p, const char *pci_bus_id, int wants)
{
    char cpus[160], nodes[64];
    hwloc_bitmap_t used = hwloc_bitmap_alloc(), near = hwloc_bitmap_alloc();
    if (used && near) {
        for (int t = 0; t < p->n_threads; t++) {
            hwloc_bitmap_or(used, used, p->threads[t]);
            hwloc_bitmap_set(near, (unsigned)place_node(p, t));
        }
        const char *plural = hwloc_bitmap_weight(used) == 1 ? "" : "s";
        hwloc_bitmap_list_snprintf(cpus, sizeof cpus, p->is_dealt ? used : p->share);
        hwloc_bitmap_list_snprintf(nodes, sizeof nodes, p->is_dealt ? near : p->nodes);
        add(p->text, sizeof p->text, "%d thread%s on core%s %s of NUMA node%s %s", p->n_threads,
            p->n_threads == 1 ? "" : "s", plural, cpus, strpbrk(nodes, ",-") ? "s" : "", nodes);
        if (wants >= 0)
            add(p->text, sizeof p->text, ", memory on node %d near GPU %s", wants, pci_bus_id);
        if (!p->is_dealt) add(p->text, sizeof p->text, ", not bound");
    }
    hwloc_bitmap_free(used);
    hwloc_bitmap_free(near);
}

static cz_status settle(struct place *p, const struct place_options *o, const struct deal *d,
                        struct place_cores *c)
{
    int begin = 0, end = 0, wants = d->v[o->rank_host].wants;
    TRY(place_cores_list(p->topology, d->v[o->rank_host].allowed, c));
    if (d->is_muddled)
        end = c->n;
    else
        TRY(choose_run(c, d, &begin, &end));
    p->n_threads = o->n_threads > 0 ? o->n_threads : fair_threads(p, c, d, o->n_ranks_host);
    p->is_dealt = !d->is_muddled && d->n_same <= c->n && !(p->is_here && place_user_binds());
    TRY(place_on(p, c, begin, end, node_to_stay_on(p, d, wants)));
    TRY(choose_nodes(p, c, begin, end, wants));
    describe(p, o->ranks ? o->ranks[o->rank_host].pci_bus_id : o->pci_bus_id, wants);
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
    struct deal d = {.v = NULL};
    struct place_cores cores = {.v = NULL};
    p->id = ++n_places;
    p->share = hwloc_bitmap_alloc();
    p->nodes = hwloc_bitmap_alloc();
    if (!p->share || !p->nodes) return no_memory();
    TRY(place_topology_open(o->topology, any_gpu(o), &p->topology));
    p->is_here = !o->topology && hwloc_topology_is_thissystem(p->topology);
    cz_status st = deal_read(p, o, &d);
    if (st == CZ_OK) st = settle(p, o, &d, &cores);
    place_cores_free(&cores);
    deal_free(&d);
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
    if (!p) return no_memory();
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
