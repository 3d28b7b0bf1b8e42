/* How many threads the ranks of a world get, and where. */
#ifndef CZ_ENGINE_LAUNCH_WORLD_IMPL_H
#define CZ_ENGINE_LAUNCH_WORLD_IMPL_H

#include "base/host/processors.h"
#include "comm/comm.h"
#include "offload/affinity.h"

/* Where a rank runs. */
struct world_seat {
    char host[40];           /* equal on the same machine */
    int32_t n_threads_max;   /* by a CPU quota or the rank's binding; 0: no limit */
    struct processors cpus;  /* it may use */
    struct processors cores; /* one of each core among them */
};

/* Threads of every rank: what the rank with the smallest share of its processors can use. Equal on
 * all ranks, since sums may depend on it. */
int world_threads(const struct world_seat *seats, int n_ranks);

/* The seats of all ranks, n_threads_bound being what binding gave this one (0: nothing); free() the
 * array. Collective; a rank brings what went wrong before as `mine`. */
cz_status world_seats(struct comm *comm, cz_status mine, int n_threads_bound,
                      struct world_seat **out);

/* Whether this process has called engine_world_create(). If so, an engine without a world is
 * intended. */
bool world_has_been_made(void);

/* ---- world_place.c -------------------------------------------------------------------------- */

/* Choose this rank's cores and nodes among the ranks of its machine, near its GPU (pci_bus_id; "":
 * it has none), for a pool that is sized already, and bind its threads. NULL where hwloc cannot
 * describe the machine. Collective. CZ_NOMEM may come to one rank alone; release with
 * affinity_destroy(). */
cz_status world_place(struct comm *comm, const char *pci_bus_id, struct affinity **out);

#endif
