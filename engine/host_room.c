/* Scratch in host memory for whoever brings elements to or from the run while nothing is under way:
 * where activations will lie, or, when those are a GPU's, memory of its own for as long. */
#include "engine/engine_impl.h"

#include <stdlib.h>

/* A power of two, so that pieces of tensors begin at even places. */
#define ROOM_NUMEL ((size_t)1 << 20)

cz_status host_room_take(const struct cz_engine *e, struct host_room *room)
{
    *room = (struct host_room){.p = e->blocks[BLOCK_ACTIVATIONS],
                               .numel = e->plan.rows[BLOCK_ACTIVATIONS].nbytes / sizeof(float)};
    if (e->device->ops->kind == DEVICE_HOST) return CZ_OK;
    room->numel = ROOM_NUMEL;
    room->p = room->own = malloc(ROOM_NUMEL * sizeof *room->p);
    return comm_agree(e->comm,
                      room->p ? CZ_OK : err_set(CZ_NOMEM, 0, "no memory for weights on their way"));
}

void host_room_give(struct host_room *room)
{
    free(room->own);
    *room = (struct host_room){0};
}
