/* An engine allocates what its plan says: the memory of all rows, the swap file, and places for the
 * micro-batches. memory_allocate() does all of it; a step allocates nothing. */
#ifndef CZ_ENGINE_MEMORY_H
#define CZ_ENGINE_MEMORY_H

#include "engine/batch_stage.h"
#include "engine/plan/description.h"
#include "offload/affinity.h"
#include "offload/host_memory.h"
#include "offload/swap.h"

#define METRICS_CHUNK 8 /* exchanged at once */

struct memory {
    struct affinity *affinity; /* which cores and nodes; NULL: hwloc cannot tell */
    struct host_memory pageable, pinned;
    bool pinned_registered; /* with the GPU */
    void *gpu_memory;       /* of all rows there */
    size_t gpu_nbytes;
    struct swap *swap;                   /* NULL: nothing is swapped */
    struct swap_counts swap_before;      /* at the last boundary */
    int64_t swap_before_ns;              /* when that was */
    struct cz_swap_traffic swap_traffic; /* of the last step */
    void *blocks[ENGINE_N_BLOCKS];
    struct batch_stage *stages; /* (n_stages) the micro-batches that go through layers together */
    struct chain_run *runs;     /* (n_stages) */
    double *losses;             /* (world_size) of the last boundary */
    double *metrics;            /* (world_size, METRICS_CHUNK) of engine_gather_metrics() */
};

/* Allocate the memory of all places and open the swap file. Memory that cannot be page-locked stays
 * pageable, with a line in the log. The caller has set m->affinity. Errors: CZ_NOMEM, CZ_IO. */
cz_status memory_allocate(struct memory *m, const struct description *d);

/* At a boundary: what the step behind it has moved to and from the swap file. */
void memory_count_step(struct memory *m);

/* Accepts zeroed. After description_end_work(): requests end in this memory. */
void memory_free(struct memory *m, const struct description *d);

#endif
