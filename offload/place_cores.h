/* place_cores: the cores of a machine that may be used, as hwloc names them: what placement and the
 * launcher divide. */
#ifndef CZ_OFFLOAD_PLACE_CORES_H
#define CZ_OFFLOAD_PLACE_CORES_H

#include "base/status.h"

#include <hwloc.h>

CZ_EXTERN_C_BEGIN

/* A core with an allowed processor. */
struct place_core {
    hwloc_cpuset_t cpus; /* its allowed hardware threads */
    int node;            /* NUMA node, OS index */
    int cache;           /* last-level cache, any number that differs from the others' */
};

struct place_cores {
    struct place_core *v; /* neighbours are near each other */
    int n;
};

/* The cores with a processor in `allowed`, in hwloc's order. CZ_NOMEM; release with
 * place_cores_free() in any case. */
cz_status place_cores_list(hwloc_topology_t topology, hwloc_const_cpuset_t allowed,
                           struct place_cores *out);
void place_cores_free(struct place_cores *c);

CZ_EXTERN_C_END
#endif
