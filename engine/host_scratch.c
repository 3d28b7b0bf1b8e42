/* fp32 scratch in host memory for loading, exporting and restoring elements between steps. On the
 * CPU it is the block of activations, which is idle then, so that no memory is needed beside the
 * plan's; activations of a GPU cannot be read by the host, so scratch is allocated for as long as
 * it lasts. */
#include "engine/host_scratch.h"

#include <stdlib.h>

/* A power of two, so that pieces of tensors begin at even places. */
#define SCRATCH_NUMEL ((size_t)1 << 20)

cz_status host_scratch_take(const struct cz_engine *e, struct host_scratch *scratch)
{
    *scratch =
        (struct host_scratch){.p = e->mem.blocks[BLOCK_ACTIVATIONS],
                              .numel = e->desc.plan.rows[BLOCK_ACTIVATIONS].nbytes / sizeof(float)};
    if (e->desc.device->ops->kind == DEVICE_HOST) return CZ_OK;
    scratch->numel = SCRATCH_NUMEL;
    scratch->p = scratch->own = malloc(SCRATCH_NUMEL * sizeof *scratch->p);
    return comm_agree(e->desc.comm,
                      scratch->p ? CZ_OK
                                 : err_set(CZ_NOMEM, 0, "no memory for weights on their way"));
}

void host_scratch_give(struct host_scratch *scratch)
{
    free(scratch->own);
    *scratch = (struct host_scratch){0};
}
