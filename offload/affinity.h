/* affinity: which cores and which memory a rank gets on its host.
 *
 * The cores that the process may use (affinity mask) are dealt to the ranks of the host by
 * neighbourhood: whole NUMA nodes first, then last-level caches, then cores; a rank's threads get a
 * core each, never a hardware thread of a core that another thread has while whole cores are free.
 * Its memory comes from the nodes of its cores, or, with a GPU, from the node the GPU hangs on. All
 * of it is arithmetic over an hwloc topology, so synthetic and recorded machines can be asked too.
 *
 * Ranks agree without messages: the caller puts into affinity_options the masks and GPUs of all
 * ranks of the host (ranks). Ranks with the same mask divide it; a mask that no other rank has is
 * that rank's share already (a launcher dealt it) and is kept whole.
 *
 * Life cycle: affinity_create() → affinity_bind_threads() (before the pool works) →
 * host_memory_map() of every mapping → affinity_destroy(). Not thread-safe. */
#ifndef CZ_OFFLOAD_AFFINITY_H
#define CZ_OFFLOAD_AFFINITY_H

#include "base/status.h"

CZ_EXTERN_C_BEGIN

struct affinity; /* opaque */

struct affinity_rank {
    const char *allowed;    /* its affinity mask, as a list ("0-3,8") */
    const char *pci_bus_id; /* of its GPU; NULL: none */
};

struct affinity_options {
    const char *topology; /* NULL: this machine; "synthetic:…" or "xml:PATH" in hwloc's words */
    const char *allowed; /* logical CPUs as a list ("0-3,8"); NULL: the affinity mask (of a topology
                            that is not this machine: all its cores) */
    int rank_host, n_ranks_host; /* this rank among those of its host */
    int n_threads;               /* of the rank's pool; 0: its share of the cores, the same for all
                                    ranks that divide a mask, within the CPU quota of this machine */
    const char *pci_bus_id;      /* of the rank's GPU ("0000:17:00.0"); NULL: none */
    const struct affinity_rank *ranks; /* (n_ranks_host) of all ranks, then allowed and pci_bus_id
                                       are not looked at; NULL: all are like this one */
};

/* Borrows nothing from the options. A GPU that the topology does not show has no say. Errors:
 * CZ_INVALID (no such topology, a list that is none or holds no core of it, rank outside the host),
 * CZ_NOMEM, CZ_IO (hwloc cannot read the machine or the file). */
cz_status affinity_create(const struct affinity_options *options, struct affinity **out);
void affinity_destroy(struct affinity *p); /* accepts NULL */

int affinity_n_threads(const struct affinity *p);
int affinity_cpu(const struct affinity *p,
                 int thread); /* the core of a thread: a logical CPU number */
int affinity_node(const struct affinity *p, int thread); /* the NUMA node (OS index) of that core */

/* The logical CPUs a thread is bound to: a hardware thread or a core; several neighbouring cores of
 * one node where there are more cores than threads. And the rank's share: all that its threads may
 * use and what was left over beside them. In ascending order; returns how many there are, writes at
 * most n_max. */
size_t affinity_cpus(const struct affinity *p, int thread, int *cpus, size_t n_max);
size_t affinity_share(const struct affinity *p, int *cpus, size_t n_max);

/* The nodes that memory comes from, OS indices in ascending order; returns how many there are (≥
 * 1), writes at most n_max. With several, pages follow the threads that touch them. */
size_t affinity_nodes(const struct affinity *p, int *nodes, size_t n_max);

/* Whether threads may be bound: not when the user did so (OMP_PROC_BIND, OMP_PLACES,
 * GOMP_CPU_AFFINITY, KMP_AFFINITY; CZERO_BIND=none), when there are more threads than logical CPUs
 * or more ranks than cores, when masks of ranks overlap in part, or when the topology is not this
 * machine. */
bool affinity_can_bind(const struct affinity *p);

/* Bind the OpenMP pool's threads to their cores. The caller is moved to its own but may use all
 * cores of the rank's threads: threads that it starts inherit what it may use, and the OpenMP
 * runtime starts new ones whenever a region was smaller than the last. Threads bound before are
 * left alone, so that calling it again (one empty parallel region) catches those new ones. Does
 * nothing where it may not. Errors: none: what the kernel refuses is logged once at
 * LOG_INFO. affinity_destroy() by the same caller undoes it. */
void affinity_bind_threads(struct affinity *p);

/* One line: "4 threads on cores 0-3 of NUMA node 0". Owned by the affinity. */
const char *affinity_describe(const struct affinity *p);

CZ_EXTERN_C_END
#endif
