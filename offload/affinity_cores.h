/* affinity_cores: the cores of a machine that may be used, as hwloc names them: what placement and
 * the launcher divide. */
#ifndef CZ_OFFLOAD_AFFINITY_CORES_H
#define CZ_OFFLOAD_AFFINITY_CORES_H

#include "base/status.h"

#include <hwloc.h>

CZ_EXTERN_C_BEGIN

/* A core with an allowed processor. */
struct affinity_core {
    hwloc_cpuset_t cpus; /* its allowed hardware threads */
    int node;            /* NUMA node, OS index */
    int cache;           /* last-level cache, any number that differs from the others' */
};

struct affinity_cores {
    struct affinity_core *v; /* neighbours are near each other */
    int n;
};

/* The cores with a processor in `allowed`, in hwloc's order. CZ_NOMEM; release with
 * affinity_cores_free() in any case. */
cz_status affinity_cores_list(hwloc_topology_t topology, hwloc_const_cpuset_t allowed,
                              struct affinity_cores *out);
void affinity_cores_free(struct affinity_cores *c);

CZ_EXTERN_C_END
#endif
