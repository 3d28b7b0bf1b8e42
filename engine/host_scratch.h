/* fp32 scratch in host memory while nothing is under way. */
#ifndef CZ_ENGINE_HOST_SCRATCH_H
#define CZ_ENGINE_HOST_SCRATCH_H

#include "engine/engine_impl.h"

struct host_scratch {
    float *p;
    size_t numel; /* the same on all ranks of a run on GPUs */
    float *own;   /* to be freed; NULL: the run's */
};

/* Collective on GPUs. host_scratch_give() follows, also after CZ_NOMEM. */
cz_status host_scratch_take(const struct cz_engine *e, struct host_scratch *scratch);
void host_scratch_give(struct host_scratch *scratch);

#endif
