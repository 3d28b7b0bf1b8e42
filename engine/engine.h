/* What other modules may use of a running engine besides its public calls. */
#ifndef CZ_ENGINE_ENGINE_H
#define CZ_ENGINE_ENGINE_H

#include "base/status.h"
#include "model/model.h"

#include <czero/engine.h>

CZ_EXTERN_C_BEGIN

struct comm; /* comm/comm.h */
struct ops;  /* ops/ops.h */

/* The public name of a communicator over the ranks of a run. */
static inline struct comm *world_comm(struct cz_world *world)
{
    return (struct comm *)world;
}

static inline const struct comm *world_comm_const(const struct cz_world *world)
{
    return (const struct comm *)world;
}

static inline struct cz_world *comm_world(struct comm *comm)
{
    return (struct cz_world *)comm;
}

/* The kernels that layers and the optimizer call, and through them the device. A bench may wrap
 * their slots (bench/gpu/step_cuda.c). */
struct ops *engine_get_ops(struct cz_engine *engine);

CZ_EXTERN_C_END
#endif
