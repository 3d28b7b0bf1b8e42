/* What the files of affinity share. */
#ifndef CZ_OFFLOAD_AFFINITY_IMPL_H
#define CZ_OFFLOAD_AFFINITY_IMPL_H

#include "offload/affinity.h"
#include "offload/affinity_cores.h"

struct affinity {
    hwloc_topology_t topology;
    bool is_here;  /* the topology is this machine */
    bool is_dealt; /* threads are told apart; otherwise they go their own ways in the share */
    bool is_bound; /* affinity_bind_threads() was here */
    unsigned id;   /* of all affinities of this process: threads know by which they were bound */
    int n_threads;
    hwloc_cpuset_t *threads; /* (n_threads) where each may run */
    hwloc_cpuset_t share;
    hwloc_nodeset_t nodes; /* of its memory */
    char text[512];
};

static inline cz_status affinity_no_memory(void)
{
    return err_set(CZ_NOMEM, 0, "no memory to place threads");
}

/* ---- affinity_topology.c: what machine it is ------------------------------------------------- */

/* A topology in the words of affinity_options. with_pci: also its PCI devices (takes ten times as
 * long). */
cz_status affinity_topology_open(const char *words, bool with_pci, hwloc_topology_t *out);

/* The NUMA node (OS index) of an object: the first of those nearest to it. */
int affinity_node_of(hwloc_obj_t obj);

/* The NUMA node (OS index) that a PCI device hangs on; −1: unknown. */
int affinity_gpu_node(hwloc_topology_t topology, const char *pci_bus_id);

/* The processors this process may use, whatever OpenMP has bound its threads to. CZ_NOMEM. */
cz_status affinity_allowed_here(hwloc_bitmap_t out);

/* Whether the user has chosen where threads run. */
bool affinity_user_binds(void);

/* ---- affinity_share.c: whose cores are whose ------------------------------------------------- */

/* This rank's share: cores [begin, end) of those in its mask. */
struct affinity_run {
    int begin, end;
    int n_same;      /* ranks that divide this mask */
    int wants;       /* the node of the rank's GPU; −1: none */
    bool is_certain; /* no other rank has these cores */
};

/* Fills *c with the cores of the rank's mask, also for affinity_cores_free() when it fails. Errors
 * as affinity_create(). */
cz_status affinity_share_choose(struct affinity *p, const struct affinity_options *o,
                                struct affinity_cores *c, struct affinity_run *out);

/* ---- affinity_deal.c: arithmetic over cores -------------------------------------------------- */

/* Cut the cores into n_ranks ≤ c->n runs: rank r gets [cuts[r], cuts[r + 1]). No run is shorter
 * than floor(n / n_ranks); nodes, then caches, are cut only where that would be. cuts: (n_ranks +
 * 1). */
void affinity_deal(const struct affinity_cores *c, int n_ranks, int *cuts);

/* Which run each rank gets: on the node it would like, wants[r] (−1: any), as far as there are
 * runs; otherwise in order. runs: (n_ranks). */
void affinity_match(const struct affinity_cores *c, const int *cuts, const int *wants, int n_ranks,
                    int *runs);

/* Fill sets[0 … n_threads−1] from the cores [begin, end): one core or several neighbours of one
 * node for each thread, all on one node when they fit there (`want` before others); hardware
 * threads of one core only when cores run out. false: there are more threads than hardware threads;
 * they share then. CZ_NOMEM. */
cz_status affinity_threads(const struct affinity_cores *c, int begin, int end, int near,
                           int n_threads, hwloc_cpuset_t *sets, bool *is_enough);

/* ---- affinity_bind.c ------------------------------------------------------------------------- */

/* Ask for pages of a fresh mapping on the affinity's node, when it has one. */
void affinity_bind_memory(const struct affinity *p, void *base, size_t nbytes);

/* Undo affinity_bind_threads(). */
void affinity_unbind_threads(struct affinity *p);

#endif
