/* place: which cores and which memory a rank gets on its host.
 *
 * The cores that the process may use (affinity mask) are dealt to the ranks of the host by
 * neighbourhood: whole NUMA nodes first, then last-level caches, then cores; a rank's threads get a
 * core each, never a hardware thread of a core that another thread has while whole cores are free.
 * Its memory comes from the nodes of its cores, or, with a GPU, from the node the GPU hangs on. All
 * of it is arithmetic over an hwloc topology, so synthetic and recorded machines can be asked too.
 *
 * Life cycle: place_create() → place_bind_threads() (once, before the pool works) → place_memory()
 * of every mapping → place_destroy(). Not thread-safe. */
#ifndef CZ_OFFLOAD_PLACE_H
#define CZ_OFFLOAD_PLACE_H

#include "base/status.h"

CZ_EXTERN_C_BEGIN

struct place; /* opaque */

struct place_options {
    const char *topology; /* NULL: this machine; "synthetic:…" or "xml:PATH" in hwloc's words */
    const char *allowed;  /* cores as a list ("0-3,8"); NULL: the affinity mask (of a topology that
                             is not this machine: all its cores) */
    int rank_host, n_ranks_host; /* this rank among those of its host */
    int n_threads;               /* of the rank's pool; 0: its share of the cores */
    const char *pci_bus_id;      /* of the rank's GPU ("0000:17:00.0"); NULL: none */
};

/* Errors: CZ_INVALID (no such topology, rank outside the host), CZ_NOMEM, CZ_IO. */
cz_status place_create(const struct place_options *options, struct place **out);
void place_destroy(struct place *p); /* accepts NULL */

int place_n_threads(const struct place *p);
int place_cpu(const struct place *p, int thread);  /* the core of a thread: a logical CPU number */
int place_node(const struct place *p, int thread); /* the NUMA node (OS index) of that core */

/* The nodes that memory comes from, as bits of OS indices in ascending order; returns how many
 * there are (≥ 1), writes at most n_max. */
size_t place_nodes(const struct place *p, int *nodes, size_t n_max);

/* Whether threads may be bound: not when the user did so (OMP_PROC_BIND, OMP_PLACES,
 * GOMP_CPU_AFFINITY, KMP_AFFINITY), when there are more threads than cores, or when the topology is
 * not this machine. */
bool place_can_bind(const struct place *p);

/* Bind the OpenMP pool's threads, the caller's included, to their cores. Does nothing where it may
 * not. Errors: none that matter: what the kernel refuses is said once at LOG_INFO. */
void place_bind_threads(const struct place *p);

/* One line: "4 threads on cores 0-3 of NUMA node 0". Owned by the place. */
const char *place_describe(const struct place *p);

CZ_EXTERN_C_END
#endif
