/* Dividing the cores of a host among its ranks: equal numbers, none shared, and none across memory
 * nodes if that can be, since a rank's threads work on the same tensors. Pure arithmetic over a
 * topology, so that tests can feed synthetic machines. */
#include "engine/launch/launch_impl.h"

#include "base/threads.h"
#include "offload/affinity_cores.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

/* Cores [begin, begin + n) are on one node. */
struct node {
    int begin, n;
    int n_ranks; /* placed here */
};

/* Cores come ordered by node. */
static int nodes_list(const struct affinity_cores *c, struct node *nodes)
{
    int n_nodes = 0;
    for (int i = 0; i < c->n; i++) {
        if (i == 0 || c->v[i].node != c->v[i - 1].node)
            nodes[n_nodes++] = (struct node){.begin = i};
        nodes[n_nodes - 1].n++;
    }
    return n_nodes;
}

/* Where the next rank has the most cores: spread, so that ranks share memory bandwidth evenly. */
static struct node *roomiest(struct node *nodes, int n_nodes, int n_each)
{
    struct node *best = NULL;
    int best_left = n_each - 1;
    for (int i = 0; i < n_nodes; i++) {
        int left = nodes[i].n - nodes[i].n_ranks * n_each;
        if (left <= best_left) continue;
        best_left = left;
        best = &nodes[i];
    }
    return best;
}

/* The first core of every rank, n_each cores a rank: none across nodes if that can be. */
static void place(const struct affinity_cores *c, int n_each, int n_ranks, struct node *nodes,
                  int *first)
{
    int n_nodes = nodes_list(c, nodes), n_placed = 0;
    for (; n_placed < n_ranks; n_placed++) {
        struct node *node = roomiest(nodes, n_nodes, n_each);
        if (!node) break;
        node->n_ranks++;
    }
    if (n_placed < n_ranks) {
        for (int r = 0; r < n_ranks; r++) first[r] = r * n_each;
        return;
    }
    for (int i = 0, r = 0; i < n_nodes; i++)
        for (int k = 0; k < nodes[i].n_ranks; k++) first[r++] = nodes[i].begin + k * n_each;
}

/* Sets are unions of whole cores: both hyper-threads of a core belong to one rank. */
static cz_status bind(const struct affinity_cores *c, int n_ranks, struct launch_shares *out)
{
    int n_each = c->n / n_ranks;
    struct node *nodes = calloc((size_t)c->n, sizeof *nodes);
    int *first = calloc((size_t)n_ranks, sizeof *first);
    out->sets = calloc((size_t)n_ranks, sizeof(hwloc_cpuset_t));
    cz_status st = nodes && first && out->sets ? CZ_OK : CZ_NOMEM;
    if (st == CZ_OK) place(c, n_each, n_ranks, nodes, first);
    for (int r = 0; r < n_ranks && st == CZ_OK; r++) {
        out->sets[r] = hwloc_bitmap_alloc();
        for (int i = first[r]; i < first[r] + n_each && st == CZ_OK; i++)
            if (!out->sets[r] || hwloc_bitmap_or(out->sets[r], out->sets[r], c->v[i].cpus) != 0)
                st = CZ_NOMEM;
    }
    free(nodes);
    free(first);
    out->bound = st == CZ_OK;
    return st == CZ_OK ? CZ_OK : err_set(st, 0, "no memory to bind %d ranks", n_ranks);
}

/* A limit of 0 is none. */
static int at_most(int n, int limit)
{
    return limit > 0 && limit < n ? limit : n;
}

/* More ranks than cores: nothing is bound, and waiting threads should not spin (`passive`). */
cz_status launch_divide(hwloc_topology_t topology, hwloc_const_cpuset_t allowed, int n_cores_quota,
                        int n_ranks, struct launch_shares *out)
{
    struct affinity_cores cores;
    *out = (struct launch_shares){.n_ranks = n_ranks, .n_threads = 1};
    cz_status st = affinity_cores_list(topology, allowed, &cores);
    if (st == CZ_OK) {
        int n_each = at_most(cores.n, n_cores_quota) / n_ranks;
        out->passive = n_each == 0;
        out->n_threads = n_each > 0 ? n_each : 1;
        /* A quota is no reason for narrow sets: ranks use their time wherever there are free cores.
         */
        if (!out->passive) st = bind(&cores, n_ranks, out);
    }
    affinity_cores_free(&cores);
    if (st != CZ_OK) launch_shares_free(out);
    return st;
}

void launch_shares_free(struct launch_shares *s)
{
    for (int r = 0; s->sets && r < s->n_ranks; r++) hwloc_bitmap_free(s->sets[r]);
    free(s->sets);
    s->sets = NULL;
    s->bound = false;
}

/* Without a picture of the machine: as many threads as processors, nothing bound. */
static void divide_blindly(int n_ranks, struct launch_shares *out)
{
    int n_each = threads_allowed_cores(NULL) / n_ranks;
    *out = (struct launch_shares){
        .n_ranks = n_ranks, .n_threads = n_each > 0 ? n_each : 1, .passive = n_each == 0};
}

cz_status launch_divide_here(enum launch_bind bind_how, int n_threads_asked, int n_ranks,
                             struct launch_shares *out)
{
    hwloc_topology_t topology = NULL;
    hwloc_cpuset_t allowed = hwloc_bitmap_alloc();
    cz_status st = CZ_OK;
    if (!allowed) return err_set(CZ_NOMEM, 0, "no memory to divide cores");
    if (hwloc_topology_init(&topology) == 0 && hwloc_topology_load(topology) == 0 &&
        hwloc_get_cpubind(topology, allowed, HWLOC_CPUBIND_PROCESS) == 0)
        st = launch_divide(topology, allowed, threads_quota_cores(NULL), n_ranks, out);
    else
        divide_blindly(n_ranks, out);
    if (topology) hwloc_topology_destroy(topology);
    hwloc_bitmap_free(allowed);
    TRY(st);
    /* More threads than the share would pile up on a few cores. */
    if (bind_how == LAUNCH_BIND_NONE || n_threads_asked > out->n_threads) launch_shares_free(out);
    if (n_threads_asked > out->n_threads) out->passive = true;
    if (n_threads_asked > 0) out->n_threads = n_threads_asked;
    return CZ_OK;
}

/* sched_setaffinity() rather than hwloc: it is called between fork() and exec(), where hwloc might
 * allocate. A failure leaves the rank unbound, which costs speed only. */
void launch_bind_self(hwloc_const_cpuset_t set)
{
    cpu_set_t mask[16]; /* 16384 processors */
    memset(mask, 0, sizeof mask);
    for (int cpu = hwloc_bitmap_first(set); cpu >= 0; cpu = hwloc_bitmap_next(set, cpu))
        if ((size_t)cpu < sizeof mask * 8) CPU_SET_S((size_t)cpu, sizeof mask, mask);
    sched_setaffinity(0, sizeof mask, mask);
}
