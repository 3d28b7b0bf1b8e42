/* How many threads the ranks of a world get. */
#ifndef CZ_ENGINE_WORLD_IMPL_H
#define CZ_ENGINE_WORLD_IMPL_H

#include "base/processors.h"
#include "base/status.h"

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

#endif
