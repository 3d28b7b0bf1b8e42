/* What the files of placement share. */
#ifndef CZ_OFFLOAD_PLACE_IMPL_H
#define CZ_OFFLOAD_PLACE_IMPL_H

#include "offload/place.h"
#include "offload/place_cores.h"

struct place {
    hwloc_topology_t topology;
    bool is_here;  /* the topology is this machine */
    bool is_dealt; /* threads are told apart; otherwise they go their own ways in the share */
    bool is_bound; /* place_bind_threads() was here */
    unsigned id;   /* of all places of this process: threads know by which they were bound */
    int n_threads;
    hwloc_cpuset_t *threads; /* (n_threads) where each may run */
    hwloc_cpuset_t share;
    hwloc_nodeset_t nodes; /* of its memory */
    char text[512];
};

/* ---- place.c -----------------------------------------------------------------------------------
 */

cz_status place_no_memory(void); /* CZ_NOMEM with its sentence */

/* ---- place_topology.c: what machine it is ------------------------------------------------------
 */

/* A topology in the words of place_options. with_pci: also its PCI devices (takes ten times as
 * long). */
cz_status place_topology_open(const char *words, bool with_pci, hwloc_topology_t *out);

/* The NUMA node (OS index) of an object: the first of those nearest to it. */
int place_node_of(hwloc_obj_t obj);

/* The NUMA node (OS index) that a PCI device hangs on; −1: unknown. */
int place_gpu_node(hwloc_topology_t topology, const char *pci_bus_id);

/* The processors this process may use, whatever OpenMP has bound its threads to. CZ_NOMEM. */
cz_status place_allowed_here(hwloc_bitmap_t out);

/* Whether the user has said where threads run. */
bool place_user_binds(void);

/* ---- place_share.c: whose cores are whose ------------------------------------------------------
 */

/* This rank's share: cores [begin, end) of those in its mask. */
struct place_run {
    int begin, end;
    int n_same;      /* ranks that divide this mask */
    int wants;       /* the node of the rank's GPU; −1: none */
    bool is_certain; /* nobody else has these cores */
};

/* Fills *c with the cores of the rank's mask, also for place_cores_free() when it fails. Errors as
 * place_create(). */
cz_status place_share_choose(struct place *p, const struct place_options *o, struct place_cores *c,
                             struct place_run *out);

/* ---- place_deal.c: arithmetic over cores -------------------------------------------------------
 */

/* Cut the cores into n_ranks ≤ c->n runs: rank r gets [cuts[r], cuts[r + 1]). No run is shorter
 * than floor(n / n_ranks); nodes, then caches, are cut only where that would be. cuts: (n_ranks +
 * 1). */
void place_deal(const struct place_cores *c, int n_ranks, int *cuts);

/* Which run each rank gets: on the node it would like, wants[r] (−1: any), as far as there are
 * runs; otherwise in order. runs: (n_ranks). */
void place_match(const struct place_cores *c, const int *cuts, const int *wants, int n_ranks,
                 int *runs);

/* Fill sets[0 … n_threads−1] from the cores [begin, end): one core or several neighbours of one
 * node for each thread, all on one node when they fit there (`want` before others); hardware
 * threads of one core only when cores run out. false: there are more threads than hardware threads;
 * they share then. CZ_NOMEM. */
cz_status place_threads(const struct place_cores *c, int begin, int end, int near, int n_threads,
                        hwloc_cpuset_t *sets, bool *is_enough);

/* ---- place_bind.c ------------------------------------------------------------------------------
 */

/* Ask for pages of a fresh mapping on the place's node, when it has one. */
void place_memory(const struct place *p, void *base, size_t nbytes);

/* Undo place_bind_threads(). */
void place_unbind_threads(struct place *p);

#endif
